"""Follows what is written, counts it minute by minute, and keeps the counts on disk.

    lane of the work queue    log ---------> jobs, cells      series/work/
    lane of the schedule      .runs -------> cells            series/runs/

    step      what is new --> the open minute
              a later minute begins: the one before goes to the file, and into its hour
              a later hour begins: the one before goes to the file
    place     every now and then, and at the end: up to where all was counted, and what is open

A lane goes on from its place. If there is none, or the log is another one, it is counted from its
beginning. Minutes that were written before are left as they are then: cleaning may have taken from
the log what they had counted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from journeyman.clock import Clock
from journeyman.disk import ReadingDisk
from journeyman.formats.workq import Record
from journeyman.logs.segments import names_in
from journeyman.logs.workq.tail import LogChanged, NewRecords, TailPlace
from journeyman.logs.ztick.run_history import RunLine, decode_run, history_files
from journeyman.servers.series.cells import Cell, CellBlock
from journeyman.servers.series.counting import (
    MINUTE_NS,
    LaneCounts,
    OpenMinute,
    RunCounts,
    WorkCounts,
)
from journeyman.servers.series.files import KEPT_HOURS_S, KEPT_MINUTES_S, SeriesFiles
from journeyman.units import HOUR_S, MIB, MINUTE_S, NS_PER_S

VERSION: Final = 1
SAVE_RECORDS: Final = 500_000  # counted since the place was written, at least, until it is again
SAVE_S: Final = 600  # at most, if anything was counted
LATE_S: Final = 2  # after the end of a minute, before it is closed without a later record
READ_BYTES: Final = MIB  # so much of the runs is read at once
_MOST_NS: Final = 2**62

R = TypeVar("R")
P = TypeVar("P")


class Source(Protocol[R, P]):
    """Where the records of a lane come from."""

    def read(self, place: P) -> tuple[Sequence[R], P]: ...
    def time_ns(self, record: R) -> int: ...


class _Head(msgspec.Struct):
    """The first part of a place."""

    version: int
    place: Any
    minute: CellBlock
    hour: CellBlock
    file_hour_s: int


class Lane(Generic[R, P]):
    """One thing that is followed. ``counts`` and ``hour`` are those that are open."""

    def __init__(
        self,
        files: SeriesFiles,
        source: Source[R, P],
        clock: Clock,
        first: P,
        make_counts: Callable[[], LaneCounts[R]],
    ) -> None:
        self.files = files
        self._source = source
        self._clock = clock
        self._first = first
        self._make_counts = make_counts
        self.counts = make_counts()
        self.hour = CellBlock(0, True, {})
        self.place = first
        self.read_to_end_ns = 0  # when all that was written had been counted
        self._file_hour_s = -1  # the hour of the file that the last minute went to
        self._kept_until_s = -1  # minutes up to this one are on disk, and better than the log's
        self._uncounted = 0
        self._saved_s = 0.0
        self._is_open = False

    # -- the place --

    def open(self) -> str:
        """Go on from the place; why that cannot be, or empty."""
        self._is_open = True
        self._saved_s = self._clock.monotonic_ns() / NS_PER_S
        parts = iter(self.files.read_place())
        try:
            head = msgspec.msgpack.decode(next(parts), type=_Head)
            if head.version != VERSION:
                raise ValueError("of another version")
            self.place = msgspec.convert(head.place, type(self._first))
            self.counts.minute = OpenMinute(head.minute.begin_s)
            self.counts.minute.cells = head.minute.cells
            self.hour, self._file_hour_s = head.hour, head.file_hour_s
            self.counts.load(parts)
        except (StopIteration, ValueError, TypeError) as error:
            self._begin_anew()
            return "" if isinstance(error, StopIteration) else f"the place cannot be read: {error}"
        return ""

    def save(self) -> None:
        """Write the place."""
        if not self._is_open:
            return
        minute = self.counts.minute
        head = _Head(
            VERSION,
            self.place,
            CellBlock(minute.begin_s, False, minute.cells),
            self.hour,
            self._file_hour_s,
        )
        parts = chain([head], self.counts.saved())
        self.files.write_place(map(msgspec.msgpack.encode, parts))
        self._uncounted, self._saved_s = 0, self._clock.monotonic_ns() / NS_PER_S

    def _begin_anew(self) -> None:
        self.counts = self._make_counts()
        self.hour = CellBlock(0, True, {})
        self.place, self._file_hour_s = self._first, -1
        self._kept_until_s = self.files.last_minute_s()

    # -- following --

    def step(self) -> bool:
        """Count what is new, up to a batch; True if there may be more."""
        try:
            records, place = self._source.read(self.place)
        except LogChanged:
            self._begin_anew()
            return True
        is_at_end = place == self.place
        for record in records:
            now_ns = self._source.time_ns(record)
            minute = self.counts.minute
            if now_ns >= minute.end_ns or now_ns < minute.end_ns - HOUR_S * NS_PER_S:
                self._advance(min(max(now_ns, 0), _MOST_NS))
            self.counts.apply(record)
        self.place = place
        self._uncounted += len(records)
        if is_at_end:
            self._pass_time()
            self.read_to_end_ns = self._clock.now_ns()
        since_s = self._clock.monotonic_ns() / NS_PER_S - self._saved_s
        if self._uncounted > SAVE_RECORDS or (self._uncounted and since_s > SAVE_S):
            self.save()
        return not is_at_end

    def _pass_time(self) -> None:
        """Close the open minute once it is over; a minute of which nothing is known is no more
        than its beginning."""
        now_ns = self._clock.now_ns() - LATE_S * NS_PER_S
        minute = self.counts.minute
        if minute.begin_s and now_ns >= minute.end_ns:
            due_s = self.counts.next_due_s()
            if minute.cells or (due_s is not None and due_s * NS_PER_S < now_ns):
                self._advance(now_ns)

    def _advance(self, now_ns: int) -> None:
        """Open the minute of this time. Minutes before it in which jobs become ready have cells
        too, for their depths."""
        target_s = now_ns // MINUTE_NS * MINUTE_S
        while self.counts.minute.begin_s != target_s:
            if self.counts.minute.begin_s or self.counts.minute.cells:
                self._close()
            due_s = self.counts.next_due_s()
            is_between = due_s is not None and self.counts.minute.begin_s < due_s < target_s
            self._open(due_s if is_between and due_s is not None else target_s)

    def _close(self) -> None:
        begin_s = self.counts.minute.begin_s
        hour_s = begin_s // HOUR_S * HOUR_S
        is_first = hour_s != self._file_hour_s
        block = CellBlock(begin_s, is_first, self.counts.close_minute(is_whole=is_first))
        now_s = self._clock.now_ns() // NS_PER_S
        for key, cell in block.cells.items():
            self._add_to_hour(key, cell)
        if begin_s > self._kept_until_s and block.cells and begin_s > now_s - KEPT_MINUTES_S:
            self.files.append_minute(block)
            self._file_hour_s = hour_s

    def _open(self, begin_s: int) -> None:
        hour_s = begin_s // HOUR_S * HOUR_S
        if hour_s != self.hour.begin_s:
            self._close_hour()
            self.hour = CellBlock(hour_s, True, {})
        self.counts.minute = OpenMinute(begin_s)

    # -- reading --

    def now_s(self) -> int:
        return self._clock.now_ns() // NS_PER_S

    def blocks(self, from_s: int, until_s: int, *, uses_minutes: bool) -> Iterator[CellBlock]:
        """Cells of this time, in order: minutes, or hours and the open minute."""
        minute, is_kept = self.counts.minute, self.counts.minute.begin_s <= self._kept_until_s
        for key, cell in minute.cells.items():
            cell.set_depth(self.counts.depths.get(key, (0, 0, 0)))
        if uses_minutes:
            for block in self.files.minutes(from_s, until_s):
                if is_kept or block.begin_s != minute.begin_s:
                    yield block
        else:
            for block in self.files.hours(from_s, until_s):
                if is_kept or block.begin_s != self.hour.begin_s:
                    yield block
            if not is_kept and from_s <= self.hour.begin_s < until_s:
                yield CellBlock(self.hour.begin_s, False, self.hour.cells)
        if not is_kept and from_s <= minute.begin_s < until_s:
            yield CellBlock(minute.begin_s, False, minute.cells)

    def hour_before(self, until_s: int) -> CellBlock | None:
        """The last hour that is known and begins before this time."""
        if 0 < self.hour.begin_s < until_s:
            cells = {key: Cell() for key in self.counts.depths}
            for key, depth in self.counts.depths.items():
                cells[key].set_depth(depth)
            return CellBlock(self.hour.begin_s, True, cells)
        return self.files.hour_before(until_s)

    def known_from_s(self) -> int | None:
        """When the first hour began of which anything is known."""
        return self.files.first_s() or self.hour.begin_s or None

    # -- closing --

    def _close_hour(self) -> None:
        now_s = self._clock.now_ns() // NS_PER_S
        for key, depth in self.counts.depths.items():
            self.hour.cells.setdefault(key, Cell()).set_depth(depth)
        self.counts.forget_unused_groups()
        begin_s = self.hour.begin_s
        if (
            begin_s > self._kept_until_s - HOUR_S
            and begin_s > now_s - KEPT_HOURS_S
            and self.hour.cells
        ):
            self.files.append_hour(self.hour)
        self.files.prune(now_s)

    def _add_to_hour(self, key: str, cell: Cell) -> None:
        of_hour = self.hour.cells.get(key)
        if of_hour is None:
            of_hour = self.hour.cells[key] = Cell()
        of_hour.add(cell)
        of_hour.set_depth((cell.scheduled, cell.ready, cell.running))


AnyLane: TypeAlias = Lane[Any, Any]


class WorkSource:
    """The records of a work queue's log."""

    def __init__(self, records: NewRecords) -> None:
        self._records = records

    def read(self, place: TailPlace) -> tuple[Sequence[Record], TailPlace]:
        return self._records.read(place)

    def time_ns(self, record: Record) -> int:
        return record.logged.unix_ns


