"""Seals of files that are written whole, or closed. Those of appended batches: appender.py.

    sealed         the pieces of a new file -> the same with seals, one for each block, closed
    close_file     a file that is not open for writing -> closed, if it was not

See journeyman.formats.seals for what seals are, journeyman.logs.sealed_reading for how they are
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from journeyman.disk import Disk
from journeyman.formats.framing import Buffer
from journeyman.formats.seals import (
    BLOCK_BYTES,
    Seal,
    SealFormat,
    SealKind,
    fits,
    make_seal,
)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Whether a log is sealed, and how. Not ``enabled``: only what is open is closed."""

    format: SealFormat
    enabled: bool = True


def last_seal(disk: Disk, format_: SealFormat, path: str, size: int) -> Seal | None:
    """The seal with which a file of ``size`` bytes ends; None if it ends otherwise."""
    at = size - format_.size
    if at < 0:
        return None
    seal = format_.parse(disk.read_at(path, at, format_.size), 0)
    if seal is None or seal.begin > at:
        return None
    data = disk.read_at(path, seal.begin, size - seal.begin)
    return seal if fits(format_, seal, data, at - seal.begin, seal.begin) else None


def close_file(disk: Disk, format_: SealFormat, path: str) -> None:
    """Close a file that ends with an open seal, so that another program may append to it."""
    size = disk.size(path)
    last = last_seal(disk, format_, path, size)
    if last is None or not last.opens:
        return
    file = disk.open_append(path)
    try:
        file.write(make_seal(format_, SealKind.CLOSING, last.stamp, size))
        file.sync()
    finally:
        file.close()


def has_seals(format_: SealFormat, data: Buffer) -> bool:
    """Whether anything in these bytes is marked as a seal."""
    return next(format_.places(data, 0), None) is not None


def sealed(
    format_: SealFormat, header: Buffer, pieces: Iterable[Buffer], stamp: int
) -> Iterator[Buffer]:
    """A new file: its header, ``pieces`` of whole entries sealed in blocks, and closed.

    Without any entry there is nothing to seal. All of a file that is not open at its end may stand
    for the header.
    """
    yield header
    offset = len(header)
    block = bytearray()
    for piece in pieces:
        if offset == len(header):
            yield make_seal(format_, SealKind.OPENING, stamp, offset)
            offset += format_.size
        block += piece
        if len(block) >= BLOCK_BYTES:
            whole = bytes(block)
            yield whole
            yield make_seal(format_, SealKind.BLOCK, stamp, offset, whole)
            offset += len(whole) + format_.size
            block.clear()
    if block:
        yield bytes(block)
        yield make_seal(format_, SealKind.BLOCK, stamp, offset, bytes(block))
        offset += len(block) + format_.size
    if offset > len(header):
        # By itself: so damage in the last block cannot be taken for a batch on its way.
        yield make_seal(format_, SealKind.CLOSING, stamp, offset)
