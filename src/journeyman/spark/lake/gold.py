"""Silver -> gold: counts and percentiles by hour and day, computed again only for touched days.

    rows that changed, as they were and as they are --> the days on which any of them was
    added, ready, started or ended --> all rows with something on these days --> gold of these days

Of depth_hourly everything from the first touched day on is added up again, from the changes of each
hour. Rows of gold are hours and queues: few enough for the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.columns import ATTEMPTS, grouped_by, moment
from journeyman.spark.history.summaries import STATES, bucket_of, changes, end_or_plan, throughput
from journeyman.spark.lake.layout import (
    BETWEEN,
    COUNTS,
    DAY_NS,
    HOUR_NS,
    PERCENTILES,
    TABLES,
    day_of,
    seconds,
    shaped,
)
from journeyman.spark.lake.silver import FAILURES, MOMENTS, as_history, host_of, items_as_history
from journeyman.spark.lake.storage import Lake, StagedFiles, days_of, partition_values
from journeyman.spark.source.options import arrow_schema
from journeyman.units import NS_PER_S

_ACCURACY = 10_000
_REASON_CHARACTERS = 200
LATE_S = 1.0
_DAYS_AT_ONCE = 400
_LAG = "gold/reader_lag_hourly"
_COMPUTED = (
    *("gold/throughput_hourly", "gold/throughput_daily", "gold/latency_hourly"),
    *("gold/latency_daily", "gold/failures_daily", "gold/lateness_daily", "gold/depth_changes"),
)


def gold_rows(attempts: DataFrame, items: DataFrame, days: Sequence[str]) -> DataFrame:
    """Rows of history that matter on these days; ``_log`` says host and dialect."""
    whose = F.concat_ws(BETWEEN, "host", "dialect")
    rows = as_history(attempts, whose)
    put = items_as_history(items, F.concat_ws(BETWEEN, "host", F.lit("kestrel")))
    columns = [*ATTEMPTS.names, "host"]
    rows = rows.select(*columns).unionByName(put.select(*columns))
    # The range is what Parquet can skip by; the list is exact.
    first_ns, last_ns = _ns(days[0]), _ns(days[-1]) + DAY_NS - 1
    near = reduce(Column.__or__, [F.col(c).between(first_ns, last_ns) for c in MOMENTS])
    exact = reduce(Column.__or__, [_on(day_of(F.col(c)), days) for c in MOMENTS])
    return rows.where(near).where(exact)


def stage_gold(
    lake: Lake, rows: DataFrame, runs: DataFrame, days: Sequence[str]
) -> list[StagedFiles]:
    """The gold of these days; ``rows`` are those of ``gold_rows``.

    One query computes all tables: Spark takes longer to plan several than to compute them. What is
    left then are hours and queues, which are few, so the driver writes them.
    """
    made: dict[str, list[pa.Table]] = {table: [] for table in _COMPUTED}
    for begin in range(0, len(days), _DAYS_AT_ONCE):
        found = _union(rows, runs, days[begin : begin + _DAYS_AT_ONCE]).toArrow()
        for table, parts in made.items():
            mine = found.filter(pc.field("_table") == table)
            schema = arrow_schema(TABLES[table].schema)
            parts.append(mine.select(schema.names).cast(schema))
    staged = [_stage_days(lake, table, pa.concat_tables(made[table]), days) for table in _COMPUTED]
    return [*staged, _stage_depth(lake, pa.concat_tables(made["gold/depth_changes"]), days)]


def _union(rows: DataFrame, runs: DataFrame, days: Sequence[str]) -> DataFrame:
    """All rows of all tables on these days, with the columns of all."""
    hourly = _named(throughput(rows, HOUR_NS), "hour")
    by_day = hourly.groupBy("dialect", "queue", "host", "date")
    tables = (
        hourly,
        by_day.agg(*(F.sum(name).alias(name) for name in COUNTS)),
        _latency(rows, HOUR_NS),
        _latency(rows, DAY_NS),
        _failures(rows, runs),
        _lateness(runs),
        _named(changes(_jobs(rows), HOUR_NS), "hour"),
    )
    frames = [
        shaped(frame.where(_on("date", days)), name).withColumn("_table", F.lit(name))
        for name, frame in zip(_COMPUTED, tables, strict=True)
    ]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


def stage_lag(lake: Lake) -> StagedFiles:
    """Readers' lag on the last day that an ingest noted where they stood, and the one before."""
    files = lake.files("silver/readers")
    days = sorted({partition_values(name)["date"] for name in files})[-2:]
    seen = lake.read_arrow(
        "silver/readers", [name for name in files if partition_values(name)["date"] in days]
    )
    hours = pc.floor_temporal(seen["observed_at"], unit="hour")
    months = pc.utf8_slice_codeunits(seen["date"].cast(pa.string()), 0, 7)
    named = seen.append_column("hour", hours).append_column("month", months)
    schema = arrow_schema(TABLES[_LAG].schema)
    most = ("items_behind", "bytes_behind")
    groups = named.group_by([name for name in schema.names if name not in most])
    lag = groups.aggregate([(name, "max") for name in most])
    lag = lag.rename_columns([name.removesuffix("_max") for name in lag.column_names])
    return _stage_days(lake, _LAG, lag.select(schema.names).cast(schema), days)


