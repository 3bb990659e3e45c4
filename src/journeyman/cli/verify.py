"""``journeyman verify``: is this log whole, what is in it, and how much of it is still needed?

    file   [header][live][dead][dead][#### damage ####][live][dead][padding]

A byte is live when the effective state needs its record: the last SET of a job that exists, every
record of a workq job that exists, an item that some reader still has to be given. Dead bytes are
what compaction, cleaning or retention would free. Live, dead, damaged and other bytes (header,
padding, end mark, seals) add up to the size of a file.

Nothing is written, and a file is mapped and read entry by entry; what grows with the log is the
state alone. Damage is read past in the way recovery does it, so that verify foretells repair.

Live bytes are counted while the log is read and folded, by an account for each dialect:

    record --> fold (journeyman.folds) --> state
           --> its bytes are put down to the key it belongs to; keys that end take theirs along
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import click

from journeyman.cli import output, reading
from journeyman.cli.errors import DAMAGED, warn
from journeyman.clock import SystemClock
from journeyman.disk import disk_of
from journeyman.folds import Anomaly, Notes, kestrel, ledger, workq, ztick
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead
from journeyman.logs.catalog import LEDGER, WORKQ, ZTICK, Log, LogFile
from journeyman.logs.damage import Damage
from journeyman.logs.detection import LogFinder
from journeyman.logs.sealing import is_in_flight, read_file
from journeyman.protocols.workq.replies import id_text

FIRST_ANOMALIES = 5  # shown in full; the others are only counted
MAX_LISTED_DAMAGES = 1000
_UUID_BYTES = 16
_ADVANCE_BYTES = 256 * 1024

Reread: TypeAlias = Callable[[], Iterator[Any]]
_SHOWN_DAMAGES = 20  # text lists so many of a file; JSON lists more


@dataclass(slots=True)
class DamageReport:
    """One damaged stretch; ``records_behind`` follow it before the next one."""

    damage: Damage
    records_behind: int = 0

    def as_dict(self) -> dict[str, Any]:
        return self.damage.as_dict() | {"records_behind": self.records_behind}


@dataclass(slots=True)
class FileContents:
    """The contents of one file, counted."""

    file: str
    size: int
    kinds: Counter[str] = field(default_factory=Counter)
    record_bytes: int = 0
    live_bytes: int = 0
    damages: list[DamageReport] = field(default_factory=list)  # the first MAX_LISTED_DAMAGES
    damage_count: int = 0
    damaged_bytes: int = 0
    unsealed_bytes: int = 0  # bytes of a batch that is announced but incomplete

    @property
    def records(self) -> int:
        return self.kinds.total()

    @property
    def dead_bytes(self) -> int:
        return self.record_bytes - self.live_bytes

    @property
    def other_bytes(self) -> int:
        return self.size - self.record_bytes - self.damaged_bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "size": self.size,
            "clean": self.damage_count == 0,
            "records": self.records,
            "kinds": dict(sorted(self.kinds.items())),
            "live_bytes": self.live_bytes,
            "dead_bytes": self.dead_bytes,
            "damaged_bytes": self.damaged_bytes,
            "other_bytes": self.other_bytes,
            "unsealed_bytes": self.unsealed_bytes,
            "damage_count": self.damage_count,
            "damages": [damage.as_dict() for damage in self.damages],
        }


@dataclass(slots=True)
class LogReport:
    """The contents of a log, all its files together."""

    dialect: str
    where: str
    queue: str | None
    as_of_ns: int
    files: list[FileContents] = field(default_factory=list)
    anomalies: Counter[str] = field(default_factory=Counter)
    first_anomalies: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return all(file.damage_count == 0 for file in self.files)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def kinds(self) -> Counter[str]:
        return sum((file.kinds for file in self.files), Counter())

    def note(self, anomaly: Anomaly) -> None:
        self.anomalies[str(anomaly.kind)] += 1
        if len(self.first_anomalies) < FIRST_ANOMALIES:
            self.first_anomalies.append(f"{anomaly.kind} of {_key(anomaly)}: {anomaly.detail}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "dialect": self.dialect,
            "log": self.where,
            "queue": self.queue,
            "as_of_ns": self.as_of_ns,
            "clean": self.clean,
            "records": self.records,
            "kinds": dict(sorted(self.kinds.items())),
            "size": sum(file.size for file in self.files),
            "live_bytes": sum(file.live_bytes for file in self.files),
            "dead_bytes": sum(file.dead_bytes for file in self.files),
            "damaged_bytes": sum(file.damaged_bytes for file in self.files),
            "damage_count": sum(file.damage_count for file in self.files),
            "anomalies": dict(sorted(self.anomalies.items())),
            "first_anomalies": self.first_anomalies,
            "files": [file.as_dict() for file in self.files],
        }


def _key(anomaly: Anomaly) -> str:
    key = anomaly.key
    if isinstance(key, bytes) and len(key) == _UUID_BYTES:
        return id_text(key)
    return " ".join(map(str, key)) if isinstance(key, tuple) else repr(key)


def inspect_log(mapped: reading.MappedLog, as_of_ns: int, advance: output.Advance) -> LogReport:
    """Read a whole log and report. ``advance`` gets the number of bytes done."""
    log = mapped.log
    report = LogReport(log.dialect, log.where, log.queue, as_of_ns)
    account = account_for(log, report.note, lambda: _records(mapped))
    # Checkpoints come first: only they show which items are dead.
    files = (*log.readers, *log.segments)
    for number, file in enumerate(files):
        account.begin_file(number, file.reader)
        done = sum(each.size for each in report.files)
        data = mapped.views[file.path]
        report.files.append(_inspect_file(file, data, account, done, advance))
    for number, live_bytes in account.live_bytes(as_of_ns).items():
        report.files[number].live_bytes = live_bytes
    report.files = [*report.files[len(log.readers) :], *report.files[: len(log.readers)]]
    return report


def _records(mapped: reading.MappedLog) -> Iterator[Any]:
    for file in mapped.log.segments:
        for found in read_file(file.codec, mapped.views[file.path]):
            if not isinstance(found, Damage):
                yield found.record


def _inspect_file(
    file: LogFile, data: memoryview, account: Account, done: int, advance: output.Advance
) -> FileContents:
    """``done`` bytes of the log stand in files before this one."""
    report = FileContents(file.path, len(data))
    kinds = report.kinds
    behind: DamageReport | None = None
    next_advance = _ADVANCE_BYTES
    for found in read_file(file.codec, data, file=file.path):
        if isinstance(found, Damage):
            if reading.is_end(file, data, found):
                report.unsealed_bytes += found.length if is_in_flight(found) else 0
                continue
            report.damage_count += 1
            report.damaged_bytes += found.length
            behind = DamageReport(found)
            if len(report.damages) < MAX_LISTED_DAMAGES:
                report.damages.append(behind)
            account.damaged()
            continue
        kinds[reading.kind_of(found.record)] += 1
        report.record_bytes += found.length
        if behind is not None:
            behind.records_behind += 1
        account.record(found.record, found.length)
        if report.record_bytes >= next_advance:
            next_advance = report.record_bytes + _ADVANCE_BYTES
            advance(done + found.offset)
    return report


@click.command()
@click.argument("path", type=click.Path())
@reading.dialect_option
@output.queue_option
@click.option(
    "--as-of",
    type=output.MOMENT,
    help="When jobs count as expired, and their bytes as dead. [default: now]",
)
@output.format_options
@output.quiet_option
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

    Counts records by kind, lists damage with offset, length, reason and the records after it,
    counts live and dead bytes of each file, and reports anomalies.
    """
    disk = disk_of(path)
    as_of_ns = SystemClock().now_ns() if as_of is None else as_of
    reports = []
    for log in LogFinder(disk, warn).find([path], dialect=dialect, queue=queue):
        mapped = reading.map_log(disk, log, compacted=True)
        with output.progress(f"verifying {log.title}", mapped.size, quiet=quiet) as advance:
            reports.append(inspect_log(mapped, as_of_ns, advance))
    clean = all(report.clean for report in reports)
    with output.Output() as out:
        if output.as_json(format_, json_):
            logs = [report.as_dict() for report in reports]
            out.line(output.json_line({"path": path, "clean": clean, "logs": logs}))
        else:
            for report in reports:
                _print_log(out, report)
            out.line("clean" if clean else f"damaged: `journeyman repair {path}` repairs it")
    if not clean:
        ctx.exit(DAMAGED)


