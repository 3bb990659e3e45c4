"""The schedule and the ledger at a moment.

The schedule's log gets its times from marks in the ledger. What was compacted has the time of its
compaction, so the past begins there. Records after the last mark have no time yet; only what stands
before it is read, so no batch in flight is.

    PlainSchedule    record by record, by the reference fold
    ColumnSchedule   schedule_columns.py: the same answers for millions of records

Timetables and queues are as the ledger has them: the last record of each key by then (PastLedger).
A compaction of the ledger keeps the last record of what still exists, with its own time. What was
replaced or removed before is not known after it.
"""

from __future__ import annotations

import glob
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from journeyman.disk import RealDisk, open_own
from journeyman.folds import ztick as fold
from journeyman.formats import ztick
from journeyman.formats.ledger import is_state, kind_of
from journeyman.logs.catalog import load_order
from journeyman.logs.ledger import FileTimes, peek_records, times_of
from journeyman.logs.sealing import read_file
from journeyman.servers.http.past.moments import KEPT_MOMENTS, Damaged

BULK_BYTES = 2 * 1024 * 1024

Row = tuple[str, str, int]  # id, status, time

FAMILIES = ("timetable", "timetable-pause", "timetable-plan", "queue-pause", "queue-limits")
State = dict[str, dict[str, Any]]  # the record of each key, by family


class Jobs(Protocol):
    """The jobs of one moment, by time."""

    def page(
        self, prefix: str, status: str, text: str, descending: bool, begin: int, limit: int
    ) -> tuple[list[Row], int | None]: ...

    def counts(self, prefix: str) -> dict[str, int]: ...

    def job(self, identifier: str) -> Row | None: ...


class ScheduleLog(Protocol):
    def add(self, data: bytes, times: FileTimes) -> None:
        """The next file."""
        ...

    def span(self) -> tuple[int, int]: ...

    def at(self, moment_ns: int) -> Jobs: ...


class PlainJobs:
    def __init__(self, jobs: Iterable[ztick.JobSet]) -> None:
        ordered = sorted(jobs, key=lambda job: (job.execution_ns, job.identifier))
        self._jobs = [(job.identifier, job.status.word, job.execution_ns) for job in ordered]

    def page(
        self, prefix: str, status: str, text: str, descending: bool, begin: int, limit: int
    ) -> tuple[list[Row], int | None]:
        wanted = [
            job
            for job in (reversed(self._jobs) if descending else self._jobs)
            if job[0].startswith(prefix) and text in job[0] and status in ("", job[1])
        ]
        end = begin + limit
        return wanted[begin:end], end if end < len(wanted) else None

    def counts(self, prefix: str) -> dict[str, int]:
        return dict(Counter(job[1] for job in self._jobs if job[0].startswith(prefix)))

    def job(self, identifier: str) -> Row | None:
        return next((job for job in self._jobs if job[0] == identifier), None)


class PlainSchedule:
    def __init__(self) -> None:
        self._records: list[tuple[int, ztick.Record]] = []

    def add(self, data: bytes, times: FileTimes) -> None:
        for found in read_file(ztick.CODEC, data):
            time_ns = times.time_ns(found.offset)
            if hasattr(found, "record") and time_ns is not None:
                self._records.append((time_ns, found.record))

    def span(self) -> tuple[int, int]:
        times = [time_ns for time_ns, _ in self._records]
        return (min(times), max(times)) if times else (0, 0)

    def at(self, moment_ns: int) -> PlainJobs:
        known = (record for time_ns, record in self._records if time_ns <= moment_ns)
        states = fold.replay(known).values()
        return PlainJobs(state for state in states if isinstance(state, ztick.JobSet))


