"""Tables as files at any address: tasks write them, the driver puts them in place.

    task      rows --> its own files, each whole when it is closed --> their names
    driver    a local path   files are written beside it; the directory appears by one rename
              a URI          other files in the directory are removed, then ``_SUCCESS`` is written

Rows never leave Arrow on the way: taking millions of them out of Python, through Spark's row
format, into its Parquet writer costs several times what a replay itself costs. So one task may
write several tables, which it makes of its rows (``split``).

A task that is tried again writes files of other names, and only those count that the driver was
told of. What a killed write leaves beside a local path is one directory whose name begins with
``_temporary-``. At a URI a reader sees files of a write that has not ended; ``_SUCCESS`` comes last
there, and is removed before anything is replaced.
"""

from __future__ import annotations

import posixpath
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.spark import files as addresses
from journeyman.spark.files import arrow_path, filesystem_of, is_uri, remote_of
from journeyman.spark.slots import read_units
from journeyman.spark.source.options import arrow_schema, struct

ROW_GROUP_ROWS: Final = 256 * 1024
_MOST_WAITING_BYTES: Final = 128 * 1024 * 1024
_SAMPLED_ROWS: Final = 4096  # rows that decide how the columns are encoded
_SUCCESS: Final = "_SUCCESS"
_WRITTEN: Final = struct("table string, file string, rows bigint")
Batches: TypeAlias = Iterator[pa.RecordBatch]
Splitter: TypeAlias = Callable[[Batches], Iterator[tuple[str, pa.RecordBatch]]]


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Where a table goes, and in which form: Parquet, or lines of text that follow a header.

    ``by``: columns whose values name directories (``day=2026-11-18``) instead of being written.
    """

    place: str  # a directory
    columns: pa.Schema
    by: tuple[str, ...] = ()
    header: str | None = None
    suffix: str = "zstd.parquet"


def write_parquet(
    frame: DataFrame, path: str, *, overwrite: bool = False, by: Sequence[str] = ()
) -> None:
    """A directory of Parquet files; ``by`` these columns in directories of their own."""
    table = TableFiles(path, arrow_schema(frame.schema), tuple(by))
    write_tables(frame, {"": table}, overwrite=overwrite)


def write_lines(lines: DataFrame, path: str, suffix: str, header: str, *, overwrite: bool) -> None:
    """The one column of a frame as lines of files, each of which begins with the header."""
    table = TableFiles(path, arrow_schema(lines.schema), header=header, suffix=suffix)
    write_tables(lines, {"": table}, overwrite=overwrite)


def _one_table(batches: Batches) -> Iterator[tuple[str, pa.RecordBatch]]:
    return (("", batch) for batch in batches)


def write_tables(
    frame: DataFrame,
    tables: Mapping[str, TableFiles],
    split: Splitter = _one_table,
    *,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write the tables that ``split`` makes of the rows in each task; how many rows they have.

    Rows of a table that has no place are counted, and not written.
    UsageError if there is something at one of the places, unless it may be overwritten.
    """
    places = {name: addresses.absolute(table.place) for name, table in tables.items()}
    for place in places.values():
        _make_room(place, overwrite=overwrite)
    building = {name: _building_place(place) for name, place in places.items()}
    try:
        written = writing(frame, tables, split, building).collect()
        for name, table in tables.items():
            files = {row["file"] for row in written if row["table"] == name}
            _complete(replace(table, place=building[name]), files)
        for name, place in places.items():
            _put_in_place(building[name], place, overwrite=overwrite)
    finally:
        for name, place in places.items():
            if building[name] != place:
                shutil.rmtree(posixpath.dirname(building[name]), ignore_errors=True)
    counts = dict.fromkeys(tables, 0)
    for row in written:
        counts[row["table"]] = counts.get(row["table"], 0) + row["rows"]
    return counts


def writing(
    frame: DataFrame,
    tables: Mapping[str, TableFiles],
    split: Splitter = _one_table,
    places: Mapping[str, str] | None = None,
) -> DataFrame:
    """The names of the files that tasks write, which they do when these are asked for."""
    put = {
        name: replace(each, place=(places or {}).get(name, each.place))
        for name, each in tables.items()
    }
    return frame.mapInArrow(partial(_write_parts, put, split), _WRITTEN)


