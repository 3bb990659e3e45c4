"""The engine ``postgres``: one table of keys and values in a PostgreSQL database, by psycopg.

    journeyman_kv(k bytea PRIMARY KEY, v bytea NOT NULL)       bytea compares as its bytes do

``storage.path`` is the address: postgresql://user@host/database, or what libpq takes otherwise.
For those who outgrow one machine: any number of processes on any number of hosts.

A view is a REPEATABLE READ transaction. A turn begins with an advisory lock of the database, which
whoever writes must hold, and ends with its commit; the server syncs it (synchronous_commit is on,
whatever the server's default). Each view and turn has a connection of its own while it lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql

from journeyman.errors import StorageClosed, StorageError, StorageLocked, UsageError
from journeyman.storage.contract import Backend, Changes, Entry, Reader, Stats, Turn

__all__ = ["PostgresBackend"]

_Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_TABLE: Final = "CREATE TABLE IF NOT EXISTS journeyman_kv(k bytea PRIMARY KEY, v bytea NOT NULL)"
_ALONE: Final = "SELECT pg_try_advisory_lock(7237123446850545010)"  # until the connection ends
_LOCK: Final = "SELECT pg_advisory_xact_lock(7237123446850545009)"  # ours alone, in its database
_CONNECT_S: Final = 10
_ROWS: Final = 500  # fetched at a time by a scan
_POOLED: Final = 8  # connections that wait for the next view


class _Rows(Turn):
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.changes: Changes = {}

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._connection.execute(
            "SELECT k, v FROM journeyman_kv WHERE k = ANY(%s)", (list(keys),), binary=True
        )
        found: dict[bytes, bytes] = dict(rows.fetchall())
        return [found.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[Entry]:
        left = limit
        while left is None or left > 0:
            rows = self._some(start, end, reverse, _ROWS if left is None else min(left, _ROWS))
            yield from rows
            if len(rows) < _ROWS:
                return
            left = None if left is None else left - len(rows)
            start, end = (start, rows[-1][0]) if reverse else (rows[-1][0] + b"\0", end)

    def _some(self, start: bytes, end: bytes, reverse: bool, count: int) -> list[Entry]:
        query = sql.SQL(
            "SELECT k, v FROM journeyman_kv WHERE k >= %s AND k < %s ORDER BY k {} LIMIT %s"
        ).format(sql.SQL("DESC" if reverse else "ASC"))
        rows: list[Entry] = self._connection.execute(
            query, (start, end, count), binary=True
        ).fetchall()
        return rows

    def commit(self, changes: Changes) -> None:
        self.changes = changes

    def write(self) -> None:
        gone = [key for key, value in self.changes.items() if value is None]
        kept = [(key, value) for key, value in self.changes.items() if value is not None]
        if gone:
            self._connection.execute("DELETE FROM journeyman_kv WHERE k = ANY(%s)", (gone,))
        if kept:
            keys, values = zip(*kept, strict=True)
            self._connection.execute(
                "INSERT INTO journeyman_kv(k, v) SELECT * FROM unnest(%s::bytea[], %s::bytea[])"
                " ON CONFLICT (k) DO UPDATE SET v = excluded.v",
                (list(keys), list(values)),
                binary=True,
            )


class PostgresBackend(Backend):
    """A store in a database."""

    name = "postgres"

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = Lock()
        self._pool: list[_Connection] = []
        self._closed = False
        self._alone: _Connection | None = None
        with self._connection() as connection:
            # Two that make the table at once would get in each other's way without the lock.
            connection.execute(_LOCK)
            connection.execute(_TABLE)
            connection.commit()

    def _connect(self) -> _Connection:
        try:
            connection = psycopg.connect(self._address, connect_timeout=_CONNECT_S)
        except psycopg.ProgrammingError as error:  # an address that cannot be read
            raise UsageError(f"storage.path: {_one_line(error)}") from None
        except psycopg.Error as error:
            raise StorageError(self.name, _one_line(error)) from error
        connection.execute("SET synchronous_commit = on")
        connection.execute("SET bytea_output = hex")
        connection.commit()
        return connection

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        with self._lock:
            if self._closed:
                raise StorageClosed(self.name, "the store was closed")
            connection = self._pool.pop() if self._pool else None
        if connection is None or connection.broken:
            connection = self._connect()
        try:
            yield connection
            connection.rollback()
        except BaseException as error:
            connection.close()  # whatever it was at is rolled back by the server
            if isinstance(error, psycopg.Error):
                self._forget_pool()  # the server that is gone for one is gone for all
                raise StorageError(self.name, _one_line(error)) from error
            raise
        if not self._kept(connection):
            connection.close()

    def _kept(self, connection: _Connection) -> bool:
        """Whether the connection waits for the next who needs one."""
        with self._lock:
            is_wanted = not self._closed and len(self._pool) < _POOLED
            if is_wanted:
                self._pool.append(connection)
            return is_wanted

    @contextmanager
    def view(self) -> Iterator[Reader]:
        with self._connection() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute("SELECT 1 FROM journeyman_kv LIMIT 1")  # the moment is now
            yield _Rows(connection)

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        with self._connection() as connection:
            connection.execute(_LOCK)
            turn = _Rows(connection)
            yield turn
            turn.write()
            connection.commit()

    def flush(self) -> None:
        """Every commit was synced by the server."""
        with self._connection():
            pass

    def be_alone(self) -> None:
        """Held by a connection of its own: one that breaks lets others in."""
        connection = self._connect()
        row = connection.execute(_ALONE).fetchone()
        connection.commit()
        if row is None or not row[0]:
            connection.close()
            raise StorageLocked(self.name, "another server has its jobs in this database")
        self._alone = connection

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._forget_pool()
        if self._alone is not None:
            self._alone.close()

    def _forget_pool(self) -> None:
        with self._lock:
            connections, self._pool = self._pool, []
        for connection in connections:
            connection.close()

    def stats(self) -> Stats:
        with self._connection() as connection:
            row = connection.execute(
                "SELECT pg_total_relation_size('journeyman_kv'), reltuples::bigint"
                " FROM pg_class WHERE oid = 'journeyman_kv'::regclass"
            ).fetchone()
        size, entries = row or (None, None)
        return Stats(self.name, size, entries if entries is not None and entries >= 0 else None)


def _one_line(error: psycopg.Error) -> str:
    """What the server said, without the lines that draw where; never the address."""
    return " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
