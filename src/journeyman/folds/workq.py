"""The fold of the workq command log: where each job stands.

    state \\ record   start         timeout             complete, fail   delete, expire
    ---------------  ------------  ------------------  ---------------  --------------
    0 new            leased        pending !           finished         None
    3 pending        leased        pending !           finished         None
    4 leased         leased !      pending or failed   finished         None
    1 completed      - !           - !                 - !              None
    2 failed         - !           - !, or a retry     - !, or late     None
    orphans or None  kept !        kept !              kept !           kept !, or None !

``!`` is reported, ``-`` changes nothing. An add begins a life: of an unknown id, of orphans (which
are applied to it), or anew when it differs from the add of the living job. The original refuses a
log with most of the marked cases, though its own races write them; here each has a rule, given in
docs/folds.md with its reason. Three ideas carry them all:

 - A record says what a server did. That a job was leased or finished is a fact; that a lease or
   all attempts ran out is what the fold makes of it, and gives way to facts.
 - Once the add was seen, the order of the log rules. Only records before their add need times.
 - A start while leased means that the timeout of the lease before is still to come. It is owed,
   and when it comes it does not end the new lease.

A retry after ``fail`` (max-fails; the original has none) is the fail and a timeout-attempt with
the same time. ``retry_of`` makes the second; nothing else may come between. The fail is hidden
from the original (formats.workq_retry); to the fold a hidden record is like any other.

``apply`` changes the state it is given. Expiry and queues are views: see workq_job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from journeyman.folds.anomaly import Anomaly, AnomalyKind, Notes
from journeyman.folds.workq_job import (
    Job,
    JobState,
    Orphans,
    State,
    expires_ns,
    lease_deadline_ns,
    queue_of,
    queue_order,
    settled,
    visible,
)
from journeyman.folds.workq_limits import unusable_values
from journeyman.folds.workq_snapshot import snapshot
from journeyman.formats.workq import (
    Command,
    JobAdded,
    JobEvent,
    JobFinished,
    Record,
    UnknownCommand,
)

__all__ = [
    "Job",
    "JobState",
    "Orphans",
    "State",
    "apply",
    "expires_ns",
    "fold",
    "key_of",
    "lease_deadline_ns",
    "queue_of",
    "queue_order",
    "replay",
    "retry_of",
    "settled",
    "snapshot",
    "visible",
]

_COMPLETE, _FAIL = Command.COMPLETE, Command.FAIL
_DELETE, _EXPIRE = Command.DELETE, Command.EXPIRE
_START, _TIMEOUT = Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT
_ENDS = (_DELETE, _EXPIRE)
_PENDING, _LEASED = JobState.PENDING, JobState.LEASED
_COMPLETED, _FAILED = JobState.COMPLETED, JobState.FAILED


def key_of(record: Record) -> bytes:
    return record.job_id


def apply(state: State, record: Record, notes: Notes = None) -> State:
    """The state after ``record``. Takes ``state`` over: it may be changed and returned."""
    if isinstance(record, JobAdded):
        return _add(state, record, notes)
    if isinstance(record, UnknownCommand):
        _note(notes, AnomalyKind.UNKNOWN_COMMAND, record, f"command {int(record.command)}")
        return state
    if not isinstance(state, Job):
        return _keep_orphan(state, record, notes)
    if isinstance(record, JobFinished):
        return _finish(state, record, notes)
    command = record.command
    if command == _START:
        return _start(state, record, notes)
    if command == _TIMEOUT:
        return _time_out(state, record, notes)
    if command in _ENDS:
        return None
    _note(notes, AnomalyKind.MISPLACED_RECORD, record, "command does not fit the record")
    return state


def fold(records: Iterable[Record], notes: Notes = None) -> State:
    """The state of one job id."""
    state: State = None
    for record in records:
        state = apply(state, record, notes)
    return state


def replay(records: Iterable[Record], notes: Notes = None) -> dict[bytes, Job | Orphans]:
    """The states of a whole log. What was added and has ended leaves nothing behind."""
    states: dict[bytes, Job | Orphans] = {}
    for record in records:
        key = record.job_id
        before = states.get(key)
        state = apply(before, record, notes)
        if state is None:
            states.pop(key, None)
        elif state is not before:
            states[key] = state
    return states


def retry_of(failed: JobFinished, *, is_leased: bool = True) -> JobEvent:
    """The record that turns this fail into a retry, to be written directly after it.

    Hidden if the job was not leased: in the original it is in its queue, and stays there.
    """
    return JobEvent(failed.logged, failed.job_id, _TIMEOUT, hidden=not is_leased)


def _add(state: State, added: JobAdded, notes: Notes) -> State:
    if notes is not None:
        for phrase in unusable_values(added):
            _note(notes, AnomalyKind.UNUSABLE_VALUE, added, phrase, ())
    if state is None:
        return Job(added)
    if isinstance(state, Orphans):
        return _adopt(state.records, added, notes)
    if replace(added, logged=state.added.logged) == state.added:
        _note(notes, AnomalyKind.REPEATED_ADD, added, "added before; the first stands")
        return state
    # A server adds only where the id is free, so the former job has ended: by its TTL, or by an
    # end that the log has lost (the original's cleaner drops a delete before the add it ended).
    if added.created.unix_ns < expires_ns(state):
        detail = "added anew while the former job lived; the newer stands"
        _note(notes, AnomalyKind.REPLACED_JOB, added, detail, snapshot(state))
    return Job(added)


def _adopt(records: list[JobEvent | JobFinished], added: JobAdded, notes: Notes) -> State:
    """The add of a job whose later records stand before it in the log."""
    created_ns = added.created.unix_ns
    first = records[0]
    if first.command == _DELETE and created_ns < first.logged.unix_ns:
        _note(notes, AnomalyKind.DELETED_BEFORE_ADD, added, "its delete stands before it")
        return Orphans(records[1:]) if len(records) > 1 else None
    job = Job(added)
    for record in records:
        if record.command == _DELETE or record.logged.unix_ns < created_ns:
            _note(notes, AnomalyKind.STALE_ORPHAN, record, "older than the add that followed")
            continue
        _note(notes, AnomalyKind.ADOPTED_ORPHAN, record, "stands before its add; applied", ())
        apply(job, record, notes)  # neither delete nor expire, so the job stays
    # Nothing of a job is older than its add.
    if job.started is not None and job.started.unix_ns < added.logged.unix_ns:
        job.started = added.logged
    if job.finished is not None and job.finished.unix_ns < added.logged.unix_ns:
        job.finished = added.logged
    return job


def _keep_orphan(state: Orphans | None, record: JobEvent | JobFinished, notes: Notes) -> State:
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


def _start(job: Job, record: JobEvent, notes: Notes) -> Job:
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
    return job


def _time_out(job: Job, record: JobEvent, notes: Notes) -> Job:
    if job.state == _LEASED:
        if _is_owed(job, record):
            job.owed_timeouts -= 1
            _note(notes, AnomalyKind.LATE_TIMEOUT, record, "of a lease before the present one")
            return job
        job.owed_timeouts = 0
        if 0 < job.added.max_attempts <= job.attempts:
            job.state, job.result, job.finished = _FAILED, b"", record.logged
            job.exhausted = True
        else:
            job.state = _PENDING
    elif job.finished is None:
        _note(notes, AnomalyKind.TIMEOUT_WITHOUT_LEASE, record, "timed out without a lease", ())
        job.state = _PENDING
    elif _is_retry(job, record):
        job.state, job.result, job.finished = _PENDING, None, None
        job.fails += 1
    else:
        _note(notes, AnomalyKind.TIMEOUT_AFTER_FINISH, record, "timed out after it was finished")
    return job


def _is_owed(job: Job, record: JobEvent) -> bool:
    """Whether this timeout is that of an earlier lease, which a later start has cut off.

    Not so if it comes when the present lease is over too: then nothing is left to tell apart.
    """
    if not job.owed_timeouts:
        return False
    deadline_ns = lease_deadline_ns(job)
    return deadline_ns is not None and record.logged.unix_ns < deadline_ns


def _is_retry(job: Job, record: JobEvent) -> bool:
    """Whether this timeout takes back the failure just before it.

    The equal time tells it from a timeout that a race of the original wrote behind its fail.
    """
    return (
        job.state == _FAILED
        and not job.exhausted
        and job.finished is not None
        and job.finished.unix_ns == record.logged.unix_ns
        and job.fails + 1 < job.added.max_fails
    )


def _finish(job: Job, record: JobFinished, notes: Notes) -> Job:
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
    return job


def _fits(record: JobEvent | JobFinished) -> bool:
    """Whether the command is one of this class of record. Decoders make no other."""
    if isinstance(record, JobFinished):
        return record.command in (_COMPLETE, _FAIL)
    return record.command in (_DELETE, _EXPIRE, _START, _TIMEOUT)


def _note(
    notes: Notes,
    kind: AnomalyKind,
    record: Record,
    detail: str,
    records: tuple[Record, ...] | None = None,
) -> None:
    """Report ``record``; ``records`` are what it leaves unapplied, itself unless given."""
    if notes is not None:
        lost = (record,) if records is None else records
        notes(Anomaly(kind, record.job_id, f"{record.command.word}: {detail}", lost))
