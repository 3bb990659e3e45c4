"""The kernel behind workq attempts: walks the records of many jobs, writes down every attempt.

    records of one log, sorted by job id and position            what is written down
    a  add                                                       row: waits from here
    a  start-attempt                                             row: leased
    a  timeout-attempt                                           row: timed-out; next row: waits
    b  start-attempt    (its add stands behind it)
    b  add                                                       row: leased

It follows the fold of docs/folds.md in every case, odd ones too; a property test compares the two
record for record. A row is one wait of a job and, if it came to that, the lease behind it:

    WAITING -> LEASED -> COMPLETED | FAILED | TIMED_OUT | DELETED | EXPIRED | REPLACED
            -> COMPLETED ... without a lease

Besides rows, each record gets the add of the job that needs it (OWNER, -1 if none: its bytes are
dead) and what is odd about it (ANOMALY).

All times are nanoseconds since 1970; NO_TIME where there is none.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from journeyman.columnar.kernels.jit import kernel
from journeyman.units import NS_PER_MS

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Codes: TypeAlias = npt.NDArray[np.int8]

NO_TIME = -(2**63)
_MAX_NS = 2**63 - 1

# Fields of a row. ADD_ROW is the index of the job's add, -1 when the log has none.
ADD_ROW, BEGAN_ROW, LIFE, ATTEMPT, READY_NS, STARTED_NS, ENDED_NS, OUTCOME = range(8)
RETRIED, EXHAUSTED = 8, 9
ROW_FIELDS = 10

OUTCOMES = (
    *("waiting", "leased", "completed", "failed", "timed-out", "deleted", "expired", "replaced"),
)
_WAITING, _LEASED, _COMPLETED, _FAILED, _TIMED_OUT, _DELETED, _EXPIRED, _REPLACED = range(8)

ANOMALIES = (
    *("", "start-after-finish", "second-result", "start-over-limit", "start-while-leased"),
    *("replaced-job", "repeated-add", "result-after-exhaustion", "deleted-before-add", "orphan"),
)
_AFTER_FINISH, _SECOND_RESULT, _OVER_LIMIT, _WHILE_LEASED = 1, 2, 3, 4
_REPLACED_JOB, _REPEATED_ADD, _AFTER_EXHAUSTION, _DELETED_BEFORE_ADD = 5, 6, 7, 8
_ORPHAN = 9  # of a job whose add is nowhere in the log

# What is known of a record; 0 or NO_TIME where only an add has it. IDENTITY is equal for adds that
# are the same in all but the logged time.
KIND, LOGGED_NS, CREATED_NS, DUE_NS, EXPIRES_NS, TTR_MS = range(6)
MAX_ATTEMPTS, MAX_FAILS, IDENTITY = range(6, 9)
RECORD_FIELDS = 9

_ADD, _SCHEDULE, _COMPLETE, _FAIL, _DELETE, _EXPIRE, _START, _TIMEOUT = range(1, 9)

# The state of the job that is walked over.
_MODE, _LIVES, _JOB, _STATE, _ATTEMPTS, _FAILS, _BEGUN, _FINISHED, _SPENT, _OWED = range(10)
_ROW, _ROWS, _FLOOR, _ORPHANS_FROM, _ORPHAN_DELETE, _ACCOUNT_FROM = range(10, 16)
_STATE_FIELDS = 16
_NOTHING, _ORPHANED, _EXISTS = 0, 1, 2  # modes
_NEW, _DONE, _PENDING, _HELD = 0, 1, 2, 3  # states; done is completed or failed


@kernel
def walk(first: Bools, records: Ints, rows: Ints, owner: Ints, anomaly: Codes) -> int:
    """Fill rows, owner and anomaly; how many rows there are, no more than records.

    ``first`` marks the first record of each job; fields of a record and of a row stand in a column.
    """
    state = np.zeros(_STATE_FIELDS, np.int64)
    size = len(first)
    for at in range(size):
        if first[at]:
            if at > 0:
                _leave(records, rows, owner, anomaly, state, at)
            _enter(state, at)
        _record(records, rows, anomaly, state, at)
    if size > 0:
        _leave(records, rows, owner, anomaly, state, size)
    return int(state[_ROWS])


@kernel
def _enter(state: Ints, at: int) -> None:
    """The first record of a job stands at ``at``."""
    rows = state[_ROWS]
    state[:] = 0
    state[_ROWS] = rows
    state[_FLOOR] = NO_TIME
    state[_ORPHANS_FROM] = at
    state[_ORPHAN_DELETE] = -1
    state[_ACCOUNT_FROM] = at


@kernel
def _leave(records: Ints, rows: Ints, owner: Ints, anomaly: Codes, state: Ints, end: int) -> None:
    """All records of a job were seen."""
    if state[_MODE] == _ORPHANED:
        _give_up_orphans(records, rows, state, end, _LEASED, NO_TIME)
        if state[_ORPHAN_DELETE] >= 0:
            anomaly[state[_ORPHAN_DELETE]] = _ORPHAN
        for at in range(state[_ORPHANS_FROM], end):
            if records[KIND, at] > _SCHEDULE:
                anomaly[at] = _ORPHAN
    elif state[_MODE] == _EXISTS:
        owner[state[_ACCOUNT_FROM] : end] = state[_JOB]


@kernel
def _record(records: Ints, rows: Ints, anomaly: Codes, state: Ints, at: int) -> None:
    kind = records[KIND, at]
    if kind <= _SCHEDULE:
        _add(records, rows, anomaly, state, at)
    elif state[_MODE] == _EXISTS:
        if kind in (_DELETE, _EXPIRE):
            if state[_STATE] != _DONE:
                outcome = _DELETED if kind == _DELETE else _EXPIRED
                _close(rows, state, outcome, records[LOGGED_NS, at])
            state[_MODE] = _NOTHING
            state[_ACCOUNT_FROM] = at + 1
        else:
            _event(records, rows, anomaly, state, at)
    else:
        _orphan(records, rows, state, at)


@kernel
def _orphan(records: Ints, rows: Ints, state: Ints, at: int) -> None:
    kind, logged_ns = records[KIND, at], records[LOGGED_NS, at]
    if state[_MODE] == _NOTHING:
        state[_ORPHANS_FROM] = at
        state[_ORPHAN_DELETE] = -1
        state[_MODE] = _ORPHANED
    if kind == _DELETE:
        _give_up_orphans(records, rows, state, at, _DELETED, logged_ns)
        state[_ORPHAN_DELETE] = at
        state[_ORPHANS_FROM] = at + 1
    elif kind == _EXPIRE:
        _give_up_orphans(records, rows, state, at, _EXPIRED, logged_ns)
        state[_ORPHANS_FROM] = at + 1
        if state[_ORPHAN_DELETE] < 0:
            state[_MODE] = _NOTHING
            state[_ACCOUNT_FROM] = at + 1


@kernel
def _give_up_orphans(
    records: Ints, rows: Ints, state: Ints, end: int, outcome: int, ended_ns: int
) -> None:
    """The add of these records does not come: rows of a job that nobody knows."""
    row, attempt = -1, 0
    for at in range(state[_ORPHANS_FROM], end):
        kind, logged_ns = records[KIND, at], records[LOGGED_NS, at]
        if kind <= _SCHEDULE or kind == _DELETE:
            continue
        if row >= 0:  # each of these ends the lease before it
            rows[ENDED_NS, row] = logged_ns
            rows[OUTCOME, row] = _TIMED_OUT
        if kind == _START:
            attempt += 1
            row = _open(rows, state, -1, at, 0, attempt, NO_TIME)
            rows[STARTED_NS, row] = logged_ns
            rows[OUTCOME, row] = _LEASED
            continue
        if kind != _TIMEOUT:
            if row < 0:
                attempt += 1
                row = _open(rows, state, -1, at, 0, attempt, NO_TIME)
            rows[ENDED_NS, row] = logged_ns
            rows[OUTCOME, row] = _COMPLETED if kind == _COMPLETE else _FAILED
        row = -1
    if row >= 0:
        rows[ENDED_NS, row] = ended_ns
        rows[OUTCOME, row] = outcome


@kernel
def _add(records: Ints, rows: Ints, anomaly: Codes, state: Ints, at: int) -> None:
    if state[_MODE] == _ORPHANED:
        _adopt(records, rows, anomaly, state, at)
        return
    if state[_MODE] == _EXISTS:
        job = state[_JOB]
        if records[IDENTITY, at] == records[IDENTITY, job]:
            anomaly[at] = _REPEATED_ADD
            return
        lived = records[CREATED_NS, at] < records[EXPIRES_NS, job]
        if lived:
            anomaly[at] = _REPLACED_JOB
        if state[_STATE] != _DONE:
            if lived:
                _close(rows, state, _REPLACED, records[CREATED_NS, at])
            else:
                _close(rows, state, _EXPIRED, records[EXPIRES_NS, job])
        state[_ACCOUNT_FROM] = at
    _begin(records, rows, state, at)


@kernel
def _begin(records: Ints, rows: Ints, state: Ints, at: int) -> None:
    """A life begins with the add at ``at``."""
    state[_MODE] = _EXISTS
    state[_LIVES] += 1
    state[_JOB] = at
    state[_STATE] = _NEW
    state[_ATTEMPTS] = state[_FAILS] = state[_SPENT] = state[_OWED] = 0
    state[_BEGUN] = state[_FINISHED] = NO_TIME
    ready_ns = max(records[CREATED_NS, at], records[DUE_NS, at])
    state[_ROW] = _open(rows, state, at, at, state[_LIVES], 1, ready_ns)


@kernel
def _adopt(records: Ints, rows: Ints, anomaly: Codes, state: Ints, at: int) -> None:
    """The add of a job whose later records stand before it in the log."""
    created_ns, logged_ns = records[CREATED_NS, at], records[LOGGED_NS, at]
    begin, dead = state[_ORPHANS_FROM], state[_ORPHAN_DELETE]
    if dead >= 0 and created_ns < records[LOGGED_NS, dead]:
        anomaly[at] = _DELETED_BEFORE_ADD
        account = state[_ACCOUNT_FROM]
        _begin(records, rows, state, at)
        _close(rows, state, _DELETED, records[LOGGED_NS, dead])
        left = 0
        for orphan in range(begin, at):
            left += records[KIND, orphan] > _SCHEDULE
        state[_MODE] = _ORPHANED if left > 0 else _NOTHING
        state[_ORPHAN_DELETE] = -1
        state[_ACCOUNT_FROM] = account if left > 0 else at + 1
        return
    _begin(records, rows, state, at)
    state[_FLOOR] = logged_ns  # nothing of a job is older than its add
    for orphan in range(begin, at):
        if records[KIND, orphan] > _SCHEDULE and records[LOGGED_NS, orphan] >= created_ns:
            _event(records, rows, anomaly, state, orphan)
    state[_FLOOR] = NO_TIME
    if state[_BEGUN] != NO_TIME:
        state[_BEGUN] = max(state[_BEGUN], logged_ns)
    if state[_FINISHED] != NO_TIME:
        state[_FINISHED] = max(state[_FINISHED], logged_ns)


@kernel
def _event(records: Ints, rows: Ints, anomaly: Codes, state: Ints, at: int) -> None:
    """start-attempt, timeout-attempt, complete or fail of a job that exists."""
    kind = records[KIND, at]
    if kind == _START:
        _start(records, rows, anomaly, state, at)
    elif kind == _TIMEOUT:
        _time_out(records, rows, state, at)
    elif state[_STATE] == _DONE and state[_SPENT] == 0:
        anomaly[at] = _SECOND_RESULT
    else:
        if state[_SPENT] == 1:
            anomaly[at] = _AFTER_EXHAUSTION
            rows[EXHAUSTED, state[_ROW]] = 0
        state[_SPENT] = state[_OWED] = 0
        state[_STATE] = _DONE
        state[_FINISHED] = records[LOGGED_NS, at]
        outcome = _COMPLETED if kind == _COMPLETE else _FAILED
        _close(rows, state, outcome, records[LOGGED_NS, at])


@kernel
def _start(records: Ints, rows: Ints, anomaly: Codes, state: Ints, at: int) -> None:
    logged_ns, job = records[LOGGED_NS, at], state[_JOB]
    if state[_STATE] == _DONE:
        anomaly[at] = _AFTER_FINISH
        return
    limit = records[MAX_ATTEMPTS, job]
    if 0 < limit <= state[_ATTEMPTS]:
        anomaly[at] = _OVER_LIMIT
    if state[_STATE] == _HELD:
        anomaly[at] = _WHILE_LEASED
        if records[TTR_MS, job] > 0:
            state[_OWED] += 1
        _close(rows, state, _TIMED_OUT, logged_ns)
        attempt = state[_ATTEMPTS] + 1
        state[_ROW] = _open(rows, state, job, at, state[_LIVES], attempt, NO_TIME)
    state[_STATE] = _HELD
    state[_ATTEMPTS] += 1
    state[_BEGUN] = logged_ns
    rows[STARTED_NS, state[_ROW]] = max(logged_ns, state[_FLOOR])
    rows[OUTCOME, state[_ROW]] = _LEASED


@kernel
def _time_out(records: Ints, rows: Ints, state: Ints, at: int) -> None:
    logged_ns, job = records[LOGGED_NS, at], state[_JOB]
    if state[_STATE] == _HELD:
        if state[_OWED] > 0 and logged_ns < _deadline_ns(state[_BEGUN], records[TTR_MS, job]):
            state[_OWED] -= 1
            return
        state[_OWED] = 0
        _close(rows, state, _TIMED_OUT, logged_ns)
        if 0 < records[MAX_ATTEMPTS, job] <= state[_ATTEMPTS]:
            state[_STATE] = _DONE
            state[_SPENT] = 1
            state[_FINISHED] = logged_ns
            rows[EXHAUSTED, state[_ROW]] = 1
        else:
            _wait_again(rows, state, at, logged_ns)
    elif state[_STATE] != _DONE:
        state[_STATE] = _PENDING
    elif (
        rows[OUTCOME, state[_ROW]] == _FAILED
        and state[_SPENT] == 0
        and state[_FINISHED] == logged_ns
        and state[_FAILS] + 1 < records[MAX_FAILS, job]
    ):
        rows[RETRIED, state[_ROW]] = 1
        state[_FAILS] += 1
        state[_FINISHED] = NO_TIME
        _wait_again(rows, state, at, logged_ns)


@kernel
def _deadline_ns(begun_ns: int, ttr_ms: int) -> int:
    if ttr_ms >= _MAX_NS // NS_PER_MS or begun_ns > _MAX_NS - ttr_ms * NS_PER_MS:
        return _MAX_NS
    return begun_ns + ttr_ms * NS_PER_MS


@kernel
def _wait_again(rows: Ints, state: Ints, at: int, ready_ns: int) -> None:
    state[_STATE] = _PENDING
    ready_ns = max(ready_ns, state[_FLOOR])
    attempt = state[_ATTEMPTS] + 1
    state[_ROW] = _open(rows, state, state[_JOB], at, state[_LIVES], attempt, ready_ns)


@kernel
def _open(
    rows: Ints, state: Ints, job: int, began: int, life: int, attempt: int, ready_ns: int
) -> int:
    row = state[_ROWS]
    state[_ROWS] += 1
    rows[:, row] = 0
    rows[ADD_ROW, row] = job
    rows[BEGAN_ROW, row] = began
    rows[LIFE, row] = life
    rows[ATTEMPT, row] = attempt
    rows[READY_NS, row] = ready_ns
    rows[STARTED_NS, row] = rows[ENDED_NS, row] = NO_TIME
    rows[OUTCOME, row] = _WAITING
    return int(row)


@kernel
def _close(rows: Ints, state: Ints, outcome: int, ended_ns: int) -> None:
    row = state[_ROW]
    rows[OUTCOME, row] = outcome
    rows[ENDED_NS, row] = max(ended_ns, state[_FLOOR]) if ended_ns != NO_TIME else NO_TIME
