r"""The kestrel journal: writer files hold the items of a queue, reader files one checkpoint each.

    file      magic (4)  entry  entry ...  until the end of the file or a zero command byte
    entry     command byte (1)  header words (4 each)  data

    command byte   76543210     the low half counts the header words, 0 to 15
                   cccc         the command; 8 and up carry data, whose size is the first word

      0 READ_HEAD   02        i64 id
      8 PUT         86 or 88  i32 data size, i32 errors, i64 id, i64 added ms, [i64 expires ms];
                              then the data: the item
      9 READ_DONE   91        i32 data size; then the data: i64 ids, so the size is 8 x count
      others                  skipped by their sizes and kept; so is a PUT with more header
                              words, as a newer version may write it

All words are little endian and signed. A file in use is mapped at full size, so zeros follow its
last entry: a command byte of zero is the end of the data, not an error, and decode returns None
there without moving on. Both kinds of file take every command; only the magic differs.

There is no checksum. Every size is checked before it is used, but a flipped bit inside an item is
not noticed, and reading on after damage is a guess: a run of plausible PUTs. Reader files are
never searched, since a wrong head would skip unread items.

Seals (seals.py) are a command that libkestrel does not know and skips by its sizes.

    75 | "JMA" kind | u32 stamp | u32 length | u32 CRC of the block | u32 CRC of the fields
    \__ the same __/                             command 7, five header words, no data

Both kinds of file have them.

The whole contract, with limits and errors: docs/formats/kestrel.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from journeyman import errors
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.seals import Seal, SealKind

WRITER_MAGIC = bytes.fromhex("27642603")
READER_MAGIC = bytes.fromhex("263c2603")
MAX_DATA_BYTES = 16 * 1024 * 1024


SEAL_BYTE: Final = 0x75
SEAL_MARK: Final = bytes((SEAL_BYTE,)) + b"JMA"
_SEAL_FIELDS = struct.Struct("<BIII")
_SEAL_CRC = struct.Struct("<I")
SEAL_BYTES: Final = len(SEAL_MARK) + _SEAL_FIELDS.size + _SEAL_CRC.size

_SEAL_MARK = re.compile(re.escape(SEAL_MARK))
_SEAL_KINDS = {ord(kind.value): kind for kind in SealKind}
_FIRST_DATA_COMMAND = 8
_SEAL_SIZE = struct.Struct("<i")


class _KestrelSeals:
    """See journeyman.formats.seals.SealFormat."""

    size = SEAL_BYTES
    mark = SEAL_MARK
    crc_bytes = _SEAL_CRC.size
    least_bytes = 1

    def may_hold_seals(self, data: Buffer, offset: int) -> bool:
        return offset < len(data)

    def fields(self, kind: SealKind, stamp: int, length: int, crc: int) -> bytes:
        return _SEAL_FIELDS.pack(ord(kind.value), stamp, length, crc)

    def crc_field(self, crc: int) -> bytes:
        return _SEAL_CRC.pack(crc)

    def parse(self, data: Buffer, offset: int) -> tuple[Seal, int] | None:
        if offset + SEAL_BYTES > len(data):
            return None
        kind, *numbers = _SEAL_FIELDS.unpack_from(data, offset + len(SEAL_MARK))
        if kind not in _SEAL_KINDS:
            return None
        (own_crc,) = _SEAL_CRC.unpack_from(data, offset + SEAL_BYTES - _SEAL_CRC.size)
        return Seal(_SEAL_KINDS[kind], *numbers), own_crc

    def places(self, data: Buffer, offset: int) -> Iterator[int]:
        return (found.start() for found in _SEAL_MARK.finditer(data, offset))

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        byte = data[offset]
        words = byte & 0x0F
        end = offset + 1 + 4 * words
        if byte == 0 or end > len(data):
            return None
        if byte >> 4 >= _FIRST_DATA_COMMAND:
            if words == 0:
                return None
            size = _SEAL_SIZE.unpack_from(data, offset + 1)[0]
            if size < 0 or size > len(data) - end:
                return None
            end += size
        return end


SEALS: Final = _KestrelSeals()


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that doubles the time to make one
class ItemPut:
    """An item was added to the queue. It does not change."""

    item_id: int
    add_time_ms: int
    expire_time_ms: int | None
    error_count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadHead:
    """A reader is done with every id up to and including this one."""

    item_id: int


@dataclass(frozen=True, slots=True)
class ReadDone:
    """A reader finished these ids, all beyond its head, out of order."""

    item_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command of another version: kept byte for byte, meaning nothing."""

    command_byte: int
    header: bytes  # all header words, the size word included
    data: bytes