def _print_log(out: output.Output, report: LogReport) -> None:
    queue = f", queue {report.queue}" if report.queue is not None else ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kinds.items()))
    out.line(f"{report.where}: {report.dialect}{queue}")
    out.line(f"  {output.counted(report.records, 'record')}{': ' if kinds else ''}{kinds}")
    for file in report.files:
        _print_file(out, file)
    if report.anomalies:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(report.anomalies.items()))
        out.line(f"  anomalies: {counts}")
        for text in report.first_anomalies:
            out.line(f"    {text}")


def _print_file(out: output.Output, file: FileContents) -> None:
    damaged = f", {file.damaged_bytes} damaged" if file.damaged_bytes else ""
    out.line(
        f"  {posixpath.basename(file.file)}: {output.counted(file.records, 'record')}, "
        f"{file.size} bytes: {file.live_bytes} live, {file.dead_bytes} dead{damaged}"
    )
    if file.unsealed_bytes:
        out.line(
            f"    {output.counted(file.unsealed_bytes, 'byte')} of a batch that is not whole: in "
            "flight, or cut short by a crash"
        )
    for found in file.damages[:_SHOWN_DAMAGES]:
        out.line(f"    {_damage_words(found)}")
    if file.damage_count > _SHOWN_DAMAGES:
        out.line(f"    and {file.damage_count - _SHOWN_DAMAGES} more places")


