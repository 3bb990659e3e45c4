"""Tokens, namespaces and TLS on every port; what is refused at the start; SIGHUP; file modes."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from journeyman.client import KestrelClient, WorkQueue
from journeyman.client.errors import AccessDenied, NotFound, Refused
from journeyman.formats.ztick import Shell
from tests.support.cli_commands import run
from tests.support.servers.nursery import start_journeyman
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.token_server import CHAIN, KEY, ROOT, TOKENS, Server

DATA = Path(__file__).parent / "data"
FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("access")
    with Server(directory) as running:
        yield running


def raw(server: Server, name: str, data: bytes, *, half_close: bool = True) -> bytes:
    """All that the port answers."""
    with socket.create_connection(("127.0.0.1", server.port_of(name)), timeout=30) as client:
        client.sendall(data)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        parts = []
        while part := client.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_the_work_queue_asks_for_a_token_first(server):
    ask = b"inspect server\r\n"
    refused = b"-CLIENT-ERROR Authentication required\r\n"
    assert raw(server, "work queue", ask) == refused
    assert raw(server, "work queue", b"auth\r\n" + ask) == refused
    assert raw(server, "work queue", b"AUTH sk admin\r\n" + ask) == refused
    welcomed = raw(server, "work queue", b"auth sk admin\r\n" + ask)
    assert welcomed.startswith(b"+OK\r\n+OK 1\r\nserver 3\r\n")
    failed = raw(server, "work queue", b"auth sk_admin\r\n" + ask)
    assert failed == b"-CLIENT-ERROR Authentication failed\r\n"
    welcome_again(server)


def test_the_fan_out_queues_ask_as_memcached_does(server):
    unauthenticated = b"CLIENT_ERROR unauthenticated\r\n"
    assert raw(server, "fan-out", b"version\r\n") == unauthenticated
    assert raw(server, "fan-out", b"get a\r\nset a 0 0 1\r\nx\r\n") == unauthenticated
    assert raw(server, "fan-out", b"set a 0 0 16777216\r\n") == unauthenticated
    right = b"set anything 1 2 13\r\nuser sk admin\r\nset deploy-q 0 0 1\r\nx\r\nget deploy-q\r\n"
    assert raw(server, "fan-out", right) == (
        b"STORED\r\nSTORED\r\nVALUE deploy-q 0 1\r\nx\r\nEND\r\n"
    )
    wrong = b"set auth 0 0 8\r\nsk admin\r\nset q 0 0 1\r\nx\r\n"
    assert raw(server, "fan-out", wrong) == b"CLIENT_ERROR authentication failure\r\n"
    welcome_again(server)


def welcome_again(server: Server) -> None:
    """A right secret ends the delays that wrong ones brought."""
    with server.work_queue() as queue:
        queue.inspect_queues()


def test_a_client_of_any_port_that_says_nothing_is_closed(tmp_path):
    with Server(tmp_path, limits__auth_timeout_ms=100) as server:
        for name in ("schedule", "work queue", "fan-out"):
            assert raw(server, name, b"", half_close=False) == b""


def test_clients_bring_their_token(server):
    with server.work_queue() as queue, server.fan_out() as fan_out, server.schedule() as schedule:
        job = queue.add("any", b"x")
        assert queue.delete(job)
        assert fan_out.put("any", b"x")
        assert fan_out.get("any") == b"x"
        schedule.set("any", FAR_NS)
        assert schedule.remove("any")


@pytest.mark.parametrize("kind", ["work_queue", "fan_out"])
def test_clients_hear_that_their_token_is_wrong(server, kind):
    def use(client: WorkQueue | KestrelClient) -> None:
        with client:
            client.inspect_server() if isinstance(client, WorkQueue) else client.version()

    with pytest.raises(AccessDenied):
        use(getattr(server, kind)("wrong"))
    with pytest.raises(AccessDenied, match=r"Authentication required|unauthenticated"):
        use(getattr(server, kind)(None))
    welcome_again(server)


def test_namespaces_hold_for_the_names_of_the_work_queue(server):
    with server.work_queue() as admin, server.work_queue("sk_deploy") as queue:
        mine, other = queue.add("deploy-a", b"x"), admin.add("other", b"x")
        asked: list[Callable[[], object]] = [
            lambda: queue.add("other", b"x"),
            lambda: queue.lease("deploy-a", "other", wait_ms=1),
            lambda: queue.inspect_queue("other"),
            lambda: queue.inspect_jobs("other"),
        ]
        for ask in asked:
            with pytest.raises(Refused, match="Insufficient namespace scope"):
                ask()
        assert queue.inspect_job(other) is None
        assert not queue.delete(other)
        for finish in (queue.complete, queue.fail):
            with pytest.raises(NotFound):
                finish(other)
        with pytest.raises(NotFound):
            queue.result(other, wait_ms=1)
        assert [each.name for each in queue.inspect_queues()] == ["deploy-a"]
        assert {each.name for each in admin.inspect_queues()} >= {"deploy-a", "other"}
        leased = queue.lease("deploy-a", wait_ms=1000)
        assert leased is not None
        assert leased.job_id == mine
        queue.complete(mine, b"done")
        found = admin.inspect_job(other)
        assert found is not None
        assert found.name == "other"
        admin.delete(other)
    login = b"auth sk_deploy\r\n"
    answers = raw(server, "work queue", login + b"pause other\r\ninspect paused-queues 0 9\r\n")
    assert answers == b"+OK\r\n-CLIENT-ERROR Insufficient namespace scope\r\n+OK 0\r\n"
    requeued = raw(server, "work queue", login + f"requeue {other}\r\n".encode())
    assert requeued == b"+OK\r\n-NOT-FOUND\r\n"


def test_namespaces_hold_for_the_names_of_the_fan_out_queues(server):
    with server.fan_out() as admin, server.fan_out("sk_deploy") as queues:
        assert admin.put("other", b"secret")
        assert queues.put("deploy-q", b"mine")
        asked: list[Callable[[], object]] = [
            lambda: queues.put("other", b"x"),
            lambda: queues.get("other"),
            lambda: queues.peek("other"),
            lambda: queues.flush("other"),
            lambda: queues.delete("other"),
        ]
        for ask in asked:
            with pytest.raises(Refused):
                ask()
        assert queues.get("deploy-q") == b"mine"
        assert not any(name.startswith("queue_other") for name in queues.stats())
        assert any(name.startswith("queue_deploy-q") for name in queues.stats())
        assert any(name.startswith("queue_other") for name in admin.stats())
        assert admin.get("other") == b"secret"
    login = b"set a 0 0 11\r\nu sk_deploy\r\n"
    for line in (b"flush_all", b"status readonly", b"reload", b"shutdown", b"flush_all_expired"):
        assert raw(server, "fan-out", login + line + b"\r\n") == b"STORED\r\nCLIENT_ERROR\r\n"
    assert b"other" not in raw(server, "fan-out", login + b"dump_stats other\r\n")


def test_figures_name_the_queues_of_the_namespace_alone(server):
    with server.fan_out() as admin, server.work_queue() as work:
        assert admin.put("hidden", b"1")
        assert admin.put("deploy-shown", b"2")
        for name in ("hidden-work", "deploy-work"):
            work.add(name, b"x")

    def figures(token: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", server.port_of("http"), timeout=30)
        with closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            assert response.status == 200
            return response.read()

    everything, scoped = figures("sk admin"), figures("sk_deploy")
    assert b'queue="hidden"' in everything
    assert b'queue="hidden-work"' in everything
    assert b"hidden" not in scoped
    assert b'queue="deploy-shown"' in scoped
    assert b'queue="deploy-work"' in scoped


def test_secrets_are_guessed_at_most_ten_times_a_second_over_all_ports(server):
    """Many connections to all ports at once, for a measured while; all of them are answered."""
    guesses = {
        "schedule": (b"AUTH wrong\n", b"ERROR auth_failed\n"),
        "work queue": (b"auth wrong\r\n", b"-CLIENT-ERROR Authentication failed\r\n"),
        "fan-out": (b"set a 0 0 7\r\nu wrong\r\n", b"CLIENT_ERROR authentication failure\r\n"),
    }
    answers: list[tuple[float, bytes, bytes]] = []

    def guess(name: str) -> None:
        data, expected = guesses[name]
        answers.append((time.monotonic(), raw(server, name, data), expected))

    def guess_over_http(name: str) -> None:
        answers.append((time.monotonic(), str(server.http_status("wrong")).encode(), b"401"))

    names = [*guesses, "http"] * 3
    began = time.monotonic()
    threads = [
        threading.Thread(target=guess_over_http if name == "http" else guess, args=(name,))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    took = time.monotonic() - began
    assert len(answers) == len(names)
    assert all(answer == expected for _, answer, expected in answers)
    assert len(names) / took <= 10
    welcome_again(server)


HALF_CLOSE = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(sys.stdin.buffer.read())
    connection.shutdown(socket.SHUT_WR)
    print(connection.makefile().read())
"""


