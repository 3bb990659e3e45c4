"""What became of the jobs of a command log: its first reading, if most of them were worked on.

    files --scan--> kinds, ids, times --KeyTable, fold_events--> a row of numbers for each id
                                                             \\-> ids that are left to the fold
    left_in(...)    of some rows of the second reading (bulk.py): the adds whose job is left, and
                    how far it has come

So the second reading looks at nothing but adds, and jobs that have ended are not loaded at all.
The kernel is that of the bulk fold (columnar/workq/fold.py). What it calls odd, and records with
numbers that the columns cannot hold, come to the server as odd ids. Takes 128 bytes an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from journeyman.columnar.arrays import Bools, as_bytes, frozen, gather
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import KeyTable
from journeyman.columnar.workq import fold, scan
from journeyman.engines.workq.job import COMPLETED, EXHAUSTED, FAILED, ID_BYTES, LEASED, PENDING
from journeyman.formats.framing import Buffer
from journeyman.formats.workq import Command, delay_ms_of
from journeyman.units import NS_PER_MS

REPLACED = "\ufffd"  # in a name: bytes that are not text
_SANE_NS = 2**62  # times beyond may have been cut, and sums with a TTL would not fit
_SANE_MS = 2**40
_FIRST_IDS = 1 << 16
_FILE, _START, _SIZE = range(3)
_NO_NUMBERS = frozen(np.zeros((0, 0), np.int64))


def are_sane(
    created: Ints, times: Ints, ttrs: Ints, ttls: Ints, attempts: Ints, fails: Ints
) -> Bools:
    """Adds whose numbers are what the record says, and can be added up."""
    sane: Bools = (
        _is_near(created)
        & _is_near(times)
        & (np.maximum.reduce((ttrs, ttls, attempts)) < _SANE_MS)
        & (fails < 2**62)
    )
    return sane


def _is_near(times: Ints) -> Bools:
    near: Bools = (times > -_SANE_NS) & (times < _SANE_NS)  # the lowest number has no absolute
    return near


@dataclass(frozen=True, slots=True)
class Moved:
    """How far some jobs have come."""

    _states: Ints
    _timeouts_ns: Ints
    _places: Ints  # of the results: file, start and size
    _views: list[memoryview]

    @property
    def stages(self) -> Ints:
        is_exhausted = self._states[:, fold.EXHAUSTED] == 1
        stages: Ints = np.where(is_exhausted, EXHAUSTED, self._states[:, fold.STATE])
        return stages

    def columns(self, rows: Ints) -> list[list[Any]]:
        """Of the jobs at these rows, what their entries have after the spec."""
        some, stages = self._states[rows], self.stages[rows]
        attempts, fails = some[:, fold.ATTEMPTS], some[:, fold.FAILS]
        started = np.where(attempts > 0, some[:, fold.STARTED_NS], 0)
        moments = np.where(stages == LEASED, started + some[:, fold.TTR_MS] * NS_PER_MS, 0)
        is_finished = np.isin(stages, (COMPLETED, FAILED, EXHAUSTED))
        moments = np.where(is_finished, some[:, fold.FINISHED_NS], moments).tolist()
        for row in np.flatnonzero(stages == PENDING).tolist():
            if delay_ms := delay_ms_of(int(some[row, fold.MAX_FAILS])):
                moments[row] = int(self._timeouts_ns[rows[row]]) + delay_ms * NS_PER_MS
        places = np.where((some[:, fold.RESULT] >= 0)[:, None], self._places[rows], 0)
        results = [
            bytes(self._views[file][start : start + size]) if is_there else None
            for (file, start, size), is_there in zip(
                places.tolist(), is_finished.tolist(), strict=True
            )
        ]
        numbers = [column.tolist() for column in (stages, attempts, fails, started)]
        return [*numbers, moments, results]


class FoldedLog:
    """``add`` takes the chunks of the first reading, ``left_in`` the rows of the second."""

    def __init__(self) -> None:
        self._ids = KeyTable()
        self._states = _unknown(_FIRST_IDS)
        self._timeouts_ns = np.zeros(_FIRST_IDS, np.int64)  # of the last timeout-attempt
        self._places = np.zeros((_FIRST_IDS, 3), np.int64)
        self._views: list[memoryview] = []
        self.records = 0
        self.latest_ns = 0  # creation of a job
        self.names: dict[str, None] = {}  # of queues

    def begin_file(self, view: Buffer) -> None:
        self._views.append(memoryview(view))

    def add(self, fields: Ints) -> None:
        """The records of a chunk of the file, as the scanning kernel takes them apart."""
        log = as_bytes(self._views[-1])
        kinds, logged = fields[scan.KIND], fields[scan.LOGGED_NS]
        jobs = self._number(log, fields)
        adds = np.flatnonzero(kinds <= Command.SCHEDULE)
        odd = jobs[~_is_near(logged)]
        fold.fold_events(
            frozen(jobs),
            frozen(kinds.astype(np.int8)),
            frozen(logged),
            _NO_NUMBERS,
            frozen(fields[scan.TTR_MS][adds]),
            frozen(fields[scan.ATTEMPTS][adds]),
            frozen(fields[scan.FAILS][adds]),
            self._states,
            self.records,
        )
        self._states[odd, fold.ODD] = fold.FROM_FILE
        self._look_at_adds(log, np.ascontiguousarray(fields[:, adds]), jobs[adds])
        timeouts = kinds == Command.TIMEOUT_ATTEMPT
        self._timeouts_ns[jobs[timeouts]] = logged[timeouts]
        ends = np.flatnonzero((kinds == Command.COMPLETE) | (kinds == Command.FAIL))
        counting = ends[self._states[jobs[ends], fold.RESULT] == self.records + ends]
        self._places[jobs[counting], _FILE] = len(self._views) - 1
        self._places[jobs[counting], _START] = fields[scan.BLOCK_START][counting]
        self._places[jobs[counting], _SIZE] = fields[scan.BLOCK_SIZE][counting]
        self.records += len(kinds)

    def _number(self, log: Any, fields: Ints) -> Ints:
        offsets, ids = gather(log, fields[scan.ID_START], np.full(fields.shape[1], ID_BYTES))
        jobs = self._ids.numbers_of(frozen(offsets), frozen(ids))
        room = len(self._states)
        if len(self._ids) > room:
            more = max(room, len(self._ids) - room)
            self._states = np.concatenate([self._states, _unknown(more)])
            self._timeouts_ns = np.concatenate([self._timeouts_ns, np.zeros(more, np.int64)])
            self._places = np.concatenate([self._places, np.zeros((more, 3), np.int64)])
        return jobs

    def _look_at_adds(self, log: Any, adds: Ints, jobs: Ints) -> None:
        table = KeyTable()
        offsets, text = gather(log, adds[scan.NAME_START], adds[scan.NAME_LENGTH])
        codes = table.numbers_of(frozen(offsets), frozen(text))
        is_text = np.ones(len(table), np.bool_)
        ends, text = table.keys()
        for code in range(len(table)):
            name = text[ends[code] : ends[code + 1]].tobytes().decode(errors="replace")
            is_text[code] = REPLACED not in name
            if is_text[code]:
                self.names[name] = None
        numbers = (scan.CREATED_NS, scan.TIME_NS, scan.TTR_MS, scan.TTL_MS)
        sane = is_text[codes] & are_sane(
            *(adds[each] for each in (*numbers, scan.ATTEMPTS, scan.FAILS))
        )
        self._states[jobs[~sane], fold.ODD] = fold.FROM_FILE
        self.latest_ns = max(self.latest_ns, int(adds[scan.CREATED_NS][sane].max(initial=0)))

    def finish(self) -> list[bytes]:
        """The first reading is over: the odd ids."""
        states = self._states[: len(self._ids)]
        is_odd = states[:, fold.ODD] != fold.ORDINARY
        left = np.flatnonzero(~is_odd & (states[:, fold.STATE] != fold.UNKNOWN))
        self._left = left[np.argsort(states[left, fold.ADD])]  # in the order of their adds
        self._adds = states[self._left, fold.ADD]
        ids = self._ids.keys()[1].reshape(-1, ID_BYTES)
        return [row.tobytes() for row in ids[np.flatnonzero(is_odd)]]

    def left_in(self, first_row: int, rows: int) -> tuple[Ints, Moved]:
        """Of these rows, counted through all files, the adds whose job is left, and those jobs."""
        begin, end = np.searchsorted(self._adds, (first_row, first_row + rows))
        jobs = self._left[begin:end]
        moved = Moved(self._states[jobs], self._timeouts_ns[jobs], self._places[jobs], self._views)
        return self._adds[begin:end] - first_row, moved


def _unknown(count: int) -> Ints:
    states = np.zeros((count, fold.WORDS), np.int64)
    states[:, fold.STATE] = fold.UNKNOWN
    return states
