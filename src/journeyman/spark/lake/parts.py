"""Files of a lake as tasks read and write them: by row group, and by partition.

Part             a row group of a file of a table
read_part        its rows, or those of some keys
PartitionWriter  rows of any tables, each to the file of its date and host
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from journeyman.columnar.kernels.key_table import Hashes
from journeyman.spark.files import arrow_path
from journeyman.spark.lake.columns import (
    Bools,
    Ints,
    begins_of,
    coded,
    hash_column,
    key_hashes,
    shaped,
    taken,
)
from journeyman.spark.lake.footers import footer
from journeyman.spark.lake.layout import DAY_NS, HASH, TABLES
from journeyman.spark.lake.names import name_of, partition_values, staged_path
from journeyman.spark.lake.storage import Lake, new_file
from journeyman.spark.lake.work import at_once
from journeyman.spark.tables import ROW_GROUP_ROWS, repeating_columns

_MOST_WAITING_ROWS: Final = 250_000
_UNIT_ROWS: Final = 600_000
_COARSE_BITS: Final = 20
NO_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Part:
    table: str
    path: str  # absolute
    group: int  # of rows, by number
    rows: int
    of_keys: bool = False  # only rows of the keys that are asked for
    least: int = -(2**63)  # of what its table is left out by, if that is known
    greatest: int = 2**63 - 1

    @property
    def name(self) -> str:
        """Below the directory of its table."""
        return name_of(self.path)

    @property
    def host(self) -> str:
        return partition_values(self.name)["host"]


def parts_of(table: str, path: str, *, of_keys: bool = False) -> list[Part]:
    """A part for each row group of a file."""
    found = footer(path)
    groups = [found.row_group(at) for at in range(found.num_row_groups)]
    column = _LEFT_OUT_BY.get(table, "")
    place = found.schema.names.index(column) if column in found.schema.names else None
    parts = []
    for at, group in enumerate(groups):
        known = None if place is None else _range(group.column(place).statistics)
        parts.append(Part(table, path, at, group.num_rows, of_keys, *(known or ())))
    return parts


def parts_in(lake: Lake, table: str, files: Iterable[str], *, of_keys: bool = False) -> list[Part]:
    """The parts of these files of a table."""
    base = lake.table_path(table)
    paths = [posixpath.join(base, name) for name in files]
    found = at_once(lambda path: parts_of(table, path, of_keys=of_keys), paths)
    return list(chain.from_iterable(found))


_LEFT_OUT_BY: Final = {
    **dict.fromkeys(("silver/items", "bronze/kestrel"), "item_id"),
    "bronze/plans": HASH,
}


def alone(parts: Sequence[Part]) -> set[Part]:
    """Those whose range is apart from that of every other one."""
    ordered = sorted(parts, key=lambda part: part.least)
    found, reach = set(), -(2**63) - 1
    behind = [*(part.least for part in ordered[1:]), 2**63]
    for part, after in zip(ordered, behind, strict=False):
        if reach < part.least and part.greatest < after:
            found.add(part)
        reach = max(reach, part.greatest)
    return found


def dealt(parts: Sequence[Part], hands: int) -> list[list[Part]]:
    """The parts in so many runs of about as many rows each."""
    wanted = max(1, sum(part.rows for part in parts) // hands + 1)
    found: list[list[Part]] = [[]]
    rows = 0
    for part in parts:
        if rows >= wanted:
            found.append([])
            rows = 0
        found[-1].append(part)
        rows += part.rows
    return [each for each in found if each]


def units_of(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts of one file that follow one another, as many as a task folds at once."""
    for _, each in groupby(parts, key=lambda part: part.path):
        unit: list[Part] = []
        for part in each:
            if unit and sum(one.rows for one in unit) + part.rows > _UNIT_ROWS:
                yield unit
                unit = []
            unit.append(part)
        yield unit


