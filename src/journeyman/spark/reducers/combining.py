"""The frame that the reducers share: one combiner a log, fed with its chunks in order.

    pieces    log A, log A, log A, log B, ...
    Combiner  take, take, take, finish; take, ... finish       packets come out of take and finish

A combiner lets packets go whenever it holds enough, so its memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from journeyman.columnar.chunks import Chunk
from journeyman.spark.splits import SplitContext

__all__ = ["LogCombiner", "combined"]


class LogCombiner(Protocol):
    """Makes packets of the records of one log."""

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the dialect's columnar schema, from one file."""
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is still held."""
        ...


def combined(
    pieces: Iterator[tuple[SplitContext, Chunk]],
    combiner_for: Callable[[SplitContext], LogCombiner],
) -> Iterator[pa.RecordBatch]:
    """The packets of a partition, whose pieces come log by log."""
    log, combiner = None, None
    for context, chunk in pieces:
        if combiner is None or context.log != log:
            if combiner is not None:
                yield from combiner.finish()
            log, combiner = context.log, combiner_for(context)
        yield from combiner.take(context, chunk.batch)
    if combiner is not None:
        yield from combiner.finish()