def _damage_words(report: DamageReport) -> str:
    damage = report.damage
    return (
        f"{damage.kind} at offset {damage.offset}, {output.counted(damage.length, 'byte')}: "
        f"{damage.reason}; {output.counted(report.records_behind, 'record')} after it"
    )


class Account(Protocol):
    def begin_file(self, number: int, reader: str | None) -> None:
        """Records that follow stand in this file; ``reader``: it is a reader's checkpoint."""
        ...

    def record(self, record: Any, length: int) -> None: ...

    def damaged(self) -> None: ...

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:
        """Bytes by file number that the state needs, once all has been read."""
        ...


def account_for(log: Log, notes: Notes, reread: Reread) -> Account:
    """``notes`` hears of anomalies; ``reread`` gives all records of the segments once more."""
    if log.dialect == ZTICK:
        return _LastAccount(ztick, notes)
    if log.dialect == LEDGER:
        return _LastAccount(ledger, notes)
    if log.dialect == WORKQ:
        return _WorkqAccount(notes)
    return _KestrelAccount(notes, log.whole, reread)


class _LastAccount:
    """The account of ztick and the ledger: the last record of a thing is live, all others dead."""

    def __init__(self, fold: Any, notes: Notes) -> None:
        """``fold``: the module of the dialect in journeyman.folds."""
        self._fold = fold
        self._notes = notes
        self._file = 0
        self._last: dict[tuple[str, str], tuple[Any, int, int]] = {}  # state, file, bytes

    def begin_file(self, number: int, reader: str | None) -> None:  # noqa: ARG002 - has none
        self._file = number

    def record(self, record: Any, length: int) -> None:
        key = self._fold.key_of(record)
        before = self._last.pop(key, (None, 0, 0))[0]
        state = self._fold.apply(before, record, self._notes)
        if state is not None:
            self._last[key] = (state, self._file, length)

    def damaged(self) -> None:
        pass

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:  # noqa: ARG002 - nothing expires
        live: Counter[int] = Counter()
        for _, file, length in self._last.values():
            live[file] += length
        return live


