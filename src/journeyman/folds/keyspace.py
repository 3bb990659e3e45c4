"""Jobs of the work queue as job records of a keyspace, and back: the mapping, without files.

    workq    state     new, due later   new, pending   leased    completed   failed
             status    delayed          waiting        active    completed   failed

A payload is JSON in a record. One that is JSON stays as it is; other text becomes a JSON string,
other bytes their base64 in one. What a record has no member for, but the way back needs, is in one
extra member, which other programs pass on:

    "workq":{"encoding":"json|text|base64","fails":0,"finished_ns":..,"max_fails":0,"priority":0,
             "result":base64,"started_ns":..,"state":0,"ttl_ms":..,"ttr_ms":..,"zones":[..],
             "ended":true,"over":true}                                            without zeros

So a workq job comes back equal except for logging times; records of other programs come back with
the settings given. A job whose TTL has ended, and which was not finished, has the status failed:

    ended   its TTL has ended; ``state`` is where it stands in the log, which has no word of it
    over    the log says so too (expire): to the fold there is no such job any more
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from journeyman.errors import InvalidData
from journeyman.folds.workq import MAX_TTL_MS, NEVER_NS, FoldedJob, JobState, expires_ns
from journeyman.formats.keyspace.text import check_json
from journeyman.formats.keyspace.values import Extra, JobRecord, QueueRecord
from journeyman.formats.timed_frame import UTC_OFFSET_MIN, Instant
from journeyman.formats.workq import Command, JobAdded, delay_ms_of
from journeyman.units import NS_PER_MS

MEMBER: Final = "workq"
_FINISHED: Final = ("completed", "failed")
_FINISHED_STATES: Final = (JobState.COMPLETED, JobState.FAILED)
_UNFINISHED_STATES: Final = (JobState.NEW, JobState.PENDING, JobState.LEASED)
_USUAL_ZONES: Final = [UTC_OFFSET_MIN] * 3
_STATUS_STATES: Final = {
    "completed": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "active": JobState.LEASED,
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """The fields of a work queue job that a keyspace record does not have."""

    ttr_ms: int = 60_000
    ttl_ms: int = MAX_TTL_MS
    priority: int = 0
    max_fails: int = 0


_DEFAULTS: Final = Defaults()


def id_of(text: str) -> UUID:
    """An id for a name, always the same: the first bytes of its SHA-256 as a version 4 UUID."""
    return UUID(
        bytes=hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:16], version=4
    )


def queue_record(name: str) -> QueueRecord:
    """A queue that is known by its jobs only."""
    return QueueRecord(id_of(f"queue {name}"), name, None, True, "active")


# -- payloads ------------------------------------------------------------------------------------


def payload_text(payload: bytes) -> str:
    """The payload as JSON."""
    return _encoded(payload)[1]


def _encoded(payload: bytes) -> tuple[str, str]:
    """How a payload became JSON, and the JSON."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "base64", json.dumps(base64.b64encode(payload).decode())
    try:
        check_json(text)
    except ValueError:
        return "text", json.dumps(text, ensure_ascii=False)
    return "json", text


def payload_bytes(record: JobRecord) -> bytes:
    """The payload as it was before it became JSON. Raises InvalidData if that cannot be."""
    return _payload(record, _members(record))


def _payload(record: JobRecord, members: dict[str, Any]) -> bytes:
    encoding = members.get("encoding", "json")
    if encoding == "json":
        return record.payload.encode()
    text = json.loads(record.payload)
    if not isinstance(text, str):
        raise InvalidData(f"a payload said to be {encoding!r:.20} that is not a string", 0)
    return text.encode() if encoding == "text" else _unbase64(text)


