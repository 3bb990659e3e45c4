"""``journeyman compact`` and ``journeyman clean``: make logs smaller, without a server running.

compact   ztick: the last record of each job and rule, in the one file that the original reads
          kestrel: segments that every reader has passed are deleted, or moved to an archive
clean     workq: records that no longer matter go
"""

from __future__ import annotations

import posixpath
from typing import Any

import click

from journeyman.cli import output
from journeyman.cli.errors import warn
from journeyman.cli.reading import dialect_option
from journeyman.clock import Clock, SystemClock
from journeyman.disk import Disk, own_disk_of
from journeyman.errors import UsageError
from journeyman.logs.catalog import KESTREL, LEDGER, WORKQ, ZTICK, Log
from journeyman.logs.detection import LogFinder
from journeyman.logs.holders import Holders, names_of_holders
from journeyman.logs.publication import HELD_DIRECTORY
from journeyman.logs.segments import QUARANTINE, names_in
from journeyman.logs.workq.cleaning import CleanReport
from journeyman.logs.workq.log import WorkqLog


@click.command()
@click.argument("path", type=click.Path())
@dialect_option
@output.queue_option
@click.option(
    "--archive",
    type=click.Path(),
    metavar="DIR",
    help="kestrel: move segments to DIR, as archive~NAME, instead of deleting them.",
)
@output.format_options
@output.quiet_option
def compact(
    path: str,
    dialect: str | None,
    queue: str | None,
    archive: str | None,
    format_: str,
    json_: bool,
    quiet: bool,
) -> None:
    """Shrink the log at PATH.

    A ztick log becomes one file without replaced or removed entries. A kestrel queue loses the
    segments that every reader has passed. A ledger keeps the last record of each key. Records that
    a stream or a lake has not read yet are kept.
    """
    disk, clock = own_disk_of(path), SystemClock()
    logs = LogFinder(disk, warn).find_whole(path, dialect=dialect, queue=queue)
    if logs and all(log.dialect == WORKQ for log in logs):
        raise UsageError(f"{path} is a workq log: use `journeyman clean {path}`")
    if archive is not None and logs and all(log.dialect != KESTREL for log in logs):
        raise UsageError("--archive is for kestrel queues only")
    for log in logs:
        if log.dialect == WORKQ:  # beside others, in a data directory
            if not quiet:
                warn(f"{log.where} is a workq log: use `journeyman clean {log.where}`")
            continue
        before = _quarantined(disk, log)
        holders = holders_of(disk, clock)
        with output.working(f"compacting {log.title}", quiet=quiet):
            row, words = _compact_one(disk, clock, log, archive, holders)
        _warn_of_held(disk, holders)
        if _quarantined(disk, log) != before and not quiet:
            warn(f"{log.where}: damage was quarantined in {QUARANTINE}/ first")
        with output.Output() as out:
            out.line(output.json_line(row) if output.as_json(format_, json_) else words)


def holders_of(disk: Disk, clock: Clock) -> Holders:
    """Streams and lakes beside the log, within the limits that a server has by default."""
    return Holders(
        disk,
        clock,
        tell=lambda gone: warn(
            f"{gone.directory}: {gone.who} had not read all that was dropped: {gone.reason}"
        ),
    )


def _warn_of_held(disk: Disk, holders: Holders) -> None:
    for (directory, _), size in holders.held_bytes.items():
        if size:
            names = ", ".join(names_of_holders(disk, directory))
            warn(
                f"{directory}: {output.counted(size, 'byte')} stay for {names}: let it read them "
                f"first, or remove its file in {posixpath.join(directory, HELD_DIRECTORY)}"
            )


def _compact_one(
    disk: Disk, clock: Clock, log: Log, archive: str | None, holders: Holders
) -> tuple[dict[str, Any], str]:
    if log.dialect == ZTICK:
        return _compact_ztick(disk, clock, log, holders)
    if log.dialect == LEDGER:
        return _compact_ledger(disk, clock, log, holders)
    return _retain_kestrel(disk, clock, log, archive, holders)


def _compact_ledger(
    disk: Disk, clock: Clock, log: Log, holders: Holders
) -> tuple[dict[str, Any], str]:
    from journeyman.logs.ledger import LedgerLog

    with LedgerLog.open(disk, clock, log.where, holders=holders) as ledger:
        before = ledger.size
        ledger.compact()
        after = ledger.size
    row = {"dialect": LEDGER, "log": log.where, "bytes_read": before, "bytes_kept": after}
    return row, f"{log.where}: {before} bytes read, {after} kept"


