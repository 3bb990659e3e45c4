"""Right secrets while others of the same address show wrong ones; reloads; verdicts that wait."""

from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import journeyman as jm
from journeyman.client import (
    AsyncKestrelClient,
    AsyncSchedule,
    AsyncWorkQueue,
    errors,
)
from tests.support.servers.login_flood import LoginFlood
from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.token_server import CHAIN, KEY, ROOT, TOKENS, Server

SECRET = "sk admin"
WRONG = {
    "schedule": b"AUTH wrong\n",
    "work queue": b"auth wrong\r\n",
    "fan-out": b"set auth 0 0 7\r\nu wrong\r\n",
}
FAILED = {
    "schedule": b"ERROR auth_failed\n",
    "work queue": b"-CLIENT-ERROR Authentication failed\r\n",
    "fan-out": b"CLIENT_ERROR authentication failure\r\n",
}
TRY_AGAIN = {
    "schedule": b"",
    "work queue": b"-SERVER-ERROR Busy, try again\r\n",
    "fan-out": b"SERVER_ERROR busy, try again\r\n",
}
LOOK = {"schedule": "stat", "work_queue": "inspect_server", "fan_out": "version"}
APP = """
import journeyman as jm
app = jm.App()

@app.task(name="double")
def double(number):
    return 2 * number
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, limits__auth_timeout_ms="5000") as running:
        yield running


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, limits__auth_timeout_ms="300") as running:
        yield running


def flood_of(server: Server, **more: int) -> LoginFlood:
    return LoginFlood([(server.port_of(name), words) for name, words in WRONG.items()], **more)


def test_right_secrets_log_in_on_each_port_while_160_connections_show_wrong_ones(server):
    with flood_of(server) as flood:
        for _ in range(15):
            with server.schedule(SECRET) as schedule:
                schedule.stat()
            with server.work_queue(SECRET) as queue:
                queue.inspect_server()
            with server.fan_out(SECRET) as queues:
                queues.version()
            assert server.http_status(SECRET) == 200
        asyncio.run(log_in_with_asyncio(server))
        server.wait_until(lambda: len(flood.answers) >= 10, "answers to wrong secrets")
    known = {*FAILED.values(), *TRY_AGAIN.values()}
    assert set(flood.answers) <= known


async def log_in_with_asyncio(server: Server) -> None:
    for _ in range(5):
        async with AsyncSchedule(port=server.port_of("schedule"), token=SECRET) as schedule:
            await schedule.stat()
        async with AsyncWorkQueue(port=server.port_of("work queue"), token=SECRET) as queue:
            await queue.inspect_server()
        async with AsyncKestrelClient(port=server.port_of("fan-out"), token=SECRET) as queues:
            await queues.version()


def test_a_worker_starts_and_works_while_others_show_wrong_secrets(server, tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    url = f"journeyman://{SECRET.replace(' ', '%20')}@127.0.0.1:{server.port_of('work queue')}"
    app = jm.App(url)
    double = app.task(name="double")(lambda number: 2 * number)
    with flood_of(server), closing(app), WorkerProcess(tmp_path, "shop:app", url=url) as worker:
        assert double.send(21).result(60) == 42
        assert worker.process.poll() is None
        assert worker.stop() == 0


def test_connections_that_say_nothing_keep_none_out(server):
    silent = [(server.port_of(name), b"") for name in WRONG]
    with LoginFlood(silent, connections=1500), server.schedule(SECRET) as schedule:
        schedule.stat()
        with server.work_queue(SECRET) as queue, server.fan_out(SECRET) as queues:
            queue.inspect_server()
            queues.version()


def test_a_token_that_was_removed_is_out_at_once(server, tmp_path):
    """Though its secret was right a moment before, and passed without a check of its own."""
    with closing(server.work_queue("sk_deploy")) as queue:
        queue.inspect_queue("deploy-q")
    (tmp_path / "tokens").write_text(TOKENS.replace("sk_deploy", "sk_other"))
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_line("SIGHUP: reloaded")
    for name in ("schedule", "work_queue", "fan_out"):
        with getattr(server, name)("sk_deploy") as client, pytest.raises(errors.AccessDenied):
            getattr(client, LOOK[name])()
    assert server.http_status("sk_deploy") == 401
    assert server.http_status("sk_other") == 200


@pytest.mark.parametrize("name", WRONG)
def test_a_secret_that_cannot_be_checked_in_time_gets_no_verdict(impatient, name):
    """After four wrong ones the next check is 0.8 s away, and there are 0.3 s."""
    answers = []
    while TRY_AGAIN[name] not in answers:
        answers.append(shown(impatient.port_of(name), WRONG[name]))
        assert len(answers) < 100
    assert answers[0] == FAILED[name]
    assert set(answers) == {FAILED[name], TRY_AGAIN[name]}
    impatient.wait_for_line("a secret could not be checked in time: closing")


def shown(port: int, words: bytes) -> bytes:
    """All that is answered to a secret."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(words)
        parts = []
        try:
            while part := client.recv(4096):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def test_over_http_it_is_answered_503_with_the_time_to_try_again(impatient):
    statuses = []
    while 503 not in statuses:
        connection = http.client.HTTPConnection("127.0.0.1", impatient.http_port, timeout=60)
        with closing(connection):
            connection.request("GET", "/v1/work/queues", headers={"Authorization": "Bearer no"})
            answer = connection.getresponse()
            statuses.append(answer.status)
            body = answer.read()
        assert len(statuses) < 100
    assert answer.headers["Retry-After"] == "1"
    assert b'"login_busy"' in body
    assert set(statuses) == {401, 503}


