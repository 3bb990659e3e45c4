"""The engine ``postgres``: one table of keys and values in a PostgreSQL database, by psycopg.

    journeyman_kv(k bytea PRIMARY KEY, v bytea NOT NULL)       bytea compares as its bytes do

``storage.path`` is the address: postgresql://user@host/database, or what libpq takes otherwise.
For more than one machine: any number of processes on any number of hosts.

A view is a REPEATABLE READ transaction. A turn begins with an advisory lock of the database, which
all writers must hold, and ends with its commit; the server syncs it (synchronous_commit is on,
whatever the server's default). Each view has a connection of its own while it lasts; turns share
one, which also holds the lock of ``be_alone``.

Round trips of a turn that changes jobs, however many there are in it:

    BEGIN, lock, epoch | their records | counters | DELETE, INSERT, COMMIT

**The fence.** ``be_alone`` takes a session's lock and raises the epoch in journeyman_epoch. Every
turn of that process compares the epoch after it has the lock of all writers, which the next one
needs to raise it: so a server that lost its session's lock, and another has taken it since, cannot
commit, even if it has not noticed.

A server that restarts, or cuts idle connections:

    found dead before anything was asked    a new connection; the caller does not notice
    lost before the commit                  StorageUnavailable: nothing was changed, try again
    lost in the commit                      the new connection asks the server how the transaction
                                            ended; StorageError if it does not say so in time
    another took the lock of ``be_alone``   StorageLocked: what it has written is unknown here
    its host disappeared                    the server ends the session within _GONE_S
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from journeyman import errors
from journeyman.clock import SystemClock
from journeyman.storage import contract
from journeyman.units import NS_PER_S

_Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS journeyman_kv(k bytea PRIMARY KEY, v bytea NOT NULL)",
    "CREATE TABLE IF NOT EXISTS journeyman_epoch(epoch bigint NOT NULL)",  # one row
    "INSERT INTO journeyman_epoch SELECT 0 WHERE NOT EXISTS (SELECT FROM journeyman_epoch)",
)
_ALONE_KEY: Final = 7237123446850545010
_TRY_LOCK_ALONE: Final = f"SELECT pg_try_advisory_lock({_ALONE_KEY})"  # until the connection ends
_LOCK: Final = "SELECT pg_advisory_xact_lock(7237123446850545009)"  # in this database
# Each statement sees what was committed before it: the epoch is read when the lock is held.
_BEGIN: Final = f"BEGIN; {_LOCK}; SELECT txid_current(), epoch FROM journeyman_epoch"
_BEGIN_VIEW: Final = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    " SELECT 1 FROM journeyman_kv LIMIT 1"  # the moment is now
)
_OUTCOME: Final = "SELECT txid_status(%s)"
# A server that has not noticed that a connection was lost keeps its transaction and its locks.
_WHICH: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_END_IT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
)
_CONNECT_S: Final = 10
_GONE_S: Final = 10  # until the server ends the session of a host that does not answer
_SESSION: Final = (
    "SET synchronous_commit = on; SET bytea_output = hex; SET jit = off;"
    " SET tcp_keepalives_idle = 4;"
    " SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;"
    f" SET tcp_user_timeout = {_GONE_S * 1000}"
)
# So that a server that disappears is noticed, unless the address says otherwise.
_NOTICE: Final = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_OUTCOME_S: Final = 30  # for the server to come back and say how a commit ended
_POLL_S: Final = 0.2
_ALONE_TRIES: Final = 10  # with _POLL_S between them, while the server ends a connection
_FIRST_ROWS, _ROWS = 16, 500  # fetched at a time by a scan, at first and later
_TAKEN_OVER: Final = "another server took this database over while the connection was lost"
_POOLED: Final = 8  # connections that wait for the next view


class _Rows(contract.Turn):
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.changes: contract.Changes = {}

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._connection.execute(
            "SELECT k, v FROM journeyman_kv WHERE k = ANY(%b)", (list(keys),), binary=True
        )
        found: dict[bytes, bytes] = dict(rows.fetchall())
        return [found.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[contract.Entry]:
        left, asked = limit, _FIRST_ROWS
        while left is None or left > 0:
            count = asked if left is None else min(left, asked)
            rows = self._some(start, end, reverse, count)
            yield from rows
            if len(rows) < count:
                return
            left, asked = None if left is None else left - len(rows), _ROWS
            start, end = (start, rows[-1][0]) if reverse else (rows[-1][0] + b"\0", end)

    def _some(self, start: bytes, end: bytes, reverse: bool, count: int) -> list[contract.Entry]:
        query = sql.SQL(
            "SELECT k, v FROM journeyman_kv WHERE k >= %s AND k < %s ORDER BY k {} LIMIT %s"
        ).format(sql.SQL("DESC" if reverse else "ASC"))
        rows: list[contract.Entry] = self._connection.execute(
            query, (start, end, count), binary=True
        ).fetchall()
        return rows

    def epoch(self) -> int:
        row = self._connection.execute("SELECT epoch FROM journeyman_epoch").fetchone()
        return -1 if row is None else int(row[0])

    def commit(self, changes: contract.Changes) -> None:
        self.changes = changes

    def write(self) -> None:
        """The changes and the end of the transaction, in one round trip."""
        gone = [key for key, value in self.changes.items() if value is None]
        kept = [(key, value) for key, value in self.changes.items() if value is not None]
        with self._connection.pipeline():
            if gone:
                self._connection.execute("DELETE FROM journeyman_kv WHERE k = ANY(%b)", (gone,))
            if kept:
                keys, values = zip(*kept, strict=True)
                self._connection.execute(
                    "INSERT INTO journeyman_kv(k, v) SELECT * FROM unnest(%b::bytea[], %b::bytea[])"
                    " ON CONFLICT (k) DO UPDATE SET v = excluded.v",
                    (list(keys), list(values)),
                    binary=True,
                )
            self._connection.execute("COMMIT")


class PostgresBackend(contract.Backend):
    """A store in a database."""

    name = "postgres"

    def __init__(self, address: str) -> None:
        self._address = address
        self._parameters = address_parameters(address)
        self._clock = SystemClock()
        self._lock = Lock()  # guards the pool
        self._turn = Lock()
        self._pool: list[_Connection] = []
        self._closed = False
        self._writer: _Connection | None = None
        self._session: tuple[Any, ...] = (
            None,
            None,
        )  # identifies the session of the writer, also after it has ended
        self._epoch: int | None = None  # the number of this process, once it is the only one
        with self._turn:
            self._make_tables()

    def _make_tables(self) -> None:
        """Make the tables while the lock is held: two that make them at once would get in each
        other's way."""
        connection = self._connect()
        with self._as_unavailable(connection):
            connection.execute("; ".join(("BEGIN", _LOCK, *_TABLES, "COMMIT")))
        connection.close()

    # -- connections --

    def _connect(self) -> _Connection:
        try:
            connection = psycopg.connect(**self._parameters, autocommit=True)
        except psycopg.Error as error:
            raise errors.StorageUnavailable(self.name, self._reason(error)) from None
        with self._as_unavailable(connection):
            connection.execute(_SESSION)
        return connection

    @contextmanager
    def _as_unavailable(self, connection: _Connection) -> Iterator[None]:
        """An error before the commit: nothing was changed, and the connection is given up."""
        try:
            yield
        except psycopg.Error as error:
            self._give_up(connection)
            if isinstance(error, psycopg.errors.DiskFull):
                raise errors.StorageFull(self.name, self._reason(error)) from None
            raise errors.StorageUnavailable(self.name, self._reason(error)) from None

    def _give_up(self, connection: _Connection) -> None:
        if connection is self._writer:
            self._writer = None
        with suppress(psycopg.Error):
            connection.close()
        self._forget_pool()  # a server that is lost for one is lost for all

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StorageClosed(self.name, "the store was closed")

    # -- reading --

    def _begin_view(self) -> _Connection:
        """A connection of the pool, unless it turns out to be dead; then a new one."""
        with self._lock:
            self._check_open()
            connection = self._pool.pop() if self._pool else None
        if connection is not None:
            try:
                connection.execute(_BEGIN_VIEW)
            except psycopg.Error:
                self._give_up(connection)
            else:
                return connection
        connection = self._connect()
        with self._as_unavailable(connection):
            connection.execute(_BEGIN_VIEW)
        return connection

    @contextmanager
    def view(self) -> Iterator[contract.StoreReader]:
        connection = self._begin_view()
        is_clean = False
        try:
            with self._as_unavailable(connection):
                yield _Rows(connection)
                connection.rollback()
            is_clean = True
        finally:
            with self._lock:
                is_kept = is_clean and not self._closed and len(self._pool) < _POOLED
                if is_kept:
                    self._pool.append(connection)
            if not is_kept:
                connection.close()

    # -- writing --

    @contextmanager
    def turn(self) -> Iterator[contract.Turn]:
        with self._turn:
            connection, number = self._begin_turn()
            turn = _Rows(connection)
            with self._as_unavailable(connection):
                try:
                    yield turn
                except BaseException:
                    connection.rollback()  # the connection stays: it may hold the lock
                    raise
            self._end_turn(turn.write, connection, number)

    def _begin_turn(self) -> tuple[_Connection, int]:
        """The writer's connection, with the lock, and the number of the transaction."""
        self._check_open()
        if self._writer is not None:
            try:
                return self._writer, self._begin_writing(self._writer)
            except psycopg.Error:  # nothing was asked yet: a new one is as good
                self._give_up(self._writer)
        connection = self._connect()
        try:
            with self._as_unavailable(connection):
                if self._epoch is not None:
                    self._be_alone_again(connection)
                session = connection.execute(_WHICH).fetchone()
                number = self._begin_writing(connection)
        except errors.StorageError:
            connection.close()
            raise
        self._writer, self._session = connection, session or (None, None)
        return connection, number

    def _begin_writing(self, connection: _Connection) -> int:
        cursor = connection.execute(_BEGIN)
        while cursor.nextset():
            pass  # to the last statement
        row = cursor.fetchone()
        assert row is not None
        self._check_epoch(connection, row[1])
        return int(row[0])

    def _check_epoch(self, connection: _Connection, epoch: int) -> None:
        if self._epoch is not None and epoch != self._epoch:
            connection.rollback()
            raise errors.StorageLocked(self.name, _TAKEN_OVER)

    def _end_turn(self, write: Callable[[], None], connection: _Connection, number: int) -> None:
        """``write`` ends the transaction; or, if it cannot, nothing of it was done."""
        try:
            write()
        except psycopg.Error as error:
            is_answered = not connection.broken
            said = self._reason(error)
            self._give_up(connection)
            if not is_answered and self._was_committed(number, said):
                return
            kind = (
                errors.StorageFull
                if isinstance(error, psycopg.errors.DiskFull)
                else errors.StorageUnavailable
            )
            raise kind(self.name, said) from None

    def _was_committed(self, number: int, reason: str) -> bool:
        """How the transaction ended whose commit was not answered."""
        deadline_ns = self._clock.monotonic_ns() + _OUTCOME_S * NS_PER_S
        while True:
            try:
                outcome = self._ask_outcome(number)
            except errors.StorageUnavailable:
                outcome = None
            if outcome is not None:
                return outcome == "committed"
            if self._clock.monotonic_ns() >= deadline_ns:
                reason = f"{reason}; whether the last commit was done is unknown"
                raise errors.StorageError(self.name, reason)
            self._clock.sleep(_POLL_S)

    def _ask_outcome(self, number: int) -> str | None:
        connection = self._connect()
        with self._as_unavailable(connection):
            connection.execute(f"SET lock_timeout = '{_OUTCOME_S}s'")
            connection.execute(_END_IT, self._session)
            connection.execute(_LOCK)  # the transaction holds it until it has ended
            row = connection.execute(_OUTCOME, (number,)).fetchone()
            connection.rollback()
        connection.close()
        return row[0] if row is not None and row[0] in ("committed", "aborted") else None

    def flush(self) -> None:
        """Every commit was synced by the server."""
        self._check_open()

    # -- alone --

    def be_alone(self) -> None:
        """Held by the connection that writes: when it breaks, others may come in."""
        with self._turn:
            connection, number = self._begin_turn()
            with self._as_unavailable(connection):
                if not _is_alone(connection):
                    connection.rollback()  # gives up the lock of the turn as well
                    raise errors.StorageLocked(self.name, "a server has its jobs in this database")
                row = connection.execute(
                    "UPDATE journeyman_epoch SET epoch = epoch + 1 RETURNING epoch"
                ).fetchone()
            assert row is not None
            self._end_turn(connection.commit, connection, number)
            self._epoch = int(row[0])

    def _be_alone_again(self, connection: _Connection) -> None:
        """Unless another was alone meanwhile: then what is in the database is its work."""
        connection.execute(_END_IT, self._session)
        is_alone = _is_alone(connection)
        for _ in range(_ALONE_TRIES):
            if is_alone:
                break
            self._clock.sleep(_POLL_S)
            is_alone = _is_alone(connection)
        self._check_epoch(connection, _Rows(connection).epoch())
        if not is_alone:
            reason = "the database has not ended the connection that was lost"
            raise errors.StorageUnavailable(self.name, reason)

    # -- the store --

    def close(self) -> None:
        with self._turn:
            with self._lock:
                self._closed = True
            self._forget_pool()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _forget_pool(self) -> None:
        with self._lock:
            connections, self._pool = self._pool, []
        for connection in connections:
            connection.close()

    def entries_about(self) -> int:
        connection = self._begin_view()
        with self._as_unavailable(connection):
            row = connection.execute(
                "SELECT reltuples::bigint FROM pg_class WHERE oid = 'journeyman_kv'::regclass"
            ).fetchone()
        connection.close()
        return 0 if row is None else max(0, row[0])

    def _reason(self, error: psycopg.Error) -> str:
        return _without_password(error, self._address)


def _without_password(error: psycopg.Error, address: str) -> str:
    """Return what the server said, without the lines that draw where; never the password."""
    said = " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
    password = address_parameters(address).get("password")
    return said.replace(str(password), "***") if password else said


def address_parameters(address: str) -> dict[str, Any]:
    """Return what the address says. Raises UsageError for what is not the address of a database."""
    try:
        found = conninfo_to_dict(address)
    except psycopg.Error:  # its text shows parts of the address, perhaps the password
        raise errors.UsageError(
            "storage.path: storage.engine postgres needs the address of a database here: "
            "postgresql://USER@HOST/DATABASE"
        ) from None
    return {**_NOTICE, **found}


def _is_alone(connection: _Connection) -> bool:
    row = connection.execute(_TRY_LOCK_ALONE).fetchone()
    return row is not None and bool(row[0])
