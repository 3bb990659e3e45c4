"""One job: what it is, packed into bytes; how far it has come; and what moves it on.

    spec     urgency  ready  created  id  queue  ttr  ttl  attempts  fails  flags | payload
    bytes    4        12     12       16  4      8    8    8         8      1

A job with a time has a flag for it, and before the payload the time, in 12 bytes; so has one with a
key, after that: its length in a byte, its bytes. Between the two, a job that was ever parked has
when its TTL began again, in 12 bytes (FAR while it is parked), and how often it was, in 4.

``urgency`` falls as the priority rises, ``ready`` is the time if that is after the creation, else
the creation. So specs compare as jobs are to be leased: by priority; then by when they became
ready, scheduled or not; then by creation and id. No two are equal in all of these. A moment takes
12 bytes because a schedule may reach to the year 9999.

A spec changes only when a job is parked or woken. A job that nothing has happened to, and that is
ready, is its spec and nothing else; that is what a million waiting jobs are. Any other is a plain
tuple around it:

    (spec, state, attempts, fails, started_ns, moment_ns, result)

    state                  moment_ns
    NEW, PENDING           when it becomes ready; 0: it is
    LEASED                 when its TTR is over
    COMPLETED, FAILED      when it was finished; ``result`` is there in these two only
    EXHAUSTED              the same: failed because its attempts ran out, not by a worker's word
    CANCELLED              the same: failed because a client cancelled it; the ledger says so
    PARKED                 when it is woken at the latest; 0: never; ``result`` is what it waits for

Both are immutable, and the garbage collector does not track bytes or tuples of atoms. ``fails``
counts failures that were followed by a retry, as the fold does.

The transitions are the engine's side of docs/folds.md, for a live job and a job that is loaded:

    NEW, PENDING --begin_lease--> LEASED --end_lease--> PENDING, or EXHAUSTED without attempts left
    NEW, PENDING, LEASED --keep_result--> COMPLETED | FAILED | CANCELLED
    NEW, PENDING, LEASED, FAILED --try_again--> PENDING, one failure more
    LEASED --park--> PARKED --wake--> PENDING

``entry_of`` and ``job_of`` translate between an entry and the job of the reference fold. An entry
has all that the fold knows, apart from zone offsets and owed timeouts, which only the logs of
other programs have. It has one thing more: until when a retry is delayed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import chain
from struct import Struct
from typing import NamedTuple, TypeAlias

import msgspec

from journeyman.folds.workq import NEVER_NS, FoldedJob, JobState
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, delay_ms_of
from journeyman.units import NS_PER_MS

Spec: TypeAlias = bytes
Progress: TypeAlias = tuple[Spec, int, int, int, int, int, bytes | None]
Entry: TypeAlias = Spec | Progress

NEW, COMPLETED, FAILED, PENDING, LEASED = (int(state) for state in JobState)
EXHAUSTED = 5  # FAILED, for everyone outside
CANCELLED = 6  # FAILED in the log and for clients of the original
PARKED = 7  # PENDING in the log and for clients of the original
WAITING = (NEW, PENDING)
UNFINISHED = (NEW, PENDING, LEASED, PARKED)
DEAD = (FAILED, EXHAUSTED)

SHARED_BYTES = 16 * 1024  # a job this large is not copied into an answer
BIAS = 1 << 94  # added to every moment, so that those before 1970 sort as bytes too
_MOMENT_BYTES = 12
ID_BYTES = 16
KEY_BYTES = _MOMENT_BYTES + ID_BYTES  # the key of a job in an order by moments
TOP_PRIORITY, LOWEST_PRIORITY = 2**31 - 1, -(2**31)
URGENCY_BYTES = 4
_READY = slice(URGENCY_BYTES, URGENCY_BYTES + _MOMENT_BYTES)

IS_SCHEDULE, HAS_TIME, IS_RUN, HAS_KEY, WAS_PARKED = 1, 2, 4, 8, 16
FAR = NEVER_NS
_PARKS_BYTES = 4

_HEAD = Struct(">I12s12s16sI4QB")
_head = _HEAD.pack
HEAD_BYTES = _HEAD.size
_ID = slice(28, 44)
_QUEUE = slice(44, 48)
_PLACE = slice(16, 48)  # created, id and queue stand together
PLACE_BYTES = 32
_LIFE_AT = 16
_life = Struct(">12s28xQ16xB").unpack_from  # created, ttl, flags
_LEASE_AT = 28
_lease = Struct(">16sIQ").unpack_from  # id, queue, ttr
_LIMITS_AT = 64
_limits = Struct(">QQ").unpack_from
_FLAGS_AT = HEAD_BYTES - 1
_TIME = slice(HEAD_BYTES, HEAD_BYTES + _MOMENT_BYTES)  # if it has one
_SCHEDULED = IS_SCHEDULE | HAS_TIME


class SpecFields(NamedTuple):
    """A spec, unpacked."""

    job_id: bytes
    queue: int  # its number
    ttr_ms: int
    ttl_ms: int  # 0 for a run
    priority: int
    max_attempts: int
    max_fails: int  # as in the log, with the delay before a retry: formats.workq
    created_ns: int
    time_ns: int | None
    flags: int
    payload: bytes
    key: str = ""
    # When the TTL began again after a park; FAR while the job is parked.
    begins_ns: int | None = None
    parks: int = 0


def pack(
    job_id: bytes,
    queue: int,
    ttr_ms: int,
    ttl_ms: int,
    priority: int,
    max_attempts: int,
    max_fails: int,
    created_ns: int,
    time_ns: int | None,
    flags: int,
    payload: bytes,
    key: str = "",
) -> Spec:
    """The arguments are those of SpecFields, in its order."""
    if key:
        flags |= HAS_KEY
        encoded = key.encode()
        payload = bytes((len(encoded),)) + encoded + payload
    created = (created_ns + BIAS).to_bytes(_MOMENT_BYTES)
    ready = created
    if time_ns is not None:
        time = (time_ns + BIAS).to_bytes(_MOMENT_BYTES)
        ready = max(created, time)
        flags |= HAS_TIME
        payload = time + payload
    return (
        _head(
            TOP_PRIORITY - priority,
            ready,
            created,
            job_id,
            queue,
            ttr_ms,
            ttl_ms,
            max_attempts,
            max_fails,
            flags,
        )
        + payload
    )


def with_time(spec: Spec, time_ns: int) -> Spec:
    """A spec whose head says that it has a time, and that lacks it still."""
    return spec[:HEAD_BYTES] + (time_ns + BIAS).to_bytes(_MOMENT_BYTES) + spec[HEAD_BYTES:]


def fields_of(spec: Spec) -> SpecFields:
    urgency, _, created, job_id, queue, ttr_ms, ttl_ms, attempts, fails, flags = _HEAD.unpack_from(
        spec
    )
    return SpecFields(
        job_id,
        queue,
        ttr_ms,
        ttl_ms,
        TOP_PRIORITY - urgency,
        attempts,
        fails,
        int.from_bytes(created) - BIAS,
        int.from_bytes(spec[_TIME]) - BIAS if flags & HAS_TIME else None,
        flags & ~(HAS_TIME | HAS_KEY | WAS_PARKED),
        spec[_payload_at(spec) :],
        key_of(spec),
        *_parks_of(spec),
    )


def was_parked(spec: Spec) -> bool:
    """Return whether it was ever parked: then its starts and timeouts are hidden from the
    original."""
    return spec[_FLAGS_AT] & WAS_PARKED != 0


def parks_of(spec: Spec) -> int:
    return _parks_of(spec)[1]


def _parks_at(spec: Spec) -> int:
    return HEAD_BYTES + _MOMENT_BYTES if spec[_FLAGS_AT] & HAS_TIME else HEAD_BYTES


def _parks_of(spec: Spec) -> tuple[int | None, int]:
    """When its TTL began again, and how often it was parked."""
    if not spec[_FLAGS_AT] & WAS_PARKED:
        return None, 0
    at = _parks_at(spec)
    end = at + _MOMENT_BYTES
    begins_ns = int.from_bytes(spec[at:end]) - BIAS
    return begins_ns, int.from_bytes(spec[end : end + _PARKS_BYTES])


def with_parks(spec: Spec, begins_ns: int, parks: int) -> Spec:
    """The spec of a job whose TTL begins again then; FAR: it is parked."""
    at = _parks_at(spec)
    rest = at + (_MOMENT_BYTES + _PARKS_BYTES if was_parked(spec) else 0)
    flags = bytes((spec[_FLAGS_AT] | WAS_PARKED,))
    block = (begins_ns + BIAS).to_bytes(_MOMENT_BYTES) + parks.to_bytes(_PARKS_BYTES)
    return spec[:_FLAGS_AT] + flags + spec[HEAD_BYTES:at] + block + spec[rest:]


def _key_at(spec: Spec) -> int:
    flags = spec[_FLAGS_AT]
    at = HEAD_BYTES + _MOMENT_BYTES if flags & HAS_TIME else HEAD_BYTES
    return at + _MOMENT_BYTES + _PARKS_BYTES if flags & WAS_PARKED else at


def _payload_at(spec: Spec) -> int:
    at = _key_at(spec)
    return at + 1 + spec[at] if spec[_FLAGS_AT] & HAS_KEY else at


def key_of(spec: Spec) -> str:
    """The key that a job shares with others for limits; "" if it has none."""
    if not spec[_FLAGS_AT] & HAS_KEY:
        return ""
    return spec[_key_at(spec) + 1 : _payload_at(spec)].decode()


def has_key(spec: Spec) -> bool:
    return spec[_FLAGS_AT] & HAS_KEY != 0


def key_and_payload_of(spec: Spec) -> bytes:
    """The bytes that a text search looks at."""
    return spec[_key_at(spec) :]


def payload_bytes_of(spec: Spec) -> int:
    return len(spec) - _payload_at(spec)


# -- single fields --


def job_id_of(spec: Spec) -> bytes:
    return spec[_ID]


def place_of(spec: Spec) -> bytes:
    """A job in the order of creation, and its queue."""
    return spec[_PLACE]


def key_and_queue_in(place: bytes) -> tuple[bytes, int]:
    """The key of a place in the order of creation (``moment_key``), and the number of the queue."""
    return place[:KEY_BYTES], int.from_bytes(place[KEY_BYTES:PLACE_BYTES])


def queue_of(spec: Spec) -> int:
    return int.from_bytes(spec[_QUEUE])


def lease_fields_of(spec: Spec) -> tuple[bytes, int, int]:
    """Its id, the number of its queue, its TTR."""
    fields: tuple[bytes, int, int] = _lease(spec, _LEASE_AT)
    return fields


def limits_of(spec: Spec) -> tuple[int, int]:
    """Return max-attempts, and max-fails as it is in the log."""
    limits: tuple[int, int] = _limits(spec, _LIMITS_AT)
    return limits


def shown_payload_of(spec: Spec) -> bytes | memoryview:
    """The payload for an answer, which may have to wait: large ones are not copied."""
    at = _payload_at(spec)
    return spec[at:] if len(spec) < SHARED_BYTES else memoryview(spec)[at:]


def flags_of(spec: Spec) -> int:
    return spec[_FLAGS_AT]


def is_run(spec: Spec) -> bool:
    return spec[_FLAGS_AT] & IS_RUN != 0


def state_number(stage: int) -> int:
    """The state that the log and the protocol have for it."""
    if stage == PARKED:
        return PENDING
    return FAILED if stage in (EXHAUSTED, CANCELLED) else stage


def life_of(entry: Entry | None) -> int:
    """When the job began, which tells one life of an id from another; 0: it is not in the log."""
    if entry is None or is_run(spec_of(entry)):
        return 0
    return fields_of(spec_of(entry)).created_ns & (2**63 - 1)


def expires_ns_of(spec: Spec) -> int:
    """When job and result vanish: TTL after its time if scheduled, else after its creation; or
    after it was woken."""
    created, ttl_ms, flags = _life(spec, _LIFE_AT)
    if flags & WAS_PARKED:
        begins_ns = _parks_of(spec)[0] or 0
        return NEVER_NS if begins_ns == FAR else min(begins_ns + ttl_ms * NS_PER_MS, NEVER_NS)
    begins = spec[_TIME] if flags & _SCHEDULED == _SCHEDULED else created
    return int.from_bytes(begins) - BIAS + int(ttl_ms) * NS_PER_MS


# -- entries --


def opened(entry: Entry) -> Progress:
    """The tuple, also of a job that is nothing but its spec."""
    return (entry, NEW, 0, 0, 0, 0, None) if isinstance(entry, bytes) else entry


def spec_of(entry: Entry) -> Spec:
    return entry if isinstance(entry, bytes) else entry[0]


# -- transitions --


def begin_lease(entry: Entry, ttr_ms: int, now_ns: int) -> Progress:
    """A worker has it until its TTR is over."""
    deadline_ns = now_ns + ttr_ms * NS_PER_MS
    if isinstance(entry, bytes):
        return entry, LEASED, 1, 0, now_ns, deadline_ns, None
    spec, _, attempts, fails, _, _, _ = entry
    return spec, LEASED, attempts + 1, fails, now_ns, deadline_ns, None


def keep_result(entry: Entry, stage: int, now_ns: int, result: bytes) -> Progress:
    """A client has said how it ended: ``stage`` is COMPLETED, FAILED or CANCELLED."""
    if isinstance(entry, bytes):
        return entry, stage, 0, 0, 0, now_ns, result
    spec, before, attempts, fails, started_ns, _, _ = entry
    if before == PARKED:
        spec = with_parks(spec, now_ns, parks_of(spec))
    return spec, stage, attempts, fails, started_ns, now_ns, result


def end_lease(entry: Entry, now_ns: int) -> Progress:
    """The TTR of a lease is over: there is another attempt, or that was the last."""
    spec, _, attempts, fails, started_ns, _, _ = opened(entry)
    if 0 < limits_of(spec)[0] <= attempts:
        return spec, EXHAUSTED, attempts, fails, started_ns, now_ns, b""
    return spec, PENDING, attempts, fails, started_ns, ready_again_ns(spec, now_ns), None


def park(entry: Entry, reason: bytes, until_ns: int) -> Progress:
    """It waits without a lease, at most until then; 0: for ever."""
    spec, _, attempts, fails, started_ns, _, _ = opened(entry)
    parked = with_parks(spec, FAR, parks_of(spec) + 1)
    return parked, PARKED, attempts, fails, started_ns, until_ns, reason


def wake(entry: Entry, now_ns: int) -> Progress:
    spec, _, attempts, fails, started_ns, _, _ = opened(entry)
    return with_parks(spec, now_ns, parks_of(spec)), PENDING, attempts, fails, started_ns, 0, None


def result_of(progress: Progress) -> bytes | None:
    """The result of a finished job."""
    return None if progress[1] == PARKED else progress[6]


def try_again(entry: Entry, now_ns: int, delay_ms: int | None = None) -> Progress:
    """It has failed, and there shall be another attempt, after this delay or the job's own."""
    spec, stage, attempts, fails, started_ns, _, _ = opened(entry)
    if stage == PARKED:
        spec = with_parks(spec, now_ns, parks_of(spec))
    if delay_ms is None:
        ready_ns = ready_again_ns(spec, now_ns)
    else:
        ready_ns = now_ns + delay_ms * NS_PER_MS if delay_ms else 0
    return spec, PENDING, attempts, fails + 1, started_ns, ready_ns, None


