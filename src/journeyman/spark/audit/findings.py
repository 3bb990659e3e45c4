"""What an audit says: one table of findings, whatever they are about, and a summary of it.

    finding               severity   what it means
    duplicate-execution   serious    something ran, or got a result, more than once
    missed-run            serious    its time passed and it did not run
    never-executed        serious    it was triggered, and no end is recorded
    vanished              serious    it was there, and no record says that it ended
    reader-ahead          serious    a reader has finished more than there is: items were lost
    checkpoint-damaged    serious    nobody knows how far a reader has come
    reused-id             serious    different items under one id
    damage                serious    bytes that are no record
    only-here only-there  serious    a comparison: the other side does not have it
    different             serious    a comparison: both have it, not the same
    cut-off-run           warning    a stop ended the run; what it did by then it did
    overlapping-lease     warning    leased again while a worker still had it
    over-limit            warning    leased more often than max-attempts allows
    expired-unrun         warning    its time to live was over before anybody leased it
    orphan                warning    a record about something of which no beginning is known
    reader-behind         warning    items were erased that a reader had not been given
    unknown-record        warning    a record of another version of the format
    dead-bytes            info       bytes of a file that the state no longer needs
    ended-here            info       a comparison: it has ended here, and lives on there

Every row names its log; ``key`` and ``position`` are null where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from journeyman.spark.source.options import struct

SERIOUS, WARNING, INFO = SEVERITIES = ("serious", "warning", "info")
SEVERITY = {
    "duplicate-execution": SERIOUS,
    "missed-run": SERIOUS,
    "never-executed": SERIOUS,
    "vanished": SERIOUS,
    "reader-ahead": SERIOUS,
    "checkpoint-damaged": SERIOUS,
    "reused-id": SERIOUS,
    "damage": SERIOUS,
    "only-here": SERIOUS,
    "only-there": SERIOUS,
    "different": SERIOUS,
    "cut-off-run": WARNING,
    "overlapping-lease": WARNING,
    "over-limit": WARNING,
    "expired-unrun": WARNING,
    "orphan": WARNING,
    "reader-behind": WARNING,
    "unknown-record": WARNING,
    "dead-bytes": INFO,
    "ended-here": INFO,
}

FINDINGS = struct(
    "finding string, severity string, dialect string, log string, key string, position bigint, "
    "detail string"
)


def as_findings(
    frame: DataFrame,
    finding: str | Column,
    dialect: str | Column,
    *,
    detail: Column,
    key: str | Column | None = "key",
    position: str | Column | None = "position",
) -> DataFrame:
    """Each row of ``frame``, which has a column _log, as a finding: a word, or a column of them."""
    return frame.select(
        (F.lit(finding) if isinstance(finding, str) else finding).alias("finding"),
        _severity_of(finding).alias("severity"),
        (F.lit(dialect) if isinstance(dialect, str) else dialect).alias("dialect"),
        F.col("_log").alias("log"),
        _column(key).cast("string").alias("key"),
        _column(position).cast("long").alias("position"),
        detail.alias("detail"),
    )


def _severity_of(finding: str | Column) -> Column:
    if isinstance(finding, str):
        return F.lit(SEVERITY[finding])
    severity = F.lit(None).cast("string")
    for name, level in SEVERITY.items():
        severity = F.when(finding == name, F.lit(level)).otherwise(severity)
    return severity


def _column(given: str | Column | None) -> Column:
    if given is None:
        return F.lit(None)
    return F.col(given) if isinstance(given, str) else given


def together(spark: SparkSession, frames: Sequence[DataFrame], schema: StructType) -> DataFrame:
    """All rows in one table; with no frame at all, an empty one."""
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionByName, frames)


def most_serious(findings: DataFrame, count: int) -> DataFrame:
    """So many of them, the most serious first."""
    return findings.orderBy(_rank(), "finding", "log", "position", "key").limit(count)


def summary(findings: DataFrame) -> DataFrame:
    """How many of each: finding, severity, count, logs; the most serious first."""
    counted = findings.groupBy("finding", "severity").agg(
        F.count("*").alias("count"), F.count_distinct("log").alias("logs")
    )
    return counted.orderBy(_rank(), F.desc("count"), "finding")


def _rank() -> Column:
    rank = F.lit(len(SEVERITIES))
    for place, level in enumerate(SEVERITIES):
        rank = F.when(F.col("severity") == level, F.lit(place)).otherwise(rank)
    return rank


def moment_text(ns: Column) -> Column:
    """Nanoseconds since 1970 as people read them, to the millisecond, in UTC."""
    return F.concat(
        F.date_format(F.timestamp_micros(F.floor(ns / 1000)), "yyyy-MM-dd'T'HH:mm:ss.SSS"),
        F.lit("Z"),
    )
