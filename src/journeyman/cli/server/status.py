"""``journeyman status``, ``top`` and ``ping``: is the server there, and what does it do."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from journeyman.cli.server.connection import (
    SERVICES,
    connected,
    server_options,
    show,
    show_one,
)
from journeyman.client import AccessDenied, ClientError, KestrelClient, Schedule, WorkQueue

PAGE = 100


@click.command()
@server_options
def status(server: str | None, as_json: bool) -> int:
    """Show what the server has and does, service by service."""
    found = facts(server)
    show_one(found, as_json)
    return 0 if any("unreachable" not in str(value) for value in found.values()) else 1


@click.command()
@server_options
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Time between two looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N looks.")
def top(server: str | None, as_json: bool, interval: float, count: int | None) -> None:
    """Show the queues again and again, until Ctrl-C."""
    looks = 0
    while True:
        rows = [row for row in queue_rows(server) if row["ready"] or row["scheduled"] or not looks]
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
def ping(server: str | None, as_json: bool, services: tuple[str, ...]) -> int:
    """Check that the server answers; by default on all three ports.

    Without a token, a server that asks for one has answered.
    """
    rows = [_ping(name, server) for name in services or SERVICES]
    show(rows, as_json)
    return 0 if all(row["error"] is None for row in rows) else 1


def facts(server: str | None) -> dict[str, Any]:
    """What each service says about itself; why not, if it does not answer."""
    found: dict[str, Any] = {}
    for name, read in {
        "work_queue": _work_queue,
        "schedule": _schedule,
        "fan_out": _fan_out,
    }.items():
        try:
            found |= {f"{name}.{key}": value for key, value in read(server)}
        except ClientError as error:
            found[name] = f"unreachable: {error}"
    return found


def queue_rows(server: str | None) -> list[dict[str, Any]]:
    """All queues of the work queue."""
    with connected(WorkQueue, server) as queue:
        found: list[Any] = []
        while len(page := queue.inspect_queues(offset=len(found), limit=PAGE)) == PAGE:
            found += page
        found += page
        paused: list[Any] = []
        while len(page := queue.inspect_paused_queues(offset=len(paused), limit=PAGE)) == PAGE:
            paused += page
        names = {each.name for each in (*paused, *page)}
    return [
        {"queue": q.name, "ready": q.ready, "scheduled": q.scheduled, "paused": q.name in names}
        for q in found
    ]


def _work_queue(server: str | None) -> Iterator[tuple[str, Any]]:
    rows = queue_rows(server)
    with connected(WorkQueue, server) as queue:
        yield from queue.inspect_server().items()
    yield "queues", len(rows)
    yield "ready", sum(row["ready"] for row in rows)
    yield "scheduled", sum(row["scheduled"] for row in rows)
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