def _unbase64(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidData("invalid base64", 0) from None


# -- workq ---------------------------------------------------------------------------------------


def workq_status(state: JobState, due_ns: int | None, as_of_ns: int) -> str:
    """The status of a job of the work queue at a moment."""
    if state in _FINISHED_STATES:
        return state.name.lower()
    if state == JobState.LEASED:
        return "active"
    return "delayed" if due_ns is not None and due_ns > as_of_ns else "waiting"


def record_of_workq(
    job: FoldedJob, as_of_ns: int, timed_out_ns: int = 0, *, is_over: bool = False
) -> JobRecord:
    """The record of a job of the work queue as it is at a moment.

    ``timed_out_ns`` is the time of its last timeout-attempt: a delay before a retry begins there.
    """
    added = job.added
    is_ended = is_over or expires_ns(job) <= as_of_ns
    job_uuid = UUID(bytes=added.job_id)
    due_ns = None if added.time is None else added.time.unix_ns
    wakes_ns = wakes_ns_of(job, timed_out_ns)
    status = workq_status(job.state, wakes_ns, as_of_ns)
    encoding, text = _encoded(added.payload)
    members: dict[str, Any] = {
        "encoding": None if encoding == "json" else encoding,
        "ended": is_ended,
        "exhausted": job.exhausted,
        "fails": job.fails,
        "finished_ns": None if job.finished is None else job.finished.unix_ns,
        "max_fails": added.max_fails,
        # A time without being scheduled, or the other way around: no server writes that.
        "odd_time": (added.time is None) is (added.command == Command.SCHEDULE),
        "over": is_over,
        "begins_ns": None if job.begins is None else job.begins.unix_ns,
        "parks": job.parks,
        "parked": None if job.parked is None else base64.b64encode(job.parked).decode(),
        "owed_timeouts": job.owed_timeouts,
        "priority": added.priority,
        "result": None if job.result is None else base64.b64encode(job.result).decode(),
        "scheduled": added.command == Command.SCHEDULE,
        "started_ns": None if job.started is None else job.started.unix_ns,
        "state": int(job.state),
        "timed_out_ns": timed_out_ns if job.state == JobState.PENDING else 0,
        "ttl_ms": added.ttl_ms,
        "ttr_ms": added.ttr_ms,
        "zones": _zones_of(added),
    }
    return JobRecord(
        job_uuid=job_uuid,
        jid=f"{added.name}:{job_uuid}",
        queue=added.name,
        status="failed" if is_ended and status not in _FINISHED else status,
        created_at_ns=added.created.unix_ns,
        execution_start_ns=added.created.unix_ns if due_ns is None else due_ns,
        max_attempts=added.max_attempts or None,
        attempts_so_far=job.attempts,
        payload=text,
        # ttl_ms is always there: it shows that missing members are zero.
        extra=_extra({name: v for name, v in members.items() if v or v == "" or name == "ttl_ms"}),
    )


def _zones_of(added: JobAdded) -> list[int] | None:
    """Zone offsets of creation, due time and a due time of "none", unless all are as usual."""
    time = added.created if added.time is None else added.time
    zones = [added.created.offset_min, time.offset_min, added.none_offset_min]
    return None if zones == _USUAL_ZONES else zones


def wakes_ns_of(job: FoldedJob, timed_out_ns: int) -> int | None:
    """When a job that waits is ready; None: it is."""
    if job.parked is not None:
        return NEVER_NS
    if job.state == JobState.PENDING:
        delay_ms = delay_ms_of(job.added.max_fails)
        return timed_out_ns + delay_ms * NS_PER_MS if delay_ms else None
    return None if job.added.time is None else job.added.time.unix_ns


def workq_of_record(record: JobRecord, defaults: Defaults) -> FoldedJob:
    """The work queue job that a record describes. Raises InvalidData."""
    return workq_and_timeout(record, defaults)[0]


def workq_and_timeout(record: JobRecord, defaults: Defaults) -> tuple[FoldedJob, int]:
    """Besides, the time of its last timeout-attempt, 0 if it does not matter."""
    members = _members(record)
    is_ours = "ttl_ms" in members  # missing members are zero then
    zones = _zones_in(members)
    created = Instant(record.created_at_ns, zones[0])
    looks_scheduled = not is_ours and record.execution_start_ns != record.created_at_ns
    is_scheduled = bool(members.get("scheduled", looks_scheduled))
    has_time = is_scheduled is not bool(members.get("odd_time", False))
    added = JobAdded(
        logged=created,
        job_id=record.job_uuid.bytes,
        name=record.queue,
        ttr_ms=_number(members, "ttr_ms", 0 if is_ours else defaults.ttr_ms),
        ttl_ms=_number(members, "ttl_ms", defaults.ttl_ms),
        priority=_number(members, "priority", 0 if is_ours else defaults.priority),
        max_attempts=record.max_attempts or 0,
        max_fails=_number(members, "max_fails", 0 if is_ours else defaults.max_fails),
        payload=_payload(record, members),
        time=Instant(record.execution_start_ns, zones[1]) if has_time else None,
        created=created,
        command=Command.SCHEDULE if is_scheduled else Command.ADD,
        none_offset_min=zones[2],
    )
    job = FoldedJob(added, _state(members, record), record.attempts_so_far)
    job.fails = _number(members, "fails", 0)
    job.owed_timeouts = _number(members, "owed_timeouts", 0)
    job.exhausted = bool(members.get("exhausted", False))
    job.parks = _number(members, "parks", 0)
    if "begins_ns" in members:
        job.begins = Instant(_number(members, "begins_ns", 0))
    if "parked" in members:
        job.parked = _unbase64(members["parked"])
    if job.state == JobState.LEASED:
        job.attempts = max(job.attempts, 1)
    if job.attempts:
        job.started = Instant(_number(members, "started_ns", record.created_at_ns))
    if job.state in _FINISHED_STATES:
        job.result = _unbase64(members.get("result", ""))
        at_ns = expires_ns(job) if "ended" in members else record.created_at_ns
        job.finished = Instant(_number(members, "finished_ns", at_ns))
    return job, _number(members, "timed_out_ns", 0)


def folded_of_record(record: JobRecord) -> tuple[FoldedJob | None, int]:
    """Return what the fold of the log has of the job of this row, and as above. Raises InvalidData.

    None: the log says that the job is over, or the record is that of another program.
    """
    members = _members(record)
    if "ttl_ms" not in members or members.get("over"):
        return None, 0
    job, timed_out_ns = workq_and_timeout(record, _DEFAULTS)
    state = _number(members, "state", 0)
    if "ended" in members and state not in _FINISHED_STATES:
        if state not in _UNFINISHED_STATES:
            raise InvalidData(f"{MEMBER}.state is not that of a job", 0)
        job.state, job.result, job.finished = JobState(state), None, None
    return job, timed_out_ns


def is_archived(record: JobRecord) -> bool:
    """True if the row is outside of what the log says now: its TTL has ended, or it is foreign."""
    members = _members(record)
    return "ttl_ms" not in members or "ended" in members


def next_change_ns(record: JobRecord) -> int | None:
    """When time alone changes the row: it wakes, or its TTL ends; None: never by itself."""
    members = _members(record)
    if "ttl_ms" not in members:
        return None
    job, timed_out_ns = workq_and_timeout(record, _DEFAULTS)
    wakes_ns = wakes_ns_of(job, timed_out_ns) if record.status == "delayed" else None
    ends_ns = expires_ns(job)
    return ends_ns if wakes_ns is None else min(wakes_ns, ends_ns)


def _zones_in(members: dict[str, Any]) -> list[int]:
    zones = members.get("zones", _USUAL_ZONES)
    if not isinstance(zones, list) or [*map(type, zones)] != [int, int, int]:
        raise InvalidData(f"{MEMBER}.zones are not three numbers", 0)
    return zones


def _state(members: dict[str, Any], record: JobRecord) -> JobState:
    """Return the state by the status, which others may have changed; the member distinguishes new
    from pending."""
    state = _STATUS_STATES.get(record.status)
    if state is not None:
        return state
    said = members.get("state", 0)
    return JobState.PENDING if said == JobState.PENDING else JobState.NEW


def _number(members: dict[str, Any], name: str, default: int) -> int:
    found = members.get(name, default)
    if type(found) is not int:
        raise InvalidData(f"{MEMBER}.{name} is not a number", 0)
    return found


def _members(record: JobRecord) -> dict[str, Any]:
    for name, text in record.extra:
        if name == MEMBER:
            found = json.loads(text)
            if not isinstance(found, dict):
                raise InvalidData(f"{MEMBER} is not an object", 0)
            return found
    return {}


def _extra(members: dict[str, Any]) -> Extra:
    if not members:
        return ()
    return ((MEMBER, json.dumps(members, separators=(",", ":"), sort_keys=True)),)
