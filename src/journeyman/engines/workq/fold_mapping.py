"""A job of the engine as the fold tells it, and back.

    entry (workq_job)  --job_of-->  Job (folds.workq), and the time of its last timeout-attempt
                       <-entry_of--

What the engine has packed is all that the fold knows of a job, apart from zone offsets and timeouts
that are owed, which only the logs of others have. The time of a timeout-attempt is what a delay
before a retry is counted from; the fold leaves it out, and it is 0 where it does not matter.
"""

from __future__ import annotations

from journeyman.engines.workq.job import (
    EXHAUSTED,
    FAILED,
    IS_SCHEDULE,
    LEASED,
    PENDING,
    Entry,
    fields_of,
    opened,
    pack,
)
from journeyman.folds.workq import FoldedJob, JobState
from journeyman.formats.workq import Command, Instant, JobAdded
from journeyman.formats.workq.retry import delay_ms_of
from journeyman.units import NS_PER_MS


def entry_of(job: FoldedJob, queue: int, timeout_ns: int) -> Entry:
    """For ``Assembly.put``: ``moment_ns`` of a pending job is the time of its timeout-attempt."""
    added = job.added
    spec = pack(
        added.job_id,
        queue,
        added.ttr_ms,
        added.ttl_ms,
        added.priority,
        added.max_attempts,
        added.max_fails,
        added.created.unix_ns,
        None if added.time is None else added.time.unix_ns,
        IS_SCHEDULE if added.command == Command.SCHEDULE else 0,
        added.payload,
    )
    stage = int(job.state)
    started_ns = 0 if job.started is None else job.started.unix_ns
    moment_ns = timeout_ns if stage == PENDING else 0
    if stage == LEASED:
        moment_ns = started_ns + added.ttr_ms * NS_PER_MS
    elif job.finished is not None:
        moment_ns = job.finished.unix_ns
        stage = EXHAUSTED if job.exhausted else stage
    return (spec, stage, job.attempts, job.fails, started_ns, moment_ns, job.result)


def job_of(entry: Entry, name: str) -> tuple[FoldedJob, int]:
    """The job, and the time of its last timeout-attempt if a delay is counted from it."""
    spec, stage, attempts, fails, started_ns, moment_ns, result = opened(entry)
    fields = fields_of(spec)
    created = Instant(fields.created_ns)
    added = JobAdded(
        created,
        fields.job_id,
        name,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.priority,
        fields.max_attempts,
        fields.max_fails,
        fields.payload,
        None if fields.time_ns is None else Instant(fields.time_ns),
        created,
        Command.SCHEDULE if fields.flags & IS_SCHEDULE else Command.ADD,
    )
    job = FoldedJob(
        added,
        JobState(FAILED if stage == EXHAUSTED else stage),
        attempts,
        fails,
        result,
        Instant(started_ns) if attempts else None,
        Instant(moment_ns) if result is not None else None,
        stage == EXHAUSTED,
    )
    timeout_ns = 0
    if stage == PENDING and moment_ns:
        timeout_ns = moment_ns - delay_ms_of(fields.max_fails) * NS_PER_MS
    return job, timeout_ns
