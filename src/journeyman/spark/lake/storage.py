"""The files of a lake: a commit changes any number of tables, all at once or not at all.

    stage     new files, complete and synced, in _lake/staging
    commit    one journal (logs.publication) renames these into their tables, removes files that
              they stand for, and replaces _lake/state.json

    kill -9 before the journal is written    the old lake; what is staged is litter
    kill -9 after it                         the new lake: the next to open it finishes this

The state says what the files hold: up to where every log and every file of runs was read, and which
files of bronze silver does not know yet. Since it changes in the same commit as they do, nothing is
stored twice and nothing is passed over.

A Delta lake has the same files, and a transaction log in each table (package deltalake, no Java).
Its commit is made once the files are in place, and carries the number of the lake's commit, so that
finishing it twice is harmless. Files that Delta no longer names stay until ``upkeep.vacuum``.

One process changes a lake at a time (_lake/lock). Paths are local, or a mounted file system.
"""

from __future__ import annotations

import calendar
import json
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk, open_regular
from journeyman.errors import JourneymanError, LogLocked, UsageError
from journeyman.logs.publication import Publication, finish, journal_path, publish, write_whole
from journeyman.spark.files import absolute
from journeyman.spark.lake.layout import HASH, TABLES, LakeTable
from journeyman.spark.source.options import DAMAGE, arrow_schema
from journeyman.units import NS_PER_MS

STATE_VERSION: Final = 3
_OLDER_VERSION: Final = 2  # without plans; see bronze.add_plans
_OWN: Final = "_lake"
_STAGING: Final = f"{_OWN}/staging"
_STATE: Final = f"{_OWN}/state.json"
_DELTA: Final = f"{_OWN}/delta.json"  # a commit that Delta's logs do not have yet
_APP: Final = "journeyman"
_ROWS: Final = "rows"
_SLASH: Final = ";"  # no host has it in its name
_SYNCS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class LakeState:
    """What the files of a lake hold."""

    commit: int = 0
    format: str = "parquet"
    version: int = STATE_VERSION
    offsets: Mapping[str, Any] = field(default_factory=dict)  # logs -> up to where they are read
    runs: Mapping[str, int] = field(default_factory=dict)  # file of runs -> bytes read
    fresh: Mapping[str, Sequence[str]] = field(default_factory=dict)  # table -> files not in silver
    readers: Mapping[str, str] = field(default_factory=dict)  # stream -> what its files looked like
    dropped: Mapping[str, str] = field(default_factory=dict)  # table -> days before this one went


@dataclass(frozen=True, slots=True)
class Staged:
    """Files that will belong to a table: their paths below ``directory``, partitions included."""

    table: str
    directory: str
    files: tuple[str, ...]


# What is staged for a table, and the files it stands for.
StagedFiles = tuple[Staged, list[str]]


