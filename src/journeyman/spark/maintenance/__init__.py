"""Shrinking logs offline on Spark, as the server does with its own logs.

    compact   ztick    the last record of every job and rule, in one file
              kestrel  drops items that every reader has finished
    clean     workq    drops deleted and expired jobs; the others get as few records as possible
    archive   all      every record to Parquet; then unneeded segments may be removed

All of them take the same five steps, separately for each log:

    hold      take the locks of the log for the whole time, so that nothing is appended
    fold      compute the state with journeyman.spark.replay; stop if there is damage
    stage     write the new files to a hidden directory beside the old ones
    verify    fold the staged files; if the state differs, publish nothing
    publish   by renames that leave, at every step, a log with this state

Spark runs the jobs of several threads side by side, so a few logs are processed together: with many
small ones, planning takes longer than reading. Each log has its own locks, staging and outcome, so
one that is in use or damaged does not delay the others. Logs are changed on local file systems
only, because object stores have no locks; ``archive`` reads them anywhere.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.clock import Clock, SystemClock
from journeyman.disk import Disk
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.catalog import Log
from journeyman.logs.publication import remove_durably
from journeyman.spark import read, register
from journeyman.spark.files import absolute, is_uri
from journeyman.spark.maintenance import compaction
from journeyman.spark.maintenance.cleaning import clean_workq, unneeded_segments
from journeyman.spark.maintenance.holding import (
    HeldLog,
    MaintenanceResult,
    check_same,
    hold_log,
    logs_at,
    refuse_damage,
    refuse_unread,
)
from journeyman.spark.replay import packets, states, tables_of
from journeyman.spark.session import in_one_sentence
from journeyman.spark.sinks.commit import LocalDisk, SinkDisk
from journeyman.spark.tables import read_parquet, write_parquet
from journeyman.units import NS_PER_S

__all__ = [
    "MaintenanceResult",
    "archive",
    "archived_rows",
    "clean",
    "compact",
    "compaction_plans",
    "each_log",
]

AT_ONCE: Final = 4
Treatment = Callable[[SinkDisk, HeldLog], MaintenanceResult]


def compact(
    spark: SparkSession, dialect: str, paths: Sequence[str], *, queue: str | None = None
) -> list[MaintenanceResult]:
    """Compact ztick logs or kestrel queues, each for itself."""
    if dialect == "workq":
        raise UsageError("a workq log is cleaned, not compacted: use `clean`")
    treat = compaction.compact_ztick if dialect == "ztick" else compaction.compact_kestrel
    logs = logs_at(dialect, tuple(paths), queue)
    return each_log(spark, dialect, logs, lambda disk, held: treat(spark, disk, held))


def compaction_plans(
    spark: SparkSession, dialect: str, paths: Sequence[str]
) -> dict[str, DataFrame]:
    """Return the plans of a compaction, by name; nothing is run."""
    tables = states(spark, dialect, paths)
    plans = {f"{dialect}.{name}": table for name, table in tables.items()}
    if dialect == "ztick":
        plans["ztick.log"] = compaction.compacted_rows(tables)
    return plans


def clean(
    spark: SparkSession, paths: Sequence[str], *, as_of_ns: int | None = None
) -> list[MaintenanceResult]:
    """Clean workq logs as of a moment, now unless told otherwise."""
    moment = SystemClock().now_ns() if as_of_ns is None else as_of_ns
    logs = logs_at("workq", tuple(paths))
    return each_log(spark, "workq", logs, lambda disk, held: clean_workq(spark, disk, held, moment))


def archive(
    spark: SparkSession, dialect: str, paths: Sequence[str], output: str, *, remove: bool = False
) -> list[MaintenanceResult]:
    """Every record of these logs, payloads included, to Parquet, read back and compared.

        OUTPUT/run=<UTC>-<log>/log=<path>/day=<date>/part-....parquet

    ``day`` is that of the record's own time; where records say none (ztick) it is the day of the
    run. A run is written under a hidden name, verified, and then renamed: it is there as a whole or
    not at all. (At a URI, where nothing can be renamed, it has its last name at once; a run that
    failed has no file ``_SUCCESS`` there.)

    ``remove`` lets segments go afterwards, oldest first, one durable step each:

        workq     as journeyman.logs.workq.cleaning: segments of which every record may go. The
                  newest stays: it is the one that is appended to
        kestrel   as journeyman.logs.kestrel.segments: segments that every reader is past
        ztick     nothing: its files are its state
    """
    now_ns = SystemClock().now_ns()
    place = absolute(output).rstrip("/")

    def treat(disk: Disk, held_log: HeldLog) -> MaintenanceResult:
        records = _archive_one(spark, disk, held_log, place, now_ns)
        went = _remove(spark, disk, held_log, now_ns) if remove else ()
        left = held_log.size - sum(file.size for file in held_log.log.files if file.path in went)
        return MaintenanceResult(
            dialect, held_log.log.name, True, records, records, held_log.size, left
        )

    logs = logs_at(dialect, tuple(paths), changes=remove)
    return each_log(spark, dialect, logs, treat, drops=remove)


def archived_rows(spark: SparkSession, dialect: str, paths: tuple[str, ...]) -> DataFrame:
    """Return the rows for the archive: all columns, payloads too."""
    rows = read(spark, dialect, *paths, payloads=True, mode="DROPMALFORMED")
    today = F.lit(datetime.now(UTC).date())
    day = F.coalesce(F.to_date("time"), today)
    return rows.withColumn("log", F.col("_log")).withColumn("day", day)


def each_log(
    spark: SparkSession,
    dialect: str,
    logs: Sequence[Log],
    treat: Treatment,
    *,
    disk: SinkDisk | None = None,
    clock: Clock | None = None,
    drops: bool = True,
) -> list[MaintenanceResult]:
    """The outcome of every log, in their order; ``drops``: records may go, so holders count."""
    place, time = disk or LocalDisk(), clock or SystemClock()

    def one(log: Log) -> MaintenanceResult:
        try:
            with hold_log(place, time, dialect, log) as held:
                if drops:
                    refuse_unread(place, time, held)
                return treat(place, held)
        except (JourneymanError, OSError) as error:
            return MaintenanceResult(dialect, log.name, error=str(error))
        except Exception as error:
            told = in_one_sentence(error)  # the error of a task, if Spark raised it
            if told is None:
                raise
            return MaintenanceResult(dialect, log.name, error=str(told))

    register(spark)
    threads = min(AT_ONCE, max(1, len(logs)))
    with ThreadPoolExecutor(threads, initializer=_activate, initargs=(spark,)) as pool:
        return list(pool.map(one, logs))


def _activate(spark: SparkSession) -> None:
    """Make the session the active one of this thread: Spark looks for formats in that alone."""
    spark.createDataFrame([], "nothing int")


def _archive_one(
    spark: SparkSession, disk: Disk, held_log: HeldLog, output: str, now_ns: int
) -> int:
    count = refuse_damage(packets(spark, held_log.dialect, held_log.paths), held_log.log.name)
    rows = archived_rows(spark, held_log.dialect, held_log.paths)
    moment = datetime.fromtimestamp(now_ns // NS_PER_S, UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = f"{zlib.crc32(held_log.log.name.encode()):08x}"  # logs of one name, of different hosts
    final = posixpath.join(output, f"run={moment}-{posixpath.basename(held_log.log.name)}-{digest}")
    is_local = not is_uri(output)
    written = posixpath.join(output, f"_{posixpath.basename(final)}") if is_local else final
    write_parquet(rows, written, by=("log", "day"))
    back = read_parquet(spark, written)
    columns = [name for name in rows.columns if name not in ("log", "day")]
    check_same(held_log.log.name, "record", rows, back, columns)
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


def _remove(spark: SparkSession, disk: Disk, held_log: HeldLog, now_ns: int) -> tuple[str, ...]:
    goes: tuple[str, ...] = ()
    if held_log.dialect == "workq":
        goes = unneeded_segments(spark, held_log, now_ns)
    elif held_log.dialect == "kestrel":
        plan = compaction.retirement(
            tables_of(packets(spark, "kestrel", held_log.paths), "kestrel")
        )
        goes = () if plan is None else plan.goes
    for path in goes:
        remove_durably(disk, path)
    return goes
