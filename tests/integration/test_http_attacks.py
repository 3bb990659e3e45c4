"""What a stranger, a web page or a token of another team tries over HTTP: nothing of it works."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from journeyman.servers.http.console.drawing import NAVIGATION
from journeyman.servers.http.routes import Route
from journeyman.servers.http.v1.all_routes import VersionOne
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

TOKENS = """
[token.admin]
secret = "sk_admin"
namespace = "*"
[token.look]
secret = "sk_look"
namespace = "*"
access = "read"
[token.team]
secret = "sk_team"
namespace = "team."
"""
SECRET = "belongs-to-others"  # in everything that the team must not see
NOTHING: Any = None
ROUTES = VersionOne.of_backend(NOTHING).routes()
# Bodies that are good enough to come past the checks of their type.
BODIES: dict[str, Any] = {
    "SetJob": {"execution": "2033-01-01T00:00:00Z"},
    "SetRuleBody": {"pattern": "other.", "runner": "shell", "args": [SECRET]},
    "TimetableBody": {"every": "1h", "runner": ["shell", "true"]},
    "BackfillBody": {"from": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"},
    "AddJob": {"queue": "other.mail", "payload": SECRET},
    "LeaseBody": {"queues": ["other.mail"]},
    "BulkBody": {"queue": "other.mail"},
    "PausedBody": {"paused": True},
    "QueueLimitsBody": {"concurrency": 1},
    "PutBody": {"data": SECRET},
    "EventBody": {"value": SECRET},
    "ForkBody": {"step": "charge"},
    "ServiceBody": {"service": "schedule"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    directory = tmp_path_factory.mktemp("attacks")
    (directory / "tokens.toml").write_text(TOKENS)
    (directory / "tokens.toml").chmod(0o600)
    own = ALL_SERVICES | {"controller.auth_file": "tokens.toml", "limits.http_timeout_ms": "20000"}
    with ScheduleProcess(directory, settings=own) as running:
        yield running


@pytest.fixture(scope="module")
def others_job(server: ScheduleProcess) -> str:
    """Of everything there is something that belongs to others; the id of a dead job of theirs."""

    def do(method: str, path: str, body: Any) -> Any:
        status, told = ask(server, method, path, body, "sk_admin")
        assert status < 300, told
        return told

    job_id: str = do("POST", "/v1/work/jobs", {"queue": "other.mail", "payload": SECRET})["id"]
    do("POST", f"/v1/work/jobs/{job_id}/fail", {"result": SECRET})
    do("POST", "/v1/work/jobs", {"queue": "team.mail", "payload": "own"})
    do("PUT", f"/v1/schedule/jobs/other.{SECRET}", {"execution": "2033-01-01T00:00:00Z"})
    do("PUT", f"/v1/schedule/rules/other.{SECRET}", BODIES["SetRuleBody"])
    do("PUT", f"/v1/timetables/other.{SECRET}", BODIES["TimetableBody"])
    do("POST", f"/v1/fan-out/queues/other_{SECRET}/items", {"data": SECRET})
    do("PUT", f"/v1/work/events/other.{SECRET}", {"value": SECRET})
    return job_id


def filled(route: Route, job_id: str) -> str:
    """Its path, with names of others in it."""
    names = {
        "job": job_id,
        "queue": f"other_{SECRET}" if "fan-out" in route.path else "other.mail",
        "id": f"other.{SECRET}",
        "timetable": f"other.{SECRET}",
        "event": f"other.{SECRET}",
        "of": "queue",
        "name": "other.mail",
        "reader": "x",
        "read": "x",
    }
    path = re.sub(r"\{(\w+)\}", lambda found: names[found[1]], route.path)
    queries = {
        "AtQuery": "at=2039-01-01T00:00:00Z",
        "SpanQuery": "from=2020-01-01T00:00:00Z&until=2039-01-01T00:00:00Z",
        "KeyQuery": f"id=other.{SECRET}",
    }
    query = "" if route.query is None else queries.get(route.query.__name__, "")
    return f"{path}?{query}" if query else path


def without_names(told: Any) -> str:
    """Names that the request had may be repeated."""
    return re.sub(rf"other[._]{SECRET}", "", json.dumps(told))


def body_of(route: Route) -> Any:
    return None if route.body is None else BODIES.get(route.body.__name__, {})


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_asks_for_a_token_and_keeps_to_its_scope(server, others_job, route):
    path, body = filled(route, others_job), body_of(route)
    status, _ = ask(server, route.method, path, body)
    assert status == (200 if route.is_public else 401)
    if route.writes:
        status, told = ask(server, route.method, path, body, "sk_look")
        assert (status, json.loads(told)["code"]) == (403, "read_only")
    status, told = ask(server, route.method, path, body, "sk_team")
    assert SECRET not in without_names(told)
    if route.for_all:
        assert (status, json.loads(told)["code"]) == (403, "outside_namespace")
    elif "{" in route.path or route.writes:
        assert status in (400, 403, 404, 200)
        if status == 200 and route.body is not None and route.body.__name__ == "BulkBody":
            assert told == {"done": 0, "refused": []}


def test_no_older_path_lets_a_token_write_that_may_only_read(server):
    document = ask(server, "GET", "/openapi.json")[1]
    changes = [
        (method.upper(), re.sub(r"\{\w+\}", str(uuid.uuid4()), path))
        for path, methods in document["paths"].items()
        for method in methods
        if method != "get"
    ]
    assert len(changes) == 4
    for method, path in changes:
        status, told = ask(server, method, path, {}, "sk_look")
        assert (status, told) == (403, {"error": "token look may only read"}), path


def test_nothing_of_others_was_changed(server, others_job):
    """After all of the above."""
    job = ask(server, "GET", f"/v1/work/jobs/{others_job}", None, "sk_admin")[1]
    assert job["state"] == "dead"
    queue = ask(server, "GET", "/v1/work/queues/other.mail", None, "sk_admin")[1]
    assert (queue["paused"], queue["limits"]["concurrency"]) == (False, 0)
    for path in (f"schedule/jobs/other.{SECRET}", f"schedule/rules/other.{SECRET}"):
        assert ask(server, "GET", f"/v1/{path}", None, "sk_admin")[0] == 200
    assert ask(server, "GET", f"/v1/timetables/other.{SECRET}", None, "sk_admin")[1]["state"] == (
        "active"
    )
    fan_out = ask(server, "GET", f"/v1/fan-out/queues/other_{SECRET}", None, "sk_admin")[1]
    assert [reader["items"] for reader in fan_out["readers"]] == [1]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/work/jobs", "/v1/work/jobs?state=dead", "/v1/work/jobs?error=belongs"),
        *("/v1/work/jobs?queue=other.mail", "/v1/work/queues", "/v1/schedule/jobs"),
        *("/v1/schedule/rules", "/v1/timetables", "/v1/schedule/runs", "/v1/fan-out/queues"),
        *("/metrics", "/jobs", "/rules"),
    ],
)
@pytest.mark.parametrize("at", ["", "2039-01-01T00:00:00Z"])
def test_lists_hold_what_the_token_may_see(server, others_job, path, at):
    if at and not path.startswith(("/v1/work", "/v1/schedule/jobs", "/v1/timetables")):
        at = ""
    asked = path + (("&" if "?" in path else "?") + f"at={at}" if at else "")
    status, told = ask(server, "GET", asked, None, "sk_team")
    assert status == 200, told
    assert SECRET not in json.dumps(told)
    assert others_job not in json.dumps(told)


def logged_in(server: ScheduleProcess) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """A session of the team, and its cookie."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", "/console/login", urlencode({"secret": "sk_team"}), form)
    response = connection.getresponse()
    response.read()
    return connection, {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}


