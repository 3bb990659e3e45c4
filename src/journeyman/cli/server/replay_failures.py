"""``journeyman replay-failures``: would failed jobs fail again with the code of today?"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from journeyman import client as clients
from journeyman.cli.server.connection import connected, server_options, show
from journeyman.errors import UsageError
from journeyman.moments import parse_moment
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    from journeyman.tasks.app import App
    from journeyman.tasks.steps import Recorded

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_COLUMNS = ("id", "task", "outcome", "detail")
_STARTED_ANEW = "recorded no step: --run-steps runs it"


@click.command("replay-failures")
@server_options
@click.option("--module", "app", metavar="MODULE:APP", required=True,
              help="The app with the code of today, for example shop.tasks:app.")  # fmt: skip
@click.option("--since", default="7d", show_default=True, metavar="TIME",
              help="Jobs that failed within 30m, 12h, 7d.")  # fmt: skip
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True,
              help="Look at so many dead jobs at most, the newest.")  # fmt: skip
@click.option("--run-steps", is_flag=True,
              help="Call steps that were not recorded, and tasks without steps.")  # fmt: skip
def replay_failures(
    server: str | None,
    as_json: bool,
    app: str,
    since: str,
    queue: str | None,
    task: str | None,
    limit: int,
    run_steps: bool,
) -> int:
    """Run failed jobs against the code of today, in this process and with what they recorded.

    No job of the server is changed and none is sent. Code between recorded steps runs; the first
    step without a value is not called, unless --run-steps is given. Exit code 1 if a job would fail
    again.
    """
    from journeyman.cli.server.http_port import pages
    from journeyman.tasks.worker.program import load_app

    since_ns = round((datetime.now(UTC) - _length(since)).timestamp() * NS_PER_S)
    loaded = load_app(app)
    query = {"state": "dead", "queue": queue, "task": task}
    asked = {name: value for name, value in query.items() if value is not None}
    dead = pages(server, "/v1/work/jobs", "jobs", asked, limit)
    rows: list[dict[str, Any]] = []
    with connected(clients.WorkQueue, server) as client:
        for job in dead:
            finished = job.get("finished")
            if finished is not None and parse_moment(finished) >= since_ns:
                rows.append(_row(client, loaded, job, run_steps=run_steps))
    show(rows, as_json, _COLUMNS)
    counts = Counter(row["outcome"] for row in rows)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    click.echo(f"{len(rows)} failed jobs: {counted or 'nothing to run'}", err=True)
    return int(counts["fails"] > 0)


def _length(text: str) -> timedelta:
    if not (text[:-1].isascii() and text[:-1].isdecimal() and text[-1:] in _UNITS):
        raise UsageError(f"not a length of time: {text!r} (expected 30m, 12h or 7d)")
    return timedelta(**{_UNITS[text[-1]]: min(int(text[:-1]), 10**7)})


def _row(client: clients.WorkQueue, app: App, job: Any, *, run_steps: bool) -> dict[str, Any]:
    from journeyman.tasks.broker import JobEnding
    from journeyman.tasks.envelope import Envelope, UnreadableJob
    from journeyman.tasks.running import Delivery
    from journeyman.testing.replaying import Replayed, replay_job

    job_id, row = job["id"], {"id": job["id"], "task": ""}
    try:
        info = client.inspect_job(job_id)
        recorded = {} if info is None else _recorded(client, job_id)
    except clients.NotFound:
        info = None
    if info is None:
        return row | {"outcome": "skipped", "detail": "it is gone meanwhile"}
    try:
        envelope = Envelope.decode(info.payload, app.codec)
    except UnreadableJob as error:
        return row | {"outcome": "skipped", "detail": str(error)}
    row["task"] = envelope.task
    if envelope.task not in app.tasks:
        return row | {"outcome": "skipped", "detail": "this app has no such task"}
    if not recorded and not run_steps:
        return row | {"outcome": "skipped", "detail": _STARTED_ANEW}
    ids = [UUID(each) for each in envelope.gather]
    results = client.results(ids) if ids else []
    ended = {each.job_id: JobEnding(each.succeeded, each.result) for each in filter(None, results)}
    found: Replayed = replay_job(
        app, Delivery(job_id, info.name, info.payload), recorded, ended, runs_steps=run_steps
    )
    return row | {"outcome": found.outcome, "detail": found.detail}


def _recorded(client: clients.WorkQueue, job_id: str) -> Recorded:
    steps = client.steps(job_id)
    return {(step.name, step.number): step.value for step in steps if step.name[0] != "!"}
