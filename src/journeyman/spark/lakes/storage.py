"""A lake at one moment: which version of each table counts, and how far the logs were read.

    snapshots   number 41  complete  {bronze/workq: 17, silver/attempts: 12, ...}  offsets
                number 42  not yet   {bronze/workq: 18, silver/attempts: 12, ...}  offsets
                number 43  complete  {bronze/workq: 18, silver/attempts: 13, ...}  offsets

The table ``snapshots`` is the truth: a row of it is written last, when every version that it names
is durable, and the store refuses it if another process was faster. Readers open the versions of the
last complete row, so they see all tables as of one moment, whatever is written meanwhile. An ingest
writes two rows: one when new records are in bronze, and a complete one when silver and gold know
them. After a kill in between, the next change begins with silver and gold.

Whoever changes a lake collects changes of tables (``change``), sees them at once (``files``), and
makes them count by ``commit``. Without it they are what a query over live logs sees (frames.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from journeyman.clock import SystemClock
from journeyman.columnar import delta as packages
from journeyman.disk import RealDisk
from journeyman.errors import JourneymanError, LogLocked, UsageError
from journeyman.spark.files import absolute, filesystem_of, is_uri
from journeyman.spark.lakes import delta
from journeyman.spark.lakes.delta import DataFile
from journeyman.spark.lakes.layout import SNAPSHOTS, TABLES, to_datetime
from journeyman.spark.lakes.work import at_once
from journeyman.spark.slots import read_units

Counts = TypeVar("Counts")
_OLDER: Final = "_lake"  # lakes of versions before Delta kept their state here


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A row of the table of snapshots."""

    number: int = 0
    complete: bool = True
    versions: Mapping[str, int] = field(default_factory=dict)  # by table
    offsets: Mapping[str, Any] = field(default_factory=dict)  # logs -> up to where they are read
    runs: Mapping[str, int] = field(default_factory=dict)  # file of runs -> bytes read
    readers: Mapping[str, str] = field(default_factory=dict)  # stream -> a hash of its files' state
    dropped: Mapping[str, str] = field(default_factory=dict)  # table -> days before it were dropped


_IN_JSON: Final = ("offsets", "runs", "readers", "dropped")


