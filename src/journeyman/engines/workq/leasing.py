"""Jobs and those who want them come together.

    lease   a job is ready       leased at once, from a queue chosen by chance among those that have
                                 one; within a queue the first
            none is              the client waits, with its number in each of the queues
    match   a job became ready   it goes to whoever has waited longest for its queue

So after every decision a queue has ready jobs or clients that wait, not both. There are two
exceptions. A paused queue gives nothing out. And a queue whose first jobs have all expired is
*starved*: only so many of them are cleared away at a time, and ``Due`` goes on with it. That comes
at once, for what has expired is due.
"""

from __future__ import annotations

from journeyman.engines.workq.ending import expire
from journeyman.engines.workq.job import (
    LEASED,
    PENDING,
    Entry,
    Spec,
    is_run,
    job_id_of,
    lease_fields_of,
    limits_of,
    opened,
    queue_of,
    shown_payload_of,
)
from journeyman.engines.workq.messages import Client, WorkqAnswer
from journeyman.engines.workq.queues import JobQueue, Waiter
from journeyman.engines.workq.state import State
from journeyman.formats.workq import Command, JobEvent
from journeyman.formats.workq.retry import delay_ms_of
from journeyman.protocols.workq.commands import Lease
from journeyman.protocols.workq.replies import TIMED_OUT, Leased, Reply
from journeyman.units import NS_PER_MS

_START = Command.START_ATTEMPT
EXPIRED_LIMIT = 16  # jobs that one decision clears out of the way


def lease(state: State, command: Lease, client: Client) -> Reply | None:
    names = command.names
    if len(names) > 1:
        names = tuple(dict.fromkeys(names))
    found = [queue for name in names if (queue := state.queues.get(name)) is not None]
    candidates = [queue for queue in found if queue.ready.size and not queue.paused]
    while candidates:
        queue = candidates[state.pick(len(candidates)) if len(candidates) > 1 else 0]
        spec = _first_ready(state, queue)
        if spec is not None:
            return _give(state, spec, queue)
        candidates.remove(queue)
    if not command.wait_ms:
        return TIMED_OUT
    until_ns = state.now_ns + command.wait_ms * NS_PER_MS
    queues = tuple(state.queues.watched(name) for name in names)
    state.waiting.add(Waiter(state.waiting.next_number(), client, until_ns, queues))
    return None


def match(state: State, queue: JobQueue) -> None:
    """A job of this queue may have become ready, or the queue been resumed."""
    while queue.waiters.size and queue.ready.size and not queue.paused:
        spec = _first_ready(state, queue)
        if spec is None:
            return
        waiter = state.waiting[queue.waiters.first()]
        state.waiting.remove(waiter)
        state.effects.append(WorkqAnswer(waiter.client, _give(state, spec, queue)))


def queue_again(state: State, job_id: bytes, entry: Entry, fails: int) -> None:
    """An attempt has come to nothing, and there shall be another, maybe not at once."""
    spec, _, attempts, _, started_ns, _, _ = opened(entry)
    delay_ms = delay_ms_of(limits_of(spec)[1])
    ready_ns = state.now_ns + delay_ms * NS_PER_MS if delay_ms else 0
    again = (spec, PENDING, attempts, fails, started_ns, ready_ns, None)
    state.jobs.replace(job_id, entry, again)
    if not delay_ms:
        match(state, state.queues.by_number[queue_of(spec)])


def _first_ready(state: State, queue: JobQueue) -> Spec | None:
    """The job to be leased next; those before it that have expired are ended."""
    cleared = 0
    while queue.ready.size:
        spec = queue.ready.first()
        if not state.is_expired(spec):
            return spec
        if cleared == EXPIRED_LIMIT:
            state.starved.add(queue)
            return None
        job_id = job_id_of(spec)
        entry = state.jobs.get(job_id)
        assert entry is not None
        expire(state, job_id, entry)
        cleared += 1
    return None


def _give(state: State, spec: Spec, queue: JobQueue) -> Leased:
    """Lease the ready job to whoever gets the reply."""
    job_id, _, ttr_ms = lease_fields_of(spec)
    entry = state.jobs.get(job_id)
    assert entry is not None
    attempts = fails = 0
    if not isinstance(entry, bytes):
        _, _, attempts, fails, _, _, _ = entry
    now_ns = state.now_ns
    leased = (spec, LEASED, attempts + 1, fails, now_ns, now_ns + ttr_ms * NS_PER_MS, None)
    state.jobs.lease_ready(job_id, entry, leased, queue)
    if not is_run(spec):
        state.records.append(JobEvent(state.instant, job_id, _START))
    return Leased(job_id, queue.name, ttr_ms, shown_payload_of(spec))