def test_an_answer_comes_through_a_pipe(server):
    """As with `echo AUTH ... | socat - TCP:...`, which ends its sending side at once."""
    command = [sys.executable, "-c", HALF_CLOSE, str(server.port)]
    if shutil.which("socat") is not None:
        command = ["socat", "-t", "30", "-", f"TCP:127.0.0.1:{server.port}"]
    for _ in range(3):
        said = subprocess.run(command, input=b"AUTH wrong\n", stdout=subprocess.PIPE, check=True)
        assert said.stdout.strip() == b"ERROR auth_failed"
    welcome_again(server)


# -- TLS -----------------------------------------------------------------------------------------


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ROOT))


def test_tls_is_spoken_on_every_port(tmp_path):
    with Server(tmp_path, controller__tls_cert=CHAIN, controller__tls_key=KEY) as server:
        tls = trusting()
        with server.work_queue(tls=tls) as queue, server.fan_out(tls=tls) as fan_out:
            queue.add("any", b"x")
            assert fan_out.put("any", b"x")
        with server.schedule(tls=tls) as schedule:
            schedule.set("any", FAR_NS)
        assert server.http_status("sk admin", tls) == 200
        for name in ("schedule", "work queue", "fan-out", "http"):
            answer = raw(server, name, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/1.1 200" not in answer
            server.wait_for_line(r"TLS handshake failed: HTTP_REQUEST client=127.0.0.1:\d+")


# -- SIGHUP --------------------------------------------------------------------------------------


def test_sighup_reads_tokens_certificate_and_level_again(tmp_path):
    for name, source in (("cert.pem", CHAIN), ("key.pem", KEY)):
        shutil.copy(source, tmp_path / name)
    settings = {"controller.tls_cert": "cert.pem", "controller.tls_key": "key.pem"}
    with Server(tmp_path, settings=settings) as server:
        tls = trusting()
        deploy, admin = server.work_queue("sk_deploy", tls=tls), server.work_queue(tls=tls)
        assert deploy.inspect_queues() == admin.inspect_queues() == []
        (tmp_path / "tokens").write_text(TOKENS.replace("sk_deploy", "sk_changed"))
        server.process.send_signal(signal.SIGHUP)
        line = server.wait_for_line("SIGHUP: reloaded .*")[0]
        assert "the certificate, 2 tokens, 1 connections closed whose token was removed" in line
        assert "log level info" in line
        with pytest.raises(AccessDenied):
            deploy.inspect_queues()
        assert admin.inspect_queues() == []
        with server.work_queue("sk_changed", tls=tls) as changed:
            assert changed.inspect_queues() == []
        (tmp_path / "tokens").write_text("[token.a]\nsecret = x\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("ERROR SIGHUP: nothing was reloaded .*tokens:1: token.a has no namesp")
        assert admin.inspect_queues() == []
        deploy.close()
        admin.close()
        assert server.stop() == 0


def test_sighup_takes_the_log_level_of_the_file(tmp_path):
    config = '[log]\nlevel = "info"\n'
    with ScheduleProcess(tmp_path, config=config) as server:
        (tmp_path / "server.toml").write_text('[log]\nlevel = "debug"\n')
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("SIGHUP: reloaded log level debug; other settings need a restart")
        with server.client() as client:
            client.send_bytes(b"x" * 5000)
            client.read_all()
        server.wait_for_line("DEBUG a line is too long")


# -- what is refused at the start ----------------------------------------------------------------

REFUSED = [
    (
        {"controller.listen": "0.0.0.0:0"},
        (
            "controller.listen = '0.0.0.0:0': everyone who can connect could run programs; ask for "
            "tokens with controller.auth_file, or set access.insecure = true"
        ),
    ),
    (
        {"kestrel.enabled": "true", "kestrel.listen": "[::]:0"},
        "kestrel.listen = '[::]:0': everyone",
    ),
    ({"workq.enabled": "true", "workq.listen": "example.com:1"}, "workq.listen = 'example.com:1'"),
    ({"http.listen": "192.0.2.1:1"}, "http.listen = '192.0.2.1:1': everyone"),
    (
        {"controller.auth_file": "missing"},
        "controller.auth_file = 'missing': no such file or directory",
    ),
    (
        {"workq.enabled": "true", "workq.persistence": "storage"},
        "workq.persistence = 'storage': jobs are kept in the command log: set workq.persistence = ",
    ),
    (
        {"database.persistence": "storage"},
        "database.persistence = 'storage': jobs and rules are kept in a log: set database.pers",
    ),
    (
        {"storage.standby": "true"},
        "storage.standby = 'true': a standby needs its logs in PostgreSQL: set data.directory",
    ),
    ({"controller.tls_cert": "a", "controller.tls_key": "b"}, "controller.tls_cert = 'a': no such"),
    (
        {"controller.listen": "127.0.0.1:7", "http.listen": "127.0.0.1:7"},
        "http.listen = '127.0.0.1:7': controller.listen has the same address",
    ),
    (
        {"telemetry.enabled": "true", "telemetry.endpoint": "collector"},
        "telemetry.endpoint = 'collector': expected the URL",
    ),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_config_refuses_what_serve_refuses(tmp_path, monkeypatch, settings, said):
    own = {
        "controller.listen": "127.0.0.1:0",
        "workq.enabled": "false",
        "kestrel.enabled": "false",
        "database.persistence": "memory",
    }
    options = [f"--set={name}={value}" for name, value in (own | settings).items()]
    monkeypatch.chdir(tmp_path)
    with start_journeyman(["serve", *options], tmp_path, os.environ) as served:
        _, refusal = served.communicate()
    shown = run("config", *options)
    assert (served.returncode, shown.exit_code) == (2, 2)
    for told in (refusal, shown.stderr):
        assert "istening" not in told
        assert sum(said in line for line in told.splitlines()) == 1


def test_other_networks_are_served_with_tokens_or_if_that_is_asked_for(tmp_path):
    with Server(tmp_path, controller__listen="0.0.0.0:0") as server:
        server.wait_for_line("controller.listen = 0.0.0.0:0 without TLS: tokens can be read")
    options = {"controller.listen": "0.0.0.0:0", "access.insecure": "true"}
    with ScheduleProcess(tmp_path, settings=options) as open_to_all:
        open_to_all.wait_for_line("WARN controller.listen = 0.0.0.0:0 without tokens: everyone")


def test_nothing_listens_before_tokens_are_loaded(tmp_path):
    server = Server(tmp_path, tokens="[token.a]\nsecret = x\n")
    with server.start(wait=False):
        assert server.wait() == 2
        assert not any("isten" in line for line in server.lines)
        assert any("tokens:1: token.a has no namespace" in line for line in server.lines)


# -- files ---------------------------------------------------------------------------------------


def test_files_can_be_read_by_their_owner_alone(tmp_path):
    more: dict[str, object] = {"database.logfile_path": "data/log", "workq.cmdlog_path": "data/w"}
    more |= {"kestrel.queue_path": "data/k", "database.compression_interval": "1"}
    with Server(tmp_path, settings=more) as server:
        with server.work_queue() as queue, server.fan_out() as fan_out:
            queue.add("any", b"x")
            fan_out.put("any", b"x")
        with server.schedule() as schedule:
            schedule.set_rule("rule", "any", Shell("true"))
            schedule.set("any", 0)
        server.wait_until((tmp_path / "data" / "log.runs").is_dir, "runs")
        assert server.stop() == 0
    made = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert len(made) > 8
    assert {path: mode for path, mode in modes.items() if mode & 0o077} == {}