Record: TypeAlias = ItemPut | ReadHead | ReadDone | UnknownCommand

READ_HEAD = 0
PUT = 8
READ_DONE = 9
FIRST_DATA_COMMAND = 8  # this one and all above carry data
ID_BYTES = 8
FIRST_UNKNOWN_PUT_WORDS = 9  # a PUT with so many header words is of a newer version
PUT_BYTE = 0x86
EXPIRING_PUT_BYTE = 0x88
READ_HEAD_BYTE = 0x02
READ_DONE_BYTE = 0x91

_BYTE = struct.Struct("<B")
_SIZE = struct.Struct("<i")
_PUT_ENTRY = struct.Struct("<Biiqq")  # with its first byte
_PUT = struct.Struct("<iiqq")
_EXPIRING_PUT = struct.Struct("<iiqqq")
_READ_HEAD = struct.Struct("<q")

# The PUTs that ``resync`` believes in, by the top bytes of their words: data of at most 16 MiB,
# fewer than 2^16 errors, id and times below 2^48 (a time of 2^48 ms is the year 10889). Random
# bytes look like this once in 2^62.
_PLAUSIBLE_PUT = re.compile(
    rb"(?:\x86|\x88(?=.{30}\x00\x00))(?=.{3}[\x00\x01]..\x00\x00.{6}\x00\x00.{6}\x00\x00)",
    re.DOTALL,
)


class _Journal:
    """The codec (framing.Codec) of one kind of file. Stateless."""

    name = "kestrel"
    has_checksum = False
    seals = SEALS

    def __init__(self, magic: bytes, kind: str) -> None:
        self.header = magic
        self._kind = kind

    def check_header(self, data: Buffer) -> int:
        found = bytes(data[: len(self.header)])
        if found == self.header:
            return len(found)
        if self.header.startswith(found):
            raise errors.IncompleteEntry("No header in journal file", 0, len(self.header))
        raise errors.BadHeader(f"Not a {self._kind} file", 0)

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        if offset >= len(data):
            return None
        command_byte = data[offset]
        if command_byte == 0:
            return None
        data_at, end = _read_frame(data, offset)
        record: Record
        if command_byte == PUT_BYTE:
            _, error_count, item_id, added = _PUT.unpack_from(data, offset + 1)
            record = ItemPut(item_id, added, None, error_count, bytes(data[data_at:end]))
        elif command_byte == EXPIRING_PUT_BYTE:
            _, error_count, item_id, added, expires = _EXPIRING_PUT.unpack_from(data, offset + 1)
            record = ItemPut(item_id, added, expires, error_count, bytes(data[data_at:end]))
        elif command_byte == READ_HEAD_BYTE:
            record = ReadHead(_READ_HEAD.unpack_from(data, offset + 1)[0])
        elif command_byte == READ_DONE_BYTE:
            count = (end - data_at) // ID_BYTES
            record = ReadDone(struct.unpack_from(f"<{count}q", data, data_at))
        else:
            header = bytes(data[offset + 1 : data_at])
            record = UnknownCommand(command_byte, header, bytes(data[data_at:end]))
        return Entry(offset, end - offset, record)

    def encode(self, record: Record) -> bytes:
        if isinstance(record, UnknownCommand):
            return _encode_unknown(record)
        try:
            return _encode_put(record) if isinstance(record, ItemPut) else _encode_known(record)
        except struct.error as error:
            raise errors.EncodeError(f"{type(record).__name__}: a number out of range") from error

    def is_torn(self, data: Buffer, offset: int) -> bool:
        if offset >= len(data):
            return False
        if data[offset] == 0:
            return _all_zero(data, offset) or _is_put_without_first_byte(data, offset)
        try:
            _read_frame(data, offset)
        except errors.IncompleteEntry:
            return not _hides_the_next_put(data, offset)
        except errors.FormatError:
            return False
        return False

    def skip(self, data: Buffer, offset: int) -> int | None:  # noqa: ARG002
        """Never: what says where an entry ends is what was found bad."""
        return None

    def resync(self, data: Buffer, offset: int, *, lone: bool = False) -> int | None:
        if self.header == READER_MAGIC:
            return None
        return _next_lone(data, offset) if lone else _next_chain(data, offset)


