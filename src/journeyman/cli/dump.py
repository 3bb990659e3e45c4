"""``journeyman dump``: the records of a log, or the state they add up to, one line each.

With ``--compact`` the state:

    ztick     every job and rule that exists, as SET and RULE SET, in the order of last records
    workq     every job that exists at the requested time, in queue order
    kestrel   every item that some reader still has to be given, as PUT; then the position of each
              reader, as READ_HEAD and READ_DONE
    ledger    the last record of every family and key that exists, in the order of last records

The folds of journeyman.folds define the state; here it only becomes lines. The state is held in
memory, as a server holds it; records that are not part of it are not.

With ``--follow`` what a log holds, then what is appended to it, until SIGINT or SIGTERM, exit 0:

    look which files there are --> read each on, oldest first --> wait --> look again

- A new segment (workq, kestrel) is read after the one before it has been read to its end: a log
  syncs and leaves a segment before it begins the next, so the order of lines is that of the log.
- A file that was replaced under its name (ztick compaction, a kestrel checkpoint) is read to its
  end first, since it is still open here; then the new one is read from its beginning.
- A file that was cut shorter than what was read of it is followed from its new end.
- Of a sealed file a block is shown once its seal is there.
- Files are read, not mapped: a mapped page that a writer cuts off under us ends the process.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

import click

from journeyman.cli import output, reading
from journeyman.cli.errors import warn
from journeyman.clock import Clock, SystemClock
from journeyman.disk import Disk, disk_of
from journeyman.errors import FormatError, IncompleteEntry, UsageError
from journeyman.folds import kestrel, ledger, workq, ztick
from journeyman.formats.framing import Codec, Entry, iter_entries
from journeyman.formats.kestrel import ItemPut
from journeyman.formats.seals import SealFormat, block_at, is_seal_here, next_seal
from journeyman.logs.catalog import LEDGER, WORKQ, ZTICK, Log, LogFile
from journeyman.logs.detection import LogFinder, relist
from journeyman.logs.ledger import FileTimes, ledger_beside, times_of
from journeyman.logs.sealing import begins_with_entry, unsealed_end
from journeyman.logs.segments import ztick_files
from journeyman.protocols.workq.replies import id_text

POLL_S = 0.2
_READ_BYTES = 1024 * 1024


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@reading.dialect_option
@output.queue_option
@output.format_options
@click.option("--compact", is_flag=True, help="Print the state instead of the records.")
@click.option("--follow", is_flag=True, help="Keep printing new records until stopped.")
@click.option(
    "--as-of",
    type=output.MOMENT,
    help="Only records up to this time: ISO 8601, nanoseconds or `now`.",
)
@click.option(
    "--ledger",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="ztick: the ledger that --as-of takes times from. [default: ledger/ beside the log]",
)
@click.option(
    "--salvage", is_flag=True, help="Also show bytes inside damage that only look like a record."
)
@click.option("--seals", is_flag=True, help="Also show the seals.")
@output.quiet_option
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
    disk = disk_of(*paths)
    logs = LogFinder(disk, warn).find(paths, dialect=dialect, queue=queue)
    json = output.as_json(format_, json_)
    if seals and (compact or follow):
        raise UsageError("--seals cannot be combined with other views")
    if follow:
        _follow(disk, logs, json, compact=compact, as_of=as_of, salvage=salvage)
        return
    for log in logs:
        mapped = reading.map_log(disk, log, compacted=compact)
        title = f"reading {log.title}"
        # A bar on the terminal that the lines go to would only tear them apart.
        no_bar = quiet or sys.stdout.isatty()
        with output.Output() as out, output.progress(title, mapped.size, quiet=no_bar) as advance:
            source = reading.LogReading(
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
                out.line(line)


def _times(
    disk: Disk, log: Log, ledger: str | None, as_of_ns: int
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
        warn(
            f"{log.where}: known from {reading.iso(first_ns)} on, "
            "because of a compaction or a new ledger"
        )
    return times


def _follow(
    disk: Disk, logs: list[Log], json: bool, *, compact: bool, as_of: int | None, salvage: bool
) -> None:
    for option, given in (("--compact", compact), ("--as-of", as_of is not None)):
        if given:
            raise UsageError(f"--follow cannot be combined with {option}: it shows all records")
    if salvage:
        raise UsageError("--follow cannot be combined with --salvage: it reads what is written")
    with output.Output(prompt=True) as out:
        follow(disk, SystemClock(), logs, out.line, json=json)


def _plain(log: Log, source: reading.LogReading, json: bool) -> Iterator[str]:
    of_file: LogFile | None = None
    for file, entry in source.read(log.files):
        if file is not of_file:
            of_file, line = file, reading.line_maker(file, json=json)
        yield line(entry)


def _effective(log: Log, source: reading.LogReading, as_of_ns: int, json: bool) -> Iterator[str]:
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
    line = reading.ztick_json if json else reading.ztick_text
    states = ztick.replay(entry.record for _, entry in read(log.files))
    return map(line, states.values())


def _ledger(log: Log, read: Read, json: bool) -> Iterator[str]:
    states = ledger.replay(entry.record for _, entry in read(log.files))
    for (family, key), record in states.items():
        if json:
            yield output.json_line({"family": family, "key": key} | reading.ledger_fields(record))
        else:
            yield reading.ledger_text(record)


def _jobs(log: Log, read: Read, as_of_ns: int, json: bool) -> Iterator[str]:
    states = workq.replay(entry.record for _, entry in read(log.files))
    seen = (workq.visible(state, as_of_ns) for state in states.values())
    jobs = sorted((job for job in seen if job is not None), key=workq.queue_order)
    for job in jobs:
        queue = workq.queue_of(job, as_of_ns)
        yield output.json_line(_job_fields(job, queue)) if json else _job_text(job, queue)


def _job_fields(job: workq.FoldedJob, queue: str | None) -> dict[str, Any]:
    return reading.added_fields(job.added) | {
        "state": int(job.state),
        "attempts": job.attempts,
        "fails": job.fails,
        "result_hex": None if job.result is None else job.result.hex(),
        "queue": queue,
    }


def _job_text(job: workq.FoldedJob, queue: str | None) -> str:
    state = job.state.name.lower()
    where = f" in {queue}" if queue is not None else ""
    result = f" result={reading.snippet(job.result)}" if job.result is not None else ""
    until = reading.iso(workq.expires_ns(job))
    return (
        f"{id_text(job.added.job_id)} {state}{where} attempts={job.attempts} "
        f"fails={job.fails} until={until} {reading.added_words(job.added)}{result}"
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
        return output.json_line(whose | reading.kestrel_fields(record))
    whose_text = log.queue if reader is None else f"{log.queue} reader {reader!r}"
    return f"{whose_text} {reading.kestrel_text(record)}"


class _Stopped(BaseException):
    """SIGINT or SIGTERM came. Not an error, and not for anyone else to catch."""


def follow(
    disk: Disk, clock: Clock, logs: list[Log], emit: Callable[[str], None], *, json: bool
) -> None:
    """Print entries of these logs as they come. Returns when SIGINT or SIGTERM comes."""
    followers = [_LogFollower(disk, log, json) for log in logs]
    with _stopped_by_signals():
        while True:
            for follower in followers:
                for line in follower.new_lines():
                    emit(line)
            clock.sleep(POLL_S)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _LogFollower:
    """One log: the files that are open, and those that are finished."""

    def __init__(self, disk: Disk, log: Log, json: bool) -> None:
        self._disk = disk
        self._log = log
        self._json = json
        self._open: dict[str, _FileFollower] = {}
        self._left: set[str] = set()

    def new_lines(self) -> Iterator[str]:
        # The list is taken before anything is read: what is on it was complete, or is the newest.
        files = relist(self._disk, self._log).files
        segments = [file for file in files if file.reader is None]
        for file in files:
            if file.path in self._left:
                continue
            yield from self._read_on(file)
            if file.reader is None and file is not segments[-1] and file.path in self._open:
                self._open.pop(file.path).close()
                self._left.add(file.path)

    def _read_on(self, file: LogFile) -> Iterator[str]:
        follower = self._open.get(file.path)
        if follower is not None:
            # Asked before reading: what was renamed away gets no more bytes after that.
            replaced = self._disk.exists(file.path) and not follower.still_there()
            yield from follower.new_lines()
            if not replaced:
                return
            follower.close()
            del self._open[file.path]
        try:
            follower = _FileFollower(self._disk, file, self._json)
        except FileNotFoundError:
            return  # between two files of one name, or cleaned away since the list was taken
        self._open[file.path] = follower
        yield from follower.new_lines()


class _FileFollower:
    """One open file: what was read of it, and how to read on."""

    def __init__(self, disk: Disk, file: LogFile, json: bool) -> None:
        self._file = file
        self._handle = disk.open_read(file.path)
        self._line = reading.line_maker(file, json=json)
        self._walk = _walk_of(file)
        self._offset = 0

    def still_there(self) -> bool:
        return self._handle.still_at(self._file.path)

    def close(self) -> None:
        left = self._handle.size() - self._offset
        if left > 0 and self._file.dialect == ZTICK:
            warn(f"partial trailing frame ({left} bytes) ignored")
        elif left > 0 and self._handle.read_at(self._offset, 1) != b"\0":
            warn(f"{self._file.path}: {left} bytes at offset {self._offset} left out")
        self._handle.close()

    def new_lines(self) -> Iterator[str]:
        size = self._handle.size()
        if size < self._offset:
            warn(f"{self._file.path}: cut from {self._offset} to {size} bytes")
            self._offset = size
        want = _READ_BYTES
        while True:
            data = self._handle.read_at(self._offset, want)
            entries, used = self._walk(data, self._offset)
            self._offset += used
            for entry in entries:
                yield self._line(entry)
            if used == 0:
                if len(data) < want:
                    return
                want *= 2  # an entry, or damage, longer than what was read


# A walk takes bytes and their offset in the file. It returns the entries in them, and how many
# bytes need not be read again.
_Walk = Callable[[bytes, int], tuple[list[Entry[Any]], int]]


def _walk_of(file: LogFile) -> _Walk:
    plain = _frame_walk() if file.dialect == ZTICK else _entry_walk(file)
    return plain if file.codec.seals is None else _sealed_walk(file, file.codec.seals, plain)


def _sealed_walk(file: LogFile, format_: SealFormat, plain: _Walk) -> _Walk:
    """Where the file is sealed, block by block: what is announced and not whole is on its way."""
    codec = file.codec
    stamp: int | None = None

    def walk(data: bytes, base: int) -> tuple[list[Entry[Any]], int]:
        nonlocal stamp
        entries: list[Entry[Any]] = []
        used = 0
        while used < len(data):
            block = block_at(format_, data, used, base)
            if block is not None:
                for entry in iter_entries(codec, data[block.begin : block.end]):
                    offset = base + block.begin + entry.offset
                    entries.append(Entry(offset, entry.length, entry.record))
                used, stamp = block.end, block.seal.stamp if block.seal.opens else None
                continue
            if is_seal_here(format_, data, used, base) or (
                stamp is not None and not begins_with_entry(codec, data, used, base)
            ):
                place = next_seal(format_, data, used + 1, stamp, base)
                if place is None:
                    break
                warn(f"{file.path}: {place - used} bytes at offset {base + used} left out")
                used = place
                continue
            header = codec.header if base + used == 0 else b""
            end = unsealed_end(format_, data, used + len(header), base)
            some, step = plain(data[used:end], base + used)
            entries += some
            used, stamp = used + step, None
            if end == len(data) or used < end:
                break
        return entries, used

    return walk


def _frame_walk() -> _Walk:
    """ztick: frames by their lengths alone; an undecodable one is warned about, as in dump."""
    from journeyman.formats.ztick import decode_payload, frames

    index = 0

    def walk(data: bytes, base: int) -> tuple[list[Entry[Any]], int]:
        nonlocal index
        entries: list[Entry[Any]] = []
        used = 0
        for offset, payload in frames(data):
            length = offset + 4 + len(payload) - used
            try:
                record = decode_payload(payload, base + offset)
                entries.append(Entry(base + offset, length, record))
            except FormatError:
                warn(f"failed to decode frame {index}: error.InvalidData")
            index += 1
            used += length
        return entries, used

    return walk


def _entry_walk(file: LogFile) -> _Walk:
    """Return the walk of a dialect.

    The walks of workq and the ledger read on after damage where a checksum fits; that of kestrel
    waits before the damage.
    """
    codec = file.codec
    warned: set[int] = set()

    def walk(data: bytes, base: int) -> tuple[list[Entry[Any]], int]:
        entries: list[Entry[Any]] = []
        used = 0
        try:
            if base == 0 and data:
                used = codec.check_header(data)
            while (entry := codec.decode(data, used)) is not None:
                entries.append(Entry(base + entry.offset, entry.length, entry.record))
                used = entry.end
        except IncompleteEntry:
            pass  # the rest of it may be on its way
        except FormatError as error:
            at = base + used
            if at not in warned:
                warned.add(at)
                warn(f"{file.path}: damage at offset {at}: {error.reason}")
            if codec.has_checksum:
                used = _behind_damage(codec, data, used) or used
        return entries, used

    return walk


def _behind_damage(codec: Codec[Any], data: bytes, offset: int) -> int | None:
    skipped = codec.skip(data, offset)
    return skipped if skipped is not None else codec.resync(data, offset + 1)
