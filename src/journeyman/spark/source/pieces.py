"""A piece of a file, which one task reads; how logs are cut into these is in splits.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import InputPartition

from journeyman.logs.catalog import LogFile
from journeyman.logs.indexes import Mark
from journeyman.logs.ledger import FileTimes


@dataclass(frozen=True, slots=True)
class SplitContext:
    """The origin that rows state. There is one object for all pieces of a file.

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
    times: FileTimes | None = field(default=None, compare=False)  # ztick: of its records

    def constants(self) -> dict[str, Any]:
        """Return the columns that have the same value in all rows of the file."""
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
    proof: Mark | None = None  # proves the anchor, if an index has it
    cut: int | None = None


class LogPartition(InputPartition):
    """The input of one task: pieces in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