def test_pages_hold_what_the_token_may_see(server, others_job):
    connection, cookie = logged_in(server)
    others = [f"/console/work/{others_job}", f"/console/schedule/other.{SECRET}"]
    for path in [*(path for _, path, _ in NAVIGATION), *others]:
        for at in ("", "?at=2039-01-01T00:00:00Z"):
            connection.request("GET", path + at, headers=cookie)
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status in (200, 403, 404), (path, text[-300:])
            assert SECRET not in without_names(text), path
    connection.close()


# What the time changes, and no other: ages, rates, codes of forms, ends and labels of the time bar.
CHANGING = re.compile(
    r'"(oldest_ready_ms|age_ms|added_per_s|started_per_s)": [^,}]*|oldest_ready_seconds\S+ [0-9.]+|'
    r'name="code" value="[^"]*"|(\d[\d.]* (ms|s|min|h|d)\b ?)+|'
    r'<td class="right" title="[^"]* since the start">[^<]*|'
    r'(data-from|data-until|datetime|value|title)="[^"]*"|'
    r'<text x="[^>]*>[^<]*</text>|'
    r"\d{4}-\d\d-\d\d[T ][0-9:.]+Z?"
)


def test_what_others_do_changes_nothing_that_the_token_sees(server, others_job):
    """Every route, page and older path that looks: the same before and after."""
    old = ask(server, "GET", "/openapi.json")[1]["paths"]
    paths = [filled(route, others_job) for route in ROUTES if route.method == "GET"]
    paths += [path for path, methods in old.items() if "get" in methods and "{" not in path]
    pages = [path for _, path, _ in NAVIGATION] + ["/console/events?of=records"]
    connection, cookie = logged_in(server)

    def seen() -> dict[str, str]:
        found = {path: json.dumps(ask(server, "GET", path, None, "sk_team")) for path in paths}
        for path in pages:
            connection.request("GET", path, headers=cookie)
            found[path] = connection.getresponse().read().decode()
        return {path: CHANGING.sub("", text) for path, text in found.items()}

    def do(method: str, path: str, body: Any) -> Any:
        return ask(server, method, path, body, "sk_admin")[1]

    before = seen()
    for number in range(3):
        job = do("POST", "/v1/work/jobs", {"queue": f"other.{number}"})["id"]
        do("POST", "/v1/work/jobs", {"queue": "other.more"})
        do("POST", f"/v1/work/jobs/{job}/fail", {"result": "x"})
        do("PUT", f"/v1/schedule/jobs/other.{number}", {"execution": "2033-01-01T00:00:00Z"})
        do("PUT", f"/v1/schedule/rules/other.{number}", BODIES["SetRuleBody"])
        do("POST", f"/v1/fan-out/queues/other_{number}/items", {"data": "x"})
    do("POST", "/v1/work/lease", {"queues": ["other.more"]})
    after = seen()
    connection.close()
    for path, text in before.items():
        assert after[path] == text, path


