"""The workq fold in bulk: the compiled kernel for ordinary jobs, the reference fold for the rest.

    EVENTS, ADDS --KeyTable, fold_events--> ordinary jobs
                                        \\-> odd jobs --records--> journeyman.folds.workq

    events   job   0 1 0 2 0 1 ...          numbers of a KeyTable
             kind  1 1 7 5 3 7 ...          commands
    state    one row of numbers per job, changed event by event

``change`` is the transition table of docs/folds.md for a job that exists; ``fold_events`` runs it
over a log, and attempts.py runs it to write down every attempt. A state refers to records by their
row: ADD, STARTED, FINISHED and RESULT are rows, or -1.

EVENTS holds what the fold needs of every record, ADDS what only adds have; payloads and results are
in neither. That is enough to fold almost every log. The kernel marks a job ODD when it is not:

    BY_THE_FOLD   records without an add before them; their records are made again from the columns
    FROM_FILE     two adds that are equal in all numbers, or a clamped time; their records are read
                  from the file (``reread``)

The reference fold decides both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from journeyman.columnar import arrays
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import KeyTable
from journeyman.columnar.workq.scan import UNKNOWN_KIND
from journeyman.folds import workq
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished, Record
from journeyman.units import NS_PER_MS

# The fields of a job.
STATE, ADD, ADD_NUMBER, ATTEMPTS, FAILS, STARTED, FINISHED, RESULT = range(8)
EXHAUSTED, OWED, ODD = range(8, 11)
STARTED_NS, FINISHED_NS, TTR_MS, MAX_ATTEMPTS, MAX_FAILS = range(11, 16)  # read by ``change``
PARKED, BEGINS, BEGINS_NS = range(16, 19)  # rows of the park, and of the new beginning of the TTL
PARKS = 19  # the number of parks
FIELDS = 20

UNKNOWN = -1  # STATE: no such job; the others are those of folds.workq.JobState
_NEW, _COMPLETED, _FAILED, _PENDING, _LEASED = range(5)
_NONE = -1  # no such row

ORDINARY, BY_THE_FOLD, FROM_FILE = range(3)  # ODD

_SCHEDULE, _COMPLETE = 2, 3
_DELETE, _EXPIRE, _START, _TIMEOUT = 5, 6, 7, 8
_PARK, _WAKE = 10, 11

# The effect of a record on a job: the answer of ``change``.
NOTHING, LEASED, LEASED_AGAIN, PAID_DEBT, TIMED_OUT, RAN_OUT = range(6)
QUEUED, RETRIED, FINISHED_JOB, FINISHED_AFTER_ALL = range(6, 10)
PARKED_LEASED, PARKED_QUEUED, WOKEN = range(10, 13)

_CLAMPED = (-(2**63), 2**63 - 1)  # times that may stand for others, see columnar.workq
NEVER = 2**63 - 1


@kernel
def begin(job: Ints, row: int, add: int, ttr_ms: int, max_attempts: int, max_fails: int) -> None:
    """A life begins: the add is at ``row``, and is the add of this number."""
    job[STATE], job[ADD], job[ADD_NUMBER] = _NEW, row, add
    job[ATTEMPTS], job[FAILS], job[EXHAUSTED], job[OWED] = 0, 0, 0, 0
    job[STARTED], job[FINISHED], job[RESULT] = _NONE, _NONE, _NONE
    job[PARKED], job[BEGINS], job[PARKS] = _NONE, _NONE, 0
    job[TTR_MS], job[MAX_ATTEMPTS], job[MAX_FAILS] = ttr_ms, max_attempts, max_fails


@kernel
def change(job: Ints, kind: int, row: int, logged_ns: int) -> int:
    """Apply any record but adds, deletes and expires to a job that exists; what that did."""
    if kind == _PARK:
        return _park(job, row)
    if kind == _WAKE:
        return WOKEN if _end_park(job, row, logged_ns) else NOTHING
    if kind == _START:
        if job[FINISHED] != _NONE:
            return NOTHING
        _end_park(job, row, logged_ns)
        was_leased = job[STATE] == _LEASED
        if was_leased and job[TTR_MS] != 0:
            job[OWED] += 1
        job[STATE], job[STARTED], job[STARTED_NS] = _LEASED, row, logged_ns
        job[ATTEMPTS] += 1
        return LEASED_AGAIN if was_leased else LEASED
    if kind == _TIMEOUT:
        return _time_out(job, row, logged_ns)
    was_exhausted = job[EXHAUSTED] == 1
    if job[FINISHED] != _NONE and not was_exhausted:
        return NOTHING
    job[STATE] = _COMPLETED if kind == _COMPLETE else _FAILED
    job[RESULT], job[EXHAUSTED], job[OWED] = row, 0, 0
    job[FINISHED], job[FINISHED_NS] = row, logged_ns
    _end_park(job, row, logged_ns)
    return FINISHED_AFTER_ALL if was_exhausted else FINISHED_JOB


@kernel
def _park(job: Ints, row: int) -> int:
    if job[FINISHED] != _NONE:
        return NOTHING
    was_leased = job[STATE] == _LEASED
    job[STATE], job[OWED], job[PARKED], job[BEGINS] = _PENDING, 0, row, _NONE
    job[PARKS] += 1
    return PARKED_LEASED if was_leased else PARKED_QUEUED


@kernel
def _end_park(job: Ints, row: int, logged_ns: int) -> bool:
    """Return whether the job was parked."""
    if job[PARKED] == _NONE:
        return False
    job[PARKED], job[BEGINS], job[BEGINS_NS] = _NONE, row, logged_ns
    return True


@kernel
def _time_out(job: Ints, row: int, logged_ns: int) -> int:
    if job[STATE] == _LEASED:
        if job[OWED] > 0 and logged_ns < after_ms(job[STARTED_NS], job[TTR_MS]):
            job[OWED] -= 1
            return PAID_DEBT
        job[OWED] = 0
        if 0 < job[MAX_ATTEMPTS] <= job[ATTEMPTS]:
            job[STATE], job[EXHAUSTED] = _FAILED, 1
            job[FINISHED], job[FINISHED_NS] = row, logged_ns
            return RAN_OUT
        job[STATE] = _PENDING
        return TIMED_OUT
    if job[PARKED] != _NONE:
        return NOTHING
    if job[FINISHED] == _NONE:
        job[STATE] = _PENDING
        return QUEUED
    if (
        job[STATE] == _FAILED
        and job[EXHAUSTED] == 0
        and job[FINISHED_NS] == logged_ns
        and job[FAILS] + 1 < job[MAX_FAILS]
    ):
        job[STATE], job[FINISHED], job[RESULT] = _PENDING, _NONE, _NONE
        job[FAILS] += 1
        return RETRIED
    return NOTHING


@kernel
def after_ms(begin_ns: int, length_ms: int) -> int:
    """The end of a lease or TTL; NEVER if 64 bits do not hold it: no time that is not clamped is
    that late."""
    if length_ms >= NEVER // NS_PER_MS or begin_ns > NEVER - length_ms * NS_PER_MS:
        return NEVER
    return begin_ns + length_ms * NS_PER_MS


@kernel
def _differ(adds: Ints, one: int, other: int) -> bool:
    for field in range(adds.shape[0]):  # noqa: SIM110 - numba has no generators here
        if adds[field, one] != adds[field, other]:
            return True
    return False


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
    first_row: int,
) -> None:
    """Change ``states`` (a row a job, all UNKNOWN at first) by the events, which are in log order.

    ``adds`` has a column for each add among the events, in their order: the numbers by which two
    adds can be told apart; without numbers the second add of a job is odd. What the fold looks at
    is given once more, by itself. ``first_row`` events came before these.
    """
    add = -1
    for row in range(jobs.size):
        kind = kinds[row]
        if kind == UNKNOWN_KIND:
            continue
        job = states[jobs[row]]
        if kind <= _SCHEDULE:
            add += 1
        if logged_ns[row] == _CLAMPED[0] or logged_ns[row] == _CLAMPED[1]:
            job[ODD] = FROM_FILE
        if job[ODD] != ORDINARY:
            continue
        if kind <= _SCHEDULE:
            if job[STATE] == UNKNOWN or _differ(adds, add, job[ADD_NUMBER]):
                begin(job, first_row + row, add, ttr_ms[add], max_attempts[add], max_fails[add])
            else:
                job[ODD] = FROM_FILE
        elif job[STATE] == UNKNOWN:
            if kind != _EXPIRE:
                job[ODD] = BY_THE_FOLD
        elif kind in (_DELETE, _EXPIRE):
            job[STATE] = UNKNOWN
        else:
            change(job, kind, first_row + row, logged_ns[row])


_EVENT: list[tuple[str, pa.DataType]] = [
    ("job_id", pa.binary(16)),
    ("position", pa.int64()),
    ("length", pa.int32()),
    ("kind", pa.int8()),
    ("logged_ns", pa.int64()),
    ("result_size", pa.int32()),  # null but for complete, fail and park
]
_ADD: list[tuple[str, pa.DataType]] = [
    ("position", pa.int64()),
    ("kind", pa.int8()),
    ("name", pa.string()),
    ("ttr_ms", pa.int64()),
    ("ttl_ms", pa.int64()),
    ("priority", pa.int32()),
    ("max_attempts", pa.int64()),
    ("max_fails", pa.int64()),
    ("payload_size", pa.int32()),
    ("time_ns", pa.int64()),  # null when the job is ready at once
    ("created_ns", pa.int64()),
]
EVENTS = pa.schema(_EVENT)
ADDS = pa.schema(_ADD)

# Reads the records at these positions of the log.
Reread: TypeAlias = Callable[[Sequence[int]], list[Record]]

# The columns of ADDS by which two adds are told apart; what is equal in these may still differ.
_NUMBERS = ("kind", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "payload_size")
_TIMES = ("time_ns", "created_ns")
_INT64_LIMITS = (-(2**63), 2**63 - 1)
_ADDED = (Command.ADD, Command.SCHEDULE)
_FINISHED = (Command.COMPLETE, Command.FAIL, Command.PARK)
_COMMANDS = {int(command): command for command in Command}


@dataclass(frozen=True, slots=True)
class States:
    """``jobs`` has one row a job, with the columns of fold.py; see there.

    ``add_numbers`` says which row of ADDS the add of each job is. ``orphans`` are rows of EVENTS
    for each job id without an add.
    """

    jobs: Ints
    add_numbers: Ints
    orphans: list[list[int]]


def events_and_adds(
    batch: pa.RecordBatch, first_position: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A chunk of columnar.workq as rows of EVENTS and of ADDS.

    ``first_position`` is the position of offset 0 of the chunk's file.
    """
    positions = arrays.column_of(arrays.numbers_in(batch.column("offset")) + first_position)
    batch = batch.append_column("position", positions)
    is_known = arrays.numbers_in(batch.column("kind")) != UNKNOWN_KIND
    if not is_known.all():  # the fold steps over them
        batch = arrays.rows_where(batch, is_known)
    events = [
        batch.column("job_id").cast(pa.binary(16)),
        *(batch.column(name) for name in EVENTS.names[1:]),
    ]
    is_add = arrays.numbers_in(batch.column("kind")) <= Command.SCHEDULE
    adds = arrays.rows_where(batch.select(ADDS.names), is_add)
    return pa.RecordBatch.from_arrays(events, schema=EVENTS), adds


