"""A PostgreSQL whose commits wait for a replica, and that replica. Not a test itself."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg

from tests.support.ports import free_port
from tests.support.programs import find_program
from tests.support.servers.services import PostgresService


class ReplicaService(PostgresService):
    """Follows ``primary``, which waits for it from then on; ``promote`` makes it a primary."""

    name = "replica"
    program = "pg_basebackup"

    def __init__(self, directory: Path, primary: PostgresService) -> None:
        super().__init__(directory)
        self._primary = primary

    def launch(self) -> None:
        self.port = free_port()
        self._data = Path(tempfile.mkdtemp(prefix="journeyman-replica-"))
        if self._user is not None:
            shutil.chown(self._data, self._user)
        words = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "journeyman", "-R"]
        words += ["-c", "fast", "-D", str(self._data / "cluster")]
        subprocess.run(
            [find_program("pg_basebackup"), *words],
            check=True,
            capture_output=True,
            user=self._user,
            cwd="/",
        )
        self._run()

    def start(self) -> None:
        super().start()
        with self._primary_session() as session:
            session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            session.execute("SELECT pg_reload_conf()")
        self._wait_until(self._is_waited_for)

    def _is_waited_for(self) -> bool:
        with self._primary_session() as session:
            row = session.execute(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            ).fetchone()
        return row == (1,)

    def _primary_session(self) -> psycopg.Connection:
        address = f"host=127.0.0.1 port={self._primary.port} user=journeyman dbname=postgres"
        return psycopg.connect(address, autocommit=True)

    def promote(self) -> None:
        address = f"host=127.0.0.1 port={self.port} user=journeyman dbname=postgres"
        with psycopg.connect(address, autocommit=True) as session:
            assert session.execute("SELECT pg_promote()").fetchone() == (True,)
