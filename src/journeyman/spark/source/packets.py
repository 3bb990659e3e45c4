"""Packets: many records of a log in one row, so that Spark moves bytes instead of rows.

    records of a task --bucket of key--> one packet a bucket --Spark's shuffle--> merged, bucket by
                                         bucket, in one place

A row costs Spark a hundred times what its bytes cost, so what the reducers leave over crosses the
shuffle packed: a packet is an Arrow batch, serialised, with the records of one log whose keys fall
into one bucket. All records of a key are in the same bucket, whichever task read them, so whoever
merges a bucket sees every one of them. The number of buckets grows with the log (SplitContext), and
a bucket is what has to fit into memory.

Beside its bytes a row says where the packet comes from (PACKET_SCHEMA); ``kind`` is ``packet``.
Rows of kind ``damage``, which the task adds, have no packet.

What goes into packets is said by one combiner a log, which is fed with the log's chunks in order:

    pieces     log A, log A, log A, log B, ...
    combiner   take, take, take, finish; take, ... finish      packets come out of take and finish

    ztick    latest   the last record of each job and each rule, removals among them
    workq    events   what the fold needs of every record: no payloads, no results
    kestrel  items    the same of every put; and the records of checkpoints

A combiner lets packets go whenever it holds enough, so its memory does not grow with the log. It is
imported by the first task that reduces, because it brings numba: journeyman.spark.replay.*_tasks,
beside what merges its packets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from journeyman.columnar.chunks import Chunk
from journeyman.spark.source.options import (
    DAMAGE,
    PACKET_KIND,
    PACKET_SCHEMA,
    SEGMENT_SHIFT,
    arrow_schema,
)
from journeyman.spark.source.pieces import SplitContext

if TYPE_CHECKING:  # it brings numba, and planning is done without
    from journeyman.columnar.arrays import Column
    from journeyman.columnar.kernels.byte_access import Ints


Buckets = Sequence[tuple[int, pa.RecordBatch]]  # the number of each bucket, and its rows
_SHAPE: Final = arrow_schema(PACKET_SCHEMA)
_MAX_ROWS: Final = 1_000_000  # that a combiner holds; about 60 to 80 bytes each


@dataclass(slots=True)
class PacketSource:
    """Where the records of packets come from: one log, some of its files."""

    log: str
    queue: str | None = None
    reader: str | None = None
    files: dict[int, str] = field(default_factory=dict)  # by segment
    records: int = 0  # read and not yet told of in a packet


class Combiner(ABC):
    """Makes packets of the records of one log."""

    def __init__(self, context: SplitContext) -> None:
        self._source = PacketSource(context.log, context.queue)
        self._buckets = context.buckets

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the dialect's columnar schema, from one file."""
        self._source.files[context.segment] = context.file
        self._source.records += batch.num_rows
        self._keep(batch, context.segment << SEGMENT_SHIFT)
        if self._is_full():
            yield from self.finish()
            self._source.files = {context.segment: context.file}

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """Let go of what is still held."""

    @abstractmethod
    def _keep(self, batch: pa.RecordBatch, first_position: int) -> None:
        """Hold what is needed of rows; the first byte of their file is at this position."""

    def _is_full(self) -> bool:
        return self._source.records >= _MAX_ROWS


def combiner_class(dialect: str) -> Callable[[SplitContext], Combiner]:
    """Return the class that makes the packets of a log of this dialect."""
    module = import_module(f"journeyman.spark.replay.{dialect}_tasks")
    combiner: Callable[[SplitContext], Combiner] = getattr(
        module, f"{dialect.capitalize()}Combiner"
    )
    return combiner