WRITER: Codec[Record] = _Journal(WRITER_MAGIC, "journal")
READER: Codec[Record] = _Journal(READER_MAGIC, "bookmark")


def _read_frame(data: Buffer, offset: int) -> tuple[int, int]:
    """Where the data of the entry at ``offset`` begin and end. Raises FormatError.

    Each check needs only bytes that the ones before it have seen to be there.
    """
    left = len(data) - offset
    command, words = data[offset] >> 4, data[offset] & 0x0F
    if command == READ_HEAD and words != 2:
        raise errors.InvalidData("corrupted READ_HEAD", offset)
    if command >= FIRST_DATA_COMMAND and words == 0:
        raise errors.InvalidData("no size word", offset)
    header_end = 1 + 4 * words
    if header_end > left:
        raise errors.IncompleteEntry(f"truncated header: {left - 1} left", offset, header_end)
    if command < FIRST_DATA_COMMAND:
        return offset + header_end, offset + header_end
    size = _SIZE.unpack_from(data, offset + 1)[0]
    if size < 0:
        raise errors.InvalidData("negative size", offset)
    if size > MAX_DATA_BYTES:
        raise errors.EntryTooLarge("item too large", offset)
    if command == PUT and words not in (6, 8) and words < FIRST_UNKNOWN_PUT_WORDS:
        raise errors.InvalidData("corrupted PUT", offset)
    if command == READ_DONE and (words != 1 or size % ID_BYTES):
        raise errors.InvalidData("corrupted READ_DONE", offset)
    if header_end + size > left:
        raise errors.IncompleteEntry("truncated entry", offset, header_end + size)
    return offset + header_end, offset + header_end + size


def _encode_put(item: ItemPut) -> bytes:
    data, expires = item.data, item.expire_time_ms
    size = len(data)
    _check_size(size)
    words = (size, item.error_count, item.item_id, item.add_time_ms)
    if expires is None:
        return _PUT_ENTRY.pack(PUT_BYTE, *words) + data
    return _BYTE.pack(EXPIRING_PUT_BYTE) + _EXPIRING_PUT.pack(*words, expires) + data


def _encode_known(record: ReadHead | ReadDone) -> bytes:
    if isinstance(record, ReadHead):
        return _BYTE.pack(READ_HEAD_BYTE) + _READ_HEAD.pack(record.item_id)
    size = ID_BYTES * len(record.item_ids)
    _check_size(size)
    ids = struct.pack(f"<{len(record.item_ids)}q", *record.item_ids)
    return _BYTE.pack(READ_DONE_BYTE) + _SIZE.pack(size) + ids


def _check_size(size: int) -> None:
    if size > MAX_DATA_BYTES:
        raise errors.EncodeError(f"item too large: {size} bytes, limit {MAX_DATA_BYTES}")