class RunPlace(NamedTuple):
    """A file of runs, and up to where it was read."""

    name: str = ""
    offset: int = 0


class RunSource:
    """The lines of the runs of a schedule."""

    def __init__(self, disk: ReadingDisk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def read(self, place: RunPlace) -> tuple[Sequence[RunLine], RunPlace]:
        names = history_files(names_in(self._disk, self._directory))
        if place.name not in names:
            return [], RunPlace(names[0]) if names else place
        data = b""
        with suppress(FileNotFoundError):  # removed just now
            path = posixpath.join(self._directory, place.name)
            data = self._disk.read_at(path, place.offset, READ_BYTES)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == READ_BYTES:
            end = len(data)  # no run is as long
        if not end:
            later = names[names.index(place.name) + 1 :]
            return [], RunPlace(later[0]) if later else place
        lines = map(decode_run, data[:end].splitlines())
        runs = [run for run in lines if run is not None]
        return runs, RunPlace(place.name, place.offset + end)

    def time_ns(self, run: RunLine) -> int:
        return run.ended_ns


def work_lane(files: SeriesFiles, records: NewRecords, clock: Clock) -> Lane[Record, TailPlace]:
    return Lane(files, WorkSource(records), clock, TailPlace(), WorkCounts)


def runs_lane(
    files: SeriesFiles, disk: ReadingDisk, directory: str, clock: Clock
) -> Lane[RunLine, RunPlace]:
    return Lane(files, RunSource(disk, directory), clock, RunPlace(), RunCounts)
