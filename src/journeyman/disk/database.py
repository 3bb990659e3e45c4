"""Connections to the PostgreSQL database of a data directory.

    postgresql://USER@HOST:PORT/DATABASE[?PARAMETERS][/path/of/a/file]

The parameters are those of libpq, slashes in them written as %2F. An address has no password: paths
are shown in messages, process lists and plans. libpq takes it from PGPASSFILE, ~/.pgpass or
PGPASSWORD, in every process that reads or writes.

``change`` and ``ask`` outlive a lost connection: what was sent is sent again on a new one, so it
has to mean the same when it was already done. One answer of the server that is an error says that
nothing was changed.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from journeyman import threads
from journeyman.disk.contract import NotWritten
from journeyman.errors import UsageError
from journeyman.units import NS_PER_S

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Sequence[object] | Mapping[str, object]

DEADLINE_S: Final = 8.0  # a write that takes longer will not be answered
RETRY_S: Final = 0.05
FENCED: Final = "JM001"
ANSWER_S: Final = 60.0  # for a question; a link that stalls says nothing by itself
POOLED: Final = 4  # connections that wait for the next reader

# A connection or a host that is lost is noticed before the deadline.
_NOTICE: Final = {
    "connect_timeout": 2,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
    "application_name": "journeyman",
}
_SESSION: Final = (
    "SET synchronous_commit = on; SET statement_timeout = 0; SET lock_timeout = 0;"
    " SET default_transaction_read_only = off; SET jit = off;"
    " SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3"
)
OWN_SESSION: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
END_SESSION: Final = (
    "SELECT pg_terminate_backend(pid, 3000) FROM pg_stat_activity"
    " WHERE pid = %s AND backend_start = %s"
)
_ADDRESS = re.compile(r"(postgres(?:ql)?://[^/?]*/[^/?]+(?:\?[^/]*)?)(?:/(.*))?", re.DOTALL)
# The classes of errors after which the same statement may succeed: the connection, a restart.
_LOST: Final = ("08", "57P", "25006", "23505", "40")
# The warning that a commit is not on the replica has this in its text. Its code may be any.
_REPLICATION_WAIT: Final = "SyncRepWaitForLSN"


class AddressedPath(NamedTuple):
    address: str
    names: tuple[str, ...]


def boot_ns() -> int:
    """The time since the machine was started, which runs on while it is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def split_address(path: str) -> AddressedPath:
    """The database of a path, and the names on the way to the file. UsageError."""
    match = _ADDRESS.fullmatch(path)
    if match is None:
        raise UsageError(
            "expected the address of a database: postgresql://USER@HOST/DATABASE (slashes in "
            "parameters are written as %2F)"
        )
    names = tuple(name for name in (match[2] or "").split("/") if name not in ("", "."))
    return AddressedPath(match[1], names)


def normalized(address: str) -> str:
    """An address that paths can be appended to: slashes in its parameters are escaped."""
    head, mark, parameters = address.rstrip("/").partition("?")
    return head + mark + parameters.replace("/", "%2F")


def connection_parameters(address: str) -> dict[str, Any]:
    """The parameters for libpq. UsageError: no address, or one with a password."""
    try:
        found: Mapping[str, Any] = conninfo_to_dict(address)
    except psycopg.Error:  # its text shows parts of the address, perhaps the password
        raise UsageError("the address of the database cannot be read") from None
    if found.get("password") or found.get("sslpassword"):
        raise UsageError(
            "the address of the database holds a password, which would show in process lists and "
            "messages; put it into PGPASSFILE or PGPASSWORD"
        )
    return {**_NOTICE, **found}


def connect(parameters: Mapping[str, Any]) -> Connection:
    """A session with the settings that the promises rest on. psycopg.Error."""
    connection = psycopg.connect(**parameters, autocommit=True)
    try:
        connection.execute(_SESSION)
    except BaseException:
        connection.close()
        raise
    return connection


def is_lost(error: psycopg.Error) -> bool:
    """True if the same statement may succeed on another connection."""
    return error.sqlstate is None or error.sqlstate.startswith(_LOST)


def reason_of(error: Exception) -> str:
    """The first line of what the server or the library said."""
    return " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__


