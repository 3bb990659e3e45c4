"""What one task reads: pieces of files, cut anywhere and yet exact.

    file      |-entry-|--entry--|-entry-|####|----entry----|-entry-|   items; #### is damage
    cut at                 x                       x                   any bytes whatever
    pieces    |     piece 0     |         piece 1          |  2    |

Read from its start, a file is a row of items end to end: entries, and stretches of damage. A piece
owns the items that *begin* inside its bytes. So wherever the cuts are, every item belongs to one
piece, and what remains is to find the first item that begins at or behind a cut. No format has
marks to find it by, and a payload may quote whole log entries; so it is not guessed: the reader
of a piece walks there, item by item, from its ``anchor``, a place known to be a boundary (the start
of the file, or one that the planner has walked to). Only where the guess is proved afterwards, and
all is done again if it was wrong, is that way spared: journeyman.spark.seams. See
journeyman.spark.source.piece_reader for the walk and journeyman.spark.source.planning for the cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from journeyman.formats.framing import Buffer
from journeyman.logs.catalog import LogFile


@dataclass(frozen=True, slots=True)
class SplitContext:
    """What rows say about where they come from. One object for all pieces of a file.

    ``buckets`` is for reducers that sort keys into such: a power of two that grows with the log,
    the same in all of its pieces.
    """

    log: str
    file: str
    segment: int
    queue: str | None = None
    reader: str | None = None
    partitions: tuple[tuple[str, str | None], ...] = ()
    buckets: int = 1

    def constants(self) -> dict[str, Any]:
        """What all rows of the file have in these columns."""
        return {
            "_log": self.log,
            "_file": self.file,
            "_segment": self.segment,
            "queue": self.queue,
            "reader": self.reader,
            **dict(self.partitions),
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """The items of a file that begin at ``begin`` or behind it, and before ``end``.

    In a sealed stretch of a file the items are blocks. ``cut``: entries from this offset on are not
    wanted, even if their block begins before it.

    ``anchor`` is an item boundary at or before ``begin``; 0 is the start of the file. What is
    opened is ``file.path``; what rows show is ``context.file``. Nothing behind ``file.size`` is
    looked at.
    """

    context: SplitContext
    file: LogFile
    begin: int
    end: int
    anchor: int = 0
    cut: int | None = None

    @property
    def is_part(self) -> bool:
        """Whether others read the rest of the file."""
        return self.file.reader is None and (self.begin > 0 or self.end < self.file.size)


@dataclass(slots=True)
class Stretch:
    """Bytes that nobody has looked at, from a boundary on. Who takes entries sets ``reached``.

    ``begin``, ``end`` and ``reached`` count from the beginning of ``data``, which stands at
    ``offset`` of the file. Entries that begin at ``end`` or behind it belong to another piece.
    """

    data: Buffer
    begin: int
    end: int
    offset: int
    reached: int | None = None  # None: not looked at


class Seam(NamedTuple):
    """Where the reading of a part of a file began, and where the first item behind it begins."""

    began: int
    reached: int


class LogPartition(InputPartition):
    """What one task reads: pieces in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
