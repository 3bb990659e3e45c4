"""The servers of this lane are shared, and nothing of them is left when nobody needs them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runner_world import wait_until
from tests.support.servers.keeper import ROOT, join
from tests.support.servers.services import RedisService, Service
from tests.support.servers.whole_process import WholeProcess

MEMBER = """
import sys, pathlib
from tests.support.servers.keeper import join
share = join("redis", pathlib.Path(sys.argv[1]))
print(share.port, flush=True)
sys.stdin.read()
"""


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix not in {".log", ".lock"})


def test_workers_share_a_server_until_the_last_one_leaves(tmp_path):
    first, second = join("redis", tmp_path), join("redis", tmp_path)
    assert first.port == second.port
    first.leave()
    assert answers(second.port)
    second.leave()
    assert not answers(second.port)
    assert left_in(tmp_path) == []


def test_a_server_can_be_started_again(tmp_path):
    for _ in range(2):
        share = join("redis", tmp_path)
        assert answers(share.port)
        share.leave()


def test_a_worker_that_is_killed_keeps_nothing_alive(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        port = int(worker.stdout.readline())
        assert answers(port)
        worker.kill()
    wait_until(lambda: not answers(port) and left_in(tmp_path) == [], "the server to end")


def test_many_workers_at_once_start_one_server(tmp_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    ports = set()
    for worker in workers:
        assert worker.stdout is not None
        ports.add(int(worker.stdout.readline()))
    for worker in workers:
        worker.communicate()
    assert len(ports) == 1
    wait_until(lambda: left_in(tmp_path) == [], "the server to end")


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    class Broken(RedisService):
        def launch(self) -> None:
            self.spawn("sh", "-c", "echo cannot do it; exit 1")

    service: Service = Broken(tmp_path / "data")
    with pytest.raises(RuntimeError, match="redis did not start: cannot do it"):
        service.start()
    service.stop()
    assert not (tmp_path / "data").exists()


def test_stopping_ends_all_processes(tmp_path):
    service = RedisService(tmp_path / "data")
    service.start()
    [process] = service._processes
    service.stop()
    assert process.returncode == -signal.SIGKILL
    assert not os.path.exists(service.directory)


def test_the_last_line_of_a_start_says_what_listens_where_and_where_the_data_are(tmp_path):
    with WholeProcess(tmp_path, settings={"http.listen": "127.0.0.1:0"}) as server:
        assert "starts process=" in server.lines[0]
        line = server.wait_for_line(r"INFO ready (.*)")[1]
        facts = dict(word.split("=", 1) for word in line.split())
        assert facts == {
            "schedule": f"127.0.0.1:{server.ports['schedule']}",
            "work_queue": f"127.0.0.1:{server.ports['work']}",
            "fan_out": f"127.0.0.1:{server.ports['fan-out']}",
            "console": f"http://127.0.0.1:{server.http_port}",
            "data": str(tmp_path / "data"),
        }