def hang_up(connection: Connection) -> None:
    """Wake up a thread that waits for an answer on this connection: it gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Database:
    """See the module. Safe to use from several threads; changes are made one after another."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.parameters = connection_parameters(address)
        self.epoch: int | None = None  # this server's; None: writes are not fenced
        self._changing = threading.Lock()
        self._writer: Connection | None = None
        self._session: Row = (None, None)  # the last writer's, for the database
        self._is_unreplicated = False
        self._pool: list[Connection] = []
        self._pooling = threading.Lock()
        self._asked: dict[Connection, int] = {}  # since when a question waits for its answer
        self._watch: threads.StartedThread | None = None
        self._is_closed = threading.Event()
        self.waiting_since_ns: int | None = None  # the change that is under way

    def run_script(self, script: str) -> None:
        """Run statements that may be repeated, in one transaction; one process at a time."""
        try:
            with self._changing, connect(self.parameters) as connection:
                connection.execute(f"SELECT pg_advisory_xact_lock(7236); {script}")
        except psycopg.Error as error:
            raise OSError(errno.EIO, reason_of(error), self.address) from error

    def change(self, statement: str, values: Values, about: str) -> list[Row]:
        """Committed when it returns. NotWritten: it is not; any other OSError: that is unknown."""
        with self._changing:
            self.waiting_since_ns = begun_ns = boot_ns()
            is_sent = False  # an earlier try may have been committed
            try:
                while True:
                    try:
                        return self._try_change(statement, values)
                    except psycopg.Error as error:
                        if not is_lost(error):
                            if is_sent:
                                raise OSError(errno.EIO, reason_of(error), about) from error
                            raise _not_written(error, about) from error
                        is_sent = is_sent or self._writer is not None
                        self._drop_writer()
                        if boot_ns() - begun_ns >= DEADLINE_S * NS_PER_S:
                            raise OSError(errno.ETIMEDOUT, reason_of(error), about) from error
                        time.sleep(RETRY_S)
            finally:
                self.waiting_since_ns = None

    def _try_change(self, statement: str, values: Values) -> list[Row]:
        if self._writer is None:
            self._writer = self._new_writer()
        self._is_unreplicated = False
        cursor = self._writer.execute(statement, values, prepare=True, binary=True)
        rows = cursor.fetchall() if cursor.description is not None else []
        if self._is_unreplicated:
            raise psycopg.OperationalError("the commit was not replicated")
        return rows

    def _new_writer(self) -> Connection:
        """A connection for changes; the session of the last one has ended then, so that nothing
        that was sent there can arrive later."""
        writer = connect(self.parameters)
        try:
            ended = writer.execute(END_SESSION, self._session).fetchall()
            if (False,) in ended:
                raise psycopg.OperationalError("the database has not ended the lost session")
            self._session = writer.execute(OWN_SESSION).fetchone() or (None, None)
        except BaseException:
            writer.close()
            raise
        writer.add_notice_handler(self._notice)
        return writer

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == _REPLICATION_WAIT:
            self._is_unreplicated = True

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def hang_up(self) -> None:
        """The change that is under way waits for an answer that may never come: send it again."""
        writer = self._writer
        if writer is not None:
            hang_up(writer)

    def ask(self, query: str, values: Values, about: str) -> list[Row]:
        """The rows of a question. OSError: there is no answer, within ANSWER_S either."""
        begun_ns = boot_ns()
        while True:
            connection = None
            try:
                connection = self._pooled() or connect(self.parameters)
                rows = self._ask_on(connection, query, values)
            except psycopg.Error as error:
                if connection is not None:
                    connection.close()
                if not is_lost(error):
                    if isinstance(error, psycopg.errors.UndefinedTable):
                        return []  # no server has used this database yet
                    raise OSError(errno.EIO, reason_of(error), about) from error
                if boot_ns() - begun_ns >= DEADLINE_S * NS_PER_S:
                    raise OSError(errno.ETIMEDOUT, reason_of(error), about) from error
                time.sleep(RETRY_S)
            else:
                with self._pooling:
                    is_kept = len(self._pool) < POOLED
                    if is_kept:
                        self._pool.append(connection)
                if not is_kept:
                    connection.close()
                return rows

    def _ask_on(self, connection: Connection, query: str, values: Values) -> list[Row]:
        if self._watch is None:
            self._watch = threads.start(self._end_old_questions, "journeyman-patience", daemon=True)
        self._asked[connection] = boot_ns()
        try:
            return connection.execute(query, values, prepare=True, binary=True).fetchall()
        finally:
            del self._asked[connection]

    def _end_old_questions(self) -> None:
        while not self._is_closed.wait(1.0):
            oldest_ns = boot_ns() - int(ANSWER_S * NS_PER_S)
            for connection, asked_ns in list(self._asked.items()):
                if asked_ns < oldest_ns:
                    hang_up(connection)

    def _pooled(self) -> Connection | None:
        with self._pooling:
            return self._pool.pop() if self._pool else None

    def close(self) -> None:
        self._is_closed.set()
        with self._changing:
            self._drop_writer()
        while (connection := self._pooled()) is not None:
            connection.close()


def _not_written(error: psycopg.Error, about: str) -> OSError:
    """The server answered with an error, so the transaction was rolled back."""
    if isinstance(error, psycopg.errors.DiskFull):
        return NotWritten(errno.ENOSPC, os.strerror(errno.ENOSPC), about)
    if error.sqlstate in (FENCED, "JM002"):
        return OSError(errno.EIO, reason_of(error), about)
    return NotWritten(errno.EIO, reason_of(error), about)
