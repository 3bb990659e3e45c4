"""A ledger on disk: a directory of numbered segments, which several services append to.

    <dir>/000000001.ledger   read-only --+  in the order of their numbers; gaps are fine
    <dir>/000000003.ledger   active    --+  the highest number: records are appended here
    <dir>/_compacting/       what a compaction has not finished; litter after a crash
    <dir>/_publication.json  a compaction that was decided on; the next open carries it through
    <dir>/ledger.lock        exclusive for as long as the ledger is open for writing

A record in the ledger says something more about a record in another log, or stands for itself. It
is written first, and taken back if the other one cannot be written:

    append(records, then=write_the_other_log)

        ledger: write, sync --> then() --> kept             a crash in between leaves only the extra
                                 |
                                 +-- fails --> cut off again, and the error is raised

Appends of services that come at the same time wait for each other. ``times-marked`` records are
written without a sync: a power cut may take them, and nothing else is lost with them.

**Compaction** begins a new segment, then replaces all older ones by the snapshot of their fold, in
one step (logs/publication.py). Appends continue meanwhile. A snapshot and what follows it fold to
the same state as the segments and what follows them, so any crash leaves the same state.

**Time marks** say when records of the schedule's log were written:

    schedule.log   [record][record][record][record][record][record]
                           ^ end 40         ^ end 100              ^ end 160
    ledger         times-marked: 40 at 12:00:01, 100 at 12:00:02, 160 at 12:00:07

All bytes before ``end`` were in the file at that time. So the time of a record is that of the first
mark after its beginning: it was there at the latest then. A mark that is lost only makes this time
later. Nothing is known of records after the last mark.

A file is known by the CRC of its first bytes, not by its name: compaction renames the active file
and begins another one. The first mark of a file is made when it is begun, with end 0: what stands
in the files before it was there at that time. So what was compacted has the time of its compaction.
Marks of one file are in the order of the log. Where one has a smaller end than those before it, the
file had been cut, and those that reach beyond it no longer count.
"""

from __future__ import annotations

import posixpath
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import google_crc32c

from journeyman.clock import Clock
from journeyman.data_directory import LEDGER_DIRECTORY
from journeyman.disk import Disk, Lock, ReadingDisk
from journeyman.errors import JourneymanError, LogClosed, LogError, LogLocked
from journeyman.folds import ledger as fold
from journeyman.formats import ledger as ledger_format
from journeyman.formats.framing import Entry
from journeyman.formats.timed_frame import Instant
from journeyman.logs import publication
from journeyman.logs import segments as segment_names
from journeyman.logs.appender import Appender
from journeyman.logs.damage import Damage
from journeyman.logs.holders import Holders, ask
from journeyman.logs.indexes import IndexDraft, remove_index, try_to_save
from journeyman.logs.recovery import FileReport, RecoveryReport, move_aside, recover_entries
from journeyman.logs.sealing import read_file, read_whole

DEFAULT_SEGMENT_BYTES = 16 * 1024 * 1024
SLACK_BYTES = 1024 * 1024  # so many dead bytes are never worth a compaction
# A killed server may have been about to start a program, which holds its files until it runs.
LOCK_TIMEOUT_S = 2.0
_STAGING = "_compacting"
_TRIES = 20


class Absorbing(Protocol):
    """Takes records while a ledger is read, in order, instead of the fold."""

    unparsed_kinds: Collection[str]  # those that it wants as UnparsedRecord, if possible

    @property
    def live_records(self) -> int:
        """How many of what it took still count."""
        ...

    def absorb(self, record: ledger_format.Record | ledger_format.UnparsedRecord) -> bool:
        """Return whether it has taken this one. Of the kinds above it takes all."""
        ...


