"""The schedule's log in columns: its state at a moment is the last row of each job by then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from journeyman.columnar.arrays import column_of, numbers_in, rows_where, text_in, values_at
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import KeyTable
from journeyman.columnar.seals import is_proven
from journeyman.columnar.ztick import decode as columnar
from journeyman.formats.framing import Stop
from journeyman.formats.ztick import CODEC, Status
from journeyman.logs.ledger import FileTimes
from journeyman.servers.http.past.moments import Damaged

_JOB_SET, _JOB_REMOVED = 0, 2
_UNKNOWN = np.iinfo(np.int64).max  # no moment is that late
_WORDS = {int(status): status.word for status in Status}
_compute: Any = pc  # the stubs know neither masks nor options


class ColumnSchedule:
    def __init__(self) -> None:
        self._keys = KeyTable()
        self._span = (0, 0)
        self._jobs: list[Ints] = []
        self._times: list[Ints] = []
        self._kinds: list[Ints] = []
        self._statuses: list[Ints] = []
        self._executions: list[Ints] = []
        self._names: list[Any] = []

    def add(self, data: bytes, times: FileTimes) -> None:
        if not is_proven(CODEC, data):
            raise Damaged
        ends, known = np.array(times.ends), np.array([*times.times_ns, _or_unknown(times.whole_ns)])
        for chunk in columnar.iter_batches(data):
            if chunk.ending is not None and chunk.ending.stop is not Stop.EOF:
                raise Damaged
            kinds, offsets = (numbers_in(chunk.batch.column(each)) for each in ("kind", "offset"))
            own = known[np.searchsorted(ends, offsets, side="right")]
            self._widen(own[own != _UNKNOWN])
            is_job = (kinds == _JOB_SET) | (kinds == _JOB_REMOVED)
            batch = rows_where(chunk.batch, is_job)
            self._times.append(own[is_job])
            self._kinds.append(numbers_in(batch.column("kind")))
            self._statuses.append(numbers_in(batch.column("status")))
            self._executions.append(numbers_in(batch.column("execution_ns")))
            self._names.append(batch.column("identifier"))
            self._jobs.append(self._keys.numbers_of(*text_in(batch.column("identifier"))))

    def _widen(self, times: Ints) -> None:
        if len(times):
            first, last = int(times.min()), int(times.max())
            known = self._span if any(self._span) else (first, last)
            self._span = min(first, known[0]), max(last, known[1])

    def span(self) -> tuple[int, int]:
        return self._span

    def at(self, moment_ns: int) -> ColumnJobs:
        known = np.flatnonzero(self._joined(self._times) <= moment_ns)
        last = np.full(len(self._keys), -1)
        np.maximum.at(last, self._joined(self._jobs)[known], known)
        last = last[last >= 0]
        last = last[self._joined(self._kinds)[last] == _JOB_SET]
        names = values_at(pa.concat_arrays([pa.array([], pa.string()), *self._names]), last)
        executions = self._joined(self._executions)[last]
        order = numbers_in(
            _compute.sort_indices(
                pa.table({"at": column_of(executions), "name": names}),
                sort_keys=[("at", "ascending"), ("name", "ascending")],
            )
        )
        statuses = self._joined(self._statuses)[last]
        return ColumnJobs(values_at(names, order), statuses[order], executions[order])

    def _joined(self, parts: list[Ints]) -> Ints:
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0] if parts else np.zeros(0, np.int64)


class ColumnJobs:
    def __init__(self, names: Any, statuses: Ints, executions: Ints) -> None:
        self._names, self._statuses, self._executions = names, statuses, executions

    def page(
        self, prefix: str, status: str, text: str, descending: bool, begin: int, limit: int
    ) -> tuple[list[tuple[str, str, int]], int | None]:
        wanted = self._beginning_with(prefix)
        if text:
            wanted &= _mask(_compute.match_substring(self._names, text))
        if status:
            wanted &= self._statuses == Status[status.upper()]
        places = np.flatnonzero(wanted)
        if descending:
            places = places[::-1]
        end = begin + limit
        shown = [self._seen(int(place)) for place in places[begin:end]]
        return shown, end if end < len(places) else None

    def counts(self, prefix: str) -> dict[str, int]:
        counted = np.bincount(self._statuses[self._beginning_with(prefix)])
        return {_WORDS[code]: int(count) for code, count in enumerate(counted) if count}

    def job(self, identifier: str) -> tuple[str, str, int] | None:
        places = np.flatnonzero(_mask(_compute.equal(self._names, identifier)))
        return self._seen(int(places[0])) if len(places) else None

    def _beginning_with(self, prefix: str) -> Any:
        if not prefix:
            return np.ones(len(self._statuses), np.bool_)
        return _mask(_compute.starts_with(self._names, prefix))

    def _seen(self, place: int) -> tuple[str, str, int]:
        status = _WORDS[int(self._statuses[place])]
        return self._names[place].as_py(), status, int(self._executions[place])


def _mask(column: Any) -> Any:
    return np.array(column.to_numpy(zero_copy_only=False), np.bool_)


def _or_unknown(time_ns: int | None) -> int:
    return _UNKNOWN if time_ns is None else time_ns
