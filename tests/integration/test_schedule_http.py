"""The HTTP port: health, metrics, jobs and rules, tokens, and clients that misbehave."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.servers.http_client import TOKENS, ask
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(
        tmp_path_factory.mktemp("http"),
        http__listen="127.0.0.1:0",
        limits__http_body_bytes=200_000,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[ScheduleProcess]:
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "tokens").write_text(TOKENS)
    with ScheduleProcess(
        directory, http__listen="127.0.0.1:0", controller__auth_file="tokens"
    ) as running:
        yield running


def test_health(server):
    assert ask(server, "GET", "/health") == (200, {"status": "ok"})


def test_a_job_is_put_read_listed_and_deleted(server):
    row = {"id": "http.job", "status": "planned", "execution": FAR_NS}
    assert ask(server, "PUT", "/jobs/http.job", {"execution": FAR_NS}) == (200, row)
    assert ask(server, "GET", "/jobs/http.job") == (200, row)
    assert ask(server, "GET", "/jobs?prefix=http.j") == (200, [row])
    assert ask(server, "GET", "/jobs?prefix=none") == (200, [])
    assert server.ask("r GET http.job") == f"r OK planned {FAR_NS}"
    assert ask(server, "DELETE", "/jobs/http.job") == (204, "")
    status, body = ask(server, "DELETE", "/jobs/http.job")
    assert (status, body) == (404, {"error": 'job "http.job" does not exist'})
    assert ask(server, "GET", "/jobs/http.job")[0] == 404


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2090-03-30T14:00:00Z", 3794565600000000000),
        ("2090-03-30T16:00:00+02:00", 3794565600000000000),
        ("2090-03-30T14:00:00.5Z", 3794565600500000000),
        ("2090-03-30 14:00:00", 3794565600000000000),
    ],
)
def test_times_are_understood_with_their_offsets(server, text, ns):
    status, body = ask(server, "PUT", "/jobs/http.time", {"execution": text})
    assert (status, body["execution"]) == (200, ns)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"execution": "soon"},
        {"execution": "2090-02-31T00:00:00Z"},
        {"execution": "2090-01-01T99:99:99Z"},
        {"execution": "2290-01-01T00:00:00Z"},
        {"execution": 2**63},
        {"execution": True},
        {"execution": 1.5},
        {"execution": None},
        [],
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
    ids=lambda body: str(body)[:30],
)
def test_a_wrong_job_is_refused(server, body):
    status, answer = ask(server, "PUT", "/jobs/http.wrong", body)
    assert status == 400
    assert answer["error"]
    assert ask(server, "GET", "/jobs/http.wrong")[0] == 404


@pytest.mark.parametrize("name", ["two words", "a/b/c", "é", 'quo"te', "per%cent", "?x=1#y"])
def test_identifiers_are_percent_decoded(server, name):
    path = "/jobs/" + quote(name, safe="/")
    assert ask(server, "PUT", path, {"execution": FAR_NS})[1]["id"] == name
    assert ask(server, "GET", "/jobs?prefix=" + quote(name))[1][0]["id"] == name
    assert ask(server, "DELETE", path)[0] == 204


@pytest.mark.parametrize(
    ("runner", "args"),
    [
        ("shell", ["echo hello"]),
        ("direct", ["/usr/bin/curl", "-s", "http://example.com"]),
        ("awf", ["report", "--input", "format=pdf"]),
        ("http", ["POST", "https://hooks.example.com/x"]),
        ("amqp", ["amqp://guest:guest@localhost:5672/", "jobs", "key"]),
        ("redis", ["redis://127.0.0.1:6379/0", "PUBLISH", "channel"]),
    ],
)
def test_rules_of_all_six_runners(server, runner, args):
    path = f"/rules/http.{runner}"
    row = {"id": f"http.{runner}", "pattern": "p.", "runner": runner, "args": args}
    body = {"pattern": "p.", "runner": runner, "args": args}
    assert ask(server, "PUT", path, body) == (200, row)
    assert ask(server, "GET", path) == (200, row)
    assert row in ask(server, "GET", "/rules")[1]
    assert ask(server, "GET", f"/rules?prefix=http.{runner}") == (200, [row])
    assert ask(server, "DELETE", path)[0] == 204
    assert ask(server, "GET", path)[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {"runner": "shell", "args": ["x"]},
        {"pattern": "p.", "args": ["x"]},
        {"pattern": "p.", "runner": "shell", "args": "x"},
        {"pattern": "p.", "runner": "shell", "args": [1]},
        {"pattern": "p.", "runner": "shell", "args": []},
        {"pattern": "p.", "runner": "pigeon", "args": []},
        {"pattern": "p.", "runner": "redis", "args": ["rediss://h", "SET", "k"]},
        {"pattern": "p." * 40_000, "runner": "shell", "args": ["x"]},
        {"pattern": "p.", "runner": "direct", "args": ["x", "\ud800"]},
    ],
    ids=lambda body: str(body)[:40],
)
def test_a_wrong_rule_is_refused(server, body):
    status, answer = ask(server, "PUT", "/rules/http.wrong", body)
    assert status == 400
    assert answer["error"]
    assert server.ask("r REMOVERULE http.wrong").startswith("r ERROR not_found")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/rules/x", 405),
        ("HEAD", "/health", 405),
        ("POST", "/health", 405),
        ("DELETE", "/jobs", 405),
        ("GET", "/jobs/", 400),
        ("GET", "/jobsfoo", 404),
    ],
)
def test_other_paths_and_methods(server, method, path, status):
    assert ask(server, method, path)[0] == status


def test_a_body_that_is_too_large_is_refused(server):
    status, answer = ask(server, "PUT", "/jobs/large", {"execution": "x" * 300_000})
    assert (status, answer) == (413, {"error": "body too large"})


def test_chunked_bodies_are_fine(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    connection.request(
        "PUT",
        "/jobs/chunked",
        iter([b'{"exec', b'ution": 5000000000000000000}']),
        encode_chunked=True,
        headers={
            "Content-Type": "application/json",
            "Transfer-Encoding": "chunked",
            "Expect": "100-continue",
        },
    )
    assert connection.getresponse().status == 200
    connection.close()


def test_metrics_are_there_for_prometheus(server):
    ask(server, "PUT", "/jobs/metric", {"execution": FAR_NS})
    status, text = ask(server, "GET", "/metrics")
    assert status == 200
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(rows['journeyman_jobs{status="planned"}']) >= 1
    assert float(rows["journeyman_uptime_seconds"]) > 0
    assert float(rows['journeyman_commands_total{command="set",outcome="ok"}']) >= 1
    assert rows['journeyman_compression{state="idle"}'] == "1.0"


def test_many_jobs_are_listed_as_one_array(server):
    with server.client() as client:
        client.send(*(f"r SET array.{number} {FAR_NS}" for number in range(5000)))
        for _ in range(5000):
            assert client.read_line() == "r OK"
    status, rows = ask(server, "GET", "/jobs?prefix=array.")
    assert status == 200
    assert len({row["id"] for row in rows}) == 5000


@pytest.fixture
def impatient(tmp_path) -> Iterator[ScheduleProcess]:
    settings = {"http.listen": "127.0.0.1:0", "limits.http_timeout_ms": "1500"}
    with ScheduleProcess(tmp_path, settings=settings) as running:
        yield running


def is_healthy(server: ScheduleProcess) -> bool:
    try:
        return ask(server, "GET", "/health")[0] == 200
    except (OSError, http.client.HTTPException):  # this test was slow to ask
        return False


def test_idle_and_trickling_connections_are_closed_and_block_nobody(impatient):
    server = impatient
    quiet = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(20)]
    trickling = socket.create_connection(("127.0.0.1", server.http_port))
    stop = threading.Event()

    def trickle() -> None:
        try:
            trickling.sendall(b"GET /health HTTP/1.1\r\nX: ")
            while not stop.wait(0.1):
                trickling.sendall(b"y")
        except OSError:
            stop.set()

    thread = threading.Thread(target=trickle)
    thread.start()
    half = socket.create_connection(("127.0.0.1", server.http_port))
    half.sendall(
        b"PUT /jobs/half HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    server.wait_until(lambda: is_healthy(server), "others are answered")
    for each in [*quiet, half]:
        each.settimeout(30)
        while each.recv(4096):
            pass
        each.close()
    assert stop.wait(30)
    thread.join()
    trickling.close()
    assert server.ask("r GET half").startswith("r ERROR not_found")


def test_tokens_are_asked_for(guarded):
    assert ask(guarded, "GET", "/health")[0] == 200
    for path in ("/metrics", "/jobs", "/rules", "/jobs/x"):
        assert ask(guarded, "GET", path) == (401, {"error": "auth_required"})
    assert ask(guarded, "GET", "/jobs", secret="wrong") == (401, {"error": "auth_failed"})
    assert ask(guarded, "GET", "/jobs", secret="sk_admin")[0] == 200
    said = "\n".join(guarded.lines)
    assert "wrong" not in said
    assert "sk_" not in said


def test_namespaces_hold_over_http(guarded):
    job = {"execution": FAR_NS}
    assert ask(guarded, "PUT", "/jobs/billing.1", job, "sk_admin")[0] == 200
    assert ask(guarded, "PUT", "/jobs/deploy.1", job, "sk_deploy")[0] == 200
    for method, path, body in (
        ("PUT", "/jobs/billing.2", job),
        ("GET", "/jobs/billing.1", None),
        ("DELETE", "/jobs/billing.1", None),
        ("PUT", "/rules/deploy.r", {"pattern": "billing.", "runner": "shell", "args": ["x"]}),
        ("DELETE", "/rules/billing.r", None),
    ):
        status, answer = ask(guarded, method, path, body, "sk_deploy")
        assert (status, answer) == (403, {"error": "insufficient namespace scope"})
    direct = {"pattern": "deploy.", "runner": "direct", "args": ["/bin/true"]}
    status, answer = ask(guarded, "PUT", "/rules/deploy.r", direct, "sk_deploy")
    assert (status, answer) == (403, {"error": "this token may not use the runner direct"})
    rows = ask(guarded, "GET", "/jobs", secret="sk_deploy")[1]
    assert [row["id"] for row in rows] == ["deploy.1"]


def test_a_stop_with_open_http_connections_is_clean(tmp_path):
    program = "from journeyman.cli import main; main()"
    with ScheduleProcess(tmp_path, program=program, http__listen="127.0.0.1:0") as server:
        libraries = Path(f"/proc/{server.process.pid}/maps")
        assert "aiohttp" not in libraries.read_text()  # it is imported for the first client
        with socket.create_connection(("127.0.0.1", server.http_port)):
            assert ask(server, "PUT", "/jobs/kept", {"execution": FAR_NS})[0] == 200
            assert "aiohttp" in libraries.read_text()
            assert server.stop() == 0
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("r GET kept") == f"r OK planned {FAR_NS}"


def test_an_http_port_in_use_is_an_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with ScheduleProcess(tmp_path, http__listen=listen).start(wait=False) as process:
            assert process.wait() == 1
    assert any("journeyman: error:" in line and listen in line for line in process.lines)


def test_the_last_runs_are_told_with_their_reason_and_output(guarded):
    rule = {"pattern": "deploy.run.", "runner": "shell", "args": ["echo so it was; exit 3"]}
    assert ask(guarded, "PUT", "/rules/deploy.rule", rule, "sk_deploy")[0] == 200
    for name in ("deploy.run.1", "deploy.run.2"):
        assert ask(guarded, "PUT", f"/jobs/{name}", {"execution": 7}, "sk_deploy")[0] == 200
        guarded.wait_until(
            lambda name=name: (
                ask(guarded, "GET", f"/jobs/{name}", secret="sk_admin")[1]["status"] == "failed"
            ),
            "it has run",
        )

    def runs() -> list[dict[str, object]]:
        status, found = ask(
            guarded, "GET", "/v1/schedule/runs?prefix=deploy.run.", secret="sk_deploy"
        )
        assert status == 200
        return list(found["runs"])

    guarded.wait_until(lambda: len(runs()) == 2, "both are told")
    last, first = runs()
    assert (first["id"], last["id"]) == ("deploy.run.1", "deploy.run.2")
    assert last["output"] == "so it was\n"
    assert "3" in str(last["reason"])
    assert (last["success"], last["execution_ns"]) == (False, "7")


def test_runs_of_others_are_not_told(guarded):
    rule = {"pattern": "secret.", "runner": "direct", "args": ["true"]}
    assert ask(guarded, "PUT", "/rules/secret", rule, "sk_admin")[0] == 200
    assert ask(guarded, "PUT", "/jobs/secret.job", {"execution": 8}, "sk_admin")[0] == 200

    def runs_seen_by(secret: str) -> list[str]:
        answer = ask(guarded, "GET", "/v1/schedule/runs?prefix=secret.", secret=secret)[1]
        return [run["id"] for run in answer["runs"]]

    guarded.wait_until(lambda: runs_seen_by("sk_admin") == ["secret.job"], "it has run")
    assert runs_seen_by("sk_deploy") == []


def raw(server: ScheduleProcess, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """The answer to a request that no library would send."""
    with socket.create_connection(("127.0.0.1", server.http_port), 30) as connection:
        lines = f"{head}\nConnection: close\nContent-Length: {len(body)}\n\n".replace("\n", "\r\n")
        connection.sendall(lines.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ")[1]), answer


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/rules/target", "localhost", 421),
        ("http://localhost/rules/target", "evil.example", 421),
        ("http://evil.example:80/rules/target", "127.0.0.1", 421),
        ("http://localhost/rules/target", "localhost", 200),
        ("/rules/target?from=http://evil.example/", "localhost", 200),
        ("/rules/target", "loc\talhost", 400),
        ("/rules/target", "localhost\\evil.example", 400),
        ("/rules/target", "local host", 400),
    ],
)
def test_host_and_target_must_both_name_this_server(server, target, host, status):
    rule = b'{"pattern":"t.","runner":"shell","args":["true"]}'
    head = f"PUT {target} HTTP/1.1\nHost: {host}\nContent-Type: application/json"
    assert raw(server, head, rule)[0] == status
    assert ask(server, "DELETE", "/rules/target")[0] == (204 if status == 200 else 404)


def test_identifiers_may_hold_line_breaks(server):
    name = "two\nlines\r\n"
    path = "/jobs/" + quote(name, safe="")
    assert ask(server, "PUT", path, {"execution": FAR_NS})[0] == 200
    assert ask(server, "GET", path)[1]["id"] == name
    assert ask(server, "DELETE", path)[0] == 204


@pytest.mark.parametrize("name", ["%ff%fe", "a%ED%A0%80", "%C3"])
def test_identifiers_that_are_not_utf8_are_refused(server, name):
    status, answer = ask(server, "PUT", f"/jobs/{name}", {"execution": FAR_NS})
    assert (status, answer) == (400, {"error": "the identifier is not valid UTF-8"})
    assert ask(server, "GET", f"/jobs/{quote(name)}")[0] == 404


def test_a_request_that_cannot_be_read_is_one_line_of_the_log(tmp_path):
    with ScheduleProcess(tmp_path, http__listen="127.0.0.1:0") as server:
        assert raw(server, "GET /jobs/\x00 HTTP/1.1\nHost: localhost")[0] == 400
        assert raw(server, "GET /health HTTP/1.1\nHost: localhost\nContent-Length: -1")[0] == 400
        server.wait_for_line(r"INFO an HTTP request cannot be read .*client=127\.0\.0\.1")
        assert server.stop() == 0
        assert not [line for line in server.lines if "Traceback" in line or "aiohttp" in line]
