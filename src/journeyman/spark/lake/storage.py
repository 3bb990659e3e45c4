"""A lake that is open: its files are listed, read and staged, and a commit changes any number of
tables, all at once or not at all.

    stage     new files, complete and durable, which do not count yet
    commit    these, the files that they stand for, and the state, in one step: see ``places``

The state says what the files hold: up to where every log and every file of runs was read, and which
files of bronze silver does not know yet. Since it changes in the same commit as they do, nothing is
stored twice and nothing is passed over.

A Delta lake has the same files, and a transaction log in each table (package deltalake, no Java).
Files that Delta no longer names stay until ``vacuum``.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import UsageError
from journeyman.spark.files import arrow_path, is_uri
from journeyman.spark.lake.delta import files_of
from journeyman.spark.lake.layout import HASH, TABLES
from journeyman.spark.lake.names import staged_path
from journeyman.spark.lake.places import LakePlace, Saved, place_of
from journeyman.spark.lake.state import LakeState, Staged, TableChange
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import DAMAGE, arrow_schema


class Lake:
    """A lake that is open. ``state`` is that of the last commit."""

    def __init__(self, place: LakePlace, saved: Saved) -> None:
        self.path = place.path
        self.state, self._last = saved
        self._place = place
        self._listed: dict[str, list[str]] = {}  # of Delta's tables, as of this commit

    def table_path(self, table: str) -> str:
        return posixpath.join(self.path, table)

    def files(self, table: str) -> list[str]:
        """The files of a table, below its directory, in order."""
        if self.state.format != "delta":
            return sorted(self._place.sizes(table))
        if table not in self._listed:
            self._listed[table] = files_of(self.path, table, self._last)
        return list(self._listed[table])

    def sizes(self, table: str) -> dict[str, int]:
        """The files of a table and their bytes."""
        found = self._place.sizes(table)
        if self.state.format != "delta":
            return found
        return {name: found[name] for name in self.files(table) if name in found}

    def read(
        self, spark: SparkSession, table: str, files: Sequence[str] | None = None
    ) -> DataFrame:
        """A table, or only these files of it."""
        base, schema = self.table_path(table), TABLES[table].schema
        listed = self.files(table) if files is None else files
        if not listed:
            return spark.createDataFrame([], schema)
        if is_uri(base):
            # Not by Spark itself, which knows these schemes only with libraries of Java.
            tasks = min(len(listed), 4 * slots_of(spark))
            numbers = spark.range(0, tasks, 1, tasks)
            return numbers.mapInArrow(partial(_read_some, base, table, listed, tasks), schema)
        whole = files is None and self.state.format == "parquet"
        paths = [base] if whole else [posixpath.join(base, name) for name in listed]
        return spark.read.schema(schema).option("basePath", base).parquet(*paths)

    def stage_arrow(self, rows: pa.Table, table: str) -> Staged:
        """Write a few rows, with the columns of partitions; they count once they are committed."""
        directory = self.new_staging()
        names = list(TABLES[table].partitions)
        files = []
        for values in rows.select(names).group_by(names).aggregate([]).to_pylist():
            mine = reduce(pc.and_, (pc.equal(rows[name], values[name]) for name in names))
            place = "/".join(f"{name}={values[name]}" for name in names)
            files.append(posixpath.join(place, f"{secrets.token_hex(8)}.parquet"))
            filesystem, path = arrow_path(staged_path(directory, table, files[-1]))
            inner = rows.filter(mine).drop_columns(names)
            pq.write_table(inner, path, compression="zstd", filesystem=filesystem)
        return self.staged(table, directory, files)

    def read_arrow(
        self,
        table: str,
        files: Sequence[str],
        *,
        columns: list[str] | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """Rows of these files of a table, without Spark."""
        if not files:
            schema = arrow_schema(TABLES[table].schema)
            return schema.empty_table().select(columns or schema.names)
        return dataset_of(self.table_path(table), table, files).to_table(columns, filter=where)

    def commit(
        self,
        staged: Iterable[Staged],
        removes: Mapping[str, Iterable[str]],
        *,
        keep_fresh: bool = False,
        **changes: Any,
    ) -> None:
        """Add these files to their tables and take others out; ``changes`` are of the state.

        Files added to bronze are fresh from then on, unless they hold what was there before:
        ``keep_fresh``.
        """
        gone = {table: list(names) for table, names in removes.items()}
        self._commit(list(staged), gone, changes, keep_fresh=keep_fresh)

    def _commit(
        self,
        staged: list[Staged],
        removes: dict[str, list[str]],
        changes: dict[str, Any],
        *,
        keep_fresh: bool,
    ) -> None:
        number = self.state.commit + 1
        named = self._place.named(staged, number)
        added: dict[str, list[str]] = {}
        for each in named:
            added.setdefault(each.table, []).append(each.name)
        fresh = {t: list(names) for t, names in changes.pop("fresh", self.state.fresh).items()}
        for table, names in added.items():
            if table.startswith("bronze/") and not keep_fresh:
                fresh[table] = [*fresh.get(table, []), *names]
        state = replace(self.state, commit=number, fresh=fresh, **changes)
        self._place.commit(state, TableChange(number, added, removes), named)
        self.state, self._last = state, None
        self._listed.clear()

    def new_staging(self) -> str:
        """A directory for files of any tables; ``names.staged_path`` says where in it."""
        return self._place.new_staging()

    def staged(self, table: str, directory: str, files: Iterable[str]) -> Staged:
        """These files, which were written to their ``staged_path`` in a directory."""
        names = tuple(sorted(files))
        self._place.settle([staged_path(directory, table, name) for name in names])
        return Staged(table, directory, names)

    def vacuum(self) -> None:
        """Remove files that a Delta lake does not name: replaced ones, and what a kill left. Its
        older versions can be read no more."""
        if self.state.format != "delta":
            return
        found = {table: {*self._place.sizes(table)} - {*self.files(table)} for table in TABLES}
        if any(found.values()) and is_uri(self.path):
            # Some may be staged by a process elsewhere, which from here on cannot commit them.
            self.commit([], {})
        for table, names in found.items():
            self._place.remove(table, sorted(names))


def dataset_of(base: str, table: str, files: Sequence[str]) -> ds.Dataset:
    """These files of a table, of which there are some, below its directory."""
    filesystem, inner = arrow_path(base)
    return ds.dataset(
        [posixpath.join(inner, name) for name in files],
        arrow_schema(TABLES[table].schema),
        partitioning="hive",
        partition_base_dir=inner,
        filesystem=filesystem,
    )


def _read_some(
    base: str, table: str, files: Sequence[str], tasks: int, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task does that reads every ``tasks``-th file."""
    for batch in numbers:
        for number in batch.column("id").to_pylist():
            yield from dataset_of(base, table, files[number::tasks]).to_batches()


