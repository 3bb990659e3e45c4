"""Bronze -> silver: the folds of history, run again for the keys that have new records.

    fresh files of bronze --> keys touched --> all records of these keys --fold--> their rows
    rows of these keys out, new rows in: only the partitions (date, host) that have any are written

The rows are those of ``journeyman.spark.attempts`` over the whole logs, had nothing ever been
compacted away. One commit puts silver, gold and "these files are no longer fresh" in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history import workq_attempts, ztick_attempts
from journeyman.spark.history.columns import ATTEMPTS, expired_by, moment
from journeyman.spark.lake.layout import (
    BETWEEN,
    BRONZE_DIALECTS,
    TABLES,
    day_of,
    seconds,
    shaped,
)
from journeyman.spark.lake.storage import Lake, StagedFiles, partition_values
from journeyman.spark.source.options import DAMAGE_KIND, KESTREL, WORKQ, ZTICK, arrow_schema
from journeyman.units import NS_PER_MS

FAILURES = ("failed", "timed-out", "cut-off")
KEY = ("host", "log", "dialect", "key")
MOMENTS = ("created_ns", "ready_ns", "started_ns", "ended_ns")
_OCCURRENCE = r"^(.+)@(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:Z|[+-]\d{2}:\d{2}))$"
_NEVER = "1970-01-01"  # the day of what has no time at all


@dataclass(frozen=True)
class SilverChange:
    """New rows of attempts, complete for every key in ``touched``, and the old rows of these."""

    touched: DataFrame  # host, log, dialect, key
    old: DataFrame
    new: DataFrame

    @cached_property
    def extent(self) -> Extent:
        """What of all tables these rows touch, as they were and as they are."""
        columns = ("date", "host", "dialect", "key", *MOMENTS)
        rows = self.old.select(*columns).unionByName(self.new.select(*columns))
        return extent_of(rows)


@dataclass(frozen=True, slots=True)
class Extent:
    """Days and hosts of rows, days on which something happened, and whether timetables fired."""

    places: frozenset[tuple[str, str]]
    days: frozenset[str]
    has_firings: bool


def extent_of(rows: DataFrame) -> Extent:
    days = F.array_distinct(F.array(*(day_of(F.col(name)) for name in MOMENTS)))
    fired = (F.col("dialect") == ZTICK) & F.col("key").contains("@")
    found = rows.select("date", "host", days.alias("days"), fired.alias("fired")).distinct()
    listed = found.collect()
    return Extent(
        frozenset((str(row.date), row.host) for row in listed),
        frozenset(str(day) for row in listed for day in row.days if day is not None),
        any(row.fired for row in listed),
    )


def attempts_changed(spark: SparkSession, lake: Lake) -> SilverChange | None:
    """What the fresh files of bronze change in the table of attempts; None if nothing."""
    fresh = lake.state.fresh
    touched = []
    if files := fresh.get("bronze/workq"):
        records = lake.read(spark, "bronze/workq", files).where(F.col("key").isNotNull())
        touched.append(_keys(records, WORKQ, "key"))
    if files := fresh.get("bronze/ztick"):
        records = lake.read(spark, "bronze/ztick", files).where(F.col("kind").isin("set", "remove"))
        touched.append(_keys(records, ZTICK, "identifier"))
    if files := fresh.get("bronze/runs"):
        runs = lake.read(spark, "bronze/runs", files).where(F.col("kind") == "run")
        touched.append(_keys(runs, ZTICK, "job"))
    if not touched:
        return None
    keys = reduce(DataFrame.union, touched).distinct().persist()
    return change_of(spark, lake, keys, {table.partition("/")[2] for table in fresh})


def change_of(
    spark: SparkSession, lake: Lake, keys: DataFrame, dialects: Iterable[str]
) -> SilverChange:
    """The rows of these keys, folded from bronze as it is now."""
    known = lake.read(spark, "silver/attempts")
    is_first = not lake.files("silver/attempts")
    frames = []
    found = set(dialects)
    if WORKQ in found:
        records = _of_keys(lake.read(spark, "bronze/workq"), keys, WORKQ, "key", is_first)
        frames.append(workq_attempts.attempts(records))
    if found & {ZTICK, "runs"}:
        records = _of_keys(lake.read(spark, "bronze/ztick"), keys, ZTICK, "identifier", is_first)
        runs = _of_keys(lake.read(spark, "bronze/runs"), keys, ZTICK, "job", is_first)
        runs = runs.where(F.col("kind") == "run")
        frames.append(ztick_attempts.attempts(records, runs))
    new = _as_silver(reduce(DataFrame.unionByName, frames)).persist()
    old = known if is_first else known.join(F.broadcast(keys), list(KEY), "left_semi")
    return SilverChange(keys, old, new)


def stage_keyed(lake: Lake, table: str, change: SilverChange, new: DataFrame) -> list[StagedFiles]:
    """The partitions in which rows of touched keys were or are; and the files they replace."""
    files = [name for name in lake.files(table) if _place(name) in change.extent.places]
    if files:
        kept = lake.read(new.sparkSession, table, files).join(
            F.broadcast(change.touched), list(KEY), "left_anti"
        )
        new = new.unionByName(kept)
    return [(lake.stage(shaped(new, table), table), files)]


def _place(file: str) -> tuple[str, str]:
    values = partition_values(file)
    return values["date"], values["host"]


def _keys(records: DataFrame, dialect: str, key: str) -> DataFrame:
    return records.select(
        "host", F.col("_log").alias("log"), F.lit(dialect).alias("dialect"), F.col(key).alias("key")
    ).distinct()


def _of_keys(
    records: DataFrame, keys: DataFrame, dialect: str, key: str, take_all: bool
) -> DataFrame:
    """The records of these keys; ``_log`` says host and path."""
    log = F.concat(F.col("host"), F.lit(BETWEEN), F.col("_log"))
    if not take_all:
        mine = keys.where(F.col("dialect") == dialect).select(
            "host", F.col("log").alias("_log"), F.col("key").alias(key)
        )
        records = records.join(F.broadcast(mine), ["host", "_log", key], "left_semi")
    return records.withColumn("_log", log)


def host_of(log: Column) -> Column:
    return F.substring_index(log, BETWEEN, 1)


def _as_silver(rows: DataFrame) -> DataFrame:
    ready = F.coalesce("ready_ns", "started_ns", "ended_ns", "created_ns")
    named = rows.withColumns(
        {
            "host": host_of(F.col("_log")),
            "log": F.col("_log").substr(F.instr("_log", BETWEEN) + 1, F.length("_log")),
            "wait_s": seconds(F.col("wait_ns")),
            "run_s": seconds(F.col("run_ns")),
            "date": F.coalesce(day_of(ready), F.lit(_NEVER).cast("date")),
            **with_moments("created", "ready", "started", "ended", "expires"),
        }
    )
    return shaped(named, "silver/attempts")


def with_moments(*names: str) -> dict[str, Column]:
    """A timestamp for each column of nanoseconds."""
    return {f"{name}_at": moment(F.col(f"{name}_ns")) for name in names}


def jobs_of(attempts: DataFrame) -> DataFrame:
    """One row per job; ``attempts`` has all rows of each."""
    last = F.struct(F.coalesce("position", F.lit(-1)), F.coalesce("ready_ns", F.lit(0)), "attempt")
    rows = attempts.withColumn("life", F.coalesce("life", F.lit(1))).groupBy(*KEY, "life")
    summed = rows.agg(
        F.max("queue").alias("queue"),
        F.max_by("outcome", last).alias("status"),
        F.count("started_ns").alias("attempts"),
        F.count_if(F.col("outcome").isin(*FAILURES)).alias("failures"),
        F.min("created_ns").alias("created_ns"),
        F.max_by("ready_ns", last).alias("ready_ns"),
        F.max("started_ns").alias("started_ns"),
        F.max_by("ended_ns", last).alias("ended_ns"),
        F.min("date").alias("date"),
    )
    moments = with_moments("created", "ready", "started", "ended")
    return shaped(summed.withColumns(moments), "silver/jobs")


def firings_of(attempts: DataFrame) -> DataFrame:
    """The rows of occurrences of timetables; their identifiers say so (docs/timetables.md)."""
    fired = attempts.where((F.col("dialect") == ZTICK) & F.col("key").rlike(_OCCURRENCE))
    parts = {
        "timetable": F.regexp_extract("key", _OCCURRENCE, 1),
        "occurrence": F.regexp_extract("key", _OCCURRENCE, 2),
        "lateness_s": F.col("wait_s"),
    }
    return shaped(fired.withColumns(parts), "silver/timetable_firings")


APPENDED = ("silver/runs", "silver/items")


def new_rows(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Rows that fresh files of bronze add to tables that only grow."""
    made = (new_runs(spark, lake), new_items(spark, lake))
    return {table: rows for table, rows in zip(APPENDED, made, strict=True) if rows is not None}


