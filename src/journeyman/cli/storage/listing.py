"""``journeyman storage list``: how many jobs there are, and which, a page at a time.

    list                               every queue and status, with its number of jobs
    list --status failed               jobs of a status, oldest first
    list --status failed --queue mail  of one queue; --page 7, or --after CURSOR, for another page

The last line of a page that is not the last one says how to get the next.
"""

from __future__ import annotations

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import Output, as_json, format_options, json_line
from journeyman.cli.storage.checking import existing_backend
from journeyman.errors import EncodeError, UsageError
from journeyman.formats.keyspace import queue_bytes, status_bytes
from journeyman.formats.keyspace.text import format_time
from journeyman.formats.keyspace.values import JobRecord, encode_value
from journeyman.storage import Page, Storage
from journeyman.storage.checking import shown
from journeyman.storage.pages import MAX_PAGE_SIZE


@click.command("list")
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--status", metavar="STATUS", help="Its jobs; without it only numbers are shown.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PAGE_SIZE),
    default=50,
    show_default=True,
    help="Jobs of a page.",
)
@click.option("--after", metavar="CURSOR", help="The page behind this cursor.")
@click.option("--page", "number", type=click.IntRange(1), help="This page; needs --queue.")
@format_options
@click.pass_context
def list_(
    ctx: click.Context,
    queue: str | None,
    status: str | None,
    limit: int,
    after: str | None,
    number: int | None,
    format_: str,
    json_: bool,
) -> None:
    """Numbers of jobs, or the jobs of a status. Stop the server first, or ask it over HTTP."""
    if status is None and (after is not None or number is not None):
        raise UsageError("a page is one of a status: give --status as well")
    if number is not None and queue is None:
        raise UsageError("pages have numbers within a queue: give --queue as well, or --after")
    try:
        status_bytes(status or "any")
        queue_bytes("any" if queue is None else queue)
    except EncodeError as error:
        raise UsageError(str(error)) from None
    backend = existing_backend(ctx.obj)
    try:
        storage = Storage(backend, ctx.obj.path)
        with Output() as output:
            if status is None:
                _numbers(storage, queue, output, as_json(format_, json_))
            elif queue is None:
                page = storage.list_jobs_by_status(status, size=limit, after=after)
                _jobs(page, output, as_json(format_, json_))
            else:
                page = storage.list_jobs(queue, status, size=limit, after=after, page=number)
                _jobs(page, output, as_json(format_, json_))
    finally:
        backend.close()


def _numbers(storage: Storage, queue: str | None, output: Output, json: bool) -> None:
    for each in storage.queue_status_counts(queue):
        row = {"queue": each.queue, "status": each.status, "count": each.count}
        output.line(json_line(row) if json else f"{each.count:>12}  {each.queue} {each.status}")


def _jobs(page: Page, output: Output, json: bool) -> None:
    for record in page.jobs:
        output.line(encode_value(record).decode() if json else _line(record))
    for each in page.unreadable:
        warn(f"{shown(each.key)}: {each.reason}")
    if page.next_cursor is not None:
        next_ = page.next_cursor
        output.line(json_line({"next": next_}) if json else f"more: --after {next_}")


def _line(record: JobRecord) -> str:
    created = format_time(record.created_at_ns)
    return f"{record.job_uuid} {record.queue} {record.status} {created} {record.attempts_so_far}"
