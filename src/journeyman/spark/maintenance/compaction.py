"""Compacts ztick logs and kestrel queues on Spark. Sealed logs stay sealed.

**ztick**: the last record of every job and rule, in log order, in one file.

    C, T, A  --fold-->  jobs, rules  --in order of their last records-->  N, staged and verified

``C``, ``T`` and ``A`` are ``.compressed``, ``.to_compress`` and the active file. Publishing:

    step                                       a crash after it leaves, which folds as
    only A there: rename N to A                N         the state
    1 rename N to .compressed                  N, T, A   the same: T and A set each key to what
    2 remove .to_compress                      N, A      it is once more
    3 rename .compressed to the active name    N         the same

Every rename and removal is durable before the next. In the end the log is the one file that the
original reads. It is written without a row of it passing through Spark's own formats:

    packets --by key--> merged: what is left --cut at positions--> packets of ranges
            --by range--> joined, sorted, encoded --> part files --> one log, in log order

The ranges are known in advance from the size of the log, so no task has to sample the data, as a
sort by Spark would. One task holds one range in memory. Part files, messages and commit are those
of the sink (journeyman.spark.sinks).

**kestrel**: items at the beginning of a queue that every reader has finished are removed.

    ids         1..2      3..4      5..6      7
    segments    jobs.10   jobs.20   jobs.30   jobs.40
    heads                    a: 5      b: 6              items up to 5 are finished for all
    result      removed   removed   jobs.30': 6          the segment at the border is rewritten

As in journeyman.logs.kestrel.segments the newest item always stays, as a record of the used ids;
without a reader's checkpoint nothing is removed. Items finished out of order stay too, because the
original's readers stop for ever at a gap in the ids.

The verification reads a copy of the queue made of hard links, including the new segment.
Publishing is one durable step per file, oldest first; each step leaves a queue with the same items
to deliver:

    1 remove a finished segment      ... one by one
    2 rename the new segment over the one at the border
"""

from __future__ import annotations

import os
import pickle
import posixpath
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats.kestrel import SEALS as KESTREL_SEALS
from journeyman.formats.ztick.codec import SEALS as ZTICK_SEALS
from journeyman.logs.catalog import Log
from journeyman.logs.publication import identities, note_replacement, put_in_place, remove_durably
from journeyman.logs.segments import ZtickNames, kestrel_segments
from journeyman.spark import read, write
from journeyman.spark.maintenance.holding import (
    COMPARED,
    HeldLog,
    MaintenanceResult,
    check_same,
    is_sealed,
    refuse_damage,
)
from journeyman.spark.replay import aligned, groups_of, packets, states, tables_of, with_payloads
from journeyman.spark.replay.state_files import route_packets
from journeyman.spark.sinks.log_sink import LogWriter, SinkOptions, new_writer
from journeyman.spark.sinks.parts import write_parts
from journeyman.spark.source.options import SEGMENT_SHIFT, arrow_schema, struct
from journeyman.spark.source.packets import unpack

_NO_LIMIT: Final = 2**40  # bytes of the segment at the border, which is one file before and after
RANGE_BYTES: Final = 256 * 1024 * 1024  # of the log, at most
FEW_RANGES: Final = 8  # at least, so that all cores are busy, unless they would be
SMALL_RANGE_BYTES: Final = 8 * 1024 * 1024  # smaller than this
_HELD_ROWS: Final = 500_000
_BATCH_ROWS: Final = 65_536
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
_RANGED: Final = struct("range int, rows binary")
_MESSAGES: Final = struct("message binary")


def compact_ztick(spark: SparkSession, disk: Disk, held: HeldLog) -> MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    packed = packets(spark, "ztick", held.paths).persist()
    try:
        records = refuse_damage(packed, held.log.name)
        tables = tables_of(packed, "ztick")
        staged = posixpath.join(held.staging, "log")
        write_compacted(packed, held.log, staged, seals=is_sealed(disk, ZTICK_SEALS, held.log))
        after = states(spark, "ztick", staged)
        for name, table in tables.items():
            check_same(held.log.name, name, table, after[name], COMPARED["ztick", name])
        kept = sum(table.count() for table in after.values())
    finally:
        packed.unpersist()
    size = disk.size(staged)
    publish_ztick(disk, held.log.name, staged)
    return MaintenanceResult("ztick", held.log.name, True, records, kept, held.size, size)