class LedgerLog:
    """A ledger open for writing. Made by ``open``; safe from any thread."""

    def __init__(
        self,
        disk: Disk,
        plan: segment_names.NumberedPlan,
        lock: Lock,
        appender: Appender,
        report: RecoveryReport,
        states: dict[fold.Key, ledger_format.Record],
        live_records: int,
        holders: Holders | None = None,
    ) -> None:
        self._holders = holders
        self._disk = disk
        self._directory = plan.directory
        self._plan = plan
        self._lock = lock
        self._compacting = threading.Lock()
        self._closed = False
        self.size = sum(disk.size(path) for path in self._segments())  # in bytes
        # An estimate: to encode all of them again takes longer than to read them.
        self._live_bytes = self.size * live_records // max(1, report.records)
        self.appender = appender
        self.recovery = report
        self.states = states  # as the ledger was opened; dropped once they are taken

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        absorbing: Absorbing | None = None,
        holders: Holders | None = None,
    ) -> LedgerLog:
        """Lock, recover, fold and open. Raises LogLocked when another process has the ledger.

        ``holders`` say what compaction has to leave for now.

        What is absorbed is not among the states, nor are records that stand by themselves.
        """
        disk.make_dirs(directory)
        try:
            path = posixpath.join(directory, segment_names.LEDGER_LOCK)
            lock = disk.lock(path, timeout_s=LOCK_TIMEOUT_S)
        except LogLocked as error:
            raise LogLocked(directory, "another process has this ledger open") from error
        try:
            unfinished = _finish(disk, directory)
            states: dict[fold.Key, ledger_format.Record] = {}
            histories = 0

            def take(entry: Entry[Any]) -> None:
                nonlocal histories
                if absorbing is not None and absorbing.absorb(entry.record):
                    return
                if ledger_format.is_state(entry.record):
                    fold.add(states, entry.record)
                elif not isinstance(entry.record, ledger_format.TimesMarked):
                    histories += 1  # they stay on disk; of marks only a few count, as a rule

            codec = (
                ledger_format.CODEC
                if absorbing is None
                else ledger_format.UnparsingLedger(absorbing.unparsed_kinds)
            )
            segments = segment_names.ledger_files(disk, directory)
            files = (recover_entries(disk, codec, path, take) for path in segments)
            report = RecoveryReport((*unfinished, *files))
            plan = segment_names.NumberedPlan(
                disk, directory, ledger_format.HEADER, segment_bytes, segment_names.LEDGER_SUFFIX
            )
            appender = Appender(disk, clock, plan)
            appender.open()
        except BaseException:
            lock.release()
            raise
        live = histories + len(states) + (0 if absorbing is None else absorbing.live_records)
        return cls(disk, plan, lock, appender, report, states, live, holders)

    def append(
        self,
        records: Sequence[ledger_format.Record],
        *,
        sync: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write records that stand together; see the module's docstring and Appender."""
        data = b"".join([ledger_format.CODEC.encode(record) for record in records])
        self.appender.append([data], sync=sync, then=then)
        self.size += len(data)

    def sync(self) -> None:
        """Sync what was appended without a sync. Raises LogPoisoned if that fails."""
        self.appender.sync()

    @property
    def is_bloated(self) -> bool:
        """Return whether more of it may be dead than live, as far as is known without reading
        it.
        """
        return self.size > 2 * self._live_bytes + SLACK_BYTES

    def records(self) -> Iterator[ledger_format.Record]:
        """Every record in order; a compaction may remove a segment meanwhile."""
        return peek_records(self._disk, self._directory)

    def compact(self, keeps: Callable[[ledger_format.Record], bool] = lambda _: True) -> None:
        """Replace all segments but a new active one by their snapshot; of those that holders have
        not read, none.

        ``keeps`` says which records of it are still wanted. LogError, OSError or FormatError: it
        was not done, or the next compaction or open finishes it.
        """
        with self._compacting:
            if self._closed:
                raise LogClosed(self._directory, "the ledger is closed")
            # One that failed after it was decided on left segments that it had to remove.
            publication.finish(self._disk, publication.journal_path(self._directory))
            *closed, active = self._segments()
            # Else one more segment would be of no use yet.
            if ask(self._holders, self._directory, "", closed).count == len(closed):
                active = self.appender.rotate_to(
                    lambda: self._plan.next_path(self._plan.first_path())
                )
            read_only = [path for path in self._segments() if path < active]
            free = ask(self._holders, self._directory, "", read_only)
            read_only = read_only[: free.count]
            if not read_only:
                return
            states = fold.replay(
                entry.record
                for path in read_only
                for entry in read_whole(ledger_format.CODEC, self._disk.view(path))
            )
            kept = [record for record in states.values() if keeps(record)]
            encoded = [ledger_format.CODEC.encode(record) for record in kept]
            *replaced, last = [posixpath.basename(path) for path in read_only]
            staged = posixpath.join(self._directory, _STAGING, last)
            self._disk.make_dirs(posixpath.dirname(staged))
            publication.write_whole(self._disk, staged, [ledger_format.HEADER, *encoded])
            # Without it a stream that has read no record of the last segment would take the
            # snapshot for a copy of that segment, and read all of it again.
            before = publication.file_identities(self._disk, read_only)
            publication.note_replacement(self._disk, before, staged, read_only[-1])
            change = publication.Publication(
                {posixpath.join(_STAGING, last): last}, tuple(replaced)
            )
            publication.publish(self._disk, publication.journal_path(self._directory), change)
            self._index(read_only, kept, map(len, encoded))
            free.dropped(read_only)
            self._live_bytes = sum(map(len, encoded))
            self.size = sum(self._disk.size(path) for path in self._segments())

    def _index(
        self, read: list[str], kept: list[ledger_format.Record], sizes: Iterable[int]
    ) -> None:
        """Save the index of the snapshot that replaces the segments that were read."""
        draft, offset = IndexDraft(), len(ledger_format.HEADER)
        for record, size in zip(kept, sizes, strict=True):
            draft.note(offset, record.logged.unix_ns, None)
            offset += size
        for path in read[:-1]:
            remove_index(self._disk, path)
        try_to_save(self._disk, read[-1], draft)

    def close(self) -> None:
        """Sync, and let others have the ledger. A compaction under way comes to its end first."""
        with self._compacting:
            self._closed = True
            try:
                self.appender.close()
            finally:
                self._lock.release()

    def __enter__(self) -> LedgerLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _segments(self) -> list[str]:
        return segment_names.ledger_files(self._disk, self._directory)


def _finish(disk: Disk, directory: str) -> tuple[FileReport, ...]:
    """Carry through a compaction that was cut short. One whose journal is damaged is set aside:
    all segments that are there are read then."""
    journal = publication.journal_path(directory)
    try:
        publication.finish(disk, journal)
    except LogError as error:
        data = disk.read_bytes(journal)
        damage = Damage(journal, 0, len(data), "corrupt", error.reason)
        aside = move_aside(disk, journal, data)
        return (FileReport(journal, len(data), 0, 0, 0, (damage,), 1, (aside,), gone=True),)
    return ()


def peek(disk: ReadingDisk, directory: str) -> dict[fold.Key, ledger_format.Record]:
    """The states of a ledger that another process may have open; none if there is no ledger."""
    return fold.replay(peek_records(disk, directory))


def peek_records(disk: ReadingDisk, directory: str) -> Iterator[ledger_format.Record]:
    """Yield every record of the ledger in order, without opening it for writing."""
    for view in _views(disk, directory):
        for item in read_file(ledger_format.CODEC, view):
            if not isinstance(item, Damage):  # in the active segment an append may be in flight
                yield item.record


def _views(disk: ReadingDisk, directory: str) -> list[memoryview]:
    """The segments as of one moment: a compaction changes several files at once."""
    journal = publication.journal_path(directory)
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            change = publication.pending(disk, journal)
            paths = segment_names.ledger_files(disk, directory)
            if change is not None:
                paths = publication.paths_after(
                    disk, directory, change, map(posixpath.basename, paths)
                )
            views = [disk.view(path) for path in paths]
            if change is not None or paths == segment_names.ledger_files(disk, directory):
                return views
    raise LogError(directory, "its files keep changing; try again")


HEAD_BYTES = 256
_MOST = 2**63 - 1
FLUSH_NS = 1_000_000_000  # marks are at most so old when they are written
MOST_WAITING = 4096  # marks that could not be written; then every second one is dropped


class FileHead(NamedTuple):
    """Identifies a file: the CRC of its first bytes, and how many these are."""

    size: int
    crc: int

    @classmethod
    def read(cls, disk: ReadingDisk, path: str, size: int = HEAD_BYTES) -> FileHead:
        data = disk.read_at(path, 0, size)
        return cls(len(data), google_crc32c.value(data))


def heads_of(disk: ReadingDisk, paths: Iterable[str], size: int) -> set[FileHead]:
    """Return the heads of those of these files that exist and have at least ``size`` bytes."""
    if not 0 < size <= HEAD_BYTES:
        return set()
    heads = {FileHead.read(disk, path, size) for path in paths if disk.exists(path)}
    return {head for head in heads if head.size == size}


class TimeMark(NamedTuple):
    end: int
    time_ns: int


def encode_marks(head: FileHead, marks: Sequence[TimeMark]) -> ledger_format.TimesMarked:
    """One record of marks of one file; there is at least one."""
    steps = [
        (end - before_end, time_ns - before_ns)
        for (before_end, before_ns), (end, time_ns) in pairwise(marks)
    ]
    return ledger_format.TimesMarked(
        Instant(marks[-1].time_ns), head.size, head.crc, (marks[0], *steps)
    )


def decode_marks(record: ledger_format.TimesMarked) -> Iterator[TimeMark]:
    ends = accumulate(end for end, _ in record.marks)
    times = accumulate(time_ns for _, time_ns in record.marks)
    return map(TimeMark, ends, times)


@dataclass(frozen=True, slots=True)
class FileTimes:
    """The marks of one file, and when all of it was there, as the file after it says."""

    ends: tuple[int, ...]  # ascending
    times_ns: tuple[int, ...]
    whole_ns: int | None = None

    def between(self, begin: int, end: int) -> FileTimes:
        """Return those times that the records between these places need."""
        first, last = bisect_right(self.ends, begin), bisect_right(self.ends, end) + 1
        return FileTimes(self.ends[first:last], self.times_ns[first:last], self.whole_ns)

    def time_ns(self, offset: int) -> int | None:
        """Return when the record at ``offset`` was written; None if that is not known."""
        at = bisect_right(self.ends, offset)
        return self.times_ns[at] if at < len(self.ends) else self.whole_ns

    def end_by(self, moment_ns: int) -> int | None:
        """How much of the file was there by this moment, as far as it is known; None: all."""
        if self.whole_ns is not None and self.whole_ns <= moment_ns:
            return None
        marks = zip(self.ends, self.times_ns, strict=True)
        return max((end for end, time_ns in marks if time_ns <= moment_ns), default=0)


def ledger_beside(log: str) -> str:
    """Where the ledger of a schedule's log is, unless a setting says otherwise."""
    return posixpath.join(posixpath.dirname(log), LEDGER_DIRECTORY)


def times_of(disk: ReadingDisk, ledger: str, files: Sequence[str]) -> Mapping[str, FileTimes]:
    """Return, by path, the times of these files of one log, in load order. Empty:
    nothing is known."""
    by_head: dict[FileHead, list[TimeMark]] = {}
    for record in peek_records(disk, ledger):
        if isinstance(record, ledger_format.TimesMarked):
            head = FileHead(record.head_bytes, record.head_crc)
            _add(by_head.setdefault(head, []), decode_marks(record))
    found: dict[str, FileTimes] = {}
    after_ns: int | None = None
    for path in reversed(files):
        marks: list[TimeMark] = []
        for head, own in by_head.items():
            if head in heads_of(disk, [path], head.size):
                _add(marks, own)
        if marks or after_ns is not None:
            ends, times = tuple(m.end for m in marks), tuple(m.time_ns for m in marks)
            found[path] = FileTimes(ends, times, after_ns)
        after_ns = marks[0].time_ns if marks else after_ns
    return {path: found[path] for path in files if path in found}


def _add(marks: list[TimeMark], more: Iterable[TimeMark]) -> None:
    for mark in more:
        if not (0 <= mark.end <= _MOST and -_MOST <= mark.time_ns <= _MOST):
            continue  # no server writes such a mark, and columns have 64 bits
        while marks and marks[-1].end > mark.end:
            marks.pop()
        marks.append(mark)


class MarkWriter:
    """Makes the marks of one log. Called from one thread, that of the log's writer.

    ``note`` after each append; ``flush`` FLUSH_NS later at most, if there ``is_waiting`` one.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        appender: Appender,
        write: Callable[[Sequence[ledger_format.Record]], None],
    ) -> None:
        """``write`` appends to the ledger, without a sync."""
        self._disk = disk
        self._clock = clock
        self._appender = appender
        self._write = write
        self._file = 0
        self._head: FileHead | None = None
        self._marks: list[TimeMark] = []
        self._records: list[ledger_format.Record] = []  # marks of files that are no longer active

    @property
    def is_waiting(self) -> bool:
        """Return whether ``flush`` has something to write: the mark of a file without bytes is
        kept.
        """
        return bool(self._records or (self._marks and self._head is not None))

    def note(self) -> None:
        """Mark the present size of the log with the present time."""
        self._appender.observe(self._see)

    def flush(self) -> None:
        """Marks that cannot be written are kept for the next time."""
        self._end_record()
        if not self._records:
            return
        try:
            self._write(self._records)
        except JourneymanError:
            del self._records[: -MOST_WAITING // 2]
        else:
            self._records = []

    def _see(self, end: segment_names.Position, file: int) -> None:
        now_ns = self._clock.now_ns()
        if file != self._file:
            self._end_record()
            if self._marks:  # the file never had a byte
                self._marks.clear()
            begun = self._file > 0 or end.offset == 0
            self._file, self._head = file, None
            if begun:
                self._marks.append(TimeMark(0, now_ns))
        if end.offset == 0:
            return
        if self._head is None:
            self._head = FileHead.read(self._disk, end.path, min(HEAD_BYTES, end.offset))
        if not self._marks or self._marks[-1].end != end.offset:
            self._marks.append(TimeMark(end.offset, now_ns))
        if len(self._marks) > MOST_WAITING:
            del self._marks[1:-1:2]

    def _end_record(self) -> None:
        if self._head is not None and self._marks:
            self._records.append(encode_marks(self._head, self._marks))
            self._marks = []