def move_lease_end(entry: Progress, ends_ns: int) -> Progress:
    spec, stage, attempts, fails, started_ns, _, result = entry
    return spec, stage, attempts, fails, started_ns, ends_ns, result


def ready_again_ns(spec: Spec, now_ns: int) -> int:
    """When a job that comes back to its queue now is ready; 0: at once."""
    delay_ms = delay_ms_of(limits_of(spec)[1])
    return now_ns + delay_ms * NS_PER_MS if delay_ms else 0


# -- the job of the fold --


def entry_of(
    job: FoldedJob, queue: int, timeout_ns: int, key: str = "", cancelled_ns: int = 0
) -> Entry:
    """``timeout_ns`` is the time of its last timeout-attempt, from which a delay counts. A failure
    at ``cancelled_ns`` is a cancellation."""
    added = job.added
    spec = pack(
        added.job_id,
        queue,
        added.ttr_ms,
        added.ttl_ms,
        added.priority,
        added.max_attempts,
        added.max_fails,
        added.created.unix_ns,
        None if added.time is None else added.time.unix_ns,
        IS_SCHEDULE if added.command == Command.SCHEDULE else 0,
        added.payload,
        key,
    )
    if job.parks:
        begins_ns = FAR if job.begins is None else job.begins.unix_ns
        spec = with_parks(spec, begins_ns, job.parks)
    stage = int(job.state)
    started_ns = 0 if job.started is None else job.started.unix_ns
    moment_ns = ready_again_ns(spec, timeout_ns) if stage == PENDING else 0
    if stage == LEASED:
        moment_ns = started_ns + added.ttr_ms * NS_PER_MS
    elif job.finished is not None:
        moment_ns = job.finished.unix_ns
        if job.exhausted:
            stage = EXHAUSTED
        elif stage == FAILED and moment_ns == cancelled_ns:
            stage = CANCELLED
    if job.parked is not None:  # the loader knows until when
        return (spec, PARKED, job.attempts, job.fails, started_ns, 0, job.parked)
    return (spec, stage, job.attempts, job.fails, started_ns, moment_ns, job.result)


