"""Silver -> gold: counts and percentiles by hour and day, computed again only for touched days.

    rows that changed, as they were and as they are --> the days on which any of them was
    added, ready, started or ended --> all rows with something on these days --> gold of these days

Of depth_hourly everything from the first touched day on is added up again, from the changes of each
hour, which are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.columns import ATTEMPTS, grouped_by, moment
from journeyman.spark.history.summaries import STATES, bucket_of, changes, end_or_plan, throughput
from journeyman.spark.lake.layout import (
    BETWEEN,
    COUNTS,
    DAY_NS,
    HOUR_NS,
    PERCENTILES,
    day_of,
    seconds,
    shaped,
)
from journeyman.spark.lake.silver import FAILURES, as_history, host_of, items_as_history
from journeyman.spark.lake.storage import Lake, StagedFiles, partition_values
from journeyman.units import NS_PER_S

_ACCURACY = 10_000
_REASON_CHARACTERS = 200
_MOMENTS = ("created_ns", "ready_ns", "started_ns", "ended_ns")
LATE_S = 1.0


def touched_days(frames: Sequence[DataFrame]) -> list[str]:
    """The days on which something happened to these rows of history."""
    days = [
        frame.select(F.explode(F.array_distinct(F.array(*(day_of(F.col(c)) for c in _MOMENTS)))))
        for frame in frames
    ]
    found = reduce(DataFrame.union, days).distinct().collect()
    return sorted(str(row[0]) for row in found if row[0] is not None)


def gold_rows(attempts: DataFrame, items: DataFrame, days: Sequence[str]) -> DataFrame:
    """Rows of history that matter on these days; ``_log`` says host and dialect."""
    whose = F.concat_ws(BETWEEN, "host", "dialect")
    rows = as_history(attempts, whose)
    put = items_as_history(items, F.concat_ws(BETWEEN, "host", F.lit("kestrel")))
    columns = [*ATTEMPTS.names, "host"]
    rows = rows.select(*columns).unionByName(put.select(*columns))
    # The range is what Parquet can skip by; the list is exact.
    first_ns, last_ns = _ns(days[0]), _ns(days[-1]) + DAY_NS
    near = reduce(Column.__or__, [F.col(c).between(first_ns, last_ns - 1) for c in _MOMENTS])
    exact = reduce(Column.__or__, [_on(day_of(F.col(c)), days) for c in _MOMENTS])
    return rows.where(near).where(exact)


def gold_tasks(
    spark: SparkSession, lake: Lake, rows: DataFrame, runs: DataFrame, days: Sequence[str]
) -> list[Callable[[], StagedFiles]]:
    """What stages the gold of these days, table by table; ``rows`` are those of ``gold_rows``."""
    hourly = _named(throughput(rows, HOUR_NS), "hour")
    by_day = hourly.groupBy("dialect", "queue", "host", "date")
    depth_changes = _named(changes(_jobs(rows), HOUR_NS), "hour").where(_on("date", days))
    tables = {
        "gold/throughput_hourly": hourly,
        "gold/throughput_daily": by_day.agg(*(F.sum(name).alias(name) for name in COUNTS)),
        "gold/latency_hourly": _latency(rows, HOUR_NS),
        "gold/latency_daily": _latency(rows, DAY_NS),
        "gold/failures_daily": _failures(rows, runs),
        "gold/lateness_daily": _lateness(runs),
        "gold/depth_changes": depth_changes,
    }
    tasks = [partial(_stage_days, lake, name, table, days) for name, table in tables.items()]
    return [*tasks, partial(_stage_depth, spark, lake, depth_changes, days)]


def stage_lag(spark: SparkSession, lake: Lake) -> StagedFiles:
    """Readers' lag on the last day that an ingest noted where they stood, and the one before."""
    days = sorted({partition_values(name)["date"] for name in lake.files("silver/readers")})[-2:]
    seen = lake.read(spark, "silver/readers").where(_on("date", days))
    lag = seen.groupBy(
        "host", "log", "queue", "reader", "date", F.date_trunc("hour", "observed_at").alias("hour")
    ).agg(F.max("items_behind").alias("items_behind"), F.max("bytes_behind").alias("bytes_behind"))
    return _stage_days(lake, "gold/reader_lag_hourly", lag, days)


def _stage_days(lake: Lake, table: str, rows: DataFrame, days: Sequence[str]) -> StagedFiles:
    """Few rows, so few files: one for each day and host."""
    wanted = shaped(rows.where(_on("date", days)), table).coalesce(1)
    replaced = [name for name in lake.files(table) if partition_values(name)["date"] in set(days)]
    return lake.stage(wanted, table), replaced


