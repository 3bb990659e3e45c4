"""kestrel ``items``: everything of a put but its data; and the records of checkpoints.

    writer files    --block of ids--> packets of PUTS, one a bucket     table ``items``
                    --> a row with the least and the greatest id        table ``readers``
    reader files    --> one packet a file                               table ``readers``

Ids ascend, so the puts of a bucket lie together: it gets blocks of neighbouring ids in turn. What
crosses the shuffle is 44 bytes an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from journeyman.columnar.arrays import numbers_in
from journeyman.columnar.kernels.take import column_of, joined
from journeyman.columnar.kestrel.items import puts_in
from journeyman.spark.source.packets import PacketSource, by_bucket, pack, presence
from journeyman.spark.source.reducers.combining import RowCombiner
from journeyman.spark.source.rows import SEGMENT_SHIFT
from journeyman.spark.source.splits import SplitContext

ITEMS_TABLE: Final = "items"
READERS_TABLE: Final = "readers"

CHECKPOINTS: Final = pa.schema(
    [
        ("position", pa.int64()),
        ("length", pa.int32()),
        ("kind", pa.int8()),
        ("item_id", pa.int64()),
        ("done_ids", pa.list_(pa.int64())),
    ]
)
_BLOCK_BITS: Final = 12  # 4,096 ids
_MAX_ROWS: Final = 1_000_000  # held; about 60 bytes each


class KestrelCombiner(RowCombiner):
    """Makes packets of one queue."""

    def __init__(self, context: SplitContext) -> None:
        self._source = PacketSource(context.log, context.queue)
        self._buckets = context.buckets
        self._puts: list[pa.RecordBatch] = []

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        first_position = context.segment << SEGMENT_SHIFT
        if context.reader is not None:
            yield from _checkpoint(context, batch, first_position)
            return
        self._source.files[context.segment] = context.file
        self._source.records += batch.num_rows
        self._puts.append(puts_in(batch, first_position))
        if self._source.records >= _MAX_ROWS:
            yield from self.finish()
            self._source.files = {context.segment: context.file}

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not self._puts:
            return
        puts = joined(self._puts)
        self._puts = []
        ids = numbers_in(puts.column("item_id"))
        buckets = ids >> _BLOCK_BITS & self._buckets - 1
        yield from pack(self._source, ITEMS_TABLE, by_bucket(puts, buckets))
        span = (int(ids.min()), int(ids.max())) if len(ids) else None
        yield presence(self._source, READERS_TABLE, span)


def _checkpoint(
    context: SplitContext, batch: pa.RecordBatch, first_position: int
) -> Iterator[pa.RecordBatch]:
    positions = column_of(numbers_in(batch.column("offset")) + first_position)
    rows = batch.append_column("position", positions).select(CHECKPOINTS.names)
    source = PacketSource(
        context.log,
        context.queue,
        context.reader,
        {context.segment: context.file},
        batch.num_rows,
    )
    if batch.num_rows == 0:
        yield presence(source, READERS_TABLE)
    else:
        yield from pack(source, READERS_TABLE, [(0, rows)])
