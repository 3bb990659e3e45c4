"""A log of the work queue in columns, and its state at a moment without an object for each job.

    bytes --scan--> numbers of records, ids --KeyTable--> numbers of jobs and of queues
                                                          once, and for what is appended
    rows up to a moment --fold--> rows of jobs --sort--> ColumnMoment

Records stand nearly always in the order of their times, so the rows up to a moment are a slice of
all rows, and nothing is copied. A job keeps its number, so two moments are compared by arrays of
states. Objects are made only of jobs that are shown.

The first answer counts, and libraries are a third of it: nothing here uses pyarrow.compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import Bools, as_bytes, frozen, gather, numbers
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import KeyTable
from journeyman.columnar.workq import decode as columnar
from journeyman.columnar.workq import fold as kernel
from journeyman.columnar.workq import scan
from journeyman.disk import open_own
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
# What is kept of an add, by its column in fold.ADDS.
_ADD_FIELDS = {
    "position": scan.OFFSET, "kind": scan.KIND, "ttr_ms": scan.TTR_MS, "ttl_ms": scan.TTL_MS,
    "priority": scan.PRIORITY, "max_attempts": scan.ATTEMPTS, "max_fails": scan.FAILS,
    "payload_size": scan.BLOCK_SIZE, "created_ns": scan.CREATED_NS, "time_ns": scan.TIME_NS,
    "has_time": scan.HAS_TIME,
}  # fmt: skip


class _Growing:
    """An array that grows at its end; its parts are joined when it is asked for."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, part: Any) -> None:
        self._parts.append(part)

    @property
    def whole(self) -> Any:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts, axis=-1)]
        return frozen(self._parts[0])


