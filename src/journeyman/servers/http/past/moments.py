"""A log of the work queue record by record, and its state at a moment as a list of jobs.

    PlainLog --at(moment)--> PlainMoment      the reference fold: any log, and no library
    ColumnLog --at(moment)--> ColumnMoment    columns.py: the same answers for millions of records

Both logs grow: what was appended is read, and nothing twice. Both moments count, find and compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from journeyman.disk import open_own
from journeyman.folds import workq as folds
from journeyman.formats.workq import CODEC, JobFinished, Record
from journeyman.logs.sealing import Headless, read_file

POSITION_SHIFT = 40  # a position: the number of the file, and the offset in it
IN_FILE = (1 << POSITION_SHIFT) - 1
MAX_RECORD_BYTES = 2 * 1024 * 1024 + 64  # more than any record of the log takes
STATES = ("ready", "completed", "dead", "ready", "leased")  # by folds.workq.JobState
SCHEDULED = "scheduled"
KEPT_MOMENTS = 4  # states that are remembered, of each log


@dataclass(frozen=True, slots=True)
class PastJob:
    job_id: bytes
    queue: str
    state: str
    attempts: int
    fails: int
    created_ns: int
    add_at: int  # the position of its add
    result_at: int  # and of its result, or -1


class Damaged(Exception):
    """Columns cannot hold this log as it is; the reference reads past the damage."""


class JobChange(NamedTuple):
    """None: the job did not exist."""

    created_ns: int
    job_id: bytes
    queue: str
    before: str | None
    after: str | None


Counts = dict[str, dict[str, int]]  # by queue and state


class Moment(Protocol):
    """The jobs of one moment, newest first."""

    def __len__(self) -> int: ...

    def counts(self) -> Counts: ...

    def find(
        self, queue: str, state: str, begin: int, prefix: str = ""
    ) -> Iterator[tuple[int, PastJob]]:
        """Jobs of this queue and state, if given, from a place on, with their places; ``prefix``
        is what the names of their queues begin with."""
        ...

    def job(self, job_id: bytes) -> PastJob | None: ...

    def changes(self, earlier: Any, limit: int, prefix: str) -> tuple[int, list[JobChange]]:
        """How many jobs have another state than earlier, and the newest of them."""
        ...


class WorkLog(Protocol):
    ends: dict[str, int]  # how far each file was read

    def grow(self, files: list[str]) -> int | None:
        """Read what was appended; the earliest time in it, or None for nothing."""
        ...

    def span(self) -> tuple[int, int]:
        """The times of the first and the last record; zeros for an empty log."""
        ...

    def at(self, moment_ns: int) -> Moment: ...

    def last(self, moment_ns: int, limit: int) -> list[int]:
        """The positions of the last records by then, newest first."""
        ...


def read_from(path: str, begin: int, size: int = -1) -> bytes:
    with open(path, "rb", opener=open_own) as file:
        file.seek(begin)
        return file.read(size)


class PlainMoment:
    def __init__(self, jobs: Iterable[PastJob]) -> None:
        self.jobs = sorted(jobs, key=lambda job: (job.created_ns, job.job_id), reverse=True)

    def __len__(self) -> int:
        return len(self.jobs)

    def counts(self) -> Counts:
        found: Counts = {}
        counted = Counter((job.queue, job.state) for job in self.jobs)
        for (queue, state), count in sorted(counted.items()):
            found.setdefault(queue, {})[state] = count
        return found

    def find(
        self, queue: str, state: str, begin: int, prefix: str = ""
    ) -> Iterator[tuple[int, PastJob]]:
        for place in range(begin, len(self.jobs)):
            job = self.jobs[place]
            is_wanted = queue in ("", job.queue) and state in ("", job.state)
            if is_wanted and job.queue.startswith(prefix):
                yield place, job

    def job(self, job_id: bytes) -> PastJob | None:
        return next((job for job in self.jobs if job.job_id == job_id), None)

    def changes(self, earlier: PlainMoment, limit: int, prefix: str) -> tuple[int, list[JobChange]]:
        was = {job.job_id: job for job in earlier.jobs}
        now = {job.job_id: job for job in self.jobs}
        found = []
        for job_id in was.keys() | now.keys():
            old, new = was.get(job_id), now.get(job_id)
            before, after = old.state if old else None, new.state if new else None
            job = new or old
            if before != after and job is not None and job.queue.startswith(prefix):
                found.append(JobChange(job.created_ns, job_id, job.queue, before, after))
        found.sort(reverse=True)
        return len(found), found[:limit]


class PlainLog:
    def __init__(self) -> None:
        self._records: list[tuple[int, Record]] = []
        self.ends: dict[str, int] = {}

    def grow(self, files: list[str]) -> int | None:
        earliest = None
        for number, path in enumerate(files):
            begin = self.ends.get(path, 0)
            data = read_from(path, begin)
            codec: Any = Headless(CODEC) if begin else CODEC
            for found in read_file(codec, data):
                if not hasattr(found, "record"):
                    continue
                self.ends[path] = begin + found.end
                position = (number << POSITION_SHIFT) + begin + found.offset
                self._records.append((position, found.record))
                time_ns = found.record.logged.unix_ns
                earliest = time_ns if earliest is None else min(earliest, time_ns)
        return earliest

    def span(self) -> tuple[int, int]:
        times = [record.logged.unix_ns for _, record in self._records]
        return (min(times), max(times)) if times else (0, 0)

    def last(self, moment_ns: int, limit: int) -> list[int]:
        known = [at for at, record in self._records if record.logged.unix_ns <= moment_ns]
        return known[: -limit - 1 : -1]

    def at(self, moment_ns: int) -> PlainMoment:
        known = [(at, each) for at, each in self._records if each.logged.unix_ns <= moment_ns]
        place = {id(record): at for at, record in known}
        results = {
            (record.job_id, record.result): at
            for at, record in known
            if isinstance(record, JobFinished)
        }
        found = []
        for state in folds.replay(record for _, record in known).values():
            job = folds.visible(state, moment_ns)
            if job is None:
                continue
            word = folds.queue_of(job, moment_ns) or STATES[job.state]
            result_at = -1
            if job.result is not None and not job.exhausted:
                result_at = results.get((job.added.job_id, job.result), -1)
            found.append(
                PastJob(
                    job.added.job_id, job.added.name, word, job.attempts, job.fails,
                    job.added.created.unix_ns, place[id(job.added)], result_at,
                )
            )  # fmt: skip
        return PlainMoment(found)
