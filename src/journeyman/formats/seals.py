"""Seals: records inside a log that prove the bytes before them, for formats without a checksum.

    [header][o][block][b][block][b] ... [block][b][c]  records of another program  [o][block][b]
            open                               closed                              open again

    o  opening   from here on every block ends with a seal
    b  block     proves the bytes from ``begin`` up to itself
    c  closing   the same; what follows was written by a program that does not seal

A seal holds its kind, the ``stamp`` of the stretch it belongs to (one number from an opening seal
to the closing one, which no client knows), the offset in the file at which its block begins, and a
CRC-32C of the block and of the seal up to the CRC. So neither changed bytes nor bytes from another
place fit it. Every format hides its seals in a record that the original program steps over; the
record always has the same size.

An appended batch ends with a seal and is written together with it. So after a crash, what stands
after the last seal of an open stretch was never acknowledged.

How a sealed file is read is in journeyman.logs.sealing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

import google_crc32c

BLOCK_BYTES: Final = 64 * 1024  # a block is sealed once it has reached this size
# A block is at most one record longer than that. Its seal is not searched for further on.
MAX_BLOCK_BYTES: Final = BLOCK_BYTES + 17 * 1024 * 1024

# What decoders accept, as in journeyman.formats.framing.
Buffer: TypeAlias = bytes | bytearray | memoryview


class SealKind(Enum):
    """The values are the letters in the log."""

    OPENING = "o"
    BLOCK = "b"
    CLOSING = "c"


@dataclass(frozen=True, slots=True)
class Seal:
    kind: SealKind
    stamp: int  # 32 bits
    begin: int  # offset in the file of the first byte that the seal proves
    crc: int

    @property
    def opens(self) -> bool:
        """Whether what follows is sealed too."""
        return self.kind is not SealKind.CLOSING


class SealFormat(Protocol):
    """How one dialect writes a seal."""

    @property
    def size(self) -> int:
        """Bytes of a seal."""
        ...

    @property
    def crc_bytes(self) -> int:
        """How many of its last bytes hold the CRC."""
        ...

    def head(self, kind: SealKind, stamp: int, begin: int) -> bytes:
        """The bytes of a seal up to its CRC."""
        ...

    def tail(self, crc: int) -> bytes:
        """The CRC as the seal has it."""
        ...

    def is_like_seal(self, data: Buffer, offset: int) -> bool:
        """Whether the entry at ``offset`` is marked as a seal, whatever else it says.

        So is one of which only the beginning was written, and zeros stand for the rest.
        """
        ...

    def parse(self, data: Buffer, offset: int) -> Seal | None:
        """The seal at ``offset``; None if what stands there is none."""
        ...

    def places(self, data: Buffer, offset: int) -> Iterator[int]:
        """The places from ``offset`` on at which something marked as a seal begins."""
        ...

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        """Where the entry at ``offset`` ends, by its sizes alone; None if they lead nowhere."""
        ...


def make_seal(
    format_: SealFormat, kind: SealKind, stamp: int, begin: int, block: bytes = b""
) -> bytes:
    """A seal to be written after ``block``, which begins at ``begin`` of the file."""
    head = format_.head(kind, stamp, begin)
    return head + format_.tail(google_crc32c.extend(google_crc32c.value(block), head))


def fits(format_: SealFormat, seal: Seal, data: Buffer, offset: int, base: int = 0) -> bool:
    """Whether the seal at ``offset`` proves the bytes before it.

    ``base`` is the offset in the file of the first byte of ``data``, in which all of the block must
    stand.
    """
    begin = seal.begin - base
    if not max(0, offset - MAX_BLOCK_BYTES) <= begin <= offset:
        return False
    if seal.kind is SealKind.OPENING and begin != offset:
        return False
    proven = bytes(data[begin : offset + format_.size - format_.crc_bytes])
    return bool(google_crc32c.value(proven) == seal.crc)


def seal_after(
    format_: SealFormat, data: Buffer, begin: int, stamp: int, base: int = 0
) -> tuple[int, Seal] | None:
    """The seal of the block at ``begin`` and where it stands; None if the block is not proven.

    Only sizes are followed on the way, so a record that quotes a seal does no harm.
    """
    offset = begin
    while offset - begin <= MAX_BLOCK_BYTES and offset < len(data):
        if format_.is_like_seal(data, offset):
            seal = format_.parse(data, offset)
            if seal is None or seal.stamp != stamp or seal.begin != base + begin:
                return None
            return (offset, seal) if fits(format_, seal, data, offset, base) else None
        end = format_.frame_end(data, offset)
        if end is None:
            return None
        offset = end
    return None


def next_proven(
    format_: SealFormat, data: Buffer, offset: int, stamp: int | None, base: int = 0
) -> tuple[int, Seal] | None:
    """The first seal after damage that proves a block from ``offset`` on, and where it stands.

    It is searched for byte by byte, and a record may quote seals; so it must have the stamp, unless
    none is known.
    """
    for place in format_.places(data, offset):
        seal = format_.parse(data, place)
        if (
            seal is not None
            and stamp in (None, seal.stamp)
            and seal.begin >= base + offset
            and fits(format_, seal, data, place, base)
        ):
            return place, seal
    return None


def stamp_of(now_ns: int, path: str) -> int:
    """A stamp for a stretch that is opened now."""
    text = f"{now_ns} {path}".encode("utf-8", "surrogateescape")
    return int(google_crc32c.value(text))
