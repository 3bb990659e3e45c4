"""Seals of kestrel files: a command that libkestrel does not know and skips by its sizes.

    75 | "JMS" kind | u32 stamp | u64 begin | u32 CRC          command 7, five header words, no data
    \\__ the same __/

They occur in writer and in reader files. All numbers are little endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from journeyman.formats.seals import Buffer, Seal, SealKind

SEAL_BYTE: Final = 0x75
SEAL_MARK: Final = bytes((SEAL_BYTE,)) + b"JMS"
_FIELDS = struct.Struct("<BIQI")
SEAL_BYTES: Final = len(SEAL_MARK) + _FIELDS.size

_MARK = re.compile(re.escape(SEAL_MARK))
_KINDS = {ord(kind.value): kind for kind in SealKind}
_FIRST_DATA_COMMAND = 8
_SIZE = struct.Struct("<i")


class _KestrelSeals:
    """See journeyman.formats.seals.SealFormat."""

    size = SEAL_BYTES
    crc_bytes = 4

    def head(self, kind: SealKind, stamp: int, begin: int) -> bytes:
        return SEAL_MARK + _FIELDS.pack(ord(kind.value), stamp, begin, 0)[: -self.crc_bytes]

    def tail(self, crc: int) -> bytes:
        return crc.to_bytes(self.crc_bytes, "little")

    def is_like_seal(self, data: Buffer, offset: int) -> bool:
        if data[offset : offset + 1] != SEAL_MARK[:1] or offset + SEAL_BYTES > len(data):
            return False
        if data[offset : offset + len(SEAL_MARK)] == SEAL_MARK:
            return True
        known = bytes(data[offset : offset + SEAL_BYTES]).rstrip(b"\0")
        return SEAL_MARK.startswith(known)

    def parse(self, data: Buffer, offset: int) -> Seal | None:
        if not self.is_like_seal(data, offset) or offset + SEAL_BYTES > len(data):
            return None
        kind, stamp, begin, crc = _FIELDS.unpack_from(data, offset + len(SEAL_MARK))
        return Seal(_KINDS[kind], stamp, begin, crc) if kind in _KINDS else None

    def places(self, data: Buffer, offset: int) -> Iterator[int]:
        return (found.start() for found in _MARK.finditer(data, offset))

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        byte = data[offset]
        words = byte & 0x0F
        end = offset + 1 + 4 * words
        if byte == 0 or end > len(data):
            return None
        if byte >> 4 >= _FIRST_DATA_COMMAND:
            if words == 0:
                return None
            size = _SIZE.unpack_from(data, offset + 1)[0]
            if size < 0 or size > len(data) - end:
                return None
            end += size
        return end


SEALS: Final = _KestrelSeals()