def publish_ztick(disk: Disk, path: str, staged: str) -> None:
    """Put the staged file in the place of the whole log; the caller has the lock."""
    names = ZtickNames(path)
    before = identities(disk, [names.compressed, names.to_compress, names.active])
    note_replacement(disk, before, staged, names.active)
    if not disk.exists(names.compressed) and not disk.exists(names.to_compress):
        put_in_place(disk, staged, names.active)
        return
    put_in_place(disk, staged, names.compressed)
    if disk.exists(names.to_compress):
        remove_durably(disk, names.to_compress)
    put_in_place(disk, names.compressed, names.active)


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


@dataclass(frozen=True, slots=True)
class Retirement:
    """What goes of one queue. ``floor``: items up to this id; ``border`` is written anew."""

    floor: int
    goes: tuple[str, ...] = ()
    border: str | None = None


def compact_kestrel(spark: SparkSession, disk: Disk, held: HeldLog) -> MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    log = held.log
    packed = packets(spark, "kestrel", held.paths).persist()
    try:
        records = refuse_damage(packed, log.name)
        tables = tables_of(packed, "kestrel")
        plan = retirement(tables)
        if plan is None or not (plan.goes or plan.border):
            return MaintenanceResult(
                "kestrel", log.name, False, records, records, held.size, held.size
            )
        staged = _stage_queue(spark, held, plan, seals=is_sealed(disk, KESTREL_SEALS, log))
        kept = _verify_queue(spark, held, plan, tables)
    finally:
        packed.unpersist()
    publish_kestrel(disk, plan, staged)
    sizes = [disk.size(f.path) for f in log.files if f.reader is None and f.path not in plan.goes]
    return MaintenanceResult("kestrel", log.name, True, records, kept, held.size, sum(sizes))


def retirement(tables: dict[str, DataFrame]) -> Retirement | None:
    """None when no reader has a checkpoint, so that nothing is known to be read."""
    trusted = tables["readers"].filter("_file is not null and opened_head is not null")
    (heads,) = trusted.agg(F.min("opened_head").alias("head")).collect()
    if heads["head"] is None:
        return None
    segments = (
        tables["items"]
        .groupBy("_file")
        .agg(F.min("item_id").alias("first"), F.max("item_id").alias("last"))
        .orderBy("first")
        .collect()
    )
    if not segments:
        return None
    floor = min(heads["head"], max(segment["last"] for segment in segments) - 1)
    done = tuple(s["_file"] for s in segments[:-1] if s["last"] <= floor)
    left = [s for s in segments if s["_file"] not in done]
    border = left[0] if left[0]["first"] <= floor else None
    return Retirement(floor, done, None if border is None else border["_file"])


def _stage_queue(
    spark: SparkSession, held: HeldLog, plan: Retirement, *, seals: bool
) -> str | None:
    """A copy of the queue as it is to be, by links; the path of the new segment in it."""
    os.makedirs(held.staging)
    for file in held.log.files:
        if file.path not in (*plan.goes, plan.border):
            os.link(file.path, posixpath.join(held.staging, posixpath.basename(file.path)))
    if plan.border is None:
        return None
    if read(spark, "kestrel", plan.border, kinds="UNKNOWN").limit(1).count():
        raise LogError(plan.border, "holds commands that are not known, which cannot be rewritten")
    rows = read(spark, "kestrel", plan.border, payloads=True).filter(F.col("item_id") > plan.floor)
    queue = posixpath.basename(held.log.name)
    built = posixpath.join(held.staging, "built")
    staged = posixpath.join(held.staging, posixpath.basename(plan.border))
    try:
        options = {"queue": queue, "segmentBytes": _NO_LIMIT, "seals": seals}
        write(rows, "kestrel", built, partitions=1, **options)
        (name,) = kestrel_segments(queue, os.listdir(built))
        os.rename(posixpath.join(built, name), staged)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    return staged


def _verify_queue(
    spark: SparkSession, held: HeldLog, plan: Retirement, tables: dict[str, DataFrame]
) -> int:
    """Replay the copy; how many records it is."""
    queue = posixpath.basename(held.log.name)
    packed = packets(spark, "kestrel", held.staging, queue=queue).persist()
    try:
        records = refuse_damage(packed, held.log.name)
        after = tables_of(packed, "kestrel", payloads=True)
        left = with_payloads(tables["items"].filter(F.col("item_id") > plan.floor))
        for name, before in (("items", left), ("readers", tables["readers"])):
            check_same(held.log.name, name, before, after[name], COMPARED["kestrel", name])
    finally:
        packed.unpersist()
    return records


def publish_kestrel(disk: Disk, plan: Retirement, staged: str | None) -> None:
    """Remove what is finished, oldest first, then put the new segment in place."""
    for path in plan.goes:
        remove_durably(disk, path)
    if staged is not None and plan.border is not None:
        note_replacement(disk, identities(disk, [plan.border]), staged, plan.border)
        put_in_place(disk, staged, plan.border)
