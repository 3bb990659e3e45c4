"""``journeyman dump``: the records of a log, or the state they add up to, one line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from journeyman.cli.errors import warn
from journeyman.cli.lines import MOMENT, line_maker
from journeyman.cli.output import (
    Output,
    as_json,
    dialect_option,
    format_options,
    progress,
    quiet_option,
)
from journeyman.cli.reading import LogReading, map_log
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.logs.catalog import ZTICK, Log, LogFile
from journeyman.logs.detection import LogFinder


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@dialect_option
@click.option("--queue", help="kestrel: only this queue of a directory.")
@format_options
@click.option("--compact", is_flag=True, help="Print the state that the records add up to.")
@click.option("--follow", is_flag=True, help="Keep printing what is appended, until stopped.")
@click.option(
    "--as-of",
    type=MOMENT,
    help="Only what was recorded up to this time: ISO 8601, nanoseconds or `now`.",
)
@click.option(
    "--salvage", is_flag=True, help="Also show what merely looks like a record inside damage."
)
@click.option("--seals", is_flag=True, help="Also show the seals.")
@quiet_option
def dump(
    paths: tuple[str, ...],
    dialect: str | None,
    queue: str | None,
    format_: str,
    json_: bool,
    compact: bool,
    follow: bool,
    as_of: int | None,
    salvage: bool,
    seals: bool,
    quiet: bool,
) -> None:
    """Print the records of the logs at PATH, one per line.

    A directory means its whole log (kestrel: all its queues), a file that file. Damage is skipped,
    with a warning on stderr that says where and why.
    """
    disk = RealDisk()
    logs = LogFinder(disk, warn).find(paths, dialect=dialect, queue=queue)
    if as_of is not None and any(log.dialect == ZTICK for log in logs):
        raise UsageError("--as-of needs times, and ztick records carry none of when they were set")
    json = as_json(format_, json_)
    if seals and (compact or follow):
        raise UsageError("--seals shows what stands in the files; it goes with no other view")
    if follow:
        _follow(disk, logs, json, compact=compact, as_of=as_of, salvage=salvage)
        return
    for log in logs:
        mapped = map_log(disk, log, compacted=compact)
        title = f"reading {log.title}"
        # A bar on the terminal that the lines go to would only tear them apart.
        no_bar = quiet or sys.stdout.isatty()
        with Output() as output, progress(title, mapped.size, quiet=no_bar) as advance:
            source = LogReading(
                mapped, as_of_ns=as_of, salvage=salvage, advance=advance, seals=seals
            )
            if compact:
                as_of_ns = SystemClock().now_ns() if as_of is None else as_of
                lines = _effective(mapped.log, source, as_of_ns, json)
            else:
                lines = _plain(mapped.log, source, json)
            for line in lines:
                output.line(line)


def _follow(
    disk: RealDisk, logs: list[Log], json: bool, *, compact: bool, as_of: int | None, salvage: bool
) -> None:
    from journeyman.cli.follow import follow

    for option, given in (("--compact", compact), ("--as-of", as_of is not None)):
        if given:
            raise UsageError(f"--follow does not go with {option}: it shows records as they come")
    if salvage:
        raise UsageError("--follow does not go with --salvage: what follows is not there yet")
    with Output(prompt=True) as output:
        follow(disk, SystemClock(), logs, output.line, json=json)


def _plain(log: Log, source: LogReading, json: bool) -> Iterator[str]:
    of_file: LogFile | None = None
    for file, entry in source.read(log.files):
        if file is not of_file:
            of_file, line = file, line_maker(file, json=json)
        yield line(entry)


def _effective(log: Log, source: LogReading, as_of_ns: int, json: bool) -> Iterator[str]:
    from journeyman.cli.state_lines import effective_lines

    return effective_lines(log, source.read, as_of_ns, source.damaged, json=json)
