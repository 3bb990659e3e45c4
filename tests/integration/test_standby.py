"""Two servers on one PostgreSQL: one is active, the other stands by and takes over."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from journeyman.cli import doctor
from journeyman.storage.postgres import PostgresBackend
from tests.support.cli_commands import rows, run
from tests.support.crash.standby_cycles import StandbyCycles, is_closed
from tests.support.ports import free_port
from tests.support.servers.schedule_process import ScheduleProcess


def settings(address: str) -> dict[str, object]:
    return {
        "database.persistence": "storage",
        "storage.engine": "postgres",
        "storage.path": address,
        "storage.standby": "true",
    }


SCHEDULE_ALONE: dict[str, object] = {"workq.enabled": "false", "kestrel.enabled": "false"}


def as_words(given: Mapping[str, object]) -> list[str]:
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def test_server_that_is_killed_or_frozen_is_succeeded_and_nothing_is_lost(
    address: str, tmp_path: Path
):
    """``python scripts/standby.py --cycles 50`` is the same loop for longer."""
    cycles = StandbyCycles(tmp_path, address, seed=1)
    try:
        cycles.begin()
        cycles.run(["kill", "freeze"])
    finally:
        cycles.close()
    assert cycles.tally.kinds == {"kill": 1, "freeze": 1}
    assert cycles.tally.acknowledged >= 80


def test_server_that_stands_by_says_so_until_it_is_active(address: str, tmp_path: Path):
    active = PostgresBackend(address)
    active.be_alone()
    port, http = free_port(), free_port()
    own = {"controller.listen": f"127.0.0.1:{port}", "http.listen": f"127.0.0.1:{http}"}
    url = f"journeyman://127.0.0.1:{free_port()}?schedule={port}&fan_out={free_port()}&http={http}"
    server = ScheduleProcess(tmp_path, settings=settings(address) | own)
    server.start(wait=False)
    try:
        server.wait_for_line("HTTP says that this server stands by")
        assert is_closed(port)
        base = f"http://127.0.0.1:{http}"
        assert get(f"{base}/health") == get(f"{base}/v1/health") == (200, {"status": "standby"})
        code, problem = get(f"{base}/v1/ready")
        assert (code, problem["code"]) == (503, "standby")
        found = run("status", "--json", "--server", url)
        assert found.exit_code == 0
        assert set(rows(found)[0].values()) == {"standby: another server is active"}
        half = socket.create_connection(("127.0.0.1", http), timeout=60)
        half.sendall(b"POST /v1/ready HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        active.close()
        server.wait_for_line("active: ")
        server.wait_for_line("HTTP listens on")
        half.close()
        assert get(f"{base}/health") == (200, {"status": "ok"})
        assert server.stop() == 0
    finally:
        active.close()
        if server.is_running:
            server.kill()


def get(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urlopen(url, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, json.load(refused)


def test_database_that_does_not_answer_is_waited_for_and_a_stop_is_a_clean_one(tmp_path: Path):
    server = ScheduleProcess(tmp_path, settings=settings("host=127.0.0.1 port=1"))
    server.start(wait=False)
    try:
        server.wait_for_line("standing by: the store does not answer")
        assert server.stop() == 0
    finally:
        if server.is_running:
            server.kill()


@pytest.mark.parametrize(
    ("setting", "needs"),
    [
        ("storage.engine=sqlite", 'storage.engine = "postgres"'),
        ("database.persistence=logfile", 'database.persistence = "storage"'),
        ("workq.enabled=true", 'workq.persistence = "storage", or workq.enabled = false'),
        ("kestrel.enabled=true", "kestrel.enabled = false: its journals are files"),
    ],
)
def test_settings_that_would_leave_state_behind_are_refused(setting: str, needs: str):
    words = as_words(settings("host=x") | SCHEDULE_ALONE)
    refused = run("serve", *words, "--set", setting)
    assert refused.exit_code == 2
    assert f"storage.standby = true needs {needs}" in refused.stderr


def test_doctor_examines_the_database(address: str):
    words = as_words(settings(address) | SCHEDULE_ALONE)

    def findings() -> list[tuple[str, str]]:
        lines = run("doctor", "--json", *words).stdout.splitlines()
        found = [json.loads(line) for line in lines]
        return [(row["level"], row["said"]) for row in found if row["about"] == "database"]

    known, no_sync, no_replica = findings()
    assert known[0] == doctor.OK
    assert "no server is active, epoch 0" in known[1]
    assert no_sync == (doctor.BAD, "fsync is off in PostgreSQL: a power cut loses data")
    assert no_replica[0] == doctor.NOTE
    active = PostgresBackend(address)
    active.be_alone()
    assert "a server is active, epoch 1" in findings()[0][1]
    active.close()
    words += as_words({"storage.path": "host=127.0.0.1 port=1 password=secret"})
    ((level, said),) = findings()
    assert level == doctor.BAD
    assert "secret" not in said
