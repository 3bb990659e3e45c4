"""The data pipeline on Spark: logs as tables. The only package that imports pyspark.

    from journeyman.spark import attempts, lake, read, register, send, states, write

    read(spark, "ztick", "/logs/host=a", "/logs/host=b")     every record, one row each
    states(spark, "workq", "/var/lib/workq")["jobs"]         the final state, one row per job
    attempts(spark, "workq", "/var/lib/workq")               one row per job and attempt
    lake(spark, "/lake")["attempts"]                         a table of a lake
    write(frame, "ztick", "/var/lib/ztick/logfile")          rows become a log
    send(frame, "workq", "queue.internal:9922")              rows become jobs on a server
    register(spark)                                          then spark.read.format("ztick") works

These functions are the public API. Everything works through Spark Connect: no RDD, no
sparkContext, no _jvm. pyspark is imported by the first call, not by importing this package.
docs/spark.md describes the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["attempts", "lake", "read", "register", "send", "states", "write"]


def register(spark: SparkSession) -> None:
    """Register all formats in this session. It can be called again."""
    from journeyman.spark.data_sources import register_formats

    register_formats(spark)


def read(spark: SparkSession, dialect: str, *paths: str, **options: object) -> DataFrame:
    """Read the logs at these paths as one DataFrame. Wrong options raise UsageError at once."""
    from journeyman.spark.data_sources import open_logs

    return open_logs(spark, dialect, paths, options)


def states(
    spark: SparkSession, dialect: str, *paths: str, payloads: bool = False, **options: object
) -> dict[str, DataFrame]:
    """Replay the logs at these paths: their state tables by name, as docs/spark.md says.

    ``payloads`` fills the columns payload, result and data. Other options are those of ``read``.
    """
    from journeyman.spark import replay

    return replay.states(spark, dialect, paths, payloads=payloads, **options)


def attempts(
    spark: SparkSession,
    dialect: str,
    *paths: str,
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
) -> DataFrame:
    """The history of the logs at these paths, one row per job and attempt; see docs/pipeline.md.

    ``run_directories``: where the server recorded the runs of a schedule, if not beside its log.
    """
    from journeyman.spark.history.logs import attempts_of

    return attempts_of(
        spark, {dialect: list(paths)}, as_of_ns=as_of_ns, run_directories=run_directories
    )


def lake(
    spark: SparkSession, uri: str, *, live: Sequence[str] = (), host: str | None = None
) -> Mapping[str, DataFrame]:
    """The tables of a lake by name, all as of one moment; see docs/lake.md.

    ``live``: logs whose new records the tables have as well, as an ingest with this ``host`` would
    store them; nothing is stored.
    """
    from journeyman.spark.discovery import logs_by_dialect
    from journeyman.spark.lakes.frames import open_tables

    logs = logs_by_dialect(live, ledger=True) if live else None
    return open_tables(spark, uri, logs, host)


def write(frame: DataFrame, dialect: str, path: str, **options: Any) -> None:
    """Sort the rows and write them as a log, all files or none; options as in docs/spark.md."""
    from journeyman.spark.data_sources import write_log

    write_log(frame, dialect, path, **options)


def send(frame: DataFrame, dialect: str, address: str, *, tasks: int = 1, **options: Any) -> None:
    """Add a job to a running server for each row; options as in docs/spark.md."""
    from journeyman.spark.data_sources import send_jobs

    send_jobs(frame, dialect, address, tasks=tasks, **options)
