"""The keyspace file: an ordered map of keys and values (journeyman.formats.keyspace) as one file.

    file    "JMKV"  u32 version = 1  entry  entry ...       until the end of the file
    entry   u32 key length | u32 value length | key | value | u32 CRC-32C of all before it
            all numbers big endian

The format is Journeyman's own: how a keyspace travels between stores, Spark and archives. Keys and
values are bytes here, and any key is accepted; ``keys.py`` and ``values.py`` say what they mean.

Invariants
- A file that was exported holds each key once, in ascending byte order. The codec looks at one
  entry at a time and cannot see that; writers check it with ``follows``.
- Every entry is proven by its CRC before its content is used. Decoding checks in this order, each
  step needing only bytes that the ones before have seen: lengths | all there | CRC.
- Zeros are not an entry, since a key has at least one byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from struct import Struct
from typing import Final

import google_crc32c

from journeyman.errors import (
    BadHeader,
    ChecksumMismatch,
    EncodeError,
    EntryTooLarge,
    IncompleteEntry,
    InvalidData,
)
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.keyspace.keys import MAX_KEY_BYTES
from journeyman.formats.keyspace.values import MAX_VALUE_BYTES

MAGIC: Final = b"JMKV"
VERSION: Final = 1
_U32: Final = Struct(">I")
_LENGTHS: Final = Struct(">II")
HEADER: Final = MAGIC + _U32.pack(VERSION)
LENGTHS_BYTES: Final = _LENGTHS.size
CRC_BYTES: Final = _U32.size

_crc32c = google_crc32c.value
# Where an entry may begin: a key of at most 2 KiB and a value of at most 64 MiB. Ahead only, so
# that places which overlap are all tried.
_ENTRY_START = re.compile(rb"(?=\x00\x00[\x00-\x08].[\x00-\x04])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key of the map and its value."""

    key: bytes
    value: bytes


Record = KeyValue  # the name that the other formats use


def follows(key: bytes, before: bytes | None) -> bool:
    """Whether ``key`` may follow ``before`` in a file; any key may come first."""
    return before is None or before < key


class _KeyspaceFile:
    """The codec (framing.Codec) of a file. Stateless."""

    name = "keyspace"
    header = HEADER
    has_checksum = True
    seals = None

    def encode(self, record: KeyValue) -> bytes:
        key, value = record.key, record.value
        if not 1 <= len(key) <= MAX_KEY_BYTES:
            raise EncodeError(f"a key of {len(key)} bytes, not 1 to {MAX_KEY_BYTES}")
        if len(value) > MAX_VALUE_BYTES:
            raise EncodeError(f"a value of {len(value)} bytes, over {MAX_VALUE_BYTES}")
        covered = _LENGTHS.pack(len(key), len(value)) + key + value
        return covered + _U32.pack(_crc32c(covered))

    def check_header(self, data: Buffer) -> int:
        found = bytes(data[: len(HEADER)])
        if found == HEADER:
            return len(HEADER)
        if HEADER.startswith(found):
            raise IncompleteEntry("the header is cut short", 0, len(HEADER))
        if len(found) == len(HEADER) and found.startswith(MAGIC):
            version = _U32.unpack_from(found, len(MAGIC))[0]
            raise BadHeader(f"a keyspace file of version {version}, not {VERSION}", 0)
        raise BadHeader("not a keyspace file", 0)

    def decode(self, data: Buffer, offset: int) -> Entry[KeyValue] | None:
        left = len(data) - offset
        if left == 0:
            return None
        if left < LENGTHS_BYTES:
            raise IncompleteEntry("the data end inside the lengths", offset, LENGTHS_BYTES)
        key_length, value_length = _checked_lengths(data, offset)
        value_at = LENGTHS_BYTES + key_length
        size = value_at + value_length + CRC_BYTES
        if size > left:
            raise IncompleteEntry(f"the data end after {left} of {size} bytes", offset, size)
        if not _is_proven(data, offset, offset + size):
            raise ChecksumMismatch("crc mismatch", offset)
        key = bytes(data[offset + LENGTHS_BYTES : offset + value_at])
        value = bytes(data[offset + value_at : offset + size - CRC_BYTES])
        return Entry(offset, size, KeyValue(key, value))

    def is_torn(self, data: Buffer, offset: int) -> bool:
        rest = bytes(data[offset : offset + LENGTHS_BYTES])
        if not rest:
            return False
        if not rest.strip(b"\0") and not bytes(data[offset:]).strip(b"\0"):
            return True
        # Lengths whose last bytes are missing count at their lowest.
        key_length, value_length = _LENGTHS.unpack(rest.ljust(LENGTHS_BYTES, b"\0"))
        if key_length > MAX_KEY_BYTES or value_length > MAX_VALUE_BYTES:
            return False
        if key_length == 0 and len(rest) >= _U32.size:
            return False
        end = offset + LENGTHS_BYTES + key_length + value_length + CRC_BYTES
        return end > len(data) and not _hides_entries(data, offset)

    def skip(self, data: Buffer, offset: int) -> int | None:
        """The end of the entry here, if another one, or the end of the data, stands right there.

        Unless an entry inside ends at that same place: then the lengths were damaged and reach
        over whole entries. One that is quoted in a value never does; the CRC is in between.
        """
        end = _entry_end(data, offset)
        if end is None or (end < len(data) and not _begins_proven(data, end)):
            return None
        for inside in _ENTRY_START.finditer(data, offset + 1, end):
            start = inside.start()
            if _entry_end(data, start) == end and _is_proven(data, start, end):
                return None
        return end

    def resync(
        self,
        data: Buffer,
        offset: int,
        *,
        lone: bool = False,  # noqa: ARG002 - the checksum is proof
    ) -> int | None:
        for match in _ENTRY_START.finditer(data, offset):
            if _begins_proven(data, match.start()):
                return match.start()
        return None


