"""The values of the Overhop keyspace: what each kind of key maps to.

    QueueKey                      {"id":..,"name":..,"config":{"concurrency_limit":..,
                                   "allow_job_overrides":..},"state":"active"}
    JobKey                        {"created_at":..,"execution_start_at":..,"jid":..,
                                   "max_attempts":..,"payload":..,"queue_name":..,
                                   "retry_interval_ms":..,"runtime":{"attempts_so_far":..},
                                   "status":..,"uuid":..}      members in alphabetical order
    QueueTimeKey, StatusFifoKey   01                           the key says it all
    StatusKey                     the status, ASCII
    CounterKey                    u64be

Invariants
- What the original wrote comes back byte for byte: ``encode(decode(b)) == b``. JSON written by
  another hand (spaces, other order, other zone) is read, and written back in this form.
- Members that are not known here are kept, as text, and written back in their place.
- Hostile JSON is InvalidData, never another exception. Nothing is checked against other keys.

Nearly all job records are just as this module writes them. For speed, one expression takes such a
record apart (``match_written``); all others are decoded step by step.

    {"created_at":"..","execution_start_at":"..", ... ,"status":"..","uuid":".."}
    {"created_at":"..","execution_start_at":"..", ... ,"status":"..","uuid":"..","workq":..}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeAlias
from uuid import UUID

from journeyman.errors import EncodeError, InvalidData
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace import text as json_format
from journeyman.units import NS_PER_MS

# Twice the largest message the original takes from the wire.
MAX_VALUE_BYTES: Final = 64 * 1024 * 1024

_U32 = range(2**32)
_U64 = range(2**64)
_U64_BYTES = Struct(">Q")
_QUEUE_STATES = ("active", "paused")

# Members not known here: (name, JSON text).
Extra: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue. ``queue_id`` is None in records from before queues had one."""

    queue_id: UUID | None
    name: str
    concurrency_limit: int | None
    allow_job_overrides: bool
    state: str  # active or paused
    extra: Extra = ()
    config_extra: Extra = ()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. Its payload is JSON text, just as it was given; extra members go by name."""

    job_uuid: UUID
    jid: str  # <queue>:<uuid>
    queue: str
    status: str
    created_at_ns: int
    execution_start_ns: int
    max_attempts: int | None = None
    retry_interval_ms: int | None = None
    attempts_so_far: int = 0
    payload: str = "null"
    extra: Extra = ()
    runtime_extra: Extra = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """There is nothing to say but that the key exists."""


MARKER: Final = Marker()
_MARKER_BYTES = b"\x01"

Value: TypeAlias = QueueRecord | JobRecord | Marker | str | int


# -- values -> bytes -----------------------------------------------------------------------------


def encode_value(value: Value) -> bytes:
    """The bytes of a value. Raises EncodeError."""
    try:
        raw = _encode(value)
    except ValueError as error:  # UnicodeEncodeError is one
        raise EncodeError(f"a value that cannot be written: {error}") from None
    if len(raw) > MAX_VALUE_BYTES:
        raise EncodeError(f"a value of {len(raw)} bytes, over {MAX_VALUE_BYTES}")
    return raw


def _encode(value: Value) -> bytes:
    if isinstance(value, JobRecord):
        return _job_text(value).encode()
    if isinstance(value, QueueRecord):
        return _queue_text(value).encode()
    if isinstance(value, Marker):
        return _MARKER_BYTES
    if isinstance(value, str):
        if not _is_status(value):
            raise EncodeError(f"a status is 1 to {keys.MAX_STATUS_BYTES} ASCII characters")
        return value.encode("ascii")
    if value not in _U64:
        raise EncodeError(f"a count of {value}")
    return _U64_BYTES.pack(value)


def _job_text(job: JobRecord) -> str:
    json_format.check_json(job.payload)
    created_at = start_at = json_format.format_time(job.created_at_ns)
    if job.execution_start_ns != job.created_at_ns:
        start_at = json_format.format_time(job.execution_start_ns)
    max_attempts = _optional_text(job.max_attempts, _U64, "max_attempts")
    retry_interval = _optional_text(job.retry_interval_ms, _U64, "retry_interval_ms")
    attempts = _number_text(job.attempts_so_far, _U64, "attempts_so_far")
    if not job.extra and not job.runtime_extra:  # nearly all: no need to sort the members
        return (
            f'{{"created_at":"{created_at}","execution_start_at":"{start_at}",'
            f'"jid":{json_format.string_text(job.jid)},"max_attempts":{max_attempts},"payload":{job.payload},'
            f'"queue_name":{json_format.string_text(job.queue)},"retry_interval_ms":{retry_interval},'
            f'"runtime":{{"attempts_so_far":{attempts}}},"status":{json_format.string_text(job.status)},'
            f'"uuid":"{job.job_uuid}"}}'
        )
    runtime = {"attempts_so_far": attempts}
    members = {
        "created_at": f'"{created_at}"',
        "execution_start_at": f'"{start_at}"',
        "jid": json_format.string_text(job.jid),
        "max_attempts": max_attempts,
        "payload": job.payload,
        "queue_name": json_format.string_text(job.queue),
        "retry_interval_ms": retry_interval,
        "runtime": json_format.join_object(_sorted(_with_extra(runtime, job.runtime_extra))),
        "status": json_format.string_text(job.status),
        "uuid": f'"{job.job_uuid}"',
    }
    return json_format.join_object(_sorted(_with_extra(members, job.extra)))


def _queue_text(queue: QueueRecord) -> str:
    if queue.state not in _QUEUE_STATES:
        raise EncodeError(f"a queue is {' or '.join(_QUEUE_STATES)}")
    config = {
        "concurrency_limit": _optional_text(queue.concurrency_limit, _U32, "concurrency_limit"),
        "allow_job_overrides": json_format.json_text(bool(queue.allow_job_overrides)),
    }
    members = {} if queue.queue_id is None else {"id": json_format.json_text(str(queue.queue_id))}
    members["name"] = json_format.json_text(queue.name)
    members["config"] = json_format.join_object(_with_extra(config, queue.config_extra))
    members["state"] = json_format.json_text(queue.state)
    return json_format.join_object(_with_extra(members, queue.extra))


def _optional_text(number: int | None, limits: range, name: str) -> str:
    return "null" if number is None else _number_text(number, limits, name)


def _number_text(number: int, limits: range, name: str) -> str:
    if number not in limits:
        raise EncodeError(f"{name} is {number}, not 0 to {limits.stop - 1}")
    return str(int(number))


def _with_extra(members: dict[str, str], extra: Extra) -> dict[str, str]:
    for name, text in extra:
        if name in members:
            raise EncodeError(f"a member {name!r} twice")
        json_format.check_json(text)
        members[name] = text
    return members


def _sorted(members: dict[str, str]) -> dict[str, str]:
    return dict(sorted(members.items()))


def _is_status(status: str) -> bool:
    return 1 <= len(status) <= keys.MAX_STATUS_BYTES and status.isascii()


# -- bytes -> values -----------------------------------------------------------------------------


def decode_value(key: keys.Key, data: bytes, offset: int = 0) -> Value:
    """The value of ``key``. Raises InvalidData.

    ``offset`` is only named in errors: where the value stands in something larger.
    """
    if len(data) > MAX_VALUE_BYTES:
        raise InvalidData(f"a value of {len(data)} bytes, over {MAX_VALUE_BYTES}", offset)
    try:
        return _decode(key, data)
    except ValueError as error:
        raise InvalidData(f"an invalid value: {error}", offset) from None


def _decode(key: keys.Key, data: bytes) -> Value:
    if isinstance(key, keys.JobKey):
        text = str(data, "utf-8")
        return _written_job(text) or _job(json_format.split_object(text))
    if isinstance(key, keys.QueueKey):
        return _queue(json_format.split_object(str(data, "utf-8")))
    if isinstance(key, keys.StatusKey):
        status = str(data, "ascii")
        if not _is_status(status):
            raise ValueError(f"a status of {len(status)} characters")
        return status
    if isinstance(key, keys.CounterKey):
        if len(data) != _U64_BYTES.size:
            raise ValueError(f"a count of {len(data)} bytes")
        return int(_U64_BYTES.unpack(data)[0])
    if data != _MARKER_BYTES:
        raise ValueError("a marker that is not 01")
    return MARKER


def _written_job(text: str) -> JobRecord | None:
    """The job in ``text`` if it is just as it would be written: what ``_job`` gives, faster."""
    match = match_written(text)
    if match is None:
        return None
    (
        created_at,
        start_at,
        jid,
        attempts,
        payload,
        queue,
        interval,
        so_far,
        status,
        uuid,
        name,
        more,
    ) = match.groups()
    created_at_ns = json_format.parse_time(created_at)
    return JobRecord(
        job_uuid=UUID(uuid),
        jid=jid,
        queue=queue,
        status=status,
        created_at_ns=created_at_ns,
        execution_start_ns=created_at_ns
        if start_at == created_at
        else json_format.parse_time(start_at),
        max_attempts=None if attempts == "null" else int(attempts),
        retry_interval_ms=None if interval == "null" else int(interval),
        attempts_so_far=int(so_far),
        payload=payload,
        extra=() if name is None else ((name, more),),
    )


def _job(members: dict[str, json_format.Member]) -> JobRecord:
    runtime = json_format.split_object(_take(members, "runtime").text)
    return JobRecord(
        job_uuid=_uuid(_take(members, "uuid").value),
        jid=_string(members, "jid"),
        queue=_string(members, "queue_name"),
        status=_string(members, "status"),
        created_at_ns=json_format.parse_time(_string(members, "created_at")),
        execution_start_ns=json_format.parse_time(_string(members, "execution_start_at")),
        max_attempts=_optional(members, "max_attempts", _U64),
        retry_interval_ms=_optional(members, "retry_interval_ms", _U64),
        attempts_so_far=_number(_take(runtime, "attempts_so_far").value, _U64),
        payload=members.pop("payload", json_format.Member(None, "null")).text,
        extra=tuple(sorted(_extra(members))),
        runtime_extra=tuple(sorted(_extra(runtime))),
    )


def _queue(members: dict[str, json_format.Member]) -> QueueRecord:
    config = json_format.split_object(_take(members, "config").text)
    overrides = _take(config, "allow_job_overrides").value
    state = _string(members, "state")
    if not isinstance(overrides, bool) or state not in _QUEUE_STATES:
        raise ValueError("allow_job_overrides or state is invalid")
    return QueueRecord(
        queue_id=_uuid(members.pop("id").value) if "id" in members else None,
        name=_string(members, "name"),
        concurrency_limit=_optional(config, "concurrency_limit", _U32),
        allow_job_overrides=overrides,
        state=state,
        extra=_extra(members),
        config_extra=_extra(config),
    )


# Each of these takes its member out, so that what is left at the end is not known here.


def _take(members: dict[str, json_format.Member], name: str) -> json_format.Member:
    if name not in members:
        raise ValueError(f"no {name}")
    return members.pop(name)


def _string(members: dict[str, json_format.Member], name: str) -> str:
    value = _take(members, name).value
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")
    return value


def _optional(members: dict[str, json_format.Member], name: str, limits: range) -> int | None:
    value = members.pop(name, json_format.Member(None, "null")).value
    return None if value is None else _number(value, limits)


def _number(value: Any, limits: range) -> int:
    if type(value) is not int or value not in limits:  # True is an int, too
        raise ValueError(f"{value!r:.40} is not a number from 0 to {limits.stop - 1}")
    return value


def _uuid(value: Any) -> UUID:
    if not isinstance(value, str) or len(value) != 36:
        raise ValueError("a uuid is 36 characters")
    uuid = UUID(value)
    if str(uuid) != value.lower():
        raise ValueError("a uuid has its dashes in other places")
    return uuid


def _extra(members: dict[str, json_format.Member]) -> Extra:
    return tuple((name, member.text) for name, member in members.items())


# -- what belongs to a job -----------------------------------------------------------------------


def index_entries(job: JobRecord, *, queue_time_version: int = 2) -> dict[bytes, bytes]:
    """The job itself and every index key over it, each with its value; counters are sums.

    All of them follow from the record, so indexes can be rebuilt from the jobs alone.
    """
    start_ms = job.execution_start_ns // NS_PER_MS  # cut, as the original does
    created_ms = job.created_at_ns // NS_PER_MS
    return {
        keys.encode_key(keys.JobKey(job.job_uuid)): encode_value(job),
        keys.encode_key(
            keys.QueueTimeKey(start_ms, job.queue, job.job_uuid, queue_time_version)
        ): _MARKER_BYTES,
        keys.encode_key(keys.StatusKey(job.job_uuid)): encode_value(job.status),
        keys.encode_key(keys.StatusFifoKey(job.status, created_ms, job.job_uuid)): _MARKER_BYTES,
    }


_PLAIN = r'"([^"\\\x00-\x1f]*)"'  # a string without escapes
_NUMBER = "0|[1-9][0-9]{0,18}"
# A job as it is written, with at most one more member, whose name sorts last.
_WRITTEN_JOB = re.compile(
    rf'\{{"created_at":{_PLAIN},"execution_start_at":{_PLAIN},"jid":{_PLAIN},'
    rf'"max_attempts":(null|{_NUMBER}),"payload":(.*),"queue_name":{_PLAIN},'
    rf'"retry_interval_ms":(null|{_NUMBER}),"runtime":\{{"attempts_so_far":({_NUMBER})\}},'
    rf'"status":{_PLAIN},"uuid":"([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})"'
    r'(?:,"([v-z][a-z_]*)":(.*))?\}',
    re.DOTALL,
)


def match_written(text: str) -> re.Match[str] | None:
    """The parts of a job that is just as it would be written: for speed.

    None says nothing. The groups are the values of the members in their order, then name and value
    of one more.
    """
    match = _WRITTEN_JOB.fullmatch(text)
    if match is None or text.count("[") + text.count("{") > json_format.MAX_JSON_DEPTH:
        return None
    try:
        json_format.check_json(match[5])
        if match[12] is not None:
            json_format.check_json(match[12])
    except ValueError:
        return None  # other members follow, or it is not one
    return match
