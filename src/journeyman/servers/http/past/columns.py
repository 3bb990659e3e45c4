"""A log of the work queue in columns, and its state at a moment without an object for each job.

    bytes --decode--> EVENTS, ADDS --KeyTable--> numbers of jobs      once, and for what is appended
    rows up to a moment --fold--> rows of jobs --sort--> ColumnMoment

Records stand nearly always in the order of their times, so the rows up to a moment are a slice of
all rows, and nothing is copied. A job keeps its number, so two moments are compared by arrays of
states. Objects are made only of jobs that are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import (
    Bools,
    frozen,
    joined,
    numbers_in,
    rows_where,
    text_in,
    valid_in,
    values_at,
)
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import KeyTable
from journeyman.columnar.workq import decode as columnar
from journeyman.columnar.workq import fold as kernel
from journeyman.formats.framing import Stop
from journeyman.formats.workq import CODEC, Command, Record
from journeyman.servers.http.past.moments import (
    IN_FILE,
    MAX_RECORD_BYTES,
    POSITION_SHIFT,
    SCHEDULED,
    STATES,
    Counts,
    Damaged,
    JobChange,
    PastJob,
    read_from,
)
from journeyman.units import NS_PER_MS

WORDS = (*dict.fromkeys(STATES), SCHEDULED)  # by the code of a state
_CODES = np.array([WORDS.index(word) for word in STATES])  # by folds.workq.JobState
_ID_BYTES = 16
_NOT_THERE = -1
_MOST_NS = 2**62 - 1  # so that two of them can be added


class ColumnLog:
    """Raises Damaged if a file does not end with a record; the last may end in one in flight."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self._files: list[str] = []
        self._keys = KeyTable()
        self._jobs: list[Ints] = []
        self._events: list[pa.RecordBatch] = []
        self._adds: list[pa.RecordBatch] = []

    def grow(self, files: list[str]) -> int | None:
        earliest = None
        self._files = files
        for number, path in enumerate(files):
            begin = self.ends.get(path, 0)
            data = read_from(path, begin)
            first_position = (number << POSITION_SHIFT) + begin
            for chunk in columnar.iter_batches(data, 0 if begin else None):
                left = len(data) - chunk.next_offset
                is_in_flight = path == files[-1] and left <= MAX_RECORD_BYTES
                if chunk.ending is not None and not _is_end(chunk.ending.stop, is_in_flight):
                    raise Damaged(path)
                self.ends[path] = begin + chunk.next_offset
                if not chunk.batch.num_rows:
                    continue
                events, adds = kernel.events_and_adds(chunk.batch, first_position)
                self._events.append(events)
                self._adds.append(adds)
                self._jobs.append(self._keys.numbers_of(*text_in(events.column("job_id"))))
                time_ns = int(numbers_in(events.column("logged_ns")).min())
                earliest = time_ns if earliest is None else min(earliest, time_ns)
        return earliest

    def span(self) -> tuple[int, int]:
        times = [numbers_in(each.column("logged_ns")) for each in self._events]
        if not times:
            return 0, 0
        return int(min(each.min() for each in times)), int(max(each.max() for each in times))

    def last(self, moment_ns: int, limit: int) -> list[int]:
        found: list[int] = []
        for events in reversed(self._events):
            known = numbers_in(events.column("logged_ns")) <= moment_ns
            places = numbers_in(events.column("position"))[known]
            found += places[: -(limit - len(found)) - 1 : -1].tolist()
            if len(found) == limit:
                break
        return found

    def at(self, moment_ns: int) -> ColumnMoment:
        events, adds, jobs = self._known_by(moment_ns)
        if events is None or adds is None:
            return ColumnMoment(len(self._keys), moment_ns, None, None, None, None)
        states = kernel.fold(events, adds, self._reread, (jobs, len(self._keys)))
        return ColumnMoment(len(self._keys), moment_ns, states, events, adds, jobs)

    def _known_by(self, moment_ns: int) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, Any]:
        """The rows of EVENTS and of ADDS that were logged by then, and the numbers of the jobs."""
        if not self._events:
            return None, None, None
        if len(self._events) > 1:  # joined once, until the log grows
            self._events, self._adds = [joined(self._events)], [joined(self._adds)]
            self._jobs = [np.concatenate(self._jobs)]
        events, adds, jobs = self._events[0], self._adds[0], self._jobs[0]
        mask: Bools = numbers_in(events.column("logged_ns")) <= moment_ns
        is_add: Bools = numbers_in(events.column("kind")) <= Command.SCHEDULE
        rows, added = int(mask.sum()), int((mask & is_add).sum())
        if not added:
            return None, None, None
        if mask[:rows].all():
            return events.slice(0, rows), adds.slice(0, added), frozen(jobs[:rows])
        return rows_where(events, mask), rows_where(adds, mask[is_add]), frozen(jobs[mask])

    def _reread(self, positions: Any) -> list[Record]:
        found = []
        for position in positions:
            data = read_from(self._files[position >> POSITION_SHIFT], position & IN_FILE)
            entry = CODEC.decode(data, 0)
            assert entry is not None
            found.append(entry.record)
        return found


def _is_end(stop: Stop, is_in_flight: bool) -> bool:
    return stop is Stop.EOF or (stop is Stop.TORN and is_in_flight)


