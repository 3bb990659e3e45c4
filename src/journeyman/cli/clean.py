"""``journeyman clean``: one cleaning of a workq log, now."""

from __future__ import annotations

import click

from journeyman.cli.errors import warn
from journeyman.cli.lines import MOMENT, counted
from journeyman.cli.output import (
    Output,
    as_json,
    dialect_option,
    format_options,
    json_line,
    quiet_option,
    working,
)
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.logs.catalog import WORKQ
from journeyman.logs.detection import LogFinder
from journeyman.logs.workq.cleaning import CleanReport
from journeyman.logs.workq.log import WorkqLog


@click.command()
@click.argument("path", type=click.Path())
@dialect_option
@click.option(
    "--as-of",
    type=MOMENT,
    default="now",
    show_default=True,
    help="Drop what has expired at this time: ISO 8601, nanoseconds or `now`.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Rewrite every segment that can shrink; allow a time in the future.",
)
@format_options
@quiet_option
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
    left. The active segment is never touched.
    """
    disk, clock = RealDisk(), SystemClock()
    logs = LogFinder(disk, warn).find_whole(path, dialect=dialect)
    # A data directory has others beside it.
    log = next((each for each in logs if each.dialect == WORKQ), logs[0])
    if log.dialect != WORKQ:
        raise UsageError(
            f"{path} is a {log.dialect} log, which is not cleaned: use `journeyman compact {path}`"
        )
    if as_of > clock.now_ns() and not force:
        raise UsageError(
            "--as-of is in the future, so jobs that still exist would be dropped: "
            "give --force if that is meant"
        )
    with (
        working(f"cleaning {log.title}", quiet=quiet),
        WorkqLog.open(disk, clock, log.where) as workq,
    ):
        if not workq.recovery.clean and not quiet:
            warn(f"{log.where}: damage was put aside in quarantine/ first")
        report = workq.clean(as_of, thorough=force)
    with Output() as output:
        output.line(
            json_line(_row(path, report)) if as_json(format_, json_) else _words(path, report)
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


def _words(path: str, report: CleanReport) -> str:
    return (
        f"{path}: {counted(report.records_dropped, 'record')} dropped, "
        f"{counted(report.bytes_freed, 'byte')} freed; of {counted(report.visited, 'segment')} "
        f"{report.rewritten} rewritten, {report.removed} removed"
    )