class ColumnLog:
    """Raises Damaged if a file does not end with a record; the last may end in one in flight."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self._files: list[str] = []
        self._keys, self._queues = KeyTable(), KeyTable()
        # Of each record; ids are all bytes end to end.
        self._ids, self._jobs, self._kinds = _Growing(), _Growing(), _Growing()
        self._positions, self._times = _Growing(), _Growing()
        self._adds, self._names = _Growing(), _Growing()  # of each add: _ADD_FIELDS, its queue

    def grow(self, files: list[str]) -> int | None:
        earliest: int | None = None
        self._files = files
        for number, path in enumerate(files):
            begin = self.ends.get(path, 0)
            with open(path, "rb", opener=open_own) as file:
                data = np.fromfile(file, np.uint8, offset=begin)
            first_position = (number << POSITION_SHIFT) + begin
            for chunk in columnar.iter_fields(data.data, 0 if begin else None):
                left = len(data) - chunk.next_offset
                is_in_flight = path == files[-1] and left <= MAX_RECORD_BYTES
                if chunk.ending is not None and not _is_end(chunk.ending.stop, is_in_flight):
                    raise Damaged(path)
                self.ends[path] = begin + chunk.next_offset
                fields = chunk.fields
                is_known = fields[scan.KIND] != scan.UNKNOWN_KIND
                if not is_known.all():  # the fold steps over them
                    fields = fields[:, is_known]
                if fields.size:
                    self._add(as_bytes(data.data), fields, first_position)
                    time_ns = int(fields[scan.LOGGED_NS].min())
                    earliest = time_ns if earliest is None else min(earliest, time_ns)
        return earliest

    def _add(self, log: Any, fields: Ints, first_position: int) -> None:
        fields[scan.OFFSET] += first_position
        kinds = fields[scan.KIND].astype(np.int8)
        offsets, ids = gather(log, fields[scan.ID_START], np.full(len(kinds), _ID_BYTES))
        self._ids.add(ids)
        self._jobs.add(self._keys.numbers_of(frozen(offsets), frozen(ids)))
        self._kinds.add(kinds)
        self._positions.add(fields[scan.OFFSET].copy())
        self._times.add(fields[scan.LOGGED_NS].copy())
        is_add = kinds <= Command.SCHEDULE
        adds = np.ascontiguousarray(fields[:, is_add])
        self._adds.add(adds[list(_ADD_FIELDS.values())])
        offsets, names = gather(log, adds[scan.NAME_START], adds[scan.NAME_LENGTH])
        self._names.add(self._queues.numbers_of(frozen(offsets), frozen(names)))

    def span(self) -> tuple[int, int]:
        if not len(self._keys):
            return 0, 0
        times = self._times.whole
        return int(times.min()), int(times.max())

    def last(self, moment_ns: int, limit: int) -> list[int]:
        if not len(self._keys):
            return []
        known = self._positions.whole[self._times.whole <= moment_ns]
        found: list[int] = known[: -limit - 1 : -1].tolist()
        return found

    def at(self, moment_ns: int) -> ColumnMoment:
        known = self._known_by(moment_ns) if len(self._keys) else None
        if known is None:
            return ColumnMoment(len(self._keys), moment_ns, None, None)
        states = kernel.fold(*known.batches(), self._reread, (known.jobs, len(self._keys)))
        return ColumnMoment(len(self._keys), moment_ns, known, states)

    def _known_by(self, moment_ns: int) -> _Known | None:
        """What was logged by then; None: no add."""
        mask: Bools = self._times.whole <= moment_ns
        is_add: Bools = self._kinds.whole <= Command.SCHEDULE
        rows, added = int(mask.sum()), int((mask & is_add).sum())
        if not added:
            return None
        own: Any = slice(rows)
        own_adds: Any = slice(added)
        if not mask[:rows].all():
            own, own_adds = mask, mask[is_add]
        return _Known(
            self._ids.whole.reshape(-1, _ID_BYTES)[own],
            frozen(self._jobs.whole[own]),
            frozen(self._kinds.whole[own]),
            frozen(self._positions.whole[own]),
            frozen(self._times.whole[own]),
            {name: row[own_adds] for name, row in zip(_ADD_FIELDS, self._adds.whole, strict=True)},
            self._names.whole[own_adds],
            [name.decode(errors="replace") for name in _texts(*self._queues.keys())],
        )

    def _reread(self, positions: Any) -> list[Record]:
        found = []
        for position in positions:
            path = self._files[position >> POSITION_SHIFT]
            entry = CODEC.decode(read_from(path, position & IN_FILE, MAX_RECORD_BYTES), 0)
            assert entry is not None
            found.append(entry.record)
        return found


@dataclass(frozen=True, slots=True)
class _Known:
    """Of each record, and of each add: see ColumnLog."""

    ids: Any
    jobs: Ints
    kinds: Ints
    positions: Ints
    times: Ints
    adds: dict[str, Ints]
    queues: Ints
    names: list[str]

    def batches(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """EVENTS and ADDS, as far as the fold looks at them."""
        ids = [None, pa.py_buffer(np.ascontiguousarray(self.ids).data)]
        events: dict[str, Any] = {
            "job_id": pa.Array.from_buffers(pa.binary(_ID_BYTES), len(self.ids), ids),
            "position": numbers(self.positions),
            "kind": numbers(self.kinds),
            "logged_ns": numbers(self.times),
        }
        adds: dict[str, Any] = {name: numbers(column) for name, column in self.adds.items()}
        adds["time_ns"] = numbers(self.adds["time_ns"], self.adds["has_time"] == 1)
        adds["name"] = pa.DictionaryArray.from_arrays(self.queues, self.names)
        return pa.RecordBatch.from_pydict(events), pa.RecordBatch.from_pydict(adds)


def _texts(offsets: Ints, data: Any) -> list[bytes]:
    ends = offsets.tolist()
    return [data[begin:end].tobytes() for begin, end in pairwise(ends)]


def _is_end(stop: Stop, is_in_flight: bool) -> bool:
    return stop is Stop.EOF or (stop is Stop.TORN and is_in_flight)


class ColumnMoment:
    """Columns of the jobs of one moment, newest first. ``known`` None: there were none."""

    def __init__(
        self, all_jobs: int, moment_ns: int, known: _Known | None, states: kernel.States | None
    ) -> None:
        self._all_jobs = all_jobs  # that have a number
        self.names: list[str] = []
        if known is None or states is None:
            self._created = self._job = self._name = self._state = np.zeros(0, np.int64)
            return
        rows, add = states.jobs, states.add_numbers
        created, due = known.adds["created_ns"][add], known.adds["time_ns"][add]
        has_time = known.adds["has_time"][add] == 1
        is_schedule = known.adds["kind"][add] == Command.SCHEDULE
        begins = np.where(is_schedule & has_time, due, created)
        ttl_ms = np.minimum(known.adds["ttl_ms"][add], _MOST_NS // NS_PER_MS)
        is_there = moment_ns < np.minimum(begins, _MOST_NS) + ttl_ms * NS_PER_MS
        state = _CODES[rows[:, kernel.STATE]]
        waits = (rows[:, kernel.STATE] == 0) & has_time & (moment_ns < due)
        state[waits] = WORDS.index(SCHEDULED)
        ids = known.ids[rows[:, kernel.ADD]]
        halves = ids.view(">u8").astype(np.uint64)
        order = np.lexsort((halves[:, 1], halves[:, 0], created))[::-1]
        order = order[is_there[order]]
        rows, self._ids = rows[order], ids[order]
        self._state, self._created = state[order], created[order]
        # Names that are not text may read the same.
        self.names = list(dict.fromkeys(known.names))
        places = {name: place for place, name in enumerate(self.names)}
        self._name = np.array([places[name] for name in known.names])[known.queues[add[order]]]
        self._job = known.jobs[rows[:, kernel.ADD]]
        self._attempts, self._fails = rows[:, kernel.ATTEMPTS], rows[:, kernel.FAILS]
        self._add_at, result = known.positions[rows[:, kernel.ADD]], rows[:, kernel.RESULT]
        self._result_at = np.where(result >= 0, known.positions[result], -1)

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
