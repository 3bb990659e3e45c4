"""Tables of a lake as rows of history: what reports, audits and ``history --lake`` read."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.columns import RAW_ATTEMPTS, attempts_at
from journeyman.spark.lakes.delta import DataFile
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.source.options import KESTREL


def history_of(
    spark: SparkSession,
    lake: Lake,
    as_of_ns: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> DataFrame:
    """Rows of history that a lake has, as ``spark.attempts`` gives them for logs.

    Files are left out in which nothing happens between the two moments; others may hold more.
    """
    log = F.concat(F.col("host"), F.lit(":"), F.col("log"))
    attempts, put_items = (
        lake.read(spark, table, files_between(lake, table, since_ns, until_ns))
        for table in ("silver/attempts", "silver/items")
    )
    rows = as_history(attempts, log).select(*RAW_ATTEMPTS.names)
    items = put_items.join(_heads(spark, lake), ["host", "log"], "left")
    put = items_as_history(items, log).withColumn(
        "outcome",
        F.when(F.col("item_id") <= F.col("head"), F.lit("finished")).otherwise(F.lit("waiting")),
    )
    return attempts_at(rows.unionByName(put.select(*RAW_ATTEMPTS.names)), as_of_ns)


def files_between(
    lake: Lake, table: str, since_ns: int | None, until_ns: int | None
) -> list[DataFile]:
    """Files of a table in which a job may be ready, start, end or expire then."""
    least = -(2**63) if since_ns is None else since_ns
    most = 2**63 - 1 if until_ns is None else until_ns - 1
    files = lake.files(table)
    if since_ns is None and until_ns is None:
        return files
    return [file for file in files if file.may_hold(_TIMES, least, most)]


_TIMES = ("ready_ns", "started_ns", "ended_ns", "put_ns", "expires_ns")


def as_history(attempts: DataFrame, log: Column | None = None) -> DataFrame:
    """Rows of the table of attempts as the functions of ``spark.history`` take them."""
    named = F.concat(F.col("host"), F.lit(":"), F.col("log")) if log is None else log
    return attempts.withColumn("_log", named)


def items_as_history(items: DataFrame, log: Column) -> DataFrame:
    """Items as rows of attempts that have been put and nothing else."""
    nothing: Mapping[str, str] = {
        **dict.fromkeys(("task", "worker", "rule", "runner", "error"), "string"),
        **dict.fromkeys(("started_ns", "ended_ns"), "bigint"),
        **dict.fromkeys(("retried", "exhausted"), "boolean"),
        "life": "int",
    }
    return items.withColumns(
        {
            "_log": log,
            "dialect": F.lit(KESTREL),
            "key": F.col("item_id").cast("string"),
            "attempt": F.lit(1),
            "first": F.lit(True),
            "created_ns": F.col("put_ns"),
            "ready_ns": F.col("put_ns"),
            "outcome": F.lit("waiting"),
            **{name: F.lit(None).cast(kind) for name, kind in nothing.items()},
        }
    )


def _heads(spark: SparkSession, lake: Lake) -> DataFrame:
    """The last item that every reader of a queue had finished when the lake last looked."""
    seen = lake.read(spark, "silver/readers")
    last = seen.groupBy("host", "log", "reader").agg(F.max_by("head", "observed_at").alias("head"))
    return last.groupBy("host", "log").agg(F.min("head").alias("head"))


def lag_in(spark: SparkSession, lake: Lake) -> DataFrame:
    """How far each reader was behind when the lake last looked; columns as of ``lag_of``."""
    seen = lake.read(spark, "silver/readers")
    names = ("queue", "head", "tail_id", "items_behind", "bytes_behind", "oldest_at")
    last = seen.groupBy("host", "log", "reader").agg(
        F.max_by(F.struct(*names), "observed_at").alias("last")
    )
    return last.select(
        F.concat(F.col("host"), F.lit(":"), F.col("log")).alias("_log"),
        "last.queue",
        "reader",
        "last.head",
        "last.tail_id",
        "last.items_behind",
        "last.bytes_behind",
        (F.unix_micros("last.oldest_at") * 1000).alias("oldest_ns"),
    )


def records_in(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """Rows of a table of bronze; ``_log`` says host and path."""
    log = F.concat(F.col("host"), F.lit(":"), F.col("_log"))
    return lake.read(spark, table).withColumn("_log", log)