def combine(dialect: str, pieces: Iterator[tuple[SplitContext, Chunk]]) -> Iterator[pa.RecordBatch]:
    """The packets of a partition, whose pieces come log by log.

    In front of the chunks of each file comes one without rows, also of a file without records.
    """
    combiner_for = combiner_class(dialect)
    log, combiner = None, None
    for context, chunk in pieces:
        if combiner is None or context.log != log:
            if combiner is not None:
                yield from combiner.finish()
            log, combiner = context.log, combiner_for(context)
        yield from combiner.take(context, chunk.batch)
    if combiner is not None:
        yield from combiner.finish()


def pack(
    source: PacketSource,
    table: str,
    rows: Buckets,
    details: Buckets = (),
) -> Iterator[pa.RecordBatch]:
    """Rows of PACKET_SCHEMA: one for each bucket of ``rows``.

    ``rows`` have a column ``position``. Inside a packet they keep their order. The first packet
    tells of all records of the source; with no rows there is no packet and nothing is told.
    """
    beside = dict(details)
    made = []
    for bucket, part in rows:
        made.append(
            {
                **_about(source, table, bucket),
                "_position": int(part.column("position").to_numpy().min()),
                "packet": part,
                "details": beside.get(bucket),
            }
        )
        source.records = 0
    if made:
        yield _rows(made)


def presence(
    source: PacketSource, table: str, ids: tuple[int, int] | None = None
) -> pa.RecordBatch:
    """A row that says only that there is such a log or file, and between which ids its items are.

    It tells of the records that no packet has told of.
    """
    row = _about(source, table, 0, ids)
    source.records = 0
    return _rows([row])


def unpack(serialised: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch that was packed. Its memory is aligned as that of the bytes, for the kernels."""
    return pa.ipc.read_record_batch(serialised, schema)


def _about(
    source: PacketSource, table: str, bucket: int, ids: tuple[int, int] | None = None
) -> dict[str, Any]:
    least, greatest = ids or (None, None)
    return {
        "_log": source.log,
        "kind": PACKET_KIND,
        "table": table,
        "bucket": bucket,
        "records": source.records,
        "source": {
            "queue": source.queue,
            "reader": source.reader,
            "segments": list(source.files),
            "files": list(source.files.values()),
            "least_id": least,
            "greatest_id": greatest,
        },
    }


def _rows(made: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [_column([row.get(each.name) for row in made], each.type) for each in _SHAPE]
    return pa.RecordBatch.from_arrays(columns, schema=_SHAPE)


def _column(values: list[Any], kind: pa.DataType) -> Column:
    if pa.types.is_binary(kind):  # batches
        values = [None if each is None else each.serialize().to_pybytes() for each in values]
    column: Column = pa.array(values, kind)
    return column


def by_bucket(batch: pa.RecordBatch, buckets: Ints) -> Buckets:
    """The rows of each bucket that has any, in their order."""
    from journeyman.columnar.arrays import rows_at

    if batch.num_rows == 0:
        return []
    low, high = int(buckets.min()), int(buckets.max())
    if low == high:
        return [(low, batch)]
    order = np.argsort(buckets.astype(np.uint16), kind="stable")  # 65,536 buckets at most
    batch = rows_at(batch, order)
    starts = np.cumsum(np.bincount(buckets, minlength=high + 2)) - np.bincount(
        buckets, minlength=high + 2
    )
    return [
        (bucket, batch.slice(start, end - start))
        for bucket, (start, end) in enumerate(
            zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        )
        if end > start
    ]


def extra_columns(frame: DataFrame, known_columns: Iterable[str]) -> list[StructField]:
    """The partition columns: what stands behind the known columns, without those of damage."""
    names = set(known_columns)
    extras = [each for each in frame.schema.fields if each.name not in names]
    if extras and extras[-1].name == DAMAGE:
        extras = extras[:-2]  # the damaged bytes, under whatever name, and the reason
    return extras


def with_constants(batch: pa.RecordBatch, values: dict[str, str | None]) -> pa.RecordBatch:
    """The batch with a column for each of these values, the same in all rows."""
    for name, value in values.items():
        column = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        batch = batch.append_column(name, column)
    return batch
