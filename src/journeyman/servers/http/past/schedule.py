"""The schedule at a moment: its log, with the times that marks in the ledger give its records.

What was compacted has the time of its compaction, so the past begins there. Records after the last
mark have no time yet; only what stands before it is read, so no batch in flight is.

    PlainSchedule    record by record, by the reference fold
    ColumnSchedule   schedule_columns.py: the same answers for millions of records
"""

from __future__ import annotations

import glob
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol

from journeyman.disk import RealDisk, open_regular
from journeyman.folds import ztick as fold
from journeyman.formats import ztick
from journeyman.logs.catalog import load_order
from journeyman.logs.ledger.times import FileTimes, times_of
from journeyman.logs.sealing import read_file
from journeyman.servers.http.past.moments import Damaged

KEPT_MOMENTS = 4
BULK_BYTES = 2 * 1024 * 1024

Row = tuple[str, str, int]  # id, status, time


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
        with open(path, "rb", opener=open_regular) as file:
            size = known.ends[-1] if known.whole_ns is None else None
            log.add(file.read() if size is None else file.read(size), known)
    return log


def _column_schedule() -> ScheduleLog:
    try:
        from journeyman.servers.http.past.schedule_columns import ColumnSchedule
    except ImportError:
        return PlainSchedule()
    return ColumnSchedule()