class Wanted:
    """Hashes of the keys that are wanted."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = np.sort(hashes)
        self._signed = np.sort(self._hashes.view(np.int64))
        self._coarse = np.zeros(1 << _COARSE_BITS, np.bool_)
        self._coarse[self._fine(self._hashes)] = True

    @staticmethod
    def _fine(hashes: Hashes) -> Ints:
        return (hashes & np.uint64((1 << _COARSE_BITS) - 1)).astype(np.int64)

    def may_be_in(self, part: Part) -> bool:
        """Whether a wanted key may be in a part; it is known of plans alone."""
        at = np.searchsorted(self._signed, part.least)
        return bool(at < len(self._signed) and self._signed[at] <= part.greatest)

    def mask(self, hashes: Hashes) -> Bools:
        """Which of these are wanted. A look into a table of bits rules most of them out."""
        found: Bools = self._coarse[self._fine(hashes)]
        near = np.flatnonzero(found)
        if len(near):
            last = len(self._hashes) - 1
            places = np.minimum(np.searchsorted(self._hashes, hashes[near]), last)
            found[near] = self._hashes[places] == hashes[near]
        return found


def read_part(
    part: Part,
    columns: Sequence[str],
    key: str = "key",
    wanted: Wanted | None = None,
    *,
    others: bool = False,
) -> Iterator[tuple[pa.Table, Ints]]:
    """Rows, and their numbers in the file. With ``wanted``, only rows whose key is, or ``others``.

    A file may be older than a column and lack it. Words that it has in a dictionary stay in it.
    """
    places = np.arange(part.rows)
    if wanted is not None:
        places = np.flatnonzero(wanted.mask(hashes_in(part, key)) != others)
    if len(places):
        rows = _read(part, columns)
        before = sum(footer(part.path).row_group(at).num_rows for at in range(part.group))
        yield rows if len(places) == part.rows else taken(rows, places), places + before


def hashes_in(part: Part, key: str) -> Hashes:
    """Of the key of each row; computed, if the file is older than the column of hashes."""
    found = _read(part, [HASH])
    if found.num_columns and found[HASH].null_count == 0:
        return found[HASH].to_numpy().view(np.uint64)
    return key_hashes(_read(part, [key])[key])


def _read(part: Part, columns: Sequence[str]) -> pa.Table:
    known = footer(part.path)
    group = known.row_group(part.group)
    kept = known.schema.to_arrow_schema().names
    names = [name for name in columns if name in kept]
    chunks = map(group.column, range(known.num_columns))
    in_words = {c.path_in_schema for c in chunks if c.has_dictionary_page and _is_text(c)}
    words = [name for name in names if name in in_words]
    filesystem, path = arrow_path(part.path)
    with pq.ParquetFile(
        path,
        metadata=known,
        read_dictionary=words,
        pre_buffer=filesystem is not None,  # neighbouring columns in one request
        filesystem=filesystem,
    ) as file:
        return file.read_row_group(part.group, names, use_threads=False)


def _is_text(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(chunk.physical_type == "BYTE_ARRAY")


def with_place(rows: pa.Table, part: Part) -> pa.Table:
    """All columns of the table: also those that the path holds, and null for newer ones."""
    values, count = partition_values(part.name), rows.num_rows
    day = pa.scalar(date.fromisoformat(values["date"]), pa.date32())
    place = {"date": pa.repeat(day, count), "host": pa.repeat(values["host"], count)}
    columns = {name: rows[name] for name in rows.column_names}
    if HASH in TABLES[part.table].schema.names and HASH not in columns:
        columns[HASH] = hash_column(rows["key"])
    return shaped({**columns, **place}, part.table)


class PartitionWriter:
    """Rows of tables that are partitioned by date and host, into files below ``directory``.

        directory/rows/silver;jobs;date=2026-11-17;host=a;....parquet

    A file for each partition that got rows; ``finish`` says which.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._waiting: dict[tuple[str, str], list[pa.Table]] = {}
        self._waiting_rows = 0
        self._files: dict[tuple[str, str], tuple[str, pq.ParquetWriter]] = {}
        self._words: dict[str, list[str]] = {}  # by table: columns whose values come again

    def add(self, table: str, rows: pa.Table) -> None:
        order, places = placed(rows)
        inner = rows.drop_columns(["date", "host"])
        ordered = inner if order is None else taken(inner, order)
        for place, begin, end in places:
            waiting = self._waiting.setdefault((table, place), [])
            waiting.append(ordered.slice(begin, end - begin))
            self._waiting_rows += end - begin
            if sum(each.num_rows for each in waiting) >= ROW_GROUP_ROWS // 2:
                self._write(table, place)
        if self._waiting_rows > _MOST_WAITING_ROWS:
            self._write_all()

    def finish(self) -> list[tuple[str, str]]:
        """Tables, and names of files below their directories."""
        self._write_all()
        at_once(lambda file: file[1].close(), self._files.values())
        return [(table, name) for (table, _), (name, _) in self._files.items()]

    def _write_all(self) -> None:
        for table, place in list(self._waiting):
            self._write(table, place)

    def _write(self, table: str, place: str) -> None:
        rows = pa.concat_tables(self._waiting.pop((table, place))).unify_dictionaries()
        self._waiting_rows -= rows.num_rows
        if (table, place) not in self._files:
            self._files[table, place] = self._open(table, place, rows)
        self._files[table, place][1].write_table(rows, ROW_GROUP_ROWS)

    def _open(self, table: str, place: str, rows: pa.Table) -> tuple[str, pq.ParquetWriter]:
        name = posixpath.join(place, f"{secrets.token_hex(8)}.parquet")
        path = staged_path(self._directory, table, name)
        words = self._words.get(table) or repeating_columns(rows)
        self._words[table] = words
        return name, new_file(path, rows, words)


