"""How jobs come: add, schedule, run, and requeue of a dead one.

    add, schedule   JobAdded; ready now or at its time, until TTL after its creation or its time
    run             nothing is written; ready now, its client waits for the result
    requeue         delete and JobAdded in one step: a new life of a failed job under its old id,
                    with no attempts or fails counted, a TTL from now on, and ready at once

The log has no record that brings a failed job back, and none may be written that the original
refuses. Delete and add are two that it knows.
"""

from __future__ import annotations

from journeyman.engines.workq.job import (
    EXHAUSTED,
    FAILED,
    IS_RUN,
    IS_SCHEDULE,
    LEASED,
    NEW,
    fields_of,
    opened,
    pack,
)
from journeyman.engines.workq.lifecycle import expire, give_up_run, match
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.queues import Waiter
from journeyman.engines.workq.state import WorkqState
from journeyman.formats.workq import Command, Instant, JobAdded, records, retry
from journeyman.protocols.workq.commands import (
    Add,
    Complaint,
    RefusedLine,
    Requeue,
    Run,
    ScheduleJob,
)
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, TIMED_OUT, Reply
from journeyman.units import NS_PER_MS

_ADD, _SCHEDULE = Command.ADD, Command.SCHEDULE  # to look a member up takes its time
_DUPLICATE = RefusedLine(Complaint.DUPLICATE_JOB)
_NOT_DEAD = RefusedLine(Complaint.NOT_DEAD)
_TOO_LATE = RefusedLine(Complaint.TIME)
NO_TIME_NS = records.to_unix_ns(0, 0)  # how the log says that a job has no time


def add(state: WorkqState, command: Add, _client: Client) -> Reply:
    job_id, name, ttr_ms, ttl_ms, payload, priority, max_attempts, max_fails, delay_ms = command
    if state.jobs.get(job_id) is not None and not _is_free(state, job_id):
        return _DUPLICATE
    if delay_ms:
        max_fails = retry.pack(max_fails, delay_ms)
    _enqueue(state, job_id, name, ttr_ms, ttl_ms, priority, max_attempts, max_fails, None, payload)
    return DONE


def schedule(state: WorkqState, command: ScheduleJob, _client: Client) -> Reply:
    job_id, name, ttr_ms, ttl_ms, time_ns, payload, priority, attempts, fails, delay_ms = command
    is_scheduled = time_ns != NO_TIME_NS
    if is_scheduled and time_ns + ttl_ms * NS_PER_MS <= state.now_ns:
        return _TOO_LATE
    if not _is_free(state, job_id):
        return _DUPLICATE
    _enqueue(
        state,
        job_id,
        name,
        ttr_ms,
        ttl_ms,
        priority,
        attempts,
        retry.pack(fails, delay_ms),
        time_ns if is_scheduled else None,
        payload,
    )
    return DONE


def run(state: WorkqState, command: Run, client: Client) -> Reply | None:
    job_id, name, ttr_ms, wait_ms, payload, priority = command
    if not _is_free(state, job_id):
        return _DUPLICATE
    queue = state.queues.use(name)
    created_ns = state.moment_of_its_own().unix_ns
    spec = pack(job_id, queue.number, ttr_ms, 0, priority, 0, 0, created_ns, None, IS_RUN, payload)
    state.jobs.replace(job_id, None, spec)
    match(state, queue)
    entry = state.jobs.get(job_id)
    assert entry is not None
    if not wait_ms and opened(entry)[1] != LEASED:
        give_up_run(state, job_id, entry)
        return TIMED_OUT
    until_ns = state.now_ns + wait_ms * NS_PER_MS
    number = state.waiting.next_number()
    state.waiting.add(Waiter(number, client, until_ns, job_id=job_id, is_run=True))
    return None


def requeue(state: WorkqState, command: Requeue, _client: Client) -> Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return NOT_FOUND
    spec, stage, _, _, _, _, _ = opened(entry)
    if stage not in (FAILED, EXHAUSTED):
        return _NOT_DEAD
    fields = fields_of(spec)
    state.jobs.replace(job_id, entry, None)
    state.record_event(job_id, Command.DELETE)
    _enqueue(
        state,
        job_id,
        state.queues.by_number[fields.queue].name,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.priority,
        fields.max_attempts,
        fields.max_fails,
        None,
        fields.payload,
    )
    return DONE


def _is_free(state: WorkqState, job_id: bytes) -> bool:
    """Whether a job may have this id. One whose TTL is over makes room."""
    entry = state.jobs.get(job_id)
    if entry is None:
        return True
    if not state.is_expired(entry):
        return False
    expire(state, job_id, entry)
    return True


def _enqueue(
    state: WorkqState,
    job_id: bytes,
    name: str,
    ttr_ms: int,
    ttl_ms: int,
    priority: int,
    max_attempts: int,
    max_fails: int,
    time_ns: int | None,
    payload: bytes,
) -> None:
    """A job begins; ``max_fails`` is as in the log."""
    queue = state.queues.use(name)
    created = state.moment_of_its_own()
    created_ns = created.unix_ns
    flags, command, time, begins_ns = 0, _ADD, None, created_ns
    if time_ns is not None:
        flags, command, time, begins_ns = IS_SCHEDULE, _SCHEDULE, Instant(time_ns), time_ns
    spec = pack(
        job_id,
        queue.number,
        ttr_ms,
        ttl_ms,
        priority,
        max_attempts,
        max_fails,
        created_ns,
        time_ns,
        flags,
        payload,
    )
    if begins_ns <= created_ns:
        state.jobs.add_ready(job_id, spec, queue, begins_ns + ttl_ms * NS_PER_MS)
    else:
        state.jobs.replace(job_id, None, (spec, NEW, 0, 0, 0, begins_ns, None))
    state.records.append(
        JobAdded(
            created,
            job_id,
            name,
            ttr_ms,
            ttl_ms,
            priority,
            max_attempts,
            max_fails,
            payload,
            time,
            created,
            command,
        )
    )
    if queue.waiters.size:
        match(state, queue)
