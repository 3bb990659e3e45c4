"""Packets: many records of a log in one row, so that Spark moves bytes instead of rows.

    records of a task --bucket of key--> one packet a bucket --Spark's shuffle--> merged, bucket by
                                         bucket, in one place

A row costs Spark a hundred times what its bytes cost, so what the reducers leave over crosses the
shuffle packed: a packet is an Arrow batch, serialised, with the records of one log whose keys fall
into one bucket. All records of a key are in the same bucket, whichever task read them, so whoever
merges a bucket sees every one of them. The number of buckets grows with the log (SplitContext), and
a bucket is what has to fit into memory.

Beside its bytes a row says where the packet comes from; ``kind`` is ``packet``. Rows of kind
``damage``, which the source adds, have no packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from journeyman.spark.source.schemas import PACKET_KIND, PACKET_SCHEMA, arrow_schema

if TYPE_CHECKING:  # it brings numba, and planning is done without
    from journeyman.columnar.arrays import Column
    from journeyman.columnar.kernels.write_bytes import Ints

Buckets = Sequence[tuple[int, pa.RecordBatch]]  # of each bucket its rows

_SHAPE: Final = arrow_schema(PACKET_SCHEMA)
_SCHEMA_BYTES: Final = 64 * 1024  # at most, of a schema's message,
_HEAD_BYTES: Final = 16 * 1024  # and of a batch's, with what its columns are filled up with


@dataclass(slots=True)
class PacketSource:
    """Where the records of packets come from: one log, some of its files."""

    log: str
    queue: str | None = None
    reader: str | None = None
    files: dict[int, str] = field(default_factory=dict)  # by segment
    records: int = 0  # read and not yet told of in a packet


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
    least, greatest = ids or (None, None)
    row = {**_about(source, table, 0), "least_id": least, "greatest_id": greatest}
    source.records = 0
    return _rows([row])


def unpack(serialised: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch that was packed. Its memory is aligned as that of the bytes, for the kernels."""
    return pa.ipc.read_record_batch(serialised, schema)


def _about(source: PacketSource, table: str, bucket: int) -> dict[str, Any]:
    return {
        "_log": source.log,
        "kind": PACKET_KIND,
        "table": table,
        "bucket": bucket,
        "records": source.records,
        "queue": source.queue,
        "reader": source.reader,
        "segments": list(source.files),
        "files": list(source.files.values()),
    }


def _rows(made: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [_column([row.get(each.name) for row in made], each.type) for each in _SHAPE]
    return pa.RecordBatch.from_arrays(columns, schema=_SHAPE)


def _column(values: list[Any], kind: pa.DataType) -> Column:
    if pa.types.is_binary(kind):
        return _serialised(values, kind)
    column: Column = pa.array(values, kind)
    return column


def _serialised(batches: list[pa.RecordBatch | None], kind: pa.DataType) -> Column:
    """Batches of one schema as blobs, written one behind another: each byte is copied once."""
    from journeyman.columnar.arrays import binary

    schema = next((batch.schema for batch in batches if batch is not None), None)
    if schema is None:
        nothing: Column = pa.array([None] * len(batches), kind)
        return nothing
    room = _SCHEMA_BYTES + sum(_HEAD_BYTES + batch.nbytes for batch in batches if batch is not None)
    data = np.empty(room, np.uint8)
    ends = np.empty(len(batches) + 1, np.int32)
    with (
        pa.FixedSizeBufferWriter(pa.py_buffer(data.data)) as sink,
        pa.ipc.new_stream(sink, schema) as out,
    ):
        ends[0] = schema.serialize().size  # it goes in front of the first batch
        for number, batch in enumerate(batches, 1):
            if batch is not None:
                out.write_batch(batch)
            ends[number] = max(int(ends[0]), sink.tell())
    return binary(kind, ends, data, np.array([batch is not None for batch in batches]))


def by_bucket(batch: pa.RecordBatch, buckets: Ints) -> Buckets:
    """The rows of each bucket that has any, in their order."""
    from journeyman.columnar.kernels.take import rows_at

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
