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

import posixpath

from pyspark.sql import SparkSession

from journeyman.disk import Disk
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.publication import identities, note_replacement, put_in_place, remove_durably
from journeyman.logs.segments import ZtickNames
from journeyman.spark.maintenance.holding import Hands, is_sealed
from journeyman.spark.maintenance.reports import MaintenanceResult, refuse_damage
from journeyman.spark.maintenance.verification import COMPARED, check_same
from journeyman.spark.maintenance.ztick_rewriting import write_compacted
from journeyman.spark.tables import packets, states, tables_of


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