def _compact_ztick(
    disk: Disk, clock: Clock, log: Log, holders: Holders
) -> tuple[dict[str, Any], str]:
    from journeyman.logs.ztick.log import CompactionReport, compact_offline

    done = compact_offline(disk, log.where, now_ns=clock.now_ns(), holders=holders)
    report = done or CompactionReport(0, 0, 0, 0)
    row = {
        "dialect": ZTICK,
        "log": log.where,
        "records_read": report.records_read,
        "records_kept": report.records_kept,
        "bytes_read": report.bytes_read,
        "bytes_kept": report.bytes_kept,
    }
    words = (
        f"{log.where}: {output.counted(report.records_read, 'record')} read, "
        f"{report.records_kept} kept; {report.bytes_read} bytes read, {report.bytes_kept} kept"
    )
    return row, words


def _retain_kestrel(
    disk: Disk, clock: Clock, log: Log, archive: str | None, holders: Holders
) -> tuple[dict[str, Any], str]:
    row: dict[str, Any] = {"dialect": KESTREL, "log": log.where, "queue": log.queue}
    assert log.queue is not None
    if not log.readers:
        # To open such a queue makes a reader at its end, and then everything would have been read.
        return (
            row | {"segments_retired": []},
            f"{log.title}: no reader has a checkpoint, so nothing is known to be read; left alone",
        )
    from journeyman.logs.kestrel.log import KestrelLog

    with KestrelLog.open(
        disk, clock, log.where, log.queue, archive_directory=archive, holders=holders
    ) as journal:
        retired = journal.retain()
    names = ", ".join(posixpath.basename(each) for each in retired)
    where = "deleted" if archive is None else f"moved to {archive}"
    count = output.counted(len(retired), "segment")
    words = f"{log.title}: {count} {where}{': ' if names else ''}{names}"
    return row | {"segments_retired": retired}, words


def _quarantined(disk: Disk, log: Log) -> list[str]:
    directory = posixpath.dirname(log.where) if log.dialect == ZTICK else log.where
    return names_in(disk, posixpath.join(directory or ".", QUARANTINE))


@click.command()
@click.argument("path", type=click.Path())
@dialect_option
@output.drop_as_of_option
@click.option(
    "--force",
    is_flag=True,
    help="Rewrite every segment that can shrink; allow a time in the future.",
)
@output.format_options
@output.quiet_option
def clean(
    path: str,
    dialect: str | None,
    as_of: int,
    force: bool,
    format_: str,
    json_: bool,
    quiet: bool,
) -> None:
    """Drop records of expired and deleted jobs from the workq log at PATH.

    A segment is rewritten once about half of its records can be dropped, and removed when none is
    left. The active segment is never touched, nor is what a stream or a lake has not read yet.
    """
    disk, clock = own_disk_of(path), SystemClock()
    logs = LogFinder(disk, warn).find_whole(path, dialect=dialect)
    # A data directory has others beside it.
    log = next((each for each in logs if each.dialect == WORKQ), logs[0])
    if log.dialect != WORKQ:
        raise UsageError(
            f"{path} is a {log.dialect} log, which is not cleaned: use `journeyman compact {path}`"
        )
    output.check_drop_as_of(as_of, force=force)
    holders = holders_of(disk, clock)
    with (
        output.working(f"cleaning {log.title}", quiet=quiet),
        WorkqLog.open(disk, clock, log.where, holders=holders) as workq,
    ):
        if not workq.recovery.clean and not quiet:
            warn(f"{log.where}: damage was quarantined in quarantine/ first")
        report = workq.clean(as_of, thorough=force)
    _warn_of_held(disk, holders)
    with output.Output() as out:
        out.line(
            output.json_line(_row(path, report))
            if output.as_json(format_, json_)
            else _describe(path, report)
        )


def _row(path: str, report: CleanReport) -> dict[str, object]:
    return {
        "path": path,
        "segments_visited": report.visited,
        "segments_rewritten": report.rewritten,
        "segments_removed": report.removed,
        "records_dropped": report.records_dropped,
        "bytes_freed": report.bytes_freed,
    }


def _describe(path: str, report: CleanReport) -> str:
    return (
        f"{path}: {output.counted(report.records_dropped, 'record')} dropped, "
        f"{output.counted(report.bytes_freed, 'byte')} freed; "
        f"of {output.counted(report.visited, 'segment')} "
        f"{report.rewritten} rewritten, {report.removed} removed"
    )
