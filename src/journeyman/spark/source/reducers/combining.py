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
from journeyman.spark.source.splits import SplitContext, Stretch


class LogCombiner(Protocol):
    """Makes packets of the records of one log."""

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the dialect's columnar schema, from one file."""
        ...

    def take_bytes(self, context: SplitContext, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """As many of these entries as it can; it says in the stretch how far it came."""
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is still held."""
        ...


class RowCombiner:
    """One that needs rows: it takes no bytes."""

    def take_bytes(
        self,
        context: SplitContext,  # noqa: ARG002 - as every combiner
        stretch: Stretch,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        return iter(())


def combined(
    pieces: Iterator[tuple[SplitContext, Chunk | Stretch]],
    combiner_for: Callable[[SplitContext], LogCombiner],
) -> Iterator[pa.RecordBatch]:
    """The packets of a partition, whose pieces come log by log."""
    log, combiner = None, None
    for context, item in pieces:
        if combiner is None or context.log != log:
            if combiner is not None:
                yield from combiner.finish()
            log, combiner = context.log, combiner_for(context)
        if isinstance(item, Stretch):
            yield from combiner.take_bytes(context, item)
        else:
            yield from combiner.take(context, item.batch)
    if combiner is not None:
        yield from combiner.finish()
