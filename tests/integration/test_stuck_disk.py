"""A disk whose sync does not return: the server says so on every way, and goes on afterwards."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Empty
from typing import Any
from uuid import uuid4

import pytest

from tests.support.cli_commands import run
from tests.support.servers.http_client import ask
from tests.support.servers.manager_socket import Manager
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess
from tests.support.servers.trouble import STALLING_SYNC, end_stall, stall

SHORT = {"limits.write_warn_ms": 100, "limits.write_deadline_ms": 300}
NEVER = 10**9
CERTIFICATES = Path(__file__).parent / "data"
WRITING = """
from journeyman.servers.core import group_commit
group_commit.QUICK_NS = 10**18
group_commit.QUICK_IN_A_ROW = {quick}
"""
# where a batch is written -> how many quick writes that takes
PLACES = {"loop": 0, "thread": NEVER}


def add_job() -> bytes:
    return f"add {uuid4()} q 1000 60000 1\r\nx\r\n".encode()


def put_item() -> bytes:
    return b"set q 0 0 1\r\nx\r\n"


# service -> its port in messages, a file of its log, a change and its answer
SERVICES: dict[str, tuple[str, str, Callable[[], bytes], bytes]] = {
    "schedule": ("the schedule listens", "/logfile", lambda: b"1 SET a 1\n", b"1 OK\n"),
    "work": ("the work queue listens", "/cmdlog/", add_job, b"+OK\r\n"),
    "fan-out": ("the fan-out queues listen", "/queues/", put_item, b"STORED\r\n"),
}
NAMES = {"schedule": "schedule", "work": "workq", "fan-out": "kestrel"}
IN_STATUS = {"schedule": "schedule", "work": "work_queue", "fan-out": "fan_out"}


@contextmanager
def serving(directory: Path, place: str, **more: object) -> Iterator[ScheduleProcess]:
    program = WRITING.format(quick=PLACES[place]) + STALLING_SYNC
    settings = {**ALL_SERVICES, **SHORT, **more}
    with ScheduleProcess(directory, program=program, settings=settings) as server:
        yield server


def port_of(server: ScheduleProcess, service: str) -> int:
    return int(server.wait_for_line(SERVICES[service][0] + r" on [^\s]+?:(\d+)")[1])


def url_of(server: ScheduleProcess) -> str:
    work, schedule, fan_out = (port_of(server, name) for name in ("work", "schedule", "fan-out"))
    return (
        f"journeyman://127.0.0.1:{work}?schedule={schedule}&fan_out={fan_out}"
        f"&http={server.http_port}"
    )


def connect(server: ScheduleProcess, service: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(server, service)), timeout=60)


def change(client: socket.socket, service: str) -> None:
    """Send a change and wait for its answer."""
    _, _, command, answer = SERVICES[service]
    client.sendall(command())
    assert receive(client, len(answer)) == answer


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        assert piece, data
        data += piece
    return data


def problem_of(server: ScheduleProcess) -> dict[str, Any]:
    """What GET /v1/ready says once it is not 200."""
    found: list[dict[str, Any]] = []

    def is_refused() -> bool:
        try:
            status, text = ask(server, "GET", "/v1/ready")
        except TimeoutError:  # the loop accepted the connection just before it got stuck
            return False
        found.append({} if status == 200 else json.loads(text))
        return status == 503 and "not ended for" in text

    until(is_refused)
    return found[-1]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 150  # two requests that time out
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metric(server: ScheduleProcess, name: str, log: str) -> float:
    answers: list[tuple[int, str]] = []

    def is_answered() -> bool:
        answers.append(ask(server, "GET", "/metrics"))
        return answers[-1][0] == 200  # the stand-in may have taken one request more

    until(is_answered)
    text = answers[-1][1]
    (line,) = (each for each in text.splitlines() if each.startswith(f'{name}{{log="{log}"}}'))
    return float(line.split()[-1])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("service", SERVICES)
def test_sync_that_does_not_return_is_reported_and_ends_in_peace(
    tmp_path: Path, service: str, place: str
):
    with serving(tmp_path, place) as server, connect(server, service) as client:
        change(client, service)
        assert ask(server, "GET", "/v1/ready")[0] == 200
        _, file, command, answer = SERVICES[service]
        stall(tmp_path, file)
        client.sendall(command())
        server.wait_for_line(f"WARN a write has not ended for .* log={NAMES[service]}$")
        problem = problem_of(server)
        assert (problem["status"], problem["code"]) == (503, "stuck")
        assert "a write" in problem["services"][service]
        assert ask(server, "GET", "/health") == (200, {"status": "ok"})
        server.wait_for_line(f"ERROR not ready: a write has not ended .* log={NAMES[service]}$")
        shown = run("status", "--json", "--server", url_of(server))
        assert shown.exit_code == 1
        assert "not ready: " in json.loads(shown.stdout)[IN_STATUS[service]]
        if place == "thread":
            assert metric(server, "journeyman_write_age_seconds", NAMES[service]) >= 0.3
            for other in SERVICES.keys() - {service}:
                assert problem["services"][other] == "ok"
                with connect(server, other) as free:
                    change(free, other)
        end_stall(tmp_path)
        assert receive(client, len(answer)) == answer
        server.wait_for_line(f"INFO the write has ended after .* log={NAMES[service]}$")
        until(lambda: ask(server, "GET", "/v1/ready")[0] == 200)
        assert metric(server, "journeyman_writes_slow_total", NAMES[service]) >= 1
        assert metric(server, "journeyman_write_age_seconds", NAMES[service]) < 60
        change(client, service)
        warned = [line for line in server.lines if "WARN a write has not ended" in line]
        assert len(warned) >= 1
        assert run("status", "--server", url_of(server)).exit_code == 0


def test_stand_in_answers_inside_tls_and_whatever_it_is_sent(tmp_path: Path):
    tls = {
        "controller.tls_cert": CERTIFICATES / "server_chain.pem",
        "controller.tls_key": CERTIFICATES / "server_key.pem",
    }
    trust = ssl.create_default_context(cafile=str(CERTIFICATES / "root.pem"))
    with serving(tmp_path, "loop", **tls) as server:
        port = port_of(server, "schedule")
        with trust.wrap_socket(
            socket.create_connection(("127.0.0.1", port), timeout=60), server_hostname="localhost"
        ) as client:
            change(client, "schedule")
            stall(tmp_path, "/logfile")
            client.sendall(b"1 SET a 1\n")
            server.wait_for_line("WARN a write has not ended")
            with closing(https(server, trust)) as silent:
                silent.connect()
                for method, path, expected in (
                    ("GET", "/v1/health", 200),
                    ("GET", "/v1/ready", 503),
                    ("PUT", "/jobs/x", 503),
                    ("POST", "/v1/work/queues/q/jobs", 503),
                ):
                    with closing(https(server, trust)) as other:
                        other.request(
                            method, path, body=b"{}" * 20_000 if method != "GET" else None
                        )
                        assert other.getresponse().status == expected
            end_stall(tmp_path)
            assert receive(client, 5) == b"1 OK\n"


def https(server: ScheduleProcess, trust: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", server.http_port, timeout=60, context=trust)


def test_ledger_that_does_not_sync_is_named(tmp_path: Path):
    """An action over HTTP is audited in the ledger, apart from any batch."""
    with serving(tmp_path, "thread") as server:
        stall(tmp_path, "/ledger/")
        body = b'{"pattern":"a.","runner":"shell","args":["true"]}'
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as client:
            client.sendall(
                b"PUT /rules/r HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            problem = problem_of(server)
            assert "a write has not ended" in problem["services"]["ledger"]
            end_stall(tmp_path)
            assert client.recv(12) == b"HTTP/1.1 200"
        server.wait_for_line("INFO the write has ended after .* log=ledger$")
        until(lambda: ask(server, "GET", "/v1/ready")[0] == 200)


def drain(manager: Manager) -> None:
    """Take what was sent until now."""
    with suppress(Empty):
        while manager._heard.get(timeout=0.1):
            pass


@pytest.mark.parametrize("place", PLACES)
def test_service_manager_hears_signs_of_life_until_the_deadline(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
):
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    deadline = {"limits.watchdog_deadline_ms": 5000}
    try:
        with serving(tmp_path, place, **deadline) as server, connect(server, "schedule") as client:
            manager.wait_for("READY=1")
            change(client, "schedule")
            stall(tmp_path, "/logfile")
            client.sendall(b"1 SET b 1\n")
            server.wait_for_line("ERROR not ready")
            drain(manager)
            assert [manager.hear() for _ in range(3)] == ["WATCHDOG=1"] * 3
            assert not any("no more signs of life" in line for line in server.lines)
            server.wait_for_line("ERROR .* no more signs of life")
            drain(manager)
            with pytest.raises(Empty):
                manager._heard.get(timeout=3)
            end_stall(tmp_path)
            assert manager.hear() == "WATCHDOG=1"
            assert receive(client, 5) == b"1 OK\n"
    finally:
        manager.close()
