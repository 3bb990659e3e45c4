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
original reads. The new file is written by the log sink (journeyman.spark.sinks).

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
import posixpath
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats.kestrel import SEALS as KESTREL_SEALS
from journeyman.formats.ztick.codec import SEALS as ZTICK_SEALS
from journeyman.logs.publication import (
    file_identities,
    note_replacement,
    put_in_place,
    remove_durably,
)
from journeyman.logs.segments import ZtickNames, kestrel_segments
from journeyman.spark import read, write
from journeyman.spark.maintenance import holding
from journeyman.spark.replay import states, with_payloads

_NO_LIMIT: Final = 2**40  # bytes of the segment at the border, which is one file before and after


def compact_ztick(
    spark: SparkSession, disk: Disk, held_log: holding.HeldLog
) -> holding.MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    with holding.folded(spark, held_log) as (tables, records):
        staged = posixpath.join(held_log.staging, "log")
        write_compacted(
            tables, staged, seals=holding.has_sealed_files(disk, ZTICK_SEALS, held_log.log)
        )
        after = states(spark, "ztick", staged)
        for name, table in tables.items():
            holding.check_same(
                held_log.log.name, name, table, after[name], holding.COMPARED["ztick", name]
            )
        kept = sum(table.count() for table in after.values())
    size = disk.size(staged)
    publish_ztick(disk, held_log.log.name, staged)
    return holding.MaintenanceResult(
        "ztick", held_log.log.name, True, records, kept, held_log.size, size
    )


def publish_ztick(disk: Disk, path: str, staged: str) -> None:
    """Put the staged file in the place of the whole log; the caller has the lock."""
    names = ZtickNames(path)
    before = file_identities(disk, [names.compressed, names.to_compress, names.active])
    note_replacement(disk, before, staged, names.active)
    if not disk.exists(names.compressed) and not disk.exists(names.to_compress):
        put_in_place(disk, staged, names.active)
        return
    put_in_place(disk, staged, names.compressed)
    if disk.exists(names.to_compress):
        remove_durably(disk, names.to_compress)
    put_in_place(disk, names.compressed, names.active)


def write_compacted(tables: dict[str, DataFrame], target: str, *, seals: bool) -> None:
    """Write the state of a ztick log as a new log at ``target``, sealed or not."""
    write(compacted_rows(tables), "ztick", target, seals=seals)


def compacted_rows(tables: dict[str, DataFrame]) -> DataFrame:
    """The last record of every job and rule of one log, as rows of the source."""
    place = ("_log", "_position", "identifier")
    jobs = tables["jobs"].select(F.lit("set").alias("kind"), *place, "execution_ns", "status")
    columns = ("pattern", "runner", "runner_args")
    rules = tables["rules"].select(F.lit("rule_set").alias("kind"), *place, *columns)
    return jobs.unionByName(rules, allowMissingColumns=True)


@dataclass(frozen=True, slots=True)
class Retirement:
    """The part of a queue to remove: items up to ``floor``; the file ``border`` is written anew."""

    floor: int
    goes: tuple[str, ...] = ()
    border: str | None = None


def compact_kestrel(
    spark: SparkSession, disk: Disk, held_log: holding.HeldLog
) -> holding.MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    log = held_log.log
    with holding.folded(spark, held_log) as (tables, records):
        plan = retirement(tables)
        if plan is None or not (plan.goes or plan.border):
            return holding.MaintenanceResult(
                "kestrel", log.name, False, records, records, held_log.size, held_log.size
            )
        staged = _stage_queue(
            spark, held_log, plan, seals=holding.has_sealed_files(disk, KESTREL_SEALS, log)
        )
        kept = _verify_queue(spark, held_log, plan, tables)
    publish_kestrel(disk, plan, staged)
    sizes = [disk.size(f.path) for f in log.files if f.reader is None and f.path not in plan.goes]
    return holding.MaintenanceResult(
        "kestrel", log.name, True, records, kept, held_log.size, sum(sizes)
    )


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
    spark: SparkSession, held_log: holding.HeldLog, plan: Retirement, *, seals: bool
) -> str | None:
    """A copy of the queue as it is to be, by links; the path of the new segment in it."""
    os.makedirs(held_log.staging)
    for file in held_log.log.files:
        if file.path not in (*plan.goes, plan.border):
            os.link(file.path, posixpath.join(held_log.staging, posixpath.basename(file.path)))
    if plan.border is None:
        return None
    if read(spark, "kestrel", plan.border, kinds="UNKNOWN").limit(1).count():
        raise LogError(plan.border, "holds commands that are not known, which cannot be rewritten")
    rows = read(spark, "kestrel", plan.border, payloads=True).filter(F.col("item_id") > plan.floor)
    queue = posixpath.basename(held_log.log.name)
    built = posixpath.join(held_log.staging, "built")
    staged = posixpath.join(held_log.staging, posixpath.basename(plan.border))
    options = {"queue": queue, "segmentBytes": _NO_LIMIT, "seals": seals}
    write(rows, "kestrel", built, partitions=1, **options)
    (name,) = kestrel_segments(queue, os.listdir(built))
    os.rename(posixpath.join(built, name), staged)
    return staged


def _verify_queue(
    spark: SparkSession, held_log: holding.HeldLog, plan: Retirement, tables: dict[str, DataFrame]
) -> int:
    """Replay the copy; how many records it is."""
    queue = posixpath.basename(held_log.log.name)
    with holding.folded(spark, held_log, [held_log.staging], payloads=True, queue=queue) as (
        after,
        records,
    ):
        left = with_payloads(tables["items"].filter(F.col("item_id") > plan.floor))
        for name, before in (("items", left), ("readers", tables["readers"])):
            holding.check_same(
                held_log.log.name, name, before, after[name], holding.COMPARED["kestrel", name]
            )
    return records


def publish_kestrel(disk: Disk, plan: Retirement, staged: str | None) -> None:
    """Remove what is finished, oldest first, then put the new segment in place."""
    for path in plan.goes:
        remove_durably(disk, path)
    if staged is not None and plan.border is not None:
        note_replacement(disk, file_identities(disk, [plan.border]), staged, plan.border)
        put_in_place(disk, staged, plan.border)
