"""``journeyman runs``: what ran, and how it ended; ``set``, ``get``, ``ls``, ``rm``: jobs of the
schedule.

Runs and lists are asked of the HTTP port: the ztick protocol has no words for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from journeyman.cli.output import Output, json_line
from journeyman.cli.server.connection import connected, server_option, server_options, show
from journeyman.cli.server.http_port import pages
from journeyman.cli.server.jobs import read_time
from journeyman.client import Schedule
from journeyman.errors import JourneymanError, TimetableError, UsageError
from journeyman.timetables.durations import read_duration
from journeyman.units import MS_PER_S, NS_PER_S

STATUSES = ["planned", "triggered", "executed", "failed"]
MOST_RUNS = 100_000
MAX_SINCE_S = 3_660 * 86_400
_COLUMNS = ("job", "started", "took_s", "outcome", "reason")


@click.group()
def runs() -> None:
    """List and show runs of the schedule."""


@runs.command("ls")
@server_options
@click.option("--since", metavar="TIME", help="Runs since this time, or of the last 30m, 12h, 7d.")
@click.option("--failed", is_flag=True, help="Only failed runs.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most.")
@click.argument("prefix", default="")
def list_runs(
    server: str | None, as_json: bool, since: str | None, failed: bool, limit: int, prefix: str
) -> None:
    """List runs of jobs whose id begins with PREFIX, the newest first."""
    query: dict[str, Any] = {"prefix": prefix} | ({"success": "false"} if failed else {})
    if since is not None:
        query["since"] = _read_since(since)
    found = [run_row(run) for run in runs_of(server, query, limit)]
    show(found, as_json, _COLUMNS)
    if not found and not as_json:
        click.echo("no runs match", err=True)


@runs.command("show")
@server_options
@click.argument("job")
def show_run(server: str | None, as_json: bool, job: str) -> None:
    """Show the runs of a job, the newest first, with their output."""
    query = {"prefix": job, "since": 0}
    found = [run for run in runs_of(server, query, MOST_RUNS) if run["id"] == job]
    if not found:
        raise JourneymanError(f"no run of {job!r} is recorded on this server")
    with Output() as out:
        for run in found:
            row = run_row(run) | {"execution": run["execution"], "output": run["output"]}
            if as_json:
                out.line(json_line(row))
                continue
            for name in ("job", "execution", "started", "took_s", "outcome", "reason"):
                out.line(f"{name.replace('_', '-').ljust(9)}  {row[name]}")
            out.line(row["output"].rstrip("\n"))


def runs_of(server: str | None, query: Mapping[str, Any], limit: int) -> Iterator[dict[str, Any]]:
    """Runs as the HTTP API has them."""
    return pages(server, "/v1/schedule/runs", "runs", query, limit)


def run_row(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "job": run["id"],
        "started": run["started"][:19] + "Z",
        "took_s": round(run["duration_ms"] / MS_PER_S, 3),
        "outcome": "executed" if run["success"] else "failed",
        "reason": run["reason"],
    }


def _read_since(text: str) -> str:
    """The moment that ``--since`` names: a time, or a duration before now."""
    try:
        duration_s = read_duration(text, "since", 1, MAX_SINCE_S)
    except TimetableError:
        return read_time(text).isoformat()
    return str((int(datetime.now(UTC).timestamp()) - duration_s) * NS_PER_S)


@click.command("set")
@server_option
@click.argument("job")
@click.argument("time")
def set_job(server: str | None, job: str, time: str) -> None:
    """Plan JOB for TIME, or plan it again: 2026-12-24T18:00:00Z, now, or in 30s, 5m, 2h, 1d.

    The rule whose pattern it begins with runs it.
    """
    with connected(Schedule, server) as schedule:
        schedule.set(job, read_time(time))


@click.command("get")
@server_options
@click.argument("job")
def get_job(server: str | None, as_json: bool, job: str) -> None:
    """Show the status and time of a job of the schedule."""
    with connected(Schedule, server) as schedule:
        found = schedule.get(job)
    if found is None:
        raise JourneymanError(f"no job {job!r} in the schedule")
    time = datetime.fromtimestamp(found.execution_ns // NS_PER_S, UTC)
    show([{"job": job, "status": found.status.word, "execution": time}], as_json)


@click.command("ls")
@server_options
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs with this status.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most.")
@click.argument("prefix", default="")
def list_scheduled(
    server: str | None, as_json: bool, status: str | None, limit: int, prefix: str
) -> None:
    """List jobs of the schedule whose id begins with PREFIX, by time."""
    query = {"prefix": prefix} | ({"status": status} if status else {})
    jobs = pages(server, "/v1/schedule/jobs", "jobs", query, limit)
    found = [
        {"job": job["id"], "status": job["status"], "execution": job["execution"][:19] + "Z"}
        for job in jobs
    ]
    show(found, as_json)
    if not found and not as_json:
        click.echo("no jobs match", err=True)


@click.command("rm")
@server_option
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def remove_scheduled(server: str | None, jobs: tuple[str, ...]) -> None:
    """Remove jobs from the schedule."""
    if "" in jobs:
        raise UsageError("the id of a job is not empty")
    with connected(Schedule, server) as schedule:
        for job in jobs:
            if not schedule.remove(job):
                raise JourneymanError(f"no job {job!r} in the schedule")
