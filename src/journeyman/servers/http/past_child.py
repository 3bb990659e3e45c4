"""The past: a process that folds the logs up to a moment, and keeps what it found.

    server --pipe: (kind, arguments)--> child: log in columns, states of the last moments
           <--pipe: size, then (True, answer) or (False, why not)--

A process of its own, because folding a million records takes the interpreter for a while, and the
libraries that make it quick stay in memory. It ends with its standard input.

    load     the columns of every segment; read again only when a file has changed
    fold     compiled (columnar/workq/fold.py), of the records that were logged by that moment
    page     jobs of a state, queue and error at that moment, newest first, with their payloads
    change   jobs by queue and state at two moments, and the jobs that differ

A small log is folded by the reference fold, and so is any log where numpy, Arrow and numba are not
installed: several times slower, to the same state.
"""

from __future__ import annotations

import glob
import os
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from journeyman.disk import RealDisk
from journeyman.folds import workq as folds
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import ztick
from journeyman.formats.workq import CODEC, Command, JobAdded, JobFinished, Record
from journeyman.logs.catalog import load_order
from journeyman.logs.ledger.times import times_of
from journeyman.logs.sealing import read_file
from journeyman.units import NS_PER_MS

KEPT_MOMENTS = 4
BULK_BYTES = 4 * 1024 * 1024  # below this, importing the libraries takes longer than the fold
_SHIFT = 40  # a position: the number of the file, and the offset in it
_STATES = ("ready", "completed", "dead", "ready", "leased")  # by folds.workq.JobState
READY, SCHEDULED = "ready", "scheduled"


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


