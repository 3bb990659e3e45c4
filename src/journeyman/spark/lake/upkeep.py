"""What is done to a lake by hand: forget keys, drop old days, join small files. One commit each."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.spark.lake import gold
from journeyman.spark.lake.columns import pc
from journeyman.spark.lake.folding import KEYS, RECORD_KEYS
from journeyman.spark.lake.ingest import refresh
from journeyman.spark.lake.layout import DAY_NS, TABLES
from journeyman.spark.lake.names import days_of
from journeyman.spark.lake.parts import PartitionWriter, may_hold, parts_of, read_part, with_place
from journeyman.spark.lake.silver import RUNS
from journeyman.spark.lake.state import StagedFiles
from journeyman.spark.lake.storage import Lake
from journeyman.spark.lake.work import Packet, spread

_LEDGER: Final = "bronze/ledger"
_OF_JOBS: Final = ("run-retry", "job-options", "parent", "ended")  # families whose keys are jobs
_SMALL_BYTES: Final = 64 << 20  # joined here: a job of Spark takes longer to begin


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
        if files := lake.sizes(table):
            first, last = min(map(days_of, files))[0], max(map(days_of, files))[1]
            found.append(TableSize(table, len(files), sum(files.values()), first, last))
    return found


def forget(spark: SparkSession, lake: Lake, keys: Sequence[str]) -> int:
    """Remove jobs from every table; gold is computed again without them. Rows of bronze removed.

    What a log still holds is not touched: a later record of the key comes in again.
    """
    refresh(spark, lake)  # from here on nothing is fresh
    named = {**KEYS, **RECORD_KEYS, RUNS: "key", _LEDGER: "key"}
    left = [each for table, key in named.items() for each in _without(lake, table, key, keys)]
    removes: dict[str, list[str]] = {}
    for (staged, files), _ in left:
        removes.setdefault(staged.table, []).extend(files)
    if removes:
        lake.commit([staged for (staged, _), _ in left], removes, keep_fresh=True)
    # Of silver too, should an earlier call have been killed behind its first commit.
    refresh(spark, lake, keys)
    lake.vacuum()
    return sum(rows for (staged, _), rows in left if staged.table in (*RECORD_KEYS, _LEDGER))


def _without(
    lake: Lake, table: str, column: str, keys: Sequence[str]
) -> list[tuple[StagedFiles, int]]:
    """Each file of a table that has rows of these keys, without them; and how many these were."""
    meant = pc.coalesce(pc.is_in(ds.field(column), pa.array(keys)), pc.scalar(False))
    if table == _LEDGER:
        meant &= pc.coalesce(pc.is_in(ds.field("family"), pa.array(_OF_JOBS)), pc.scalar(False))
    found = []
    for name in lake.files(table):
        rows = lake.read_arrow(table, [name], columns=[column], where=meant).num_rows
        if rows:
            left = lake.read_arrow(table, [name], where=~meant)
            found.append(((lake.stage_arrow(left, table), [name]), rows))
    return found


def retain(lake: Lake, days: Mapping[str, int]) -> int:
    """Drop partitions that are older than so many days, by table. How many files went.

    Gold of these days stays as it is from then on, since rows that it was counted from are gone. So
    rows stay, of which something happened on a day that is counted again.
    """
    unknown = sorted(set(days) - set(TABLES))
    if unknown:
        raise UsageError(f"a lake has no table {unknown[0]}; `lake tables` lists them")
    if gold.DEPTH_CHANGES in days:
        raise UsageError(f"{gold.DEPTH_CHANGES} cannot be dropped: depth_hourly adds all of it up")
    today = date(1970, 1, 1) + timedelta(days=SystemClock().now_ns() // DAY_NS)
    removes: dict[str, list[str]] = {}
    dropped = dict(lake.state.dropped)
    for table, kept in days.items():
        first = today - timedelta(days=kept)
        old = [name for name in lake.files(table) if days_of(name)[1] < first.isoformat()]
        waiting = set(lake.state.fresh.get(table, ()))
        old = [name for name in old if name not in waiting]
        if table in gold.MOMENTS:
            begin_ns = (first - date(1970, 1, 1)).days * DAY_NS
            base, moments = lake.table_path(table), gold.MOMENTS[table]
            late = (begin_ns, 2**63 - 1)
            old = [name for name in old if not may_hold(f"{base}/{name}", moments, *late)]
        if old:
            removes[table] = old
            dropped[table] = max(dropped.get(table, ""), first.isoformat())
    if removes:
        lake.commit([], removes, dropped=dropped)
        lake.vacuum()
    return sum(map(len, removes.values()))


def optimize(spark: SparkSession, lake: Lake, tables: Sequence[str] = ()) -> int:
    """Join the files of each partition that has several. How many files fewer there are."""
    refresh(spark, lake)
    fewer = 0
    for table in tables or [name for name in TABLES if "date" in TABLES[name].partitions]:
        places: dict[str, list[str]] = {}
        bytes_of = lake.sizes(table)
        for name in sorted(bytes_of):
            places.setdefault(posixpath.dirname(name), []).append(name)
        small = [names for names in places.values() if len(names) > 1]
        if small:
            directory = lake.new_staging()
            size = sum(bytes_of[name] for names in small for name in names)
            session = spark if size > _SMALL_BYTES else None
            join = partial(_join, lake.table_path(table), table, directory)
            made = [packet.what for packet in spread(session, small, join)]
            staged = lake.staged(table, directory, made)
            gone = [name for names in small for name in names]
            lake.commit([staged], {table: gone}, keep_fresh=True)
            fewer += len(gone) - len(made)
    if fewer:
        lake.vacuum()
    return fewer


def _join(base: str, table: str, directory: str, names: Sequence[str]) -> Iterator[Packet]:
    """The rows of these files of a partition in one; its name."""
    writer = PartitionWriter(directory)
    columns = TABLES[table].inner_schema.names
    for name in names:
        for part in parts_of(table, posixpath.join(base, name)):
            for rows, _ in read_part(part, columns):
                writer.add(table, with_place(rows, part))
    for _, name in writer.finish():
        yield Packet(0, name, pa.table({}))
