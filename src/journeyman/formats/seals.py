"""Seals: records inside a log that announce and prove a batch, for formats without a checksum.

    [header][o][b][batch][b][batch] ... [b][batch][c]  records of another program  [o][b][batch]
            open                             closed                                open again

    o  opening   from here on every batch is announced; durable before the first one follows
    b  block     states the length and the CRC-32C of the records that follow it
    c  closing   what follows was written by a program that does not seal

A seal holds its kind, the ``stamp`` of the stretch it belongs to (one number from an opening seal
to the closing one, which no client knows), the length and the CRC of its block, and a CRC of these
fields and of the place of the seal in the file. So neither changed bytes nor bytes from another
place fit it, and the length can be trusted even if the block is not whole. Every format hides its
seals in a record that the original program steps over; the record always has the same size.

A seal bears two marks, each sufficient by itself: the bytes with which every seal begins, and the
CRC of its fields and place. So one damaged bit never turns a seal into a record.

A batch is written together with the seal before it, in one write. A crash, or a reader that comes
too early, cuts such a write where a page of the file begins; so no record but the first of a block
begins at a multiple of CUT_BYTES (journeyman.logs.appender sees to it), and an announced block that
ends early *between* two records was cut by a program that steps over torn records.

How a sealed file is read is in journeyman.logs.sealing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

import google_crc32c

BLOCK_BYTES: Final = 64 * 1024  # a block is sealed once it has reached this size
# A block is at most one record longer than that.
MAX_BLOCK_BYTES: Final = BLOCK_BYTES + 17 * 1024 * 1024
CUT_BYTES: Final = 512  # the smallest unit in which disks and file systems cut a write
PLACE_BYTES: Final = 8

# This is the Buffer of journeyman.formats.framing, which imports this module.
Buffer: TypeAlias = bytes | bytearray | memoryview


class SealKind(Enum):
    """The values are the letters in the log."""

    OPENING = "o"
    BLOCK = "b"
    CLOSING = "c"


@dataclass(frozen=True, slots=True)
class Seal:
    """The fields of a seal that fits its place."""

    kind: SealKind
    stamp: int  # 32 bits
    length: int  # bytes in the block that follows
    crc: int  # checksum of that block

    @property
    def opens(self) -> bool:
        """True if what follows the block is sealed too."""
        return self.kind is not SealKind.CLOSING


class SealFormat(Protocol):
    """How one dialect writes a seal: its mark, its fields, the CRC of the fields and the place."""

    @property
    def size(self) -> int:
        """Bytes of a seal."""
        ...

    @property
    def mark(self) -> bytes:
        """The bytes with which every seal begins."""
        ...

    @property
    def crc_bytes(self) -> int:
        """How many of its last bytes hold the CRC of the fields."""
        ...

    @property
    def least_bytes(self) -> int:
        """How many of the first bytes of a seal no whole record of a client has."""
        ...

    def may_hold_seals(self, data: Buffer, offset: int) -> bool:
        """True if a seal may stand anywhere from ``offset`` on. A quick look, not a proof."""
        ...

    def fields(self, kind: SealKind, stamp: int, length: int, crc: int) -> bytes:
        """The bytes between the mark and the CRC."""
        ...

    def crc_field(self, crc: int) -> bytes:
        """The CRC as the seal has it."""
        ...

    def parse(self, data: Buffer, offset: int) -> tuple[Seal, int] | None:
        """The fields of a seal at ``offset`` and their CRC, whatever the mark; None if none can
        stand there."""
        ...

    def places(self, data: Buffer, offset: int) -> Iterator[int]:
        """The places from ``offset`` on at which the mark of a seal stands."""
        ...

    def frame_end(self, data: Buffer, offset: int) -> int | None:
        """Where the entry at ``offset`` ends, by its sizes alone; None if they lead nowhere."""
        ...


def make_seal(
    format_: SealFormat, kind: SealKind, stamp: int, place: int, block: bytes = b""
) -> bytes:
    """The seal to be written at ``place`` of the file, right before ``block``."""
    fields = format_.fields(kind, stamp, len(block), google_crc32c.value(block))
    return format_.mark + fields + format_.crc_field(_fields_crc(fields, place))


def _fields_crc(fields: bytes, place: int) -> int:
    return int(google_crc32c.value(fields + place.to_bytes(PLACE_BYTES, "little")))


def is_marked(format_: SealFormat, data: Buffer, offset: int) -> bool:
    """True if the bytes at ``offset`` begin as every seal does, and are long enough for one."""
    mark = format_.mark
    return data[offset : offset + len(mark)] == mark and offset + format_.size <= len(data)


def is_seal_beginning(format_: SealFormat, data: Buffer, offset: int) -> bool:
    """True if the bytes at ``offset`` begin as a seal does, and then go on in another way."""
    least = format_.mark[: format_.least_bytes]
    return data[offset : offset + len(least)] == least and not is_marked(format_, data, offset)


def is_cut_seal(format_: SealFormat, data: Buffer, offset: int) -> bool:
    """True if a seal begins at ``offset`` of which the rest is missing: the data end, or zeros
    stand there."""
    known = bytes(data[offset : offset + format_.size]).rstrip(b"\0")
    if len(data) - offset < format_.size:
        is_short = bool(known)
    else:
        is_short = format_.least_bytes <= len(known) <= format_.size - format_.crc_bytes
    return is_short and known[: len(format_.mark)] == format_.mark[: len(known)]


def seal_at(format_: SealFormat, data: Buffer, offset: int, base: int = 0) -> Seal | None:
    """The seal at ``offset``, whose fields fit its place; its mark may be damaged.

    ``base`` is the offset in the file of the first byte of ``data``.
    """
    parsed = format_.parse(data, offset)
    if parsed is None:
        return None
    seal, crc = parsed
    begin = offset + len(format_.mark)
    fields = bytes(data[begin : offset + format_.size - format_.crc_bytes])
    return seal if _fields_crc(fields, base + offset) == crc else None


def is_seal_here(format_: SealFormat, data: Buffer, offset: int, base: int = 0) -> bool:
    """True if a seal stands at this boundary: good, damaged, or cut short by the end."""
    return (
        is_marked(format_, data, offset)
        or seal_at(format_, data, offset, base) is not None
        or is_cut_seal(format_, data, offset)
    )


class Block(NamedTuple):
    """A seal and the records that it proves, from ``begin`` to ``end``."""

    seal: Seal
    begin: int
    end: int


def block_at(format_: SealFormat, data: Buffer, offset: int, base: int = 0) -> Block | None:
    """The block whose seal stands at ``offset``; None if it is not all there, or does not fit."""
    seal = seal_at(format_, data, offset, base)
    if seal is None:
        return None
    begin = offset + format_.size
    end = begin + seal.length
    if end > len(data) or google_crc32c.value(bytes(data[begin:end])) != seal.crc:
        return None
    return Block(seal, begin, end)


def next_seal(
    format_: SealFormat, data: Buffer, offset: int, stamp: int | None, base: int = 0
) -> int | None:
    """Where the first seal stands from ``offset`` on that fits its place.

    It is searched for byte by byte, and a record may quote seals; so it must have the stamp, unless
    none is known. If none has it, the first one that opens another stretch.
    """
    opening = None
    for place in format_.places(data, offset):
        seal = seal_at(format_, data, place, base)
        if seal is None:
            continue
        if stamp in (None, seal.stamp):
            return place
        if opening is None and seal.kind is SealKind.OPENING:
            opening = place
    return opening


def stamp_of(now_ns: int, path: str) -> int:
    """A stamp for a stretch that is opened now."""
    text = f"{now_ns} {path}".encode("utf-8", "surrogateescape")
    return int(google_crc32c.value(text))
