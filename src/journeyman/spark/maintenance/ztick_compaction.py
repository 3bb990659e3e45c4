"""A ztick log compacted on Spark: the last record of every job and rule, in log order, in one file.

    C, T, A  --fold-->  jobs, rules  --in order of their last records-->  N, staged and verified

``C``, ``T`` and ``A`` are ``.compressed``, ``.to_compress`` and the active file. Publishing:

    step                                       a crash behind it leaves, which folds as
    only A there: rename N to A                N         the state
    1 rename N to .compressed                  N, T, A   the same: T and A set each key to what
    2 remove .to_compress                      N, A      it is once more
    3 rename .compressed to the active name    N         the same

Every rename and removal is durable before the next. In the end the log is the one file that the
original reads. A log that is sealed stays so.
"""

from __future__ import annotations

import pickle
import posixpath
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from journeyman.disk import Disk
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.catalog import Log
from journeyman.logs.publication import identities, note_replacement, put_in_place, remove_durably
from journeyman.logs.segments import ZtickNames
from journeyman.spark.maintenance.holding import Hands, MaintenanceResult, is_sealed, refuse_damage
from journeyman.spark.maintenance.part_files import COMPARED, check_same
from journeyman.spark.replay.merging import aligned, groups_of
from journeyman.spark.replay.state_files import route_packets
from journeyman.spark.sinks.log_sink import LogWriter, new_writer
from journeyman.spark.sinks.options import SinkOptions
from journeyman.spark.sinks.parts import write_parts
from journeyman.spark.source.options import SEGMENT_SHIFT, arrow_schema
from journeyman.spark.source.packets import unpack
from journeyman.spark.tables import packets, states, tables_of

# ----------------------------------------
# A compacted ztick log, written without a row of it passing through Spark's own formats.
#
#     packets --by key--> merged: what is left --cut at positions--> packets of ranges
#             --by range--> joined, sorted, encoded --> part files --> one log, in log order
#
# Where the ranges begin is known beforehand, by the bytes of the log: no task has to look at the
# data first, as a sort by Spark would. A range is what one task holds in memory: what is left of
# so many bytes of log. Part files, messages and commit are those of the sink
# (journeyman.spark.sinks).

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
    from journeyman.columnar.arrays import joined, rows_at

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
    from journeyman.columnar.arrays import joined, rows_at

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


def compact_ztick(spark: SparkSession, disk: Disk, hands: Hands) -> MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    held = packets(spark, "ztick", hands.paths).persist()
    try:
        records = refuse_damage(held, hands.log.name)
        tables = tables_of(held, "ztick")
        staged = posixpath.join(hands.staging, "log")
        write_compacted(held, hands.log, staged, seals=is_sealed(disk, SEALS, hands.log))
        after = states(spark, "ztick", staged)
        for name, table in tables.items():
            check_same(hands.log.name, name, table, after[name], COMPARED["ztick", name])
        kept = sum(table.count() for table in after.values())
    finally:
        held.unpersist()
    size = disk.size(staged)
    publish_ztick(disk, hands.log.name, staged)
    return MaintenanceResult("ztick", hands.log.name, True, records, kept, hands.size, size)


def publish_ztick(disk: Disk, path: str, staged: str) -> None:
    """Put the staged file in the place of the whole log; the caller has the lock."""
    names = ZtickNames(path)
    before = identities([names.compressed, names.to_compress, names.active])
    note_replacement(before, staged, names.active)
    if not disk.exists(names.compressed) and not disk.exists(names.to_compress):
        put_in_place(disk, staged, names.active)
        return
    put_in_place(disk, staged, names.compressed)
    if disk.exists(names.to_compress):
        remove_durably(disk, names.to_compress)
    put_in_place(disk, names.compressed, names.active)