def test_who_must_wait_may_not_send_much_along(impatient):
    while shown(impatient.port_of("work queue"), WRONG["work queue"]) != TRY_AGAIN["work queue"]:
        pass
    many = b"auth " + SECRET.encode() + b"\r\n" + b"inspect server\r\n" * 20_000
    answer = shown(impatient.port_of("work queue"), many)
    assert answer in (b"", TRY_AGAIN["work queue"])  # a reset may overtake the words


BEHIND_PROXY = {
    "access.trusted_proxies": '["127.0.0.1"]',
    "access.proxy_protocol": "true",
    "limits.auth_timeout_ms": "300",
}


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[Server]:
    """Behind a load balancer of this machine."""
    with Server(tmp_path, settings=BEHIND_PROXY) as running:
        yield running


def proxied(host: str, words: bytes) -> bytes:
    return f"PROXY TCP4 {host} 192.0.2.200 40000 5678\r\n".encode() + words


@pytest.mark.parametrize("name", WRONG)
def test_behind_a_balancer_the_delays_are_for_each_client(balanced, name):
    port, wrong = balanced.port_of(name), WRONG[name]
    while shown(port, proxied("192.0.2.1", wrong)) != TRY_AGAIN[name]:
        pass
    assert shown(port, proxied("192.0.2.2", wrong)) == FAILED[name]
    balanced.wait_for_line("authentication failed .*client=192.0.2.2")


def test_connections_of_a_balancer_without_a_header_are_closed(balanced):
    assert shown(balanced.port_of("schedule"), b"AUTH sk admin\n") == b""
    balanced.wait_for_line("a trusted proxy sent no PROXY header: closing")


def test_commands_follow_the_header_in_the_same_packet(balanced):
    words = proxied("192.0.2.3", b"auth sk admin\r\ninspect server\r\n")
    with socket.create_connection(("127.0.0.1", balanced.port_of("work queue")), 60) as client:
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answers:
            assert answers.read().startswith(b"+OK\r\n+OK 1\r\nserver")


def test_the_header_stands_before_tls(tmp_path):
    tls = {"controller.tls_cert": CHAIN, "controller.tls_key": KEY}
    with Server(tmp_path, settings={**BEHIND_PROXY, **tls}) as server:
        raw = socket.create_connection(("127.0.0.1", server.port_of("schedule")), 60)
        raw.sendall(proxied("192.0.2.4", b""))
        context = ssl.create_default_context(cafile=str(ROOT))
        with context.wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(b"AUTH wrong\n")
            assert client.recv(100) == b"ERROR auth_failed\n"
        server.wait_for_line("authentication failed .*client=192.0.2.4")


def test_over_http_the_balancer_says_so_in_a_header(balanced):
    def status(client: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", balanced.http_port, timeout=60)
        headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": f"203.0.113.9, {client}"}
        with closing(connection):
            connection.request("GET", "/v1/work/queues", headers=headers)
            return connection.getresponse().status

    while status("192.0.2.5") != 503:
        pass
    assert status("192.0.2.6") == 401


@pytest.mark.parametrize("path", ["/v1/events", "/v1/log/tail"])
def test_a_stream_of_a_token_that_was_removed_ends(server, tmp_path, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    with closing(connection):
        headers = {"Authorization": f"Bearer {SECRET}", "Accept": "text/event-stream"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        (tmp_path / "tokens").write_text(TOKENS.replace(SECRET, "sk_new"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("SIGHUP: reloaded .* 1 connections closed")
        with suppress(http.client.IncompleteRead, ConnectionError):
            while answer.readline():
                pass  # until the server ends it


def test_requests_whose_secrets_wait_leave_room_for_others_over_http(server):
    """Connections over HTTP are few: 512."""
    wrong = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n"
    assert server.http_status(SECRET) == 200

    def is_answered() -> bool:
        try:
            return bool(server.http_status(SECRET) == 200)
        except ConnectionResetError:  # all were taken: the server has not read the others yet
            return False

    with LoginFlood([(server.http_port, wrong)], connections=600) as flood:
        for _ in range(20):
            server.wait_until(is_answered, "an answer beside the flood")
        server.wait_until(lambda: any(b" 503 " in each for each in flood.answers), "a 503")
    assert {each[9:12] for each in flood.answers} <= {b"401", b"503", b""}
