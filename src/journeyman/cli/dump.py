"""``journeyman dump``: the records of a log, or the state they add up to, one line each.

With ``--compact`` the state:

    ztick     every job and rule that exists, as SET and RULE SET, in the order of last records
    workq     every job that exists at the requested time, in queue order
    kestrel   every item that some reader still has to be given, as PUT; then the position of each
              reader, as READ_HEAD and READ_DONE
    ledger    the last record of every family and key that exists, in the order of last records

The folds of journeyman.folds define the state; here it only becomes lines. The state is held in
memory, as a server holds it; records that are not part of it are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import click

from journeyman.cli import lines
from journeyman.cli.errors import warn
from journeyman.cli.lines import iso, line_maker, snippet
from journeyman.cli.output import (
    MOMENT,
    Output,
    as_json,
    dialect_option,
    format_options,
    json_line,
    progress,
    quiet_option,
)
from journeyman.cli.reading import LogReading, map_log
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.folds import kestrel, ledger, workq, ztick
from journeyman.formats.framing import Entry
from journeyman.formats.kestrel import ItemPut
from journeyman.logs.catalog import LEDGER, WORKQ, ZTICK, Log, LogFile
from journeyman.logs.detection import LogFinder, ztick_files
from journeyman.logs.ledger.times import FileTimes, ledger_beside, times_of


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
    "--ledger",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="ztick: the ledger that --as-of takes times from. [default: ledger/ beside the log]",
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
    ledger: str | None,
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
    json = as_json(format_, json_)
    if seals and (compact or follow):
        raise UsageError("--seals cannot be combined with other views")
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
                mapped,
                as_of_ns=as_of,
                salvage=salvage,
                advance=advance,
                seals=seals,
                times=None if as_of is None else _times(disk, log, ledger, as_of),
            )
            if compact:
                as_of_ns = SystemClock().now_ns() if as_of is None else as_of
                lines = _effective(mapped.log, source, as_of_ns, json)
            else:
                lines = _plain(mapped.log, source, json)
            for line in lines:
                output.line(line)


def _times(
    disk: RealDisk, log: Log, ledger: str | None, as_of_ns: int
) -> Mapping[str, FileTimes] | None:
    """When the records of a ztick log were written."""
    if log.dialect != ZTICK:
        return None
    where = ledger or ledger_beside(log.where)
    times = times_of(disk, where, ztick_files(disk, log.where))
    if not times:
        raise UsageError(
            f"--as-of needs the times of {log.where}, and {where} has none: "
            "name the ledger of its server with --ledger DIR"
        )
    first_ns = next(iter(times.values())).time_ns(0)
    if first_ns is not None and first_ns > as_of_ns:
        warn(f"{log.where}: known from {iso(first_ns)} on, because of a compaction or a new ledger")
    return times


def _follow(
    disk: RealDisk, logs: list[Log], json: bool, *, compact: bool, as_of: int | None, salvage: bool
) -> None:
    from journeyman.cli.follow import follow

    for option, given in (("--compact", compact), ("--as-of", as_of is not None)):
        if given:
            raise UsageError(f"--follow cannot be combined with {option}: it shows all records")
    if salvage:
        raise UsageError("--follow cannot be combined with --salvage: it reads what is written")
    with Output(prompt=True) as output:
        follow(disk, SystemClock(), logs, output.line, json=json)


def _plain(log: Log, source: LogReading, json: bool) -> Iterator[str]:
    of_file: LogFile | None = None
    for file, entry in source.read(log.files):
        if file is not of_file:
            of_file, line = file, line_maker(file, json=json)
        yield line(entry)


def _effective(log: Log, source: LogReading, as_of_ns: int, json: bool) -> Iterator[str]:
    """``source.damaged`` fills up with the paths in which damage was found."""
    if log.dialect == ZTICK:
        return _schedule(log, source.read, json)
    if log.dialect == WORKQ:
        return _jobs(log, source.read, as_of_ns, json)
    if log.dialect == LEDGER:
        return _ledger(log, source.read, json)
    return _queue(log, source.read, source.damaged, json)


# Reads files one after the other; answers with the entries of each.
Read: TypeAlias = Callable[[Iterable[LogFile]], Iterator[tuple[LogFile, Entry[Any]]]]


def _schedule(log: Log, read: Read, json: bool) -> Iterator[str]:
    line = lines.ztick_json if json else lines.ztick_text
    states = ztick.replay(entry.record for _, entry in read(log.files))
    return map(line, states.values())


def _ledger(log: Log, read: Read, json: bool) -> Iterator[str]:
    states = ledger.replay(entry.record for _, entry in read(log.files))
    for (family, key), record in states.items():
        if json:
            yield json_line({"family": family, "key": key} | lines.ledger_fields(record))
        else:
            yield lines.ledger_text(record)


def _jobs(log: Log, read: Read, as_of_ns: int, json: bool) -> Iterator[str]:
    states = workq.replay(entry.record for _, entry in read(log.files))
    seen = (workq.visible(state, as_of_ns) for state in states.values())
    jobs = sorted((job for job in seen if job is not None), key=workq.queue_order)
    for job in jobs:
        queue = workq.queue_of(job, as_of_ns)
        yield json_line(_job_fields(job, queue)) if json else _job_text(job, queue)


def _job_fields(job: workq.FoldedJob, queue: str | None) -> dict[str, Any]:
    return lines.added_fields(job.added) | {
        "state": int(job.state),
        "attempts": job.attempts,
        "fails": job.fails,
        "result_hex": None if job.result is None else job.result.hex(),
        "queue": queue,
    }


def _job_text(job: workq.FoldedJob, queue: str | None) -> str:
    state = job.state.name.lower()
    where = f" in {queue}" if queue is not None else ""
    result = f" result={snippet(job.result)}" if job.result is not None else ""
    until = iso(workq.expires_ns(job))
    return (
        f"{lines.uuid_text(job.added.job_id)} {state}{where} attempts={job.attempts} "
        f"fails={job.fails} until={until} {lines.added_words(job.added)}{result}"
    )


def _queue(log: Log, read: Read, damaged: set[str], json: bool) -> Iterator[str]:
    readers: dict[str, kestrel.Reader | None] = {
        file.reader: kestrel.Reader() for file in log.readers if file.reader is not None
    }
    for file, entry in read(log.readers):
        assert file.reader is not None
        readers[file.reader] = kestrel.apply_reader(readers[file.reader], entry.record)
    for file in log.readers:
        if file.path in damaged:
            readers[file.reader or ""] = None
    span = kestrel.id_span(entry.record for _, entry in read(log.segments))
    consumed = kestrel.consumed_by_all(readers, span)

    def waiting() -> Iterator[ItemPut]:
        for _, entry in read(log.segments):
            if isinstance(entry.record, ItemPut) and not consumed(entry.record.item_id):
                yield entry.record

    for item in kestrel.replay(waiting()).values():
        for put in kestrel.snapshot(item):
            yield _queue_line(log, None, put, json)
    if readers:
        for name, reader in kestrel.open_queue(span, readers).readers.items():
            for record in kestrel.snapshot_reader(reader):
                yield _queue_line(log, name, record, json)


def _queue_line(log: Log, reader: str | None, record: Any, json: bool) -> str:
    if json:
        whose: dict[str, Any] = {"queue": log.queue}
        if reader is not None:
            whose["reader"] = reader
        return json_line(whose | lines.kestrel_fields(record))
    whose_text = log.queue if reader is None else f"{log.queue} reader {reader!r}"
    return f"{whose_text} {lines.kestrel_text(record)}"
