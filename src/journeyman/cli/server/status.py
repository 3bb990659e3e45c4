"""``journeyman status``, ``top``, ``ping`` and ``tail``: is the server there, and what does it do.

What the other ports have no words for is asked of the HTTP port.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import click

from journeyman.cli.output import FiniteRange, Output, json_line
from journeyman.cli.server.connection import (
    HTTP_PORT,
    SERVICES,
    connected,
    server_options,
    show,
)
from journeyman.client import (
    AccessDenied,
    CannotConnect,
    ClientError,
    KestrelClient,
    QueueInfo,
    Schedule,
    WorkQueue,
)
from journeyman.client.service import URL_VARIABLE, ServerUrl, parse_url, tls_context
from journeyman.errors import JourneymanError
from journeyman.local_access import has_token, socket_path, token_for
from journeyman.units import NS_PER_S

PAGE = 100
COUNTS = ("ready", "scheduled", "running", "dead")
_BETWEEN_PINGS_S = 0.1
STANDBY = "standby: another server is active"
# service -> its count of connections, and what it has; the names are those of its protocol
_JOBS_OF_SCHEDULE = (
    "jobs: {jobs_planned} planned, {jobs_triggered} running, {jobs_executed} done, "
    "{jobs_failed} failed; rules: {rules_total}"
)
_JOBS_OF_QUEUES = (
    "jobs: {ready} ready, {scheduled} scheduled, {running} running, {dead} dead; queues: {queues}"
)
_SUMMARIES = {
    "work_queue": ("active_clients", _JOBS_OF_QUEUES),
    "schedule": ("connections", _JOBS_OF_SCHEDULE),
    "fan_out": ("curr_connections", "items: {curr_items}; bytes: {bytes}"),
}

PATIENCE_S = 60.0  # an event stream has a sign of life four times in this
STARTS_S = 3.0
MAX_TRIES, RETRY_S = 3, 1.0  # if a token could not be checked, or a server is busy
READY_LIMIT_S = 5.0
_NAMES_IN_HTTP = {"work_queue": "work", "schedule": "schedule", "fan_out": "fan-out"}


@click.command()
@server_options
def status(server: str | None, as_json: bool) -> int:
    """Show the state of each service."""
    problem = readiness_problem(server)
    if problem.get("code") == "standby":
        found: dict[str, Any] = dict.fromkeys(_SUMMARIES, STANDBY)
        errors: list[ClientError] = []
    else:
        found, errors = facts(server, problem)
    is_there = len(errors) < len(_SUMMARIES)
    if as_json:
        show([found], True)
    elif not is_there:
        raise _with_advice(errors[0])
    else:
        show([_summary(name, found) for name in _SUMMARIES], False)
    return 0 if is_there and problem.get("code") not in ("stuck", "not_ready") else 1


def _with_advice(error: ClientError) -> JourneymanError:
    if not isinstance(error, CannotConnect):  # it is there, and says what is wrong
        return error
    said = str(error)
    joint = " Name" if said.endswith("?") else "; name"
    return JourneymanError(f"{said}{joint} another server with --server URL or ${URL_VARIABLE}")


@click.command()
@server_options
@click.option("--interval", type=FiniteRange(0.1, 86_400), default=2.0, show_default=True,
              metavar="SECONDS", help="Time between updates.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N updates.")
def top(server: str | None, as_json: bool, interval: float, count: int | None) -> None:
    """Show the queues repeatedly, until Ctrl-C."""
    looks = 0
    while True:
        rows = [row for row in queue_rows(server) if any(map(row.get, COUNTS)) or not looks]
        if sys.stdout.isatty() and not as_json:
            click.clear()
        show(sorted(rows, key=lambda row: -row["ready"]), as_json)
        looks += 1
        if looks == count:
            return
        time.sleep(interval)


@click.command()
@server_options
@click.argument("services", nargs=-1, type=click.Choice(list(SERVICES)))
@click.option("--wait", type=FiniteRange(0, 86_400), default=0.0, metavar="SECONDS",
              help="How long to wait for a server that is starting.")  # fmt: skip
def ping(server: str | None, as_json: bool, services: tuple[str, ...], wait: float) -> int:
    """Check that the server answers; by default on all three ports.

    Without a token, a server that asks for one has answered.
    """
    until = time.monotonic() + wait
    while True:
        rows = [_ping(name, server) for name in services or SERVICES]
        if all(row["error"] is None for row in rows) or time.monotonic() >= until:
            break
        time.sleep(_BETWEEN_PINGS_S)
    show(rows, as_json)
    return 0 if all(row["error"] is None for row in rows) else 1


def readiness_problem(server: str | None) -> dict[str, Any]:
    """Why the server says that it is not ready; empty: it does not say so, or has no HTTP port."""
    url = parse_url(server)
    connection, _ = _http_connection(url, min(url.timeout_s, READY_LIMIT_S))
    # The other ports say what else is wrong.
    with closing(connection), suppress(OSError, ValueError, http.client.HTTPException):
        connection.request("GET", "/v1/ready")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            problem = json.load(answer)
            return problem if isinstance(problem, dict) else {}
    return {}


def _summary(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """A line of ``status``: of all that a service says, what most people look for."""
    if name in found:
        return {"service": name.replace("_", "-"), "up_since": None, "connections": None,
                "has": found[name]}  # fmt: skip
    mine = [(key.partition(".")[2], value) for key, value in found.items() if name + "." in key]
    of = {key.replace("-", "_"): value for key, value in mine}
    connections, sentence = _SUMMARIES[name]
    return {
        "service": name.replace("_", "-"),
        "up_since": _up_since(of),
        "connections": of[connections],
        "has": sentence.format_map(of)
        + (f"; paused: {of['paused']}" if of.get("paused") else "")
        + (f"; not ready: {of['not_ready']}" if "not_ready" in of else ""),
    }


def _up_since(of: dict[str, Any]) -> str:
    if "started" in of:
        return str(of["started"])
    up_s = int(of["uptime_ns"]) / NS_PER_S if "uptime_ns" in of else int(of["uptime"])
    started = datetime.now(UTC) - timedelta(seconds=up_s)
    return f"{started:%Y-%m-%dT%H:%M:%SZ}"


def facts(
    server: str | None, problem: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[ClientError]]:
    """The report of each service about itself; the reason, if it does not answer.

    ``problem`` of the whole server: a service that is stuck would not answer, and is not asked.
    """
    found: dict[str, Any] = {}
    errors: list[ClientError] = []
    states = (problem or {}).get("services") or {}
    for name, read in {
        "work_queue": _work_queue,
        "schedule": _schedule,
        "fan_out": _fan_out,
    }.items():
        state = states.get(_NAMES_IN_HTTP[name], "ok")
        if state not in ("ok", "off"):
            found[f"{name}.not_ready"] = state
        if (problem or {}).get("code") == "stuck" and f"{name}.not_ready" in found:
            found[name] = f"not ready: {found.pop(f'{name}.not_ready')}"
            continue
        try:
            found |= {f"{name}.{key}": value for key, value in read(server)}
        except ClientError as error:
            found[name] = f"unreachable: {error}"
            errors.append(error)
    return found, errors


def all_queues(client: WorkQueue) -> list[QueueInfo]:
    """The queues of the work queue, by name."""
    found: list[QueueInfo] = []
    while len(page := client.inspect_queues(offset=len(found), limit=PAGE, counts=True)) == PAGE:
        found += page
    return found + page


def queue_rows(server: str | None) -> list[dict[str, Any]]:
    """All queues of the work queue."""
    with connected(WorkQueue, server) as client:
        found = all_queues(client)
    return [
        {"queue": q.name, "ready": q.ready, "scheduled": q.scheduled, "running": q.leased,
         "dead": q.dead, "paused": q.paused}
        for q in found
    ]  # fmt: skip


def _work_queue(server: str | None) -> Iterator[tuple[str, Any]]:
    rows = queue_rows(server)
    with connected(WorkQueue, server) as queue:
        yield from queue.inspect_server().items()
    yield "queues", len(rows)
    for state in COUNTS:
        yield state, sum(row[state] for row in rows)
    yield "paused", " ".join(row["queue"] for row in rows if row["paused"]) or None


def _schedule(server: str | None) -> Iterator[tuple[str, Any]]:
    with connected(Schedule, server) as schedule:
        yield from schedule.stat().items()


def _fan_out(server: str | None) -> Iterator[tuple[str, Any]]:
    with connected(KestrelClient, server) as queues:
        yield from (item for item in queues.stats().items() if not item[0].startswith("queue_"))


def _ping(name: str, server: str | None) -> dict[str, Any]:
    started = time.perf_counter()
    problem = None
    try:
        if name == "work-queue":
            with connected(WorkQueue, server) as queue:
                queue.inspect_server()
        elif name == "schedule":
            with connected(Schedule, server) as schedule:
                schedule.stat()
        else:
            with connected(KestrelClient, server) as queues:
                queues.version()
    except AccessDenied as error:
        # Without a token, as a health check has none, being refused is an answer.
        problem = str(error) if "@" in (server or "") else None
    except ClientError as error:
        problem = str(error)
    took_ms = round((time.perf_counter() - started) * 1000, 1)
    return {"service": name, "ms": took_ms, "error": problem}


@contextmanager
def answer_of(url: ServerUrl, path: str, accept: str) -> Iterator[http.client.HTTPResponse]:
    """The reply to a GET. Raises JourneymanError, also for what goes wrong while it is read."""
    connection, where = _http_connection(url, PATIENCE_S)
    try:
        answer = _answer(connection, url, path, accept)
        if answer.status != http.client.OK:
            raise JourneymanError(f"{where} refuses {path}: {answer.status} {answer.reason}")
        yield answer
    except ConnectionRefusedError:
        raise JourneymanError(
            f"cannot ask {where}: connection refused; is journeyman serve running there?"
            " Name another HTTP port with ?http=PORT in the URL"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise JourneymanError(
            f"cannot ask {where}: {str(error) or type(error).__name__}; is this its HTTP port?"
            " Name another with ?http=PORT in the URL"
        ) from None
    finally:
        connection.close()


class _SocketConnection(http.client.HTTPConnection):
    """Over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _http_connection(url: ServerUrl, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """Not connected yet; and where it leads."""
    host, named = url.place("http")
    port = HTTP_PORT if named is None else named
    if path := socket_path(host):
        return _SocketConnection(path, timeout_s), host
    context = tls_context(url.tls_setting())
    where = f"{host}:{port}"
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s), where
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context), where