def read_parquet(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a directory of Parquet files, and what ``name=value`` directories say."""
    place = addresses.absolute(path)
    found = _dataset(place)
    read = partial(_batches_of, place, found.schema)
    return read_units(spark, sorted(found.files), read, from_arrow_schema(found.schema))


def _batches_of(place: str, schema: pa.Schema, file: str) -> Batches:
    batches: Batches = _dataset(place, [file], schema).to_batches()
    return batches


def _dataset(place: str, files: Sequence[str] | None = None, schema: Any = None) -> Any:
    import pyarrow.dataset as ds

    filesystem, inner = arrow_path(place)
    partitions: Any = ds.HivePartitioning.discover() if schema is None else None
    if schema is not None:
        partitions = ds.partitioning(schema=schema, flavor="hive")
    return ds.dataset(
        inner if files is None else list(files),
        schema=schema,
        filesystem=filesystem,
        format="parquet",
        partitioning=partitions,
        partition_base_dir=inner,
    )


def check_free(path: str) -> None:
    """Raises UsageError if there is something at this address."""
    place = addresses.absolute(path)
    if remote_of(place).sizes_below(place) if is_uri(place) else Path(place).exists():
        raise _is_there(place)


def _make_room(place: str, *, overwrite: bool) -> None:
    """Refuse a place that is taken; at a URI what is there is no longer a finished table."""
    if not overwrite:
        check_free(place)
    elif is_uri(place):
        done = posixpath.join(place, _SUCCESS)
        if filesystem_of(place).find(done) is not None:
            remote_of(place).remove(done)


def _building_place(place: str) -> str:
    """Where the files of a table are written: nothing can be renamed at a URI."""
    if is_uri(place):
        return place
    beside = Path(place).parent / addresses.staging_name(SystemClock().now_ns())
    building = beside / Path(place).name
    building.mkdir(parents=True)
    return str(building)


def _complete(table: TableFiles, files: set[str]) -> None:
    """See to it that just the files are there that were told of, or one without rows."""
    place = table.place
    if is_uri(place):
        there = set(remote_of(place).sizes_below(place))
        remove: Callable[[str], object] = remote_of(place).remove
    else:
        there = {str(path) for path in Path(place).rglob("*") if path.is_file()}
        remove = lambda path: Path(path).unlink()  # noqa: E731 - beside its twin
    if missing := files - there:
        raise UsageError(
            f"{place}: {min(missing)} was written, but is not seen from here; "
            "choose an --output that all machines share"
        )
    for stray in there - files:
        remove(stray)
    if not files:
        with _PartFile(table, posixpath.join(place, f"part-0.{table.suffix}")):
            pass
    filesystem_of(place).create(posixpath.join(place, _SUCCESS)).close()


def _put_in_place(built: str, place: str, *, overwrite: bool) -> None:
    if built == place:
        return
    target, aside = Path(place), Path(f"{built}.old")
    replaces = overwrite and target.exists()
    if replaces:
        target.rename(aside)
    elif target.exists():
        raise _is_there(place)
    try:
        Path(built).rename(target)
    except OSError:
        if replaces:
            aside.rename(target)
        raise


def _is_there(path: str) -> UsageError:
    return UsageError(f"{path} already exists: choose another --output, or give --force")


def _write_parts(tables: Mapping[str, TableFiles], split: Splitter, batches: Batches) -> Batches:
    """Write one file for each table and directory that this task has rows of."""
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()  # files are in the order of the rows
    token = f"part-{number:05d}-{secrets.token_hex(8)}"
    files: dict[tuple[str, str], _PartFile] = {}
    told: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for name, batch in split(batches):
            table = tables.get(name)
            if table is None:
                told.append({"table": name, "rows": batch.num_rows})
                continue
            for directory, rows in _by_directory(table, batch):
                if (name, directory) not in files:
                    path = posixpath.join(table.place, directory, f"{token}.{table.suffix}")
                    files[name, directory] = stack.enter_context(_PartFile(table, path))
                files[name, directory].add(rows)
            if sum(file.waiting_bytes for file in files.values()) > _MOST_WAITING_BYTES:
                for file in files.values():
                    file.flush()
    told += [
        {"table": name, "file": file.path, "rows": file.rows} for (name, _), file in files.items()
    ]
    yield pa.RecordBatch.from_pylist(told, schema=arrow_schema(_WRITTEN))


def _by_directory(table: TableFiles, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each directory, without the columns that its name tells."""
    from urllib.parse import quote

    if batch.num_rows == 0:
        return
    if not table.by:
        yield "", batch
        return
    keys = pa.Table.from_batches([batch]).select(list(table.by))
    for values in keys.group_by(list(table.by)).aggregate([]).to_pylist():
        rows = batch
        for name, value in values.items():
            column = rows.column(name)
            rows = rows.filter(pc.equal(column, pa.scalar(value, column.type)))
        words = (f"{name}={quote(str(value), safe=' ')}" for name, value in values.items())
        yield posixpath.join(*words), rows.drop_columns(list(table.by))


class _PartFile:
    """A file being written: in row groups of some size, whatever the sizes of batches are."""

    def __init__(self, table: TableFiles, path: str) -> None:
        self.path = path
        self.rows = 0
        self.waiting_bytes = 0
        self._columns = pa.schema([each for each in table.columns if each.name not in table.by])
        self._header = table.header
        self._waiting: list[pa.RecordBatch] = []
        self._writer: Any = None

    def __enter__(self) -> _PartFile:
        return self

    def __exit__(self, *_how: object) -> None:
        if self._waiting or self._writer is None:
            self.flush()
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch.cast(self._columns))
        self.waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if sum(each.num_rows for each in self._waiting) >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        rows = pa.Table.from_batches(self._waiting, self._columns)
        self._waiting, self.waiting_bytes = [], 0
        if self._header is not None:
            self._flush_lines(rows, self._header)
            return
        if self._writer is None:
            filesystem, inner = arrow_path(self.path)
            if filesystem is None:
                Path(inner).parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                inner,
                self._columns,
                filesystem=filesystem,
                compression="zstd",
                use_dictionary=repeating_columns(rows),  # type: ignore[arg-type]  # the stubs know a bool
            )
        self._writer.write_table(rows, ROW_GROUP_ROWS)

    def _flush_lines(self, rows: pa.Table, header: str) -> None:
        if self._writer is None:
            self._writer = filesystem_of(self.path).create(self.path)
            self._writer.write(header.encode())
        lines = rows.column(0).to_pylist()
        self._writer.write("".join(f"{line}\n" for line in lines).encode())


def repeating_columns(rows: pa.Table) -> list[str]:
    """Columns whose values come again. Of the others a dictionary takes time, and room too."""
    some = rows.slice(0, _SAMPLED_ROWS)
    return [
        field.name
        for field, column in zip(some.schema, some.columns, strict=True)
        if pa.types.is_dictionary(field.type)
        or (
            not pa.types.is_nested(field.type)
            and pc.count_distinct(column).as_py() <= max(1, some.num_rows // 2)
        )
    ]
