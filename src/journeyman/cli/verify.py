"""``journeyman verify``: is this log whole, what is in it, and how much of it is still needed?"""

from __future__ import annotations

import posixpath

import click

from journeyman.cli.detection import find_logs
from journeyman.cli.dialects import dialect_option
from journeyman.cli.errors import DAMAGED
from journeyman.cli.inspection import DamageReport, FileContents, LogReport, inspect_log
from journeyman.cli.mapping import map_log
from journeyman.cli.moments import MOMENT
from journeyman.cli.output import Output, as_json, format_options, json_line
from journeyman.cli.progress import progress, quiet_option
from journeyman.cli.wording import counted
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk

_SHOWN_DAMAGES = 20  # of a file, in text; JSON lists more


@click.command()
@click.argument("path", type=click.Path())
@dialect_option
@click.option("--queue", help="kestrel: only this queue of a directory.")
@click.option(
    "--as-of",
    type=MOMENT,
    help="The moment at which bytes count as live or dead (jobs expire). [default: now]",
)
@format_options
@quiet_option
@click.pass_context
def verify(
    ctx: click.Context,
    path: str,
    dialect: str | None,
    queue: str | None,
    as_of: int | None,
    format_: str,
    json_: bool,
    quiet: bool,
) -> None:
    """Check the log at PATH. Exit code 0: clean, 1: damaged. Nothing is written.

    Counts records by kind, lists damage with offset, length, reason and the records behind it,
    tells live from dead bytes in each file, and reports what is odd about the records.
    """
    disk = RealDisk()
    as_of_ns = SystemClock().now_ns() if as_of is None else as_of
    reports = []
    for log in find_logs(disk, [path], dialect=dialect, queue=queue):
        mapped = map_log(disk, log, compacted=True)
        with progress(f"verifying {log.title}", mapped.size, quiet=quiet) as advance:
            reports.append(inspect_log(mapped, as_of_ns, advance))
    clean = all(report.clean for report in reports)
    with Output() as output:
        if as_json(format_, json_):
            logs = [report.as_dict() for report in reports]
            output.line(json_line({"path": path, "clean": clean, "logs": logs}))
        else:
            for report in reports:
                _print_log(output, report)
            output.line("clean" if clean else f"damaged: `journeyman repair {path}` mends it")
    if not clean:
        ctx.exit(DAMAGED)


def _print_log(output: Output, report: LogReport) -> None:
    queue = f", queue {report.queue}" if report.queue is not None else ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kinds.items()))
    output.line(f"{report.where}: {report.dialect}{queue}")
    output.line(f"  {counted(report.records, 'record')}{': ' if kinds else ''}{kinds}")
    for file in report.files:
        _print_file(output, file)
    if report.anomalies:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(report.anomalies.items()))
        output.line(f"  anomalies: {counts}")
        for text in report.first_anomalies:
            output.line(f"    {text}")


def _print_file(output: Output, file: FileContents) -> None:
    damaged = f", {file.damaged_bytes} damaged" if file.damaged_bytes else ""
    output.line(
        f"  {posixpath.basename(file.file)}: {counted(file.records, 'record')}, {file.size} bytes: "
        f"{file.live_bytes} live, {file.dead_bytes} dead{damaged}"
    )
    if file.unsealed_bytes:
        output.line(
            f"    {counted(file.unsealed_bytes, 'byte')} after the last seal: a batch on its way, "
            "or one that a crash cut short and that was never acknowledged"
        )
    for found in file.damages[:_SHOWN_DAMAGES]:
        output.line(f"    {_damage_words(found)}")
    if file.damage_count > _SHOWN_DAMAGES:
        output.line(f"    and {file.damage_count - _SHOWN_DAMAGES} more places")


def _damage_words(found: DamageReport) -> str:
    damage = found.damage
    return (
        f"{damage.kind} at offset {damage.offset}, {counted(damage.length, 'byte')}: "
        f"{damage.reason}; {counted(found.records_behind, 'record')} behind it"
    )