def placed(rows: pa.Table) -> tuple[Ints | None, list[tuple[str, int, int]]]:
    """The order by partition, None if rows have it; and of each, where it begins and ends in it."""
    days = rows["date"].cast(pa.int32()).to_numpy()
    hosts = coded(rows["host"])
    codes = hosts.indices.to_numpy()
    order = np.lexsort((codes, days))
    days, codes = days[order], codes[order]
    begins = begins_of([days, codes])
    names = [
        f"date={np.datetime64(int(days[at]), 'D')}/host={hosts.dictionary[int(codes[at])].as_py()}"
        for at in begins
    ]
    is_sorted = bool((order[1:] > order[:-1]).all())
    places = list(zip(names, begins, [*begins[1:], len(order)], strict=False))
    return None if is_sorted else order, places


def parts_on(table: str, moments: Sequence[str], days: Ints, path: str) -> list[Part]:
    """Row groups of a file in which one of these moments may lie on one of these days, sorted."""
    found = footer(path)
    places = [at for at in range(found.num_columns) if found.schema.column(at).path in moments]
    parts = []
    for at in range(found.num_row_groups):
        group = found.row_group(at)
        if any(_may_lie(group.column(place).statistics, days) for place in places):
            parts.append(Part(table, path, at, group.num_rows))
    return parts


def _may_lie(statistics: Any, days: Ints) -> bool:
    if (known := _range(statistics)) is None:
        return False
    at = np.searchsorted(days, known[0] // DAY_NS)
    return bool(at < len(days) and days[at] <= known[1] // DAY_NS)


def may_hold(path: str, moments: Sequence[str], least_ns: int, most_ns: int) -> bool:
    """Whether one of these moments may lie between two in a row of a file."""
    found = footer(path)
    places = [at for at in range(found.num_columns) if found.schema.column(at).path in moments]
    ranges = (
        _range(found.row_group(group).column(place).statistics)
        for group in range(found.num_row_groups)
        for place in places
    )
    return any(each is not None and each[0] <= most_ns and each[1] >= least_ns for each in ranges)


def has_values(path: str, column: str) -> bool:
    """Whether a column of a file may be other than null."""
    found = footer(path)
    place = found.schema.names.index(column)
    chunks = [found.row_group(at).column(place) for at in range(found.num_row_groups)]
    known = [(chunk.num_values, chunk.statistics) for chunk in chunks]
    return any(found is None or found.null_count != values for values, found in known)


def _range(statistics: Any) -> tuple[int, int] | None:
    """The least and the greatest of a column's numbers; None if it has none."""
    if statistics is None or (not statistics.has_min_max and statistics.num_values > 0):
        return -(2**63), 2**63 - 1
    return (statistics.min, statistics.max) if statistics.has_min_max else None
