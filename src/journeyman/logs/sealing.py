"""Writing seals: after each batch that is appended, and into files that are written whole.

    Sealer         the active file of a log: is its end open, and what has to be written next
    sealed         the pieces of a new file -> the same with seals, one for each block, closed
    close_file     a file that is not open for writing -> closed, if it was not
    in_blocks      many small records -> pieces of about one block

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


class Sealer:
    """The end of one file: the stamp of the open stretch, if it is open, and the block so far."""

    def __init__(self, sealing: Sealing, stamp: int, last: Seal | None) -> None:
        """``stamp`` is for a stretch that is opened here, ``last`` the seal the file ends with."""
        self._format = sealing.format
        self._enabled = sealing.enabled
        self._stamp = stamp if last is None else last.stamp
        self.is_open = last is not None and last.opens
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._begin = 0

    def reserve(self, incoming: int) -> int:
        """Bytes that the seals of so many more bytes, and that of the end of the file, take."""
        return (incoming // BLOCK_BYTES + 2) * self._format.size if self._enabled else 0

    @property
    def has_begun(self) -> bool:
        """Whether ``first`` has been written, if it had to be."""
        return self.is_open == self._enabled

    @property
    def block_begin(self) -> int | None:
        """Where the block begins that is not sealed yet."""
        return self._begin if self._block else None

    @property
    def is_block_full(self) -> bool:
        return self._enabled and self._block_bytes >= BLOCK_BYTES

    def first(self, offset: int) -> bytes:
        """What has to be durable at ``offset``, the end of the file, before a record follows."""
        if self.has_begun:
            return b""
        kind = SealKind.OPENING if self._enabled else SealKind.CLOSING
        return make_seal(self._format, kind, self._stamp, offset)

    def switched(self) -> None:
        """What ``first`` gave is durable."""
        self.is_open = self._enabled

    def add(self, record: bytes, offset: int) -> None:
        """A record goes to ``offset``."""
        if not self._enabled:
            return
        if not self._block:
            self._begin = offset
        self._block.append(record)
        self._block_bytes += len(record)

    def end_block(self) -> bytes:
        """The seal of the block so far; empty if there is none."""
        if not self._block:
            return b""
        block = b"".join(self._block) if len(self._block) > 1 else self._block[0]
        self.forget_block()
        return make_seal(self._format, SealKind.BLOCK, self._stamp, self._begin, block)

    def forget_block(self) -> None:
        self._block.clear()
        self._block_bytes = 0

    def last(self, offset: int) -> bytes:
        """The closing seal, if the file is open at its end."""
        if not self.is_open:
            return b""
        return make_seal(self._format, SealKind.CLOSING, self._stamp, offset)


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


def in_blocks(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Records together that make up about a block each, in their order."""
    block: list[bytes] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record)
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
