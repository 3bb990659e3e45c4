"""systemd learns when the server is ready, alive, reloading and stopping."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeyman.servers.core.server_log import ServiceManager
from tests.support.servers.manager_socket import Manager
from tests.support.servers.schedule_process import ScheduleProcess


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.close()


def test_server_reports_each_stage_of_its_life(tmp_path, manager, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    with ScheduleProcess(tmp_path) as server:
        manager.wait_for("READY=1")
        assert server.ask("r STAT").startswith("r ")  # the port is open
        assert [manager.hear() for _ in range(3)] == ["WATCHDOG=1"] * 3
        server.process.send_signal(signal.SIGHUP)
        while (heard := manager.hear()) == "WATCHDOG=1":
            pass
        assert heard.startswith("RELOADING=1\nMONOTONIC_USEC=")
        manager.wait_for("READY=1")
        # What a job runs cannot say that the server is ready.
        assert server.ask('r RULE SET all a. shell "env > seen; echo >> seen"') == "r OK"
        assert server.ask("r SET a.1 1") == "r OK"
        seen = server.wait_for_text("seen")
        assert "PATH=" in seen
        assert "NOTIFY_SOCKET" not in seen
        assert "WATCHDOG" not in seen
        server.process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert server.wait() == 0


def test_abstract_socket_is_found():
    name = f"journeyman-test-{os.getpid()}"
    manager = Manager(b"\0" + name.encode())
    ServiceManager(f"@{name}").ready()
    assert manager.hear() == "READY=1"
    manager.close()


@pytest.mark.parametrize("address", [None, "", "/nowhere/at/all"])
def test_no_manager_is_no_trouble(address):
    silent = ServiceManager(address)
    silent.ready()
    silent.reloading()
    silent.stopping()
    asyncio.run(silent.show_life())  # nothing is expected: it ends at once


def test_signs_meant_for_another_process_are_not_sent(manager, tmp_path):
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "10000",
        "WATCHDOG_PID": str(os.getpid() + 1),
    }
    found = ServiceManager.from_environment(environment)
    assert environment == {}
    asyncio.run(found.show_life())
    found.stopping()
    assert manager.hear() == "STOPPING=1"
