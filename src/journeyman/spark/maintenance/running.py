"""Which log gets which treatment, and several of them at a time.

Spark runs the jobs of several threads side by side, so a few logs are worked on together: with many
small ones the time is that of planning, not of reading. Each log has its own locks, staging and
outcome; what goes wrong with one is told in its outcome and does not touch the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from journeyman.clock import Clock, SystemClock
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.catalog import Log
from journeyman.spark import register
from journeyman.spark.maintenance.holding import (
    Hands,
    MaintenanceResult,
    held,
    logs_at,
    refuse_unread,
)
from journeyman.spark.maintenance.kestrel_compaction import compact_kestrel
from journeyman.spark.maintenance.workq_cleaning import clean_workq
from journeyman.spark.maintenance.ztick_compaction import compact_ztick, explained
from journeyman.spark.session.failures import in_one_sentence
from journeyman.spark.sinks.staging import LocalDisk, SinkDisk
from journeyman.spark.tables import packets, states

AT_ONCE: Final = 4

Treatment = Callable[[SinkDisk, Hands], MaintenanceResult]


def compact(
    spark: SparkSession, dialect: str, paths: Sequence[str], *, queue: str | None = None
) -> list[MaintenanceResult]:
    """Compact ztick logs or kestrel queues, each for itself; see the modules of these names."""
    if dialect == "workq":
        raise UsageError("a workq log is cleaned, not compacted: use `clean`")
    treat = compact_ztick if dialect == "ztick" else compact_kestrel
    logs = logs_at(dialect, tuple(paths), queue)
    return each_log(spark, dialect, logs, lambda disk, hands: treat(spark, disk, hands))


def compaction_plans(
    spark: SparkSession, dialect: str, paths: Sequence[str]
) -> dict[str, DataFrame]:
    """What compacting would run, by name; nothing is run."""
    tables = states(spark, dialect, paths)
    plans = {f"{dialect}.{name}": table for name, table in tables.items()}
    if dialect == "ztick":
        log = logs_at(dialect, tuple(paths))[0]
        plans["ztick.log"] = explained(packets(spark, dialect, log.name), log)
    return plans


def clean(
    spark: SparkSession, paths: Sequence[str], *, as_of_ns: int | None = None
) -> list[MaintenanceResult]:
    """Clean workq logs as of a moment, now unless told otherwise; see workq_cleaning."""
    moment = SystemClock().now_ns() if as_of_ns is None else as_of_ns
    logs = logs_at("workq", tuple(paths))
    return each_log(
        spark, "workq", logs, lambda disk, hands: clean_workq(spark, disk, hands, moment)
    )


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
            with held(place, time, dialect, log) as hands:
                if drops:
                    refuse_unread(place, time, hands)
                return treat(place, hands)
        except (JourneymanError, OSError) as error:
            return MaintenanceResult(dialect, log.name, error=str(error))
        except Exception as error:
            told = in_one_sentence(error)  # what a task raised, if Spark raised it
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