def _answer(
    connection: http.client.HTTPConnection, url: ServerUrl, path: str, accept: str
) -> http.client.HTTPResponse:
    """The reply; asked again with the user's token, or if the server could not check the token."""
    token, tries = url.token, 0
    host, port = url.place("http")
    while True:
        headers = {"Accept": accept}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        _connect(connection)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status == http.client.UNAUTHORIZED and not token and has_token():
            token = token_for(host, HTTP_PORT if port is None else port)
            if token is None:
                return answer
        elif answer.status == http.client.SERVICE_UNAVAILABLE and tries < MAX_TRIES:
            tries += 1
            time.sleep(RETRY_S)
        else:
            return answer
        connection.close()


def _connect(connection: http.client.HTTPConnection) -> None:
    """A server that has just started opens its HTTP port a little after the others."""
    until = time.monotonic() + STARTS_S
    while True:
        try:
            connection.connect()
            return
        except ConnectionRefusedError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.1)


def pages(
    server: str | None, path: str, name: str, query: Mapping[str, Any], limit: int
) -> Iterator[dict[str, Any]]:
    """Up to ``limit`` members of the list called ``name``, page by page."""
    url = parse_url(server)
    cursor = ""
    while limit > 0:
        asked = {**query, "limit": min(limit, 500), **({"cursor": cursor} if cursor else {})}
        with answer_of(url, f"{path}?{urlencode(asked)}", "application/json") as answer:
            page = json.load(answer)
        yield from page[name]
        limit -= len(page[name])
        cursor = page.get("next") or ""
        if not cursor:
            return


