"""The questions of `journeyman doctor` to a database of a data directory. Nothing is changed."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from journeyman.disk.database import (
    Connection,
    connect,
    connection_parameters,
    reason_of,
    split_address,
)

OLDEST_VERSION: Final = 140000  # idle_session_timeout frees the lock of a server that is cut off
_SESSION: Final = "SELECT pg_backend_pid()"
_IS_TAKEN: Final = """
    SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = 7238 AND objid = journeyman_key())"""


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    version: str
    version_number: int
    syncs: bool
    has_replica: bool  # one that a commit waits for
    is_replica_away: bool  # so commits wait, and the server ends
    keeps_sessions: bool  # a pooler that changes them takes the directory's lock away
    epoch: int  # 0: no server was ever active
    is_taken: bool  # a server is active


def examine(address: str) -> DatabaseFacts:
    """OSError: the database does not answer. UsageError: a wrong address."""
    database = split_address(address).address
    try:
        with connect(connection_parameters(database)) as connection:

            def ask(query: str) -> Any:
                row = connection.execute(query).fetchone()
                return None if row is None else row[0]

            keeps_sessions = _keeps_sessions(connection, database)
            has_tables = ask("SELECT to_regclass('journeyman_directory')") is not None
            has_replica = bool(ask("SHOW synchronous_standby_names"))
            return DatabaseFacts(
                ask("SHOW server_version"),
                int(ask("SHOW server_version_num")),
                ask("SHOW fsync") == "on" and ask("SHOW full_page_writes") == "on",
                has_replica,
                has_replica and not ask("SELECT count(*) FROM pg_stat_replication"),
                keeps_sessions,
                ask("SELECT epoch FROM journeyman_directory") if has_tables else 0,
                bool(ask(_IS_TAKEN)) if has_tables else False,
            )
    except psycopg.Error as error:
        raise OSError(errno.EIO, reason_of(error), database) from error


def _keeps_sessions(connection: Connection, database: str) -> bool:
    """True if each connection has a session of its own between its statements. A pooler that
    changes them gives the session that this connection left to the next one that asks."""
    own = connection.execute(_SESSION).fetchone()
    with connect(connection_parameters(database)) as other, other.transaction():
        if other.execute(_SESSION).fetchone() == own:
            return False
        return connection.execute(_SESSION).fetchone() == own
