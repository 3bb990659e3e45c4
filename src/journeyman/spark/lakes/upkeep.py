"""Upkeep of a lake by hand: forget keys, drop old days, join small files, remove old files.

The operations on tables are those of deltalake; a snapshot makes what they did count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

from journeyman.clock import SystemClock
from journeyman.columnar import delta as packages
from journeyman.errors import UsageError
from journeyman.spark.lakes import gold
from journeyman.spark.lakes.folding import KEYS
from journeyman.spark.lakes.layout import SNAPSHOTS, TABLES, to_datetime
from journeyman.spark.lakes.refresh import Session, finish_refresh, refresh
from journeyman.spark.lakes.silver import EVENTS, RUNS, STEPS
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.views import DAY_NS

_LEDGER: Final = "bronze/ledger"
# Families whose keys are jobs, or events.
_OF_JOBS: Final = ("run-retry", "job-options", "parent", "ended", "event")
_GROUP_ROWS: Final = 32 * 1024
_MADE: Final = {RUNS: "key", STEPS: "key", EVENTS: "event"}  # silver that is not folded again
_NOT_TOLD: Final = ("bronze/plans", "bronze/notes", *_MADE)  # rows that are made of others
_TIDY_AFTER: Final = 64  # snapshots
KEPT_HOURS: Final = 24


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
        if files := lake.files(table):
            days = [file.ranges["date"] for file in files if "date" in file.ranges]
            first = str(_day(min(day for day, _ in days))) if days else ""
            last = str(_day(max(day for _, day in days))) if days else ""
            found.append(
                TableSize(table, len(files), sum(file.size for file in files), first, last)
            )
    return found


def _day(number: int) -> date:
    return date(1970, 1, 1) + timedelta(days=number)


def forget(session: Session, lake: Lake, keys: Sequence[str]) -> int:
    """Remove jobs from every table, and from older snapshots; gold is computed again without them.
    How many records of bronze were removed.

    What a log still holds is not touched: a later record of the key comes in again.
    """
    finish_refresh(session, lake)
    texts = ", ".join(_quoted(key) for key in keys)
    families = ", ".join(map(_quoted, _OF_JOBS))
    removed = 0
    for table, column in {**KEYS, **_MADE}.items():
        predicate = f"{column} IN ({texts})"
        if table == _LEDGER:
            predicate += f" AND family IN ({families})"
            # A record of leases names many jobs; what it says of the others is in the notes.
            for key in keys:
                quoted = _quoted(json.dumps(key))
                predicate += f" OR family = 'attempt' AND strpos(payload, {quoted}) > 0"
                # The subject of a step is its job, and its name after a slash.
                beginning = _quoted(f"{key}/")
                predicate += f" OR family = 'step' AND strpos({column}, {beginning}) = 1"
        rows = _delete(lake, table, predicate)
        removed += 0 if table in _NOT_TOLD else rows
    refresh(session(), lake, keys)
    lake.commit(complete=True)
    vacuum(lake, 0)
    return removed


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _delete(lake: Lake, table: str, predicate: str) -> int:
    """Delete rows of a table; how many these were."""
    if not lake.files(table):
        return 0
    counts = lake.operate(table, lambda opened: opened.delete(predicate, _written()))
    return int(counts["num_deleted_rows"] or 0)


def _written() -> Any:
    """How deltalake writes files: in row groups that are as small as ours."""
    return packages.import_deltalake().WriterProperties(
        compression="ZSTD", max_row_group_size=_GROUP_ROWS
    )


def retain(lake: Lake, days: Mapping[str, int]) -> int:
    """Drop rows that are older than so many days, by table. How many rows went.

    Gold of these days stays as it is from then on, since rows that it was counted from are gone. So
    rows stay of which something happened on a day that is counted again.
    """
    unknown = sorted(set(days) - (set(TABLES) - {SNAPSHOTS}))
    if unknown:
        raise UsageError(f"a lake has no table {unknown[0]}; `lake tables` lists them")
    if gold.DEPTH_CHANGES in days:
        raise UsageError(f"{gold.DEPTH_CHANGES} cannot be dropped: depth_hourly adds all of it up")
    if not lake.snapshot.complete:
        raise UsageError(f"{lake.path}: an ingest was cut off; run it again before `retain`")
    today = SystemClock().now_ns() // DAY_NS
    dropped, removed = dict(lake.snapshot.dropped), 0
    for table, kept in days.items():
        first = today - kept
        predicate = f"date < DATE '{_day(first)}'"
        for moment in gold.COUNTED_MOMENTS.get(table, ()):
            predicate += f" AND coalesce({moment}, 0) < {first * DAY_NS}"
        if rows := _delete(lake, table, predicate):
            dropped[table] = max(dropped.get(table, ""), str(_day(first)))
            removed += rows
    if removed:
        lake.commit(complete=True, dropped=dropped)
        vacuum(lake, 0)
    return removed


def optimize(session: Session, lake: Lake, tables: Iterable[str] = (), *, hours: int = 0) -> int:
    """Join small files. How many files fewer there are."""
    finish_refresh(session, lake)
    fewer = 0
    for table in tables or [name for name in TABLES if name != SNAPSHOTS]:
        if table not in TABLES or table == SNAPSHOTS:
            raise UsageError(f"a lake has no table {table}; `lake tables` lists them")
        if len(lake.files(table)) > max(1, len(TABLES[table].partitions)):
            counts = lake.operate(
                table, lambda opened: opened.optimize.compact(writer_properties=_written())
            )
            fewer += counts["numFilesRemoved"] - counts["numFilesAdded"]
    if fewer:
        lake.commit(complete=True)
    vacuum(lake, hours)
    return fewer


def vacuum(lake: Lake, hours: int = KEPT_HOURS) -> None:
    """Remove files that no snapshot of the last hours needs, nor the last one: replaced ones, and
    what a kill has left."""
    since = to_datetime(SystemClock().now_ns() - hours * 3600 * 10**9)
    kept = lake.forget_snapshots(since)
    for table in lake.snapshot.versions:
        versions = sorted({each.versions[table] for each in kept if table in each.versions})

        def remove(opened: Any, versions: Sequence[int] = versions) -> None:
            # Its start and its end are commits; the files are those of the version before.
            opened.vacuum(
                retention_hours=0,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                keep_versions=list(versions),
            )

        lake.operate(table, remove)
    lake.commit(complete=True)


def tidy(session: Session, lake: Lake, before: int) -> None:
    """Join small files and remove old ones, every so many snapshots; ``before`` is the number of
    the one with which this process began."""
    if before // _TIDY_AFTER != lake.snapshot.number // _TIDY_AFTER:
        optimize(session, lake, hours=KEPT_HOURS)
