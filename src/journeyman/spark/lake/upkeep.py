"""What is done to a lake by hand: forget keys, drop old days, join small files. One commit each."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.spark.lake import silver
from journeyman.spark.lake.ingest import refresh
from journeyman.spark.lake.layout import DAY_NS, TABLES
from journeyman.spark.lake.storage import Lake, Staged, days_of, vacuum
from journeyman.spark.source.options import WORKQ, ZTICK

# Which column of bronze holds the key of a job, and what dialect that is.
_KEY_COLUMNS = {
    "bronze/workq": ("key", WORKQ),
    "bronze/ztick": ("identifier", ZTICK),
    "bronze/runs": ("job", ZTICK),
}


class TableSize(NamedTuple):
    table: str
    files: int
    bytes: int
    first_day: str
    last_day: str


def sizes(lake: Lake) -> list[TableSize]:
    """The tables that have files."""
    found = []
    for table in TABLES:
        files = lake.files(table)
        if files:
            first, last = min(map(days_of, files))[0], max(map(days_of, files))[1]
            found.append(TableSize(table, len(files), lake.size(table, files), first, last))
    return found


def forget(spark: SparkSession, lake: Lake, keys: Sequence[str]) -> int:
    """Remove jobs from every table; gold is computed again without them. Rows of bronze removed.

    What a log still holds is not touched: a later record of the key comes in again.
    """
    refresh(spark, lake)  # from here on nothing is fresh
    staged: list[Staged] = []
    removes: dict[str, list[str]] = {}
    # Of silver too, should an earlier call have been killed behind its first commit.
    known = lake.read(spark, "silver/attempts").where(F.col("key").isin(*keys))
    frames = [tuple(row) for row in known.select("host", "log", "dialect", "key").collect()]
    rows = 0
    for table, (column, dialect) in _KEY_COLUMNS.items():
        records = lake.read(spark, table)
        is_meant = F.coalesce(F.col(column).isin(*keys), F.lit(False))
        meant = records.where(is_meant)
        found = meant.select(F.input_file_name(), "host", "_log", column).collect()
        if not found:
            continue
        rows += len(found)
        files = sorted({_below(lake, table, row[0]) for row in found})
        staged.append(lake.stage(lake.read(spark, table, files).where(~is_meant), table))
        removes[table] = files
        frames += [(row[1], row[2], dialect, row[3]) for row in found]
    if not frames:
        return 0
    touched = spark.createDataFrame(
        sorted(set(frames)), "host string, log string, dialect string, key string"
    ).persist()
    if staged:
        lake.commit(staged, removes, keep_fresh=True)
    change = silver.change_of(spark, lake, touched, {WORKQ, ZTICK})
    _forget_runs(spark, lake, keys)
    refresh(spark, lake, change)
    vacuum(lake)
    return rows


def _forget_runs(spark: SparkSession, lake: Lake, keys: Sequence[str]) -> None:
    table = "silver/runs"
    is_meant = F.col("key").isin(*keys)
    named = lake.read(spark, table).where(is_meant).select(F.input_file_name()).distinct()
    files = sorted(_below(lake, table, row[0]) for row in named.collect())
    if files:
        staged = lake.stage(lake.read(spark, table, files).where(~is_meant), table)
        lake.commit([staged], {table: files})


def _below(lake: Lake, table: str, uri: str) -> str:
    """The name of a file in its table, from the address that Spark has for it."""
    from urllib.parse import unquote

    known = lake.files(table)
    path = unquote(uri)
    return next(name for name in known if path.endswith(unquote(name)))


def retain(lake: Lake, days: Mapping[str, int]) -> int:
    """Drop partitions that are older than so many days, by table. How many files went."""
    unknown = sorted(set(days) - set(TABLES))
    if unknown:
        raise UsageError(f"a lake has no table {unknown[0]}; `lake tables` lists them")
    today = date(1970, 1, 1) + timedelta(days=SystemClock().now_ns() // DAY_NS)
    removes: dict[str, list[str]] = {}
    for table, kept in days.items():
        first = (today - timedelta(days=kept)).isoformat()
        old = [name for name in lake.files(table) if days_of(name)[1] < first]
        waiting = set(lake.state.fresh.get(table, ()))
        if old := [name for name in old if name not in waiting]:
            removes[table] = old
    if removes:
        lake.commit([], removes)
        vacuum(lake)
    return sum(map(len, removes.values()))


def optimize(spark: SparkSession, lake: Lake, tables: Sequence[str] = ()) -> int:
    """Join the files of each partition that has several. How many files fewer there are."""
    refresh(spark, lake)
    fewer = 0
    for table in tables or TABLES:
        places: dict[str, list[str]] = {}
        for name in lake.files(table):
            places.setdefault(posixpath.dirname(name), []).append(name)
        small = [name for names in places.values() if len(names) > 1 for name in names]
        if small:
            joined = lake.read(spark, table, small).repartition(*TABLES[table].partitions)
            staged = lake.stage(joined, table)
            lake.commit([staged], {table: small}, keep_fresh=True)
            fewer += len(small) - len(staged.files)
    if fewer:
        vacuum(lake)
    return fewer