def fold(
    events: pa.RecordBatch,
    adds: pa.RecordBatch,
    reread: Reread,
) -> States:
    """The states of all jobs. Both batches are in log order, and hold all records of their jobs."""
    keys = KeyTable()
    jobs = arrays.frozen(keys.numbers_of(*arrays.text_in(events.column("job_id"))))
    kinds = arrays.numbers_in(events.column("kind"))
    states = np.zeros((len(keys), FIELDS), np.int64)
    states[:, STATE] = UNKNOWN
    fold_events(
        jobs,
        kinds,
        arrays.numbers_in(events.column("logged_ns")),
        _telling_apart(adds),
        arrays.numbers_in(adds.column("ttr_ms")),
        arrays.numbers_in(adds.column("max_attempts")),
        arrays.numbers_in(adds.column("max_fails")),
        states,
        0,
    )
    known = states[(states[:, STATE] != UNKNOWN) & (states[:, ODD] == 0)]
    odd = np.flatnonzero(states[:, ODD])
    if not len(odd):
        return States(known, known[:, ADD_NUMBER], [])
    rest = _Odd(events, adds, np.cumsum(kinds <= Command.SCHEDULE) - 1, reread)
    for rows in _rows_of(jobs, odd):
        rest.fold(rows, from_file=bool(states[jobs[rows[0]], ODD] == FROM_FILE))
    known = np.concatenate([known, rest.jobs()])
    return States(known, known[:, ADD_NUMBER], rest.orphans)