def _encode_unknown(record: UnknownCommand) -> bytes:
    command, words = record.command_byte >> 4, record.command_byte & 0x0F
    is_newer_put = command == PUT and words >= FIRST_UNKNOWN_PUT_WORDS
    is_known = command in (READ_HEAD, PUT, READ_DONE) and not is_newer_put
    if is_known or not 0 < command < 16:
        raise errors.EncodeError(
            f"command byte {record.command_byte:#x} is not of an unknown command"
        )
    if len(record.header) != 4 * words:
        raise errors.EncodeError(f"header of {len(record.header)} bytes, not {4 * words}")
    _check_size(len(record.data))
    if command < FIRST_DATA_COMMAND:
        fits = not record.data
    else:
        fits = words > 0 and _SIZE.unpack_from(record.header)[0] == len(record.data)
    if not fits:
        raise errors.EncodeError(f"{len(record.data)} bytes of data do not fit the header")
    return bytes((record.command_byte,)) + record.header + record.data


def _all_zero(data: Buffer, offset: int) -> bool:
    return not bytes(data[offset:]).lstrip(b"\0")


def _is_put_without_first_byte(data: Buffer, offset: int) -> bool:
    """Return whether a PUT without its command byte is here, followed by zeros only.

    The original writes that byte last, into a file that is already as long as it will be.
    A zero byte may also have come between good entries; then a chain of them follows it.
    """
    if len(data) - offset < 1 + _SIZE.size or _next_chain(data, offset + 1) is not None:
        return False
    size = _SIZE.unpack_from(data, offset + 1)[0]
    if not 0 <= size <= MAX_DATA_BYTES:
        return False
    ends = (offset + 1 + layout.size + size for layout in (_PUT, _EXPIRING_PUT))
    return any(end <= len(data) and _all_zero(data, end) for end in ends)


def _hides_the_next_put(data: Buffer, offset: int) -> bool:
    """Return whether the PUT here, which runs past the end of the data, runs over the next one.

    Then its size was damaged, and it was not cut short. The next one has the next id; a PUT
    that only looks like one, being part of an item's data, would have to hit on just that.
    """
    if _PLAUSIBLE_PUT.match(data, offset) is None:
        return False
    item_id, _ = _plausible_put(data, offset)
    start = _next_chain(data, offset + 1)
    while start is not None:
        if _plausible_put(data, start)[0] == item_id + 1:
            return True
        start = _next_chain(data, start + 1)
    return False


def _next_chain(data: Buffer, offset: int) -> int | None:
    """The first place from ``offset`` on where a run of plausible PUTs begins."""
    while (match := _PLAUSIBLE_PUT.search(data, offset)) is not None:
        if _is_chain(data, match.start()):
            return match.start()
        offset = match.start() + 1
    return None


def _next_lone(data: Buffer, offset: int) -> int | None:
    """The first place from ``offset`` on where a plausible PUT lies inside the data."""
    while (match := _PLAUSIBLE_PUT.search(data, offset)) is not None:
        item_id, end = _plausible_put(data, match.start())
        if item_id > 0 and end <= len(data):
            return match.start()
        offset = match.start() + 1
    return None


def _is_chain(data: Buffer, offset: int) -> bool:
    """Two PUTs with growing ids, or one up to the end, a zero byte or a PUT cut short."""
    item_id, end = _plausible_put(data, offset)
    if item_id <= 0 or end > len(data):
        return False
    if end == len(data) or data[end] == 0:
        return True
    if _PLAUSIBLE_PUT.match(data, end):
        next_id, _ = _plausible_put(data, end)
        return next_id > item_id
    header_end = end + 1 + 4 * (data[end] & 0x0F)
    return data[end] in (PUT_BYTE, EXPIRING_PUT_BYTE) and header_end > len(data)


def _plausible_put(data: Buffer, offset: int) -> tuple[int, int]:
    """Id and end of a PUT that matched ``_PLAUSIBLE_PUT``; the id is 0 if its size is too large."""
    size, _, item_id, _ = _PUT.unpack_from(data, offset + 1)
    end = offset + 1 + 4 * (data[offset] & 0x0F) + size
    return (item_id if size <= MAX_DATA_BYTES else 0), end
