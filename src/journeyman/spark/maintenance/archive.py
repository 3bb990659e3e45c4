"""Whole logs to Parquet: every record, payloads included, read back and compared before it counts.

    OUTPUT/run=<UTC>-<log>/log=<path>/day=<date>/part-....parquet

``day`` is that of the record's own time; where records say none (ztick) it is the day of the run.
A run is written under a hidden name, verified, and then renamed: it is there as a whole or not at
all. (On an object store, where renaming is copying, Spark writes to the last name, and a run that
was not verified is removed.)

``remove`` lets segments go afterwards, under the log's locks, oldest first, one durable step each:

    workq     as journeyman.logs.workq.cleaning: segments of which every record may go. The newest
              stays: it is the one that is appended to
    kestrel   as journeyman.logs.kestrel.segments: segments that every reader is past
    ztick     nothing: its files are its state
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.clock import SystemClock
from journeyman.disk import Disk
from journeyman.logs.publication import remove_durably
from journeyman.spark import read
from journeyman.spark.files import absolute
from journeyman.spark.maintenance.holding import Hands, MaintenanceResult, logs_at, refuse_damage
from journeyman.spark.maintenance.kestrel_compaction import retirement
from journeyman.spark.maintenance.part_files import check_same
from journeyman.spark.maintenance.running import each_log
from journeyman.spark.maintenance.workq_cleaning import unneeded_segments
from journeyman.spark.tables import packets, tables_of
from journeyman.units import NS_PER_S


def archive(
    spark: SparkSession, dialect: str, paths: Sequence[str], output: str, *, remove: bool = False
) -> list[MaintenanceResult]:
    """Archive each log for itself; outcomes count records and bytes before and after."""
    now_ns = SystemClock().now_ns()
    place = absolute(output).rstrip("/")

    def treat(disk: Disk, hands: Hands) -> MaintenanceResult:
        records = _archive_one(spark, disk, hands, place, now_ns)
        went = _remove(spark, disk, hands, now_ns) if remove else ()
        left = hands.size - sum(file.size for file in hands.log.files if file.path in went)
        return MaintenanceResult(dialect, hands.log.name, True, records, records, hands.size, left)

    return each_log(spark, dialect, logs_at(dialect, tuple(paths)), treat, drops=remove)


def archived_rows(spark: SparkSession, dialect: str, paths: tuple[str, ...]) -> DataFrame:
    """What goes into the archive: all columns, payloads too."""
    rows = read(spark, dialect, *paths, payloads=True, mode="DROPMALFORMED")
    today = F.lit(datetime.now(UTC).date())
    day = F.coalesce(F.to_date("time"), today)
    return rows.withColumn("log", F.col("_log")).withColumn("day", day)


def _archive_one(spark: SparkSession, disk: Disk, hands: Hands, output: str, now_ns: int) -> int:
    count = refuse_damage(packets(spark, hands.dialect, hands.paths), hands.log.name)
    rows = archived_rows(spark, hands.dialect, hands.paths)
    moment = datetime.fromtimestamp(now_ns // NS_PER_S, UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = f"{zlib.crc32(hands.log.name.encode()):08x}"  # logs of one name, of different hosts
    final = posixpath.join(output, f"run={moment}-{posixpath.basename(hands.log.name)}-{digest}")
    is_local = "://" not in output
    written = posixpath.join(output, f"_{posixpath.basename(final)}") if is_local else final
    rows.write.partitionBy("log", "day").parquet(written)
    back = spark.read.parquet(written)
    columns = [name for name in rows.columns if name not in ("log", "day")]
    check_same(hands.log.name, "record", rows, back, columns)
    if is_local:
        make_durable(disk, written)
        disk.rename(written, final)
        disk.sync_dir(output)
    return count


def make_durable(disk: Disk, directory: str) -> None:
    """Sync all below a directory: Spark does not, and the log may go next."""
    for name in disk.list_dir(directory):
        path = posixpath.join(directory, name)
        if disk.is_dir(path):
            make_durable(disk, path)
        else:
            file = disk.open_append(path)
            try:
                file.sync()
            finally:
                file.close()
    disk.sync_dir(directory)


def _remove(spark: SparkSession, disk: Disk, hands: Hands, now_ns: int) -> tuple[str, ...]:
    goes: tuple[str, ...] = ()
    if hands.dialect == "workq":
        goes = unneeded_segments(spark, hands, now_ns)
    elif hands.dialect == "kestrel":
        plan = retirement(tables_of(packets(spark, "kestrel", hands.paths), "kestrel"))
        goes = () if plan is None else plan.goes
    for path in goes:
        remove_durably(disk, path)
    return goes
