"""What the makers of synthetic logs share: the plan, and pieces of files.

    Plan --synthetic_ztick | synthetic_workq | synthetic_kestrel--> Piece, Piece, ...

A maker is a generator of pieces; pieces of one file follow each other. The same plan always gives
the same bytes. The makers pack bytes themselves, since a codec's checked encode of each record
would take most of the time; that they agree with the codecs is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

PIECE_BYTES = 1024 * 1024  # about how much a maker holds before it hands over


class SyntheticBytes(NamedTuple):
    """The next bytes of a file; ``records`` is how many it completes."""

    file: str
    data: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the log to be made looks like. docs/cli.md says what each means in a dialect."""

    records: int
    ids: int
    removals: float
    payload_bytes: int
    seed: int
    segment_bytes: int
    rules: int
    queue: str
    readers: int
    start_ns: int


class Pool:
    """Random bytes, made once; slices of it serve as payloads."""

    def __init__(self, random: Random, size: int) -> None:
        # Letters and digits: payloads then look alike in every dump, and compress like text.
        alphabet = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
        table = bytes(alphabet[i % 64] for i in range(256))
        self._size = size
        self._spread = 64 * 1024
        self._bytes = random.randbytes(size + self._spread).translate(table)

    def slice(self, fraction: float) -> bytes:
        """``size`` bytes from anywhere; ``fraction`` is a random number below 1."""
        begin = int(fraction * self._spread)
        return self._bytes[begin : begin + self._size]