def new_runs(spark: SparkSession, lake: Lake) -> DataFrame | None:
    """Rows for the table of runs, from fresh lines."""
    files = lake.state.fresh.get("bronze/runs")
    if not files:
        return None
    lines = lake.read(spark, "bronze/runs", files).where(F.col("kind") == "run")
    ran = lines.withColumns(
        {
            "log": F.col("_log"),
            "key": F.col("job"),
            "rule": F.nullif("rule", F.lit("")),
            "runner": F.nullif("runner", F.lit("")),
            "detail": F.nullif("detail", F.lit("")),
            "output": F.nullif("output", F.lit("")),
            "planned_ns": F.col("execution_ns"),
            "date": day_of(F.col("started_ns")),
        }
    )
    late, took = _length("planned_ns", "started_ns"), _length("started_ns", "ended_ns")
    ran = ran.withColumns(with_moments("planned", "started", "ended"))
    return shaped(
        ran.withColumns({"lateness_s": seconds(late), "run_s": seconds(took)}), "silver/runs"
    )


def new_items(spark: SparkSession, lake: Lake) -> DataFrame | None:
    """Rows for the table of items, from fresh records; a put that was seen before is none."""
    files = lake.state.fresh.get("bronze/kestrel")
    if not files:
        return None
    puts = lake.read(spark, "bronze/kestrel", files).where(F.col("kind") == "PUT")
    items = puts.withColumns(
        {
            "log": F.col("_log"),
            "put_ns": F.try_multiply(F.col("add_time_ms"), F.lit(NS_PER_MS)),
            "expires_ns": F.try_multiply(F.col("expire_time_ms"), F.lit(NS_PER_MS)),
            "position": F.col("_position"),
        }
    )
    day = F.coalesce(day_of(F.col("put_ns")), F.lit(_NEVER).cast("date"))
    items = shaped(
        items.withColumns({**with_moments("put", "expires"), "date": day}), "silver/items"
    )
    same = ["host", "log", "queue", "item_id", "put_ns", "data_size"]
    items = items.dropDuplicates(same)
    if lake.files("silver/items"):
        days = days_in(items.persist())
        known = lake.read(spark, "silver/items").where(F.col("date").isin(*days))
        items = items.join(known.select(*same), same, "left_anti")
    return items


