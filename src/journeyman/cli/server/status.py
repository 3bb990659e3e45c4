"""``journeyman status``, ``top``, ``ping`` and ``tail``: is the server there, and what does it do.

What the other ports have no words for is asked of the HTTP port.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from journeyman import client as clients
from journeyman.cli.output import FiniteRange, Output, json_line
from journeyman.cli.server.connection import (
    SERVICES,
    connected,
    server_options,
    show,
)
from journeyman.client.service import URL_VARIABLE, ServerUrl, parse_url
from journeyman.errors import JourneymanError
from journeyman.units import NS_PER_S

PAGE = 100
COUNTS = ("ready", "scheduled", "running", "dead")
_BETWEEN_PINGS_S = 0.1
STANDBY = "standby: another server is active"
# For each service: its count of connections, and the line about its contents; the names in
# braces are those of its protocol.
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

_NAMES_IN_HTTP = {"work_queue": "work", "schedule": "schedule", "fan_out": "fan-out"}


@click.command()
@server_options
def status(server: str | None, as_json: bool) -> int:
    """Show the state of each service."""
    from journeyman.cli.server.http_port import readiness_problem

    problem = readiness_problem(server)
    if problem.get("code") == "standby":
        found: dict[str, Any] = dict.fromkeys(_SUMMARIES, STANDBY)
        errors: list[clients.ClientError] = []
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


def _with_advice(error: clients.ClientError) -> JourneymanError:
    if not isinstance(error, clients.CannotConnect):  # it is there, and says what is wrong
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


def _summary(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """A line of ``status``: of all that a service says, what most people look for."""
    if name in facts:
        return {"service": name.replace("_", "-"), "up_since": None, "connections": None,
                "has": facts[name]}  # fmt: skip
    mine = [(key.partition(".")[2], value) for key, value in facts.items() if name + "." in key]
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


def _up_since(facts: dict[str, Any]) -> str:
    if "started" in facts:
        return str(facts["started"])
    up_s = int(facts["uptime_ns"]) / NS_PER_S if "uptime_ns" in facts else int(facts["uptime"])
    started = datetime.now(UTC) - timedelta(seconds=up_s)
    return f"{started:%Y-%m-%dT%H:%M:%SZ}"


def facts(
    server: str | None, problem: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[clients.ClientError]]:
    """The report of each service about itself; the reason, if it does not answer.

    ``problem`` of the whole server: a service that is stuck would not answer, and is not asked.
    """
    found: dict[str, Any] = {}
    errors: list[clients.ClientError] = []
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
        except clients.ClientError as error:
            found[name] = f"unreachable: {error}"
            errors.append(error)
    return found, errors


def all_queues(client: clients.WorkQueue) -> list[clients.QueueInfo]:
    """The queues of the work queue, by name."""
    found: list[clients.QueueInfo] = []
    while len(page := client.inspect_queues(offset=len(found), limit=PAGE, counts=True)) == PAGE:
        found += page
    return found + page


def queue_rows(server: str | None) -> list[dict[str, Any]]:
    """All queues of the work queue."""
    with connected(clients.WorkQueue, server) as client:
        found = all_queues(client)
    return [
        {"queue": q.name, "ready": q.ready, "scheduled": q.scheduled, "running": q.leased,
         "dead": q.dead, "paused": q.paused, "limits": _limits(q)}
        for q in found
    ]  # fmt: skip


def _limits(queue: clients.QueueInfo) -> str:
    """Return the limits of a queue in the words of ``queues limit``."""
    found = {
        "rate": queue.rate,
        "concurrency": queue.concurrency,
        "key-rate": queue.key_rate,
        "key-concurrency": queue.key_concurrency,
    }
    words = [f"{name}={value}" for name, value in found.items() if value]
    words += ["fair"] if queue.fair else []
    return " ".join([*words, *(f"weight={key}:{count}" for key, count in queue.weights.items())])


def _work_queue(server: str | None) -> Iterator[tuple[str, Any]]:
    rows = queue_rows(server)
    with connected(clients.WorkQueue, server) as queue:
        yield from queue.inspect_server().items()
    yield "queues", len(rows)
    for state in COUNTS:
        yield state, sum(row[state] for row in rows)
    yield "paused", " ".join(row["queue"] for row in rows if row["paused"]) or None


def _schedule(server: str | None) -> Iterator[tuple[str, Any]]:
    with connected(clients.Schedule, server) as schedule:
        yield from schedule.stat().items()


def _fan_out(server: str | None) -> Iterator[tuple[str, Any]]:
    with connected(clients.KestrelClient, server) as queues:
        yield from (item for item in queues.stats().items() if not item[0].startswith("queue_"))


def _ping(name: str, server: str | None) -> dict[str, Any]:
    started = time.perf_counter()
    problem = None
    try:
        if name == "work-queue":
            with connected(clients.WorkQueue, server) as queue:
                queue.inspect_server()
        elif name == "schedule":
            with connected(clients.Schedule, server) as schedule:
                schedule.stat()
        else:
            with connected(clients.KestrelClient, server) as queues:
                queues.version()
    except clients.AccessDenied as error:
        # Without a token, as a health check has none, being refused is an answer.
        problem = str(error) if "@" in (server or "") else None
    except clients.ClientError as error:
        problem = str(error)
    took_ms = round((time.perf_counter() - started) * 1000, 1)
    return {"service": name, "ms": took_ms, "error": problem}


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
    from journeyman.cli.server.http_port import answer_of

    with answer_of(url, "/v1/log/tail", "text/event-stream") as answer:
        while line := answer.readline():
            if line.startswith(b"data: "):
                found = json.loads(line[6:])
                if "records" in found:
                    yield found


def _line(record: dict[str, Any]) -> str:
    words = (record.get(name) for name in ("time", "service", "kind", "queue", "key", "text"))
    return " ".join(word for word in words if word)
