"""Commits that wait for a synchronous replica, in a cluster of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from journeyman.disk.examination import examine
from journeyman.disk.postgres import PostgresDisk
from tests.support.servers.services import PostgresService

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> %s"


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    service = PostgresService(tmp_path / "postgres")
    service.start()
    try:
        yield f"postgresql://journeyman@127.0.0.1:{service.port}/postgres"
    finally:
        service.stop()


def waiting_session(admin: psycopg.Connection, syncing: threading.Thread, but: int = 0) -> int:
    """The session whose commit waits for the replica."""
    deadline = time.monotonic() + 30
    while (row := admin.execute(_WAITING, (but,)).fetchone()) is None:
        assert syncing.is_alive(), "the sync has ended without the replica"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(row[0])


def test_a_wait_for_the_replica_that_is_canceled_is_no_commit(address):
    """The only replica is lost, and an operator cancels the statement that hangs."""
    disk = PostgresDisk(address)
    disk.prepare()
    assert not examine(address).is_replica_away
    file = disk.open_append(f"{address}/log")
    file.write(b"one")
    with psycopg.connect(address, autocommit=True) as admin:
        admin.execute("SET synchronous_commit = local")
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'lost'")
        admin.execute("SELECT pg_reload_conf()")
        while admin.execute("SHOW synchronous_standby_names").fetchone() != ("lost",):
            time.sleep(0.01)
        # Commits wait only once the checkpointer has read the setting too; it does so before this.
        admin.execute("CHECKPOINT")
        syncing = threading.Thread(target=file.sync)
        syncing.start()
        first = waiting_session(admin, syncing)
        assert examine(address).is_replica_away
        admin.execute("SELECT pg_cancel_backend(%s)", (first,))
        waiting_session(admin, syncing, but=first)  # it was sent again, and waits again
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")
        syncing.join()
    assert disk.read_bytes(f"{address}/log") == b"one"
    disk.close()
