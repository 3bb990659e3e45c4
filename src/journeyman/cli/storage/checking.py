"""``journeyman storage check``, ``rebuild``, ``list`` and ``export``: what is in the store.

    list                               every queue and status, with its number of jobs
    list --status failed               jobs of a status, oldest first
    list --status failed --queue mail  of one queue; --page 7, or --after CURSOR, for another page

The last line of a page that is not the last one says how to get the next.

``export`` writes the store as a log of any dialect, or as a keyspace file:

    keyspace   every key of the keyspace, in order; listings follow from them
    workq      every job, by the shortest history that leads to it
    ztick      jobs that are new, delayed or waiting, planned for their time
    kestrel    the same jobs as items of their queues, oldest first

What the other side has no place for is a line of JSON on stdout. The result is written beside its
place and gets its name when it is complete; a path that is taken is refused. An export that fails,
also because stdout was closed, leaves no file.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from heapq import merge
from typing import Final

import click

from journeyman.cli.errors import DAMAGED, forget_stdout, warn
from journeyman.cli.output import (
    Output,
    as_json,
    counted,
    format_options,
    json_line,
    progress,
    quiet_option,
    working,
)
from journeyman.clock import Clock, SystemClock
from journeyman.config import StorageEngine, StorageSettings
from journeyman.disk import Disk, RealDisk
from journeyman.errors import EncodeError, FormatError, StorageLocked, UsageError
from journeyman.folds import workq
from journeyman.folds.keyspace import (
    Defaults,
    id_of,
    payload_bytes,
    workq_and_timeout,
    workq_of_record,
)
from journeyman.folds.workq import MAX_TTL_MS, MAX_TTR_MS
from journeyman.formats import ztick as ztick_format
from journeyman.formats.kestrel import ItemPut
from journeyman.formats.keyspace import file
from journeyman.formats.keyspace.keys import (
    COUNTERS,
    JOBS,
    QUEUE_TIMES,
    QUEUE_TIMES_V1,
    QUEUES,
    STATUS_FIFO,
    STATUSES,
    prefix_range,
    queue_bytes,
    status_bytes,
)
from journeyman.formats.keyspace.text import format_time
from journeyman.formats.keyspace.values import JobRecord, encode_value
from journeyman.formats.workq import MAX_PAYLOAD_BYTES, Record
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.publication import put_in_place, write_whole
from journeyman.logs.segments import check_queue_name
from journeyman.logs.workq.log import WorkqLog
from journeyman.storage import Page, Storage
from journeyman.storage.checking import check as problems_of
from journeyman.storage.checking import rebuild as rebuild_store
from journeyman.storage.checking import shown
from journeyman.storage.contract import Backend, EngineOptions, expanded
from journeyman.storage.facade import SCHEMA_KEY
from journeyman.storage.opening import open_backend
from journeyman.storage.pages import MAX_PAGE_SIZE, Unreadable
from journeyman.units import NS_PER_MS

_SHOWN = 100  # problems, unless asked for all

_TARGETS: Final = ("keyspace", "workq", "ztick", "kestrel")
_PREFIXES: Final = sorted(
    (QUEUES, JOBS, QUEUE_TIMES, QUEUE_TIMES_V1, STATUSES, STATUS_FIFO, COUNTERS)
)
_OPEN: Final = ("new", "delayed", "waiting")  # not taken yet
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_PAGE = 1000


@click.command()
@click.option("--all", "all_", is_flag=True, help=f"Every problem, not the first {_SHOWN} only.")
@format_options
@quiet_option
@click.pass_context
def check(ctx: click.Context, all_: bool, format_: str, json_: bool, quiet: bool) -> None:
    """Verify every index and counter against the job records. Nothing is changed.

    Exit code 0: no problems, 1: there are problems, one line each.
    """
    found = 0
    backend = existing_backend(ctx.obj)
    try:
        with (
            Output() as output,
            working("checking the store", quiet=quiet),
            backend.view() as view,
        ):
            if view.get(SCHEMA_KEY) is None:
                found = 1
                output.line(_line(SCHEMA_KEY, "it is missing", as_json(format_, json_)))
            for problem in problems_of(view):
                found += 1
                if all_ or found <= _SHOWN:
                    output.line(_line(problem.key, problem.what, as_json(format_, json_)))
            if not as_json(format_, json_):
                if found > _SHOWN and not all_:
                    output.line(f"and {found - _SHOWN} more; --all shows them")
                output.line(
                    f"{counted(found, 'problem')}: `journeyman storage rebuild` restores what is "
                    "derived from the records"
                    if found
                    else "all is right"
                )
    finally:
        backend.close()
    if found:
        ctx.exit(DAMAGED)


def _line(key: bytes, what: str, json: bool) -> str:
    return json_line({"key": shown(key), "problem": what}) if json else f"{shown(key)}: {what}"


@click.command()
@quiet_option
@click.pass_context
def rebuild(ctx: click.Context, quiet: bool) -> None:
    """Rebuild every index and counter from the job records. Stop the server first."""
    backend = existing_backend(ctx.obj)
    try:
        be_alone(backend)
        jobs = backend.stats().entries_about or 0
        with progress("rebuilding", jobs // 6, quiet=quiet, worth=100_000) as advance:
            done = rebuild_store(backend, advance)
    finally:
        backend.close()
    unread = f"; {done.unreadable} cannot be read and are in no index" if done.unreadable else ""
    click.echo(f"{counted(done.jobs, 'job')} indexed again{unread}")


def be_alone(backend: Backend) -> None:
    """No server has its jobs in this store, or it is refused."""
    try:
        backend.be_alone()
    except StorageLocked as error:
        raise UsageError(f"{error}; stop the server first") from error


def existing_backend(settings: StorageSettings) -> Backend:
    """The store as it is, whatever its schema; one that is not there is not made."""
    place = settings.path
    if settings.engine != StorageEngine.POSTGRES:
        place = expanded(settings.path)
        if not os.path.isdir(place) or not os.listdir(place):
            raise UsageError(f"there is no store at {place}: see storage.path")
    options = EngineOptions(settings.cache_capacity_bytes, settings.mode)
    return open_backend(settings.engine, place, options)


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
        output.line(encode_value(record).decode() if json else _job_line(record))
    for each in page.unreadable:
        warn(f"{shown(each.key)}: {each.reason}")
    if page.next_cursor is not None:
        next_ = page.next_cursor
        output.line(json_line({"next": next_}) if json else f"more: --after {next_}")


def _job_line(record: JobRecord) -> str:
    created = format_time(record.created_at_ns)
    return f"{record.job_uuid} {record.queue} {record.status} {created} {record.attempts_so_far}"


@click.command()
@click.argument("path", type=click.Path())
@click.option(
    "--to", "target", type=click.Choice(_TARGETS), required=True, help="What to make of it."
)
@click.option(
    "--ttr-ms",
    type=click.IntRange(1, MAX_TTR_MS),
    default=60_000,
    show_default=True,
    help="workq: for jobs without one.",
)
@click.option(
    "--ttl-ms",
    type=click.IntRange(1, MAX_TTL_MS),
    default=MAX_TTL_MS,
    show_default=True,
    help="workq: likewise.",
)
@quiet_option
@click.pass_context
def export(
    ctx: click.Context, path: str, target: str, ttr_ms: int, ttl_ms: int, quiet: bool
) -> None:
    """Write the store to PATH, as a log or a keyspace file of its own."""
    disk, clock = RealDisk(), SystemClock()
    if disk.exists(path) or disk.is_dir(path):
        raise UsageError(f"{path} already exists: give another path")
    partial = path.rstrip("/") + ".partial"
    if disk.exists(partial) or disk.is_dir(partial):
        raise UsageError(f"{partial} is left of an export that was cut off: remove it first")
    disk.make_dirs(os.path.dirname(os.path.abspath(path)))
    try:
        with (
            Storage.from_settings(ctx.obj) as storage,
            Output() as output,
            working(f"exporting to {path}", quiet=quiet),
        ):
            export_ = _Export(storage, disk, clock, output, Defaults(ttr_ms, ttl_ms))
            {
                "keyspace": export_.keyspace,
                "workq": export_.work_queue,
                "ztick": export_.schedule,
                "kestrel": export_.journals,
            }[target](partial)
            output.flush()  # no export without the list of what it lacks
            put_in_place(disk, partial, path.rstrip("/"))
    except BaseException as error:
        _remove(partial)
        if isinstance(error, BrokenPipeError) and not os.path.lexists(path):
            forget_stdout()
            reason = "stdout was closed before all losses were listed: nothing was exported"
            raise click.ClickException(reason) from None
        raise
    if not quiet:
        what = "key" if target == "keyspace" else "job"
        click.echo(f"{path}: {counted(export_.exported, what)} exported", err=True)


def _remove(partial: str) -> None:
    """What was written of an export that failed."""
    if os.path.isdir(partial):
        shutil.rmtree(partial, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.remove(partial)


class _Export:
    def __init__(
        self, storage: Storage, disk: Disk, clock: Clock, output: Output, defaults: Defaults
    ) -> None:
        self._storage = storage
        self._disk = disk
        self._clock = clock
        self._output = output
        self._defaults = defaults
        self.exported = 0

    def keyspace(self, path: str) -> None:
        write_whole(self._disk, path, self._entries())

    def _entries(self) -> Iterator[bytes]:
        yield file.HEADER
        with self._storage.backend.view() as view:
            for prefix in _PREFIXES:
                for key, value in view.scan(*prefix_range(prefix)):
                    self.exported += 1
                    yield file.CODEC.encode(file.KeyValue(key, value))

    def schedule(self, path: str) -> None:
        write_whole(self._disk, path, self._planned())

    def _planned(self) -> Iterator[bytes]:
        for record in self._jobs():
            if record.status not in _OPEN:
                self._lost(record, f"it is {record.status}")
                continue
            text = payload_bytes(record).decode("utf-8", "surrogateescape")
            is_name = id_of(text) == record.job_uuid
            if not is_name and record.payload != "null":
                self._lost(record, "a schedule has no place for it", "payload")
            identifier = text if is_name else str(record.job_uuid)
            job = ztick_format.JobSet(
                identifier, record.execution_start_ns, ztick_format.Status.PLANNED
            )
            self.exported += 1
            yield ztick_format.CODEC.encode(job)

    def work_queue(self, path: str) -> None:
        now_ns = self._clock.now_ns()
        with WorkqLog.open(self._disk, self._clock, path) as log:
            page: list[Record] = []
            for record in self._jobs():
                job, timed_out_ns = workq_and_timeout(record, self._defaults)
                if workq.visible(job, now_ns) is None:
                    self._lost(record, "its TTL has ended")
                elif not _NAME.fullmatch(record.queue):
                    self._lost(record, "a queue name that the work queue does not accept")
                elif len(job.added.payload) > MAX_PAYLOAD_BYTES:
                    self._lost(record, "larger than 1 MiB")
                else:
                    self.exported += 1
                    page += workq.snapshot(job, timed_out_ns)
                if len(page) >= _PAGE:
                    log.append(page)
                    page = []
            log.append(page)

    def journals(self, path: str) -> None:
        self._disk.make_dirs(path)
        for record in self._jobs():
            if record.status not in _OPEN:
                self._lost(record, f"it is {record.status}")
        for queue in dict.fromkeys(each.queue for each in self._storage.queue_status_counts()):
            try:
                check_queue_name(queue)
            except UsageError as error:
                self._tell(queue, "(all)", str(error))
                continue
            with KestrelLog.open(self._disk, self._clock, path, queue) as journal:
                items: list[ItemPut] = []
                for record in self._queued(queue):
                    if record.status == "delayed":
                        self._lost(record, "a fan-out queue knows no delays", "execution_start_at")
                    added_ms = record.created_at_ns // NS_PER_MS
                    item_id = journal.next_id + len(items)
                    items.append(ItemPut(item_id, added_ms, None, 0, payload_bytes(record)))
                    self.exported += 1
                    if len(items) >= _PAGE:
                        journal.append(items)
                        items = []
                if items:
                    journal.append(items)

    def _queued(self, queue: str) -> Iterator[JobRecord]:
        """Oldest first, whatever their status."""
        each = [self._of_status(queue, status) for status in _OPEN]
        yield from merge(*each, key=lambda job: (job.created_at_ns, job.job_uuid))

    def _of_status(self, queue: str, status: str) -> Iterator[JobRecord]:
        cursor: str | None = None
        while True:
            page = self._storage.list_jobs(queue, status, size=_PAGE, after=cursor)
            yield from page.jobs
            cursor = page.next_cursor
            if cursor is None:
                break

    def _jobs(self) -> Iterator[JobRecord]:
        """Every job that can be read, and whose payload is known."""
        for found in self._storage.all_jobs():
            if isinstance(found, Unreadable):
                self._tell(shown(found.key), "(all)", f"it cannot be read: {found.reason}")
                continue
            try:
                payload_bytes(found)
                workq_of_record(found, self._defaults)
            except FormatError as error:
                self._lost(found, error.reason)
            else:
                yield found

    def _lost(self, record: JobRecord, reason: str, field: str = "(all)") -> None:
        self._tell(str(record.job_uuid), field, reason)

    def _tell(self, key: str, field: str, reason: str) -> None:
        self._output.line(json_line({"key": key, "field": field, "reason": reason}))