class Lake:
    """A lake that is open. ``state`` is that of the last commit."""

    def __init__(self, path: str, state: LakeState) -> None:
        self.path = path
        self.state = state

    def table_path(self, table: str) -> str:
        return posixpath.join(self.path, table)

    def files(self, table: str) -> list[str]:
        """The files of a table, below its directory, in order."""
        if self.state.format == "delta":
            return _delta_files(self.table_path(table))
        return sorted(_parquet_files(self.table_path(table)))

    def read(
        self, spark: SparkSession, table: str, files: Sequence[str] | None = None
    ) -> DataFrame:
        """A table, or only these files of it."""
        base, schema = self.table_path(table), TABLES[table].schema
        listed = self.files(table) if files is None else files
        if not listed:
            return spark.createDataFrame([], schema)
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
            files.append(posixpath.join(place, "0.parquet"))
            path = staged_path(directory, files[-1])
            pq.write_table(rows.filter(mine).drop_columns(names), path, compression="zstd")
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
        base, schema = self.table_path(table), arrow_schema(TABLES[table].schema)
        paths = [posixpath.join(base, name) for name in files]
        if not paths:
            return schema.empty_table().select(columns or schema.names)
        found = ds.dataset(paths, schema=schema, partitioning="hive", partition_base_dir=base)
        return found.to_table(columns, filter=where)

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

    def size(self, table: str, files: Iterable[str]) -> int:
        """Bytes of these files of a table."""
        base = self.table_path(table)
        return sum(os.path.getsize(posixpath.join(base, name)) for name in files)

    def _commit(
        self,
        staged: list[Staged],
        removes: dict[str, list[str]],
        changes: dict[str, Any],
        *,
        keep_fresh: bool,
    ) -> None:
        number = self.state.commit + 1
        renames, added = self._named(staged, number)
        fresh = {t: list(names) for t, names in changes.pop("fresh", self.state.fresh).items()}
        for table, names in added.items():
            if table.startswith("bronze/") and not keep_fresh:
                fresh[table] = [*fresh.get(table, []), *names]
        state = replace(self.state, commit=number, fresh=fresh, **changes)
        directory = self.new_staging()
        disk = RealDisk()
        files = {_STATE: asdict(state)}
        gone = [posixpath.join(t, name) for t, names in removes.items() for name in names]
        if state.format == "delta":
            files[_DELTA] = {"commit": number, "adds": added, "removes": removes}
            gone = []
        for name, content in files.items():
            path = posixpath.join(directory, posixpath.basename(name))
            write_whole(disk, path, [json.dumps(content).encode()])
            renames[posixpath.relpath(path, self.path)] = name
        publication = Publication(renames, tuple(gone))
        sync_dirs = partial(_sync_places, self.path)
        publish(disk, journal_path(self.path), publication, sync_dirs=sync_dirs)
        self._finish_delta()
        self.state = state
        # Whatever is staged is part of this commit, or of none.
        shutil.rmtree(posixpath.join(self.path, _STAGING), ignore_errors=True)

    def _named(
        self, staged: list[Staged], number: int
    ) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Which staged file gets which name; and the new names of each table."""
        renames: dict[str, str] = {}
        added: dict[str, list[str]] = {}
        ordinals = count()
        for each in staged:
            for file in each.files:
                place = posixpath.dirname(file)
                name = posixpath.join(place, f"{number:08d}-{next(ordinals)}.parquet")
                os.makedirs(posixpath.join(self.table_path(each.table), place), exist_ok=True)
                source = staged_path(each.directory, file)
                renames[posixpath.relpath(source, self.path)] = posixpath.join(each.table, name)
                added.setdefault(each.table, []).append(name)
        return renames, added

    def new_staging(self) -> str:
        directory = posixpath.join(self.path, _STAGING, uuid.uuid4().hex)
        os.makedirs(posixpath.join(directory, _ROWS))
        return directory

    def staged(self, table: str, directory: str, files: Iterable[str]) -> Staged:
        """These files, which were written to their ``staged_path`` in a directory."""
        names = tuple(sorted(files))
        _sync_all([staged_path(directory, name) for name in names])
        return Staged(table, directory, names)

    def _finish_delta(self) -> None:
        path = posixpath.join(self.path, _DELTA)
        if os.path.exists(path):
            with open(path, encoding="utf-8", opener=open_regular) as file:
                pending = json.load(file)
            for table in {*pending["adds"], *pending["removes"]}:
                _commit_delta(
                    self.table_path(table),
                    TABLES[table],
                    pending["adds"].get(table, []),
                    pending["removes"].get(table, []),
                    pending["commit"],
                )
            os.remove(path)


def staged_path(directory: str, name: str) -> str:
    """Where a file is staged: of all partitions in one directory, which is quick to sync."""
    return posixpath.join(directory, _ROWS, name.replace("/", _SLASH))


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
    return pq.ParquetWriter(path, rows.schema, store_schema=False, **options)


def _is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_timestamp(kind)


def _codec(kind: pa.DataType) -> str:
    return "NONE" if _is_whole(kind) else "ZSTD"


def _leaf(field: pa.Field[Any]) -> str:
    """What Parquet calls a column."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def name_of(path: str) -> str:
    """The name of a file below the directory of its table, from a path of it, staged or not."""
    base = posixpath.basename(path)
    return base.replace(_SLASH, "/") if _SLASH in base else "/".join(path.split("/")[-3:])


def _sync_places(lake: str, places: Sequence[str]) -> None:
    """Directories of partitions, and those above them in the lake, which may be new too."""
    found: set[str] = set()
    for each in places:
        place = each
        while place not in found and place != lake:
            found.add(place)
            place = posixpath.dirname(place)
    _sync_all(sorted(found))


def _sync_all(paths: Sequence[str]) -> None:
    """Files and directories, many at a time: a disk has them together as quickly as one."""
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        list(pool.map(_sync, paths))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _parquet_files(directory: str) -> Iterator[str]:
    for above, _, names in os.walk(directory):
        inner = posixpath.relpath(above, directory)
        if "_delta_log" not in inner:
            yield from (
                posixpath.normpath(posixpath.join(inner, name))
                for name in names
                if name.endswith(".parquet")
            )


@contextmanager
def change_lake(path: str, format_: str | None = None) -> Iterator[Lake]:
    """A lake to change, made if there is none. Raises JourneymanError if another process does."""
    path = _local_path(path)
    disk = RealDisk()
    disk.make_dirs(posixpath.join(path, _OWN))
    try:
        lock = disk.lock(posixpath.join(path, _OWN, "lock"))
    except LogLocked as error:
        raise JourneymanError(
            f"{path}: another process is changing this lake; wait until it has ended"
        ) from error
    try:
        finish(disk, journal_path(path), sync_dirs=partial(_sync_places, path))
        shutil.rmtree(posixpath.join(path, _STAGING), ignore_errors=True)
        known = _load(path)
        if known is not None and format_ not in (None, known.format):
            raise UsageError(f"{path} is a lake of format {known.format}, not {format_}")
        lake = Lake(path, known or LakeState(format=format_ or "parquet"))
        lake._finish_delta()
        yield lake
    finally:
        lock.release()