class Lake:
    """A lake as of ``snapshot``, with the changes that were made to this object since."""

    def __init__(
        self, path: str, snapshot: LakeSnapshot, complete: LakeSnapshot, log: Any = None
    ) -> None:
        self.path = self.new_files = path  # new files are written below ``new_files``
        self.snapshot, self._complete = snapshot, complete
        self._log = log  # the table of snapshots, at the version that the next one follows
        self._files: dict[str, dict[str, DataFile]] = {}
        self._changed: dict[str, tuple[dict[str, DataFile], dict[str, DataFile]]] = {}

    # --- reading ---

    def files(self, table: str) -> list[DataFile]:
        """The files of a table, uncommitted changes included."""
        if table == SNAPSHOTS:
            log = packages.open_delta(posixpath.join(self.path, SNAPSHOTS))
            return [] if log is None else delta.files_at(self.path, SNAPSHOTS, log.version())
        return list(self._listed(table).values())

    def fresh_files(self, table: str) -> list[DataFile]:
        """The files of a table of bronze that silver does not know yet."""
        before = self._complete.versions.get(table)
        if self.snapshot.complete and table not in self._changed:
            return []
        known = [] if before is None else delta.files_at(self.path, table, before)
        paths = {file.path for file in known}
        return [file for file in self.files(table) if file.path not in paths]

    def read(
        self,
        spark: SparkSession,
        table: str,
        files: Sequence[DataFile] | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """A table, or only these files and columns of it. Of local files Spark finds out by itself
        which columns a query needs; at a URI all are read that are not left out here."""
        schema = TABLES[table].schema
        if columns is not None:
            schema = StructType([schema[name] for name in columns])
        listed = self.files(table) if files is None else files
        if not listed:
            return spark.createDataFrame([], schema)
        if any(is_uri(file.path) for file in listed):
            # Not by Spark itself, which knows these schemes only with libraries of Java.
            read = partial(_batches_of, columns=schema.names)
            return read_units(spark, listed, read, schema)
        bases: dict[str, list[str]] = {}
        for file in listed:
            bases.setdefault(delta.base_of(file), []).append(file.path)
        reader = spark.read.schema(schema)
        frames = [reader.option("basePath", base).parquet(*each) for base, each in bases.items()]
        return reduce(DataFrame.unionByName, frames)

    def read_arrow(
        self,
        table: str,
        files: Sequence[DataFile] | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows of a table, or of these files of it, without Spark."""
        listed = self.files(table) if files is None else files
        parts = at_once(lambda file: delta.read_data_file(file, columns), listed)
        schema = delta.nullable_schema_of(table)
        names = schema.names if columns is None else columns
        nothing = pa.schema([schema.field(name) for name in names]).empty_table()
        return pa.concat_tables([nothing, *parts])

    def _listed(self, table: str) -> dict[str, DataFile]:
        if table not in self._files:
            version = self.snapshot.versions.get(table)
            found = [] if version is None else delta.files_at(self.path, table, version)
            self._files[table] = {file.path: file for file in found}
        return self._files[table]

    # --- changing ---

    def change(
        self, table: str, added: Sequence[DataFile] = (), removed: Sequence[DataFile] = ()
    ) -> None:
        """Add files to a table and take others out; it counts once it is committed."""
        if not added and not removed:
            return
        listed = self._listed(table)
        adds, removes = self._changed.setdefault(table, ({}, {}))
        for file in removed:
            listed.pop(file.path)
            if adds.pop(file.path, None) is None:
                removes[file.path] = file
        for file in added:
            listed[file.path] = adds[file.path] = file

    def write(self, table: str, rows: pa.Table) -> None:
        """Add a few rows, written by this process."""
        self.change(table, delta.write_rows(self.new_files, rows, table))

    def commit(self, *, complete: bool, **state: Any) -> None:
        """Make all changes count, with ``state`` in the fields of the snapshot.

        Raises JourneymanError if another process has changed the lake meanwhile.
        """
        number = self.snapshot.number + 1
        versions = dict(self.snapshot.versions)
        try:
            made = at_once(partial(self._commit_table, number), list(self._changed))
            versions.update(made)
            snapshot = replace(
                self.snapshot, number=number, complete=complete, versions=versions, **state
            )
            self._append(snapshot)
        except packages.import_deltalake().exceptions.CommitFailedError as error:
            raise delta.lost_commit(self.path) from error
        self.snapshot = snapshot
        if complete:
            self._complete = snapshot
        self._changed = {}

    def _commit_table(self, number: int, table: str) -> tuple[str, int]:
        adds, removes = self._changed[table]
        based_on = self.snapshot.versions.get(table)
        changed = (list(adds.values()), list(removes.values()))
        return table, delta.commit(self.path, table, based_on, *changed, number)

    @property
    def changed_tables(self) -> list[str]:
        """The tables that the next commit changes."""
        return sorted(self._changed)

    def note(self, **state: Any) -> None:
        """Set fields of the snapshot that the next commit writes."""
        self.snapshot = replace(self.snapshot, **state)

    def operate(self, table: str, operation: Callable[[Any], Counts]) -> Counts:
        """Let deltalake change a table by an operation of its own; the next commit has it."""
        assert table not in self._changed
        version = self.snapshot.versions[table]
        path = posixpath.join(self.path, table)
        with packages.errors_of_delta(path):
            opened = delta.open_at(self.path, table, version)
            counts = operation(opened)
        made = delta.made_durable(path, opened)
        self.note(versions={**self.snapshot.versions, table: made})
        self._files.pop(table, None)
        return counts

    def forget_snapshots(self, since: datetime) -> list[LakeSnapshot]:
        """Forget the snapshots that were made before this time, but the last one; those that are
        left."""
        last = self.snapshot.number
        rows = self.read_arrow(SNAPSHOTS)
        kept = [row for row in rows.to_pylist() if row["made_at"] >= since or row["number"] == last]
        least = min(row["number"] for row in kept)
        with packages.errors_of_delta(self.path):
            self._log.delete(f"number < {least}")
            self._log.update_incremental()
        return [LakeSnapshot(row["number"], versions=dict(row["versions"])) for row in kept]

    def _append(self, snapshot: LakeSnapshot) -> None:
        schema = delta.nullable_schema_of(SNAPSHOTS)
        row = {
            "number": snapshot.number,
            "made_at": to_datetime(SystemClock().now_ns()),
            "complete": snapshot.complete,
            "versions": list(snapshot.versions.items()),
            **{name: json.dumps(getattr(snapshot, name)) for name in _IN_JSON},
        }
        rows = pa.Table.from_pylist([row], schema)
        files = delta.write_rows(self.path, rows, SNAPSHOTS)
        with packages.errors_of_delta(self.path):
            delta.append(self._log, files, snapshot.number)
        delta.made_durable(posixpath.join(self.path, SNAPSHOTS), self._log)


def _batches_of(file: DataFile, columns: Sequence[str]) -> list[pa.RecordBatch]:
    return delta.read_data_file(file, columns).to_batches()


# ----------------------------------------
# Opening a lake.


def open_lake(path: str) -> Lake:
    """A lake to read, as of its last complete snapshot. Raises UsageError if there is none."""
    path = absolute(path).rstrip("/")
    log = packages.open_delta(posixpath.join(path, SNAPSHOTS))
    if log is None:
        check_lake(path)
    snapshots = [] if log is None else last_snapshots(path, log)
    complete = next((each for each in snapshots if each.complete), None)
    if complete is None:
        raise UsageError(
            f"there is no lake at {path}: create one with `journeyman pipeline ingest`"
        )
    return Lake(path, complete, complete)


@contextmanager
def change_lake(path: str) -> Iterator[Lake]:
    """A lake to change, made if there is none. Raises JourneymanError if another process does."""
    path = absolute(path).rstrip("/")
    check_lake(path)
    with ExitStack() as held:
        if lock := _lock_path(path):
            held.enter_context(_locked(lock, path))
        with packages.errors_of_delta(path):
            log = delta.open_or_create(path, SNAPSHOTS)
        snapshots = last_snapshots(path, log) or [LakeSnapshot()]
        complete = next((each for each in snapshots if each.complete), LakeSnapshot())
        yield Lake(path, snapshots[0], complete, log)


def check_lake(path: str) -> None:
    """Raises UsageError if what is at this path cannot be a lake of this version."""
    path = absolute(path).rstrip("/")
    if filesystem_of(path).find(posixpath.join(path, _OLDER)) is not None:
        raise UsageError(
            f"{path} is a lake of an earlier version, which this one cannot read: "
            "ingest the logs into a new lake"
        )


def last_snapshots(path: str, log: Any) -> list[LakeSnapshot]:
    """The last snapshot, and the one before it, if there are any."""
    files = delta.files_at(path, SNAPSHOTS, log.version())
    last = max((file.ranges["number"][1] for file in files), default=0)
    recent = [file for file in files if file.ranges["number"][1] >= last - 1]
    rows = [row for file in recent for row in delta.read_data_file(file).to_pylist()]
    found = [
        LakeSnapshot(
            row["number"],
            row["complete"],
            dict(row["versions"]),
            **{name: json.loads(row[name]) for name in _IN_JSON},
        )
        for row in rows
        if row["number"] >= last - 1
    ]
    return sorted(found, key=lambda snapshot: -snapshot.number)


@contextmanager
def _locked(path: str, lake: str) -> Iterator[None]:
    try:
        lock = RealDisk().lock(path)
    except LogLocked as error:
        raise JourneymanError(
            f"{lake}: another process is changing this lake; wait until it has ended"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _lock_path(lake: str) -> str | None:
    """A file that is locked while this lake is changed. For a lake at a URI it is one of this user
    on this machine: two processes here could read the same logs, and one would release what the
    other still needs. None without a place for it."""
    if not is_uri(lake):
        os.makedirs(lake, exist_ok=True)
        return posixpath.join(lake, ".lock")
    configured = os.environ.get("XDG_STATE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path("~/.local/state").expanduser()
    directory = root / "journeyman" / "lakes"
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(directory / f"{hashlib.sha256(lake.encode()).hexdigest()[:16]}.lock")
    return None
