"""Logs -> the few numbers a report is made of. All that grows with a log is added up by Spark.

    rows of attempts, kept for the while  --by outcome-->  totals, and how long all of it took
                                          --by bucket-->   at most MOST_POINTS points a chart
                                          --by group-->    the TOP groups

What comes to the driver is some hundred numbers, whatever the size of the logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history import kestrel_attempts
from journeyman.spark.history.buckets import bucket_for, bucket_of
from journeyman.spark.history.columns import grouped_by
from journeyman.spark.history.depth import STATES, changes
from journeyman.spark.history.latency import PERCENTILES, latency
from journeyman.spark.history.logs import attempts_of, journal_of, records_of
from journeyman.spark.history.throughput import COUNTS, throughput
from journeyman.spark.schemas import KESTREL, WORKQ, ZTICK

__all__ = ["MOST_POINTS", "TOP", "Group", "Lag", "Measured", "measure"]

MOST_POINTS = 180
TOP = 12

_KEPT = (
    *("_log", "dialect", "key", "queue", "rule", "life", "attempt", "created_ns", "ready_ns"),
    *("started_ns", "ended_ns", "wait_ns", "run_ns", "outcome"),
)
_FAILURES = ("failed", "timed-out", "cut-off")
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """A queue, a rule, or what begins alike."""

    name: str
    jobs: int
    started: int
    failed: int
    wait_p50_ns: int | None
    wait_p99_ns: int | None
    run_p50_ns: int | None
    run_p99_ns: int | None


@dataclass(frozen=True, slots=True)
class Lag:
    queue: str
    reader: str
    items: int
    bytes_: int
    oldest_ns: int | None


@dataclass(slots=True)
class Measured:
    """The numbers of one dialect. Series are by bucket, in the order of ``times_ns``."""

    dialect: str
    outcomes: dict[str, int]
    times_ns: list[int] = field(default_factory=list)
    bucket_ns: int = 1
    counts: dict[str, list[int]] = field(default_factory=dict)
    depth: dict[str, list[int]] = field(default_factory=dict)
    latency: dict[str, list[int | None]] = field(default_factory=dict)
    growth: list[int] = field(default_factory=list)  # bytes of records in each bucket
    due_times_ns: list[int] = field(default_factory=list)
    due_bucket_ns: int = 1
    due: list[int] = field(default_factory=list)
    overall: dict[str, int | None] = field(default_factory=dict)  # percentiles of all
    grouping: str = "queue"
    groups: list[Group] = field(default_factory=list)
    lag: list[Lag] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.outcomes.values())

    @property
    def last_ns(self) -> int | None:
        return self.times_ns[-1] + self.bucket_ns if self.times_ns else None


def measure(
    spark: SparkSession, dialect: str, paths: Sequence[str], run_directories: Sequence[str] = ()
) -> Measured:
    """All numbers of the logs of one dialect."""
    journal = journal_of(spark, paths) if dialect == KESTREL else None
    if journal is not None:
        rows = kestrel_attempts.attempts(*journal)
    else:
        rows = attempts_of(spark, {dialect: paths}, run_directories=run_directories)
    # One place for all logs: what is shown is the sum of them.
    rows = rows.select(*_KEPT).withColumn("_log", F.lit("")).persist()
    try:
        measured = _overview(rows, dialect)
        if measured.times_ns:
            _over_time(rows, measured)
            measured.growth = _growth(spark, dialect, paths, measured)
        measured.groups = _groups(rows, measured.grouping)
        if journal is not None:
            measured.lag = _lag(*journal)
    finally:
        rows.unpersist()
    return measured


def _overview(rows: DataFrame, dialect: str) -> Measured:
    first = F.least("created_ns", "started_ns", "ended_ns")
    last = F.greatest("created_ns", "started_ns", "ended_ns")
    found = (
        rows.groupBy("outcome")
        .agg(
            F.count("*").alias("rows"),
            F.count("rule").alias("rules"),
            F.min(first).alias("first"),
            F.max(last).alias("last"),
            F.min("ready_ns").alias("first_due"),
            F.max("ready_ns").alias("last_due"),
        )
        .collect()
    )
    measured = Measured(dialect, {row.outcome: row.rows for row in found})
    if dialect == ZTICK:
        measured.grouping = "rule" if any(row.rules for row in found) else "prefix"
        planned = [row for row in found if row.outcome not in ("replanned", "removed")]
        measured.due_times_ns, measured.due_bucket_ns = _axis(planned, "first_due", "last_due")
        if planned:
            measured.due = _due(rows, measured)
    measured.times_ns, measured.bucket_ns = _axis(found, "first", "last")
    return measured


def _axis(rows: Sequence[Any], first: str, last: str) -> tuple[list[int], int]:
    """Evenly spaced buckets from the first moment to the last."""
    begins = [row[first] for row in rows if row[first] is not None]
    ends = [row[last] for row in rows if row[last] is not None]
    if not begins or not ends:
        return [], 1
    bucket_ns = bucket_for(max(ends) - min(begins), MOST_POINTS)
    begin = min(begins) // bucket_ns * bucket_ns
    return list(range(begin, max(ends) + 1, bucket_ns)), bucket_ns


def _over_time(rows: DataFrame, measured: Measured) -> None:
    bucket_ns, until_ns = measured.bucket_ns, measured.last_ns
    times = measured.times_ns
    counted = throughput(rows, bucket_ns, "log", until_ns)
    changed = changes(rows, bucket_ns, "log", until_ns)
    both = counted.unionByName(changed, allowMissingColumns=True).collect()
    for name in COUNTS:
        measured.counts[name] = _series(both, name, times)
    for state in STATES:
        measured.depth[state] = list(accumulate(_series(both, state, times)))
    timed = {row.bucket_ns: row for row in latency(rows, "log", bucket_ns, totals=True).collect()}
    for name in (f"{what}_{rank}_ns" for what in ("wait", "run") for rank in PERCENTILES):
        measured.latency[name] = [timed[at][name] if at in timed else None for at in times]
    measured.overall = timed[None].asDict() if None in timed else {}


def _series(rows: Sequence[Any], name: str, times_ns: Sequence[int]) -> list[int]:
    """The values of one column in the order of the buckets, 0 where there is none."""
    values = {row.bucket_ns: row[name] for row in rows if row[name] is not None}
    return [values.get(at, 0) for at in times_ns]


def _due(rows: DataFrame, measured: Measured) -> list[int]:
    """Plans of a schedule by the time they are planned for, past and to come."""
    plans = rows.where(~F.col("outcome").isin("replanned", "removed") & (F.col("attempt") == 1))
    bucket = bucket_of(F.col("ready_ns"), measured.due_bucket_ns)
    counted = {row.at: row["count"] for row in plans.groupBy(bucket.alias("at")).count().collect()}
    return [counted.get(at, 0) for at in measured.due_times_ns]


def _growth(
    spark: SparkSession, dialect: str, paths: Sequence[str], measured: Measured
) -> list[int]:
    """Bytes of the records written in each bucket; a schedule's log has no times."""
    written: Mapping[str, tuple[str, Column]] = {
        WORKQ: ("logged_ns", F.col("logged_ns")),
        KESTREL: ("add_time_ms", F.try_multiply(F.col("add_time_ms"), F.lit(_NS_PER_MS))),
    }
    if dialect not in written:
        return []
    name, written_ns = written[dialect]
    records = records_of(spark, dialect, paths, [name]).where(F.col(name).isNotNull())
    bucket = bucket_of(written_ns, measured.bucket_ns).alias("at")
    summed = records.groupBy(bucket).agg(F.sum(F.col("_length").cast("long")).alias("bytes"))
    inside = F.col("at").between(measured.times_ns[0], measured.times_ns[-1])
    by_bucket = {row.at: row.bytes for row in summed.where(inside).collect()}
    return [by_bucket.get(at, 0) for at in measured.times_ns]


