"""Web pages against a server of this machine, in a real browser: none of them changes anything.

The bodies are commands that each port would execute if it passed over the lines of HTTP before
them. Every attack is waited for at the server, which says that it closed the connection.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import Chromium
from tests.support.rebinding import Rebinding
from tests.support.servers.fanout_process import FanOutClient
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess
from tests.support.servers.workq_process import WorkqClient

JOB_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
SITE = "evil.example"
PORTS = ["schedule", "work queue", "fan-out"]
LISTENS = {
    "schedule": r"the schedule listens on [^\s]+?:(\d+)",
    "work queue": r"the work queue listens on [^\s]+?:(\d+)",
    "fan-out": r"the fan-out queues listen on [^\s]+?:(\d+)",
    "http": r"HTTP listens on [^\s]+?:(\d+)",
}


class Server(ScheduleProcess):
    """All four ports open."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings=ALL_SERVICES)

    def port_of(self, name: str) -> int:
        return int(self.wait_for_line(LISTENS[name])[1])

    def commands_for(self, name: str) -> str:
        """What the port would execute: a program, a job, an item."""
        path = self.directory / "taken-over"
        return {
            "schedule": f'x RULE SET r p. shell "touch {path}"\nx SET p.1 0\n',
            "work queue": f"add {JOB_ID} mail 1000 60000 4\r\nevil\r\n",
            "fan-out": "set mail 0 0 4\r\nevil\r\n",
        }[name]

    def refusals(self, name: str) -> int:
        pattern = f"speaks HTTP .*port=127.0.0.1:{self.port_of(name)}"
        return sum(re.search(pattern, line) is not None for line in self.lines)

    def assert_untouched(self) -> None:
        figures = self.stat()
        assert (figures["jobs_total"], figures["rules_total"]) == ("0", "0")
        assert not (self.directory / "taken-over").exists()
        with WorkqClient(self.port_of("work queue")) as worker:
            worker.send("inspect queues 0 100\r\n")
            assert worker.read_line() == "+OK 0"
        with FanOutClient(self.port_of("fan-out")) as reader:
            reader.send("stats\r\nquit\r\n")
            assert b"queue_mail" not in reader.read_to_the_end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("cross-site")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium(f"--host-resolver-rules=MAP {SITE} 127.0.0.1") as running:
        yield running


def attack(browser: Chromium, server: Server, name: str, page_port: int, script: str) -> None:
    """Have the script run in a page, and wait until the port has turned it away."""
    browser.open("about:blank")  # nothing of the attack before is under way any more
    before = server.refusals(name)
    browser.open(f"http://{SITE}:{page_port}/page")
    browser.evaluate(script)
    server.wait_until(lambda: server.refusals(name) > before, f"{name}: turned away")
    server.assert_untouched()


def form(target: str, enctype: str, body: str) -> str:
    return f"""{{
        const form = document.createElement("form");
        form.method = "POST"; form.action = {json.dumps(target)}; form.enctype = "{enctype}";
        const field = document.createElement("textarea");
        field.name = "\\n" + {json.dumps(body)}; field.value = {json.dumps(body)};
        const frame = document.createElement("iframe"); frame.name = form.target = "elsewhere";
        form.append(field); document.body.append(frame, form); form.submit();
    }}"""


@pytest.mark.parametrize(
    "enctype", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"]
)
@pytest.mark.parametrize("name", PORTS)
def test_a_form_of_another_site(browser, server, name, enctype):
    with Rebinding(server.port_of(name)) as elsewhere:
        target = f"http://127.0.0.1:{server.port_of(name)}/"
        script = form(target, enctype, server.commands_for(name))
        attack(browser, server, name, elsewhere.port, script)


