"""Every attempt of every job: walks the records of many jobs and writes a row for each attempt.

    records of one log, sorted by job id and position            what is written down
    a  add                                                       row: waits from here
    a  start-attempt                                             row: leased
    a  timeout-attempt                                           row: timed-out; next row: waits
    b  start-attempt    (its add comes later)
    b  add                                                       row: leased

What a record does to a job is decided by ``fold.change``; here its answer becomes rows. Added to it
are the rules for records without an add, which ``fold_events`` leaves to the reference fold. A
property test compares the walk with that fold, record by record. A row is one wait of a job and,
if it came to that, the lease after it:

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

from journeyman.columnar.kernels import kernel
from journeyman.columnar.workq import fold

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Codes: TypeAlias = npt.NDArray[np.int8]

NO_TIME = -(2**63)

# Fields of a row. ADD_ROW is the index of the job's add, -1 when the log has none.
ADD_ROW, BEGAN_ROW, LIFE, ATTEMPT, READY_NS, STARTED_NS, ENDED_NS, OUTCOME = range(8)
RETRIED, EXHAUSTED = 8, 9
FAILED_ROW = 10  # the record with which the attempt failed, -1 if it did not
ENDS_NS = 11  # when the TTL ends; NEVER while the job is parked, NO_TIME without an add
ROW_FIELDS = 12
NEVER = fold.NEVER

OUTCOMES = (
    *("waiting", "leased", "completed", "failed", "timed-out", "deleted", "expired", "replaced"),
    "parked",
)
_WAITING, _LEASED, _COMPLETED, _FAILED, _TIMED_OUT, _DELETED, _EXPIRED, _REPLACED = range(8)
_PARKED = 8

ANOMALIES = (
    *("", "start-after-finish", "second-result", "start-over-limit", "start-while-leased"),
    *("replaced-job", "repeated-add", "result-after-exhaustion", "deleted-before-add", "orphan"),
)
_AFTER_FINISH, _SECOND_RESULT, _OVER_LIMIT, _WHILE_LEASED = 1, 2, 3, 4
_REPLACED_JOB, _REPEATED_ADD, _AFTER_EXHAUSTION, _DELETED_BEFORE_ADD = 5, 6, 7, 8
_ORPHAN = 9  # its job has no add in the log

# The fields of a record; 0 or NO_TIME where only an add has one. IDENTITY is equal for adds that
# are the same in all but the logged time.
KIND, LOGGED_NS, CREATED_NS, DUE_NS, EXPIRES_NS, TTR_MS = range(6)
TTL_MS, MAX_ATTEMPTS, MAX_FAILS, IDENTITY = range(6, 10)
RECORD_FIELDS = 10

_ADD, _SCHEDULE, _COMPLETE, _FAIL, _DELETE, _EXPIRE, _START, _TIMEOUT = range(1, 9)
_PARK, _WAKE = 10, 11

# Where the walk is, beside the job itself, which is a row of fold.py.
_MODE, _LIVES, _ROW, _ROWS, _FLOOR, _ORPHANS_FROM, _ORPHAN_DELETE, _ACCOUNT_FROM = range(8)
_WALK_FIELDS = 8
_NOTHING, _ORPHANED, _EXISTS = 0, 1, 2  # modes


@kernel
def walk_attempts(first: Bools, records: Ints, rows: Ints, owner: Ints, anomaly: Codes) -> int:
    """Fill rows, owner and anomaly; how many rows there are, no more than records.

    ``first`` marks the first record of each job; fields of a record and of a row stand in a column.
    """
    walk = np.zeros(_WALK_FIELDS, np.int64)
    job = np.zeros(fold.FIELDS, np.int64)
    size = len(first)
    for at in range(size):
        if first[at]:
            if at > 0:
                _leave(records, rows, owner, anomaly, walk, job, at)
            _enter(walk, at)
        _record(records, rows, anomaly, walk, job, at)
    if size > 0:
        _leave(records, rows, owner, anomaly, walk, job, size)
    return int(walk[_ROWS])


@kernel
def _enter(walk: Ints, at: int) -> None:
    """The first record of a job stands at ``at``."""
    rows = walk[_ROWS]
    walk[:] = 0
    walk[_ROWS] = rows
    walk[_FLOOR] = NO_TIME
    walk[_ORPHANS_FROM] = at
    walk[_ORPHAN_DELETE] = -1
    walk[_ACCOUNT_FROM] = at


@kernel
def _leave(
    records: Ints, rows: Ints, owner: Ints, anomaly: Codes, walk: Ints, job: Ints, end: int
) -> None:
    """All records of a job were seen."""
    if walk[_MODE] == _ORPHANED:
        _give_up_orphans(records, rows, walk, end, _LEASED, NO_TIME)
        if walk[_ORPHAN_DELETE] >= 0:
            anomaly[walk[_ORPHAN_DELETE]] = _ORPHAN
        for at in range(walk[_ORPHANS_FROM], end):
            if records[KIND, at] > _SCHEDULE:
                anomaly[at] = _ORPHAN
    elif walk[_MODE] == _EXISTS:
        owner[walk[_ACCOUNT_FROM] : end] = job[fold.ADD]


@kernel
def _record(records: Ints, rows: Ints, anomaly: Codes, walk: Ints, job: Ints, at: int) -> None:
    kind = records[KIND, at]
    if kind <= _SCHEDULE:
        _add(records, rows, anomaly, walk, job, at)
    elif walk[_MODE] == _EXISTS:
        if kind in (_DELETE, _EXPIRE):
            if job[fold.FINISHED] < 0:
                outcome = _DELETED if kind == _DELETE else _EXPIRED
                _close(rows, walk, outcome, records[LOGGED_NS, at])
            walk[_MODE] = _NOTHING
            walk[_ACCOUNT_FROM] = at + 1
        else:
            _event(records, rows, anomaly, walk, job, at)
    else:
        _orphan(records, rows, walk, at)


@kernel
def _orphan(records: Ints, rows: Ints, walk: Ints, at: int) -> None:
    kind, logged_ns = records[KIND, at], records[LOGGED_NS, at]
    if walk[_MODE] == _NOTHING:
        walk[_ORPHANS_FROM] = at
        walk[_ORPHAN_DELETE] = -1
        walk[_MODE] = _ORPHANED
    if kind == _DELETE:
        _give_up_orphans(records, rows, walk, at, _DELETED, logged_ns)
        walk[_ORPHAN_DELETE] = at
        walk[_ORPHANS_FROM] = at + 1
    elif kind == _EXPIRE:
        _give_up_orphans(records, rows, walk, at, _EXPIRED, logged_ns)
        walk[_ORPHANS_FROM] = at + 1
        if walk[_ORPHAN_DELETE] < 0:
            walk[_MODE] = _NOTHING
            walk[_ACCOUNT_FROM] = at + 1


@kernel
def _give_up_orphans(
    records: Ints, rows: Ints, walk: Ints, end: int, outcome: int, ended_ns: int
) -> None:
    """The add of these records does not come: rows of a job that nobody knows."""
    row, attempt = -1, 0
    for at in range(walk[_ORPHANS_FROM], end):
        kind, logged_ns = records[KIND, at], records[LOGGED_NS, at]
        if kind <= _SCHEDULE or kind == _DELETE:
            continue
        if row >= 0:  # each of these ends the lease before it
            rows[ENDED_NS, row] = logged_ns
            rows[OUTCOME, row] = _PARKED if kind == _PARK else _TIMED_OUT
        if kind == _START:
            attempt += 1
            row = _open(rows, walk, -1, at, 0, attempt, NO_TIME)
            rows[STARTED_NS, row] = logged_ns
            rows[OUTCOME, row] = _LEASED
            continue
        if kind in (_COMPLETE, _FAIL):
            if row < 0:
                attempt += 1
                row = _open(rows, walk, -1, at, 0, attempt, NO_TIME)
            rows[ENDED_NS, row] = logged_ns
            rows[OUTCOME, row] = _COMPLETED if kind == _COMPLETE else _FAILED
            if kind == _FAIL:
                rows[FAILED_ROW, row] = at
        row = -1
    if row >= 0:
        rows[ENDED_NS, row] = ended_ns
        rows[OUTCOME, row] = outcome


@kernel
def _add(records: Ints, rows: Ints, anomaly: Codes, walk: Ints, job: Ints, at: int) -> None:
    if walk[_MODE] == _ORPHANED:
        _adopt(records, rows, anomaly, walk, job, at)
        return
    if walk[_MODE] == _EXISTS:
        if records[IDENTITY, at] == records[IDENTITY, job[fold.ADD]]:
            anomaly[at] = _REPEATED_ADD
            return
        ends_ns = _ends_ns(records, job)
        lived = records[CREATED_NS, at] < ends_ns
        if lived:
            anomaly[at] = _REPLACED_JOB
        if job[fold.FINISHED] < 0:
            if lived:
                _close(rows, walk, _REPLACED, records[CREATED_NS, at])
            else:
                _close(rows, walk, _EXPIRED, ends_ns)
        walk[_ACCOUNT_FROM] = at
    _begin(records, rows, walk, job, at)


@kernel
def _begin(records: Ints, rows: Ints, walk: Ints, job: Ints, at: int) -> None:
    """A life begins with the add at ``at``."""
    ttr_ms, max_attempts = records[TTR_MS, at], records[MAX_ATTEMPTS, at]
    fold.begin(job, at, at, ttr_ms, max_attempts, records[MAX_FAILS, at])
    walk[_MODE] = _EXISTS
    walk[_LIVES] += 1
    ready_ns = max(records[CREATED_NS, at], records[DUE_NS, at])
    row = _open(rows, walk, at, at, walk[_LIVES], 1, ready_ns)
    rows[ENDS_NS, row] = records[EXPIRES_NS, at]


@kernel
def _adopt(records: Ints, rows: Ints, anomaly: Codes, walk: Ints, job: Ints, at: int) -> None:
    """The add of a job whose later records stand before it in the log."""
    created_ns, logged_ns = records[CREATED_NS, at], records[LOGGED_NS, at]
    begin, dead = walk[_ORPHANS_FROM], walk[_ORPHAN_DELETE]
    if dead >= 0 and created_ns < records[LOGGED_NS, dead]:
        anomaly[at] = _DELETED_BEFORE_ADD
        account = walk[_ACCOUNT_FROM]
        _begin(records, rows, walk, job, at)
        _close(rows, walk, _DELETED, records[LOGGED_NS, dead])
        left = 0
        for orphan in range(begin, at):
            left += records[KIND, orphan] > _SCHEDULE
        walk[_MODE] = _ORPHANED if left > 0 else _NOTHING
        walk[_ORPHAN_DELETE] = -1
        walk[_ACCOUNT_FROM] = account if left > 0 else at + 1
        return
    _begin(records, rows, walk, job, at)
    walk[_FLOOR] = logged_ns  # nothing of a job is older than its add
    for orphan in range(begin, at):
        if records[KIND, orphan] > _SCHEDULE and records[LOGGED_NS, orphan] >= created_ns:
            _event(records, rows, anomaly, walk, job, orphan)
    walk[_FLOOR] = NO_TIME
    job[fold.STARTED_NS] = max(job[fold.STARTED_NS], logged_ns)
    job[fold.FINISHED_NS] = max(job[fold.FINISHED_NS], logged_ns)
    job[fold.BEGINS_NS] = max(job[fold.BEGINS_NS], logged_ns)
    rows[ENDS_NS, walk[_ROW]] = _ends_ns(records, job)


@kernel
def _event(records: Ints, rows: Ints, anomaly: Codes, walk: Ints, job: Ints, at: int) -> None:
    """Take any record but adds, deletes and expires of a job that exists."""
    kind, add, logged_ns = records[KIND, at], job[fold.ADD], records[LOGGED_NS, at]
    did = fold.change(job, kind, at, logged_ns)
    if did == fold.LEASED or did == fold.LEASED_AGAIN:
        if 0 < job[fold.MAX_ATTEMPTS] < job[fold.ATTEMPTS]:
            anomaly[at] = _OVER_LIMIT
        if did == fold.LEASED_AGAIN:
            anomaly[at] = _WHILE_LEASED
            _close(rows, walk, _TIMED_OUT, logged_ns)
            _open(rows, walk, add, at, walk[_LIVES], job[fold.ATTEMPTS], NO_TIME)
        rows[STARTED_NS, walk[_ROW]] = max(logged_ns, walk[_FLOOR])
        rows[OUTCOME, walk[_ROW]] = _LEASED
    elif did in (fold.PARKED_LEASED, fold.PARKED_QUEUED, fold.WOKEN):
        _park(rows, walk, job, at, did, logged_ns)
    elif did == fold.TIMED_OUT:
        _close(rows, walk, _TIMED_OUT, logged_ns)
        _wait_again(rows, walk, job, at, logged_ns)
    elif did == fold.RAN_OUT:
        _close(rows, walk, _TIMED_OUT, logged_ns)
        rows[EXHAUSTED, walk[_ROW]] = 1
    elif did == fold.RETRIED:
        rows[RETRIED, walk[_ROW]] = 1
        _wait_again(rows, walk, job, at, logged_ns)
    elif did == fold.FINISHED_JOB or did == fold.FINISHED_AFTER_ALL:
        if did == fold.FINISHED_AFTER_ALL:
            anomaly[at] = _AFTER_EXHAUSTION
            rows[EXHAUSTED, walk[_ROW]] = 0
        _close(rows, walk, _COMPLETED if kind == _COMPLETE else _FAILED, logged_ns)
        rows[FAILED_ROW, walk[_ROW]] = at if kind == _FAIL else -1
    elif did == fold.NOTHING and kind in (_START, _COMPLETE, _FAIL):
        anomaly[at] = _AFTER_FINISH if kind == _START else _SECOND_RESULT
    rows[ENDS_NS, walk[_ROW]] = _ends_ns(records, job)


@kernel
def _ends_ns(records: Ints, job: Ints) -> int:
    """When the TTL of the job ends."""
    add = job[fold.ADD]
    if job[fold.PARKED] >= 0:
        return NEVER
    if job[fold.BEGINS] < 0:
        return int(records[EXPIRES_NS, add])
    return fold.after_ms(job[fold.BEGINS_NS], records[TTL_MS, add])


@kernel
def _park(rows: Ints, walk: Ints, job: Ints, at: int, did: int, logged_ns: int) -> None:
    """A park or a wake: a parked job has a row that waits and is not ready until the wake."""
    if did == fold.WOKEN:
        rows[READY_NS, walk[_ROW]] = max(logged_ns, walk[_FLOOR])
        return
    if did == fold.PARKED_LEASED:
        _close(rows, walk, _PARKED, logged_ns)
        _wait_again(rows, walk, job, at, logged_ns)
    rows[READY_NS, walk[_ROW]] = NO_TIME


@kernel
def _wait_again(rows: Ints, walk: Ints, job: Ints, at: int, ready_ns: int) -> None:
    attempt = job[fold.ATTEMPTS] + 1
    _open(rows, walk, job[fold.ADD], at, walk[_LIVES], attempt, max(ready_ns, walk[_FLOOR]))


@kernel
def _open(
    rows: Ints, walk: Ints, add: int, began: int, life: int, attempt: int, ready_ns: int
) -> int:
    """The next row, which is the present one now."""
    row = walk[_ROW] = walk[_ROWS]
    walk[_ROWS] += 1
    rows[:, row] = 0
    rows[ADD_ROW, row] = add
    rows[BEGAN_ROW, row] = began
    rows[LIFE, row] = life
    rows[ATTEMPT, row] = attempt
    rows[READY_NS, row] = ready_ns
    rows[STARTED_NS, row] = rows[ENDED_NS, row] = NO_TIME
    rows[OUTCOME, row] = _WAITING
    rows[FAILED_ROW, row] = -1
    rows[ENDS_NS, row] = NO_TIME
    return int(row)


@kernel
def _close(rows: Ints, walk: Ints, outcome: int, ended_ns: int) -> None:
    row = walk[_ROW]
    rows[OUTCOME, row] = outcome
    rows[ENDED_NS, row] = max(ended_ns, walk[_FLOOR]) if ended_ns != NO_TIME else NO_TIME
