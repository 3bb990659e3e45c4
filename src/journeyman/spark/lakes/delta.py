"""Delta tables: tasks write Parquet files, and one transaction per table makes them count.

    task    rows --TableWriter--> a file with statistics     at any address; nobody reads it yet
    driver  files added, files removed --commit--> the next version of the table

A transaction carries the number of the lake's snapshot that it is made for (Delta's ``txn``). What
a killed process committed for a snapshot that was never made is a version after the one that the
last snapshot names: the next commit first restores that one.

Statistics (rows, nulls, least and greatest values of each column) come from the footers of the
files, so that every reader of Delta can leave files out. Local files are synced before they count.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from journeyman.clock import SystemClock
from journeyman.columnar import delta as packages
from journeyman.errors import JourneymanError
from journeyman.spark.files import arrow_path, is_uri
from journeyman.spark.lakes.layout import HASH, TABLES, delta_schema
from journeyman.spark.tables import repeating_columns
from journeyman.units import NS_PER_MS

# Columns of few words, which take a fraction of the time if each word is looked at once.
REPEATED_WORDS: Final = frozenset(
    (
        *("host", "log", "_log", "_file", "dialect", "kind", "status", "queue", "reader"),
        *("name", "task", "worker", "step", "error", "rule", "runner", "outcome"),
    )
)
CODED: Final[Any] = pa.dictionary(pa.int32(), pa.string())
_APP: Final = "journeyman"
_MOST_CHARACTERS: Final = 64  # kept of a text in statistics
_FIRST_DAY: Final = date(1970, 1, 1)
_ORDERED: Final = (bool, int, float, str, date, datetime)


class DataFile(NamedTuple):
    """A file of a table. ``ranges`` has the least and greatest of its whole numbers."""

    table: str
    path: str  # absolute, or a URI
    size: int
    rows: int
    values: Mapping[str, str]  # the values of the partition columns
    ranges: Mapping[str, tuple[int, int]]
    stats: str = ""  # as Delta stores them; of new files only

    def may_hold(self, columns: Iterable[str], least: int, greatest: int) -> bool:
        """True if one of these columns may have a value between the two."""
        found = (self.ranges.get(name) for name in columns)
        return any(each and each[0] <= greatest and least <= each[1] for each in found)


# ----------------------------------------
# Writing files.


class TableWriter:
    """One new file of a table, opened when the first rows come."""

    def __init__(self, lake: str, table: str, **values: str) -> None:
        place = "/".join(f"{name}={value}" for name, value in values.items())
        name = f"{secrets.token_hex(16)}.parquet"
        self._path = posixpath.join(lake, table, place, name)
        self._table, self._values = table, values
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None
        self._sink: Any = None

    def write(self, rows: pa.Table, group_rows: int) -> None:
        """Rows with all columns of the table, whether they are partition columns or not."""
        inner = rows.drop_columns(list(self._values)).unify_dictionaries()
        inner = pa.Table.from_arrays(inner.columns, schema=_as_declared(inner.schema, self._table))
        if self._writer is None:
            self._open(inner)
        assert self._writer is not None
        self._writer.write_table(inner, group_rows)

    def finish(self) -> list[DataFile]:
        """The file, whole and durable; none if there were no rows."""
        if self._writer is None:
            return []
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        sync([self._path])
        footer = self._footers[0]
        stats, ranges = _statistics(footer)
        return [
            DataFile(
                *(self._table, self._path, size, footer.num_rows),
                *(self._values, ranges, json.dumps(stats)),
            )
        ]

    def _open(self, rows: pa.Table) -> None:
        """Whole numbers and moments are stored as differences, which most readers decode faster
        than zstd; hashes, which differ in every bit, as they are. Without Arrow's own schema words
        of a dictionary are read as plain ones."""
        whole = [field.name for field in rows.schema if _is_whole(field.type)]
        options: Any = {
            "use_dictionary": sorted({*repeating_columns(rows)} - {*whole}),
            "column_encoding": dict.fromkeys(
                [n for n in whole if n != HASH], "DELTA_BINARY_PACKED"
            ),
            "compression": {_leaf(field): _codec(field.type) for field in rows.schema},
            "metadata_collector": self._footers,
        }
        filesystem, inner = arrow_path(self._path)
        if filesystem is None:
            os.makedirs(posixpath.dirname(inner), exist_ok=True)
            self._sink = pa.OSFile(inner, "wb")
        else:
            self._sink = filesystem.open_output_stream(inner)
        self._writer = pq.ParquetWriter(self._sink, rows.schema, store_schema=False, **options)


def _as_declared(schema: pa.Schema, table: str) -> pa.Schema:
    """Columns of rows, those never null that the table declares so: the writer refuses nulls."""
    declared = delta_schema(TABLES[table])
    return pa.schema([each.with_nullable(declared.field(each.name).nullable) for each in schema])


def write_rows(lake: str, rows: pa.Table, table: str) -> list[DataFile]:
    """A few rows as one file for each of their partitions."""
    names = list(TABLES[table].partitions)
    found = []
    for values in rows.select(names).group_by(names).aggregate([]).to_pylist() if names else [{}]:
        mine = rows
        for name, value in values.items():
            mine = mine.filter(pa.compute.equal(mine[name], value))
        writer = TableWriter(lake, table, **{name: _text(value) for name, value in values.items()})
        if mine.num_rows:
            writer.write(mine, mine.num_rows)
        found += writer.finish()
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_timestamp(kind)


def _codec(kind: pa.DataType) -> str:
    return "NONE" if _is_whole(kind) else "ZSTD"


def _leaf(field: pa.Field[Any]) -> str:
    """Return the name of a column in Parquet."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def _statistics(footer: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return the statistics of a file for Delta's log, and the ranges of its whole numbers."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    least, greatest, nulls, ranges = {}, {}, {}, {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        known: list[Any] = [group.column(at).statistics for group in groups]
        if "." in name or any(each is None or not each.has_null_count for each in known):
            continue
        nulls[name] = sum(each.null_count for each in known)
        some = [each for each in known if each.num_values]
        if not some or not all(each.has_min_max for each in some):
            continue
        low, high = min(each.min for each in some), max(each.max for each in some)
        if (number := _as_number(low)) is not None:
            ranges[name] = number, _as_number(high) or 0
        if _is_ordered(low) and _is_ordered(high):
            least[name], greatest[name] = _in_json(low), _in_json(high)
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }, ranges