@pytest.mark.parametrize("name", PORTS)
def test_fetch_an_image_a_beacon_and_a_web_socket_of_another_site(browser, server, name):
    port, body = server.port_of(name), json.dumps(server.commands_for(name))
    target = f"http://127.0.0.1:{port}/"
    scripts = [
        f"void fetch('{target}', {{method: 'POST', mode: 'no-cors', body: {body}}}).catch(() => 0)",
        f"void fetch('{target}', {{method: 'PUT', body: {body}}}).catch(() => 0)",
        f"void (new Image().src = '{target}' + encodeURIComponent({body}))",
        f"void (new Image().src = '{target}' + 'a'.repeat(6000))",
        f"void navigator.sendBeacon('{target}', {body})",
        f"void (window.socket = new WebSocket('ws://127.0.0.1:{port}/'))",
    ]
    with Rebinding(port) as elsewhere:
        for script in scripts:
            attack(browser, server, name, elsewhere.port, script)


@pytest.mark.parametrize("method", ["POST", "PUT", "OPTIONS", "DELETE", "PATCH", "add", "x"])
@pytest.mark.parametrize("name", PORTS)
def test_a_rebound_page_may_use_any_method_and_header(browser, server, name, method):
    body = json.dumps(server.commands_for(name))
    script = f"""void fetch("/", {{
        method: "{method}", headers: {{"X-A": "SET p.1 0"}}, body: {body}
    }}).catch(() => 0)"""
    with Rebinding(server.port_of(name)) as rebound:
        attack(browser, server, name, rebound.port, script)


RULE = {"pattern": "p.", "runner": "shell", "args": ["true"]}
JSON_TYPE = {"Content-Type": "application/json"}
OUTCOME = ".then(answer => answer.status, error => 'failed')"


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_rebound_page_is_refused_by_http(browser, server, kind):
    with Rebinding(server.port_of("http")) as rebound:
        browser.open(f"http://{SITE}:{rebound.port}/page")
        for method, path in (("PUT", "/rules/r"), ("PUT", "/jobs/p.1"), ("DELETE", "/jobs/p.1")):
            given = json.dumps({"method": method, "headers": {"Content-Type": kind}})
            call = f"fetch('{path}', {{...{given}, body: {json.dumps(json.dumps(RULE))}}})"
            assert browser.run(call + OUTCOME) == 421
        assert browser.run("fetch('/jobs')" + OUTCOME) == 421
    server.wait_for_line(f"refused: host .*{SITE}.* is not allowed")
    server.assert_untouched()


def test_pages_of_another_site_are_refused_by_http(browser, server):
    port = server.port_of("http")
    target, body = f"http://127.0.0.1:{port}/rules/r", json.dumps(json.dumps(RULE))
    with Rebinding(port) as elsewhere:
        browser.open(f"http://{SITE}:{elsewhere.port}/page")
        sent = f"{{method: 'PUT', headers: {{'Content-Type': 'application/json'}}, body: {body}}}"
        assert browser.run(f"fetch('{target}', {sent})" + OUTCOME) == "failed"
        simple = f"{{method: 'POST', mode: 'no-cors', body: {body}}}"
        assert browser.run(f"fetch('{target}', {simple}).then(answer => answer.type)") == "opaque"
        image = f"http://127.0.0.1:{port}/jobs"
        loaded = "new Promise(done => {const i = new Image(); i.onload = i.onerror = done; "
        browser.run(loaded + f"i.src = '{image}'}}).then(() => 0)")
        socket = f"new Promise(d => {{const s = new WebSocket('ws://127.0.0.1:{port}/jobs'); "
        assert (
            browser.run(socket + "s.onopen = () => d('open'); s.onerror = () => d('no')})") == "no"
        )
        browser.evaluate(
            form(f"http://127.0.0.1:{port}/work-jobs/{JOB_ID}/requeue", "text/plain", "")
        )
    server.wait_for_line(f"refused: origin .*{SITE}.* may not change")
    server.assert_untouched()


