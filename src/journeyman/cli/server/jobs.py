"""``journeyman add``, ``result`` and ``jobs``: jobs of the work queue."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from journeyman import client as clients
from journeyman.cli.output import FiniteRange
from journeyman.cli.server.connection import (
    connected,
    server_option,
    server_options,
    show,
    show_one,
)
from journeyman.errors import JourneymanError, UsageError
from journeyman.moments import parse_moment
from journeyman.protocols.workq.commands import Complaint
from journeyman.protocols.workq.replies import JobProgress
from journeyman.tasks.broker import state_word
from journeyman.tasks.envelope import Envelope, Failure, JsonCodec, UnreadableJob
from journeyman.tasks.options import DEFAULT_LEASE_S, DEFAULT_TTL_S
from journeyman.units import MS_PER_S, NS_PER_S

PAGE = 100
SHOWN_STEPS = 30
IN_ORDER = ["ready", "scheduled", "dead"]  # states of which a queue keeps an order
LISTED = [*IN_ORDER, "running", "done", "cancelled"]
_STATE_NAMES = {
    "leased": "running",
    "completed": "done",
}  # states of the HTTP API, and their names for people
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command()
@server_options
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--task", metavar="NAME", help="Call this task of an app; see --args and --kwargs.")
@click.option("--args", "args", metavar="JSON", default="[]", help="Its arguments, an array.")
@click.option(
    "--kwargs", "kwargs", metavar="JSON", default="{}", help="Its named arguments, an object."
)
@click.option("--id", "job_id", metavar="UUID", help="Its id; if it exists, nothing is added.")
@click.option("--at", metavar="TIME", help="Start at this time, now, or in 30s, 5m, 2h, 1d.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher first.")
@click.option("--retries", type=click.IntRange(0, 254), default=0, show_default=True,
              help="How often to retry after a failure.")  # fmt: skip
@click.option("--lease", type=FiniteRange(0.001), default=DEFAULT_LEASE_S, show_default=True,
              metavar="SECONDS", help="How long a worker may be silent.")  # fmt: skip
@click.option("--ttl", type=FiniteRange(0.001), default=DEFAULT_TTL_S, show_default=True,
              metavar="SECONDS", help="How long the job is kept.")  # fmt: skip
def add(
    server: str | None,
    as_json: bool,
    queue: str,
    payload: str | None,
    task: str | None,
    args: str,
    kwargs: str,
    job_id: str | None,
    at: str | None,
    priority: int,
    retries: int,
    lease: float,
    ttl: float,
) -> None:
    """Add a job to QUEUE and print its id. PAYLOAD - is read from standard input."""
    data = _payload(payload, task, args, kwargs)
    with connected(clients.WorkQueue, server) as client:
        added = client.add(
            queue,
            data,
            job_id=job_id,
            ttr_ms=round(lease * MS_PER_S),
            ttl_ms=round(ttl * MS_PER_S),
            priority=priority,
            max_fails=retries + 1,
            time=None if at is None else read_time(at),
        )
    show([{"id": str(added)}], True) if as_json else click.echo(str(added))


@click.command()
@server_options
@click.argument("job_id", metavar="ID")
@click.option("--wait", type=FiniteRange(0, 86_400), default=0.0, metavar="SECONDS",
              help="How long to wait for the job to end.")  # fmt: skip
def result(server: str | None, as_json: bool, job_id: str, wait: float) -> int:
    """Print the result of a job. Exit code 1 if it failed or is not done."""
    with connected(clients.WorkQueue, server) as client:
        found = _existing(client.result, job_id, wait_ms=round(wait * MS_PER_S))
    if found is None:
        raise JourneymanError(f"job {job_id} is not done; wait for it with --wait SECONDS")
    if as_json:
        show([{"id": job_id, "succeeded": found.succeeded, "result": found.result}], True)
    elif found.succeeded:
        click.echo(found.result)
    else:
        failure = Failure.decode(found.result)
        click.echo(failure.traceback.rstrip() or str(failure))
    return 0 if found.succeeded else 1


@click.group()
def jobs() -> None:
    """List, show, fork, cancel, requeue and remove jobs."""


@jobs.command("ls")
@server_options
@click.argument("queue", required=False)
@click.option("--state", type=click.Choice(LISTED),
              help="Only these; scheduled jobs wait for a time or a retry.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most.")
def list_jobs(
    server: str | None, as_json: bool, queue: str | None, state: str | None, limit: int
) -> None:
    """List jobs, the newest first; those of QUEUE in a state ready, scheduled or dead in queue
    order."""
    if queue is not None and state in IN_ORDER:
        with connected(clients.WorkQueue, server) as client:
            found = [_row(job) for job in _listed(client, queue, state, limit)]
    else:
        from journeyman.cli.server.http_port import pages

        query = {"queue": queue, "state": state}
        asked = {name: value for name, value in query.items() if value is not None}
        jobs = pages(server, "/v1/work/jobs", "jobs", asked, limit)
        found = [_row_of_http(job) for job in jobs]
    columns = ("id", "state", "task", "attempts", "created")
    show(found, as_json, columns if queue else ("queue", *columns))
    if not found and not as_json:
        click.echo("no jobs match", err=True)


@jobs.command("show")
@server_options
@click.argument("job_id", metavar="ID")
def show_job(server: str | None, as_json: bool, job_id: str) -> None:
    """Show a job with its payload and result."""
    with connected(clients.WorkQueue, server) as client:
        found = client.inspect_job(job_id)
        if found is None:
            raise _unknown(job_id)
        row = _row(found) | {"worker": found.worker, "payload": found.payload, "result": None}
        row |= _progress(client.progress(job_id))
        if found.state in (clients.WorkJobState.COMPLETED, clients.WorkJobState.FAILED):
            ending = client.result(job_id)
            row["result"] = None if ending is None else ending.result
    if found.state is clients.WorkJobState.FAILED and not as_json:
        failure = Failure.decode(row["result"] or b"")
        row["result"] = str(failure)
        show_one(row, as_json)
        click.echo(failure.traceback.rstrip())
    else:
        show_one(row, as_json)


@click.command()
@server_option
@click.argument("event")
@click.argument("value", required=False)
def emit(server: str | None, event: str, value: str | None) -> None:
    """Let EVENT happen, with a VALUE in JSON: jobs that wait for it go on. It has this value for
    good."""
    if value is not None:
        try:
            json.loads(value)
        except ValueError as error:
            raise UsageError(f"the value is not JSON: {error}") from None
    with connected(clients.WorkQueue, server) as client:
        client.emit(event, b"" if value is None else value.encode())


@jobs.command("steps")
@server_options
@click.argument("job_id", metavar="ID")
def list_steps(server: str | None, as_json: bool, job_id: str) -> None:
    """List what the task of a job has recorded, in its order."""
    with connected(clients.WorkQueue, server) as client:
        recorded = _existing(client.steps, job_id)
    rows: list[dict[str, object]] = [
        {
            "step": step.name,
            "number": step.number,
            "done": _EPOCH + timedelta(microseconds=step.done_ns // 1000),
            "value": step.value.decode(errors="replace"),
        }
        for step in recorded
    ]
    show(rows, as_json)


@jobs.command("fork")
@server_options
@click.argument("job_id", metavar="ID")
@click.option("--from", "step", metavar="STEP", required=True,
              help="Go on from this step; NAME#2 is the second of its name.")  # fmt: skip
def fork(server: str | None, as_json: bool, job_id: str, step: str) -> None:
    """Send a job once more, from a STEP on, and print the id of the new job. It is given what was
    recorded before the step."""
    name, _, number = step.partition("#")
    if number and not (number.isascii() and number.isdecimal() and int(number)):
        raise UsageError(f"not a step: {step!r} (expected NAME or NAME#NUMBER)")
    with connected(clients.WorkQueue, server) as client:
        try:
            added = _existing(client.fork, job_id, step=name, number=int(number or 1))
        except clients.Refused as refused:
            if refused.reason != Complaint.UNKNOWN_STEP:
                raise
            steps = [each for each in client.steps(job_id) if not each.name.startswith("!")]
            known = [place_text(each.name, each.number) for each in steps]
            listed = ", ".join(known[:SHOWN_STEPS]) or "none"
            raise JourneymanError(
                f"job {job_id} has no step {step!r}; recorded: {listed}"
            ) from None
    show([{"id": str(added)}], True) if as_json else click.echo(str(added))


@jobs.command("cancel")
@server_option
@click.argument("ids", nargs=-1, metavar="ID...", required=True)
def cancel(server: str | None, ids: tuple[str, ...]) -> None:
    """Cancel jobs: one that waits ends, one that runs is stopped in its worker."""
    with connected(clients.WorkQueue, server) as client:
        count = sum(_existing(client.cancel, job_id) for job_id in ids)
    ended = len(ids) - count
    click.echo(f"{count} cancelled" + (f", {ended} had ended already" if ended else ""))


@jobs.command("requeue")
@server_option
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--queue", metavar="QUEUE", help="All dead jobs of this queue.")
def requeue(server: str | None, ids: tuple[str, ...], queue: str | None) -> None:
    """Requeue dead and cancelled jobs."""
    if bool(ids) == bool(queue):
        raise UsageError("name the jobs, or all dead ones of a queue with --queue QUEUE")
    count = 0
    with connected(clients.WorkQueue, server) as client:
        for job_id in ids:
            _existing(client.requeue, job_id)
            count += 1
        while queue and (some := _of_queue(client.requeue_all, queue, limit=PAGE)):
            count += some
    click.echo(f"{count} requeued")


@jobs.command("rm")
@server_option
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--queue", metavar="QUEUE", help="All jobs of this queue that are in --state.")
@click.option("--state", type=click.Choice(IN_ORDER), help="With --queue: only jobs in this state.")
def remove_jobs(
    server: str | None, ids: tuple[str, ...], queue: str | None, state: str | None
) -> None:
    """Remove jobs, in whatever state they are; or all of a queue that wait or are dead."""
    if bool(ids) == bool(queue) or bool(queue) != bool(state):
        raise UsageError("name the jobs, or those of a queue with --queue QUEUE --state STATE")
    with connected(clients.WorkQueue, server) as client:
        for job_id in ids:
            if not client.delete(job_id):
                raise _unknown(job_id)
        count = 0
        while queue and state and (some := _listed(client, queue, state, PAGE)):
            count += sum(client.delete(job.job_id) for job in some)
    if queue:
        click.echo(f"{count} removed")


def _listed(client: clients.WorkQueue, queue: str, state: str, limit: int) -> list[clients.JobInfo]:
    ask = {
        "ready": client.inspect_jobs,
        "scheduled": client.inspect_scheduled_jobs,
        "dead": client.inspect_dead_jobs,
    }[state]
    found: list[clients.JobInfo] = []
    while len(found) < limit:
        page = _of_queue(ask, queue, offset=len(found), limit=min(PAGE, limit - len(found)))
        found += page
        if not page:
            break
    return found


def _of_queue(ask: Any, queue: str, **options: int) -> Any:
    try:
        return ask(queue, **options)
    except clients.NotFound:
        raise JourneymanError(f"no queue {queue!r} on this server") from None


def _row(job: clients.JobInfo) -> dict[str, Any]:
    return {
        "id": str(job.job_id),
        "queue": job.name,
        "state": state_word(
            job.state, job.after, job.time, datetime.now(UTC), is_cancelled=job.is_cancelled
        ),
        "task": _task_of(job.payload),
        "attempts": job.attempts - job.given_back,
        "fails": job.fails,
        "priority": job.priority,
        "created": job.created,
        "time": job.time,
        "ttr_ms": job.ttr_ms,
        "ttl_ms": job.ttl_ms,
    }


def _progress(progress: JobProgress) -> dict[str, Any]:
    """How far the job has come, and its log, if its workers have said anything."""
    row: dict[str, Any] = {}
    if progress.said_ns is not None:
        of = "" if progress.total is None else f" of {progress.total:g}"
        row["progress"] = f"{progress.done or 0:g}{of} {progress.note}".rstrip()
    if progress.log:
        moments = (_EPOCH + timedelta(seconds=line.at_ns // NS_PER_S) for line in progress.log)
        pairs = zip(moments, progress.log, strict=True)
        row["log"] = "\n".join(f"{at:%H:%M:%S} {line.text}" for at, line in pairs)
    return row


def _row_of_http(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a job in the HTTP API."""
    same = ("id", "queue", "attempts", "fails", "priority", "ttr_ms", "ttl_ms")
    return {name: job[name] for name in same} | {
        "state": _state_of_http(job),
        "task": _task_of((job.get("payload") or "").encode()),
        "created": whole_seconds(job.get("created")),
        "time": whole_seconds(job.get("scheduled")),
    }