def test_live_events_of_a_token_say_nothing_but_that_the_server_is_there(server):
    connection, cookie = logged_in(server)
    connection.request("GET", "/console/events", headers=cookie)
    response = connection.getresponse()
    lines = [response.readline() for _ in range(8)]
    connection.close()
    tick = [b"event: tick\n", b"data: \n", b"\n"]
    assert lines == [b"retry: 2000\n", b"\n", *tick, *tick]
    connection, cookie = logged_in(server)
    connection.request("GET", "/console/events?of=records", headers=cookie)
    assert connection.getresponse().status == 403
    connection.close()


# -- bytes --


def raw(server: ScheduleProcess, data: bytes) -> bytes:
    """What the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.http_port), 60) as connection:
        said = b""
        with suppress(ConnectionError):  # it may close while we still send
            connection.sendall(data)
            while piece := connection.recv(65536):
                said += piece
        return said


HEAD = b"Host: localhost\r\nAuthorization: Bearer sk_admin\r\nContent-Type: application/json\r\n"
SMUGGLED = (
    b"DELETE /v1/schedule/jobs/team.smuggled HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
)
LEASE = b"POST /v1/work/lease HTTP/1.1\r\n" + HEAD


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 200\r\n",
        b"Content-Length: 4, 200\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length : 4\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"X: a\r\n Content-Length: 4\r\n",
    ],
)
def test_a_request_whose_end_is_in_doubt_hides_no_other(server, framing):
    job = "/v1/schedule/jobs/team.smuggled"
    assert ask(server, "PUT", job, BODIES["SetJob"], "sk_admin")[0] == 200
    said = raw(server, LEASE + framing + b"\r\n0\r\n\r\n" + SMUGGLED)
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", said), said
    assert said.count(b"HTTP/1.") == 1
    assert ask(server, "GET", job, None, "sk_admin")[0] == 200


def test_a_second_request_on_a_connection_is_done(server):
    """What the test above would see if a request had hidden another."""
    job = "/v1/schedule/jobs/team.smuggled"
    assert ask(server, "PUT", job, BODIES["SetJob"], "sk_admin")[0] == 200
    body = b'{"queues": ["team.none"]}'
    said = raw(server, LEASE + b"Content-Length: %d\r\n\r\n" % len(body) + body + SMUGGLED)
    assert said.count(b"HTTP/1.1 20") == 2
    assert ask(server, "GET", job, None, "sk_admin")[0] == 404


def peak_memory_bytes(server: ScheduleProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def test_a_compressed_body_is_refused_before_it_grows(server):
    bomb = gzip.compress(bytes(64 * 1024 * 1024), 9)
    before = peak_memory_bytes(server)
    for coding in (b"gzip", b"deflate", b"GZIP, gzip"):
        head = HEAD + b"Connection: close\r\nContent-Encoding: " + coding + b"\r\n"
        said = raw(
            server,
            b"POST /v1/work/lease HTTP/1.1\r\n"
            + head
            + b"Content-Length: %d\r\n\r\n" % len(bomb)
            + bomb,
        )
        assert b" 415 " in said[:20]
    assert peak_memory_bytes(server) - before < 32 * 1024 * 1024


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/work/jobs?text=" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /v1/work/jobs HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /v1/work/jobs HTTP/1.1\r\n" + HEAD + b"X: a\r\n" * 100_000 + b"\r\n",
        b"GET /v1/work/jobs HTTP/1.1\n" + HEAD.replace(b"\r", b"") + b"\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_too_long_or_no_http_is_refused(server, request_):
    said = raw(server, request_)
    assert said == b"" or re.match(rb"HTTP/1\.[01] 4\d\d ", said), said[:200]
    assert b"aiohttp" not in said
    assert ask(server, "GET", "/v1/health")[0] == 200


@pytest.mark.parametrize(
    ("fetch", "status"),
    [
        (("cross-site", "no-cors", "image"), 403),
        (("same-site", "cors", "empty"), 403),
        (("cross-site", "navigate", "iframe"), 403),
        (("cross-site", "navigate", "document"), 200),
        (("same-origin", "cors", "empty"), 200),
        (("none", "navigate", "document"), 200),
        ((), 200),
    ],
)
def test_a_page_of_another_site_may_link_and_nothing_else(server, fetch, status):
    names = ("Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")
    headers = dict(zip(names, fetch, strict=False)) | {"Authorization": "Bearer sk_look"}
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("GET", "/v1/work/jobs", headers=headers)
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/work/jobs", "/v1/schedule/jobs", "/v1/work/queues", "/v1/timetables"),
        *("/v1/schedule/rules", "/v1/fan-out/queues", "/v1/schedule/runs"),
    ],
)
def test_a_cursor_that_was_tampered_with_shows_nothing_of_others(server, others_job, path):
    cursors = ["AA==", "_____w==", "b3RoZXIu", "A" * 4096, quote("\0" * 3), "b3RoZXIubWFpbA=="]
    for at in ("", "&at=2039-01-01T00:00:00Z"):
        for cursor in cursors:
            status, told = ask(server, "GET", f"{path}?cursor={cursor}{at}", None, "sk_team")
            assert status in (200, 400), told
            assert SECRET not in json.dumps(told)


# -- bodies --

WITH_A_BODY = [route for route in ROUTES if route.body is not None]


@pytest.mark.parametrize("route", WITH_A_BODY, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("body", [None, b"", b"  "], ids=["none", "empty", "spaces"])
def test_a_body_that_is_declared_required_is_required(server, others_job, route, body):
    status, told = ask(server, route.method, filled(route, others_job), body, "sk_admin")
    assert (status, json.loads(told)["code"]) == (400, "invalid_body")


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\udc00x"', '"\ud800"', "[" * 100_000, '"\xff"'])
@pytest.mark.parametrize("key", ["id", "pattern", "runner", "args", "execution", "queue", "data"])
def test_a_body_that_is_not_text_is_refused_everywhere(server, others_job, text, key):
    value = f"[{text}]" if key == "args" else text
    body = f'{{"{key}": {value}}}'.encode(
        "utf-8" if "\xff" not in text else "latin-1", "surrogatepass"
    )
    old = [("PUT", "/rules/r"), ("PUT", "/jobs/j")]
    routes = [(route.method, filled(route, others_job)) for route in WITH_A_BODY]
    for method, path in old + routes:
        status, told = ask(server, method, path, body, "sk_admin")
        assert status == 400, (method, path, status, told)


def test_a_lone_surrogate_in_a_rule_is_refused(server):
    body = rb'{"pattern": "p\ud800", "runner": "shell", "args": ["echo \ud800"]}'
    assert ask(server, "PUT", "/rules/r", body, "sk_admin") == (400, {"error": "invalid json"})


def test_limits_that_are_not_named_stay(server):
    path = "/v1/work/queues/limited/limits"
    steps: list[tuple[dict[str, int], dict[str, int]]] = [
        ({"rate": 10, "per_ms": 1_000}, {"rate": 10, "per_ms": 1_000}),
        ({"concurrency": 3}, {"rate": 10, "per_ms": 1_000, "concurrency": 3}),
        ({}, {"rate": 10, "per_ms": 1_000, "concurrency": 3}),
        ({"rate": 0}, {"concurrency": 3}),
        ({"concurrency": 0, "key_concurrency": 1}, {"key_concurrency": 1}),
        ({"key_concurrency": 0}, {}),
    ]
    for body, limits in steps:
        status, told = ask(server, "PUT", path, body, "sk_admin")
        assert (status, {key: value for key, value in told["limits"].items() if value}) == (
            200,
            limits,
        )
    for half in ({"rate": 5}, {"key_per_ms": 5}, {"rate": 5, "per_ms": 0}):
        assert ask(server, "PUT", path, half, "sk_admin")[0] == 400


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/work/jobs?text=" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /jobs HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHo st: x\r\n\r\n",
        b"GET /v1/work/jobs HTTP/9\r\n\r\n",
    ],
)
def test_a_request_that_cannot_be_read_is_answered_as_a_problem(server, request_):
    head, _, body = raw(server, request_).partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json" in head
    told = json.loads(body)
    assert (told["status"], told["code"]) == (400, "bad_request")
    assert told["detail"]
    assert len(body) < 1_000


@pytest.mark.parametrize("charset", ["nope", "utf-16", "punycode", "base64", "undefined", "idna"])
def test_the_charset_that_a_form_names_is_not_believed(server, charset):
    form = b"secret=%ff%00&back=" + b"x" * 1000
    head = b"Host: localhost\r\nConnection: close\r\nContent-Length: %d\r\n" % len(form)
    kind = b"Content-Type: application/x-www-form-urlencoded; charset=" + charset.encode()
    said = raw(server, b"POST /console/login HTTP/1.1\r\n" + head + kind + b"\r\n\r\n" + form)
    assert said.startswith(b"HTTP/1.1 401 ")


def test_a_form_of_very_many_fields_is_refused(server):
    form = "&".join(["a=b"] * 5_000)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", "/console/login", form, kind)
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize("path", ["/v1/work/jobs", "/jobs/a", "/nothing"])
def test_what_is_expected_in_vain_is_answered_as_every_error(server, path):
    said = raw(
        server,
        b"POST %b HTTP/1.1\r\n" % path.encode()
        + HEAD
        + b"Connection: close\r\nExpect: nonsense\r\nContent-Length: 2\r\n\r\n{}",
    )
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 417 ")
    told = json.loads(body)
    assert told["code" if path.startswith("/v1/") else "error"] in (
        "expectation_failed",
        "only 100-continue can be expected",
    )


def test_an_expected_100_continue_comes_before_the_body(server):
    body = b'{"queues": ["team.none"]}'
    head = b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    said = raw(server, LEASE + head + body)
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
