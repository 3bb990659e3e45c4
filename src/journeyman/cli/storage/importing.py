"""``journeyman storage import``: logs of any dialect, or keyspace files, into the store.

    ztick      planned jobs; the queue of a job is its rule's identifier, the payload its own
    workq      every job that exists, lossless, and which queues are paused
    kestrel    items that some reader still waits for
    keyspace   job and queue records; their indexes are built again

The state of a log is folded in passes, each over a part of the keys, so that memory does not grow
with the log: a fold of a part of the keys is that part of the fold. What the store has no place for
is a line of JSON on stdout, as of `pipeline convert`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from zlib import crc32

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import (
    Advance,
    Output,
    counted,
    json_line,
    progress,
    queue_option,
    quiet_option,
)
from journeyman.cli.reading import LogReading, map_log
from journeyman.cli.storage.checking import be_alone
from journeyman.clock import SystemClock
from journeyman.data_directory import LEDGER_DIRECTORY
from journeyman.disk import Disk, absolute, disk_of
from journeyman.errors import EncodeError, FormatError
from journeyman.folds import kestrel, workq, ztick
from journeyman.folds.kestrel import consumed_by_all, id_span
from journeyman.folds.keyspace import (
    id_of,
    queue_record,
    record_of_payload,
    record_of_workq,
)
from journeyman.formats.keyspace.file import CODEC, MAGIC
from journeyman.formats.keyspace.keys import JobKey, QueueKey, decode_key
from journeyman.formats.keyspace.values import JobRecord, QueueRecord, decode_value
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.workq import Command, Record
from journeyman.formats.ztick import JobSet, RuleSet, Status
from journeyman.logs.catalog import DIALECTS, KESTREL, LEDGER, WORKQ, ZTICK, Log
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.detection import LogFinder
from journeyman.logs.ledger import peek
from journeyman.logs.workq.log import peek_pauses
from journeyman.storage import Storage, Upsert
from journeyman.units import NS_PER_MS

KEYSPACE: Final = "keyspace"
PASS_BYTES = 64 * 1024 * 1024  # of a log, whose keys are held in memory at a time
_BATCH = 2000  # records of a commit
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_DEFAULT_NAME: Final = "default"

Found: TypeAlias = "JobRecord | QueueRecord | ImportLoss"


@dataclass(frozen=True, slots=True)
class ImportLoss:
    """What is not carried over."""

    key: str
    reason: str
    field: str = "(all)"
    value: str | None = None


@click.command("import")
@click.argument("logs", nargs=-1, required=True, type=click.Path(), metavar="LOG...")
@click.option(
    "--dialect",
    type=click.Choice([*DIALECTS, KEYSPACE]),
    help="Dialect of the log, instead of detecting it.",
)
@queue_option
@quiet_option
@click.pass_context
def import_(
    ctx: click.Context,
    logs: tuple[str, ...],
    dialect: str | None,
    queue: str | None,
    quiet: bool,
) -> None:
    """Import the jobs of LOGS into the store. Existing jobs are replaced.

    Prints one JSON line for each job or field that cannot be carried over.
    """
    disk, now_ns = disk_of(*logs), SystemClock().now_ns()
    stores = [path for path in logs if dialect == KEYSPACE or _is_keyspace(path)]
    others = [path for path in logs if path not in stores]
    found = LogFinder(disk, warn).find(others, dialect=dialect, queue=queue) if others else []
    found = [log for log in found if log.dialect != LEDGER]  # beside others, in a data directory
    with Storage.from_settings(ctx.obj) as storage, Output() as output:
        be_alone(storage.backend)
        jobs = 0
        for path in stores:
            with progress(f"reading {path}", disk.size(path), quiet=quiet) as advance:
                jobs += _put(storage, path, _keyspace(disk, path, advance), output)
        for log in found:
            jobs += _import_log(storage, disk, log, now_ns, output, quiet=quiet)
    if not quiet:
        click.echo(f"{counted(jobs, 'job')} imported", err=True)


def _is_keyspace(path: str) -> bool:
    disk = disk_of(path)
    if not disk.exists(path) or disk.is_dir(path):
        return False
    return disk.read_at(path, 0, len(MAGIC)) == MAGIC


def _import_log(
    storage: Storage, disk: Disk, log: Log, now_ns: int, output: Output, *, quiet: bool
) -> int:
    mapped = map_log(disk, log, compacted=True)
    passes = max(1, -(-mapped.size // PASS_BYTES))
    jobs = 0
    with progress(f"importing {log.title}", mapped.size * passes, quiet=quiet) as advance:
        for number in range(passes):

            def moved(done: int, before: int = number * mapped.size) -> None:
                advance(before + done)

            source = LogReading(mapped, as_of_ns=None, salvage=False, advance=moved)
            found = _JOBS_OF[log.dialect](mapped.log, source, now_ns, (number, passes))
            jobs += _put(storage, log.title, found, output)
    return jobs


def _put(storage: Storage, name: str, found: Iterable[Found], output: Output) -> int:
    """Store what was found, in batches; report what is lost; how many jobs were stored."""
    waiting: list[Upsert] = []
    queues = {queue.name: queue for queue in storage.load_queues().queues}
    known, jobs = len(queues), 0
    changed = False
    for each in found:
        if isinstance(each, ImportLoss):
            row = {"log": name, "key": each.key, "field": each.field, "value": each.value}
            output.line(json_line(row | {"reason": each.reason}))
        elif isinstance(each, QueueRecord):
            changed = True
            queues[each.name] = each
        else:
            waiting.append(Upsert(each))
            queues.setdefault(each.queue, queue_record(each.queue))
            if len(waiting) == _BATCH:
                jobs += len(storage.apply(waiting))
                waiting.clear()
    jobs += len(storage.apply(waiting))
    if changed or len(queues) != known:
        storage.replace_queues(queues.values())
    return jobs


def _in_part(key: bytes, part: tuple[int, int]) -> bool:
    number, parts = part
    return parts == 1 or crc32(key) % parts == number


def _storable(record: JobRecord) -> Found:
    """A record whose names can stand in keys, or why they cannot."""
    from journeyman.storage.records import prepared

    try:
        prepared(record)
    except EncodeError as error:
        return ImportLoss(str(record.job_uuid), str(error))
    return record


# -- the dialects --------------------------------------------------------------------------------


def _schedule(log: Log, source: LogReading, now_ns: int, part: tuple[int, int]) -> Iterator[Found]:
    def wanted() -> Iterator[Any]:
        for _, entry in source.read(log.files):
            kind, identifier = ztick.key_of(entry.record)
            if kind == "rule" or _in_part(identifier.encode("utf-8", "surrogateescape"), part):
                yield entry.record

    schedule = ztick.schedule(ztick.replay(wanted()))
    rules = _Rules(schedule.rules.values())
    if part[0] == 0:
        for rule in schedule.rules.values():
            yield ImportLoss(rule.identifier, "a store runs nothing itself: workers do", "runner")
    for job in schedule.jobs.values():
        if job.status in (Status.EXECUTED, Status.FAILED):
            yield ImportLoss(job.identifier, f"it has run: {job.status.word}")
            continue
        if job.status != Status.PLANNED:
            reason = "its run was under way; it is due again"
            yield ImportLoss(job.identifier, reason, "status", job.status.word)
        yield _storable(_planned(job, rules.queue_of(job), now_ns))


def _planned(job: JobSet, queue: str, now_ns: int) -> JobRecord:
    status = "delayed" if job.execution_ns > now_ns else "waiting"
    payload = job.identifier.encode("utf-8", "surrogateescape")
    uuid = id_of(job.identifier)
    return record_of_payload(queue, uuid, status, now_ns, job.execution_ns, payload)


class _Rules:
    """Which rule a job runs by: the longest pattern that its identifier begins with."""

    def __init__(self, rules: Iterable[RuleSet]) -> None:
        best: dict[str, str] = {}
        for rule in rules:
            if rule.pattern:
                best[rule.pattern] = min(best.get(rule.pattern, rule.identifier), rule.identifier)
        self._best = best
        self._lengths = sorted({len(pattern) for pattern in best}, reverse=True)

    def queue_of(self, job: JobSet) -> str:
        for length in self._lengths:
            rule = self._best.get(job.identifier[:length])
            if rule is not None and length <= len(job.identifier):
                return rule if _NAME.fullmatch(rule) else _DEFAULT_NAME
        return _DEFAULT_NAME


def _beside(
    disk: Disk, directory: str, families: Collection[str]
) -> Iterator[tuple[str, LedgerRecord]]:
    """Keys and records of these families in the ledger of the data directory of a log."""
    ledger = posixpath.join(posixpath.dirname(directory), LEDGER_DIRECTORY)
    for (family, key), record in peek(disk, ledger).items():
        if family in families:
            yield key, record


def _paused(disk: Disk, directory: str) -> list[str]:
    """The names that are listed beside the log, and in the ledger of its data directory."""
    in_ledger = {key for key, _ in _beside(disk, directory, ("queue-pause",))}
    return sorted(peek_pauses(disk, directory) | in_ledger)


def _work(log: Log, source: LogReading, now_ns: int, part: tuple[int, int]) -> Iterator[Found]:
    timeouts_ns: dict[bytes, int] = {}  # a delay before a retry is counted from them

    def records() -> Iterator[Record]:
        for _, entry in source.read(log.files):
            record: Record = entry.record
            if _in_part(record.job_id, part):
                if record.command == Command.TIMEOUT_ATTEMPT:
                    timeouts_ns[record.job_id] = record.logged.unix_ns
                yield record

    if part[0] == 0 and log.whole:
        for name in _paused(disk_of(log.where), log.where):
            yield replace(queue_record(name), state="paused")
    for key, state in workq.replay(records()).items():
        job = workq.visible(state, now_ns)
        if job is not None:
            yield _storable(record_of_workq(job, now_ns, timeouts_ns.get(key, 0)))
        else:
            is_job = isinstance(state, workq.FoldedJob)
            reason = "its TTL has ended" if is_job else "its add is not in the log"
            yield ImportLoss(key.hex(), reason)


def _items(log: Log, source: LogReading, now_ns: int, part: tuple[int, int]) -> Iterator[Found]:
    readers: dict[str, kestrel.Reader | None] = {}
    for file in log.readers:
        read = (entry.record for _, entry in source.read([file]))
        name = file.reader or ""
        reader = kestrel.fold_reader(read, name=name)
        readers[name] = None if file.path in source.damaged else reader
        if part[0] == 0:
            yield ImportLoss(
                f"{log.queue}+{name}", "a store gives each job to one worker", "reader"
            )
    span = id_span(entry.record for _, entry in source.read(log.segments))
    is_consumed = consumed_by_all(readers, span)

    def wanted() -> Iterator[Any]:
        for _, entry in source.read(log.segments):
            item_id = getattr(entry.record, "item_id", None)
            if item_id is not None and _in_part(b"%d" % item_id, part):
                yield entry.record

    where = f"{absolute(log.where)}/{log.queue}"
    queue = log.queue if log.queue and _NAME.fullmatch(log.queue) else _DEFAULT_NAME
    for item_id, item in kestrel.replay(wanted()).items():
        for ordinal, put in enumerate(kestrel.snapshot(item)):
            key = f"{log.queue}/{item_id}" + (f"/{ordinal}" if ordinal else "")
            if is_consumed(item_id):
                yield ImportLoss(key, "every reader has finished it")
            elif put.expire_time_ms is not None and put.expire_time_ms * NS_PER_MS <= now_ns:
                yield ImportLoss(key, "its TTL has ended")
            else:
                uuid = id_of(f"{where}/{item_id}" + (f"/{ordinal}" if ordinal else ""))
                added_ns = put.add_time_ms * NS_PER_MS
                yield _storable(
                    record_of_payload(queue, uuid, "waiting", added_ns, added_ns, put.data)
                )
                for field in ("expire_time_ms", "error_count"):
                    if value := getattr(put, field):
                        yield ImportLoss(
                            key, "a job record has no member for it", field, str(value)
                        )


_JOBS_OF: Final = {ZTICK: _schedule, WORKQ: _work, KESTREL: _items}


def _keyspace(disk: Disk, path: str, advance: Advance) -> Iterator[Found]:
    data = disk.view(path)
    for number, found in enumerate(read_past_damage(CODEC, data, file=path)):
        if isinstance(found, Damage):
            warn(
                f"{path}: {found.length} bytes at offset {found.offset} left out: {found.kind}, "
                f"{found.reason}"
            )
            continue
        if number % _BATCH == 0:
            advance(found.offset)
        key, value = found.record.key, found.record.value
        try:
            decoded = decode_key(key)
            if isinstance(decoded, JobKey | QueueKey):
                record = decode_value(decoded, value)
                assert isinstance(record, JobRecord | QueueRecord)
                yield _storable(record) if isinstance(record, JobRecord) else record
        except FormatError as error:
            yield ImportLoss(key.decode("utf-8", "backslashreplace"), error.reason)