def _state_of_http(job: Mapping[str, Any]) -> str:
    state = str(job["state"])
    if job.get("waits_for"):
        return "waiting"
    if job["attempts"] and state in ("ready", "scheduled"):
        return "retrying"
    return _STATE_NAMES.get(state, state)


def whole_seconds(moment: str | None) -> str | None:
    """Return the time without its fraction."""
    return moment and re.sub(r"\.\d+", "", moment)


def _task_of(payload: bytes) -> str:
    try:
        return Envelope.decode(payload, JsonCodec()).task
    except UnreadableJob:
        return ""


def _payload(payload: str | None, task: str | None, args: str, kwargs: str) -> bytes:
    if (payload is None) == (task is None):
        raise UsageError("give a PAYLOAD, or --task NAME with --args and --kwargs")
    if task is None:
        return sys.stdin.buffer.read() if payload == "-" else (payload or "").encode()
    try:
        positional, named = json.loads(args), json.loads(kwargs)
    except ValueError as error:
        raise UsageError(f"--args and --kwargs must be JSON: {error}") from None
    if not isinstance(positional, list) or not isinstance(named, dict):
        raise UsageError("--args must be a JSON array, --kwargs a JSON object")
    return Envelope(task, tuple(positional), named).encode(JsonCodec())


def read_time(text: str) -> datetime:
    """A time, or a delay from now. Raises UsageError."""
    if text == "now":
        return datetime.now(UTC)
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    if text[:-1].isdecimal() and text[-1] in units:
        return datetime.now(UTC) + timedelta(seconds=int(text[:-1]) * units[text[-1]])
    try:
        ns = parse_moment(text)
    except ValueError:
        raise UsageError(
            f"not a time: {text!r} (expected 2026-11-16T12:00:00Z or a delay like 5m)"
        ) from None
    return _EPOCH + timedelta(seconds=ns // NS_PER_S, microseconds=ns % NS_PER_S // 1000)


def place_text(name: str, number: int) -> str:
    """Return how people name a step."""
    return name if number == 1 else f"{name}#{number}"


def _existing(act: Any, job_id: str, **options: Any) -> Any:
    try:
        return act(job_id, **options)
    except clients.NotFound:
        raise _unknown(job_id) from None


def _unknown(job_id: str) -> JourneymanError:
    return JourneymanError(f"no job {job_id} on this server; its TTL may have ended")
