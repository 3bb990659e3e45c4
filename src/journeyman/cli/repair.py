"""``journeyman repair``: what opening a log for writing does to damage, and a report of it.

Damaged bytes go to ``quarantine/`` beside the file, durably, before they leave the file; so no
byte is ever destroyed. The log's own classes do it, under the log's own lock.

A start sets aside an announced batch that is not whole, and a tail that does not begin with a whole
record. Most of their records may be whole, as may most of a block that one flipped bit has spoilt.
``take_back`` appends what can be read of such a file to the log, as its newest records; items of a
queue get new ids.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Any

import click

from journeyman.cli import output
from journeyman.cli.errors import DAMAGED, warn
from journeyman.cli.reading import dialect_option, map_log
from journeyman.cli.verify import inspect_log
from journeyman.clock import Clock, SystemClock
from journeyman.disk import Disk, own_disk_of
from journeyman.errors import LogError, UsageError
from journeyman.formats import kestrel, ztick
from journeyman.formats.framing import Codec
from journeyman.formats.seals import is_marked
from journeyman.logs.catalog import KESTREL, LEDGER, WORKQ, ZTICK, Log
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.detection import LogFinder, relist
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.recovery import FileReport, RecoveryReport, inspect_file, recover_entries
from journeyman.logs.sealing import Headless
from journeyman.logs.segments import kestrel_lock_name
from journeyman.logs.ztick.log import ZtickLog

TAKEN_BACK = ".taken-back"


def take_back(
    disk: Disk, clock: Clock, where: str, queue: str | None, path: str
) -> tuple[int, str]:
    """Append the records of the file at ``path``; how many, and what the file is called now.

    ``queue``: of a kestrel directory; None for a ztick log. Raises LogError if there is no record.
    """
    records = _records(kestrel.WRITER if queue is not None else ztick.CODEC, disk.read_bytes(path))
    if not records:
        raise LogError(path, "no record can be read from it")
    if queue is None:
        with ZtickLog.open(disk, clock, where) as log:
            log.append(records)
    else:
        with KestrelLog.open(disk, clock, where, queue) as journal:
            begin = journal.next_id
            journal.append([replace(item, item_id=begin + n) for n, item in enumerate(records)])
    disk.rename(path, path + TAKEN_BACK)
    disk.sync_dir(posixpath.dirname(path) or ".")
    return len(records), path + TAKEN_BACK


def _records(codec: Codec[Any], data: bytes) -> list[Any]:
    """Return what can be read; seals prove nothing here, and of a queue only items count."""
    assert codec.seals is not None
    headless: Any = codec if data.startswith(codec.header or b"\xff") else Headless(codec)
    return [
        found.record
        for found in read_past_damage(headless, data)
        if not isinstance(found, Damage)
        and not is_marked(codec.seals, data, found.offset)
        and (codec is ztick.CODEC or isinstance(found.record, kestrel.ItemPut))
    ]


@click.command()
@click.argument("path", type=click.Path())
@dialect_option
@output.queue_option
@click.option("--dry-run", is_flag=True, help="Only report what would be done; takes no lock.")
@click.option(
    "--take-back",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Append the records of this quarantine file to the log.",
)
@output.format_options
@output.quiet_option
@click.pass_context
def repair(
    ctx: click.Context,
    path: str,
    dialect: str | None,
    queue: str | None,
    dry_run: bool,
    take_back: str | None,
    format_: str,
    json_: bool,
    quiet: bool,
) -> None:
    """Repair the log at PATH. Damaged bytes are kept in quarantine/ beside it.

    With --take-back FILE, the records in FILE are appended to the log as its newest ones: for
    example those of a batch that a crash cut short. FILE is renamed to FILE.taken-back.

    Exit code 0: the log is clean now; 1: it is not (with --dry-run: there is damage).
    """
    disk, clock = own_disk_of(path), SystemClock()
    if take_back is not None:
        if dry_run:
            raise UsageError("--take-back cannot be combined with --dry-run")
        named = LogFinder(disk, warn).find_whole(path, dialect=dialect, queue=queue)
        _take_back(disk, clock, named, take_back, json=output.as_json(format_, json_))
        return
    reports = []
    for log in LogFinder(disk, warn).find_whole(path, dialect=dialect, queue=queue):
        whole = relist(disk, log, compacted=True)
        with output.working(f"reading {log.title}", quiet=quiet):
            report = _foretell(disk, whole) if dry_run else _recover(disk, clock, whole)
        reports.append((log, report, _is_clean(disk, log, quiet)))
    all_clean = all(clean for _, _, clean in reports)
    with output.Output() as out:
        if output.as_json(format_, json_):
            logs = [
                {"dialect": log.dialect, "log": log.where, "queue": log.queue, "clean_now": clean}
                | {"found": report.as_dict()}
                for log, report, clean in reports
            ]
            row = {"path": path, "dry_run": dry_run, "clean_now": all_clean, "logs": logs}
            out.line(output.json_line(row))
        else:
            for log, report, clean in reports:
                _print_report(out, log, report, clean, dry_run)
    if not all_clean:
        ctx.exit(DAMAGED)


def _take_back(disk: Disk, clock: Clock, logs: list[Log], path: str, *, json: bool) -> None:
    if len(logs) != 1:
        raise UsageError("--take-back works on one log: name its queue with --queue")
    (log,) = logs
    if log.dialect in (WORKQ, LEDGER):
        raise UsageError(
            f"a {log.dialect} log has a checksum in every record: nothing can be taken back"
        )
    if log.dialect == KESTREL and not log.readers:
        raise UsageError(f"{log.title} has no reader yet: open it with the server first")
    count, kept_as = take_back(disk, clock, log.where, log.queue, path)
    with output.Output() as out:
        if json:
            row = {"log": log.where, "queue": log.queue, "taken_back": count, "kept_as": kept_as}
            out.line(output.json_line(row))
        else:
            records = output.counted(count, "record")
            out.line(f"{log.title}: {records} taken back; {path} is now {kept_as}")


def _foretell(disk: Disk, log: Log) -> RecoveryReport:
    return RecoveryReport(tuple(inspect_file(disk, f.codec, f.path) for f in log.files))


def _recover(disk: Disk, clock: Clock, log: Log) -> RecoveryReport:
    """Open the log as a server would, and close it again."""
    if log.dialect == ZTICK:
        from journeyman.logs.ztick.log import ZtickLog

        with ZtickLog.open(disk, clock, log.where) as ztick:
            return ztick.recovery
    if log.dialect == WORKQ:
        from journeyman.logs.workq.log import WorkqLog

        with WorkqLog.open(disk, clock, log.where) as workq:
            return workq.recovery
    if log.dialect == LEDGER:
        from journeyman.logs.ledger import LedgerLog

        with LedgerLog.open(disk, clock, log.where) as ledger:
            return ledger.recovery
    assert log.queue is not None
    if not log.readers:
        return _recover_without_readers(disk, log, log.queue)
    from journeyman.logs.kestrel.log import KestrelLog

    with KestrelLog.open(disk, clock, log.where, log.queue, thorough=True) as journal:
        return journal.recovery


def _recover_without_readers(disk: Disk, log: Log, queue: str) -> RecoveryReport:
    """Recover only the segments: to open the queue would make a reader that is past all
    its items."""
    lock = disk.lock(posixpath.join(log.where, kestrel_lock_name(queue)))
    try:
        return RecoveryReport(
            tuple(recover_entries(disk, file.codec, file.path) for file in log.segments)
        )
    finally:
        lock.release()


def _is_clean(disk: Disk, log: Log, quiet: bool) -> bool:
    """Look once more, from the outside."""
    mapped = map_log(disk, log, compacted=True)
    with output.progress(f"verifying {log.title}", mapped.size, quiet=quiet) as advance:
        return inspect_log(mapped, 0, advance).clean


def _print_report(
    out: output.Output, log: Log, report: RecoveryReport, clean: bool, dry_run: bool
) -> None:
    out.line(f"{log.title}: {log.dialect}, {output.counted(report.records, 'record')}")
    for file in report.files:
        if not file.clean:
            _print_file(out, file, dry_run)
    if report.clean:
        out.line("nothing to repair")
    elif dry_run and clean:
        out.line("nothing is damaged; bytes after the end of the data would be cut off")
    elif dry_run:
        out.line(f"to be repaired: `journeyman repair {log.where}` does it")
    else:
        out.line("repaired" if clean else "still damaged")


def _print_file(out: output.Output, file: FileReport, dry_run: bool) -> None:
    kept = "can be kept" if dry_run else "kept"
    name = posixpath.basename(file.file)
    records = output.counted(file.records, "record")
    out.line(f"  {name}: {records} {kept}, {file.saved_after_damage} of them after damage")
    for damage in file.damages:
        out.line(f"    {_describe(damage)}")
    if file.damage_count > len(file.damages):
        out.line(f"    and {file.damage_count - len(file.damages)} more places")
    for path in file.quarantined:
        out.line(f"    now in {path}")
    if file.gone:
        out.line("    the file held nothing of this log and was removed")


def _describe(damage: Damage) -> str:
    length = output.counted(damage.length, "byte")
    return f"{damage.kind} at offset {damage.offset}, {length}: {damage.reason}"