def test_a_page_of_the_server_itself_may_use_it(browser, server):
    """The same requests, from its own origin: the checks above refuse sites, not requests."""
    port = server.port_of("http")
    browser.open(f"http://127.0.0.1:{port}/health")
    kind = "{'Content-Type': 'application/json'}"
    body = json.dumps(json.dumps({"execution": 4_000_000_000_000_000_000}))
    put = f"fetch('/jobs/p.1', {{method: 'PUT', headers: {kind}, body: {body}}})"
    assert browser.run(put + OUTCOME) == 200
    assert browser.run("fetch('/jobs/p.1', {method: 'DELETE'})" + OUTCOME) == 204
    server.assert_untouched()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Host": "10.0.0.1"}, 421),
        ({"Host": "a@localhost"}, 400),
        ({"Host": ""}, 400),
        ({"Host": "localhost", "Content-Type": "text/plain"}, 415),
        ({"Host": "localhost"}, 415),
        ({"Host": "localhost", "Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": "localhost", "Origin": "null", "Content-Type": "application/json"}, 403),
        ({"Host": "localhost", "Origin": "http://a", "Content-Type": "application/json"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
    ],
)
def test_requests_that_only_a_page_would_send(server, headers, status):
    assert put_rule(server.http_port, headers) == status
    server.assert_untouched()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost"},
        {"Host": "LOCALHOST.:80"},
        {"Host": "127.0.0.1:5"},
        {"Host": "[::1]:5"},
        {"Host": "127.1.2.3"},
        {"Host": "localhost:81", "Origin": "http://localhost:81"},
        {"Host": "localhost", "Origin": "https://localhost"},
    ],
)
def test_requests_of_ordinary_clients(server, headers):
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert put_rule(server.http_port, kind | headers) == 200
    assert server.ask("d REMOVERULE r") == "d OK"


def put_rule(port: int, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("PUT", "/rules/r", skip_host=True)
    body = json.dumps(RULE).encode()
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_hosts_can_be_allowed(tmp_path):
    hosts = '["scheduler.internal"]'
    options = {"http.listen": "127.0.0.1:0", "access.allowed_hosts": hosts}
    with ScheduleProcess(tmp_path, settings=options) as server:
        kind = {"Content-Type": "application/json"}
        assert put_rule(server.http_port, kind | {"Host": "scheduler.internal"}) == 200
        assert put_rule(server.http_port, kind | {"Host": "other.internal"}) == 421


def test_a_page_of_an_allowed_origin_uses_version_1_with_a_token(browser, tmp_path):
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[token.page]\nsecret = "sk_page"\nnamespace = "*"\n')
    tokens.chmod(0o600)
    with Rebinding(1) as allowed, Rebinding(1) as other:
        origin = f"http://{SITE}:{allowed.port}"
        own = {"controller.auth_file": str(tokens), "access.allowed_origins": f'["{origin}"]'}
        with ScheduleProcess(tmp_path, settings=ALL_SERVICES | own) as server:
            target = f"http://127.0.0.1:{server.http_port}"

            def fetch(path: str, result: str = "answer.status", **given: Any) -> object:
                script = f"fetch('{target}{path}', {json.dumps(given)})"
                return browser.run(f"{script}.then(answer => {result}, error => 'failed')")

            token = {"Authorization": "Bearer sk_page"}
            job: dict[str, Any] = {
                "method": "POST",
                "headers": token | {"Content-Type": "application/json", "Idempotency-Key": "a"},
                "body": json.dumps({"queue": "mail", "payload": "x"}),
            }
            browser.open(f"{origin}/page")
            assert fetch("/v1/work/jobs", **job) == 201
            replayed = "answer.headers.get('Idempotency-Replayed')"
            assert fetch("/v1/work/jobs", replayed, **job) == "true"
            first = "answer.body.getReader().read().then(read => read.value.length > 0)"
            assert fetch("/v1/events", first, headers=token) is True
            # Errors can be read as well, and nothing is done without a token.
            assert fetch("/v1/work/jobs", **job | {"headers": JSON_TYPE}) == 401
            assert fetch("/v1/work/jobs/x", headers=token) in (400, 404)
            assert fetch("/v1/health") == 200
            assert fetch("/v1/work/jobs", headers=token, credentials="include") == "failed"
            for path in ("/jobs", "/metrics", "/console/overview", "/console/login"):
                assert fetch(path, headers=token) == "failed", path
            browser.open(f"http://{SITE}:{other.port}/page")
            for path in ("/v1/work/jobs", "/v1/health"):
                assert fetch(path, headers=token) == "failed"
            assert fetch("/v1/work/jobs", **job) == "failed"