class ScheduleMoments:
    """A log of the schedule, and its states at moments."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: dict[str, tuple[int, int]] = {}  # path -> inode and size
        self._ledger: list[tuple[str, int]] = []
        self._log: ScheduleLog = PlainSchedule()
        self._moments: OrderedDict[int, Jobs] = OrderedDict()

    def schedule_span(self, ledger: str) -> tuple[int, int]:
        self._look(ledger, self._files())
        return self._log.span()

    def schedule_page(
        self, ledger: str, moment_ns: int, prefix: str, status: str, text: str,
        descending: bool, begin: int, limit: int,
    ) -> tuple[list[Row], int | None]:  # fmt: skip
        jobs = self._at(ledger, moment_ns)
        return jobs.page(prefix, status, text, descending, begin, limit)

    def schedule_counts(self, ledger: str, moment_ns: int, prefix: str) -> dict[str, int]:
        return self._at(ledger, moment_ns).counts(prefix)

    def schedule_job(self, ledger: str, moment_ns: int, identifier: str) -> Row | None:
        return self._at(ledger, moment_ns).job(identifier)

    def _files(self) -> dict[str, tuple[int, int]]:
        files = [path for path in load_order(self.path) if os.path.exists(path)]
        return {path: (facts.st_ino, facts.st_size) for path in files for facts in [os.stat(path)]}

    def _at(self, ledger: str, moment_ns: int) -> Jobs:
        files = self._files()
        kept = self._moments.get(moment_ns)
        if kept is not None and self._has_grown(files):
            return kept
        self._look(ledger, files)
        found = self._moments[moment_ns] = self._log.at(moment_ns)
        # Of a later moment than the log's, more may become known.
        if moment_ns >= self._log.span()[1]:
            del self._moments[moment_ns]
        if len(self._moments) > KEPT_MOMENTS:
            self._moments.popitem(last=False)
        return found

    def _has_grown(self, files: dict[str, tuple[int, int]]) -> bool:
        return files.keys() == self._seen.keys() and all(
            files[path][0] == inode and files[path][1] >= size
            for path, (inode, size) in self._seen.items()
        )

    def _look(self, ledger: str, files: dict[str, tuple[int, int]]) -> None:
        places = sorted(glob.glob(os.path.join(glob.escape(ledger), "*.ledger")))
        sizes = [(path, os.stat(path).st_size) for path in places]
        if files == self._seen and sizes == self._ledger:
            return
        if not self._has_grown(files):
            self._moments.clear()
        times = times_of(RealDisk(), ledger, list(files))
        is_small = sum(size for _, size in files.values()) < BULK_BYTES
        try:
            self._log = _read(PlainSchedule() if is_small else _column_schedule(), times)
        except Damaged:
            self._log = _read(PlainSchedule(), times)
        self._seen, self._ledger = files, sizes


def _read(log: ScheduleLog, times: Mapping[str, FileTimes]) -> ScheduleLog:
    for path, known in times.items():
        with open(path, "rb", opener=open_own) as file:
            size = known.ends[-1] if known.whole_ns is None else None
            log.add(file.read() if size is None else file.read(size), known)
    return log


def _column_schedule() -> ScheduleLog:
    try:
        from journeyman.servers.http.past.schedule_columns import ColumnSchedule
    except ImportError:
        return PlainSchedule()
    return ColumnSchedule()


class PastLedger:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: list[tuple[str, int, int]] = []
        self._records: list[Any] = []
        self._moments: OrderedDict[int, State] = OrderedDict()

    def ledger_timetables(
        self, moment_ns: int, prefix: str, after: str, limit: int
    ) -> list[tuple[str, dict[str, Any], bool, str, str]]:
        """By name: fields, whether paused, the last occurrence and the one planned."""
        state = self._at(moment_ns)
        known, paused, plans = (state[family] for family in FAMILIES[:3])
        names = sorted(name for name in known if name.startswith(prefix) and name > after)
        return [
            (
                name, known[name].body, name in paused,
                plans[name].done if name in plans else "",
                plans[name].planned if name in plans else "",
            )
            for name in names[:limit]
        ]  # fmt: skip

    def ledger_queues(
        self, moment_ns: int, names: list[str]
    ) -> dict[str, tuple[bool, dict[str, Any]]]:
        """Whether each was paused, and its limits."""
        state = self._at(moment_ns)
        limits = state["queue-limits"]
        return {
            name: (name in state["queue-pause"], limits[name].body if name in limits else {})
            for name in names
        }

    def _at(self, moment_ns: int) -> State:
        self._look()
        found = self._moments.get(moment_ns)
        if found is None:
            found = self._moments[moment_ns] = {family: {} for family in FAMILIES}
            for record in self._records:
                if record.logged.unix_ns <= moment_ns:
                    _apply(found, record)
            if len(self._moments) > KEPT_MOMENTS:
                self._moments.popitem(last=False)
        return found

    def _look(self) -> None:
        places = sorted(glob.glob(os.path.join(glob.escape(self._directory), "*.ledger")))
        seen = [(path, facts.st_ino, facts.st_size) for path in places for facts in [os.stat(path)]]
        if seen != self._seen:
            found = peek_records(RealDisk(), self._directory)
            wanted = (each for each in found if is_state(each))
            self._records = [each for each in wanted if kind_of(each).family in FAMILIES]
            self._seen = seen
            self._moments.clear()


def _apply(state: State, record: Any) -> None:
    kind = kind_of(record)
    assert kind.key is not None
    key = getattr(record, kind.key)
    if kind.removes:
        state[kind.family].pop(key, None)
    else:
        state[kind.family][key] = record
