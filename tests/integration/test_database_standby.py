"""Servers with their logs in PostgreSQL: one is active, the others stand by and take over."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from tests.support.cli_commands import rows, run
from tests.support.crash.takeover_cycles import KINDS, TakeoverCycles
from tests.support.databases import new_database
from tests.support.servers.database_process import DatabaseProcess
from tests.support.servers.http_client import ask
from tests.support.servers.link import Link
from tests.support.servers.replica import ReplicaService
from tests.support.servers.services import PostgresService

FAR_AWAY_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """One that may be killed."""
    service = PostgresService(tmp_path_factory.mktemp("postgres") / "own")
    service.start()
    yield service
    service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_in_trouble_is_succeeded_and_nothing_is_lost(
    kind: str, postgres: PostgresService, tmp_path: Path
):
    """``python -m tests.kills.takeovers`` is the same loop for longer."""
    with new_database(postgres.port) as database:
        cycles = TakeoverCycles(tmp_path, postgres.port, database, 1, postgres)
        try:
            cycles.begin()
            cycles.run([kind])
        finally:
            cycles.close()
    assert cycles.tally.kinds == {kind: 1}
    assert cycles.tally.acknowledged >= 60


def test_what_was_acknowledged_is_on_a_synchronous_replica(tmp_path: Path):
    primary = PostgresService(tmp_path / "primary")
    primary.start()
    replica = ReplicaService(tmp_path / "replica", primary)
    address = "postgresql://journeyman@127.0.0.1:{}/postgres"
    replica.start()
    server = DatabaseProcess(tmp_path / "first", address.format(primary.port))
    successor = DatabaseProcess(tmp_path / "second", address.format(replica.port))
    try:
        server.start(wait=False)
        server.wait_for_answer()
        planned: list[str] = []

        def plan() -> None:
            with suppress(OSError, AssertionError), server.schedule() as client:
                for number in count():
                    assert client.ask(f"r SET job.{number} {FAR_AWAY_NS}") == "r OK"
                    planned.append(f"job.{number}")

        client = threading.Thread(target=plan, daemon=True)
        client.start()
        server.wait_until(lambda: len(planned) >= 50, "50 jobs planned")
        primary.halt(signal.SIGQUIT)
        replica.promote()
        successor.start(wait=False)
        successor.wait_for_answer()
        assert server.wait() == 1  # its database has gone
        client.join(60)
        with successor.schedule() as schedule:
            schedule.send("q QUERY job.")
            there = {row.split(" ")[0] for row in schedule.read_list("q")}
        assert set(planned) <= there
    finally:
        for process in (server, successor):
            if process.is_running:
                process.kill()
        replica.stop()
        primary.stop()


def test_a_standby_says_so_until_it_is_active(data_address: str, tmp_path: Path):
    active = DatabaseProcess(tmp_path / "active", data_address)
    standby = DatabaseProcess(tmp_path / "standby", data_address)
    try:
        active.start(wait=False)
        active.wait_for_answer()
        active.wait_until(lambda: active.readiness() == (200, ""), "ready")
        standby.stand_by()
        standby.wait_for_line("HTTP says that this server stands by")
        assert standby.is_closed()
        assert ask(standby, "GET", "/v1/health") == (200, {"status": "standby"})
        assert standby.readiness() == (503, "standby")
        ports = standby.ports
        url = (
            f"journeyman://127.0.0.1:{ports['work']}?schedule={ports['schedule']}"
            f"&fan_out={ports['fan-out']}&http={ports['http']}"
        )
        shown = run("status", "--json", "--server", url)
        assert set(rows(shown)[0].values()) == {"standby: another server is active"}
        assert active.stop() == 0
        standby.wait_for_answer()
        standby.wait_until(lambda: standby.readiness() == (200, ""), "ready")
        assert standby.stop() == 0
    finally:
        for server in (active, standby):
            if server.is_running:
                server.kill()


def test_a_server_that_the_database_does_not_confirm_is_not_ready_and_ends(
    postgres_port: int, tmp_path: Path
):
    with new_database(postgres_port) as database, Link(postgres_port) as link:
        address = f"postgresql://journeyman@127.0.0.1:{link.port}/{database}"
        server = DatabaseProcess(tmp_path / "server", address)
        server.start(wait=False)
        try:
            server.wait_for_answer()
            server.wait_until(lambda: server.readiness() == (200, ""), "ready")
            link.stall()
            server.wait_until(lambda: server.readiness()[0] == 503, "not ready")
            assert ask(server, "GET", "/v1/health")[0] == 200
            assert ask(server, "GET", "/v1/schedule/jobs")[0] == 503
            assert server.wait() == 1
            assert any("did not answer for 8 s" in line for line in server.lines)
        finally:
            if server.is_running:
                server.kill()


def test_a_database_that_does_not_answer_is_waited_for_and_a_stop_is_a_clean_one(tmp_path: Path):
    server = DatabaseProcess(tmp_path / "server", "postgresql://journeyman@127.0.0.1:1/none")
    server.start(wait=False)
    try:
        server.wait_for_line("standing by: the database does not answer")
        assert server.stop() == 0
    finally:
        if server.is_running:
            server.kill()


def test_logs_outside_of_the_database_are_refused():
    words = ("--set", "data.directory=postgresql://x/db", "--set", "workq.cmdlog_path=/elsewhere")
    refused = run("serve", *words)
    assert refused.exit_code == 2
    assert "workq.cmdlog_path: with logs in PostgreSQL" in refused.stderr