def _named(table: DataFrame, time: str) -> DataFrame:
    """host, dialect, queue, the hour and the day in the place of _log, group and bucket_ns."""
    return table.withColumns(
        {
            "host": host_of(F.col("_log")),
            "dialect": F.substring_index("_log", BETWEEN, -1),
            "queue": F.col("group"),
            time: moment(F.col("bucket_ns")),
            "date": day_of(F.col("bucket_ns")),
        }
    ).drop("_log", "group", "time")


def _latency(rows: DataFrame, bucket_ns: int) -> DataFrame:
    started = rows.where(F.col("started_ns").isNotNull()).select(
        "_log",
        grouped_by("queue"),
        bucket_of(F.col("started_ns"), bucket_ns).alias("bucket_ns"),
        "wait_ns",
        "run_ns",
        "outcome",
    )
    measured = started.groupBy("_log", "group", "bucket_ns").agg(
        F.count("*").alias("started"),
        F.count_if(F.col("outcome").isin(*FAILURES)).alias("failed"),
        *_ranked("wait", "wait_ns"),
        *_ranked("run", "run_ns"),
    )
    return _named(measured.withColumns({**_in_seconds("wait"), **_in_seconds("run")}), "hour")


def _ranked(what: str, column: str) -> list[Column]:
    ranks = F.array(*map(F.lit, PERCENTILES.values()))
    ranked = F.percentile_approx(column, ranks, _ACCURACY)
    return [ranked.alias(f"{what}_ranked"), F.max(column).alias(f"{what}_max")]


def _in_seconds(what: str) -> dict[str, Column]:
    ranked = {
        f"{what}_{rank}_s": seconds(F.col(f"{what}_ranked")[at])
        for at, rank in enumerate(PERCENTILES)
    }
    return {**ranked, f"{what}_max_s": seconds(F.col(f"{what}_max"))}


def _failures(rows: DataFrame, runs: DataFrame) -> DataFrame:
    """A schedule's runs say why they failed; of the others the outcome is all that is known."""
    is_run = (F.col("dialect") == "ztick") & F.col("ended_ns").isNotNull()
    ended = rows.where(F.col("outcome").isin(*FAILURES) & ~is_run).select(
        "host",
        "dialect",
        grouped_by("queue").alias("queue"),
        "outcome",
        F.col("outcome").alias("reason"),
        day_of(end_or_plan()).alias("date"),
    )
    said = F.substring(F.coalesce("detail", "outcome"), 1, _REASON_CHARACTERS)
    ran = runs.where(F.col("outcome").isin(*FAILURES)).select(
        "host",
        F.lit("ztick").alias("dialect"),
        F.coalesce("rule", F.lit("")).alias("queue"),
        "outcome",
        said.alias("reason"),
        day_of(F.col("ended_ns")).alias("date"),
    )
    keys = ("host", "dialect", "queue", "outcome", "reason", "date")
    return ended.unionByName(ran).groupBy(*keys).agg(F.count("*").alias("failures"))


def _lateness(runs: DataFrame) -> DataFrame:
    started = runs.where(F.col("rule").isNotNull()).withColumn(
        "late_ns", F.greatest(F.try_subtract("started_ns", "planned_ns"), F.lit(0).cast("long"))
    )
    measured = started.groupBy("host", "rule", "date").agg(
        F.count("*").alias("runs"),
        F.count_if(F.col("late_ns") > LATE_S * NS_PER_S).alias("late"),
        *_ranked("lateness", "late_ns"),
    )
    return measured.withColumns(_in_seconds("lateness"))


def _jobs(rows: DataFrame) -> DataFrame:
    """Items have no recorded end, so they have no depth; see reader_lag_hourly."""
    return rows.where(F.col("dialect") != "kestrel")


def _stage_depth(
    spark: SparkSession, lake: Lake, changed: DataFrame, days: Sequence[str]
) -> StagedFiles:
    """Depth from the first touched day on: the changes of all hours, added up."""
    before = lake.read(spark, "gold/depth_changes").where(~_on("date", days))
    every = before.unionByName(shaped(changed, "gold/depth_changes"))
    so_far = (
        Window.partitionBy("host", "dialect", "queue")
        .orderBy("hour")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    depth = every.withColumns({state: F.sum(state).over(so_far) for state in STATES})
    first = days[0]
    table = "gold/depth_hourly"
    wanted = shaped(depth.where(F.col("date") >= F.lit(first).cast("date")), table).coalesce(1)
    replaced = [name for name in lake.files(table) if partition_values(name)["date"] >= first]
    return lake.stage(wanted, table), replaced


def _on(day: Column | str, days: Sequence[str]) -> Column:
    column = F.col(day) if isinstance(day, str) else day
    return F.coalesce(column.isin(*(date.fromisoformat(each) for each in days)), F.lit(False))


def _ns(day: str) -> int:
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY_NS