def open_lake(path: str) -> Lake:
    """A lake to read. A commit that a crash interrupted is finished first."""
    path = _local_path(path)
    if _load(path) is None and not os.path.exists(journal_path(path)):
        raise UsageError(f"there is no lake at {path}: make one with `journeyman pipeline ingest`")
    if os.path.exists(journal_path(path)) or os.path.exists(posixpath.join(path, _DELTA)):
        with change_lake(path):
            pass
    state = _load(path)
    assert state is not None
    return Lake(path, state)


def _local_path(path: str) -> str:
    """Commits rename files, which an object store cannot do in one step (ADR 17)."""
    path = absolute(path)
    if "://" in path:
        raise UsageError(
            f"a lake is a local directory, or one on a mounted file system, not {path}: "
            "ingest into a directory and copy its tables there (docs/lake.md)"
        )
    return path


def _load(path: str) -> LakeState | None:
    try:
        state = posixpath.join(path, _STATE)
        with open(state, encoding="utf-8", opener=open_regular) as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    if found.get("version") not in (_OLDER_VERSION, STATE_VERSION):
        raise UsageError(
            f"{path} is a lake of version {found.get('version')}; "
            f"this program reads {_OLDER_VERSION} and {STATE_VERSION}"
        )
    return LakeState(**found)


# ----------------------------------------
# Delta: the same files, and a log that says which of them count.


def _delta() -> Any:
    try:
        import deltalake
    except ModuleNotFoundError as error:
        raise UsageError("a Delta lake needs a package: pip install 'journeyman[delta]'") from error
    return deltalake


def _delta_files(path: str) -> list[str]:
    deltalake = _delta()
    if not deltalake.DeltaTable.is_deltatable(path):
        return []
    uris = deltalake.DeltaTable(path).file_uris()
    return sorted(posixpath.relpath(uri.removeprefix("file://"), path) for uri in uris)


def _commit_delta(
    path: str, kind: LakeTable, adds: Sequence[str], removes: Sequence[str], number: int
) -> None:
    deltalake = _delta()
    arrow, partitions = arrow_schema(kind.schema), list(kind.partitions)
    if deltalake.DeltaTable.is_deltatable(path):
        table = deltalake.DeltaTable(path)
        if (table.transaction_version(_APP) or 0) >= number:
            return
    else:
        table = deltalake.DeltaTable.create(path, schema=arrow, partition_by=partitions)
    transaction = deltalake.Transaction(_APP, number)
    actions = [_add_action(deltalake, path, name) for name in adds]
    actions += [_remove_action(deltalake, name) for name in removes]
    table.create_write_transaction(
        actions,
        mode="append",
        schema=deltalake.Schema.from_arrow(arrow),
        partition_by=partitions,
        commit_properties=deltalake.CommitProperties(app_transactions=[transaction]),
    )


def _add_action(deltalake: Any, path: str, name: str) -> Any:
    whole = posixpath.join(path, name)
    status = os.stat(whole)
    stats = json.dumps({"numRecords": pq.read_metadata(whole).num_rows})
    modified_ms = status.st_mtime_ns // NS_PER_MS
    return deltalake.transaction.AddAction(
        name, status.st_size, partition_values(name), modified_ms, True, stats
    )


def _remove_action(deltalake: Any, name: str) -> Any:
    now_ms = SystemClock().now_ns() // NS_PER_MS
    return deltalake.transaction.RemoveAction(name, True, now_ms)


def vacuum(lake: Lake) -> None:
    """Remove files that a Delta lake no longer names. Its older versions can be read no more."""
    if lake.state.format == "delta":
        for table in TABLES:
            path = lake.table_path(table)
            known = set(_delta_files(path))
            for name in list(_parquet_files(path)):
                if name not in known:
                    os.remove(posixpath.join(path, name))


def partition_values(file: str) -> dict[str, str]:
    """date, or month, and host, as the path of a file says them."""
    pairs = (part.partition("=") for part in posixpath.dirname(file).split("/"))
    return {name: unquote(value) for name, _, value in pairs}


def days_of(file: str) -> tuple[str, str]:
    """The first and the last day that a file may have rows of."""
    values = partition_values(file)
    if "date" in values:
        return values["date"], values["date"]
    year, month = map(int, values["month"].split("-"))
    _, last = calendar.monthrange(year, month)
    return f"{values['month']}-01", f"{values['month']}-{last}"
