"""Engines by their names: what each can be asked for, opening a store, and copying one.

    name       where                   library                  cache_capacity   mode
    rocksdb    a directory             rocksdict                yes              yes
    sqlite     a file in a directory   Python's own             yes              yes
    postgres   a database's address    psycopg                  no: the server's own settings
    memory     nowhere                 none                     no

An option that an engine has nothing for is refused instead of ignored. Libraries are imported when
their engine is asked for: a server without a store has none of them.

A store that a server may be using is copied for a backup. Copies are plain stores: the engine opens
them as they are.

    sqlite     its own online backup: the copy is the store at one moment
    rocksdb    a second reader follows the files of the first process, and what it sees at one
               moment is written to a new store; the first process does not notice
    postgres   is not a directory: pg_dump
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import Final

from journeyman.config import StorageEngine
from journeyman.disk import RealDisk
from journeyman.errors import StorageError, UsageError
from journeyman.storage.contract import Backend, EngineOptions
from journeyman.storage.memory import MemoryBackend

_NO_OPTIONS: Final = {
    StorageEngine.POSTGRES: "it is the server's: see its shared_buffers and synchronous_commit",
    StorageEngine.MEMORY: "everything is in memory",
}


_LIBRARIES: Final = {
    StorageEngine.ROCKSDB: ("rocksdict", "storage"),
    StorageEngine.POSTGRES: ("psycopg", "postgres"),
}


def open_backend(engine: str, path: str, options: EngineOptions) -> Backend:
    """An open store; UsageError for what cannot be asked, StorageError if it cannot be opened."""
    return _OPENERS[check_engine(engine, options)](path, options)


def check_engine(engine: str, options: EngineOptions) -> StorageEngine:
    """The engine of this name; UsageError for what cannot be asked of it, or is not installed."""
    try:
        name = StorageEngine(engine)
    except ValueError:
        allowed = ", ".join(StorageEngine)
        raise UsageError(f"unsupported storage.engine {engine!r}; there are {allowed}") from None
    if name in _NO_OPTIONS:
        for option, value in (
            ("cache_capacity", options.cache_capacity_bytes),
            ("mode", options.mode),
        ):
            if value is not None:
                raise UsageError(f"storage.{option}: {name} has none ({_NO_OPTIONS[name]})")
    library, extra = _LIBRARIES.get(name, ("", ""))
    if library and find_spec(library) is None:
        raise UsageError(
            f"storage.engine {name}: its library is missing; pip install 'journeyman[{extra}]'"
        )
    return name


def check_path(engine: StorageEngine, path: str) -> None:
    """UsageError if the engine cannot use such a path; whether something is there is seen later."""
    if engine is StorageEngine.POSTGRES:
        from journeyman.storage.postgres import address_parameters

        address_parameters(path)


def _open_rocksdb(path: str, options: EngineOptions) -> Backend:
    from journeyman.storage.rocksdb import RocksBackend

    return RocksBackend(_directory(path), options)


def _open_sqlite(path: str, options: EngineOptions) -> Backend:
    from journeyman.storage.sqlite import SqliteBackend

    return SqliteBackend(_directory(path), options)


def _open_postgres(path: str, options: EngineOptions) -> Backend:
    del options
    from journeyman.storage.postgres import PostgresBackend

    return PostgresBackend(path)


def _open_memory(path: str, options: EngineOptions) -> Backend:
    del path, options
    return MemoryBackend()


_OPENERS: Final[dict[StorageEngine, Callable[[str, EngineOptions], Backend]]] = {
    StorageEngine.ROCKSDB: _open_rocksdb,
    StorageEngine.SQLITE: _open_sqlite,
    StorageEngine.POSTGRES: _open_postgres,
    StorageEngine.MEMORY: _open_memory,
}


def _directory(path: str) -> str:
    try:
        RealDisk().make_dirs(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"failed to create storage data directory {path!r}: {reason}") from None
    return path


_ROCKSDB_FILE = "CURRENT"
_BATCH = 1000
_ATTEMPTS = 20  # the first process may remove a file that we are about to open


def copy_store(source: str, target: str) -> None:
    """``target`` is made, and is empty if ``source`` holds no store. StorageError."""
    from journeyman.storage.sqlite import FILE_NAME as SQLITE_FILE

    RealDisk().make_dirs(target)
    if os.path.exists(os.path.join(source, SQLITE_FILE)):
        _copy_sqlite(os.path.join(source, SQLITE_FILE), os.path.join(target, SQLITE_FILE))
    elif os.path.exists(os.path.join(source, _ROCKSDB_FILE)):
        _copy_rocksdb(source, target)


def _copy_sqlite(source: str, target: str) -> None:
    import sqlite3

    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
    except sqlite3.Error as error:
        raise StorageError(source, f"cannot be copied: {error}") from error


def _copy_rocksdb(source: str, target: str) -> None:
    import tempfile

    from rocksdict import AccessType, Options, Rdict, WriteBatch

    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="journeyman-") as notes:
            copy = Rdict(target, Options(raw_mode=True))
            try:
                how = AccessType.secondary(notes)
                original = Rdict(source, Options(raw_mode=True), access_type=how)
                original.try_catch_up_with_primary()
                batch = WriteBatch(raw_mode=True)
                for key, value in original.items():
                    batch.put(key, value)
                    if batch.len() >= _BATCH:
                        copy.write(batch)
                        batch = WriteBatch(raw_mode=True)
                copy.write(batch)
                original.close()
                return
            except Exception as error:  # the library has one kind of error
                if attempt == _ATTEMPTS - 1:
                    raise StorageError(source, f"cannot be copied: {error}") from error
            finally:
                copy.flush()
                copy.close()
        Rdict.destroy(target, Options(raw_mode=True))
