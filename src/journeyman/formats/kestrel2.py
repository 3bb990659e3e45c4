"""The journal of kestrel 1.x and 2.x, the released server: a queue as the operations done to it.

    file      entry  entry ...            no header; the queue is empty before the first one
    entry     opcode (1)  fields

      0 ADD                   i32 size, i32 expires (seconds); size - 4 bytes of data
      1 REMOVE
      2 ADDX                  i32 size, i64 added ms, i64 expires ms; size - 16 bytes of data
      3 REMOVE_TENTATIVE
      4 SAVE_XID              i32 xid
      5 UNREMOVE              i32 xid
      6 CONFIRM_REMOVE        i32 xid
      7 ADD_XID               i32 xid, then as ADDX
      8 CONTINUE              i32 xid, then as ADDX
      9 REMOVE_TENTATIVE_XID  i32 xid

All numbers are little endian and signed; an expiry of 0 means never. This is not the format of
libkestrel (formats/kestrel), which this server writes: these journals are only imported.

There is no checksum, and the opcodes are small numbers. Reading on after damage needs a run of
plausible ADDXs. A size over the limit is damage, not an entry that continues past the file.

What the operations mean: folds/kestrel2. The contract: docs/formats/kestrel2.md.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TypeAlias

from journeyman.errors import (
    EncodeError,
    EntryTooLarge,
    FormatError,
    IncompleteEntry,
    InvalidData,
    UnknownEntryType,
)
from journeyman.formats.framing import Buffer, Codec, Entry

MAX_ITEM_BYTES = 256 * 1024 * 1024

ADD, REMOVE, ADDX, REMOVE_TENTATIVE, SAVE_XID = range(5)
UNREMOVE, CONFIRM_REMOVE, ADD_XID, CONTINUE, REMOVE_TENTATIVE_XID = range(5, 10)
LAST_OPCODE = REMOVE_TENTATIVE_XID


@dataclass(frozen=True, slots=True)
class OldAdd:
    """An item was added, by a server so old that it kept no time. ``expires_s`` 0: never."""

    expires_s: int
    data: bytes


@dataclass(frozen=True, slots=True)
class AddItem:
    """An item was added. ``expire_time_ms`` 0: never."""

    add_time_ms: int
    expire_time_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class AddWithXid:
    """An item that was open when the journal was rewritten was added again."""

    xid: int
    add_time_ms: int
    expire_time_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Continue:
    """The open item ``xid`` was confirmed and this one added, in one step."""

    xid: int
    add_time_ms: int
    expire_time_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RemoveItem:
    """The head was taken."""


@dataclass(frozen=True, slots=True)
class RemoveTentative:
    """The head was opened, under the next free id; under ``xid`` if that is given."""

    xid: int | None = None


@dataclass(frozen=True, slots=True)
class SaveXid:
    """This id was the last to be given out."""

    xid: int


@dataclass(frozen=True, slots=True)
class Unremove:
    """An open item went back to the head."""

    xid: int


@dataclass(frozen=True, slots=True)
class ConfirmRemove:
    """An open item was finished."""

    xid: int


Adding: TypeAlias = OldAdd | AddItem | AddWithXid | Continue
Record: TypeAlias = Adding | RemoveItem | RemoveTentative | SaveXid | Unremove | ConfirmRemove

_INT = struct.Struct("<i")
_TIMES = struct.Struct("<qq")
_OLD_FIELDS = 4
_FIELDS = _TIMES.size
_ADDS_WITH_XID: dict[int, type[AddWithXid] | type[Continue]] = {
    ADD_XID: AddWithXid,
    CONTINUE: Continue,
}
_OF_XID: dict[int, type[SaveXid] | type[Unremove] | type[ConfirmRemove]] = {
    SAVE_XID: SaveXid,
    UNREMOVE: Unremove,
    CONFIRM_REMOVE: ConfirmRemove,
}
_OPCODES: dict[type, int] = {kind: code for code, kind in (_ADDS_WITH_XID | _OF_XID).items()}

# Times that a journal can hold: 0, or below 2^42 ms (the year 2109), and then above 2^39 (1987).
_EARLIEST_MS, _LATEST_MS = 2**39, 2**42
_PLAUSIBLE_ADD = re.compile(
    rb"\x02(?=.{3}[\x00-\x0f].{5}[\x00-\x03]\x00\x00.{5}[\x00-\x03]\x00\x00)", re.DOTALL
)
_LOOK_AT_ENTRIES = 64


class _OldJournal:
    """The codec (framing.Codec). Stateless."""

    name = "kestrel2"
    header = b""
    has_checksum = False
    seals = None

    def check_header(self, data: Buffer) -> int:  # noqa: ARG002 - there is none
        return 0

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        if offset >= len(data):
            return None
        opcode = data[offset]
        at, end = _read_frame(data, offset)
        record: Record
        if opcode == ADDX:
            added, expires = _TIMES.unpack_from(data, at)
            record = AddItem(added, expires, bytes(data[at + _FIELDS : end]))
        elif opcode == REMOVE:
            record = RemoveItem()
        elif opcode == ADD:
            (expires_s,) = _INT.unpack_from(data, at)
            record = OldAdd(expires_s, bytes(data[at + _OLD_FIELDS : end]))
        elif opcode == REMOVE_TENTATIVE:
            record = RemoveTentative()
        else:
            (xid,) = _INT.unpack_from(data, offset + 1)
            if opcode == REMOVE_TENTATIVE_XID:
                record = RemoveTentative(xid)
            elif opcode in _OF_XID:
                record = _OF_XID[opcode](xid)
            else:
                added, expires = _TIMES.unpack_from(data, at)
                item = bytes(data[at + _FIELDS : end])
                record = _ADDS_WITH_XID[opcode](xid, added, expires, item)
        return Entry(offset, end - offset, record)

    def encode(self, record: Record) -> bytes:
        try:
            return _encode(record)
        except struct.error as error:
            raise EncodeError(f"{type(record).__name__}: a number out of range") from error

    def is_torn(self, data: Buffer, offset: int) -> bool:
        if offset >= len(data):
            return False
        try:
            _read_frame(data, offset)
        except IncompleteEntry:
            return True
        except FormatError:
            return not bytes(data[offset:]).lstrip(b"\0")
        return False

    def skip(self, data: Buffer, offset: int) -> int | None:  # noqa: ARG002
        """Never: what says where an entry ends is what was found bad."""
        return None

    def resync(
        self,
        data: Buffer,
        offset: int,
        *,
        lone: bool = False,  # noqa: ARG002 - old journals are imported, and never salvaged
    ) -> int | None:
        while (match := _PLAUSIBLE_ADD.search(data, offset)) is not None:
            if _is_chain(data, match.start()):
                return match.start()
            offset = match.start() + 1
        return None


CODEC: Codec[Record] = _OldJournal()


def begins_as_journal(data: Buffer) -> bool:
    """Whether a file that begins with these bytes seems to be such a journal.

    All that is there decodes and is plausible, up to a write that was cut short; or an item with
    plausible times comes before the first fault.
    """
    offset, items, entries = 0, 0, 0
    try:
        for _ in range(_LOOK_AT_ENTRIES):
            entry = CODEC.decode(data, offset)
            if entry is None:
                break
            if not _is_plausible(entry.record):
                return False
            items += isinstance(entry.record, AddItem | AddWithXid | Continue)
            entries += 1
            offset = entry.end
    except IncompleteEntry:
        return items > 0 or entries > 1 or _PLAUSIBLE_ADD.match(data, offset) is not None
    except FormatError:
        return items > 0
    return offset > 0


def _read_frame(data: Buffer, offset: int) -> tuple[int, int]:
    """Where the part that the size counts begins and ends. Raises FormatError."""
    opcode, left = data[offset], len(data) - offset
    if opcode > LAST_OPCODE:
        raise UnknownEntryType(f"unknown opcode {opcode}", offset)
    if opcode in (REMOVE, REMOVE_TENTATIVE):
        return offset + 1, offset + 1
    size_at = 1 if opcode in (ADD, ADDX) else 1 + _INT.size
    if opcode in _OF_XID or opcode == REMOVE_TENTATIVE_XID:
        if left < size_at:
            raise IncompleteEntry("truncated entry", offset, size_at)
        return offset + size_at, offset + size_at
    if left < size_at + _INT.size:
        raise IncompleteEntry("truncated entry", offset, size_at + _INT.size)
    (size,) = _INT.unpack_from(data, offset + size_at)
    least = _OLD_FIELDS if opcode == ADD else _FIELDS
    if size < least:
        raise InvalidData(f"a size of {size} is below {least}", offset)
    if size - least > MAX_ITEM_BYTES:
        raise EntryTooLarge("item too large", offset)
    needed = size_at + _INT.size + size
    if left < needed:
        raise IncompleteEntry("truncated entry", offset, needed)
    return offset + needed - size, offset + needed


def _encode(record: Record) -> bytes:
    if isinstance(record, RemoveItem):
        return bytes((REMOVE,))
    if isinstance(record, RemoveTentative):
        if record.xid is None:
            return bytes((REMOVE_TENTATIVE,))
        return bytes((REMOVE_TENTATIVE_XID,)) + _INT.pack(record.xid)
    if isinstance(record, SaveXid | Unremove | ConfirmRemove):
        return bytes((_OPCODES[type(record)],)) + _INT.pack(record.xid)
    if len(record.data) > MAX_ITEM_BYTES:
        raise EncodeError(f"item too large: {len(record.data)} bytes, limit {MAX_ITEM_BYTES}")
    if isinstance(record, OldAdd):
        size = _INT.pack(_OLD_FIELDS + len(record.data))
        return bytes((ADD,)) + size + _INT.pack(record.expires_s) + record.data
    size = _INT.pack(_FIELDS + len(record.data))
    block = size + _TIMES.pack(record.add_time_ms, record.expire_time_ms) + record.data
    if isinstance(record, AddItem):
        return bytes((ADDX,)) + block
    return bytes((_OPCODES[type(record)],)) + _INT.pack(record.xid) + block


def _is_plausible(record: Record) -> bool:
    if isinstance(record, OldAdd):
        return record.expires_s == 0 or record.expires_s * 1000 >= _EARLIEST_MS
    if isinstance(record, AddItem | AddWithXid | Continue):
        return _is_time(record.add_time_ms) and _is_time(record.expire_time_ms)
    return True


def _is_time(ms: int) -> bool:
    return ms == 0 or _EARLIEST_MS <= ms < _LATEST_MS


def _is_chain(data: Buffer, offset: int) -> bool:
    """A plausible item, followed by another entry or the end."""
    try:
        entry = CODEC.decode(data, offset)
        if entry is None or not _is_plausible(entry.record):
            return False
        behind = CODEC.decode(data, entry.end)
    except IncompleteEntry as error:
        return error.offset > offset
    except FormatError:
        return False
    return behind is None or _is_plausible(behind.record)
