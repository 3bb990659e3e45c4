"""``journeyman storage check`` and ``list``: what is in the store.

    list                               every queue and status, with its number of jobs
    list --status failed               jobs of a status, oldest first
    list --status failed --queue mail  of one queue; --page 7, or --after CURSOR, for another page

The last line of a page that is not the last one says how to get the next.
"""

from __future__ import annotations

import os

import click

from journeyman.cli import output
from journeyman.cli.errors import DAMAGED, warn
from journeyman.config import StorageEngine, StorageSettings
from journeyman.errors import EncodeError, UsageError
from journeyman.formats.keyspace.keys import (
    queue_bytes,
    status_bytes,
)
from journeyman.formats.keyspace.text import format_time
from journeyman.formats.keyspace.values import JobRecord, encode_value
from journeyman.storage import Page, Storage
from journeyman.storage.checking import find_problems as problems_of
from journeyman.storage.checking import key_text
from journeyman.storage.contract import Backend, EngineOptions, expanded
from journeyman.storage.facade import SCHEMA_KEY
from journeyman.storage.opening import open_backend
from journeyman.storage.pages import MAX_PAGE_SIZE

_MOST_PROBLEMS = 100  # problems, unless asked for all


@click.command()
@click.option(
    "--all", "all_", is_flag=True, help=f"Every problem, not the first {_MOST_PROBLEMS} only."
)
@output.format_options
@output.quiet_option
@click.pass_context
def check(ctx: click.Context, all_: bool, format_: str, json_: bool, quiet: bool) -> None:
    """Verify every index and counter against the job records. Nothing is changed.

    Exit code 0: no problems, 1: there are problems, one line each.
    """
    found = 0
    backend = existing_backend(ctx.obj)
    try:
        with (
            output.Output() as out,
            output.working("checking the store", quiet=quiet),
            backend.view() as view,
        ):
            if view.get(SCHEMA_KEY) is None:
                found = 1
                out.line(_line(SCHEMA_KEY, "it is missing", output.as_json(format_, json_)))
            for problem in problems_of(view):
                found += 1
                if all_ or found <= _MOST_PROBLEMS:
                    out.line(_line(problem.key, problem.what, output.as_json(format_, json_)))
            if not output.as_json(format_, json_):
                if found > _MOST_PROBLEMS and not all_:
                    out.line(f"and {found - _MOST_PROBLEMS} more; --all shows them")
                out.line(
                    f"{output.counted(found, 'problem')}: `journeyman storage rebuild` restores "
                    "what is derived from the records"
                    if found
                    else "all is right"
                )
    finally:
        backend.close()
    if found:
        ctx.exit(DAMAGED)


def _line(key: bytes, what: str, json: bool) -> str:
    return (
        output.json_line({"key": key_text(key), "problem": what})
        if json
        else f"{key_text(key)}: {what}"
    )


def existing_backend(settings: StorageSettings) -> Backend:
    """The store as it is, whatever its schema; one that is not there is not made."""
    place = settings.path
    if settings.engine != StorageEngine.POSTGRES:
        place = expanded(settings.path)
        if not os.path.isdir(place) or not os.listdir(place):
            raise UsageError(f"there is no store at {place}: see storage.path")
    options = EngineOptions(settings.cache_capacity_bytes, settings.mode)
    return open_backend(settings.engine or StorageEngine.ROCKSDB, place, options)


@click.command("list")
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option(
    "--status",
    metavar="STATUS",
    help="List the jobs of this status; without it, only counts are shown.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PAGE_SIZE),
    default=50,
    show_default=True,
    help="Jobs per page.",
)
@click.option("--after", metavar="CURSOR", help="The page after this cursor.")
@click.option("--page", "number", type=click.IntRange(1), help="This page; needs --queue.")
@output.format_options
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
    """Count jobs, or list those of a status. Stop the server first, or ask it over HTTP."""
    if status is None and (after is not None or number is not None):
        raise UsageError("pages need a status: give --status as well")
    if number is not None and queue is None:
        raise UsageError("--page needs --queue; without a queue use --after CURSOR")
    try:
        status_bytes(status or "any")
        queue_bytes("any" if queue is None else queue)
    except EncodeError as error:
        raise UsageError(str(error)) from None
    backend = existing_backend(ctx.obj)
    try:
        storage = Storage(backend, ctx.obj.path)
        with output.Output() as out:
            if status is None:
                _numbers(storage, queue, out, output.as_json(format_, json_))
            elif queue is None:
                page = storage.list_jobs_by_status(status, size=limit, after=after)
                _jobs(page, out, output.as_json(format_, json_))
            else:
                page = storage.list_jobs(queue, status, size=limit, after=after, page=number)
                _jobs(page, out, output.as_json(format_, json_))
    finally:
        backend.close()


def _numbers(storage: Storage, queue: str | None, out: output.Output, json: bool) -> None:
    for each in storage.queue_status_counts(queue):
        row = {"queue": each.queue, "status": each.status, "count": each.count}
        out.line(output.json_line(row) if json else f"{each.count:>12}  {each.queue} {each.status}")


def _jobs(page: Page, out: output.Output, json: bool) -> None:
    for record in page.jobs:
        out.line(encode_value(record).decode() if json else _job_line(record))
    for each in page.unreadable:
        warn(f"{key_text(each.key)}: {each.reason}")
    ending = {"next": page.next_cursor, "position": page.position and str(page.position)}
    ending = {name: value for name, value in ending.items() if value is not None}
    if json and ending:
        out.line(output.json_line(ending))
    elif not json:
        if page.next_cursor is not None:
            out.line(f"more: --after {page.next_cursor}")
        if page.position is not None:
            out.line(f"as of the log at {page.position}")


def _job_line(record: JobRecord) -> str:
    created = format_time(record.created_at_ns)
    return f"{record.job_uuid} {record.queue} {record.status} {created} {record.attempts_so_far}"