class ColumnMoment:
    """Columns of the jobs of one moment, newest first. ``events`` None: there were none."""

    def __init__(
        self, all_jobs: int, moment_ns: int, states: kernel.States | None,
        events: pa.RecordBatch | None, adds: pa.RecordBatch | None, jobs: Any,
    ) -> None:  # fmt: skip
        self._all_jobs = all_jobs  # that have a number
        self.names: list[Any] = []
        if states is None or events is None or adds is None:
            self._created = self._job = self._name = self._state = np.zeros(0, np.int64)
            return
        rows, numbers = states.jobs, states.add_numbers
        created = numbers_in(adds.column("created_ns"))[numbers]
        has_time = valid_in(adds.column("time_ns"))[numbers]
        due = numbers_in(adds.column("time_ns"))[numbers]
        is_schedule = numbers_in(adds.column("kind"))[numbers] == Command.SCHEDULE
        begins = np.where(is_schedule & has_time, due, created)
        ttl_ms = np.minimum(numbers_in(adds.column("ttl_ms"))[numbers], _MOST_NS // NS_PER_MS)
        is_there = moment_ns < np.minimum(begins, _MOST_NS) + ttl_ms * NS_PER_MS
        state = _CODES[rows[:, kernel.STATE]]
        waits = (rows[:, kernel.STATE] == 0) & has_time & (moment_ns < due)
        state[waits] = WORDS.index(SCHEDULED)
        offsets, data = text_in(events.column("job_id"))
        ids = data[offsets[0] : offsets[-1]].reshape(-1, _ID_BYTES)[rows[:, kernel.ADD]]
        halves = ids.view(">u8").astype(np.uint64)
        order = np.lexsort((halves[:, 1], halves[:, 0], created))[::-1]
        order = order[is_there[order]]
        rows, numbers, self._ids = rows[order], numbers[order], ids[order]
        self._state, self._created = state[order], created[order]
        names = values_at(adds.column("name"), numbers).dictionary_encode()
        self.names, self._name = names.dictionary.to_pylist(), numbers_in(names.indices)
        positions = numbers_in(events.column("position"))
        self._job = jobs[rows[:, kernel.ADD]]
        self._attempts, self._fails = rows[:, kernel.ATTEMPTS], rows[:, kernel.FAILS]
        self._add_at, result = positions[rows[:, kernel.ADD]], rows[:, kernel.RESULT]
        self._result_at = np.where(result >= 0, positions[result], -1)

    def __len__(self) -> int:
        return len(self._created)

    def counts(self) -> Counts:
        kinds, counted = np.unique(self._name * len(WORDS) + self._state, return_counts=True)
        found: Counts = {}
        for kind, count in zip(kinds.tolist(), counted.tolist(), strict=True):
            name, state = divmod(kind, len(WORDS))
            found.setdefault(self.names[name], {})[WORDS[state]] = count
        return dict(sorted(found.items()))

    def find(
        self, queue: str, state: str, begin: int, prefix: str = ""
    ) -> Iterator[tuple[int, PastJob]]:
        wanted = self._has(prefix)[begin:]
        if queue:
            number = self.names.index(queue) if queue in self.names else _NOT_THERE
            wanted &= self._name[begin:] == number
        if state:
            wanted &= self._state[begin:] == WORDS.index(state)
        for place in np.flatnonzero(wanted):
            yield begin + int(place), self._seen(begin + int(place))

    def job(self, job_id: bytes) -> PastJob | None:
        wanted = np.frombuffer(job_id, np.uint8)
        if not len(self):
            return None
        places = np.flatnonzero((self._ids == wanted).all(axis=1))
        return self._seen(int(places[0])) if len(places) else None

    def changes(
        self, earlier: ColumnMoment, limit: int, prefix: str
    ) -> tuple[int, list[JobChange]]:
        was, now = earlier._places(self._all_jobs), self._places(self._all_jobs)
        states = earlier._states_at(was), self._states_at(now)
        jobs = np.flatnonzero(states[0] != states[1])
        is_own = _at(self._has(prefix), now[jobs]) & (now[jobs] >= 0)
        jobs = jobs[is_own | _at(earlier._has(prefix), was[jobs]) & (was[jobs] >= 0)]
        created = np.where(
            now[jobs] >= 0, _at(self._created, now[jobs]), _at(earlier._created, was[jobs])
        )
        newest = jobs[np.argsort(created, kind="stable")[::-1][:limit]]
        found = []
        for job in newest.tolist():
            old = earlier._seen(int(was[job])) if was[job] >= 0 else None
            new = self._seen(int(now[job])) if now[job] >= 0 else None
            shown = new or old
            assert shown is not None
            found.append(
                JobChange(
                    shown.created_ns, shown.job_id, shown.queue,
                    old.state if old else None, new.state if new else None,
                )
            )  # fmt: skip
        return len(jobs), found

    def _has(self, prefix: str) -> Bools:
        """Whether the name of the queue of each job begins with it."""
        if not prefix:
            return np.ones(len(self), np.bool_)
        return np.array([name.startswith(prefix) for name in self.names], np.bool_)[self._name]

    def _places(self, all_jobs: int) -> Ints:
        """By the number of a job, its place among these; -1: it is not there."""
        places = np.full(all_jobs, _NOT_THERE)
        places[self._job] = np.arange(len(self))
        return places

    def _states_at(self, places: Ints) -> Ints:
        return np.where(places >= 0, _at(self._state, places), _NOT_THERE)

    def _seen(self, place: int) -> PastJob:
        return PastJob(
            self._ids[place].tobytes(), self.names[self._name[place]], WORDS[self._state[place]],
            int(self._attempts[place]), int(self._fails[place]), int(self._created[place]),
            int(self._add_at[place]), int(self._result_at[place]),
        )  # fmt: skip


def _at(values: Any, places: Ints) -> Any:
    """The values at these places; anything where a place is -1."""
    return values[places] if len(values) else np.zeros(len(places), values.dtype)