def _as_number(value: object) -> int | None:
    """A whole number, or a day as days since 1970; None for anything else."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - _FIRST_DAY).days
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_ordered(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MOST_CHARACTERS
    return isinstance(value, _ORDERED) and not (isinstance(value, float) and math.isnan(value))


def _in_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


# ----------------------------------------
# Reading files.


@lru_cache(maxsize=1024)
def footer(path: str) -> pq.FileMetaData:
    """The end of a file: row groups and their statistics. Files of a table never change."""
    filesystem, inner = arrow_path(path)
    return pq.read_metadata(inner, filesystem=filesystem)


def read_group(file: DataFile, group: int, columns: Sequence[str]) -> pa.Table:
    """These columns of a row group, null where the file is older than a column; REPEATED_WORDS in a
    dictionary."""
    known = footer(file.path)
    paths = (known.schema.column(at).path for at in range(known.num_columns))
    stored = {path.partition(".")[0] for path in paths}
    filesystem, inner = arrow_path(file.path)
    with pq.ParquetFile(
        inner,
        metadata=known,
        read_dictionary=[name for name in columns if name in REPEATED_WORDS and name in stored],
        pre_buffer=filesystem is not None,  # neighbouring columns in one request
        filesystem=filesystem,
    ) as opened:
        names = [name for name in columns if name in stored]
        rows = opened.read_row_group(group, names, use_threads=False)
    return _with_columns(rows, known.row_group(group).num_rows, file, columns)


def _with_columns(rows: pa.Table, count: int, file: DataFile, columns: Sequence[str]) -> pa.Table:
    schema = nullable_schema_of(file.table)
    found = []
    for name in columns:
        kind = CODED if name in REPEATED_WORDS else schema.field(name).type
        if name in file.values:
            value: Any = file.values[name]
            value = value == "true" if pa.types.is_boolean(kind) else value
            found.append(pa.repeat(pa.scalar(value, kind), count))
        elif name not in rows.column_names:
            found.append(pa.nulls(count, kind))
        else:
            column = rows[name]
            found.append(column if column.type == kind else column.cast(kind))
    return pa.table(found, names=list(columns))


def read_data_file(file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
    """These columns of a file, or all of them, as the table has them."""
    names = list(columns or nullable_schema_of(file.table).names)
    schema = pa.schema([nullable_schema_of(file.table).field(name) for name in names])
    groups = [read_group(file, at, names) for at in range(footer(file.path).num_row_groups)]
    return pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in groups)])


@cache
def nullable_schema_of(table: str) -> pa.Schema:
    """The columns of a table, all of them nullable: rows are made in several steps."""
    return pa.schema([pa.field(each.name, each.type) for each in delta_schema(TABLES[table])])


# ----------------------------------------
# Versions of tables.


def files_at(lake: str, table: str, version: int) -> list[DataFile]:
    """The files of a table in one of its versions, in order."""
    path = posixpath.join(lake, table)
    with packages.errors_of_delta(path):
        opened = packages.import_deltalake().DeltaTable(
            path, version=version, storage_options=packages.storage_options()
        )
        known = pa.table(opened.get_add_actions(flatten=True))
    ends = {each.removeprefix("min.") for each in known.column_names if each.startswith("min.")}
    kinds = {name: known.schema.field(f"min.{name}").type for name in ends}
    numbers = [
        n for n, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_date(kind)
    ]
    partitions = TABLES[table].partitions
    columns = [
        *("path", "size_bytes", "num_records"),
        *(f"partition.{name}" for name in partitions),
    ]
    columns += [f"{end}.{name}" for name in numbers for end in ("min", "max")]
    found = []
    for row in known.select(columns).to_pylist():
        pairs = {n: (_as_number(row[f"min.{n}"]), _as_number(row[f"max.{n}"])) for n in numbers}
        ranges = {n: (a, b) for n, (a, b) in pairs.items() if a is not None and b is not None}
        values = {name: _text(row[f"partition.{name}"]) for name in partitions}
        whole = posixpath.join(path, row["path"])
        found.append(DataFile(table, whole, row["size_bytes"], row["num_records"], values, ranges))
    return sorted(found, key=lambda file: file.path)


def commit(
    lake: str,
    table: str,
    based_on: int | None,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    number: int,
) -> int:
    """Change a table as it was in the version ``based_on``; the version that this makes.

    Raises CommitFailedError if another process commits to it at the same time.
    """
    path = posixpath.join(lake, table)
    with packages.errors_of_delta(path):
        opened = open_at(lake, table, based_on)
        append(opened, added, number, removed)
    return made_durable(path, opened)


def open_at(lake: str, table: str, version: int | None) -> Any:
    """The last version of a table, which has the files of this one: what a process that was killed
    has committed after it, for a snapshot that was never made, is taken back."""
    opened = open_or_create(lake, table)
    if opened.version() != (version or 0):
        opened.restore(version or 0)
        opened.update_incremental()
    return opened


def made_durable(path: str, opened: Any) -> int:
    """The version that was just made, durable."""
    opened.update_incremental()
    version = int(opened.version())
    if not is_uri(path):
        log = posixpath.join(path, "_delta_log")
        sync([posixpath.join(log, f"{version:020}.json"), log, path, posixpath.dirname(path)])
    return version


def open_or_create(lake: str, table: str) -> Any:
    """The last version of a table, which is made if there is none."""
    kind, path = TABLES[table], posixpath.join(lake, table)
    return packages.open_delta(path) or packages.import_deltalake().DeltaTable.create(
        path,
        schema=delta_schema(kind),
        mode="ignore",
        partition_by=list(kind.partitions),
        description=kind.about,
        storage_options=packages.storage_options(),
    )


def append(
    opened: Any, added: Iterable[DataFile], number: int, removed: Iterable[DataFile] = ()
) -> None:
    """Make the version that follows this one; fails if another process has made it."""
    deltalake = packages.import_deltalake()
    opened.create_write_transaction(
        [*map(_add, added), *map(_remove, removed)],
        mode="append",
        schema=opened.schema(),
        partition_by=opened.metadata().partition_columns,
        commit_properties=deltalake.CommitProperties(
            max_commit_retries=0, app_transactions=[deltalake.Transaction(_APP, number)]
        ),
    )


def _add(file: DataFile) -> Any:
    return packages.import_deltalake().transaction.AddAction(
        _name(file), file.size, dict(file.values), _now_ms(), True, file.stats
    )


def _remove(file: DataFile) -> Any:
    return packages.import_deltalake().transaction.RemoveAction(_name(file), True, _now_ms())


def _name(file: DataFile) -> str:
    """The path of a file below the directory of its table."""
    return file.path.rpartition(f"/{file.table}/")[2]


def base_of(file: DataFile) -> str:
    """The directory of its table."""
    return file.path.removesuffix(f"/{_name(file)}")


def _now_ms() -> int:
    return SystemClock().now_ns() // NS_PER_MS


def sync(paths: Iterable[str]) -> None:
    """See to it that local files and directories survive a power cut."""
    for path in paths:
        if not is_uri(path):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def lost_commit(lake: str) -> JourneymanError:
    """Return the error for a commit that lost against another process."""
    return JourneymanError(
        f"{lake}: another process has changed this lake meanwhile; nothing of this change has "
        "happened: run the command again"
    )