class _WorkqAccount:
    """Every record of a job that exists is live, from its latest add on."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._file = 0
        self._states: dict[bytes, workq.State] = {}
        self._bytes: dict[bytes, dict[int, int]] = {}  # by job, by file

    def begin_file(self, number: int, reader: str | None) -> None:  # noqa: ARG002 - has none
        self._file = number

    def record(self, record: Any, length: int) -> None:
        key = record.job_id
        before = self._states.get(key)
        state = workq.apply(before, record, self._notes)
        if state is None:
            self._states.pop(key, None)
            self._bytes.pop(key, None)
            return
        if state is not before:
            self._states[key] = state
            if isinstance(before, workq.FoldedJob):
                self._bytes.pop(key, None)  # a new life under the old id
        by_file = self._bytes.setdefault(key, {})
        by_file[self._file] = by_file.get(self._file, 0) + length

    def damaged(self) -> None:
        pass

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:
        live: Counter[int] = Counter()
        for key, state in self._states.items():
            if workq.visible(state, as_of_ns) is not None:
                live.update(self._bytes[key])
        return live


class _KestrelAccount:
    """Items that some reader still has to be given are live, and the last word of each reader."""

    def __init__(self, notes: Notes, is_whole: bool, reread: Reread) -> None:
        self._notes = notes
        self._whole = is_whole
        self._reread = reread
        self._file = 0
        self._reader: str | None = None
        self._readers: dict[str, kestrel.Reader | None] = {}
        self._heads: dict[int, int] = {}  # bytes of the last READ_HEAD, by file
        self._consumed: Callable[[int], bool] | None = None
        self._live: Counter[int] = Counter()
        self._items: Counter[int] = Counter()  # bytes of items, by file
        self._ids = IdRuns()
        self._seen_again: set[int] = set()

    def begin_file(self, number: int, reader: str | None) -> None:
        self._file = number
        self._reader = reader
        if reader is not None:
            self._readers[reader] = kestrel.Reader()

    def damaged(self) -> None:
        if self._reader is not None:
            self._readers[self._reader] = None

    def record(self, record: Any, length: int) -> None:
        if self._reader is not None:
            self._checkpoint_record(self._reader, record, length)
            return
        kestrel.apply(None, record, self._notes)
        if not isinstance(record, ItemPut):
            return
        if self._consumed is None:
            # Where readers stand depends on the newest item, too: see ``live_bytes``.
            self._consumed = _passed_by_all(self._readers)
        self._items[self._file] += length
        if not self._consumed(record.item_id):
            self._live[self._file] += length
        if not self._ids.add(record.item_id):
            self._seen_again.add(record.item_id)

    def _checkpoint_record(self, name: str, record: Any, length: int) -> None:
        reader = self._readers[name]
        if reader is not None:
            kestrel.apply_reader(reader, record, self._notes, name)
        if isinstance(record, ReadHead):
            self._live[self._file] += length - self._heads.get(self._file, 0)
            self._heads[self._file] = length
        elif isinstance(record, ReadDone):
            self._live[self._file] += length

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:  # noqa: ARG002 - nothing expires
        span = self._ids.span()
        if self._whole:
            kestrel.open_queue(span, self._readers, self._notes)
        heads = [reader.head for reader in self._readers.values() if reader is not None]
        if span and max(heads, default=0) > span[-1]:
            self._live |= self._items  # a reader that starts at the oldest item needs all of them
        if self._seen_again:
            # To distinguish a repeated item from a reused id takes the items; only now are they
            # needed.
            again = (r for r in self._reread() if kestrel.key_of(r) in self._seen_again)
            kestrel.replay(again, self._notes)
        return self._live


def _passed_by_all(readers: Mapping[str, kestrel.Reader | None]) -> Callable[[int], bool]:
    """Return whether every reader is past an item, provided that all stand where their checkpoints
    say.
    """
    counting = [reader for name, reader in readers.items() if name or len(readers) == 1]
    trusted = [reader for reader in counting if reader is not None and reader.is_plausible(0)]
    if not counting or len(trusted) < len(counting):
        return lambda _item_id: False
    return lambda item_id: all(reader.is_past(item_id) for reader in trusted)


class IdRuns:
    """A set of ids, kept as runs of consecutive ones: a healthy queue is a single run."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, item_id: int) -> bool:
        """Return whether it is new."""
        at = bisect_right(self._firsts, item_id) - 1
        if at >= 0 and item_id <= self._lasts[at]:
            return False
        if at >= 0 and item_id == self._lasts[at] + 1:
            self._lasts[at] = item_id
        else:
            self._firsts.insert(at + 1, item_id)
            self._lasts.insert(at + 1, item_id)
        return True

    def span(self) -> tuple[int, ...]:
        """The least and the greatest id; nothing when there is none."""
        return (self._firsts[0], self._lasts[-1]) if self._firsts else ()
