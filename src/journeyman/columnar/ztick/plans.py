"""Records of a schedule -> one row a plan: a job, by number, and a time that it was planned for.

    records    log 0, job 7, planned for 12:00, position 5     the same, position 9
    plan       log 0, job 7, planned for 12:00, first at 5, last at 9

Open addressing with linear probing: a slot has the number of a plan plus one. Rows are folded into
their plan where it stands, so that a table is as large as what is different in it, however many
records there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Ints

# What a plan holds; ``latest`` orders records, and ``last_ns`` is that of the last one.
PLAN_COLUMNS: Final = ("log", "key", "ready_ns", "latest", "position", "created_ns", "last_ns")
_LOG, _KEY, _READY, _LATEST, _POSITION, _CREATED, _LAST = range(7)
_NO_TIME = -(2**63)
_FIRST_SLOTS = 1 << 12
_TOUCHED_ROWS = 128
_C1, _C2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)
_R32 = np.uint64(32)

Table = npt.NDArray[np.int64]


class PlanTable:
    """The plans of any number of batches."""

    def __init__(self) -> None:
        self._slots = np.zeros(_FIRST_SLOTS, np.int64)
        self._plans = np.empty((_FIRST_SLOTS // 2, len(PLAN_COLUMNS)), np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Mapping[str, Ints], wanted: npt.NDArray[np.bool_]) -> None:
        """Rows with the columns of a plan, as far as they are wanted."""
        columns = np.stack([rows[name] for name in PLAN_COLUMNS])
        done = 0
        while True:
            done, self._count, _ = _fold(
                columns, wanted, done, self._slots, self._plans, self._count
            )
            if done == len(wanted):
                return
            self._slots = np.zeros(2 * len(self._slots), np.int64)
            plans = np.empty((len(self._slots) // 2, len(PLAN_COLUMNS)), np.int64)
            plans[: self._count] = self._plans
            self._plans = plans
            _place_again(plans, self._count, self._slots)

    def columns(self) -> dict[str, Ints]:
        """A row for each plan."""
        return {
            name: np.ascontiguousarray(self._plans[: self._count, at])
            for at, name in enumerate(PLAN_COLUMNS)
        }


@kernel
def _slot_of(log: int, key: int, ready: int, slots: int) -> int:
    value = (np.uint64(log) ^ np.uint64(key) * _C1 ^ np.uint64(ready)) * _C2
    return int(np.int64((value ^ value >> _R32) & np.uint64(slots - 1)))


@kernel
def _touch(rows: Table, first: int, end: int, slots: Ints, plans: Table) -> int:
    """Have the slots and plans of these rows fetched, at the same time."""
    seen = 0
    for row in range(first, end):
        seen ^= slots[_slot_of(rows[_LOG, row], rows[_KEY, row], rows[_READY, row], slots.size)]
    for row in range(first, end):
        slot = _slot_of(rows[_LOG, row], rows[_KEY, row], rows[_READY, row], slots.size)
        seen ^= plans[max(slots[slot], 1) - 1, _LATEST]
    return seen


@kernel
def _fold(
    rows: Table,
    wanted: npt.NDArray[np.bool_],
    row: int,
    slots: Ints,
    plans: Table,
    count: int,
) -> tuple[int, int, int]:
    """Fold the rows from ``row`` on; the first row without room, how many plans there are, and
    what ``_touch`` saw, which keeps the compiler from leaving its loads out."""
    touch_at, seen = row, 0
    while row < wanted.size:
        if row >= touch_at:
            touch_at = min(row + _TOUCHED_ROWS, wanted.size)
            seen ^= _touch(rows, row, touch_at, slots, plans)
        if not wanted[row]:
            row += 1
            continue
        log, key, ready = rows[_LOG, row], rows[_KEY, row], rows[_READY, row]
        slot = _slot_of(log, key, ready, slots.size)
        while slots[slot] != 0:
            at = slots[slot] - 1
            if plans[at, _KEY] == key and plans[at, _READY] == ready and plans[at, _LOG] == log:
                break
            slot = (slot + 1) & (slots.size - 1)
        if slots[slot] == 0:
            if count == plans.shape[0]:
                return row, count, seen
            for column in range(rows.shape[0]):
                plans[count, column] = rows[column, row]
            count += 1
            slots[slot] = count
        else:
            if rows[_LATEST, row] > plans[at, _LATEST]:
                plans[at, _LATEST], plans[at, _LAST] = rows[_LATEST, row], rows[_LAST, row]
            plans[at, _POSITION] = min(plans[at, _POSITION], rows[_POSITION, row])
            created, known = rows[_CREATED, row], plans[at, _CREATED]
            if created != _NO_TIME and (known == _NO_TIME or created < known):
                plans[at, _CREATED] = created
        row += 1
    return row, count, seen


@kernel
def _place_again(plans: Table, count: int, slots: Ints) -> None:
    for at in range(count):
        slot = _slot_of(plans[at, _LOG], plans[at, _KEY], plans[at, _READY], slots.size)
        while slots[slot] != 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = at + 1