def new_file(path: str, rows: pa.Table, words: Sequence[str]) -> pq.ParquetWriter:
    """A file for rows like these; ``words`` are columns whose values come again.

    Whole numbers and moments are stored as differences: of most that is smaller than what zstd
    makes of them, and quicker. Without Arrow's own schema, words of a dictionary are read as plain
    ones. Statistics are written of what files are left out by: numbers, moments and damage.
    """
    whole = [each.name for each in rows.schema if _is_whole(each.type)]
    numbers = [name for name in whole if name != HASH]  # hashes are as far apart as can be
    ordered = [each.name for each in rows.schema if pa.types.is_primitive(each.type)]
    options: Any = {
        "use_dictionary": sorted({*words} - {*whole}),
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "compression": {_leaf(each): _codec(each.type) for each in rows.schema},
        "write_statistics": [*ordered, *({DAMAGE} & {*rows.column_names})],
    }
    filesystem, inner = arrow_path(path)
    return pq.ParquetWriter(inner, rows.schema, filesystem, store_schema=False, **options)


def _is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_timestamp(kind)


def _codec(kind: pa.DataType) -> str:
    return "NONE" if _is_whole(kind) else "ZSTD"


def _leaf(field: pa.Field[Any]) -> str:
    """What Parquet calls a column."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def check_lake(path: str, format_: str | None = None) -> None:
    """Raises UsageError if there can be no lake of this format here."""
    place = place_of(path)
    if format_ == "parquet" and is_uri(place.path):
        raise UsageError(
            f"{place.path} must be a Delta lake: an object store cannot rename files, so a log has "
            "to say which of them count; leave --format out, or choose a directory"
        )
    saved = place.read()
    known = None if saved is None else saved.state.format
    if known is not None and format_ not in (None, known):
        raise UsageError(f"{place.path} is a lake of format {known}, not {format_}")


@contextmanager
def change_lake(path: str, format_: str | None = None) -> Iterator[Lake]:
    """A lake to change, made if there is none. Raises JourneymanError if another process does."""
    check_lake(path, format_)
    place = place_of(path)
    with place.changing() as found:
        yield Lake(place, found or Saved(LakeState(format=format_ or place.default_format)))


def open_lake(path: str) -> Lake:
    """A lake to read. A commit that a crash interrupted is finished first."""
    place = place_of(path)
    saved = place.read()
    if saved is None:
        raise UsageError(
            f"there is no lake at {place.path}: create one with `journeyman pipeline ingest`"
        )
    return Lake(place, saved)
