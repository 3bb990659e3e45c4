"""The ztick logfile: jobs and rules of the schedule, one entry after another.

    entry  = u32be length | type | the type's fields           no file header, no checksum
    string = u16be length | utf-8

    type 0 JobSet       id, i64be execution_ns, status          status 0 planned   1 triggered
         1 RuleSet      id, pattern, runner, its fields                2 executed  3 failed
         2 JobRemoved   id
         3 RuleRemoved  id

    runner 0 shell   command                 3 awf    workflow, u16be count, inputs
           1 amqp    dsn, exchange, key      4 http   method, url
           2 direct  executable, u16be       5 redis  url, command, key
                     count, args             6 queue  name, u16be count, flags (new)
                                             7 journal  name of a fan-out queue (new)

What is read is exactly what is written: decode takes valid UTF-8, known types, runners and
statuses, and no byte too many, and encode refuses whatever decode would not give back.

Which error says what (docs/formats/ztick.md has the table):

    IncompleteEntry    the length goes beyond the data
    EntryTooLarge      the length is over the limit, whatever is left
    UnknownEntryType   a type byte over 3
    StringOverflow     a string, or a list of them, goes beyond its entry
    InvalidData        everything else

A frame is what the length prefix cuts out, an entry is a frame whose content is right. The shape
of damaged bytes is judged in journeyman.formats.ztick.layout; reading on after damage is
recovery, not format.

Seals (seals.py) are removals of jobs that never exist, which the original skips.

    00000034 02 0031 | journeyman.seal. | kind | 8 hex stamp | length | CRC of block | CRC of fields
    \\____ the same in every seal ______/         all numbers have 8 hexadecimal digits

The prefix is reserved: no client may set or remove a job with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from journeyman import errors
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.seals import Seal, SealKind
from journeyman.formats.ztick import layout

_INT64 = range(-(2**63), 2**63)


RESERVED_PREFIX: Final = "journeyman.seal."
_ID_BYTES = len(RESERVED_PREFIX) + 1 + 4 * 8
SEAL_BYTES: Final = layout.HEAD.size + _ID_BYTES
SEAL_MARK: Final = (
    layout.HEAD.pack(SEAL_BYTES - layout.LENGTH.size, layout.JOB_REMOVAL, _ID_BYTES)
    + RESERVED_PREFIX.encode()
)

_SEAL_MARK = re.compile(re.escape(SEAL_MARK))
_SEAL_FIELDS = re.compile(rb"([obc])" + 4 * rb"([0-9a-f]{8})")
_SEAL_SIGN = re.compile(rb"[obc][0-9a-f]{32}|" + re.escape(SEAL_MARK[: layout.HEAD.size]))


def is_reserved(identifier: str) -> bool:
    """Return whether a removal of this job would be taken for a seal, or for one cut short."""
    if not identifier.startswith((RESERVED_PREFIX[0], "\0")):
        return False
    if len(identifier) == _ID_BYTES and identifier.endswith("\0"):
        return RESERVED_PREFIX.startswith(identifier.rstrip("\0")[: len(RESERVED_PREFIX)])
    return identifier.startswith(RESERVED_PREFIX)


class _ZtickSeals:
    """See journeyman.formats.seals.SealFormat."""

    size = SEAL_BYTES
    mark = SEAL_MARK
    crc_bytes = 8
    least_bytes = layout.HEAD.size

    def may_hold_seals(self, data: Buffer, offset: int) -> bool:
        return _SEAL_SIGN.search(data, offset) is not None

    def fields(self, kind: SealKind, stamp: int, length: int, crc: int) -> bytes:
        return f"{kind.value}{stamp:08x}{length:08x}{crc:08x}".encode()

    def crc_field(self, crc: int) -> bytes:
        return b"%08x" % crc

    def parse(self, data: Buffer, offset: int) -> tuple[Seal, int] | None:
        fields = _SEAL_FIELDS.match(data, offset + len(SEAL_MARK))
        if fields is None:
            return None
        kind = SealKind(bytes(fields[1]).decode())
        stamp, length, crc, own_crc = (int(bytes(field), 16) for field in fields.groups()[1:])
        return Seal(kind, stamp, length, crc), own_crc

    def places(self, data: Buffer, offset: int) -> Iterator[int]:
        return (found.start() for found in _SEAL_MARK.finditer(data, offset))

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        left = len(data) - offset - layout.LENGTH.size
        if left < 0:
            return None
        length = layout.LENGTH.unpack_from(data, offset)[0]
        return (
            offset + layout.LENGTH.size + length
            if 0 < length <= min(left, layout.MAX_ENTRY_BYTES)
            else None
        )


SEALS: Final = _ZtickSeals()


@dataclass(frozen=True, slots=True)
class Shell:
    command: str


@dataclass(frozen=True, slots=True)
class Amqp:
    dsn: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Direct:
    executable: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Awf:
    workflow: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Http:
    method: str
    url: str


@dataclass(frozen=True, slots=True)
class Redis:
    url: str
    command: str
    key: str


@dataclass(frozen=True, slots=True)
class WorkQueueRunner:
    """Adds a job to the work queue."""

    name: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FanOutRunner:
    """Puts the id of the job on a fan-out queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Mail:
    """Sends a mail. It reports failures only, so it is in no log."""

    recipients: tuple[str, ...]