_SERVICES = ["schedule", "work", "fan-out"]


@click.command()
@server_options
@click.option("--service", type=click.Choice(_SERVICES), help="Only records of this service.")
@click.option("--queue", metavar="NAME", help="Only records of this queue.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N records.")
def tail(
    server: str | None, as_json: bool, service: str | None, queue: str | None, count: int | None
) -> None:
    """Print records as they become durable, until Ctrl-C; on a busy server a sample of them."""
    shown = 0
    with Output(prompt=True) as out:
        for told in _events(parse_url(server)):
            for record in told["records"]:
                if service not in (None, record["service"]) or queue not in (
                    None, record.get("queue"),
                ):  # fmt: skip
                    continue
                out.line(json_line(record) if as_json else _line(record))
                shown += 1
                if shown == count:
                    return
            if told["more"] and not as_json:
                out.line(f"... and {told['more']} more")


def _events(url: ServerUrl) -> Iterator[dict[str, Any]]:
    """The data of every event of the stream."""
    with answer_of(url, "/v1/log/tail", "text/event-stream") as answer:
        while line := answer.readline():
            if line.startswith(b"data: "):
                found = json.loads(line[6:])
                if "records" in found:
                    yield found


def _line(record: dict[str, Any]) -> str:
    words = (record.get(name) for name in ("time", "service", "kind", "queue", "key", "text"))
    return " ".join(word for word in words if word)
