"""Where a lake is, and how its commits get there: a directory, or a URI.

             a directory                              a URI: s3://, gs://, abfs://, hdfs://
stage        files in _lake/staging, synced           files under their final, unique names
commit       a journal (logs.publication) renames     one object, which the store creates only
             these into their tables, removes files   if it is not there: the next version of
             that they stand for, and replaces        _lake/commits, a Delta log of no rows,
             _lake/state.json                         with the state and the names of files
then         Delta: each table's log                  each table's log
one writer   _lake/lock                               the version that is taken

kill -9 before the commit    the old lake; what is staged is litter
kill -9 after it             the new lake: the next to change it does what is left, any number
                             of times. At a URI readers know what is left, and only read
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from journeyman.columnar.delta import (
    errors_of_delta,
    import_deltalake,
    open_delta,
    storage_options,
)
from journeyman.disk import RealDisk, open_regular
from journeyman.errors import JourneymanError, LogLocked
from journeyman.logs.publication import Publication, finish, journal_path, publish, write_whole
from journeyman.spark.files import absolute, is_uri, remote_of
from journeyman.spark.lake.delta import apply_change
from journeyman.spark.lake.names import ROWS, name_of, staged_path
from journeyman.spark.lake.state import LakeState, Staged, TableChange, checked_state
from journeyman.spark.lake.work import at_once

_OWN: Final = "_lake"
_STAGING: Final = f"{_OWN}/staging"
_STATE: Final = f"{_OWN}/state.json"
_DELTA: Final = f"{_OWN}/delta.json"  # a change that Delta's logs do not have yet
_COMMITS: Final = f"{_OWN}/commits"
_SAID: Final = "journeyman"  # what a version of _COMMITS says, in the words of Delta its metadata
_NO_ROWS: Final = pa.schema([("commit", pa.int64())])


class Saved(NamedTuple):
    """The last commit of a lake; ``last`` is what tables may not have yet."""

    state: LakeState
    last: TableChange | None = None


class Named(NamedTuple):
    path: str  # where a file is staged
    table: str
    name: str


class LakePlace(Protocol):
    path: str
    default_format: str

    def read(self) -> Saved | None:
        """For one who reads; None if there is no lake."""

    def changing(self) -> AbstractContextManager[Saved | None]:
        """For one who changes the lake: what was cut off is finished. Raises JourneymanError if
        another process is changing it."""

    def new_staging(self) -> str:
        """A directory for files that are written for a commit."""

    def settle(self, paths: Sequence[str]) -> None:
        """These files are durable when this returns."""

    def named(self, staged: Sequence[Staged], commit: int, /) -> list[Named]:
        """What staged files will be called."""

    def commit(self, state: LakeState, change: TableChange, named: Sequence[Named], /) -> None:
        """All of it happens, or nothing does. Raises JourneymanError if another process has changed
        the lake meanwhile."""

    def sizes(self, table: str) -> dict[str, int]:
        """Bytes of the files that are there, whether they count or not, by name."""

    def remove(self, table: str, names: Iterable[str]) -> None: ...


def place_of(path: str) -> LakePlace:
    """Where the lake at a path or URI is."""
    path = absolute(path)
    return ObjectStore(path.rstrip("/")) if is_uri(path) else Directory(path)


# ----------------------------------------
# A directory, local or of a mounted file system.


class Directory:
    default_format = "parquet"

    def __init__(self, path: str) -> None:
        self.path = path
        self._disk = RealDisk()

    def read(self) -> Saved | None:
        if os.path.exists(journal_path(self.path)) or os.path.exists(self._own(_DELTA)):
            with self.changing():
                pass
        return self._load()

    @contextmanager
    def changing(self) -> Iterator[Saved | None]:
        self._disk.make_dirs(self._own(_OWN))
        with _locked(self._own(f"{_OWN}/lock"), self.path):
            finish(self._disk, journal_path(self.path), sync_dirs=partial(_sync_places, self.path))
            shutil.rmtree(self._own(_STAGING), ignore_errors=True)
            self._finish_delta()
            yield self._load()

    def new_staging(self) -> str:
        directory = self._own(f"{_STAGING}/{uuid.uuid4().hex}")
        os.makedirs(posixpath.join(directory, ROWS))
        return directory

    def settle(self, paths: Sequence[str]) -> None:
        _sync_all(paths)

    def named(self, staged: Sequence[Staged], commit: int) -> list[Named]:
        ordinals = count()
        return [
            Named(
                staged_path(each.directory, each.table, file),
                each.table,
                posixpath.join(posixpath.dirname(file), f"{commit:08d}-{next(ordinals)}.parquet"),
            )
            for each in staged
            for file in each.files
        ]

    def commit(self, state: LakeState, change: TableChange, named: Sequence[Named]) -> None:
        places = {each.path: posixpath.join(each.table, each.name) for each in named}
        for place in {posixpath.dirname(each) for each in places.values()}:
            os.makedirs(self._own(place), exist_ok=True)
        files: dict[str, Any] = {_STATE: asdict(state)}
        gone = [posixpath.join(t, name) for t, names in change.removes.items() for name in names]
        if state.format == "delta":
            files[_DELTA] = asdict(change)
            gone = []
        directory = self.new_staging()
        for name, content in files.items():
            path = posixpath.join(directory, posixpath.basename(name))
            write_whole(self._disk, path, [json.dumps(content).encode()])
            places[path] = name
        renames = {posixpath.relpath(path, self.path): name for path, name in places.items()}
        publish(
            self._disk,
            journal_path(self.path),
            Publication(renames, tuple(gone)),
            sync_dirs=partial(_sync_places, self.path),
        )
        self._finish_delta()
        # Whatever is staged is part of this commit, or of none.
        shutil.rmtree(self._own(_STAGING), ignore_errors=True)

    def sizes(self, table: str) -> dict[str, int]:
        top = self._own(table)
        paths = (posixpath.join(above, name) for above, _, names in os.walk(top) for name in names)
        return {name_of(path): os.path.getsize(path) for path in paths if _holds_rows(path)}

    def remove(self, table: str, names: Iterable[str]) -> None:
        for name in names:
            os.remove(self._own(posixpath.join(table, name)))

    def _load(self) -> Saved | None:
        found = self._read_json(_STATE)
        return None if found is None else Saved(checked_state(self.path, found))

    def _finish_delta(self) -> None:
        found = self._read_json(_DELTA)
        if found is not None:
            apply_change(self.path, TableChange(**found))
            os.remove(self._own(_DELTA))

    def _read_json(self, name: str) -> Any | None:
        try:
            with open(self._own(name), encoding="utf-8", opener=open_regular) as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def _own(self, name: str) -> str:
        return posixpath.join(self.path, name)


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
    at_once(_sync, paths)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _holds_rows(path: str) -> bool:
    return path.endswith(".parquet") and "/_delta_log/" not in path


# ----------------------------------------
# A URI.


class ObjectStore:
    """A store that can create an object only if it is not there; all that deltalake opens can."""

    default_format = "delta"

    def __init__(self, path: str) -> None:
        self.path = path
        self._log: Any = None  # of commits, at the version that the next one follows

    def read(self) -> Saved | None:
        self._log = open_delta(self._commits)
        if self._log is None or self._log.version() == 0:
            return None
        said = json.loads(self._log.history(1)[0][_SAID])
        return Saved(checked_state(self.path, said["state"]), TableChange(**said["change"]))

    @contextmanager
    def changing(self) -> Iterator[Saved | None]:
        with ExitStack() as held:
            if lock := _lock_path(self.path):
                held.enter_context(_locked(lock, self.path))
            with errors_of_delta(self.path):
                import_deltalake().DeltaTable.create(
                    self._commits, _NO_ROWS, mode="ignore", storage_options=storage_options()
                )
            saved = self.read()
            if saved is not None and saved.last is not None:
                apply_change(self.path, saved.last)
            yield saved

    def new_staging(self) -> str:
        return self.path

    def settle(self, paths: Sequence[str]) -> None:
        """A store has what it has acknowledged."""

    def named(self, staged: Sequence[Staged], _commit: int, /) -> list[Named]:
        """What they are called already."""
        return [
            Named(staged_path(each.directory, each.table, file), each.table, file)
            for each in staged
            for file in each.files
        ]

    def commit(self, state: LakeState, change: TableChange, _named: Sequence[Named], /) -> None:
        deltalake = import_deltalake()
        said = json.dumps({"state": asdict(state), "change": asdict(change)})
        try:
            with errors_of_delta(self.path):
                self._log.create_write_transaction(
                    [],
                    mode="append",
                    schema=self._log.schema(),
                    commit_properties=deltalake.CommitProperties({_SAID: said}, 0),
                )
                self._log.load_as_version(self._log.version() + 1)
        except deltalake.exceptions.CommitFailedError as error:
            raise JourneymanError(
                f"{self.path}: another process has changed this lake meanwhile; nothing of this "
                "commit has happened: run the command again"
            ) from error
        apply_change(self.path, change)

    def sizes(self, table: str) -> dict[str, int]:
        found = remote_of(self.path).sizes_below(posixpath.join(self.path, table))
        return {name_of(path): size for path, size in found.items() if _holds_rows(path)}

    def remove(self, table: str, names: Iterable[str]) -> None:
        paths = [posixpath.join(self.path, table, name) for name in names]
        at_once(remote_of(self.path).remove, paths)

    @property
    def _commits(self) -> str:
        return posixpath.join(self.path, _COMMITS)


def _lock_path(lake: str) -> str | None:
    """A file that processes of this user on this machine lock while they change a lake at a URI:
    they might read the same logs, and one would take away what the other holds of these. None
    without a place for it."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path("~/.local/state").expanduser()
    directory = root / "journeyman" / "lakes"
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(directory / f"{hashlib.sha256(lake.encode()).hexdigest()[:16]}.lock")
    return None
