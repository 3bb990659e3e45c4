"""Silver -> gold: counts and percentiles by hour and day, computed again only for touched days.

    tasks   rows of attempts and items with something on a touched day --by day--> the views of
            spark/views, run by DuckDB --> rows of gold of these days
    driver  these in the place of the rows that gold has of these days; depth is added up

What counts when is said by the `.sql` files of ``journeyman.spark.views`` alone. Rows of gold are
hours and queues: few enough for the driver.

Days whose rows of silver were dropped (``upkeep.retain``) stay as they were counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark import vectors, views
from journeyman.spark.history.columns import ATTEMPTS
from journeyman.spark.lakes import work
from journeyman.spark.lakes.columns import shaped
from journeyman.spark.lakes.delta import DataFile, footer, read_group, write_rows
from journeyman.spark.lakes.folding import MOMENTS
from journeyman.spark.lakes.layout import DAY_NS, HOUR_NS
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.lakes.work import Groups, Packet
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.vectors import pc

DEPTH_CHANGES: Final = "gold/depth_changes"
_DEPTH: Final = "gold/depth_hourly"
_LAG: Final = "gold/reader_lag_hourly"
_ATTEMPTS, _ITEMS = "silver/attempts", "silver/items"
_PLACES: Final = "host, log"
_GROUPS_A_SLOT: Final = 4
# Of each table of silver, the columns that views count by, and the moments that decide the days.
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    _ATTEMPTS: (
        *("host", "dialect", "queue", "rule", "life", "first", "outcome", "error"),
        *MOMENTS,
    ),
    _ITEMS: ("host", "queue", "put_ns"),
}
COUNTED_MOMENTS: Final = {_ATTEMPTS: MOMENTS, _ITEMS: ("put_ns",)}


class GoldView(NamedTuple):
    """How a table of gold is counted."""

    view: str
    bucket_ns: int
    keys: Mapping[str, str] = views.LAKE_KEYS


GOLD_VIEWS: Final[Mapping[str, GoldView]] = {
    "gold/throughput_hourly": GoldView("throughput", HOUR_NS),
    "gold/throughput_daily": GoldView("throughput", DAY_NS),
    "gold/latency_hourly": GoldView("latency", HOUR_NS),
    "gold/latency_daily": GoldView("latency", DAY_NS),
    "gold/failures_daily": GoldView("failures", DAY_NS),
    "gold/lateness_daily": GoldView("latency", DAY_NS, {"host": "host", "rule": "rule"}),
    DEPTH_CHANGES: GoldView("depth_changes", HOUR_NS),
}


def change_gold(spark: SparkSession, lake: Lake, days: set[int]) -> None:
    """Count the days again on which silver has changed."""
    first = max((lake.snapshot.dropped.get(table, "") for table in _COLUMNS), default="")
    wanted = np.array(sorted(day for day in days if _named(day) >= first), np.int64)
    if not len(wanted):
        return
    slots = slots_of(spark)
    files = [
        file
        for table, moments in COUNTED_MOMENTS.items()
        for file in lake.files(table)
        if any(_may_lie(file.ranges.get(name), wanted) for name in moments)
    ]
    groups = min(len(wanted), _GROUPS_A_SLOT * slots)
    units = _dealt(files, _GROUPS_A_SLOT * slots)
    packets = work.spread(
        spark, units, partial(_take_days, wanted, groups), partial(_count, wanted, groups)
    )
    made: dict[str, list[pa.Table]] = {table: [] for table in GOLD_VIEWS}
    for _, table, rows in packets:
        made[table].append(rows)
    for table, parts in made.items():
        nothing = shaped({"host": pa.array([], pa.string())}, table)
        _replace_days(lake, table, pa.concat_tables([nothing, *parts]), wanted)
    _add_up_depth(lake, int(wanted[0]))


def _named(day: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=day))


def _dealt(files: Sequence[DataFile], hands: int) -> list[list[DataFile]]:
    """The files in so many units of about as many rows each."""
    units: list[list[DataFile]] = [[] for _ in range(min(hands, len(files)))]
    for file in sorted(files, key=lambda file: -file.rows):
        min(units, key=lambda unit: sum(each.rows for each in unit)).append(file)
    return units


def _may_lie(known: tuple[int, int] | None, days: vectors.Ints) -> bool:
    """True if a moment between the two may be on one of these days, which are sorted."""
    if known is None:
        return False
    at = np.searchsorted(days, known[0] // DAY_NS)
    return bool(at < len(days) and days[at] <= known[1] // DAY_NS)


# ----------------------------------------
# What tasks do: rows of files by day, then the counts of these days.


def _take_days(days: vectors.Ints, groups: int, files: Sequence[DataFile]) -> Iterator[Packet]:
    for file in files:
        for rows in _rows_on(file, days):
            attempts = _items_as_attempts(rows) if file.table == _ITEMS else rows
            for group, mine in _by_group(attempts, days, groups):
                yield Packet(group, _ATTEMPTS, mine)


def _rows_on(file: DataFile, days: vectors.Ints) -> Iterator[pa.Table]:
    """Rows of the row groups of a file in which something may have happened on these days."""
    known, moments = footer(file.path), COUNTED_MOMENTS[file.table]
    places = [at for at, name in enumerate(known.schema.names) if name in moments]
    for at in range(known.num_row_groups):
        found: list[Any] = [known.row_group(at).column(place).statistics for place in places]
        ranges = [(each.min, each.max) for each in found if each is not None and each.has_min_max]
        if any(_may_lie(each, days) for each in ranges):
            yield read_group(file, at, _COLUMNS[file.table])


def _items_as_attempts(items: pa.Table) -> pa.Table:
    """Items have been put, and no record says more: as finished ones they are in no depth."""
    count = items.num_rows
    columns: dict[str, vectors.AnyColumn] = {
        **{name: items[name] for name in ("host", "queue")},
        "dialect": vectors.constant("kestrel", count),
        "first": pa.repeat(pa.scalar(True), count),
        "outcome": vectors.constant("finished", count),
        **dict.fromkeys(("created_ns", "ready_ns"), items["put_ns"]),
    }
    schema = arrow_schema(ATTEMPTS)
    return pa.table(
        {
            name: columns[name] if name in columns else pa.nulls(count, schema.field(name).type)
            for name in _COLUMNS[_ATTEMPTS]
            if name in columns or name in schema.names
        }
    )


def _by_group(rows: pa.Table, days: vectors.Ints, groups: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows with something on the days of each group; a row may be in several of them."""
    there = np.zeros((groups, rows.num_rows), np.bool_)
    for name in MOMENTS:
        moments = vectors.ns_in(rows[name])
        places = np.searchsorted(days, moments // DAY_NS)
        places[places == len(days)] = 0
        known = np.flatnonzero((moments != NO_TIME) & (days[places] == moments // DAY_NS))
        there[_group_of(places[known], len(days), groups), known] = True
    plain = pa.table(
        {
            name: vectors.coded(rows[name]) if _is_text(rows[name].type) else rows[name]
            for name in rows.column_names
        }
    )
    for group in range(groups):
        if there[group].any():
            yield group, vectors.where(plain, there[group])


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_dictionary(kind)


def _group_of(places: vectors.Ints, days: int, groups: int) -> vectors.Ints:
    """The groups of days that stand at these places among all days."""
    found: vectors.Ints = places * groups // days
    return found


def _count(days: vectors.Ints, groups: int, found_groups: Groups) -> Iterator[Packet]:
    """Rows of gold of the days in each group."""
    for group, found in found_groups:
        mine = days[_group_of(np.arange(len(days)), len(days), groups) == group]
        attempts = _as_attempts(found[_ATTEMPTS])
        for table, (view, bucket_ns, keys) in GOLD_VIEWS.items():
            counted = attempts
            if "rule" in keys:
                is_run = pc.and_(pc.equal(counted["dialect"], "ztick"), counted["rule"].is_valid())
                counted = counted.filter(is_run)
            text = views.statement(view, keys, places=_PLACES, bucket_ns=bucket_ns)
            rows = views.run_in_duckdb(text, attempts=counted)
            rows = vectors.where(rows, np.isin(vectors.ns_in(rows["bucket_ns"]) // DAY_NS, mine))
            yield Packet(0, table, _as_gold(table, rows))


def _as_attempts(rows: pa.Table) -> pa.Table:
    """Rows with all columns that the views name."""
    columns = {name: _plain(rows[name]) for name in rows.column_names}
    schema = arrow_schema(ATTEMPTS)
    for name in ("log", *schema.names):
        if name not in columns:
            kind = schema.field(name).type if name in schema.names else pa.string()
            columns[name] = pa.nulls(rows.num_rows, kind)
    return pa.table(columns)


def _plain(column: vectors.AnyColumn) -> vectors.AnyColumn:
    is_coded = pa.types.is_dictionary(column.type)
    return column.cast(pa.string()) if is_coded else column


def _as_gold(table: str, rows: pa.Table) -> pa.Table:
    """What a view has counted, with the columns of a table of gold."""
    begins = vectors.ns_in(rows["bucket_ns"])
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names}
    for name in rows.column_names:
        if name.endswith("_ns"):
            columns[f"{name.removesuffix('_ns')}_s"] = vectors.seconds_column(
                vectors.ns_in(rows[name])
            )
    if table == "gold/lateness_daily":
        columns["runs"] = columns["started"]
        lengths = {name: column for name, column in columns.items() if name.startswith("wait_")}
        columns |= {f"lateness_{name.removeprefix('wait_')}": c for name, c in lengths.items()}
    return shaped({**columns, **_place_in_time(begins)}, table)


def _place_in_time(begins_ns: vectors.Ints) -> dict[str, vectors.AnyColumn]:
    days = pa.array((begins_ns // DAY_NS).astype(np.int32), pa.date32())
    return {
        "hour": vectors.moment_column(begins_ns),
        "date": days,
        "month": pc.utf8_slice_codeunits(days.cast(pa.string()), 0, 7),
    }


# ----------------------------------------
# What the driver makes of it.


def _replace_days(lake: Lake, table: str, rows: pa.Table, days: vectors.Ints) -> None:
    """These rows in the place of those of the same days; a file for each month."""
    months = {_named(int(day))[:7] for day in days}
    files = [file for file in lake.files(table) if file.values["month"] in months]
    known = lake.read_arrow(table, files)
    is_old = np.isin(known["date"].cast(pa.int32()).to_numpy(), days)
    kept = pa.concat_tables([vectors.where(known, ~is_old), rows])
    lake.change(table, write_rows(lake.new_files, kept, table), files)


def _add_up_depth(lake: Lake, first: int) -> None:
    """Depth from the first touched day on: the changes of all hours, added up."""
    changes = lake.read_arrow(DEPTH_CHANGES)
    begins = pa.array(vectors.ns_in(changes["hour"]) * 1000)
    text = views.statement("depth", views.LAKE_KEYS, given=("depth_changes",))
    rows = views.run_in_duckdb(text, depth_changes=changes.append_column("bucket_ns", begins))
    days = np.unique(vectors.ns_in(rows["bucket_ns"]) // DAY_NS)
    known = lake.read_arrow(_DEPTH, columns=["date"])["date"].cast(pa.int32()).to_numpy()
    later = np.union1d(days, known)
    later = later[later >= first]
    rows = vectors.where(rows, vectors.ns_in(rows["bucket_ns"]) // DAY_NS >= first)
    _replace_days(lake, _DEPTH, _as_gold(_DEPTH, rows), later)


def count_lag(lake: Lake) -> None:
    """Readers' lag on the last two days on which an ingest noted where they stood."""
    seen = lake.read_arrow("silver/readers")
    every = seen["date"].cast(pa.int32()).to_numpy()
    days = np.unique(every)[-2:]
    recent = vectors.taken(seen, np.flatnonzero(np.isin(every, days)))
    rows = views.run_in_duckdb(views.statement("reader_lag"), readers=recent)
    begins = vectors.ns_in(rows["hour"].cast(pa.timestamp("us", "UTC"))) * 1000
    columns = {name: rows[name] for name in rows.column_names}
    lag = shaped({**columns, **_place_in_time(begins)}, _LAG)
    _replace_days(lake, _LAG, lag, days.astype(np.int64))