def _stage_days(lake: Lake, table: str, rows: pa.Table, days: Sequence[str]) -> StagedFiles:
    """These rows in the place of those of the same days; a file for each month and host."""
    months = {day[:7] for day in days}
    replaced = [name for name in lake.files(table) if partition_values(name)["month"] in months]
    others = _without(lake.read_arrow(table, replaced), days)
    return lake.stage_arrow(pa.concat_tables([rows, others]), table), replaced


def _without(rows: pa.Table, days: Sequence[str]) -> pa.Table:
    listed = pa.array([date.fromisoformat(day) for day in days], pa.date32())
    return rows.filter(pc.invert(pc.is_in(rows["date"], listed)))


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


def _stage_depth(lake: Lake, changed: pa.Table, days: Sequence[str]) -> StagedFiles:
    """Depth from the first touched day on: the changes of all hours, added up."""
    known = lake.read_arrow("gold/depth_changes", lake.files("gold/depth_changes"))
    keys = ["host", "dialect", "queue"]
    every = pa.concat_tables([_without(known, days), changed])
    every = every.sort_by([(name, "ascending") for name in (*keys, "hour")])
    if every.num_rows:
        names = np.array([every[name].to_pylist() for name in keys])
        begins = np.flatnonzero(np.any(names[:, 1:] != names[:, :-1], axis=0)) + 1
        for state in STATES:
            sums = [np.cumsum(part) for part in np.split(every[state].to_numpy(), begins)]
            at = every.column_names.index(state)
            every = every.set_column(at, state, pa.array(np.concatenate(sums)))
    table, first = "gold/depth_hourly", days[0]
    files = [name for name in lake.files(table) if days_of(name)[1] >= first]
    old = lake.read_arrow(table, files)
    begin = pa.scalar(date.fromisoformat(first))
    new = every.filter(pc.greater_equal(every["date"], begin)).cast(old.schema)
    wanted = pa.concat_tables([new, old.filter(pc.less(old["date"], begin))])
    return lake.stage_arrow(wanted, table), files


def _on(day: Column | str, days: Sequence[str]) -> Column:
    column = F.col(day) if isinstance(day, str) else day
    return F.coalesce(column.isin(*(date.fromisoformat(each) for each in days)), F.lit(False))


def _ns(day: str) -> int:
    """When a day begins; of the outermost days of what a long holds, within that."""
    begin_ns = (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY_NS
    return max(-(2**63), min(begin_ns, 2**63 - DAY_NS))
