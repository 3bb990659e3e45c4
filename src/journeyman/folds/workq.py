"""The fold of the workq command log: where each job stands.

    state \\ record   start         timeout             complete, fail   delete, expire
    ---------------  ------------  ------------------  ---------------  --------------
    0 new            leased        pending !           finished         None
    3 pending        leased        pending !           finished         None
    4 leased         leased !      pending or failed   finished         None
    1 completed      - !           - !                 - !              None
    2 failed         - !           - !, or a retry     - !, or late     None
    orphans or None  kept !        kept !              kept !           kept !, or None !

A park puts an unfinished job into state 3: it is not ready, and its TTL does not run. A wake, a
start, a complete or a fail ends that, and the TTL begins again.

``!`` is reported, ``-`` changes nothing. An add begins a life: of an unknown id, of orphans (which
are applied to it), or a new start when it differs from the add of the living job. The original
refuses a log with most of the marked cases, though its own races write them; here each has a rule,
given in docs/folds.md with its reason. Three ideas carry them all:

 - A record says what a server did. That a job was leased or finished is a fact; that a lease or
   all attempts ran out is what the fold makes of it, and gives way to facts.
 - Once the add was seen, the order of the log rules. Only records before their add need times.
 - A start while leased means that the timeout of the lease before is still to come. It is owed,
   and when it comes it does not end the new lease.

A retry after ``fail`` (max-fails; the original has none) is the fail and a timeout-attempt with
the same time. ``retry_of`` makes the second; nothing else may come between. The fail is hidden
from the original (formats.workq); to the fold a hidden record is like any other.

``apply`` changes the state it is given: None (nothing is known, or it was added and has ended),
Orphans (records of a job whose add is not here yet) or a FoldedJob. What depends on the time is
never in a state; it is a view:

    visible(state, as_of_ns)     the job, unless its TTL has run out (then it is hidden)
    queue_of(job, as_of_ns)      "ready", "scheduled", or None when leased or finished
    lease_deadline_ns(job)       when a lease runs out
    queue_order(job)             the sort key of all queues and listings

``snapshot`` makes the shortest honest history that folds to a state:

    add or schedule
    (fail timeout) * fails            failures that were retried
    (start timeout) * n  start * m    attempts; the last start bears the true time
    park * p  wake                    if it was parked: the wake bears the true time; before the
                                      last attempts if they began after it
    complete | fail | timeout         how it ended

What cannot be distinguished in the state is written in the simplest way. Where the state is one
that the original can reach, it can load these records too: attempts that ended are pairs of start
and timeout, a lease is an open start. Starts without a timeout between them, which it refuses, are
written only for states that its own races, or attempts over the limit, have made. What has no time
of its own takes the add's; times run backwards only where those of the log did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, TypeAlias, TypeGuard

from journeyman.folds import Anomaly, AnomalyKind, Notes
from journeyman.formats import workq
from journeyman.formats.timed_frame import Instant
from journeyman.units import NS_PER_MS

# The limits of the protocol. The original refuses to replay a log with a value outside these
# limits; the fold keeps the job and reports each such value (``unusable_values``).
MAX_NAME_BYTES = 255
MAX_TTR_MS = 86_400_000  # a day
MAX_TTL_MS = 2_592_000_000  # thirty days
MAX_RETRY_DELAY_MS = 86_400_000  # an extension, kept with max-fails: see formats.workq
MAX_COUNT = 255  # the limit for max-attempts and for max-fails
PRIORITY_LIMITS = (-(2**31), 2**31 - 1)
NEVER_NS = 2**63 - 1  # the end of a TTL that does not run

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_BYTES}}}", re.ASCII)


def unusable_values(added: workq.JobAdded) -> Iterator[str]:
    """A phrase for each field that the protocol would refuse."""
    if not _is_uuid4(added.job_id):
        yield f"id {added.job_id.hex()} is not a version 4 UUID"
    if _NAME.fullmatch(added.name) is None:
        yield f"name {added.name!r}"
    if not 1 <= added.ttr_ms <= MAX_TTR_MS:
        yield f"ttr of {added.ttr_ms} ms"
    if not 1 <= added.ttl_ms <= MAX_TTL_MS:
        yield f"ttl of {added.ttl_ms} ms"
    if not PRIORITY_LIMITS[0] <= added.priority <= PRIORITY_LIMITS[1]:
        yield f"priority {added.priority}"
    if not 0 <= added.max_attempts <= MAX_COUNT:
        yield f"max-attempts {added.max_attempts}"
    if workq.max_fails_of(added.max_fails) > MAX_COUNT:
        yield f"max-fails {added.max_fails}"
    if workq.delay_ms_of(added.max_fails) > MAX_RETRY_DELAY_MS:
        yield f"retry-delay of {workq.delay_ms_of(added.max_fails)} ms"
    if len(added.payload) > workq.MAX_PAYLOAD_BYTES:
        yield f"payload of {len(added.payload)} bytes"
    if (added.time is None) is (added.command == workq.Command.SCHEDULE):
        yield "scheduled without a time" if added.time is None else "a time without being scheduled"


def _is_uuid4(job_id: bytes) -> bool:
    return len(job_id) == 16 and job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2


class JobState(IntEnum):
    """Where a job stands; the values are those that ``inspect`` shows."""

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3  # attempted before, queued again
    LEASED = 4


@dataclass(slots=True)
class FoldedJob:
    """A job from its add on.

    ``started`` is set once ``attempts`` is above 0, ``finished`` exactly in COMPLETED and FAILED.
    """

    added: workq.JobAdded
    state: JobState = JobState.NEW
    attempts: int = 0
    fails: int = 0  # failures that were followed by a retry
    result: bytes | None = None
    started: Instant | None = None  # when the last attempt was logged
    finished: Instant | None = None
    exhausted: bool = False  # FAILED because the attempts ran out, not by a fail record
    owed_timeouts: int = 0  # leases that a later start cut off; their timeouts are still to come
    parks: int = 0  # how often it was parked
    parked: bytes | None = None  # the reason of the park, while it is parked
    begins: Instant | None = None  # when the TTL began again after that


@dataclass(slots=True)
class Orphans:
    """Records without an add, in log order; at least one. Only the first may be a delete."""

    records: list[workq.JobEvent | workq.JobFinished]


State: TypeAlias = FoldedJob | Orphans | None


def expires_ns(job: FoldedJob) -> int:
    """When job and result vanish: TTL after its time if scheduled, else after its creation."""
    added = job.added
    if job.parked is not None:
        return NEVER_NS
    if job.begins is not None:
        return min(job.begins.unix_ns + added.ttl_ms * NS_PER_MS, NEVER_NS)
    begins = added.created
    if added.command == workq.Command.SCHEDULE and added.time is not None:
        begins = added.time
    return begins.unix_ns + added.ttl_ms * NS_PER_MS


def visible(state: State, as_of_ns: int) -> FoldedJob | None:
    """The job that exists at this moment, if any."""
    if isinstance(state, FoldedJob) and as_of_ns < expires_ns(state):
        return state
    return None


def without_orphans(state: State) -> FoldedJob | None:
    """Return what is left when the log ends here for good: orphans wait for an add that cannot
    come.

    For a compaction of the whole log. Where later segments follow, keep the orphans.
    """
    return state if isinstance(state, FoldedJob) else None


def queue_of(job: FoldedJob, as_of_ns: int) -> Literal["ready", "scheduled"] | None:
    """The queue in which the job waits at this moment."""
    if job.state == JobState.NEW:
        due = job.added.time
        return "scheduled" if due is not None and as_of_ns < due.unix_ns else "ready"
    return "ready" if job.state == JobState.PENDING and job.parked is None else None


QueueOrder: TypeAlias = tuple[int, bool, int, int, bytes]


def queue_order(job: FoldedJob) -> QueueOrder:
    """Sort key: priority descending, time ascending (none first), created, id."""
    added = job.added
    due = added.time
    due_ns = 0 if due is None else due.unix_ns
    return -added.priority, due is not None, due_ns, added.created.unix_ns, added.job_id


def lease_deadline_ns(job: FoldedJob) -> int | None:
    """When the lease runs out; None when the job is not leased."""
    if job.state != JobState.LEASED or job.started is None:
        return None
    return job.started.unix_ns + job.added.ttr_ms * NS_PER_MS


_COMPLETE, _FAIL = workq.Command.COMPLETE, workq.Command.FAIL
_DELETE, _EXPIRE = workq.Command.DELETE, workq.Command.EXPIRE
_START, _TIMEOUT = workq.Command.START_ATTEMPT, workq.Command.TIMEOUT_ATTEMPT
_PARK, _WAKE = workq.Command.PARK, workq.Command.WAKE
_ENDS = (_DELETE, _EXPIRE)
_PENDING, _LEASED = JobState.PENDING, JobState.LEASED
_COMPLETED, _FAILED = JobState.COMPLETED, JobState.FAILED


def key_of(record: workq.Record) -> bytes:
    return record.job_id


def apply(state: State, record: workq.Record, notes: Notes = None) -> State:
    """The state after ``record``. Takes ``state`` over: it may be changed and returned."""
    if isinstance(record, workq.JobAdded):
        return _add(state, record, notes)
    if isinstance(record, workq.UnknownCommand):
        _note(notes, AnomalyKind.UNKNOWN_COMMAND, record, f"command {int(record.command)}")
        return state
    if not isinstance(state, FoldedJob):
        return _keep_orphan(state, record, notes)
    if isinstance(record, workq.JobFinished):
        if record.command == _PARK:
            return _park(state, record, notes)
        return _finish(state, record, notes)
    command = record.command
    if command == _START:
        return _start(state, record, notes)
    if command == _TIMEOUT:
        return _time_out(state, record, notes)
    if command == _WAKE:
        return _wake(state, record, notes)
    if command in _ENDS:
        return None
    _note(notes, AnomalyKind.MISPLACED_RECORD, record, "command does not fit the record")
    return state


def fold(records: Iterable[workq.Record], notes: Notes = None) -> State:
    """The state of one job id."""
    state: State = None
    for record in records:
        state = apply(state, record, notes)
    return state


def replay(
    records: Iterable[workq.Record], notes: Notes = None
) -> dict[bytes, FoldedJob | Orphans]:
    """The states of a whole log. What was added and has ended leaves no state."""
    states: dict[bytes, FoldedJob | Orphans] = {}
    for record in records:
        key = record.job_id
        before = states.get(key)
        state = apply(before, record, notes)
        if state is None:
            states.pop(key, None)
        elif state is not before:
            states[key] = state
    return states


def retry_of(failed: workq.JobFinished, *, is_leased: bool = True) -> workq.JobEvent:
    """The record that turns this fail into a retry, to be written directly after it.

    Hidden if the job was not leased: in the original it is in its queue, and stays there.
    """
    return workq.JobEvent(failed.logged, failed.job_id, _TIMEOUT, hidden=not is_leased)


def is_retried(record: workq.Record) -> TypeGuard[workq.JobFinished]:
    """Return whether it is a fail whose retry must follow."""
    return isinstance(record, workq.JobFinished) and record.hidden and record.command == _FAIL


def _add(state: State, added: workq.JobAdded, notes: Notes) -> State:
    if notes is not None:
        for phrase in unusable_values(added):
            _note(notes, AnomalyKind.UNUSABLE_VALUE, added, phrase, ())
    if state is None:
        return FoldedJob(added)
    if isinstance(state, Orphans):
        return _adopt(state.records, added, notes)
    if replace(added, logged=state.added.logged) == state.added:
        _note(notes, AnomalyKind.REPEATED_ADD, added, "added before; the first stands")
        return state
    # A server adds only where the id is free, so the former job has ended: by its TTL, or by an
    # end that the log has lost (the original's cleaner drops a delete before the add it ended).
    if added.created.unix_ns < expires_ns(state):
        detail = "added again while the former job existed; the newer stands"
        _note(notes, AnomalyKind.REPLACED_JOB, added, detail, snapshot(state))
    return FoldedJob(added)


def _adopt(
    records: list[workq.JobEvent | workq.JobFinished], added: workq.JobAdded, notes: Notes
) -> State:
    """The add of a job whose later records stand before it in the log."""
    created_ns = added.created.unix_ns
    first = records[0]
    if first.command == _DELETE and created_ns < first.logged.unix_ns:
        _note(notes, AnomalyKind.DELETED_BEFORE_ADD, added, "its delete stands before it")
        return Orphans(records[1:]) if len(records) > 1 else None
    job = FoldedJob(added)
    for record in records:
        if record.command == _DELETE or record.logged.unix_ns < created_ns:
            _note(notes, AnomalyKind.STALE_ORPHAN, record, "older than the add that followed")
            continue
        _note(notes, AnomalyKind.ADOPTED_ORPHAN, record, "stands before its add; applied", ())
        apply(job, record, notes)  # neither delete nor expire, so the job stays
    # Nothing of a job is older than its add.
    if job.started is not None and job.started.unix_ns < added.logged.unix_ns:
        job.started = added.logged
    if job.begins is not None and job.begins.unix_ns < added.logged.unix_ns:
        job.begins = added.logged
    if job.finished is not None and job.finished.unix_ns < added.logged.unix_ns:
        job.finished = added.logged
    return job


def _keep_orphan(
    state: Orphans | None, record: workq.JobEvent | workq.JobFinished, notes: Notes
) -> State:
    """A record without an add: kept until the add comes, or an end shows that it does not."""
    if not _fits(record):
        _note(notes, AnomalyKind.MISPLACED_RECORD, record, "command does not fit the record")
        return state
    _note(notes, AnomalyKind.ORPHAN, record, f"{record.command.word} of an unknown job")
    if record.command == _DELETE:
        return Orphans([record])  # all that its add, if it comes, has to know
    if record.command == _EXPIRE:
        # The end of a run, or of a job that any view takes for expired, should its add come.
        if state is not None and state.records[0].command == _DELETE:
            return Orphans(state.records[:1])
        return None
    if state is None:
        return Orphans([record])
    state.records.append(record)
    return state


def _start(job: FoldedJob, record: workq.JobEvent, notes: Notes) -> FoldedJob:
    if job.finished is not None:
        _note(notes, AnomalyKind.START_AFTER_FINISH, record, "leased after it was finished")
        return job
    if job.state == _LEASED:
        _note(notes, AnomalyKind.START_WHILE_LEASED, record, "leased while leased", ())
        if job.added.ttr_ms:  # without a TTR the lease before was over at once
            job.owed_timeouts += 1
    if 0 < job.added.max_attempts <= job.attempts:
        _note(notes, AnomalyKind.START_OVER_LIMIT, record, "leased beyond max-attempts", ())
    job.state = _LEASED
    job.attempts += 1
    job.started = record.logged
    _end_park(job, record)
    return job


def _park(job: FoldedJob, record: workq.JobFinished, notes: Notes) -> FoldedJob:
    if job.finished is not None:
        _note(notes, AnomalyKind.PARK_AFTER_FINISH, record, "parked after it was finished")
        return job
    job.state, job.owed_timeouts = _PENDING, 0
    job.parks, job.parked, job.begins = job.parks + 1, record.result, None
    return job


def _wake(job: FoldedJob, record: workq.JobEvent, notes: Notes) -> FoldedJob:
    if job.parked is None:
        _note(notes, AnomalyKind.WAKE_WITHOUT_PARK, record, "woken without being parked")
    _end_park(job, record)
    return job


def _end_park(job: FoldedJob, record: workq.JobEvent | workq.JobFinished) -> None:
    if job.parked is not None:
        job.parked, job.begins = None, record.logged


def _time_out(job: FoldedJob, record: workq.JobEvent, notes: Notes) -> FoldedJob:
    if job.state == _LEASED:
        if _is_owed(job, record):
            job.owed_timeouts -= 1
            _note(notes, AnomalyKind.LATE_TIMEOUT, record, "of an earlier lease")
            return job
        job.owed_timeouts = 0
        if 0 < job.added.max_attempts <= job.attempts:
            job.state, job.result, job.finished = _FAILED, b"", record.logged
            job.exhausted = True
        else:
            job.state = _PENDING
    elif job.parked is not None:
        return job  # the first park is written with it, for the original
    elif job.finished is None:
        _note(notes, AnomalyKind.TIMEOUT_WITHOUT_LEASE, record, "timed out without a lease", ())
        job.state = _PENDING
    elif _is_retry(job, record):
        job.state, job.result, job.finished = _PENDING, None, None
        job.fails += 1
    else:
        _note(notes, AnomalyKind.TIMEOUT_AFTER_FINISH, record, "timed out after it was finished")
    return job


def _is_owed(job: FoldedJob, record: workq.JobEvent) -> bool:
    """Return whether this timeout is that of an earlier lease, which a later start has cut off.

    Not so if it comes when the present lease is over too: then there is no difference.
    """
    if not job.owed_timeouts:
        return False
    deadline_ns = lease_deadline_ns(job)
    return deadline_ns is not None and record.logged.unix_ns < deadline_ns


def _is_retry(job: FoldedJob, record: workq.JobEvent) -> bool:
    """Return whether this timeout takes back the failure just before it.

    The equal time distinguishes it from a timeout that a race of the original wrote after its fail.
    """
    return (
        job.state == _FAILED
        and not job.exhausted
        and job.finished is not None
        and job.finished.unix_ns == record.logged.unix_ns
        and job.fails + 1 < job.added.max_fails
    )


def _finish(job: FoldedJob, record: workq.JobFinished, notes: Notes) -> FoldedJob:
    if not _fits(record):
        _note(notes, AnomalyKind.MISPLACED_RECORD, record, "command does not fit the record")
        return job
    if job.exhausted:
        # A server takes no result of a failed job, so when it took this one the job had not failed.
        detail = "finished after its attempts seemed exhausted; the result stands"
        _note(notes, AnomalyKind.RESULT_AFTER_EXHAUSTION, record, detail, ())
        job.exhausted = False
    elif job.finished is not None:
        _note(notes, AnomalyKind.SECOND_RESULT, record, "finished before; the first result stands")
        return job
    job.state = _COMPLETED if record.command == _COMPLETE else _FAILED
    job.result, job.finished = record.result, record.logged
    job.owed_timeouts = 0
    _end_park(job, record)
    return job


def _fits(record: workq.JobEvent | workq.JobFinished) -> bool:
    """Return whether the command is one of this class of record. Decoders make no other."""
    if isinstance(record, workq.JobFinished):
        return record.command in (_COMPLETE, _FAIL, _PARK)
    return record.command in (_DELETE, _EXPIRE, _START, _TIMEOUT, _WAKE)


def _note(
    notes: Notes,
    kind: AnomalyKind,
    record: workq.Record,
    detail: str,
    records: tuple[workq.Record, ...] | None = None,
) -> None:
    """Report ``record``; ``records`` are what it leaves unapplied, itself unless given."""
    if notes is not None:
        lost = (record,) if records is None else records
        notes(Anomaly(kind, record.job_id, f"{record.command.word}: {detail}", lost))


def snapshot(state: State, timed_out_ns: int = 0) -> tuple[workq.Record, ...]:
    """Records that fold to ``state``; of orphans, themselves.

    ``timed_out_ns``: when a pending job came back to its queue. It is not in the state, but a delay
    before a retry is counted from it.
    """
    if state is None:
        return ()
    if isinstance(state, Orphans):
        return tuple(state.records)
    is_known = timed_out_ns and state.state == JobState.PENDING
    return tuple(_history(state, Instant(timed_out_ns) if is_known else None))


def _history(job: FoldedJob, ended: Instant | None) -> Iterator[workq.Record]:
    added = job.added
    born = added.logged
    started = born if job.started is None else job.started
    pairs = _attempts_in_pairs(job)
    open_starts = job.attempts - pairs
    # Beyond max-attempts only a retried failure queues a job again; then it is written last.
    fail_last = job.state == JobState.PENDING and open_starts > 0
    was_parked = job.parks > 0  # then the original sees one start

    yield added
    last_fail = None if job.attempts else job.fails - 1
    for number in range(job.fails - fail_last):
        at = ended if ended is not None and number == last_fail else born
        yield from _retried(job, at, is_leased=False)
    woken_before = min(pairs + 1, job.attempts) if _was_woken_before_start(job) else None
    for number in range(1, job.attempts + 1):
        if number == woken_before:
            yield from _parks(job, born)
            born = job.begins or born
        at = started if number == job.attempts else born
        hidden = was_parked and number > 1
        yield _event(job, at, workq.Command.START_ATTEMPT, hidden=hidden)
        if number <= pairs:
            over = ended if ended is not None and number == job.attempts else at
            yield _event(job, over, workq.Command.TIMEOUT_ATTEMPT, hidden=hidden)

    # Each open start but the last owes a timeout, except that a TTR of 0 owes nothing.
    owed = open_starts - 1 if open_starts and added.ttr_ms else 0
    if job.state == JobState.LEASED or job.exhausted:
        for _ in range(owed - job.owed_timeouts):
            yield _event(job, started, workq.Command.TIMEOUT_ATTEMPT)
    elif fail_last:
        yield from _retried(job, ended or started, is_leased=not was_parked)
    elif job.state == JobState.PENDING and not job.attempts and not job.fails and not was_parked:
        yield _hidden_timeout(job, ended or born)
    if was_parked and woken_before is None:
        yield from _parks(job, started)

    if job.exhausted:
        yield _event(job, job.finished or born, workq.Command.TIMEOUT_ATTEMPT)
    elif job.result is not None:
        command = workq.Command.COMPLETE if job.state == JobState.COMPLETED else workq.Command.FAIL
        yield _finish_record(job, job.finished or born, command, job.result)


def _attempts_in_pairs(job: FoldedJob) -> int:
    """How many attempts are written as a start and its timeout.

    All that have ended, but never as many as max-attempts: that timeout would end the job.
    """
    if job.state == JobState.PENDING:
        ended = job.attempts
    elif job.state == JobState.LEASED:
        ended = job.attempts - 1 - job.owed_timeouts
    else:
        ended = max(job.attempts - 1, 0)
    limit = job.added.max_attempts
    return min(ended, limit - 1) if limit else ended


def _event(
    job: FoldedJob, logged: Instant, command: workq.Command, *, hidden: bool = False
) -> workq.JobEvent:
    return workq.JobEvent(logged, job.added.job_id, command, hidden)


def _was_woken_before_start(job: FoldedJob) -> bool:
    """Return whether its last attempts came after its last park."""
    if job.begins is None or job.started is None:
        return False
    is_certain = job.state == JobState.LEASED or job.exhausted
    return is_certain or job.begins.unix_ns <= job.started.unix_ns


def _parks(job: FoldedJob, logged: Instant) -> Iterator[workq.Record]:
    job_id = job.added.job_id
    for number in range(1, job.parks + 1):
        reason = job.parked if number == job.parks else None
        yield workq.JobFinished(logged, job_id, workq.Command.PARK, reason or b"", hidden=True)
    if job.begins is not None:
        yield workq.JobEvent(job.begins, job_id, workq.Command.WAKE, hidden=True)


def _retried(job: FoldedJob, logged: Instant, *, is_leased: bool) -> Iterator[workq.Record]:
    yield workq.JobFinished(logged, job.added.job_id, workq.Command.FAIL, b"", hidden=True)
    timeout = _event(job, logged, workq.Command.TIMEOUT_ATTEMPT)
    yield timeout if is_leased else _hidden_timeout(job, logged)


def _hidden_timeout(job: FoldedJob, logged: Instant) -> workq.JobEvent:
    """Return a timeout of a job that the original has queued, so it must not be queued twice."""
    return workq.JobEvent(logged, job.added.job_id, workq.Command.TIMEOUT_ATTEMPT, hidden=True)


def _finish_record(
    job: FoldedJob, logged: Instant, command: workq.Command, result: bytes
) -> workq.JobFinished:
    return workq.JobFinished(logged, job.added.job_id, command, result)