def job_of(entry: Entry, name: str) -> tuple[FoldedJob, int]:
    """The job, and the time of its last timeout-attempt if a delay is counted from it."""
    spec, stage, attempts, fails, started_ns, moment_ns, _ = opened(entry)
    result = result_of(opened(entry))
    fields = fields_of(spec)
    created = Instant(fields.created_ns)
    added = JobAdded(
        created,
        fields.job_id,
        name,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.priority,
        fields.max_attempts,
        fields.max_fails,
        fields.payload,
        None if fields.time_ns is None else Instant(fields.time_ns),
        created,
        Command.SCHEDULE if fields.flags & IS_SCHEDULE else Command.ADD,
    )
    job = FoldedJob(
        added,
        JobState(state_number(stage)),
        attempts,
        fails,
        result,
        Instant(started_ns) if attempts else None,
        Instant(moment_ns) if result is not None else None,
        stage == EXHAUSTED,
        parks=fields.parks,
        parked=opened(entry)[6] if stage == PARKED else None,
        begins=None if fields.begins_ns in (None, FAR) else Instant(fields.begins_ns or 0),
    )
    timeout_ns = 0
    if stage == PENDING and moment_ns:
        timeout_ns = moment_ns - delay_ms_of(fields.max_fails) * NS_PER_MS
    return job, timeout_ns


