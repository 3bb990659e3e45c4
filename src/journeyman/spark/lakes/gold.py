"""Silver -> gold: counts and percentiles by hour and day, computed again only for touched days.

    tasks   rows of attempts and items with something on touched days --> the views of spark/views,
            run by DuckDB --> rows of gold of these days
    driver  these in the place of the rows that gold has of these days; depth is added up

What counts when is said by the `.sql` files of ``journeyman.spark.views`` alone. Rows of gold are
hours and queues: few enough for the driver.

Days whose rows of silver were dropped (``upkeep.retain``) stay as they were counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from journeyman.spark import vectors, views
from journeyman.spark.history.columns import ATTEMPTS
from journeyman.spark.lakes import work
from journeyman.spark.lakes.columns import shaped
from journeyman.spark.lakes.delta import DataFile, footer, read_group, write_rows
from journeyman.spark.lakes.folding import MOMENTS
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.lakes.work import Packet
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import arrow_schema, struct
from journeyman.spark.vectors import pc
from journeyman.spark.views import DAY_NS, HOUR_NS

DEPTH_CHANGES: Final = "gold/depth_changes"
_DEPTH: Final = "gold/depth_hourly"
_LAG: Final = "gold/reader_lag_hourly"
_ATTEMPTS, _ITEMS = "silver/attempts", "silver/items"
_PLACES: Final = "host, log"
_UNITS_A_SLOT: Final = 4
_ROWS: Final = arrow_schema(StructType([*struct("host string, log string"), *ATTEMPTS]))
# The columns of each silver table that views count by, and the moments that decide the days.
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


class _DayUnit(NamedTuple):
    """Days that one task counts, in order, and the files with something between them."""

    days: list[int]
    files: list[DataFile]


def change_gold(spark: SparkSession, lake: Lake, days: set[int]) -> None:
    """Count the days again on which silver has changed."""
    first = max((lake.snapshot.dropped.get(table, "") for table in _COLUMNS), default="")
    wanted = np.array(sorted(day for day in days if _named(day) >= first), np.int64)
    if not len(wanted):
        return
    units = np.array_split(wanted, min(len(wanted), _UNITS_A_SLOT * slots_of(spark)))
    packets = work.spread(spark, [_day_unit(lake, unit.tolist()) for unit in units], _count_days)
    made: dict[str, list[pa.Table]] = {table: [] for table in GOLD_VIEWS}
    for _, table, rows in packets:
        made[table].append(rows)
    for table, parts in made.items():
        nothing = shaped({"host": pa.array([], pa.string())}, table)
        _replace_days(lake, table, pa.concat_tables([nothing, *parts]), wanted)
    _add_up_depth(lake, int(wanted[0]))


def _named(day: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=day))


def _day_unit(lake: Lake, days: list[int]) -> _DayUnit:
    files = (file for table in COUNTED_MOMENTS for file in lake.files(table))
    least, greatest = _span_of(days)
    found = [file for file in files if file.may_hold(COUNTED_MOMENTS[file.table], least, greatest)]
    return _DayUnit(days, found)


def _span_of(days: list[int]) -> tuple[int, int]:
    return days[0] * DAY_NS, (days[-1] + 1) * DAY_NS - 1


# ----------------------------------------
# Tasks read the rows with something on their days, and count these.


def _count_days(unit: _DayUnit) -> Iterator[Packet]:
    """Rows of gold of these days."""
    attempts = pa.concat_tables([_ROWS.empty_table(), *_rows_between(unit)])
    for table, (view, bucket_ns, keys) in GOLD_VIEWS.items():
        counted = attempts
        if "rule" in keys:
            is_run = pc.and_(pc.equal(counted["dialect"], "ztick"), counted["rule"].is_valid())
            counted = counted.filter(is_run)
        text = views.statement(view, keys, places=_PLACES, bucket_ns=bucket_ns)
        rows = views.run_in_duckdb(text, attempts=counted)
        is_asked = np.isin(vectors.ns_in(rows["bucket_ns"]) // DAY_NS, unit.days)
        yield Packet(0, table, _as_gold(table, vectors.where(rows, is_asked)))


def _rows_between(unit: _DayUnit) -> Iterator[pa.Table]:
    """Rows of silver with a moment between the first day and the last."""
    least, greatest = _span_of(unit.days)
    for file in unit.files:
        known, moments = footer(file.path), COUNTED_MOMENTS[file.table]
        places = [at for at, name in enumerate(known.schema.names) if name in moments]
        for at in range(known.num_row_groups):
            found: list[Any] = [known.row_group(at).column(place).statistics for place in places]
            ranges = (each for each in found if each is not None and each.has_min_max)
            if any(each.min <= greatest and least <= each.max for each in ranges):
                rows = read_group(file, at, _COLUMNS[file.table])
                is_between = np.zeros(rows.num_rows, np.bool_)
                for name in moments:
                    ns = vectors.ns_in(rows[name])
                    is_between |= (ns >= least) & (ns <= greatest)
                yield _as_attempts(file.table, vectors.where(rows, is_between))


def _as_attempts(table: str, rows: pa.Table) -> pa.Table:
    """Rows with all columns that the views name."""
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names}
    if table == _ITEMS:
        # Items have been put, and no record says more: as finished ones they are in no depth.
        columns |= {
            "dialect": pa.repeat("kestrel", rows.num_rows),
            "first": pa.repeat(pa.scalar(True), rows.num_rows),
            "outcome": pa.repeat("finished", rows.num_rows),
            **dict.fromkeys(("created_ns", "ready_ns"), rows["put_ns"]),
        }
    return vectors.as_schema(columns, _ROWS)


def _as_gold(table: str, rows: pa.Table) -> pa.Table:
    """Return the counts of a view with the columns of a table of gold."""
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
    text = views.statement("depth", views.LAKE_KEYS, given_views=("depth_changes",))
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