def _groups(rows: DataFrame, by: str) -> list[Group]:
    ranks = F.array(F.lit(0.5), F.lit(0.99))
    found = (
        rows.select(grouped_by(by), "attempt", "started_ns", "wait_ns", "run_ns", "outcome")
        .groupBy("group")
        .agg(
            F.count_if(F.col("attempt") == 1).alias("jobs"),
            F.count("started_ns").alias("started"),
            F.count_if(F.col("outcome").isin(*_FAILURES)).alias("failed"),
            F.percentile_approx("wait_ns", ranks).alias("waits"),
            F.percentile_approx("run_ns", ranks).alias("runs"),
        )
        .orderBy(F.desc("jobs"), "group")
        .limit(TOP)
        .collect()
    )
    return [
        Group(
            row.group,
            row.jobs,
            row.started,
            row.failed,
            *(row.waits or (None, None)),
            *(row.runs or (None, None)),
        )
        for row in found
    ]


def _lag(items: DataFrame, readers: DataFrame) -> list[Lag]:
    found = (
        kestrel_attempts.lag(items, readers)
        .orderBy(F.desc("items_behind"), "queue", "reader")
        .limit(TOP)
        .collect()
    )
    return [
        Lag(row.queue, row.reader, row.items_behind, row.bytes_behind, row.oldest_ns)
        for row in found
    ]
