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
from journeyman.formats.ztick.layout import HEAD, JOB_REMOVAL, LENGTH, MAX_ENTRY_BYTES

RESERVED_PREFIX: Final = "journeyman.seal."
_PREFIX = RESERVED_PREFIX.encode()
_FIELD_BYTES = 1 + 8 + 12 + 8
_ID_BYTES = len(RESERVED_PREFIX) + _FIELD_BYTES
SEAL_BYTES: Final = HEAD.size + _ID_BYTES
SEAL_MARK: Final = (
    HEAD.pack(SEAL_BYTES - LENGTH.size, JOB_REMOVAL, _ID_BYTES) + RESERVED_PREFIX.encode()
)

_MARK = re.compile(re.escape(SEAL_MARK))
_FIELDS = re.compile(rb"([obc])([0-9a-f]{8})([0-9a-f]{12})([0-9a-f]{8})")


def is_reserved(identifier: str) -> bool:
    """Whether a removal of this job would be taken for a seal, or for one cut short."""
    if not identifier.startswith(RESERVED_PREFIX[0]):
        return False
    is_cut_short = len(identifier) == _ID_BYTES and identifier.isascii()
    return identifier.startswith(RESERVED_PREFIX) or (
        is_cut_short and _is_marked(identifier.encode())
    )


def _is_marked(identifier: bytes) -> bool:
    """The prefix, or its beginning and zeros."""
    known = identifier.rstrip(b"\0")[: len(_PREFIX)]
    return (
        len(known) > 0
        and _PREFIX.startswith(known)
        and identifier.startswith(
            _PREFIX if len(known) == len(_PREFIX) else known + bytes(len(_PREFIX) - len(known))
        )
    )


class _ZtickSeals:
    """See journeyman.formats.seals.SealFormat."""

    size = SEAL_BYTES
    crc_bytes = 8

    def head(self, kind: SealKind, stamp: int, begin: int) -> bytes:
        return SEAL_MARK + f"{kind.value}{stamp:08x}{begin:012x}".encode()

    def tail(self, crc: int) -> bytes:
        return b"%08x" % crc

    def is_like_seal(self, data: Buffer, offset: int) -> bool:
        if data[offset : offset + HEAD.size] != SEAL_MARK[: HEAD.size]:
            return False
        identifier = bytes(data[offset + HEAD.size : offset + SEAL_BYTES])
        return len(identifier) == _ID_BYTES and identifier.isascii() and _is_marked(identifier)

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

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        left = len(data) - offset - LENGTH.size
        if left < 0:
            return None
        length = LENGTH.unpack_from(data, offset)[0]
        return offset + LENGTH.size + length if 0 < length <= min(left, MAX_ENTRY_BYTES) else None


SEALS: Final = _ZtickSeals()
