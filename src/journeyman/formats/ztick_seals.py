"""Seals of a ztick log: removals of jobs that never exist, which the original steps over.

    00000030 02 002d | journeyman.seal. | kind | 8 hex stamp | 12 hex begin | 8 hex CRC
    \\____ the same in every seal ______/

The prefix is reserved: no client may set or remove a job with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from journeyman.formats.seals import Buffer, Seal, SealKind
from journeyman.formats.ztick_layout import HEAD, JOB_REMOVAL, LENGTH, MAX_ENTRY_BYTES

RESERVED_PREFIX: Final = "journeyman.seal."
_FIELD_BYTES = 1 + 8 + 12 + 8
_ID_BYTES = len(RESERVED_PREFIX) + _FIELD_BYTES
SEAL_BYTES: Final = HEAD.size + _ID_BYTES
SEAL_MARK: Final = (
    HEAD.pack(SEAL_BYTES - LENGTH.size, JOB_REMOVAL, _ID_BYTES) + RESERVED_PREFIX.encode()
)

_MARK = re.compile(re.escape(SEAL_MARK))
_FIELDS = re.compile(rb"([obc])([0-9a-f]{8})([0-9a-f]{12})([0-9a-f]{8})")


def is_reserved(identifier: str) -> bool:
    """Whether seals have such identifiers."""
    return identifier.startswith(RESERVED_PREFIX)


class _ZtickSeals:
    """See journeyman.formats.seals.SealFormat."""

    size = SEAL_BYTES
    crc_bytes = 8

    def head(self, kind: SealKind, stamp: int, begin: int) -> bytes:
        return SEAL_MARK + f"{kind.value}{stamp:08x}{begin:012x}".encode()

    def tail(self, crc: int) -> bytes:
        return b"%08x" % crc

    def is_like_seal(self, data: Buffer, offset: int) -> bool:
        return data[offset : offset + len(SEAL_MARK)] == SEAL_MARK

    def parse(self, data: Buffer, offset: int) -> Seal | None:
        if not self.is_like_seal(data, offset) or offset + SEAL_BYTES > len(data):
            return None
        fields = _FIELDS.match(data, offset + len(SEAL_MARK))
        if fields is None:
            return None
        kind, stamp, begin, crc = fields.groups()
        return Seal(
            SealKind(bytes(kind).decode()),
            int(bytes(stamp), 16),
            int(bytes(begin), 16),
            int(bytes(crc), 16),
        )

    def places(self, data: Buffer, offset: int) -> Iterator[int]:
        return (found.start() for found in _MARK.finditer(data, offset))

    def is_torn(self, data: Buffer, offset: int) -> bool:
        found = bytes(data[offset : offset + SEAL_BYTES])
        known = found.rstrip(b"\0")
        return HEAD.size < len(known) < len(found) and (known + SEAL_MARK[len(known) :]).startswith(
            SEAL_MARK
        )

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        left = len(data) - offset - LENGTH.size
        if left < 0:
            return None
        length = LENGTH.unpack_from(data, offset)[0]
        return offset + LENGTH.size + length if 0 < length <= min(left, MAX_ENTRY_BYTES) else None


SEALS: Final = _ZtickSeals()