Runner: TypeAlias = (
    Shell | Amqp | Direct | Awf | Http | Redis | WorkQueueRunner | FanOutRunner | Mail
)

_WORD_OF_RUNNER: dict[type[Runner], str] = {
    Shell: "shell",
    Amqp: "amqp",
    Direct: "direct",
    Awf: "awf",
    Http: "http",
    Redis: "redis",
    WorkQueueRunner: "queue",
    FanOutRunner: "journal",
}  # in the order of their bytes

RUNNER_CLASSES = tuple(_WORD_OF_RUNNER)
RUNNER_WORDS = tuple(_WORD_OF_RUNNER.values())
MAIL_WORD = "mail"
ALL_RUNNER_WORDS = (*RUNNER_WORDS, MAIL_WORD)


def runner_word(runner: Runner) -> str:
    """The name of this runner in commands, settings, metrics and tables."""
    return MAIL_WORD if isinstance(runner, Mail) else _WORD_OF_RUNNER[type(runner)]


class Status(IntEnum):
    """Status of a job; the values are the bytes in the log."""

    PLANNED = 0
    TRIGGERED = 1
    EXECUTED = 2
    FAILED = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class JobSet:
    """A job was created, replanned, or changed its status."""

    identifier: str
    execution_ns: int
    status: Status


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A rule was created or replaced."""

    identifier: str
    pattern: str
    runner: Runner


@dataclass(frozen=True, slots=True)
class JobRemoved:
    identifier: str


@dataclass(frozen=True, slots=True)
class RuleRemoved:
    identifier: str


Record: TypeAlias = JobSet | RuleSet | JobRemoved | RuleRemoved


_STATUSES = tuple(Status)  # by byte
_RUNNER_BYTES = {runner: byte for byte, runner in enumerate(RUNNER_CLASSES)}


# -- records -> bytes ----------------------------------------------------------------------------


def _encode(record: Record) -> bytes:
    if isinstance(record, JobSet):
        raw = _encode_text(record.identifier, "identifier")
        if record.execution_ns not in _INT64:
            raise errors.EncodeError("execution_ns is outside the signed 64-bit range")
        if record.status not in _STATUSES:
            raise errors.EncodeError("status is not one of 0 to 3")
        tail = layout.JOB_TAIL.pack(record.execution_ns, record.status)
        return layout.HEAD.pack(len(raw) + layout.JOB_EXTRA, layout.JOB, len(raw)) + raw + tail
    identifier = _encode_string(record.identifier, "identifier")
    if isinstance(record, RuleSet):
        pattern = _encode_string(record.pattern, "pattern")
        return _frame(layout.RULE, identifier + pattern + _encode_runner(record.runner))
    return _frame(
        layout.JOB_REMOVAL if isinstance(record, JobRemoved) else layout.RULE_REMOVAL, identifier
    )


def encode_planned(identifier: bytes, execution_ns: int) -> bytes:
    """The entry of a planned job, whose identifier and time are known to be right."""
    size = len(identifier)
    return (
        layout.HEAD.pack(size + layout.JOB_EXTRA, layout.JOB, size)
        + identifier
        + layout.JOB_TAIL.pack(execution_ns, 0)
    )


def _frame(kind: int, fields: bytes) -> bytes:
    length = 1 + len(fields)
    if length > layout.MAX_ENTRY_BYTES:
        raise errors.EncodeError(
            f"the entry has {length} bytes, more than {layout.MAX_ENTRY_BYTES}"
        )
    return layout.LENGTH.pack(length) + bytes((kind,)) + fields


def _encode_string(value: str, field: str) -> bytes:
    raw = _encode_text(value, field)
    return layout.U16.pack(len(raw)) + raw


def _encode_text(value: str, field: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise errors.EncodeError(f"{field} cannot be written as UTF-8") from None
    if len(raw) > layout.MAX_STRING_BYTES:
        raise errors.EncodeError(
            f"{field} has {len(raw)} bytes, more than {layout.MAX_STRING_BYTES}"
        )
    return raw


def _encode_runner(runner: Runner) -> bytes:
    byte = _RUNNER_BYTES.get(type(runner))
    if byte is None:
        raise errors.EncodeError(f"{runner_word(runner)} cannot be the runner of a rule")
    parts = [bytes((byte,))]
    parts += [_encode_string(getattr(runner, name), name) for name in layout.RUNNER_STRINGS[byte]]
    if byte in layout.LIST_RUNNERS:
        name = layout.LIST_RUNNERS[byte]
        items: tuple[str, ...] = getattr(runner, name)
        if len(items) > layout.MAX_LIST_ITEMS:
            raise errors.EncodeError(
                f"{name} has {len(items)} items, more than {layout.MAX_LIST_ITEMS}"
            )
        parts.append(layout.U16.pack(len(items)))
        parts += [_encode_string(item, f"{name}[{i}]") for i, item in enumerate(items)]
    return b"".join(parts)


# -- bytes -> records ----------------------------------------------------------------------------


def frames(data: Buffer) -> Iterator[tuple[int, memoryview]]:
    """Offset and payload of every whole frame, by its length prefix alone, as the original walks.

    The content is not checked and no length is too large; an incomplete frame ends it.
    """
    view = memoryview(data)
    offset = 0
    while len(view) - offset >= layout.LENGTH.size:
        start = offset + layout.LENGTH.size
        end = start + layout.LENGTH.unpack_from(view, offset)[0]
        if end > len(view):
            return
        yield offset, view[start:end]
        offset = end


def decode_payload(payload: Buffer, offset: int = 0) -> Record:
    """The record in one frame, its length prefix left out; errors name ``offset``."""
    if not payload:
        raise errors.InvalidData("an entry of no bytes", offset)
    return _decode_fields(payload, 0, len(payload), offset)


def _decode_fields(data: Buffer, start: int, end: int, offset: int) -> Record:
    """The record between ``start`` (its type byte) and ``end``."""
    kind = data[start]
    if kind > layout.RULE_REMOVAL:
        raise errors.UnknownEntryType(f"unknown entry type {kind}", offset)
    identifier, at = _decode_string(data, start + 1, end, offset, "identifier")
    record: Record
    if kind == layout.JOB:
        if end - at < layout.JOB_TAIL.size:
            raise errors.InvalidData("a job without execution time and status", offset)
        execution_ns, status = layout.JOB_TAIL.unpack_from(data, at)
        if status >= len(_STATUSES):
            raise errors.InvalidData(f"unknown status {status}", offset)
        record, at = JobSet(identifier, execution_ns, _STATUSES[status]), at + layout.JOB_TAIL.size
    elif kind == layout.RULE:
        pattern, at = _decode_string(data, at, end, offset, "pattern")
        runner, at = _decode_runner(data, at, end, offset)
        record = RuleSet(identifier, pattern, runner)
    else:
        record = JobRemoved(identifier) if kind == layout.JOB_REMOVAL else RuleRemoved(identifier)
    if at != end:
        raise errors.InvalidData(f"{end - at} bytes too many", offset)
    return record


def _decode_string(data: Buffer, at: int, end: int, offset: int, field: str) -> tuple[str, int]:
    start = at + 2
    stop = start + layout.U16.unpack_from(data, at)[0] if start <= end else start
    if stop > end:
        raise errors.StringOverflow(f"{field} runs past its entry", offset)
    return _decode_text(data, start, stop, offset, field), stop


def _decode_text(data: Buffer, start: int, stop: int, offset: int, field: str) -> str:
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError:
        raise errors.InvalidData(f"{field} is not UTF-8", offset) from None


def _decode_runner(data: Buffer, at: int, end: int, offset: int) -> tuple[Runner, int]:
    if at == end:
        raise errors.InvalidData("a rule without runner", offset)
    byte = data[at]
    if byte >= len(RUNNER_CLASSES):
        raise errors.InvalidData(f"unknown runner {byte}", offset)
    at += 1
    fields: list[str | tuple[str, ...]] = []
    for name in layout.RUNNER_STRINGS[byte]:
        value, at = _decode_string(data, at, end, offset, name)
        fields.append(value)
    if byte in layout.LIST_RUNNERS:
        items, at = _decode_list(data, at, end, offset, layout.LIST_RUNNERS[byte])
        fields.append(items)
    runner: Runner = RUNNER_CLASSES[byte](*fields)  # type: ignore[arg-type]
    return runner, at


def _decode_list(
    data: Buffer, at: int, end: int, offset: int, field: str
) -> tuple[tuple[str, ...], int]:
    if end - at < 2:
        raise errors.InvalidData(f"{field} without a count", offset)
    count = layout.U16.unpack_from(data, at)[0]
    at += 2
    if 2 * count > end - at:
        raise errors.StringOverflow(f"{field} run past their entry", offset)
    items = []
    for _ in range(count):
        item, at = _decode_string(data, at, end, offset, field)
        items.append(item)
    return tuple(items), at


# -- the codec -----------------------------------------------------------------------------------


class _ZtickCodec:
    """See journeyman.formats.framing.Codec."""

    name = "ztick"
    header = b""
    has_checksum = False
    seals = SEALS

    def encode(self, record: Record) -> bytes:
        return _encode(record)

    def check_header(self, data: Buffer) -> int:  # noqa: ARG002 - the format has none
        return 0

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        left = len(data) - offset
        if left == 0:
            return None
        if left >= layout.HEAD.size:
            length, kind, id_length = layout.HEAD.unpack_from(data, offset)
            # Nearly every entry is a job in order: it gets by with two looks at its bytes.
            if (
                kind == layout.JOB
                and length == id_length + layout.JOB_EXTRA
                and length + layout.LENGTH.size <= left
            ):
                at = offset + layout.HEAD.size + id_length
                execution_ns, status = layout.JOB_TAIL.unpack_from(data, at)
                if status < len(_STATUSES):
                    identifier = _decode_text(
                        data, offset + layout.HEAD.size, at, offset, "identifier"
                    )
                    job = JobSet(identifier, execution_ns, _STATUSES[status])
                    return Entry(offset, length + layout.LENGTH.size, job)
        size = layout.LENGTH.size + _checked_length(data, offset, left)
        record = _decode_fields(data, offset + layout.LENGTH.size, offset + size, offset)
        return Entry(offset, size, record)

    def is_torn(self, data: Buffer, offset: int) -> bool:
        return layout.is_cut_short(data, offset)

    def skip(self, data: Buffer, offset: int) -> int | None:
        return layout.skip(data, offset, self._end_of_entry)

    def resync(self, data: Buffer, offset: int, *, lone: bool = False) -> int | None:
        return layout.resync(data, offset, self._end_of_entry, lone=lone)

    def _end_of_entry(self, data: Buffer, offset: int) -> int:
        entry = self.decode(data, offset)
        return offset if entry is None else entry.end


def _checked_length(data: Buffer, offset: int, available: int) -> int:
    """The length of an entry that is all there and within the limit."""
    if available < layout.LENGTH.size:
        raise errors.IncompleteEntry("the data end inside a length", offset, layout.LENGTH.size)
    length: int = layout.LENGTH.unpack_from(data, offset)[0]
    if length > layout.MAX_ENTRY_BYTES:
        raise errors.EntryTooLarge(f"a length of {length}, over {layout.MAX_ENTRY_BYTES}", offset)
    if length == 0:
        raise errors.InvalidData("an entry of no bytes", offset)
    needed = layout.LENGTH.size + length
    if needed > available:
        problem = f"the data end after {available} of {needed} bytes"
        raise errors.IncompleteEntry(problem, offset, needed)
    return length


CODEC: Codec[Record] = _ZtickCodec()
