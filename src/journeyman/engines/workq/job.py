"""One job: what it is, packed into bytes, and how far it has come.

    spec     urgency  ready  created  id  queue  ttr  ttl  attempts  fails  time  flags | payload
    bytes    4        12     12       16  4      8    8    8         8      12    1

``urgency`` falls as the priority rises, ``ready`` is the time if that is after the creation, else
the creation. So specs compare as jobs are to be leased: by priority; then by when they became
ready, scheduled or not; then by creation and id. No two are equal in all of these. A moment takes
12 bytes because a schedule may reach to the year 9999.

A spec never changes. A job that nothing has happened to, and that is ready, is its spec and nothing
else; that is what a million waiting jobs are. Any other is a plain tuple around it:

    (spec, state, attempts, fails, started_ns, moment_ns, result)

    state                  moment_ns
    NEW, PENDING           when it becomes ready; 0: it is
    LEASED                 when its TTR is over
    COMPLETED, FAILED      when it was finished; ``result`` is there in these two only
    EXHAUSTED              the same: failed because its attempts ran out, not by a worker's word

Both are immutable, and bytes and tuples of atoms are nothing that the garbage collector keeps
looking at. ``fails`` counts failures that were followed by a retry, as the fold does.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, TypeAlias

from journeyman.folds.workq import JobState
from journeyman.units import NS_PER_MS

Spec: TypeAlias = bytes
Progress: TypeAlias = tuple[Spec, int, int, int, int, int, bytes | None]
Entry: TypeAlias = Spec | Progress

NEW, COMPLETED, FAILED, PENDING, LEASED = (int(state) for state in JobState)
EXHAUSTED = 5  # FAILED, for everyone outside

SHARED_BYTES = 16 * 1024  # a job this large is not copied into an answer
BIAS = 1 << 94  # added to every moment, so that those before 1970 sort as bytes too
_MOMENT_BYTES = 12
TOP_PRIORITY = 2**31 - 1
URGENCY_BYTES = 4
_READY = slice(URGENCY_BYTES, URGENCY_BYTES + _MOMENT_BYTES)

IS_SCHEDULE, HAS_TIME, IS_RUN = 1, 2, 4

_HEAD = Struct(">I12s12s16sI4Q12sB")
_head = _HEAD.pack
HEAD_BYTES = _HEAD.size
_ID = slice(28, 44)
_QUEUE = slice(44, 48)
_LIFE_AT = 16
_life = Struct(">12s28xQ16x12sB").unpack_from  # created, ttl, time, flags
_LEASE_AT = 28
_lease = Struct(">16sIQ").unpack_from  # id, queue, ttr
_LIMITS_AT = 64
_limits = Struct(">QQ").unpack_from
_FLAGS_AT = HEAD_BYTES - 1
_SCHEDULED = IS_SCHEDULE | HAS_TIME
_NO_TIME = bytes(_MOMENT_BYTES)


class SpecFields(NamedTuple):
    """A spec, unpacked."""

    job_id: bytes
    queue: int  # its number
    ttr_ms: int
    ttl_ms: int  # 0 for a run
    priority: int
    max_attempts: int
    max_fails: int  # as in the log, with the delay before a retry: formats.workq_retry
    created_ns: int
    time_ns: int | None
    flags: int
    payload: bytes


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
) -> Spec:
    """The arguments are those of SpecFields, in its order."""
    created = (created_ns + BIAS).to_bytes(_MOMENT_BYTES)
    ready, time = created, _NO_TIME
    if time_ns is not None:
        time = (time_ns + BIAS).to_bytes(_MOMENT_BYTES)
        ready = max(created, time)
        flags |= HAS_TIME
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
            time,
            flags,
        )
        + payload
    )


def fields_of(spec: Spec) -> SpecFields:
    urgency, _, created, job_id, queue, ttr_ms, ttl_ms, attempts, fails, time, flags = (
        _HEAD.unpack_from(spec)
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
        int.from_bytes(time) - BIAS if flags & HAS_TIME else None,
        flags & ~HAS_TIME,
        spec[HEAD_BYTES:],
    )


# -- single fields, for those who need no more --


def job_id_of(spec: Spec) -> bytes:
    return spec[_ID]


def queue_of(spec: Spec) -> int:
    return int.from_bytes(spec[_QUEUE])


def lease_fields_of(spec: Spec) -> tuple[bytes, int, int]:
    """Its id, the number of its queue, its TTR."""
    fields: tuple[bytes, int, int] = _lease(spec, _LEASE_AT)
    return fields


def limits_of(spec: Spec) -> tuple[int, int]:
    """max-attempts; max-fails as in the log."""
    limits: tuple[int, int] = _limits(spec, _LIMITS_AT)
    return limits


def payload_of(spec: Spec) -> bytes:
    return spec[HEAD_BYTES:]


def shown_payload_of(spec: Spec) -> bytes | memoryview:
    """The same for an answer, which may have to wait: large ones are not copied."""
    if len(spec) < SHARED_BYTES:
        return spec[HEAD_BYTES:]
    return memoryview(spec)[HEAD_BYTES:]


def is_run(spec: Spec) -> bool:
    return spec[_FLAGS_AT] & IS_RUN != 0


def expires_ns_of(spec: Spec) -> int:
    """When job and result vanish: TTL after its time if scheduled, else after its creation."""
    created, ttl_ms, time, flags = _life(spec, _LIFE_AT)
    begins = time if flags & _SCHEDULED == _SCHEDULED else created
    return int.from_bytes(begins) - BIAS + int(ttl_ms) * NS_PER_MS


# -- entries --


def opened(entry: Entry) -> Progress:
    """The tuple, also of a job that is nothing but its spec."""
    return (entry, NEW, 0, 0, 0, 0, None) if isinstance(entry, bytes) else entry


def spec_of(entry: Entry) -> Spec:
    return entry if isinstance(entry, bytes) else entry[0]


# -- jobs in the order of some moment of theirs --


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