# -- jobs in the order of some moment of theirs --


class _Awaited(msgspec.Struct):
    """A part of protocols.workq.commands.Wait."""

    event: str = ""


_read_event = msgspec.json.Decoder(_Awaited).decode


def moment_key(moment_ns: int, job_id: bytes = b"") -> bytes:
    """Keys compare by the moment, then by the id; without an id it is before all of its moment."""
    return (moment_ns + BIAS).to_bytes(_MOMENT_BYTES) + job_id


def ready_of(spec: Spec) -> bytes:
    """Since when it is, or will be, ready: for ``moment_of``, or to be compared."""
    return spec[_READY]


def moment_of(key: bytes) -> int:
    return int.from_bytes(key[:_MOMENT_BYTES]) - BIAS


def id_in(key: bytes) -> bytes:
    return key[_MOMENT_BYTES:]


def event_of(entry: Progress) -> str:
    """The event that a parked job waits for; empty: none."""
    try:
        return _read_event(entry[6] or b"{}").event
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def event_key(event: str, job_id: bytes = b"") -> bytes:
    """Keys of jobs that wait for one event stand together."""
    return event.encode() + b"\0" + job_id


def is_moment_key(key: bytes) -> bool:
    """Return whether it is that of a job: with an id, and a moment that the store can hold too."""
    fits = -(2**63) <= moment_of(key) // NS_PER_MS < 2**63
    return fits and len(id_in(key)) == ID_BYTES


# -- very many jobs, from the process that reads a large log --


class ReadyRows(NamedTuple):
    """Adds of jobs that are ready, of one queue, or have completed, in the order of the log; all
    end to end."""

    specs: bytes
    ends: array[int]  # where each spec begins, and the last one ends
    expiries: bytes  # their keys: see moment_key
    by_shard: array[int]  # the rows of the first shard, then those of the next
    ids: bytes  # in that order
    counts: Sequence[int]  # the number of rows of each shard


_CUT_AT_ONCE = 512


@cache
def _cutter(size: int) -> Struct:
    return Struct(f"{size}s" * _CUT_AT_ONCE)


def cut(data: bytes, size: int) -> list[bytes]:
    """Pieces of one size, end to end; by a Struct, in a quarter of the time of slices."""
    whole = len(data) - len(data) % (size * _CUT_AT_ONCE)
    pieces = list(chain.from_iterable(_cutter(size).iter_unpack(memoryview(data)[:whole])))
    pieces += [data[at : at + size] for at in range(whole, len(data), size)]
    return pieces
