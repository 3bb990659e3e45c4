"""Logs -> the few numbers a report is made of. Spark adds up all that grows with a log.

    rows of attempts, kept meanwhile  --by outcome-->  totals, and percentiles of all
                                      --by bucket-->   at most MOST_POINTS points for each chart
                                      --by group-->    the TOP groups

A few hundred numbers reach the driver, whatever the size of the logs. ``open_logs`` looks for the
last moment that the logs of one dialect know of; only when that of all dialects is known can
``measure`` say what has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history import kestrel_attempts
from journeyman.spark.history.columns import EVERY_ROW, RowFilter, expired_by, grouped_by
from journeyman.spark.history.logs import attempts_of, journal_of, records_of
from journeyman.spark.history.summaries import (
    COUNTS,
    PERCENTILES,
    STATES,
    bucket_for,
    bucket_of,
    changes,
    end_or_plan,
    latency,
    throughput,
)
from journeyman.spark.source.options import KESTREL, WORKQ, ZTICK
from journeyman.units import NS_PER_MS

MOST_POINTS = 180
TOP = 12
_KEPT = (
    *("_log", "dialect", "key", "queue", "rule", "life", "attempt", "first", "created_ns"),
    *("ready_ns", "started_ns", "ended_ns", "wait_ns", "run_ns", "outcome", "expires_ns"),
)
_SUCCESSES = ("completed", "executed")
_FAILURES = ("failed", "timed-out", "cut-off")
DROPPED = ("replanned", "removed")


@dataclass(frozen=True, slots=True)
class ReportGroup:
    """A queue, a rule, or jobs whose identifiers begin alike."""

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


@dataclass(frozen=True, slots=True)
class Stored:
    """Fan-out queues: how many items were ever put, and how many are still in a segment."""

    queue: str
    put: int
    stored: int
    waiting: int


@dataclass(slots=True)
class Measured:
    """The numbers of one dialect. Series are by bucket, in the order of ``times_ns``."""

    dialect: str
    outcomes: dict[str, int]
    jobs: int = 0  # jobs added; plans; items
    started: int = 0  # leases; runs with recorded times
    unrecorded: int = 0  # runs that ended at a time nobody recorded
    first_ns: int | None = None
    last_ns: int | None = None
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
    groups: list[ReportGroup] = field(default_factory=list)
    queues: list[Stored] = field(default_factory=list)  # the TOP ones
    items_put: int = 0
    lag: list[Lag] = field(default_factory=list)  # the TOP ones
    items_behind: int = 0  # of all readers

    @property
    def rows(self) -> int:
        return sum(self.outcomes.values())

    @property
    def succeeded(self) -> int:
        return sum(self.outcomes.get(name, 0) for name in _SUCCESSES)

    @property
    def failed(self) -> int:
        return sum(self.outcomes.get(name, 0) for name in _FAILURES)

    @property
    def failed_share(self) -> float:
        """Of what ended in success or failure, from 0 to 1."""
        ended = self.failed + self.succeeded
        return self.failed / ended if ended else 0.0

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.items_put


@dataclass(frozen=True, slots=True)
class Opened:
    """Rows of attempts of one dialect, kept until ``close``."""

    dialect: str
    rows: DataFrame
    written: DataFrame | None  # at_ns, bytes: of the records written in each millisecond
    journal: tuple[DataFrame, DataFrame] | None  # items and readers of fan-out queues
    last_ns: int | None  # the last moment the logs know of

    def close(self) -> None:
        self.rows.unpersist()
        if self.written is not None:
            self.written.unpersist()


def open_logs(
    spark: SparkSession,
    dialect: str,
    paths: Sequence[str],
    run_directories: Sequence[str] = (),
    chosen: RowFilter = EVERY_ROW,
) -> Opened:
    """Read the logs of one dialect, and find their last moment."""
    journal = journal_of(spark, paths) if dialect == KESTREL else None
    if journal is not None:
        rows = kestrel_attempts.attempts(*journal)
    else:
        rows = attempts_of(spark, {dialect: paths}, run_directories=run_directories)
    written = None if chosen else _written(spark, dialect, paths)
    return _opened(dialect, chosen.rows(rows), written, journal)


def open_lake_rows(history: DataFrame, dialect: str) -> Opened:
    """Rows of one dialect among those of a lake, as ``views.history_of`` gives them."""
    return _opened(dialect, history.where(F.col("dialect") == dialect), None, None)


def _opened(
    dialect: str,
    attempts: DataFrame,
    written: DataFrame | None,
    journal: tuple[DataFrame, DataFrame] | None,
) -> Opened:
    # All logs as one: the page shows their sum.
    rows = attempts.select(*_KEPT).withColumn("_log", F.lit("")).persist()
    if written is not None:
        written = written.persist()
    return Opened(dialect, rows, written, journal, _span(rows, written)[1])


def measure(opened: Opened, as_of_ns: int) -> Measured:
    """All numbers of the logs of one dialect. Open jobs may have expired by ``as_of_ns``."""
    rows = expired_by(opened.rows, as_of_ns)
    measured = _overview(rows, opened.dialect)
    measured.first_ns, measured.last_ns = _span(rows, opened.written)
    measured.times_ns, measured.bucket_ns = axis(measured.first_ns, measured.last_ns)
    if measured.times_ns:
        _over_time(rows, measured)
        measured.growth = _growth(opened.written, measured)
    if opened.journal is not None:
        _readers(rows, *opened.journal, measured)
    elif opened.dialect != KESTREL:
        measured.groups = _groups(rows, measured.grouping)
    return measured


def _span(rows: DataFrame, written: DataFrame | None) -> tuple[int | None, int | None]:
    """The first and the last moment of which there is a record."""
    ended_ns = end_or_plan()
    first = F.least("created_ns", "started_ns", ended_ns)
    last = F.greatest("created_ns", "started_ns", ended_ns)
    found = [rows.agg(F.min(first), F.max(last)).collect()[0]]
    if written is not None:
        found.append(written.agg(F.min("first_ns"), F.max("last_ns")).collect()[0])
    firsts = [row[0] for row in found if row[0] is not None]
    lasts = [row[1] for row in found if row[1] is not None]
    return min(firsts, default=None), max(lasts, default=None)


def _overview(rows: DataFrame, dialect: str) -> Measured:
    is_plan = F.col("first") & ~F.col("outcome").isin(*DROPPED)
    is_job = is_plan if dialect == ZTICK else F.col("first") & F.col("created_ns").isNotNull()
    unrecorded = F.col("ended_ns").isNull() & end_or_plan().isNotNull()
    found = (
        rows.groupBy("outcome")
        .agg(
            F.count("*").alias("rows"),
            F.count_if(is_job).alias("jobs"),
            F.count("started_ns").alias("started"),
            F.count_if(unrecorded).alias("unrecorded"),
            F.count("rule").alias("rules"),
            F.min(F.when(is_plan, F.col("ready_ns"))).alias("first_due"),
            F.max(F.when(is_plan, F.col("ready_ns"))).alias("last_due"),
        )
        .collect()
    )
    measured = overview_of(found, dialect)
    if measured.due_times_ns:
        measured.due = _due(rows.where(is_plan), measured)
    return measured


def overview_of(found: Sequence[Any], dialect: str) -> Measured:
    """From a row for each outcome."""
    measured = Measured(
        dialect,
        {row.outcome: row.rows for row in found},
        sum(row.jobs for row in found),
        sum(row.started for row in found),
        sum(row.unrecorded for row in found),
    )
    if dialect == ZTICK:
        measured.grouping = "rule" if any(row.rules for row in found) else "prefix"
        first_due = min((row.first_due for row in found if row.first_due is not None), default=None)
        last_due = max((row.last_due for row in found if row.last_due is not None), default=None)
        measured.due_times_ns, measured.due_bucket_ns = axis(first_due, last_due)
    return measured


def axis(first_ns: int | None, last_ns: int | None) -> tuple[list[int], int]:
    """Evenly spaced buckets from the first moment to the last."""
    if first_ns is None or last_ns is None:
        return [], 1
    bucket_ns = bucket_for(last_ns - first_ns, MOST_POINTS)
    return list(range(first_ns // bucket_ns * bucket_ns, last_ns + 1, bucket_ns)), bucket_ns


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
    """The values of one column in the order of the buckets, 0 where there are none."""
    values = {row.bucket_ns: row[name] for row in rows if row[name] is not None}
    return [values.get(at, 0) for at in times_ns]


def _due(plans: DataFrame, measured: Measured) -> list[int]:
    """Plans of a schedule by the time they are planned for, past and future."""
    bucket = bucket_of(F.col("ready_ns"), measured.due_bucket_ns)
    counted = {row.at: row["count"] for row in plans.groupBy(bucket.alias("at")).count().collect()}
    return [counted.get(at, 0) for at in measured.due_times_ns]


def _written(spark: SparkSession, dialect: str, paths: Sequence[str]) -> DataFrame | None:
    """Bytes of the records written in each millisecond; a schedule's log has no times.

    Columns: at_ns, first_ns, last_ns, bytes. Buckets of charts are whole milliseconds.
    """
    written: Mapping[str, tuple[str, Column]] = {
        WORKQ: ("logged_ns", F.col("logged_ns")),
        KESTREL: ("add_time_ms", F.try_multiply(F.col("add_time_ms"), F.lit(NS_PER_MS))),
    }
    if dialect not in written:
        return None
    name, written_ns = written[dialect]
    records = records_of(spark, dialect, paths, [name]).where(F.col(name).isNotNull())
    timed = records.select(written_ns.alias("ns"), F.col("_length").cast("long").alias("length"))
    return timed.groupBy(bucket_of(F.col("ns"), NS_PER_MS).alias("at_ns")).agg(
        F.min("ns").alias("first_ns"), F.max("ns").alias("last_ns"), F.sum("length").alias("bytes")
    )


def _growth(written: DataFrame | None, measured: Measured) -> list[int]:
    """Bytes of the records written in each bucket."""
    if written is None:
        return []
    bucket = bucket_of(F.col("at_ns"), measured.bucket_ns).alias("at")
    summed = written.groupBy(bucket).agg(F.sum("bytes").alias("bytes")).collect()
    by_bucket = {row.at: row.bytes for row in summed}
    return [by_bucket.get(at, 0) for at in measured.times_ns]


def _groups(rows: DataFrame, by: str) -> list[ReportGroup]:
    ranks = F.array(F.lit(0.5), F.lit(0.99))
    found = (
        rows.select(grouped_by(by), "first", "started_ns", "wait_ns", "run_ns", "outcome")
        .groupBy("group")
        .agg(
            F.count_if(F.col("first") & ~F.col("outcome").isin(*DROPPED)).alias("jobs"),
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
        ReportGroup(
            row.group,
            row.jobs,
            row.started,
            row.failed,
            *(row.waits or (None, None)),
            *(row.runs or (None, None)),
        )
        for row in found
    ]


def _readers(rows: DataFrame, items: DataFrame, readers: DataFrame, measured: Measured) -> None:
    """Queues by items ever put, readers by how far they are behind."""
    # Ids are given out one after the other and never again, so the highest is the number of puts.
    put = readers.groupBy("_log", "queue").agg(F.max("tail_id").alias("put"))
    put = put.groupBy("queue").agg(F.sum("put").alias("put"))
    stored = rows.groupBy("queue").agg(
        F.count("*").alias("stored"), F.count_if(F.col("outcome") == "waiting").alias("waiting")
    )
    nothing = F.lit(0).cast("long")
    queues = put.join(stored, "queue", "full_outer").select(
        "queue", *(F.coalesce(name, nothing).alias(name) for name in ("put", "stored", "waiting"))
    )
    busiest = queues.orderBy(F.desc("put"), "queue").limit(TOP).collect()
    measured.queues = [Stored(row.queue, row.put, row.stored, row.waiting) for row in busiest]
    measured.items_put = put.agg(F.sum("put")).collect()[0][0] or 0
    behind = kestrel_attempts.lag(items, readers)
    furthest = behind.orderBy(F.desc("items_behind"), "queue", "reader").limit(TOP).collect()
    measured.lag = [
        Lag(row.queue, row.reader, row.items_behind, row.bytes_behind, row.oldest_ns)
        for row in furthest
    ]
    measured.items_behind = behind.agg(F.sum("items_behind")).collect()[0][0] or 0
