"""The seal that has to be written next at the end of a log; journeyman.logs.appender writes it.

closed   --first--> open     an opening seal, durable before anything follows
open     --begin_block, add ..., end_block-->  [seal][records]   in one write
open     --last--> closed    at a clean stop, or when a segment is left
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from journeyman.formats.seals import BLOCK_BYTES, CUT_BYTES, Seal, SealKind, make_seal
from journeyman.logs.sealing import Sealing


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
        self.block_begin: int | None = None  # where the seal of the present block will stand

    def reserve(self, incoming: int) -> int:
        """Bytes that the seals of so many more bytes, and that of the end of the file, take."""
        return (incoming // BLOCK_BYTES + 2) * self._format.size if self._enabled else 0

    @property
    def has_begun(self) -> bool:
        """True if ``first`` has been written, if it had to be."""
        return self.is_open == self._enabled

    @property
    def seal_bytes(self) -> int:
        return self._format.size

    @property
    def is_block_full(self) -> bool:
        return self._block_bytes >= BLOCK_BYTES

    def first(self, offset: int) -> bytes:
        """The seal to make durable at ``offset``, the file's end, before a record follows."""
        if self.has_begun:
            return b""
        kind = SealKind.OPENING if self._enabled else SealKind.CLOSING
        return make_seal(self._format, kind, self._stamp, offset)

    def switched(self) -> None:
        """Note that the seal of ``first`` is durable."""
        self.is_open = self._enabled

    def begin_block(self, offset: int) -> None:
        """The seal of a block goes to ``offset``, and its records after it."""
        self.block_begin = offset

    def add(self, record: bytes) -> None:
        self._block.append(record)
        self._block_bytes += len(record)

    def end_block(self) -> list[bytes]:
        """The block so far with its seal before it; empty if there is none."""
        if self.block_begin is None:
            return []
        block = b"".join(self._block) if len(self._block) > 1 else self._block[0]
        seal = make_seal(self._format, SealKind.BLOCK, self._stamp, self.block_begin, block)
        self.forget_block()
        return [seal, block]

    def forget_block(self) -> None:
        self._block.clear()
        self._block_bytes = 0
        self.block_begin = None

    def last(self, offset: int) -> bytes:
        """The closing seal, if the file is open at its end."""
        if not self.is_open:
            return b""
        return make_seal(self._format, SealKind.CLOSING, self._stamp, offset)


def in_blocks(records: Sequence[bytes], offset: int, seal_bytes: int) -> list[list[bytes]]:
    """Records together that make up about a block each; the first one will stand at ``offset``.

    No record but the first of a list begins at a multiple of CUT_BYTES.
    """
    begins = list(accumulate(map(len, records), initial=offset))
    cuts = range(offset - offset % CUT_BYTES + CUT_BYTES, begins[-1], CUT_BYTES)
    if begins[-1] - offset < BLOCK_BYTES and set(begins).isdisjoint(cuts):
        return [list(records)]  # nearly always
    blocks: list[list[bytes]] = [[]]
    size = 0
    for record in records:
        if blocks[-1] and (size >= BLOCK_BYTES or not offset % CUT_BYTES):
            blocks.append([])
            size = 0
            offset += seal_bytes
        blocks[-1].append(record)
        size += len(record)
        offset += len(record)
    return blocks