def days_in(rows: DataFrame) -> list[date]:
    return [row.date for row in rows.select("date").distinct().collect()]


def stage_damage(lake: Lake) -> list[StagedFiles]:
    """Rows for the table of damage, from fresh records and lines. They are few: no job of Spark."""
    table = "silver/damage"
    schema = arrow_schema(TABLES[table].schema)
    found = []
    for dialect in (*BRONZE_DIALECTS, "runs"):
        rows = lake.read_arrow(
            f"bronze/{dialect}",
            lake.state.fresh.get(f"bronze/{dialect}", ()),
            columns=[*_OF_DAMAGE.values(), *(() if dialect == "runs" else ("_length",))],
            where=ds.field("kind") == DAMAGE_KIND,
        )
        named: dict[str, Any] = {
            "dialect": pa.repeat(dialect, rows.num_rows),
            "length": pa.nulls(rows.num_rows, pa.int64()),
            **{new: rows[old] for new, old in _OF_DAMAGE.items()},
        }
        if "_length" in rows.column_names:
            named["length"] = rows["_length"]
        found.append(pa.table({each.name: named[each.name] for each in schema}).cast(schema))
    whole = pa.concat_tables(found)
    return [(lake.stage_arrow(whole, table), [])] if whole.num_rows else []


_OF_DAMAGE = {
    "log": "_log",
    "file": "_file",
    "offset": "_offset",
    "what": "_damage",
    "found_at": "_ingested_at",
    "host": "host",
    "date": "date",
}


def as_history(attempts: DataFrame, log: Column | None = None) -> DataFrame:
    """Rows of the table of attempts as the functions of ``spark.history`` take them."""
    named = F.concat(F.col("host"), F.lit(":"), F.col("log")) if log is None else log
    return attempts.withColumns(
        {
            "_log": named,
            "wait_ns": _length("ready_ns", "started_ns"),
            "run_ns": _length("started_ns", "ended_ns"),
        }
    )


def _length(begin: str, end: str) -> Column:
    """Nanoseconds, never negative; null if one of the two is."""
    length = F.try_subtract(F.col(end), F.col(begin))
    return F.when(length < 0, F.lit(0).cast("long")).otherwise(length)


def items_as_history(items: DataFrame, log: Column) -> DataFrame:
    """Items as rows of attempts that have been put and nothing else."""
    nothing: Mapping[str, str] = {
        **dict.fromkeys(("rule", "runner"), "string"),
        **dict.fromkeys(("started_ns", "ended_ns", "wait_ns", "run_ns"), "bigint"),
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


def history_of(spark: SparkSession, lake: Lake, as_of_ns: int | None = None) -> DataFrame:
    """All rows of history that a lake has, as ``spark.attempts`` gives them for logs."""
    log = F.concat(F.col("host"), F.lit(":"), F.col("log"))
    rows = as_history(lake.read(spark, "silver/attempts"), log).select(*ATTEMPTS.names)
    items = lake.read(spark, "silver/items").join(_heads(spark, lake), ["host", "log"], "left")
    put = items_as_history(items, log).withColumn(
        "outcome",
        F.when(F.col("item_id") <= F.col("head"), F.lit("finished")).otherwise(F.lit("waiting")),
    )
    rows = rows.unionByName(put.select(*ATTEMPTS.names))
    return rows if as_of_ns is None else expired_by(rows, as_of_ns)


def records_in(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """Rows of a table of bronze; ``_log`` says host and path."""
    log = F.concat(F.col("host"), F.lit(":"), F.col("_log"))
    return lake.read(spark, table).withColumn("_log", log)


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


def _heads(spark: SparkSession, lake: Lake) -> DataFrame:
    """The last item that every reader of a queue had finished when the lake last looked."""
    seen = lake.read(spark, "silver/readers")
    last = seen.groupBy("host", "log", "reader").agg(F.max_by("head", "observed_at").alias("head"))
    return last.groupBy("host", "log").agg(F.min("head").alias("head"))
