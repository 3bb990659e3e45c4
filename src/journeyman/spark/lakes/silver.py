"""Bronze -> silver: the folds of history, run again for the keys that have new records.

    task, for a range of hashes of keys:
        fresh records            --> the keys that are touched
        older records of these   --> with the fresh ones: fold --> rows as they must be
        rows of these keys       --> what differs: new rows are written, others must go
    task, for a file that loses rows:
        the rows that stay       --> a file in its place

The rows are those of ``journeyman.spark.attempts`` over the whole logs, had nothing ever been
compacted away. Which keys are touched is known to the tasks alone. A hash is looked up in one
column of a file, which is stored as plain numbers; other columns are read of row groups that have a
key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark import vectors
from journeyman.spark.history import workq_attempts
from journeyman.spark.lakes import folding, work
from journeyman.spark.lakes.bronze import BUCKETS
from journeyman.spark.lakes.columns import named_logs, schema_of, shaped
from journeyman.spark.lakes.delta import DataFile, TableWriter, footer, read_group
from journeyman.spark.lakes.folding import COLUMNS, MOMENTS
from journeyman.spark.lakes.layout import HASH, KEYED
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.lakes.work import FILES, Groups, Packet, files_in, files_packet
from journeyman.spark.vectors import pc
from journeyman.spark.views import DAY_NS

ITEMS: Final = "silver/items"
STEPS, EVENTS = "silver/steps", "silver/events"
RUNS: Final = "silver/runs"
_GONE, _DAYS = "gone", "days"
_TASK_ROWS: Final = 250_000  # fresh records that a task folds at once
_SCANNED_ROWS: Final = 50_000_000  # older records in which a task looks for keys
_MOST_TASKS: Final = BUCKETS
_GROUP_ROWS: Final = 32 * 1024  # in the order of time, so a day is in few row groups
_REWRITERS: Final = 64
_COARSE_BITS: Final = 20


# ----------------------------------------
# What is folded, by dialect.


class TableFamily(NamedTuple):
    """Tables of bronze and the tables of silver that are folded from them."""

    records: tuple[str, ...]
    tables: tuple[str, ...]
    fold: Callable[[Records, Records], Mapping[str, pa.Table]]
    keeps_records: bool  # a fold needs all records of its keys, not only the fresh ones


Records = Mapping[str, pa.Table]  # by table


def _fold_workq(records: Records, _fresh: Records) -> Mapping[str, pa.Table]:
    narrowed = workq_attempts.narrow(records["bronze/workq"])
    return _keyed_rows(folding.workq_rows(narrowed, records["bronze/notes"]))


def _fold_ztick(records: Records, fresh: Records) -> Mapping[str, pa.Table]:
    lines = folding.run_lines(records["bronze/runs"])
    attempts = folding.ztick_rows(records["bronze/plans"], lines)
    runs = folding.run_rows(folding.run_lines(fresh["bronze/runs"]))
    return {**_keyed_rows(attempts), RUNS: runs}


def _keyed_rows(attempts: pa.Table) -> dict[str, pa.Table]:
    rows = (attempts, folding.jobs_of(attempts), folding.firings_of(attempts))
    return dict(zip(KEYED, rows, strict=True))


def _fold_items(records: Records, _fresh: Records) -> Mapping[str, pa.Table]:
    return {ITEMS: folding.items_of(records["bronze/kestrel"])}


def _fold_ledger(records: Records, _fresh: Records) -> Mapping[str, pa.Table]:
    rows = records["bronze/ledger"]
    return {STEPS: folding.steps_of(rows), EVENTS: folding.events_of(rows)}


FAMILIES: Final[Mapping[str, TableFamily]] = {
    "workq": TableFamily(("bronze/workq", "bronze/notes"), KEYED, _fold_workq, True),
    "ztick": TableFamily(("bronze/plans", "bronze/runs"), (*KEYED, RUNS), _fold_ztick, True),
    "kestrel": TableFamily(("bronze/kestrel",), (ITEMS,), _fold_items, False),
    "ledger": TableFamily(("bronze/ledger",), (STEPS, EVENTS), _fold_ledger, False),
}


# ----------------------------------------
# The driver.


class _Unit(NamedTuple):
    """The keys of a dialect whose hashes are in a range: ``part`` of ``parts`` of all hashes."""

    dialect: str
    part: int
    parts: int


class _Plan(NamedTuple):
    """The instructions that all tasks get."""

    lake: str
    fresh: Mapping[str, Sequence[DataFile]]
    older: Mapping[str, Sequence[DataFile]]  # older files of bronze and of silver
    keys: Sequence[str]  # to be folded again, beside those that are touched


def change_silver(spark: SparkSession, lake: Lake, keys: Sequence[str] = ()) -> set[int]:
    """Fold what is fresh in bronze, and these keys; the days on which something changes."""
    tables = [table for family in FAMILIES.values() for table in family.records]
    fresh = {table: lake.fresh_files(table) for table in tables}
    older = {table: _without(lake.files(table), fresh[table]) for table in tables}
    silver = {table: lake.files(table) for table in (*KEYED, *folding.FACTS)}
    plan = _Plan(lake.new_files, fresh, {**older, **silver}, keys)
    known = {file.path: file for files in silver.values() for file in files}
    rewrite = partial(_rewrite_files, lake.new_files, known) if known else None
    days: set[int] = set()
    for _, what, rows in work.spread(spark, _units(plan), partial(_fold_unit, plan), rewrite):
        if what == _DAYS:
            days |= set(vectors.ns_in(rows["day"]).tolist())
        elif what == FILES:
            for file in files_in(rows):
                lake.change(file.table, [file])
        else:
            for path in rows["path"].to_pylist():
                lake.change(known[str(path)].table, (), [known[str(path)]])
    return days


def _paths(files: Sequence[DataFile]) -> set[str]:
    return {file.path for file in files}


def _without(files: Sequence[DataFile], others: Sequence[DataFile]) -> list[DataFile]:
    paths = _paths(others)
    return [file for file in files if file.path not in paths]


def _units(plan: _Plan) -> list[_Unit]:
    """Cut the plan into as many tasks as there is work for."""
    found = []
    for dialect, family in FAMILIES.items():
        fresh = sum(file.rows for table in family.records for file in plan.fresh[table])
        tables = (*family.records, *family.tables)
        older = sum(file.rows for table in tables for file in plan.older.get(table, ()))
        if fresh or (plan.keys and family.keeps_records):
            wanted = max(fresh // _TASK_ROWS, older // _SCANNED_ROWS) + 1
            parts = min(_MOST_TASKS, 1 << (wanted - 1).bit_length())
            found += [_Unit(dialect, part, parts) for part in range(parts)]
    return found


# ----------------------------------------
# What tasks do.


class _Range(NamedTuple):
    """A range of hashes."""

    least: int
    greatest: int

    def mask(self, hashes: vectors.Ints) -> vectors.Bools:
        found: vectors.Bools = (hashes >= self.least) & (hashes <= self.greatest)
        return found


def _range_of(unit: _Unit) -> _Range:
    width = 2**64 // unit.parts
    least = -(2**63) + unit.part * width
    return _Range(least, least + width - 1)


class _Wanted:
    """Hashes of the keys that are touched."""

    def __init__(self, hashes: vectors.Ints) -> None:
        self._sorted = np.sort(hashes)
        self.least, self.greatest = int(self._sorted[0]), int(self._sorted[-1])
        self._coarse = np.zeros(1 << _COARSE_BITS, np.bool_)
        self._coarse[hashes & ((1 << _COARSE_BITS) - 1)] = True

    def mask(self, hashes: vectors.Ints) -> vectors.Bools:
        """Return which hashes are wanted. A look into a table of bits rules most of them out."""
        found: vectors.Bools = self._coarse[hashes & ((1 << _COARSE_BITS) - 1)]
        near = np.flatnonzero(found)
        if len(near):
            last = len(self._sorted) - 1
            places = np.minimum(np.searchsorted(self._sorted, hashes[near]), last)
            found[near] = self._sorted[places] == hashes[near]
        return found


def _read_keys(
    file: DataFile, columns: Sequence[str], wanted: _Range | _Wanted
) -> Iterator[tuple[pa.Table, vectors.Ints]]:
    """Rows of the wanted keys, and their numbers in the file."""
    if not file.may_hold([HASH], wanted.least, wanted.greatest):
        return
    known, before = footer(file.path), 0
    place = known.schema.names.index(HASH)
    for at in range(known.num_row_groups):
        group = known.row_group(at)
        range_: Any = group.column(place).statistics
        if range_ is None or not (range_.max < wanted.least or wanted.greatest < range_.min):
            mask = wanted.mask(vectors.ns_in(read_group(file, at, [HASH])[HASH]))
            if mask.all():
                yield read_group(file, at, columns), np.arange(group.num_rows) + before
            elif mask.any():
                places = np.flatnonzero(mask)
                yield vectors.taken(read_group(file, at, columns), places), places + before
        before += group.num_rows


def _records(
    files: Sequence[DataFile], table: str, wanted: _Range | _Wanted
) -> tuple[pa.Table, vectors.Ints]:
    """Records of the wanted keys in these files, and their hashes."""
    columns = (*COLUMNS[table], "host", HASH)
    parts = [named_logs(rows) for file in files for rows, _ in _read_keys(file, columns, wanted)]
    if not parts:
        return _no_records(table), np.zeros(0, np.int64)
    whole = pa.concat_tables(parts).unify_dictionaries()
    return whole.drop_columns([HASH]), vectors.ns_in(whole[HASH])


def _no_records(table: str) -> pa.Table:
    names = [name for name in COLUMNS[table] if name != "_log"]
    schema = schema_of(table)
    fields = [*(schema.field(name) for name in names), pa.field("_log", pa.string())]
    return pa.schema(fields).empty_table()


def _fold_unit(plan: _Plan, unit: _Unit) -> Iterator[Packet]:
    """Fold the touched keys of a range: new rows are written, and told of are those that go."""
    family, range_ = FAMILIES[unit.dialect], _range_of(unit)
    fresh, hashes = {}, [_hashes_in(range_, plan.keys)]
    for table in family.records:
        fresh[table], found = _records(plan.fresh[table], table, range_)
        hashes.append(found)
    touched = np.unique(np.concatenate(hashes))
    if not len(touched):
        return
    wanted = _Wanted(touched)
    records = dict(fresh)
    for table in family.records if family.keeps_records else ():
        older, _ = _records(plan.older[table], table, wanted)
        both = [rows for rows in (older, fresh[table]) if rows.num_rows] or [older]
        records[table] = pa.concat_tables(both).unify_dictionaries()
    output = TaskOutput(plan.lake)
    for table, rows in family.fold(records, fresh).items():
        old = _old_rows(plan.older.get(table, ()), table, wanted, unit.dialect)
        if table in folding.FACTS:
            output.add(table, folding.without_repeats(table, rows, _plain_rows(old, table)))
        elif old is None:
            output.add(table, rows)
        else:
            yield from output.replace(table, rows, old)
    yield from output.finish()


def _hashes_in(range_: _Range, keys: Sequence[str]) -> vectors.Ints:
    hashes = vectors.key_hashes(pa.array(keys, pa.string())).view(np.int64)
    return hashes[range_.mask(hashes)]


def _old_rows(
    files: Sequence[DataFile], table: str, wanted: _Wanted, dialect: str
) -> pa.Table | None:
    """The rows that these keys have, with the places that they are at."""
    names = schema_of(table).names
    found = []
    for file in files:
        for rows, numbers in _read_keys(file, names, wanted):
            whole = shaped({name: rows[name] for name in names}, table)
            whole = whole.append_column("_row", pa.array(numbers))
            found.append(whole.append_column("_path", pa.repeat(file.path, whole.num_rows)))
    if not found:
        return None
    rows = pa.concat_tables(found)
    if "dialect" in names:  # jobs of several dialects may have the same key
        rows = rows.filter(pc.equal(vectors.text_of(rows["dialect"]), dialect))
    return rows


def _plain_rows(old: pa.Table | None, table: str) -> pa.Table:
    names = schema_of(table).names
    return schema_of(table).empty_table() if old is None else old.select(names)


class TaskOutput:
    """Rows that a task writes, and the days on which something changes."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._rows: dict[str, list[pa.Table]] = {}
        self._days: set[int] = set()

    def add(self, table: str, rows: pa.Table) -> None:
        self._note(table, rows)
        self._rows.setdefault(table, []).append(rows)

    def replace(self, table: str, rows: pa.Table, old: pa.Table) -> Iterator[Packet]:
        """Write what is new among these rows, and tell which of the old ones go."""
        new_prints = folding.row_prints(rows)
        old_prints = folding.row_prints(old.drop_columns(["_row", "_path"]))
        self.add(table, vectors.where(rows, ~np.isin(new_prints, old_prints)))
        gone = vectors.where(old, ~np.isin(old_prints, new_prints))
        self._note(table, gone)
        for path in map(str, gone["_path"].unique().to_pylist()):
            mine = gone.filter(pc.equal(gone["_path"], path))
            places = pa.table({"path": mine["_path"], "row": mine["_row"]})
            yield Packet(zlib.crc32(path.encode()) % _REWRITERS, _GONE, places)

    def finish(self) -> Iterator[Packet]:
        for table, parts in self._rows.items():
            if files := _write(self._lake, table, parts):
                yield files_packet(files)
        if self._days:
            yield Packet(0, _DAYS, pa.table({"day": pa.array(sorted(self._days), pa.int64())}))

    def _note(self, table: str, changed: pa.Table) -> None:
        """Note the days of these rows for gold."""
        for name in (*MOMENTS, "put_ns") if table in (KEYED[0], ITEMS) else ():
            if name in changed.column_names:
                moments = vectors.ns_in(changed[name])
                known = moments[moments != NO_TIME] // DAY_NS
                self._days |= set(np.unique(known).tolist())


