"""The shortest honest history of a workq job: records that fold to a given state.

    add or schedule
    (fail timeout) * fails            failures that were retried
    (start timeout) * n  start * m    attempts; the last start bears the true time
    complete | fail | timeout         how it ended

What cannot be told apart in the state is told in the simplest way. Where the state is one that
the original can reach, it can load these records too: attempts that ended are pairs of start and
timeout, a lease is an open start. Starts without a timeout between them, which it refuses, are
written only for states that its own races, or attempts over the limit, have made. Retried
failures it steps over (formats.workq_retry).

Times are those of the state: what has no time of its own there takes the add's. As long as the
times in the log did not run backwards, those of a snapshot do not either.
"""

from __future__ import annotations

from collections.abc import Iterator

from journeyman.folds.workq_job import Job, JobState, Orphans, State
from journeyman.formats.workq import Command, Instant, JobEvent, JobFinished, Record

__all__ = ["snapshot"]


def snapshot(state: State, timed_out_ns: int = 0) -> tuple[Record, ...]:
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


def _history(job: Job, ended: Instant | None) -> Iterator[Record]:
    added = job.added
    born = added.logged
    started = born if job.started is None else job.started
    pairs = _attempts_in_pairs(job)
    open_starts = job.attempts - pairs
    # Beyond max-attempts only a retried failure queues a job again; then it is told last.
    fail_last = job.state == JobState.PENDING and open_starts > 0

    yield added
    last_fail = None if job.attempts else job.fails - 1
    for number in range(job.fails - fail_last):
        at = ended if ended is not None and number == last_fail else born
        yield from _retried(job, at, is_leased=False)
    for number in range(1, job.attempts + 1):
        at = started if number == job.attempts else born
        yield _event(job, at, Command.START_ATTEMPT)
        if number <= pairs:
            over = ended if ended is not None and number == job.attempts else at
            yield _event(job, over, Command.TIMEOUT_ATTEMPT)

    # Each open start but the last owes a timeout, except that a TTR of 0 owes nothing.
    owed = open_starts - 1 if open_starts and added.ttr_ms else 0
    if job.state == JobState.LEASED or job.exhausted:
        for _ in range(owed - job.owed_timeouts):
            yield _event(job, started, Command.TIMEOUT_ATTEMPT)
    elif fail_last:
        yield from _retried(job, ended or started, is_leased=True)
    elif job.state == JobState.PENDING and not job.attempts and not job.fails:
        yield _hidden_timeout(job, ended or born)

    if job.exhausted:
        yield _event(job, job.finished or born, Command.TIMEOUT_ATTEMPT)
    elif job.result is not None:
        command = Command.COMPLETE if job.state == JobState.COMPLETED else Command.FAIL
        yield _finish(job, job.finished or born, command, job.result)


def _attempts_in_pairs(job: Job) -> int:
    """How many attempts are told as a start and its timeout.

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


def _event(job: Job, logged: Instant, command: Command) -> JobEvent:
    return JobEvent(logged, job.added.job_id, command)


def _retried(job: Job, logged: Instant, *, is_leased: bool) -> Iterator[Record]:
    yield JobFinished(logged, job.added.job_id, Command.FAIL, b"", hidden=True)
    timeout = _event(job, logged, Command.TIMEOUT_ATTEMPT)
    yield timeout if is_leased else _hidden_timeout(job, logged)


def _hidden_timeout(job: Job, logged: Instant) -> JobEvent:
    """Of a job that the original has in its queue, and must not put there again."""
    return JobEvent(logged, job.added.job_id, Command.TIMEOUT_ATTEMPT, hidden=True)


def _finish(job: Job, logged: Instant, command: Command, result: bytes) -> JobFinished:
    return JobFinished(logged, job.added.job_id, command, result)
