"""The engine ``sqlite``: one table of keys and values in a file.

    kv(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID      BLOBs compare as their bytes do

WAL and synchronous=FULL: a commit is synced, and readers never wait for the writer. A turn is BEGIN
IMMEDIATE, which also keeps out the writers of other processes. Each view has a connection of its
own while it lasts; those of views that are over wait in a pool.

    cache_capacity    PRAGMA cache_size, of each connection
    mode low_space         auto_vacuum: pages that become free are given back when the store closes
    mode high_throughput   a WAL of 64 MiB, not 32, before it is copied into the file, and 1 GiB of
                           the file mapped into memory
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock

from journeyman.config import StorageMode
from journeyman.disk import FILE_MODE
from journeyman.disk import Lock as FileLock
from journeyman.errors import StorageClosed, StorageError, StorageFull
from journeyman.storage import contract
from journeyman.units import MIB

FILE_NAME = "store.sqlite"

_BUSY_S = 60.0  # how long a writer waits for one in another process
_PAGE_BYTES = 4096
# So much before it is copied into the file: many small commits change the same pages.
_WAL_BYTES = {
    None: 32 * MIB,
    StorageMode.LOW_SPACE: 4 * MIB,
    StorageMode.HIGH_THROUGHPUT: 64 * MIB,
}
_MAPPED_BYTES = 1024 * MIB
_VARIABLES = 500  # the most in one statement; the library allows more
_TABLE = "CREATE TABLE IF NOT EXISTS kv(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID"


class _Statements(contract.Turn):
    """Reads by a connection; what is to be committed is kept."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.changes: contract.Changes = {}

    def get(self, key: bytes) -> bytes | None:
        row = self._connection.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for at in range(0, len(keys), _VARIABLES):
            some = keys[at : at + _VARIABLES]
            marks = ",".join("?" * len(some))
            found.update(
                self._connection.execute(f"SELECT k, v FROM kv WHERE k IN ({marks})", some)
            )
        return [found.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[contract.Entry]:
        order = "DESC" if reverse else "ASC"
        query = f"SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k {order} LIMIT ?"
        yield from self._connection.execute(query, (start, end, -1 if limit is None else limit))

    def commit(self, changes: contract.Changes) -> None:
        self.changes = changes

    def write(self) -> None:
        """Write what was committed, sorted, since neighbours are on one page."""
        items = sorted(self.changes.items())
        gone = [(key,) for key, value in items if value is None]
        kept = [item for item in items if item[1] is not None]
        if gone:
            self._connection.executemany("DELETE FROM kv WHERE k = ?", gone)
        self._connection.executemany(
            "INSERT INTO kv(k, v) VALUES(?, ?) ON CONFLICT(k) DO UPDATE SET v = excluded.v", kept
        )


class SqliteBackend(contract.Backend):
    """A store in the file store.sqlite of a directory."""

    name = "sqlite"

    def __init__(self, directory: str, options: contract.EngineOptions) -> None:
        self._directory = directory
        self._place = os.path.join(directory, FILE_NAME)
        self._options = options
        self._turn_lock = Lock()
        self._pool_lock = Lock()
        self._pool: list[sqlite3.Connection] = []
        self._closed = False
        self._alone: FileLock | None = None
        with _as_storage_error(self._place):
            with suppress(OSError):  # it is there, or SQLite says what is wrong
                os.close(os.open(self._place, os.O_CREAT | os.O_EXCL, FILE_MODE))
            self._writer = self._connect()
            self._writer.execute(_TABLE)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._place, isolation_level=None, timeout=_BUSY_S, check_same_thread=False
        )
        if self._options.mode is StorageMode.LOW_SPACE:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table only
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        wal_pages = _WAL_BYTES[self._options.mode] // _PAGE_BYTES
        connection.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
        if self._options.cache_capacity_bytes is not None:
            connection.execute(f"PRAGMA cache_size = -{self._options.cache_capacity_bytes // 1024}")
        if self._options.mode is StorageMode.HIGH_THROUGHPUT:
            connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES}")
        return connection

    @contextmanager
    def view(self) -> Iterator[contract.StoreReader]:
        with self._pool_lock:
            self._check_open()
            connection = self._pool.pop() if self._pool else None
        with _as_storage_error(self._place):
            connection = connection or self._connect()
            try:
                connection.execute("BEGIN")
                connection.execute("SELECT 1 FROM kv LIMIT 1").fetchone()  # the moment is now
                yield _Statements(connection)
            finally:
                connection.rollback()
                self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._pool_lock:
            if not self._closed:
                self._pool.append(connection)
                return
        connection.close()

    @contextmanager
    def turn(self) -> Iterator[contract.Turn]:
        with self._turn_lock:
            self._check_open()
            with _as_storage_error(self._place):
                yield from _one_turn(self._writer)

    def flush(self) -> None:
        """Every commit was synced."""
        self._check_open()

    def close(self) -> None:
        with self._turn_lock, self._pool_lock:
            if self._closed:
                return
            self._closed = True
            if self._options.mode is StorageMode.LOW_SPACE:
                with suppress(sqlite3.Error):  # another process reads; the space stays for later
                    self._writer.execute("PRAGMA incremental_vacuum").fetchall()
            for connection in (*self._pool, self._writer):
                connection.close()
            self._pool.clear()
            if self._alone is not None:
                self._alone.release()

    def be_alone(self) -> None:
        self._alone = contract.lock_directory(self._directory)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed(self._place, "the store was closed")


def _one_turn(connection: sqlite3.Connection) -> Iterator[contract.Turn]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        turn = _Statements(connection)
        yield turn
        turn.write()
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


@contextmanager
def _as_storage_error(place: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise StorageFull(place, f"sqlite: {error}") from error
        raise StorageError(place, f"sqlite: {error}") from error
