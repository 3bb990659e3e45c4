"""The workq command log: every state change of every job of the work queue.

    segment   HEADER (8)  record  record ...
    record    TIME (15)  SIZE (uvarint)  PAYLOAD (SIZE)  CRC (4)     see timed_frame.py
    payload   TYPE (1)  JOB_ID (16)  and then, by type:

      1 add, 2 schedule   NAME_LEN NAME  TTR  TTL  PRIORITY  MAX_ATTEMPTS  MAX_FAILS
                          PAYLOAD_LEN PAYLOAD  TIME (15)  CREATED (15)
      3 complete, 4 fail  RESULT_LEN RESULT
      5 delete, 6 expire, 7 start-attempt, 8 timeout-attempt     nothing
      others              of a newer writer: kept as they are, and skipped; even without an id

Numbers and lengths are uvarints, PRIORITY is a zigzag varint, times are 15 bytes. A TIME of second
0, nanosecond 0 means "none": the job is ready at once.

This module knows what a record says, not whether it may: names, TTRs and ids that the protocol
would refuse are read and written like any other, and the fold decides. What is decoded can always
be encoded again, byte for byte as long as its varints were of the shortest form.

Retries are written so that the original, which has none, loads the log. The delay before a retry
is part of the number that holds the max-fails of an add:

    MAX_FAILS (uvarint)   delay_ms << 16 | max_fails        bits 8 to 15 are 0

The original keeps the lowest 8 bits of it, so it loads such a job without the delay. Codec, fold
and tables show the number as it stands in the log; a number of at most 255 has no delay.

A fail that is retried is final to the original, which then refuses the next attempt. So it is
*hidden*: written as an add that expired in the year 1, which the original skips.

    type 1 | id | NAME_LEN NAME 0 0 0 0 0 | RESULT_LEN RESULT | HIDDEN_TAIL

NAME is one that no job can have; the zeros are TTR, TTL, priority, max-attempts and max-fails; the
tail is a missing time, and creation in the year 1. The timeout-attempt that follows puts the job
back into its queue, there as here. A job that was not leased is in its queue there already; then
the timeout-attempt is hidden in the same way, with an empty result.

A job that is *parked* waits for a time, an event or other jobs, without a lease. The original has
nothing like it, and stops at 255 starts. So what parks a job, what wakes it, and every start after
that is hidden in the same way; a park has what the job waits for in the place of the result.

The whole contract, with limits and errors: docs/formats/workq.md.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from journeyman.errors import (
    EncodeError,
    EntryTooLarge,
    InvalidData,
    StringOverflow,
)
from journeyman.formats import timed_frame
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.values import value

HEADER = bytes.fromhex("7771777100000001")
MAX_PAYLOAD_BYTES = 1_048_576  # the limit for a job, and for a result
ID_BYTES = 16
MAX_U64 = 2**64 - 1
# The result of a job that a client cancelled; to the log it has failed.
CANCELLATION: Final = b'{"error":"Cancelled","message":"a client cancelled the job"}'
MIN_PRIORITY = -(2**31)
MAX_PRIORITY = 2**31 - 1


class Command(IntEnum):
    ADD = 1
    SCHEDULE = 2
    COMPLETE = 3
    FAIL = 4
    DELETE = 5
    EXPIRE = 6
    START_ATTEMPT = 7
    TIMEOUT_ATTEMPT = 8
    PARK = 10  # this and WAKE are never the type of a record: they are always hidden
    WAKE = 11

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class NewerCommand(int):
    """The type of a command that is not known here."""

    @property
    def word(self) -> str:
        return "unknown"


@value
class JobAdded:
    """A record that creates a job: add, or schedule if ``command`` is SCHEDULE."""

    logged: timed_frame.Instant
    job_id: bytes  # 16 raw bytes
    name: str  # utf-8, undecodable bytes kept by surrogateescape
    ttr_ms: int
    ttl_ms: int
    priority: int
    max_attempts: int
    max_fails: int
    payload: bytes
    time: timed_frame.Instant | None  # when due; None for "add"
    created: timed_frame.Instant
    command: Command = Command.ADD
    # Zone offset written with a time of "none"; the original writes -1, its document says 0.
    none_offset_min: int = timed_frame.UTC_OFFSET_MIN


@value
class JobFinished:
    """A record that ends an attempt with the worker's result: complete or fail; or parks the job,
    with what it waits for."""

    logged: timed_frame.Instant
    job_id: bytes
    command: Command  # COMPLETE, FAIL or PARK
    result: bytes
    hidden: bool = False  # from the original: a FAIL that is retried, and every PARK


@value
class JobEvent:
    """A record with no field but the id: delete, expire, start-attempt, timeout-attempt or wake."""

    logged: timed_frame.Instant
    job_id: bytes
    command: Command
    hidden: bool = False  # from the original: see the module


@value
class UnknownCommand:
    """A command of a newer version: kept byte for byte, meaning nothing here."""

    logged: timed_frame.Instant
    job_id: bytes
    command: NewerCommand
    body: bytes  # the bytes after the id
    missing: int = 0  # bytes of the id that a shorter record does not have; zeros in ``job_id``


Record: TypeAlias = JobAdded | JobFinished | JobEvent | UnknownCommand


_DELAY_SHIFT = 16
_FAILS_MASK = (1 << _DELAY_SHIFT) - 1
_NO_TIME: Final = bytes.fromhex("01 0000000000000000 00000000 ffff")


def _head(name: bytes) -> bytes:
    """Name and numbers of an add that stands for something else. No job has a name with a colon."""
    return bytes((len(name),)) + name + bytes(5)


HIDDEN_FAIL: Final = _head(b"journeyman:fail")
HIDDEN_TIMEOUT: Final = _head(b"journeyman:timeout")
HIDDEN_START: Final = _head(b"journeyman:start")
HIDDEN_PARK: Final = _head(b"journeyman:park")
HIDDEN_WAKE: Final = _head(b"journeyman:wake")
HIDDEN_TAIL: Final = _NO_TIME * 2


def pack_max_fails(max_fails: int, delay_ms: int) -> int:
    assert max_fails <= _FAILS_MASK
    return delay_ms << _DELAY_SHIFT | max_fails


def max_fails_of(number: int) -> int:
    """Over 255 if the number is none that a server wrote."""
    return number & _FAILS_MASK


def delay_ms_of(number: int) -> int:
    return number >> _DELAY_SHIFT


_ADDED = frozenset({Command.ADD, Command.SCHEDULE})
_FINISHED = frozenset({Command.COMPLETE, Command.FAIL})
_PARKS = frozenset({Command.PARK, Command.WAKE})
_COMMANDS = {int(command): command for command in Command if command not in _PARKS}
_EVENTS = frozenset(_COMMANDS.values()) - _ADDED - _FINISHED
_UNKNOWN = [number for number in range(256) if number not in _COMMANDS]
# The bytes with which each hidden record begins, and whether a block follows them.
_HIDDEN: Final = {
    Command.FAIL: (HIDDEN_FAIL, True),
    Command.TIMEOUT_ATTEMPT: (HIDDEN_TIMEOUT, False),
    Command.START_ATTEMPT: (HIDDEN_START, False),
    Command.PARK: (HIDDEN_PARK, True),
    Command.WAKE: (HIDDEN_WAKE, False),
}
_HIDDEN_NAMES: Final = b"journeyman:"
# The types come in three runs; plain numbers, because an enum member is slow to compare and hash.
_LAST_ADDED = int(Command.SCHEDULE)
_LAST_FINISHED = int(Command.FAIL)
_ADD = int(Command.ADD)
_TYPES = [bytes((number,)) for number in range(256)]
# The numbers of a payload in their order: whether each is the length of a block that follows it.
_ADDED_FIELDS = (True, False, False, False, False, False, True)
_FINISHED_FIELDS = (True,)
_NONE_NS = timed_frame.to_unix_ns(0, 0)


class _Workq(timed_frame.FramedCodec):
    """The codec (framing.Codec) of a segment. Stateless."""

    name = "workq"
    header = HEADER

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        if offset >= len(data):
            return None
        frame, at = timed_frame.read_frame(data, offset)
        logged = timed_frame.read_time(frame, 0, offset)
        if at == len(frame):
            raise InvalidData("empty payload", offset)
        record: Record
        command_type = frame[at]
        command = _COMMANDS.get(command_type)
        body = at + 1 + ID_BYTES
        if body > len(frame):
            if command is None:
                record = _read_short(frame, at, logged)
                return Entry(offset, len(frame) + timed_frame.CRC_BYTES, record)
            raise StringOverflow("the id runs past the end of the record", offset)
        job_id = frame[at + 1 : body]
        if command is None:
            record = UnknownCommand(logged, job_id, NewerCommand(command_type), frame[body:])
            body = len(frame)
        elif command_type > _LAST_FINISHED:
            record = JobEvent(logged, job_id, command)
        elif command_type > _LAST_ADDED:
            result, body = _read_block(frame, body, offset, "result", MAX_PAYLOAD_BYTES)
            record = JobFinished(logged, job_id, command, result)
        elif (hidden := _read_hidden(frame, body, logged, job_id, command)) is not None:
            record, body = hidden, len(frame)
        else:
            record, body = _read_added(frame, body, offset, logged, job_id, command)
        if body != len(frame):
            raise InvalidData("trailing garbage detected", offset)
        return Entry(offset, body + timed_frame.CRC_BYTES, record)

    def encode(self, record: Record) -> bytes:
        if len(record.job_id) != ID_BYTES:
            raise EncodeError(f"id of {len(record.job_id)} bytes, not {ID_BYTES}")
        allowed: Collection[int]
        if isinstance(record, JobFinished | JobEvent) and record.hidden:
            return _write_hidden(record)
        if isinstance(record, UnknownCommand):
            if record.missing:
                return _write_short(record)
            allowed, body = _UNKNOWN, record.body
        elif isinstance(record, JobEvent):
            allowed, body = _EVENTS, b""
        elif isinstance(record, JobFinished):
            allowed, body = _FINISHED, _write_block(record.result, "result")
        else:
            allowed, body = _ADDED, _write_added(record)
        if record.command not in allowed:
            raise EncodeError(f"{type(record).__name__} with command {record.command!r}")
        return _write_record(
            timed_frame.write_time(record.logged), record.command, record.job_id, body
        )

    def is_torn(self, data: Buffer, offset: int) -> bool:
        if not timed_frame.is_torn_frame(data, offset):
            return False
        span = timed_frame.payload_span(data, offset)
        return span is None or _may_fill(data, *span)


CODEC: Codec[Record] = _Workq()


def _read_short(frame: bytes, at: int, logged: timed_frame.Instant) -> UnknownCommand:
    """A record of a newer writer that is too short for an id."""
    part = frame[at + 1 :]
    missing = ID_BYTES - len(part)
    return UnknownCommand(logged, part + bytes(missing), NewerCommand(frame[at]), b"", missing)


def _write_short(record: UnknownCommand) -> bytes:
    begin = ID_BYTES - record.missing
    if begin < 0 or record.body or any(record.job_id[begin:]) or record.command not in _UNKNOWN:
        raise EncodeError(f"a record without {record.missing} bytes of its id that has more")
    return timed_frame.write_frame(
        timed_frame.write_time(record.logged), _TYPES[record.command] + record.job_id[:begin]
    )


def _write_record(time: bytes, command: int, job_id: bytes, body: bytes) -> bytes:
    payload = _TYPES[command] + job_id + body
    if len(payload) > timed_frame.MAX_RECORD_BYTES:
        raise EncodeError(f"record of {len(payload)} bytes, limit {timed_frame.MAX_RECORD_BYTES}")
    return timed_frame.write_frame(time, payload)


# -- records of the usual kind, from their fields; ``time`` is encoded already --


def encode_add(time: bytes, job_id: bytes, payload: bytes, *settings: Any) -> bytes:
    """JobAdded, created at ``time`` and ready at once; ``settings``: its name, TTR, TTL, priority,
    max-attempts and max-fails."""
    body = (_write_settings(*settings), _write_block(payload, "payload"), _write_none(), time)
    return _write_record(time, _ADD, job_id, b"".join(body))


def encode_finished(time: bytes, command: int, job_id: bytes, result: bytes) -> bytes:
    return _write_record(time, command, job_id, _write_block(result, "result"))


def encode_event(time: bytes, command: int, job_id: bytes) -> bytes:
    return _write_record(time, command, job_id, b"")


def _read_hidden(
    frame: bytes, at: int, logged: timed_frame.Instant, job_id: bytes, command: Command
) -> JobFinished | JobEvent | None:
    """The record that the fields of an add stand for; None: it is a real add."""
    if command is not Command.ADD:
        return None
    if not frame.startswith(_HIDDEN_NAMES, at + 1):
        return None
    found = [kind for kind, (head, _) in _HIDDEN.items() if frame.startswith(head, at)]
    if not found:
        return None
    hidden, (head, has_block) = found[0], _HIDDEN[found[0]]
    at += len(head)
    end = len(frame) - len(HIDDEN_TAIL)
    size, begin = timed_frame.read_varint(frame, at, len(frame))
    if begin < 0 or begin + size != end or size > MAX_PAYLOAD_BYTES or frame[end:] != HIDDEN_TAIL:
        return None
    if has_block:
        return JobFinished(logged, job_id, hidden, frame[begin:end], True)
    return None if size else JobEvent(logged, job_id, hidden, True)


def _write_hidden(record: JobFinished | JobEvent) -> bytes:
    head, has_block = _HIDDEN.get(record.command, (b"", False))
    if not head or has_block is not isinstance(record, JobFinished):
        raise EncodeError(f"a hidden {record.command!r}: there is no such record")
    result = record.result if isinstance(record, JobFinished) else b""
    body = head + _write_block(result, "result") + HIDDEN_TAIL
    return _write_record(timed_frame.write_time(record.logged), _ADD, record.job_id, body)


def _read_added(
    frame: bytes, at: int, offset: int, logged: timed_frame.Instant, job_id: bytes, command: Command
) -> tuple[JobAdded, int]:
    name, at = _read_block(frame, at, offset, "name", timed_frame.MAX_RECORD_BYTES)
    ttr_ms, at = _read_number(frame, at, offset)
    ttl_ms, at = _read_number(frame, at, offset)
    priority, at = _read_number(frame, at, offset)
    priority = timed_frame.unfold_sign(priority)
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidData(f"priority {priority} is not a 32-bit number", offset)
    max_attempts, at = _read_number(frame, at, offset)
    max_fails, at = _read_number(frame, at, offset)
    payload, at = _read_block(frame, at, offset, "payload", MAX_PAYLOAD_BYTES)
    time = timed_frame.read_time(frame, at, offset)
    created = timed_frame.read_time(frame, at + timed_frame.TIME_BYTES, offset)
    is_none = time.unix_ns == _NONE_NS
    record = JobAdded(
        logged,
        job_id,
        name.decode("utf-8", "surrogateescape"),
        ttr_ms,
        ttl_ms,
        priority,
        max_attempts,
        max_fails,
        payload,
        None if is_none else time,
        created,
        command,
        time.offset_min if is_none else timed_frame.UTC_OFFSET_MIN,
    )
    return record, at + 2 * timed_frame.TIME_BYTES


def _read_number(frame: bytes, at: int, offset: int) -> tuple[int, int]:
    # Most numbers are one byte; worth asking before the general case.
    if at < len(frame) and frame[at] < 0x80:
        return frame[at], at + 1
    value, after = timed_frame.read_varint(frame, at, len(frame))
    if after == timed_frame.CUT_SHORT:
        raise StringOverflow("a number runs past the end of the record", offset)
    if after == timed_frame.OVER_64_BITS:
        raise InvalidData("a number is not a 64-bit varint", offset)
    return value, after


def _read_block(frame: bytes, at: int, offset: int, what: str, limit: int) -> tuple[bytes, int]:
    size, at = _read_number(frame, at, offset)
    if size > len(frame) - at:
        raise StringOverflow(f"{what} of {size} bytes, {len(frame) - at} left", offset)
    if size > limit:
        raise EntryTooLarge(f"{what} of {size} bytes, limit {limit}", offset)
    return frame[at : at + size], at + size


def _may_fill(data: Buffer, at: int, end: int) -> bool:
    """Return whether what there is of a payload can be the beginning of one that ends at ``end``.

    The lengths inside a payload add up to its SIZE. So a record whose SIZE was damaged, and now
    reaches past the end of the data over good records, is not taken for one that was cut short.
    """
    stop = min(end, len(data))
    if at >= stop:
        return True
    command_type = data[at]
    if command_type not in _COMMANDS:
        # The layout of a newer writer's record is unknown, but no complete record can follow a cut
        # one.
        return timed_frame.find_frame(data, at) is None
    at += 1 + ID_BYTES
    is_added = command_type <= _LAST_ADDED
    fields = _ADDED_FIELDS if is_added else _FINISHED_FIELDS
    for is_length in fields if command_type <= _LAST_FINISHED else ():
        if at >= end:
            return False
        value, at = timed_frame.read_varint(data, at, stop)
        if at < 0:
            return at == timed_frame.CUT_SHORT and stop < end
        at += value if is_length else 0
    return at + (2 * timed_frame.TIME_BYTES if is_added else 0) == end


def _write_added(job: JobAdded) -> bytes:
    time = job.time
    if time is None:
        due = _write_none(job.none_offset_min)
    elif time.unix_ns == _NONE_NS or job.none_offset_min != timed_frame.UTC_OFFSET_MIN:
        # Either would come back as a different record: "none" is spelled time=None, and
        # there is no place to keep its offset beside a time that is there.
        raise EncodeError(f"time {time} with none_offset_min {job.none_offset_min}")
    else:
        due = timed_frame.write_time(time)
    settings = _write_settings(
        job.name, job.ttr_ms, job.ttl_ms, job.priority, job.max_attempts, job.max_fails
    )
    return (
        settings + _write_block(job.payload, "payload") + due + timed_frame.write_time(job.created)
    )


@lru_cache(maxsize=1024)  # many jobs differ in their id and payload only
def _write_settings(
    name: str, ttr_ms: int, ttl_ms: int, priority: int, max_attempts: int, max_fails: int
) -> bytes:
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise EncodeError(f"priority {priority} is not a 32-bit number")
    name_bytes = _name_bytes(name)
    return b"".join(
        (
            timed_frame.write_varint(len(name_bytes)),
            name_bytes,
            _write_number(ttr_ms, "ttr"),
            _write_number(ttl_ms, "ttl"),
            timed_frame.write_varint(timed_frame.fold_sign(priority)),
            _write_number(max_attempts, "max-attempts"),
            _write_number(max_fails, "max-fails"),
        )
    )


@lru_cache(maxsize=8)
def _write_none(offset_min: int = timed_frame.UTC_OFFSET_MIN) -> bytes:
    return timed_frame.cached_moment_bytes(_NONE_NS, offset_min)


def _name_bytes(name: str) -> bytes:
    try:
        found = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EncodeError(f"name {name!r} contains what is not text") from error
    # Escaped bytes that together are good utf-8 would come back as another name.
    if found.decode("utf-8", "surrogateescape") != name:
        raise EncodeError(f"name {name!r} escapes bytes that need no escape")
    return found


def _write_number(value: int, what: str) -> bytes:
    if not 0 <= value <= MAX_U64:
        raise EncodeError(f"{what} {value} is not an unsigned 64-bit number")
    return timed_frame.write_varint(value)


def _write_block(block: bytes, what: str) -> bytes:
    if len(block) > MAX_PAYLOAD_BYTES:
        raise EncodeError(f"{what} of {len(block)} bytes, limit {MAX_PAYLOAD_BYTES}")
    return timed_frame.write_varint(len(block)) + block
