"""When records of the schedule's log were written: marks in the ledger, made and read.

    schedule.log   [record][record][record][record][record][record]
                           ^ end 40         ^ end 100              ^ end 160
    ledger         times-marked: 40 at 12:00:01, 100 at 12:00:02, 160 at 12:00:07

A mark says that all bytes before ``end`` were in the file at ``time``. So the time of a record is
that of the first mark after its begin: it was there at the latest then. A mark that is lost only
makes this time later. Nothing is known of records after the last mark.

A file is known by the CRC of its first bytes, not by its name: compaction renames the active file
and begins another one. The first mark of a file is made when it is begun, with end 0: what stands
in the files before it was there at that time. So what was compacted has the time of its compaction.

Marks of one file are in the order of the log. Where one has a smaller end than those before it, the
file had been cut, and those that reach beyond it no longer count.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import google_crc32c

from journeyman.clock import Clock
from journeyman.data_directory import LEDGER_DIRECTORY
from journeyman.disk import Disk
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import Record, TimesMarked
from journeyman.formats.timed_frame import Instant
from journeyman.logs.appender import Appender
from journeyman.logs.ledger.log import peek_records
from journeyman.logs.segments import Position

HEAD_BYTES = 256
_MOST = 2**63 - 1
FLUSH_NS = 1_000_000_000  # marks are at most so old when they are written
MOST_WAITING = 4096  # marks that could not be written; then every second one is dropped


class Head(NamedTuple):
    """What a file is known by: the CRC of its first bytes, and how many these are."""

    size: int
    crc: int

    @classmethod
    def of(cls, disk: Disk, path: str, size: int = HEAD_BYTES) -> Head:
        data = disk.read_at(path, 0, size)
        return cls(len(data), google_crc32c.value(data))


def heads_of(disk: Disk, paths: Iterable[str], size: int) -> set[Head]:
    """Of those of these files that exist, as far as they have so many bytes."""
    if not 0 < size <= HEAD_BYTES:
        return set()
    heads = {Head.of(disk, path, size) for path in paths if disk.exists(path)}
    return {head for head in heads if head.size == size}


class Mark(NamedTuple):
    end: int
    time_ns: int


def encode_marks(head: Head, marks: Sequence[Mark]) -> TimesMarked:
    """One record of marks of one file; there is at least one."""
    steps = [
        (end - before_end, time_ns - before_ns)
        for (before_end, before_ns), (end, time_ns) in pairwise(marks)
    ]
    return TimesMarked(Instant(marks[-1].time_ns), head.size, head.crc, (marks[0], *steps))


def decode_marks(record: TimesMarked) -> Iterator[Mark]:
    ends = accumulate(end for end, _ in record.marks)
    times = accumulate(time_ns for _, time_ns in record.marks)
    return map(Mark, ends, times)


@dataclass(frozen=True, slots=True)
class FileTimes:
    """The marks of one file, and when all of it was there, as the file after it says."""

    ends: tuple[int, ...]  # ascending
    times_ns: tuple[int, ...]
    whole_ns: int | None = None

    def between(self, begin: int, end: int) -> FileTimes:
        """As much as the records that begin between these places need."""
        first, last = bisect_right(self.ends, begin), bisect_right(self.ends, end) + 1
        return FileTimes(self.ends[first:last], self.times_ns[first:last], self.whole_ns)

    def time_ns(self, offset: int) -> int | None:
        """Of the record at ``offset``; None if that is not known."""
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


def times_of(disk: Disk, ledger: str, files: Sequence[str]) -> Mapping[str, FileTimes]:
    """By path, the times of these files of one log, in load order. Empty: nothing is known."""
    by_head: dict[Head, list[Mark]] = {}
    for record in peek_records(disk, ledger):
        if isinstance(record, TimesMarked):
            head = Head(record.head_bytes, record.head_crc)
            _add(by_head.setdefault(head, []), decode_marks(record))
    found: dict[str, FileTimes] = {}
    after_ns: int | None = None
    for path in reversed(files):
        marks: list[Mark] = []
        for head, own in by_head.items():
            if head in heads_of(disk, [path], head.size):
                _add(marks, own)
        if marks or after_ns is not None:
            ends, times = tuple(m.end for m in marks), tuple(m.time_ns for m in marks)
            found[path] = FileTimes(ends, times, after_ns)
        after_ns = marks[0].time_ns if marks else after_ns
    return {path: found[path] for path in files if path in found}


def _add(marks: list[Mark], more: Iterable[Mark]) -> None:
    for mark in more:
        if not (0 <= mark.end <= _MOST and -_MOST <= mark.time_ns <= _MOST):
            continue  # no server writes such a mark, and columns have 64 bits
        while marks and marks[-1].end > mark.end:
            marks.pop()
        marks.append(mark)


class MarkWriter:
    """Makes the marks of one log. Called from one thread, that of the log's writer.

    ``note`` after each append; ``flush`` later, if it ``is_due`` and neither log is locked.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        appender: Appender,
        write: Callable[[Sequence[Record]], None],
    ) -> None:
        """``write`` appends to the ledger, without a sync."""
        self._disk = disk
        self._clock = clock
        self._appender = appender
        self._write = write
        self._file = 0
        self._head: Head | None = None
        self._marks: list[Mark] = []
        self._records: list[Record] = []  # of files that are no longer active
        self._flushed_ns = -FLUSH_NS

    @property
    def is_waiting(self) -> bool:
        """Whether ``flush`` has something to write: the mark of a file without bytes is kept."""
        return bool(self._records or (self._marks and self._head is not None))

    def note(self) -> None:
        """What the log holds now was there now."""
        self._appender.look(self._see)

    @property
    def is_due(self) -> bool:
        """Whether ``flush`` should be called now."""
        return self.is_waiting and self._clock.monotonic_ns() - self._flushed_ns >= FLUSH_NS

    def flush(self) -> None:
        """Marks that cannot be written are kept for the next time."""
        self._end_record()
        if not self._records:
            return
        self._flushed_ns = self._clock.monotonic_ns()
        try:
            self._write(self._records)
        except JourneymanError:
            del self._records[: -MOST_WAITING // 2]
        else:
            self._records = []

    def _see(self, end: Position, file: int) -> None:
        now_ns = self._clock.now_ns()
        if file != self._file:
            self._end_record()
            if self._marks:  # of a file that never had a byte
                self._marks.clear()
            begun = self._file > 0 or end.offset == 0
            self._file, self._head = file, None
            if begun:
                self._marks.append(Mark(0, now_ns))
        if end.offset == 0:
            return
        if self._head is None:
            self._head = Head.of(self._disk, end.path, min(HEAD_BYTES, end.offset))
        if not self._marks or self._marks[-1].end != end.offset:
            self._marks.append(Mark(end.offset, now_ns))
        if len(self._marks) > MOST_WAITING:
            del self._marks[1:-1:2]

    def _end_record(self) -> None:
        if self._head is not None and self._marks:
            self._records.append(encode_marks(self._head, self._marks))
            self._marks = []
