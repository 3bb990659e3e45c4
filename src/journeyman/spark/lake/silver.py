"""Bronze -> silver: the folds of history, run again for the keys that have new records.

    fresh files of bronze --> keys touched
    jobs whose records are all in one unit of these --> fold --> new rows
    all records of other keys, and their rows as they are --by key--> fold --> rows as they must be
    what differs: new rows are written, and files with rows that go are written again without them

The rows are those of ``journeyman.spark.attempts`` over the whole logs, had nothing ever been
compacted away. One commit puts silver, gold and "these files are no longer fresh" in place. Tasks
of Spark fold buckets of keys; of a little, this process does.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from journeyman.columnar.kernels.key_table import Hashes, buckets_of
from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark.history import workq_attempts, ztick_attempts
from journeyman.spark.lake import folding
from journeyman.spark.lake.columns import (
    Ints,
    begins_of,
    is_one_of,
    key_hashes,
    mixed,
    named_logs,
    ns_in,
    pc,
    schema_of,
    taken,
    text_of,
    where,
)
from journeyman.spark.lake.folding import COLUMNS, KEYS, MOMENTS
from journeyman.spark.lake.layout import BETWEEN, BRONZE_DIALECTS, DAY_NS, TABLES
from journeyman.spark.lake.names import staged_path
from journeyman.spark.lake.parts import (
    NO_ID,
    Part,
    PartitionWriter,
    Wanted,
    alone,
    dealt,
    has_values,
    hashes_in,
    parts_in,
    parts_of,
    placed,
    read_part,
    units_of,
    with_place,
)
from journeyman.spark.lake.state import Staged, StagedFiles
from journeyman.spark.lake.storage import Lake
from journeyman.spark.lake.work import HANDS, Groups, Packet, at_once, spread
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import DAMAGE, DAMAGE_KIND, arrow_schema

KEYED: Final = ("silver/attempts", "silver/jobs", "silver/timetable_firings")
ITEMS: Final = "silver/items"
RUNS: Final = "silver/runs"
_JOBS: Final = "bronze/workq"
_FOLDED_AS: Final = {"bronze/kestrel": ITEMS}
_DIALECT: Final = {_JOBS: "workq", "bronze/plans": "ztick", "bronze/runs": "ztick"}
SMALL_ROWS: Final = 1_500_000  # folded here: a job of Spark takes longer to begin
_SCANNED: Final = 16  # rows that are only looked at cost as much as one that is folded
_TASK_ROWS: Final = 20_000_000
_GROUP_ROWS: Final = 300_000
_GROUPS_A_TASK: Final = 8
_UNITS_A_TASK: Final = 2  # rows of one table take longer than those of another
_WRITTEN: Final = pa.schema([("table", pa.string()), ("file", pa.string())])
_SMALL_FILE_BYTES: Final = 1 << 20  # joined with the next rows of its partition
_OLD, _REMOVED, _KEYS = "old ", "removed ", "keys"
_NO_HASHES: Final = np.zeros(0, np.uint64)
_FILES, _DAYS, _COUNTS = "files", "days", "counts"


@dataclass
class SilverChange:
    """What changes in the tables of silver."""

    staged: dict[str, Staged] = field(default_factory=dict)
    replaced: dict[str, list[str]] = field(default_factory=dict)  # files that go
    days: set[int] = field(default_factory=set)  # on which something that changed happens
    items: list[pa.Table] = field(default_factory=list)  # how many new ones, as ``count`` says

    @property
    def files(self) -> list[StagedFiles]:
        return [
            (self.staged.get(table, Staged(table, "", ())), self.replaced.get(table, []))
            for table in sorted({*self.staged, *self.replaced})
        ]

    def paths_after(self, lake: Lake, table: str) -> list[str]:
        """The files of a table once this is committed."""
        gone = set(self.replaced.get(table, ()))
        base = lake.table_path(table)
        paths = [posixpath.join(base, name) for name in lake.files(table) if name not in gone]
        if staged := self.staged.get(table):
            paths += [staged_path(staged.directory, table, name) for name in staged.files]
        return paths


Count = Callable[[pa.Table], pa.Table]


def change_silver(
    spark: SparkSession,
    lake: Lake,
    fresh: Mapping[str, Sequence[str]],
    count_items: Count,
    keys: Sequence[str] = (),
) -> SilverChange:
    """What these files of bronze, and these keys, change in silver. New items are counted."""
    parts = [part for table in COLUMNS for part in parts_in(lake, table, fresh.get(table, ()))]
    dialects = frozenset(_DIALECT[part.table] for part in parts if part.table in _DIALECT)
    if keys:
        dialects = frozenset(_DIALECT.values())
    touched = Touched(key_hashes(pa.array(keys, pa.string())))
    older = _older(lake, fresh, dialects)
    known = parts_in(lake, ITEMS, lake.files(ITEMS) if fresh.get("bronze/kestrel") else ())
    jobs = [part for part in parts if part.table == _JOBS]
    others = [part for part in parts if part.table != _JOBS]
    session, hands = _hands(spark, sum(part.rows for part in parts) // _SCANNED)
    mine = dealt(jobs, hands)
    theirs = dealt(others if older or known else [], hands)
    touched.add(spread(session, [*mine, *theirs], touched_by))
    older = _with_touched(spark, older, touched)
    older += [part for part in known if part.greatest >= touched.first_id]
    once = alone([part for part in others + older if part.table in ("bronze/kestrel", ITEMS)])
    once &= set(others)
    rest = [part for part in others if part not in once] + older
    if len(touched.again):
        rest += [replace(part, of_keys=True) for part in jobs]
    wanted, directory = Wanted(touched.wanted), lake.new_staging()
    writer = partial(TaskOutput, directory, count_items)

    def alone_in_units() -> list[Packet]:
        session, hands = _hands(spark, sum(part.rows for part in (*jobs, *once)))
        units = [*mine, *dealt([part for part in others if part in once], hands)]
        return spread(session, units, partial(fold_lone, wanted, partial(writer, session is None)))

    def by_key() -> list[Packet]:
        size = sum(part.rows // (_SCANNED if part.of_keys else 1) for part in rest)
        session, hands = _hands(spark, size)
        most = max(_GROUPS_A_TASK * hands, size // _GROUP_ROWS)
        groups = 1 if session is None else _power_of_two(most)
        return spread(
            session,
            dealt(rest, _UNITS_A_TASK * hands),
            partial(take_parts, wanted, dialects, touched.first_ids, groups),
            partial(fold_groups, partial(writer, session is None)),
        )

    packets = list(chain(*at_once(lambda fold: fold(), (alone_in_units, by_key))))
    return _applied(lake, directory, packets)


def _hands(spark: SparkSession, rows: int) -> tuple[SparkSession | None, int]:
    """Who works on so many rows: Spark, if any; and in how many units."""
    if rows <= SMALL_ROWS:
        return None, HANDS
    return spark, max(slots_of(spark), rows // _TASK_ROWS)


class Touched:
    """Keys with fresh records, by their hashes; and by host and log, the lowest id of an item.

    ``again``: jobs of a work queue that are in several units, or were there before. The records of
    all others are together in one unit, which may fold them on its own.
    """

    def __init__(self, keys: Hashes) -> None:
        self._keys, self._jobs, self.again = keys, _NO_HASHES, _NO_HASHES
        self.first_ids: dict[str, int] = {}

    def add(self, packets: Iterable[Packet]) -> None:
        """Packets of ``touched_by``, of all units."""
        keys, jobs = [self._keys], [_NO_HASHES]
        for _, what, rows in packets:
            if what == ITEMS:
                for log, first in zip(*(each.to_pylist() for each in rows.columns), strict=True):
                    self.first_ids[log] = min(first, self.first_ids.get(log, first))
            else:
                (jobs if what == _JOBS else keys).append(rows[_KEYS].to_numpy())
        self._keys, self._jobs = np.unique(np.concatenate(keys)), np.sort(np.concatenate(jobs))
        self.again = np.unique(self._jobs[1:][self._jobs[1:] == self._jobs[:-1]])

    def meet(self, older: Hashes) -> None:
        """Keys of these hashes were there before."""
        self.again = np.union1d(self.again, np.intersect1d(older, self._jobs))

    @property
    def all(self) -> Hashes:
        return np.concatenate([self._keys, self._jobs])

    @property
    def wanted(self) -> Hashes:
        """Keys whose records and rows must meet."""
        return np.concatenate([self._keys, self.again])

    @property
    def first_id(self) -> int:
        """Of fresh items. Ids ascend."""
        return min(self.first_ids.values(), default=NO_ID)


def touched_by(parts: Sequence[Part]) -> Iterator[Packet]:
    """Hashes of the keys in each unit of these parts, and the lowest id of each queue."""
    for unit in units_of(parts):
        table = unit[0].table
        if table in KEYS:
            hashes = np.concatenate([hashes_in(part, KEYS[table]) for part in unit])
            hashes = np.sort(hashes[begins_of([hashes])])  # those of a job often stand together
            yield Packet(0, table, pa.table({_KEYS: hashes[begins_of([hashes])]}))
        else:
            for rows, _ in (each for part in unit for each in read_part(part, ["_log", "item_id"])):
                named = named_logs(rows, unit[0].host).filter(rows["item_id"].is_valid())
                named = named.set_column(0, "_log", text_of(named["_log"]))
                least = named.group_by("_log").aggregate([("item_id", "min")])
                yield Packet(0, ITEMS, least.select(["_log", "item_id_min"]))


def _with_touched(spark: SparkSession, parts: Sequence[Part], touched: Touched) -> list[Part]:
    """Those of these parts that hold touched keys, which ``touched`` is told of."""
    if not parts:
        return []
    wanted = Wanted(touched.all)
    maybe = [part for part in parts if wanted.may_be_in(part)]
    session, hands = _hands(spark, sum(part.rows for part in maybe) // _SCANNED)
    found = spread(session, dealt(maybe, hands), partial(search, wanted))
    touched.meet(np.concatenate([_NO_HASHES, *(rows[_KEYS].to_numpy() for _, _, rows in found)]))
    places = {(path, group) for group, path, _ in found}
    return [part for part in maybe if (part.path, part.group) in places]


def search(wanted: Wanted, parts: Sequence[Part]) -> Iterator[Packet]:
    """Which of the wanted keys are in each part, by hash."""
    for part in parts:
        hashes = hashes_in(part, KEYS.get(part.table, "key"))
        found = np.unique(hashes[wanted.mask(hashes)])
        if len(found):
            yield Packet(part.group, part.path, pa.table({_KEYS: found}))


def _older(lake: Lake, fresh: Mapping[str, Sequence[str]], dialects: frozenset[str]) -> list[Part]:
    """Parts that may hold records, or rows, of touched keys, and are not fresh."""
    found = []
    for table, dialect in _DIALECT.items():
        if dialect in dialects:
            names = sorted(set(lake.files(table)) - set(fresh.get(table, ())))
            found += parts_in(lake, table, names, of_keys=True)
    for table in KEYED if dialects else ():
        found += parts_in(lake, table, lake.files(table), of_keys=True)
    return found


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


# ----------------------------------------
# What tasks do.


def fold_lone(
    wanted: Wanted, new_writer: Callable[[], TaskOutput], parts: Sequence[Part]
) -> Iterator[Packet]:
    """Rows of jobs whose records are in one unit alone, and of items that are in one part."""
    written = new_writer()
    for unit in units_of(parts):
        table = unit[0].table
        chosen = wanted if table == _JOBS else None
        narrow = [
            _NARROW[table](named_logs(rows, part.host))
            for part in unit
            for rows, _ in read_part(part, COLUMNS[table], "key", chosen, others=True)
        ]
        if narrow:
            found = {_FOLDED_AS.get(table, table): pa.concat_tables(narrow)}
            for made, rows, _ in _folded(found):
                written.add(made, rows)
    yield from written.finish()


def take_parts(
    wanted: Wanted,
    dialects: frozenset[str],
    first_ids: Mapping[str, int],
    groups: int,
    parts: Sequence[Part],
) -> Iterator[Packet]:
    """Rows of parts, routed to the bucket of their key."""
    for part in parts:
        key, chosen = KEYS.get(part.table, "key"), wanted if part.of_keys else None
        if part.table in KEYED:
            yield from _old_rows(part, wanted, dialects, groups)
        elif part.table == ITEMS:
            yield from _known_items(part, first_ids, groups)
        else:
            for rows, _ in read_part(part, COLUMNS[part.table], key, chosen):
                narrow = _NARROW[part.table](named_logs(rows, part.host))
                if part.table == "bronze/kestrel":
                    yield from _by_bucket(ITEMS, narrow, _item_hashes(narrow), groups)
                else:
                    yield from _by_bucket(part.table, narrow, key_hashes(narrow[key]), groups)


class TaskOutput:
    """Rows that a task writes, days on which something changes, and how many items are new.

    What is folded ``here``, in this process, is little: ``_applied`` joins it with small files.
    """

    def __init__(self, directory: str, count_items: Count, here: bool) -> None:
        self._writer = PartitionWriter(directory)
        self._here = here
        self._rows: list[Packet] = []
        self._days: set[int] = set()
        self._count_items = count_items
        self._counts: list[pa.Table] = []

    def add(self, table: str, rows: pa.Table) -> None:
        self.note(table, rows)
        if table == ITEMS:
            self._counts.append(self._count_items(rows))
        if not self._here:
            self._writer.add(table, rows)
        elif rows.num_rows:
            self._rows.append(Packet(0, table, rows))

    def note(self, table: str, changed: pa.Table) -> None:
        """Of these rows gold wants to know the days."""
        if table in (KEYED[0], ITEMS):
            self._days |= _days_of(changed)

    def finish(self) -> Iterator[Packet]:
        yield from self._rows
        if files := self._writer.finish():
            columns = {"table": [table for table, _ in files], "file": [name for _, name in files]}
            yield Packet(0, _FILES, pa.table(columns, _WRITTEN))
        if self._days:
            yield Packet(0, _DAYS, pa.table({"day": pa.array(sorted(self._days), pa.int64())}))
        if self._counts:
            yield Packet(0, _COUNTS, pa.concat_tables(self._counts))


_NARROW: Final[Mapping[str, Callable[[pa.Table], pa.Table]]] = {
    "bronze/workq": workq_attempts.narrow,
    "bronze/plans": folding.plan_rows,
    "bronze/runs": folding.run_lines,
    "bronze/kestrel": folding.items_of,
}


def _old_rows(
    part: Part, wanted: Wanted, dialects: frozenset[str], groups: int
) -> Iterator[Packet]:
    names = TABLES[part.table].inner_schema.names
    for rows, numbers in read_part(part, names, "key", wanted):
        mine = is_one_of(rows["dialect"], dialects)
        old = with_place(where(rows, mine), part)
        old = old.append_column("_row", pa.array(numbers[mine]))
        old = old.append_column("_file", pa.repeat(part.name, old.num_rows))
        yield from _by_bucket(_OLD + part.table, old, key_hashes(old["key"]), groups)


def _known_items(part: Part, first_ids: Mapping[str, int], groups: int) -> Iterator[Packet]:
    """Items that may be the same as fresh ones: none has an id below the lowest of these."""
    for rows, _ in read_part(part, TABLES[ITEMS].inner_schema.names):
        logs = text_of(rows["log"]).dictionary_encode()
        names = [f"{part.host}{BETWEEN}{log}" for log in logs.dictionary.to_pylist()]
        least = np.array([first_ids.get(name, NO_ID) for name in names], np.int64)
        mask = rows["item_id"].to_numpy() >= least[logs.indices.to_numpy()]
        if mask.any():
            known = with_place(rows.filter(pa.array(mask)), part)
            yield from _by_bucket(_OLD + ITEMS, known, _item_hashes(known), groups)


def _item_hashes(items: pa.Table) -> Hashes:
    """Ids that follow one another share a bucket, so that they stay in order."""
    return mixed([ns_in(items["item_id"]).view(np.uint64) >> np.uint64(16)])


def _by_bucket(what: str, rows: pa.Table, hashes: Hashes, groups: int) -> Iterator[Packet]:
    return by_group(what, rows, buckets_of(hashes, groups), groups)


def by_group(what: str, rows: pa.Table, numbers: Ints, groups: int) -> Iterator[Packet]:
    """Rows in packets for each of their groups."""
    if rows.num_rows == 0:
        return
    if groups == 1:
        yield Packet(0, what, rows)
        return
    order = np.argsort(numbers, kind="stable")
    ordered, numbers = taken(rows, order), numbers[order]
    begins = begins_of([numbers])
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        yield Packet(int(numbers[begin]), what, ordered.slice(begin, end - begin))


def fold_groups(new_writer: Callable[[], TaskOutput], groups: Groups) -> Iterator[Packet]:
    """Rows that are new, and rows that go."""
    written = new_writer()
    for found in groups:
        for table, rows, gone in _folded(found):
            written.add(table, rows)
            if gone.num_rows:
                written.note(table, gone)
                yield Packet(0, _REMOVED + table, gone.select(["_file", "_row"]))
    yield from written.finish()


def _folded(found: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table, pa.Table]]:
    """Of each table: new rows, and old rows that go."""
    if ITEMS in found:
        known = found.get(_OLD + ITEMS, _nothing(ITEMS))
        yield ITEMS, folding.without_repeats(found[ITEMS], known), _nothing(ITEMS)
    attempts = [_nothing(KEYED[0])]
    if _JOBS in found:
        attempts.append(folding.workq_rows(found[_JOBS]))
    runs = found.get("bronze/runs")
    if runs is not None or "bronze/plans" in found:
        lines = _no_lines() if runs is None else runs
        attempts.append(folding.ztick_rows(found.get("bronze/plans", _no_plans()), lines))
    every = pa.concat_tables(attempts)
    made = (every, folding.jobs_of(every), folding.firings_of(every))
    for table, rows in zip(KEYED, made, strict=True):
        if rows.num_rows or _OLD + table in found:
            yield table, *_changed(rows, found.get(_OLD + table))


def _changed(rows: pa.Table, old: pa.Table | None) -> tuple[pa.Table, pa.Table]:
    """New rows, and old ones that are gone."""
    if old is None:
        return rows, rows.slice(0, 0)
    new_prints = folding.row_prints(rows)
    old_prints = folding.row_prints(old.drop_columns(["_file", "_row"]))
    added = where(rows, ~np.isin(new_prints, old_prints))
    return added, where(old, ~np.isin(old_prints, new_prints))


def _nothing(table: str) -> pa.Table:
    return schema_of(table).empty_table()


def _no_plans() -> pa.Table:
    return ztick_attempts.PLANS.empty_table()


def _no_lines() -> pa.Table:
    schema = arrow_schema(TABLES["bronze/runs"].schema)
    return schema.empty_table().select(list(COLUMNS["bronze/runs"]))


def _days_of(rows: pa.Table) -> set[int]:
    names = [name for name in (*MOMENTS, "put_ns") if name in rows.column_names]
    found: set[int] = set()
    for name in names:
        moments = ns_in(rows[name])
        found |= set(np.unique(moments[moments != NO_TIME] // DAY_NS).tolist())
    return found


# ----------------------------------------
# What this process makes of it.


def _applied(lake: Lake, directory: str, packets: Sequence[Packet]) -> SilverChange:
    change = SilverChange()
    files: dict[str, list[str]] = {}
    new: dict[str, list[pa.Table]] = {}
    gone: dict[str, dict[str, list[Ints]]] = {}
    for _, what, rows in packets:
        if what == _DAYS:
            change.days |= set(rows["day"].to_numpy().tolist())
        elif what == _COUNTS:
            change.items.append(rows)
        elif what == _FILES:
            for table, name in zip(*(each.to_pylist() for each in rows.columns), strict=True):
                files.setdefault(table, []).append(name)
        elif what.startswith(_REMOVED):
            table = what.removeprefix(_REMOVED)
            for name in map(str, rows["_file"].unique().to_pylist()):
                mine = rows.filter(pc.equal(rows["_file"], name))
                gone.setdefault(table, {}).setdefault(name, []).append(mine["_row"].to_numpy())
        else:
            new.setdefault(what, []).append(rows)
    writer = PartitionWriter(directory)
    for table in {*new, *gone}:
        rows = pa.concat_tables(new.get(table) or [_nothing(table)])
        change.replaced[table] = _rewrite(lake, table, rows, gone.get(table, {}), writer)
    for table, name in writer.finish():
        files.setdefault(table, []).append(name)
    for table, names in files.items():
        change.staged[table] = lake.staged(table, directory, names)
    return change


def _rewrite(
    lake: Lake,
    table: str,
    rows: pa.Table,
    gone: Mapping[str, Sequence[Ints]],
    writer: PartitionWriter,
) -> list[str]:
    """New rows, and what stays of files that lose some; small files are joined with new rows."""
    places = {place for place, _, _ in placed(rows)[1]}
    base = lake.table_path(table)
    replaced = set(gone)
    for name, size in lake.sizes(table).items() if places else ():
        if size < _SMALL_FILE_BYTES and posixpath.dirname(name) in places:
            replaced.add(name)
    writer.add(table, rows)
    names = TABLES[table].inner_schema.names
    for name in sorted(replaced):
        lost = np.concatenate([*gone.get(name, ()), np.zeros(0, np.int64)])
        for part in parts_of(table, posixpath.join(base, name)):
            for kept, numbers in read_part(part, names):
                stays = ~np.isin(numbers, lost)
                writer.add(table, where(with_place(kept, part), stays))
    return sorted(replaced)


def stage_runs(lake: Lake, fresh: Mapping[str, Sequence[str]], change: SilverChange) -> None:
    """Rows that fresh lines of runs add to the table of runs."""
    parts = parts_in(lake, "bronze/runs", fresh.get("bronze/runs", ()))
    found = [
        folding.runs_of(folding.run_lines(named_logs(rows, part.host)))
        for part in parts
        for rows, _ in read_part(part, COLUMNS["bronze/runs"])
    ]
    rows = pa.concat_tables([_nothing(RUNS), *found])
    if rows.num_rows:
        change.days |= _days_of(rows)
        directory = lake.new_staging()
        writer = PartitionWriter(directory)
        change.replaced[RUNS] = _rewrite(lake, RUNS, rows, {}, writer)
        files = [name for _, name in writer.finish()]
        change.staged[RUNS] = lake.staged(RUNS, directory, files)


def stage_damage(lake: Lake) -> list[StagedFiles]:
    """Rows for the table of damage, from fresh records and lines. They are few: no job of Spark."""
    table = "silver/damage"
    schema = arrow_schema(TABLES[table].schema)
    found = []
    for dialect in (*BRONZE_DIALECTS, "runs"):
        fresh = lake.state.fresh.get(f"bronze/{dialect}", ())
        base = lake.table_path(f"bronze/{dialect}")
        rows = lake.read_arrow(
            f"bronze/{dialect}",
            [name for name in fresh if has_values(posixpath.join(base, name), DAMAGE)],
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