def _telling_apart(adds: pa.RecordBatch) -> Ints:
    has_time = arrays.valid_in(adds.column("time_ns")).astype(np.int64)
    columns = [arrays.numbers_in(adds.column(name)) for name in (*_NUMBERS, *_TIMES)]
    apart: Ints = np.array([*columns, has_time], np.int64).reshape(len(columns) + 1, -1)
    return arrays.frozen(apart)


def _rows_of(jobs: Ints, wanted: Ints) -> Iterator[Ints]:
    """The rows of each of these jobs, in log order."""
    rows = np.flatnonzero(np.isin(jobs, wanted))
    rows = rows[np.argsort(jobs[rows], kind="stable")]
    _, starts = np.unique(jobs[rows], return_index=True)
    yield from np.split(rows, starts[1:])


class _Odd:
    """Folds jobs one by one, by the fold that is the law."""

    def __init__(
        self, events: pa.RecordBatch, adds: pa.RecordBatch, add_numbers: Ints, reread: Reread
    ) -> None:
        self._events = events
        self._adds = adds
        self._add_numbers = add_numbers  # the number of the last add up to each row
        self._reread = reread
        self._jobs: list[list[int]] = []
        self.orphans: list[list[int]] = []

    def jobs(self) -> Ints:
        return np.array(self._jobs, np.int64).reshape(-1, FIELDS)

    def fold(self, rows: Ints, *, from_file: bool) -> None:
        row_list: list[int] = rows.tolist()
        records = self._records(row_list, from_file)
        state = workq.fold(records)
        if state is None:
            return
        row_of = {id(record): row for record, row in zip(records, row_list, strict=True)}
        if isinstance(state, workq.Orphans):
            self.orphans.append([row_of[id(record)] for record in state.records])
            return
        moment_of = {id(record.logged): row_of[id(record)] for record in records}
        job = [0] * FIELDS
        job[STATE] = int(state.state)
        job[ADD] = row_of[id(state.added)]
        job[ADD_NUMBER] = int(self._add_numbers[job[ADD]])
        job[ATTEMPTS], job[FAILS] = state.attempts, state.fails
        job[STARTED] = -1 if state.started is None else moment_of[id(state.started)]
        job[FINISHED] = -1 if state.finished is None else moment_of[id(state.finished)]
        job[RESULT] = -1 if not state.result else int.from_bytes(state.result, "big") - 1
        job[EXHAUSTED], job[OWED] = state.exhausted, state.owed_timeouts
        job[PARKS] = state.parks
        job[PARKED] = int.from_bytes(state.parked, "big") - 1 if state.parked else -1
        if state.begins is not None:
            job[BEGINS], job[BEGINS_NS] = moment_of[id(state.begins)], state.begins.unix_ns
        else:
            job[BEGINS] = -1
        self._jobs.append(job)

    def _records(self, rows: list[int], from_file: bool) -> list[Record]:
        """The records, each with a time of its own, and with its row in the place of a result."""
        events = arrays.rows_at(self._events, np.array(rows)).to_pylist()
        made = [self._record(event, row) for event, row in zip(events, rows, strict=True)]
        if from_file or _is_ambiguous(made):
            made = self._reread([event["position"] for event in events])
        return [_marked(record, row) for record, row in zip(made, rows, strict=True)]

    def _record(self, event: dict[str, Any], row: int) -> Record:
        logged = Instant(event["logged_ns"])
        job_id, command = event["job_id"], _COMMANDS[event["kind"]]
        if command in _FINISHED:
            return JobFinished(logged, job_id, command, b"")
        if command not in _ADDED:
            return JobEvent(logged, job_id, command)
        add = self._adds.slice(int(self._add_numbers[row]), 1).to_pylist()[0]
        due_ns = add["time_ns"]
        return JobAdded(
            logged,
            job_id,
            add["name"],
            add["ttr_ms"],
            add["ttl_ms"],
            add["priority"],
            add["max_attempts"],
            add["max_fails"],
            bytes(add["payload_size"]),
            None if due_ns is None else Instant(due_ns),
            Instant(add["created_ns"]),
            command,
        )


def _is_ambiguous(records: list[Record]) -> bool:
    """Return whether the adds among these may differ in what is not here, or have a time that was
    clamped.

    Only for adds behind orphans: those of other jobs the kernel has looked at.
    """
    adds = [record for record in records if isinstance(record, JobAdded)]
    if any(add.created.unix_ns in _INT64_LIMITS for add in adds):
        return True
    return len({replace(add, logged=add.created) for add in adds}) < len(adds)


def _marked(record: Record, row: int) -> Record:
    """The record with its own Instant, so that a state tells which one it took a time from."""
    logged = replace(record.logged)
    if isinstance(record, JobFinished):
        return replace(record, logged=logged, result=(row + 1).to_bytes(8, "big"))
    return replace(record, logged=logged)
