"""The fold of the workq log in bulk: events of many jobs, in log order -> where each job stands.

    events   job   0 1 0 2 0 1 ...          numbers of a KeyTable
             kind  1 1 7 5 3 7 ...          commands
    state    one column of numbers a job, changed event by event

The fast twin of journeyman.folds.workq, for what servers write. Three things it leaves to the fold
itself, and marks the job (ODD): records without an add before them, an add that may repeat another,
and times that do not fit the arithmetic here. All records of an odd job are folded by
journeyman.folds.workq instead; see states.py, which also says what FROM_FILE means.

A state refers to records by their row: ADD, STARTED, FINISHED and RESULT are rows, or -1.
"""

from __future__ import annotations

from journeyman.columnar.kernels.copying import Ints
from journeyman.columnar.kernels.jit import kernel

# What is known of a job.
STATE, ADD, ADD_NUMBER, ATTEMPTS, FAILS, STARTED, FINISHED, RESULT = range(8)
EXHAUSTED, OWED, ODD = range(8, 11)
WORDS = 11

UNKNOWN = -1  # STATE: no such job; the others are those of folds.workq.JobState
_NEW, _COMPLETED, _FAILED, _PENDING, _LEASED = range(5)
_NONE = -1  # no such row

ORDINARY, BY_THE_FOLD, FROM_FILE = range(3)  # ODD

_SCHEDULE, _COMPLETE, _FAIL = 2, 3, 4
_DELETE, _EXPIRE, _START, _TIMEOUT = 5, 6, 7, 8

_CLAMPED = (-(2**63), 2**63 - 1)  # times that may stand for others, see columnar.workq
# Beyond these, the end of a lease might not fit 64 bits.
_MAX_NS = 2**62
_MAX_TTR_MS = 2**62 // 1_000_000
_NS_PER_MS = 1_000_000


@kernel
def _begin(job: Ints, row: int, add: int) -> None:
    job[STATE], job[ADD], job[ADD_NUMBER] = _NEW, row, add
    job[ATTEMPTS], job[FAILS], job[EXHAUSTED], job[OWED] = 0, 0, 0, 0
    job[STARTED], job[FINISHED], job[RESULT] = _NONE, _NONE, _NONE


@kernel
def _differ(adds: Ints, one: int, other: int) -> bool:
    for field in range(adds.shape[0]):  # noqa: SIM110 - numba has no generators here
        if adds[field, one] != adds[field, other]:
            return True
    return False


@kernel
def _time_out(
    job: Ints, row: int, logged_ns: Ints, ttr_ms: int, max_attempts: int, max_fails: int
) -> None:
    if job[STATE] == _LEASED:
        if job[OWED] > 0:
            begun = logged_ns[job[STARTED]]
            if ttr_ms > _MAX_TTR_MS or abs(begun) > _MAX_NS:
                job[ODD] = BY_THE_FOLD
                return
            if logged_ns[row] < begun + ttr_ms * _NS_PER_MS:
                job[OWED] -= 1
                return
        job[OWED] = 0
        if 0 < max_attempts <= job[ATTEMPTS]:
            job[STATE], job[FINISHED], job[EXHAUSTED] = _FAILED, row, 1
        else:
            job[STATE] = _PENDING
    elif job[FINISHED] == _NONE:
        job[STATE] = _PENDING
    elif (
        job[STATE] == _FAILED
        and job[EXHAUSTED] == 0
        and logged_ns[job[FINISHED]] == logged_ns[row]
        and job[FAILS] + 1 < max_fails
    ):
        job[STATE], job[FINISHED], job[RESULT] = _PENDING, _NONE, _NONE
        job[FAILS] += 1


@kernel
def fold_events(
    jobs: Ints,
    kinds: Ints,
    logged_ns: Ints,
    adds: Ints,
    ttr_ms: Ints,
    max_attempts: Ints,
    max_fails: Ints,
    states: Ints,
) -> None:
    """Change ``states`` (a row a job, all UNKNOWN at first) by the events, which are in log order.

    ``adds`` has a column for each add among the events, in their order: the numbers by which two
    adds can be told apart. What the fold looks at is given once more, by itself.
    """
    add = -1
    for row in range(jobs.size):
        job = states[jobs[row]]
        kind = kinds[row]
        if kind <= _SCHEDULE:
            add += 1
        if logged_ns[row] == _CLAMPED[0] or logged_ns[row] == _CLAMPED[1]:
            job[ODD] = FROM_FILE
        if job[ODD] != ORDINARY:
            continue
        if kind <= _SCHEDULE:
            if job[STATE] == UNKNOWN or _differ(adds, add, job[ADD_NUMBER]):
                _begin(job, row, add)
            else:
                job[ODD] = FROM_FILE
        elif job[STATE] == UNKNOWN:
            if kind != _EXPIRE:
                job[ODD] = BY_THE_FOLD
        elif kind == _START:
            if job[FINISHED] != _NONE:
                continue
            if job[STATE] == _LEASED and ttr_ms[job[ADD_NUMBER]] != 0:
                job[OWED] += 1
            job[STATE], job[STARTED] = _LEASED, row
            job[ATTEMPTS] += 1
        elif kind == _TIMEOUT:
            number = job[ADD_NUMBER]
            _time_out(job, row, logged_ns, ttr_ms[number], max_attempts[number], max_fails[number])
        elif kind in (_COMPLETE, _FAIL):
            if job[FINISHED] != _NONE and job[EXHAUSTED] == 0:
                continue
            job[STATE] = _COMPLETED if kind == _COMPLETE else _FAILED
            job[RESULT], job[FINISHED], job[EXHAUSTED], job[OWED] = row, row, 0, 0
        else:  # delete, expire
            job[STATE] = UNKNOWN
