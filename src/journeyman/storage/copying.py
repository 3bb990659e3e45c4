"""A copy of a store that a server may be using: for backups.

    sqlite     its own online backup: the copy is the store at one moment
    rocksdb    a second reader follows the files of the first process, and what it sees at one
               moment is written to a new store; the first process does not notice
    postgres   is not a directory: pg_dump

Copies are plain stores: the engine opens them as they are.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing

from journeyman.disk import RealDisk
from journeyman.errors import StorageError
from journeyman.storage.sqlite import FILE_NAME as SQLITE_FILE

_ROCKSDB_FILE = "CURRENT"
_BATCH = 1000
_ATTEMPTS = 20  # the first process may remove a file that we are about to open


def copy_store(source: str, target: str) -> None:
    """``target`` is made, and is empty if ``source`` holds no store. StorageError."""
    RealDisk().make_dirs(target)
    if os.path.exists(os.path.join(source, SQLITE_FILE)):
        _copy_sqlite(os.path.join(source, SQLITE_FILE), os.path.join(target, SQLITE_FILE))
    elif os.path.exists(os.path.join(source, _ROCKSDB_FILE)):
        _copy_rocksdb(source, target)


def _copy_sqlite(source: str, target: str) -> None:
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
    except sqlite3.Error as error:
        raise StorageError(source, f"cannot be copied: {error}") from error


def _copy_rocksdb(source: str, target: str) -> None:
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