CODEC: Codec[KeyValue] = _KeyspaceFile()


def _checked_lengths(data: Buffer, offset: int) -> tuple[int, int]:
    key_length, value_length = _LENGTHS.unpack_from(data, offset)
    if key_length == 0:
        raise InvalidData("a key of no bytes", offset)
    if key_length > MAX_KEY_BYTES:
        raise EntryTooLarge(f"a key of {key_length} bytes, over {MAX_KEY_BYTES}", offset)
    if value_length > MAX_VALUE_BYTES:
        raise EntryTooLarge(f"a value of {value_length} bytes, over {MAX_VALUE_BYTES}", offset)
    return key_length, value_length


def _entry_end(data: Buffer, offset: int) -> int | None:
    """Where the entry at ``offset`` ends by its lengths, if that lies inside the data."""
    if len(data) - offset < LENGTHS_BYTES:
        return None
    key_length, value_length = _LENGTHS.unpack_from(data, offset)
    if not 1 <= key_length <= MAX_KEY_BYTES or value_length > MAX_VALUE_BYTES:
        return None
    end = offset + LENGTHS_BYTES + key_length + value_length + CRC_BYTES
    return int(end) if end <= len(data) else None


def _is_proven(data: Buffer, offset: int, end: int) -> bool:
    crc = _U32.unpack_from(data, end - CRC_BYTES)[0]
    return bool(_crc32c(bytes(data[offset : end - CRC_BYTES])) == crc)


def _begins_proven(data: Buffer, offset: int) -> bool:
    end = _entry_end(data, offset)
    return end is not None and _is_proven(data, offset, end)


def _hides_entries(data: Buffer, offset: int) -> bool:
    """Whether the entry here, which runs past the end of the data, runs over good ones.

    Then its length was damaged, and it was not cut short. A value may quote entries, but the ones
    after it also reach to the end of the data, or to an entry that is cut short there.
    """
    end = CODEC.resync(data, offset + 1)
    if end is None:
        return False
    while end < len(data) and _begins_proven(data, end):
        end = _entry_end(data, end) or len(data)
    return end == len(data) or _is_begun(data, end)


def _is_begun(data: Buffer, offset: int) -> bool:
    """Whether the lengths here, as far as they are there, are of an entry that goes on."""
    rest = bytes(data[offset : offset + LENGTHS_BYTES]).ljust(LENGTHS_BYTES, b"\0")
    key_length, value_length = _LENGTHS.unpack(rest)
    fits = key_length <= MAX_KEY_BYTES and value_length <= MAX_VALUE_BYTES
    return fits and _entry_end(data, offset) is None