def _write(lake: str, table: str, parts: Sequence[pa.Table]) -> list[DataFile]:
    """These rows of a table in the order of their days; open rows in a file of their own."""
    rows = pa.concat_tables(parts)
    found = []
    for is_open in (True, False) if table in KEYED else (None,):
        mine = (
            rows if is_open is None else vectors.where(rows, np.asarray(rows["is_open"]) == is_open)
        )
        if mine.num_rows:
            values = {} if is_open is None else {"is_open": str(is_open).lower()}
            writer = TableWriter(lake, table, **values)
            order = np.argsort(mine["date"].cast(pa.int32()).to_numpy(), kind="stable")
            writer.write(vectors.taken(mine, order), _GROUP_ROWS)
            found += writer.finish()
    return found


def _rewrite_files(lake: str, files: Mapping[str, DataFile], groups: Groups) -> Iterator[Packet]:
    """Write the remaining rows of files that lose rows into new files."""
    kept: dict[str, list[pa.Table]] = {}
    for _, found in groups:
        for what, rows in found.items():
            if what != _GONE:
                yield Packet(0, what, rows)
                continue
            paths = rows["path"].unique()
            yield Packet(0, _GONE, pa.table({"path": paths}))
            for path in map(str, paths.to_pylist()):
                numbers = rows.filter(pc.equal(rows["path"], path))["row"].to_numpy()
                file = files[path]
                kept.setdefault(file.table, []).extend(_rows_without(file, numbers))
    for table, parts in kept.items():
        if parts:
            yield files_packet(_write(lake, table, parts))


def _rows_without(file: DataFile, numbers: vectors.Ints) -> Iterator[pa.Table]:
    before, names = 0, schema_of(file.table).names
    for at in range(footer(file.path).num_row_groups):
        rows = read_group(file, at, names)
        stays = ~np.isin(np.arange(before, before + rows.num_rows), numbers)
        before += rows.num_rows
        if stays.any():
            yield vectors.where(shaped({name: rows[name] for name in names}, file.table), stays)
