"""What the time brings.

    in this order                         records
    ------------------------------------  ---------------------------------------------------------
    TTLs that are over                    expire
    TTRs that are over                    timeout-attempt; the job is queued again, or has failed
    scheduled jobs, delays before a retry none: that a job is due is not a fact but a matter of time
    waits that are over                   none

Nothing is made for a job beyond its places in these orders, and each step takes what is first in
one of them. A million jobs may expire at one moment: a step ends after so many, and the next
``WorkqDue`` goes on, with the commands of clients in between. No kind of step starves another.
"""

from __future__ import annotations

from journeyman.engines.sorted_set import Order
from journeyman.engines.workq.job import LEASED, NEW, id_in, moment_of, opened, queue_of
from journeyman.engines.workq.lifecycle import expire, give_up_run, match, time_out
from journeyman.engines.workq.messages import Client, WorkqDue
from journeyman.engines.workq.state import WorkqState
from journeyman.protocols.workq.replies import DONE, TIMED_OUT, Reply


def next_due_ns(state: WorkqState) -> int | None:
    """The first moment at which there is something to do."""
    jobs = state.jobs
    firsts = [moment_of(order.first()) for order in (jobs.expiries, jobs.leases, jobs.due) if order]
    if state.waiting.deadlines:
        firsts.append(state.waiting.deadlines.first()[0])
    return min(firsts, default=None)


def due(state: WorkqState, command: WorkqDue, _client: Client) -> Reply:
    steps = (_end_lives, _end_attempts, _awaken, _end_waits)
    left = command.limit
    share = max(left // len(steps), 1)
    for limit in (share, left):  # first each its share; then what the others have left
        for step in steps:
            left -= step(state, min(limit, left))
    while state.starved:
        queue = state.starved.pop()
        match(state, queue)
        if queue in state.starved:
            break
    return DONE


def _has_come(state: WorkqState, order: Order[bytes]) -> bool:
    return order.size > 0 and moment_of(order.first()) <= state.now_ns


def _end_lives(state: WorkqState, limit: int) -> int:
    expiries, done = state.jobs.expiries, 0
    while done < limit and _has_come(state, expiries):
        job_id = id_in(expiries.first())
        entry = state.jobs.get(job_id)
        assert entry is not None
        expire(state, job_id, entry)
        done += 1
    return done


def _end_attempts(state: WorkqState, limit: int) -> int:
    leases, done = state.jobs.leases, 0
    while done < limit and _has_come(state, leases):
        job_id = id_in(leases.first())
        entry = state.jobs.get(job_id)
        assert entry is not None
        time_out(state, job_id, entry)
        done += 1
    return done


def _awaken(state: WorkqState, limit: int) -> int:
    waking, done = state.jobs.due, 0
    while done < limit and _has_come(state, waking):
        job_id = id_in(waking.first())
        entry = state.jobs.get(job_id)
        assert entry is not None
        spec, stage, attempts, fails, started_ns, _, _ = opened(entry)
        ready = spec if stage == NEW else (spec, stage, attempts, fails, started_ns, 0, None)
        state.jobs.replace(job_id, entry, ready)
        match(state, state.queues.by_number[queue_of(spec)])
        done += 1
    return done


def _end_waits(state: WorkqState, limit: int) -> int:
    deadlines, done = state.waiting.deadlines, 0
    while done < limit and deadlines and deadlines.first()[0] <= state.now_ns:
        waiter = state.waiting[deadlines.first()[1]]
        done += 1
        if not waiter.is_run:
            state.answer(waiter, TIMED_OUT)
            continue
        entry = state.jobs.get(waiter.job_id)
        assert entry is not None
        if opened(entry)[1] == LEASED:  # a worker is at it: the TTR counts from now on
            state.waiting.remove(waiter)
            state.waiting.add(waiter._replace(until_ns=None))
        else:
            give_up_run(state, waiter.job_id, entry)
    return done