class Past:
    """A log, and its states at moments."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._files: list[str] = []
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._moments: OrderedDict[int, list[PastJob]] = OrderedDict()
        self._counts: dict[int, dict[str, dict[str, int]]] = {}
        self._log: Any = None

    def look(self) -> None:
        names = sorted(
            each.name for each in os.scandir(self.directory) if each.name.endswith(".log")
        )
        self._files = [os.path.join(self.directory, name) for name in names]
        seen = tuple((path, os.stat(path).st_size, os.stat(path).st_ino) for path in self._files)
        if seen != self._seen:
            self._log, self._seen = _load(self._files), seen
            self._moments.clear()
            self._counts.clear()

    def span(self) -> tuple[int, int]:
        """The times of the first and the last record; zeros for an empty log."""
        self.look()
        return self._log.span()  # type: ignore[no-any-return]

    def at(self, moment_ns: int) -> list[PastJob]:
        """The jobs that existed then, newest first."""
        self.look()
        found = self._moments.get(moment_ns)
        if found is None:
            found = self._log.at(moment_ns)
            found.sort(key=lambda job: (job.created_ns, job.job_id), reverse=True)
            self._moments[moment_ns] = found
            if len(self._moments) > KEPT_MOMENTS:
                self._moments.popitem(last=False)
        return found

    def counts(self, moment_ns: int) -> dict[str, dict[str, int]]:
        """By queue and state."""
        self.look()
        if (known := self._counts.get(moment_ns)) is not None:
            return known
        counted = Counter((job.queue, job.state) for job in self.at(moment_ns))
        found: dict[str, dict[str, int]] = {}
        for (queue, state), count in sorted(counted.items()):
            found.setdefault(queue, {})[state] = count
        self._counts = {each: self._counts[each] for each in self._moments if each in self._counts}
        self._counts[moment_ns] = found
        return found

    def page(
        self, moment_ns: int, queue: str, state: str, text: str, error: str, begin: int, limit: int
    ) -> tuple[list[tuple[PastJob, JobAdded, bytes | None]], int | None]:
        """Jobs with their records, and where the next page begins."""
        found = []
        jobs = self.at(moment_ns)
        wanted, wrong = text.lower().encode(), error.lower().encode()
        for index in range(begin, len(jobs)):
            job = jobs[index]
            if (queue and job.queue != queue) or (state and job.state != state):
                continue
            added = self._record(job.add_at)
            if not isinstance(added, JobAdded):
                continue
            finished = self._record(job.result_at) if job.result_at >= 0 else None
            result = finished.result if isinstance(finished, JobFinished) else None
            if wrong and (job.state != "dead" or result is None or wrong not in result.lower()):
                continue
            hit = job.job_id.hex().startswith(text.replace("-", "").lower())
            if wanted and not hit and wanted not in added.payload.lower():
                continue
            found.append((job, added, result))
            if len(found) == limit:
                return found, index + 1 if index + 1 < len(jobs) else None
        return found, None

    def change(self, from_ns: int, to_ns: int, limit: int) -> dict[str, Any]:
        """What is different: counts at both, and the first jobs whose state is another."""
        before = {job.job_id: job for job in self.at(from_ns)}
        after = {job.job_id: job for job in self.at(to_ns)}
        rows = []
        for job_id in after.keys() | before.keys():
            was, now = before.get(job_id), after.get(job_id)
            states = (was.state if was else None, now.state if now else None)
            if states[0] != states[1]:
                job = now or was
                assert job is not None
                rows.append((job.created_ns, job_id, job.queue, *states))
        rows.sort(reverse=True)
        return {
            "before": self.counts(from_ns),
            "after": self.counts(to_ns),
            "jobs": rows[:limit],
            "changed": len(rows),
        }

    def _record(self, position: int) -> Record | None:
        with open(self._files[position >> _SHIFT], "rb") as file:
            file.seek(position & ((1 << _SHIFT) - 1))
            entry = CODEC.decode(file.read(2 * 1024 * 1024 + 64), 0)
        return None if entry is None else entry.record


class PastSchedule:
    """The schedule's log with the times that marks in the ledger give its records.

    What was compacted has the time of its compaction, so the past begins there.
    """

    def __init__(self, path: str) -> None:
        self.directory = path
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._records: list[tuple[int, ztick.Record]] = []
        self._moments: OrderedDict[int, list[ztick.JobSet]] = OrderedDict()

    def look(self, ledger: str) -> None:
        disk = RealDisk()
        files = [path for path in load_order(self.directory) if os.path.exists(path)]
        places = [*files, *sorted(glob.glob(os.path.join(ledger, "*.ledger")))]
        seen = tuple((path, os.stat(path).st_size, os.stat(path).st_ino) for path in places)
        if seen == self._seen:
            return
        times = times_of(disk, ledger, files)
        self._records = []
        for path in files:
            with open(path, "rb") as file:
                data = file.read()
            known = times.get(path)
            for found in read_file(ztick.CODEC, data):
                time_ns = None if known is None else known.time_ns(found.offset)
                if hasattr(found, "record") and time_ns is not None:
                    self._records.append((time_ns, found.record))
        self._seen = seen
        self._moments.clear()

    def schedule_span(self, ledger: str) -> tuple[int, int]:
        self.look(ledger)
        times = [time_ns for time_ns, _ in self._records]
        return (min(times), max(times)) if times else (0, 0)

    def at(self, ledger: str, moment_ns: int) -> list[ztick.JobSet]:
        """The jobs of then, by time."""
        self.look(ledger)
        found = self._moments.get(moment_ns)
        if found is None:
            known = (record for time_ns, record in self._records if time_ns <= moment_ns)
            states = ztick_fold.replay(known).values()
            found = [state for state in states if isinstance(state, ztick.JobSet)]
            found.sort(key=lambda job: (job.execution_ns, job.identifier))
            self._moments[moment_ns] = found
            if len(self._moments) > KEPT_MOMENTS:
                self._moments.popitem(last=False)
        return found

    def schedule_page(
        self, ledger: str, moment_ns: int, prefix: str, status: str, text: str,
        descending: bool, begin: int, limit: int,
    ) -> tuple[list[ztick.JobSet], int | None]:  # fmt: skip
        jobs = self.at(ledger, moment_ns)
        wanted = [
            job
            for job in (reversed(jobs) if descending else jobs)
            if job.identifier.startswith(prefix)
            and text in job.identifier
            and status in ("", job.status.word)
        ]
        end = begin + limit
        return wanted[begin:end], end if end < len(wanted) else None


def _load(files: list[str]) -> Any:
    if sum(map(os.path.getsize, files)) < BULK_BYTES:
        return PlainLog(files)
    try:
        import numba  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        return PlainLog(files)
    return ColumnLog(files)


class PlainLog:
    """Records one by one, by the reference fold."""

    def __init__(self, files: list[str]) -> None:
        self._records: list[tuple[int, Record]] = []
        for number, path in enumerate(files):
            with open(path, "rb") as file:
                data = file.read()
            for found in read_file(CODEC, data):
                if hasattr(found, "record"):
                    self._records.append(((number << _SHIFT) + found.offset, found.record))

    def span(self) -> tuple[int, int]:
        times = [record.logged.unix_ns for _, record in self._records]
        return (min(times), max(times)) if times else (0, 0)

    def at(self, moment_ns: int) -> list[PastJob]:
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
            word = folds.queue_of(job, moment_ns) or _STATES[job.state]
            result_at = -1
            if job.result is not None and not job.exhausted:
                result_at = results.get((job.added.job_id, job.result), -1)
            found.append(
                PastJob(
                    job.added.job_id, job.added.name, word, job.attempts, job.fails,
                    job.added.created.unix_ns, place[id(job.added)], result_at,
                )
            )  # fmt: skip
        return found


class ColumnLog:
    """Columns of all records, folded by the compiled kernel."""

    def __init__(self, files: list[str]) -> None:
        import numpy as np
        import pyarrow as pa

        from journeyman.columnar.workq import decode as columnar
        from journeyman.columnar.workq.fold import ADDS, EVENTS, events_and_adds

        events, adds = [], []
        self._views = [RealDisk().view(path) for path in files]
        for number, view in enumerate(self._views):
            for chunk in columnar.iter_batches(view):
                some_events, some_adds = events_and_adds(chunk.batch, number << _SHIFT)
                events.append(some_events)
                adds.append(some_adds)
        self._events = _one(pa.Table.from_batches(events, EVENTS))
        self._adds = _one(pa.Table.from_batches(adds, ADDS))
        self._times = np.asarray(self._events.column("logged_ns"))
        self._is_add = np.asarray(self._events.column("kind")) <= Command.SCHEDULE

    def span(self) -> tuple[int, int]:
        return (int(self._times.min()), int(self._times.max())) if len(self._times) else (0, 0)

    def at(self, moment_ns: int) -> list[PastJob]:
        import numpy as np
        import pyarrow as pa

        from journeyman.columnar.workq import fold as kernel

        mask = self._times <= moment_ns
        events = self._events.filter(pa.array(mask))
        adds = self._adds.filter(pa.array(mask[self._is_add]))
        if not len(adds):
            return []
        jobs = kernel.fold(events, adds, self._reread)
        rows, numbers = jobs.jobs, jobs.add_numbers
        created = np.asarray(adds.column("created_ns"))[numbers]
        time = adds.column("time_ns")
        has_time = ~np.asarray(time.is_null())[numbers]
        due = np.asarray(time.fill_null(0))[numbers]
        is_schedule = np.asarray(adds.column("kind"))[numbers] == Command.SCHEDULE
        begins = np.where(is_schedule & has_time, due, created)
        ttl_ns = np.asarray(adds.column("ttl_ms"))[numbers] * NS_PER_MS
        is_there = moment_ns < begins + ttl_ns
        positions = np.asarray(events.column("position"))
        ids = events.column("job_id").take(pa.array(rows[:, kernel.ADD])).to_pylist()
        names = adds.column("name").take(pa.array(numbers)).to_pylist()
        found = []
        for index in np.flatnonzero(is_there).tolist():
            row = rows[index]
            state = int(row[kernel.STATE])
            word = _STATES[state]
            if state == 0 and has_time[index] and moment_ns < due[index]:
                word = SCHEDULED
            result = int(row[kernel.RESULT])
            found.append(
                PastJob(
                    ids[index], names[index], word,
                    int(row[kernel.ATTEMPTS]), int(row[kernel.FAILS]), int(created[index]),
                    int(positions[row[kernel.ADD]]), int(positions[result]) if result >= 0 else -1,
                )
            )  # fmt: skip
        return found

    def _reread(self, positions: Any) -> list[Record]:
        found = []
        for position in positions:
            view = self._views[position >> _SHIFT]
            entry = CODEC.decode(view, position & ((1 << _SHIFT) - 1))
            assert entry is not None
            found.append(entry.record)
        return found


def _one(table: Any) -> Any:
    import pyarrow as pa

    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    known: dict[tuple[str, bool], Past | PastSchedule] = {}
    while True:
        try:
            directory, kind, arguments = pickle.load(requests)
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            of_schedule = kind.startswith("schedule_")
            past = known.get((directory, of_schedule))
            if past is None:
                past = PastSchedule(directory) if of_schedule else Past(directory)
                known[directory, of_schedule] = past
            call: Callable[..., Any] = getattr(past, kind)
            answer = (True, call(*arguments))
        except Exception as error:  # noqa: BLE001 - the server reports it
            answer = (False, f"{type(error).__name__}: {error}")
        data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        answers.write(len(data).to_bytes(8) + data)
        answers.flush()


def main() -> None:
    """Not run as a module: what is sent must be of this module, not of __main__."""
    # Printed text must not get between the answers.
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        _serve(sys.stdin.buffer, pipe)
