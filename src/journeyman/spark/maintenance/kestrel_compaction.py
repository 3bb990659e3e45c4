"""A kestrel queue compacted on Spark: what every reader has finished goes from its beginning.

    ids         1..2      3..4      5..6      7
    segments    jobs.10   jobs.20   jobs.30   jobs.40
    heads                    a: 5      b: 6              items up to 5 are finished for all
    result      goes      goes      jobs.30': 6          the segment at the border written anew

As in journeyman.logs.kestrel.segments the newest item always stays, and with it the knowledge of
which ids were given out; without a reader's checkpoint nothing goes. Items finished out of order
stay too: the original's readers stop for ever at a gap in the ids. A queue that is sealed stays so.

What is verified is a copy of the queue made of hard links, with the new segment among them.
Publishing is one durable step a file, oldest first; each leaves a queue with the same items to
deliver:

    1 remove a finished segment      ... one by one
    2 rename the new segment over the one at the border
"""

from __future__ import annotations

import os
import posixpath
import shutil
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats.kestrel import SEALS
from journeyman.logs.publication import identities, note_replacement, put_in_place, remove_durably
from journeyman.logs.segments import kestrel_segments
from journeyman.spark import read
from journeyman.spark.maintenance.holding import Hands, MaintenanceResult, is_sealed, refuse_damage
from journeyman.spark.maintenance.part_files import COMPARED, check_same
from journeyman.spark.replay.point_reads import with_payloads
from journeyman.spark.sinks import write
from journeyman.spark.tables import packets, tables_of

_NO_LIMIT: Final = 2**40  # bytes of the segment at the border, which is one file before and after


@dataclass(frozen=True, slots=True)
class Retirement:
    """What goes of one queue. ``floor``: items up to this id; ``border`` is written anew."""

    floor: int
    goes: tuple[str, ...] = ()
    border: str | None = None


def compact_kestrel(spark: SparkSession, disk: Disk, hands: Hands) -> MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    log = hands.log
    held = packets(spark, "kestrel", hands.paths).persist()
    try:
        records = refuse_damage(held, log.name)
        tables = tables_of(held, "kestrel")
        plan = retirement(tables)
        if plan is None or not (plan.goes or plan.border):
            return MaintenanceResult(
                "kestrel", log.name, False, records, records, hands.size, hands.size
            )
        staged = _stage(spark, hands, plan, seals=is_sealed(disk, SEALS, log))
        kept = _verify(spark, hands, plan, tables)
    finally:
        held.unpersist()
    publish_kestrel(disk, plan, staged)
    sizes = [disk.size(f.path) for f in log.files if f.reader is None and f.path not in plan.goes]
    return MaintenanceResult("kestrel", log.name, True, records, kept, hands.size, sum(sizes))


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


def _stage(spark: SparkSession, hands: Hands, plan: Retirement, *, seals: bool) -> str | None:
    """A copy of the queue as it is to be, by links; the path of the new segment in it."""
    os.makedirs(hands.staging)
    for file in hands.log.files:
        if file.path not in (*plan.goes, plan.border):
            os.link(file.path, posixpath.join(hands.staging, posixpath.basename(file.path)))
    if plan.border is None:
        return None
    if read(spark, "kestrel", plan.border, kinds="UNKNOWN").limit(1).count():
        raise LogError(plan.border, "holds commands that are not known, which cannot be rewritten")
    rows = read(spark, "kestrel", plan.border, payloads=True).filter(F.col("item_id") > plan.floor)
    queue = posixpath.basename(hands.log.name)
    built = posixpath.join(hands.staging, "built")
    staged = posixpath.join(hands.staging, posixpath.basename(plan.border))
    try:
        options = {"queue": queue, "segmentBytes": _NO_LIMIT, "seals": seals}
        write(rows, "kestrel", built, partitions=1, **options)
        (name,) = kestrel_segments(queue, os.listdir(built))
        os.rename(posixpath.join(built, name), staged)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    return staged


def _verify(
    spark: SparkSession, hands: Hands, plan: Retirement, tables: dict[str, DataFrame]
) -> int:
    """Replay the copy; how many records it is."""
    queue = posixpath.basename(hands.log.name)
    held = packets(spark, "kestrel", hands.staging, queue=queue).persist()
    try:
        records = refuse_damage(held, hands.log.name)
        after = tables_of(held, "kestrel", payloads=True)
        left = with_payloads(tables["items"].filter(F.col("item_id") > plan.floor))
        for name, before in (("items", left), ("readers", tables["readers"])):
            check_same(hands.log.name, name, before, after[name], COMPARED["kestrel", name])
    finally:
        held.unpersist()
    return records


def publish_kestrel(disk: Disk, plan: Retirement, staged: str | None) -> None:
    """Remove what is finished, oldest first, then put the new segment in place."""
    for path in plan.goes:
        remove_durably(disk, path)
    if staged is not None and plan.border is not None:
        note_replacement(identities([plan.border]), staged, plan.border)
        put_in_place(disk, staged, plan.border)
