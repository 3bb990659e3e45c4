"""Tables of a lake as rows of history: what reports, audits and ``history --lake`` read."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark import views
from journeyman.spark.history import workq_attempts
from journeyman.spark.history.columns import RAW_ATTEMPTS, attempts_at
from journeyman.spark.history.logs import COLUMNS
from journeyman.spark.lakes.delta import DataFile
from journeyman.spark.lakes.layout import TABLES
from journeyman.spark.lakes.storage import Lake


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
    attempts, items = (
        as_history(lake.read(spark, table, files_between(lake, table, since_ns, until_ns)))
        for table in ("silver/attempts", "silver/items")
    )
    nothing = F.lit(None).cast("array<bigint>")
    readers = lag_in(spark, lake).where("head IS NOT NULL").withColumn("done", nothing)
    tables = {"items": items, "readers": F.broadcast(readers)}
    put = views.run_in_spark(spark, views.statement("item_attempts"), **tables)
    return attempts_at(attempts.select(*RAW_ATTEMPTS.names).unionByName(put), as_of_ns)


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


def as_history(rows: DataFrame) -> DataFrame:
    """Rows of silver as the views of ``spark.views`` take them: ``_log`` says host and path."""
    return rows.withColumn("_log", F.concat(F.col("host"), F.lit(":"), F.col("log")))


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


def records_in(spark: SparkSession, lake: Lake, dialect: str) -> DataFrame:
    """Records of bronze, narrowed as those of logs are; ``_log`` says host and path."""
    table, wanted = f"bronze/{dialect}", {"host", *COLUMNS[dialect], *workq_attempts.NAMES}
    columns = [name for name in TABLES[table].schema.names if name in wanted]
    log = F.concat(F.col("host"), F.lit(":"), F.col("_log"))
    return lake.read(spark, table, columns=columns).withColumn("_log", log)
