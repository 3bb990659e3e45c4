"""A compacted ztick log, written without a row of it passing through Spark's own formats.

    packets --by key--> merged: what is left --cut at positions--> packets of ranges
            --by range--> joined, sorted, encoded --> part files --> one log, in log order

Where the ranges begin is known beforehand, by the bytes of the log: no task has to look at the
data first, as a sort by Spark would. A range is what one task holds in memory: what is left of so
many bytes of log. Part files, messages and commit are those of the sink (journeyman.spark.sinks).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from journeyman.logs.catalog import Log
from journeyman.spark.replay.merging import aligned, groups_of
from journeyman.spark.replay.state_files import route_packets
from journeyman.spark.sinks.log_sink import LogWriter, new_writer
from journeyman.spark.sinks.options import SinkOptions
from journeyman.spark.sinks.parts import write_parts
from journeyman.spark.source.packets import unpack
from journeyman.spark.source.schemas import SEGMENT_SHIFT, arrow_schema

RANGE_BYTES: Final = 256 * 1024 * 1024  # of the log, at most
FEW_RANGES: Final = 8  # at least, so that all cores are busy, unless they would be
SMALL_RANGE_BYTES: Final = 8 * 1024 * 1024  # smaller than this
_HELD_ROWS: Final = 500_000
_BATCH_ROWS: Final = 65_536

# What the encoder needs; numbers, as the log has them.
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("_position", pa.int64()),
    ("kind", pa.int8()),
    ("identifier", pa.string()),
    ("execution_ns", pa.int64()),
    ("status", pa.int8()),
    ("pattern", pa.string()),
    ("runner", pa.int8()),
    ("runner_args", pa.list_(pa.string())),
]
ROWS: Final = pa.schema(_COLUMNS)
_RANGED: Final = StructType(
    [StructField("range", IntegerType()), StructField("rows", BinaryType())]
)
_MESSAGES: Final = StructType([StructField("message", BinaryType())])


def write_compacted(packets: DataFrame, log: Log, target: str, *, seals: bool) -> None:
    """What the packets of this log fold to, as a new log at ``target``, sealed or not."""
    writer = new_writer("ztick", {"path": target, "seals": str(seals)}, ROWS.names)
    try:
        rows = writing(packets, log, writer).collect()
        writer.commit([pickle.loads(row["message"]) for row in rows])
    except BaseException:
        writer.abort([])
        raise


def writing(packets: DataFrame, log: Log, writer: LogWriter) -> DataFrame:
    """The messages about part files; these are written when it is asked for."""
    cuts = cuts_of(log)
    ranged = route_packets(packets, "ztick").mapInArrow(partial(_to_ranges, cuts), _RANGED)
    return ranged.repartitionById(len(cuts) + 1, "range").mapInArrow(
        partial(_write_range, writer.options, writer.staging), _MESSAGES
    )


def explained(packets: DataFrame, log: Log) -> DataFrame:
    """What would be run to compact this log."""
    return writing(packets, log, new_writer("ztick", {"path": f"{log.name}.new"}, ROWS.names))


def cuts_of(log: Log) -> list[int]:
    """The positions at which ranges begin, but for the first."""
    ends = list(accumulate(file.size for file in log.files))
    count = max(min(FEW_RANGES, ends[-1] // SMALL_RANGE_BYTES + 1), -(-ends[-1] // RANGE_BYTES))
    cuts = []
    for number in range(1, count):
        at = ends[-1] * number // count
        index = next(i for i, end in enumerate(ends) if at < end or end == ends[-1])
        begin = ends[index] - log.files[index].size
        cuts.append((log.files[index].segment << SEGMENT_SHIFT) + at - begin)
    return cuts


def _to_ranges(cuts: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task that merges does: what is left of its groups, cut into ranges."""
    from journeyman.spark.replay.ztick_tasks import last_jobs, last_rules

    last = {"jobs": last_jobs, "rules": last_rules}
    held: list[pa.RecordBatch] = []
    for group in groups_of(batches, ()):
        if group.table in last:
            held.append(_as_rows(last[group.table](group)))
        if sum(batch.num_rows for batch in held) >= _HELD_ROWS:
            yield _in_ranges(held, cuts)
            held = []
    yield _in_ranges(held, cuts)


def _as_rows(last: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for field in ROWS:
        at = last.schema.get_field_index(field.name.removeprefix("_"))
        columns.append(last.column(at) if at >= 0 else pa.nulls(last.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _in_ranges(held: list[pa.RecordBatch], cuts: list[int]) -> pa.RecordBatch:
    """A row for each range that has any."""
    from journeyman.columnar.kernels.take import joined, rows_at

    shape = arrow_schema(_RANGED)
    if not held:
        return pa.RecordBatch.from_pylist([], schema=shape)
    rows = joined(held)
    ranges = np.searchsorted(np.array(cuts, np.int64), rows.column(0).to_numpy(), side="right")
    order = np.argsort(ranges, kind="stable")
    rows = rows_at(rows, order)
    found, begins = np.unique(ranges[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)]
    parts = [
        rows.slice(begin, end - begin).serialize().to_pybytes()
        for begin, end in zip(begins.tolist(), ends, strict=True)
    ]
    return pa.RecordBatch.from_pydict(
        {"range": found.astype(np.int32), "rows": parts}, schema=shape
    )


def _write_range(
    options: SinkOptions, staging: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task that writes does: its range in log order, as part files."""
    from journeyman.columnar.kernels.take import joined, rows_at

    numbers: set[Any] = set()
    parts = []
    for batch in batches:
        numbers.update(batch.column("range").to_pylist())
        parts += [unpack(aligned(blob), ROWS) for blob in batch.column("rows")]
    if not parts:
        return
    (number,) = numbers
    rows = joined(parts)
    rows = rows_at(rows, np.argsort(rows.column(0).to_numpy(), kind="stable"))
    batches = (rows.slice(at, _BATCH_ROWS) for at in range(0, rows.num_rows, _BATCH_ROWS))
    message = write_parts(options, staging, number, batches)
    yield pa.RecordBatch.from_pydict(
        {"message": [pickle.dumps(message)]}, schema=arrow_schema(_MESSAGES)
    )
