"""The life of a job after it was added: leased, finished, retried or ended.

    lease            a job is ready: leased at once, the first of a queue chosen at random among
                     those with a ready job
                     none is ready: the client waits, with its number in each of the queues
    match            a job became ready: it goes to the client that has waited longest for its queue
    complete, fail   the result is kept until the TTL ends, and all waiting clients get it now
    fail, retried    back to the queue, at once or after a delay; no client is answered
    fail, released   the same, as if the TTR had ended: no failure counts, and the ledger counts how
                     often, so that a worker does not take it for a worker that died
    cancel           a fail for good by any client; the ledger says that it was a cancellation
    result           answered at once, or when the job finishes or ends
    delete, expire   the job no longer exists
    touch            the lease ends later: no record, but the ledger has the first touch
    due              events whose time has come, in this order:
                     TTLs that ended                        expire
                     TTRs that ended                        timeout-attempt; pending, or failed
                     scheduled jobs, retry delays           no record: being due is not a fact
                     waits that ended                       no record
                     parked jobs whose wait is over         wake
                     events whose retention is over         in the ledger
                     rates that allow a start again,        no record
                     of queues and of keys
                     options to be forgotten                in the ledger

After every decision a queue has ready jobs or waiting clients, not both, with three exceptions. A
paused queue leases nothing. Nor does a queue at its limits: it is checked again when one of its
leases ends, or by ``WorkqDue`` when the rate allows. And a queue whose first jobs have all expired,
or are held back by their key, is *starved*: only some of them are removed at a time, and
``WorkqDue`` continues at once.

Neither complete nor fail needs a lease, except a fail of a given attempt that may be retried: it is
sent again after a lost connection, and counts once. A fail is retried if max-fails allows another
failure and max-attempts another attempt; that is written as the fail and a timeout-attempt with the
same time (folds.workq).

Each step of ``due`` takes the first entry of one of the orders. A million jobs may expire at once,
so a step ends after a limited number, and the next ``WorkqDue`` continues, with the commands of
clients in between. No kind of step starves another.

A client that waits for a job that is deleted or expires gets NOT_FOUND; the client of a run that is
given up gets TIMED_OUT. ``run`` jobs are never written, and leave nothing when they finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import packed, parks, steps
from journeyman.engines.workq.extensions import EFFORT_LIMIT, FORGET_LIMIT
from journeyman.engines.workq.ledger_entries import StoredJobOptions
from journeyman.engines.workq.messages import Client, WorkqDue, WorkqGone
from journeyman.engines.workq.queues import JobQueue, Waiter
from journeyman.engines.workq.state import WorkqState
from journeyman.engines.workq.worker_commands import tell_worker
from journeyman.folds.workq import retry_of
from journeyman.formats.ledger import ParentForgotten
from journeyman.formats.workq import CANCELLATION, Command, JobEvent, JobFinished, max_fails_of
from journeyman.protocols.workq import commands, replies
from journeyman.units import NS_PER_MS

_COMPLETE, _FAIL = Command.COMPLETE, Command.FAIL  # to look a member up takes its time
_START = Command.START_ATTEMPT
_DUPLICATE = commands.RefusedLine(commands.Complaint.DUPLICATE_RESULT)
_LEASED_AGAIN = commands.RefusedLine(commands.Complaint.LEASED_AGAIN)
_NO_LEDGER = commands.RefusedLine(commands.Complaint.NO_LEDGER)
_NOT_LEASED = commands.RefusedLine(commands.Complaint.NOT_LEASED)
_CANCELLED = commands.RefusedLine(commands.Complaint.CANCELLED)
EXPIRED_LIMIT = 16  # jobs that one decision clears out of the way
HELD_LIMIT = 1000  # jobs that it finds without room of their key
LEASED_BYTES = 1024 * 1024  # payloads of a lease of several, beyond its first job


# -- leases --


def lease(state: WorkqState, command: commands.Lease, client: Client) -> replies.Reply | None:
    names = command.names
    if len(names) > 1:
        names = tuple(dict.fromkeys(names))
    found = [queue for name in names if (queue := state.queues.get(name)) is not None]
    reply = _lease_from(state, found, command.max_jobs, command.worker)
    if reply is not None:
        return reply
    if not command.wait_ms:
        return replies.TIMED_OUT
    until_ns = state.now_ns + command.wait_ms * NS_PER_MS
    queues = tuple(state.queues.watch(name) for name in names)
    number, max_jobs, worker = state.waiting.next_number(), command.max_jobs, command.worker
    state.waiting.add(Waiter(number, client, until_ns, queues, max_jobs=max_jobs, worker=worker))
    return None


def _lease_from(
    state: WorkqState, queues: Iterable[JobQueue], max_jobs: int, worker: str
) -> replies.Leased | replies.LeasedJobs | None:
    """Lease as many jobs as are asked for and ready, each from a queue chosen by chance."""
    candidates = [queue for queue in queues if queue.ready.size and _is_open(state, queue)]
    given: list[replies.LeasedMore] = []
    size = 0
    while candidates:
        queue = candidates[state.pick(len(candidates)) if len(candidates) > 1 else 0]
        spec = _first_ready(state, queue)
        if spec is None:
            candidates.remove(queue)
            continue
        if not max_jobs:
            return _give(state, spec, queue, worker)
        size += packed.payload_bytes_of(spec)
        if given and size > LEASED_BYTES:
            break
        given.append(_give_more(state, spec, queue, worker))
        if len(given) == max_jobs:
            break
        if not queue.ready.size or not _is_open(state, queue):
            candidates.remove(queue)
    return replies.LeasedJobs(tuple(given)) if given else None


def _is_open(state: WorkqState, queue: JobQueue) -> bool:
    """Return whether the queue gives out jobs: it is not paused, and its limits have room."""
    if queue.paused:
        return False
    if queue.limits is commands.NO_LIMITS:
        return True
    if 0 < queue.limits.concurrency <= queue.leased:
        return False
    if queue.opens_ns(state.now_ns) > state.now_ns:
        state.gated.add(queue)
        return False
    return True


def match(state: WorkqState, queue: JobQueue) -> None:
    """A job of this queue may have become ready, or the queue been resumed."""
    while queue.waiters.size and queue.ready.size and _is_open(state, queue):
        waiter = state.waiting[queue.waiters.first()]
        reply = _lease_from(state, (queue,), waiter.max_jobs, waiter.worker)
        if reply is None:
            return
        state.answer(waiter, reply)


def _first_ready(state: WorkqState, queue: JobQueue) -> packed.Spec | None:
    """The job to be leased next; those before it that have expired are ended."""
    cleared = held = 0
    while queue.ready.size:
        spec = queue.ready.first()
        if not state.is_expired(spec):
            if queue.limits is commands.NO_LIMITS or not queue.is_saturated(spec, state.now_ns):
                return spec
            queue.hold(spec, state.now_ns)
            if queue.key_rates.has_gates:
                state.key_gated.add(queue)
            held += 1
            if held < HELD_LIMIT:
                continue
        if cleared == EXPIRED_LIMIT or held == HELD_LIMIT:
            state.starved.add(queue)
            return None
        job_id = packed.job_id_of(spec)
        entry = state.jobs.get(job_id)
        assert entry is not None
        expire(state, job_id, entry)
        cleared += 1
    return None


def _give(state: WorkqState, spec: packed.Spec, queue: JobQueue, worker: str) -> replies.Leased:
    """Lease the ready job to the client that gets the reply."""
    job_id, _, ttr_ms = packed.lease_fields_of(spec)
    entry = state.jobs.get(job_id)
    assert entry is not None
    if queue.limits.fair:
        queue.take_turn(spec)
    state.jobs.lease_ready(job_id, entry, packed.begin_lease(entry, ttr_ms, state.now_ns), queue)
    if not packed.is_run(spec):
        hidden = packed.was_parked(spec)
        state.records.append(JobEvent(state.instant, job_id, _START, hidden))
    if queue.limits.rate:
        state.extensions.note_start(queue, state.now_ns)
    if queue.limits.key_rate and packed.has_key(spec):
        state.extensions.note_undo(queue.key_rates.note_start(packed.key_of(spec), state.now_ns))
    if worker or state.extensions.workers or state.extensions.former_workers:
        attempt = packed.opened(entry)[2] + 1
        state.extensions.note_worker(job_id, worker, attempt)
    return replies.Leased(job_id, queue.name, ttr_ms, packed.shown_payload_of(spec))


def _give_more(
    state: WorkqState, spec: packed.Spec, queue: JobQueue, worker: str
) -> replies.LeasedMore:
    leased = _give(state, spec, queue, worker)
    entry = state.jobs.get(leased.job_id)
    assert entry is not None
    _, _, attempts, fails, _, _, _ = packed.opened(entry)
    options = state.extensions.options.get(leased.job_id)
    given_back = packed.parks_of(spec) + (0 if options is None else options.given_back)
    max_fails = max_fails_of(packed.limits_of(spec)[1])
    return replies.LeasedMore(*leased, attempts, fails, max_fails, given_back)


def touch(state: WorkqState, command: commands.Touch, _client: Client) -> replies.Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    spec, stage, attempts, *_ = packed.opened(entry)
    if stage != packed.LEASED or isinstance(entry, bytes):
        return _CANCELLED if stage == packed.CANCELLED else _NOT_LEASED
    ttr_ms = packed.lease_fields_of(spec)[2] if command.ttr_ms is None else command.ttr_ms
    ends_ns = state.now_ns + ttr_ms * NS_PER_MS
    state.jobs.replace(job_id, entry, packed.move_lease_end(entry, ends_ns))
    options = state.extensions.options.get(job_id, StoredJobOptions())
    if state.extensions.is_allowed and not packed.is_run(spec) and options.touched != attempts:
        state.set_options(job_id, options._replace(touched=attempts))
    return replies.DONE


def time_out(state: WorkqState, job_id: bytes, entry: packed.Entry) -> None:
    """The TTR of a lease is over."""
    if packed.is_run(packed.spec_of(entry)):
        give_up_run(state, job_id, entry)
        return
    state.record_timeout(job_id, packed.spec_of(entry))
    _after_attempt(state, job_id, entry, packed.end_lease(entry, state.now_ns))


def _after_attempt(
    state: WorkqState, job_id: bytes, entry: packed.Entry, after: packed.Progress
) -> None:
    """An attempt has come to nothing: the job waits again, maybe not at once, or has failed."""
    state.jobs.replace(job_id, entry, after)
    spec, stage, _, _, _, ready_ns, _ = after
    if stage != packed.PENDING:
        state.tell(job_id, replies.Finished(job_id, False, b""))
        state.note_end(job_id, packed.FAILED)
    elif not ready_ns:
        match(state, state.queues.by_number[packed.queue_of(spec)])


# -- results --


def complete(state: WorkqState, command: commands.Complete, _client: Client) -> replies.Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    _, stage, attempts, *_ = packed.opened(entry)
    if stage not in packed.UNFINISHED:
        return _DUPLICATE
    if command.attempt and command.attempt != attempts:
        return _LEASED_AGAIN
    finished = JobFinished(state.instant, job_id, _COMPLETE, command.result)
    _finish(state, entry, finished, packed.COMPLETED)
    return replies.DONE


def fail(state: WorkqState, command: commands.Fail, _client: Client) -> replies.Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    spec, stage, attempts, fails, _, _, _ = packed.opened(entry)
    if stage not in packed.UNFINISHED:
        return _DUPLICATE
    if command.attempt and command.attempt != attempts:
        return _LEASED_AGAIN
    if command.attempt and not command.is_final and stage != packed.LEASED:
        return _NOT_LEASED  # it was counted before, and is sent again; or its TTR has ended
    if command.is_release:
        return _release(state, command, entry)
    if not command.is_final and _may_retry(spec, attempts, fails):
        has_delay = command.delay_ms is not None and not packed.is_run(spec)
        if has_delay and not state.extensions.is_allowed:
            return _NO_LEDGER
        retried = JobFinished(state.instant, job_id, _FAIL, command.result, hidden=True)
        is_leased = stage == packed.LEASED and not packed.was_parked(spec)
        state.records += (retried, retry_of(retried, is_leased=is_leased))
        after = packed.try_again(entry, state.now_ns, command.delay_ms)
        if has_delay:
            _keep_delay(state, job_id, after[5])
        _after_attempt(state, job_id, entry, after)
    else:
        finished = JobFinished(state.instant, job_id, _FAIL, command.result)
        _finish(state, entry, finished, packed.FAILED)
    return replies.DONE


def cancel(state: WorkqState, command: commands.Cancel, _client: Client) -> replies.Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    spec, stage, *_ = packed.opened(entry)
    if stage not in packed.UNFINISHED:
        return _DUPLICATE
    if not packed.is_run(spec):
        if not state.extensions.is_allowed:
            return _NO_LEDGER
        options = state.extensions.options.get(job_id, StoredJobOptions())
        state.set_options(job_id, options._replace(cancelled_ns=state.now_ns))
    if stage == packed.LEASED:
        queue = state.queues.by_number[packed.queue_of(spec)].name
        tell_worker(state, queue, replies.Finished(job_id, False, CANCELLATION))
    failed = JobFinished(state.instant, job_id, _FAIL, CANCELLATION)
    _finish(state, entry, failed, packed.CANCELLED)
    return replies.DONE


def _release(state: WorkqState, command: commands.Fail, entry: packed.Entry) -> replies.Reply:
    """The worker gives the job back: the lease ends as if its time were over, maybe with a delay
    of its own before the next one."""
    job_id, delay_ms = command.job_id, command.delay_ms
    spec, stage, *_ = packed.opened(entry)
    if stage != packed.LEASED:
        return _NOT_LEASED
    if delay_ms is not None and not packed.is_run(spec) and not state.extensions.is_allowed:
        return _NO_LEDGER
    after = packed.end_lease(entry, state.now_ns)
    if packed.is_run(spec) or after[1] != packed.PENDING:
        time_out(state, job_id, entry)
        return replies.DONE
    if delay_ms is not None:
        ready_ns = state.now_ns + delay_ms * NS_PER_MS if delay_ms else 0
        after = packed.move_lease_end(after, ready_ns)
        _keep_delay(state, job_id, ready_ns)
    if state.extensions.is_allowed:
        options = state.extensions.options.get(job_id, StoredJobOptions())
        state.set_options(job_id, options._replace(given_back=options.given_back + 1))
    state.record_timeout(job_id, spec)
    _after_attempt(state, job_id, entry, after)
    return replies.DONE


def _keep_delay(state: WorkqState, job_id: bytes, ready_ns: int) -> None:
    options = state.extensions.options.get(job_id, StoredJobOptions())
    now_ns = state.now_ns
    state.set_options(job_id, options._replace(failed_ns=now_ns, ready_ns=ready_ns or now_ns))


def result(
    state: WorkqState, command: commands.AwaitResult, client: Client
) -> replies.Reply | None:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        if job_id not in state.extensions.children:
            return replies.NOT_FOUND
    elif (outcome := packed.result_of(packed.opened(entry))) is not None:
        return replies.Finished(job_id, packed.opened(entry)[1] == packed.COMPLETED, outcome)
    if not command.wait_ms:
        return replies.TIMED_OUT
    until_ns = state.now_ns + command.wait_ms * NS_PER_MS
    number = state.waiting.next_number()
    state.waiting.add(Waiter(number, client, until_ns, job_id=job_id))
    return None


def _finish(state: WorkqState, entry: packed.Entry, finished: JobFinished, stage: int) -> None:
    job_id, result = finished.job_id, finished.result
    after = packed.keep_result(entry, stage, state.now_ns, result)
    if packed.is_run(after[0]):
        state.jobs.replace(job_id, entry, None)
    else:
        state.jobs.replace(job_id, entry, after)
        state.records.append(finished)
    if state.waiting.awaits(job_id):
        state.tell(job_id, replies.Finished(job_id, stage == packed.COMPLETED, result))
    state.note_end(job_id, stage)


def _may_retry(spec: packed.Spec, attempts: int, fails: int) -> bool:
    max_attempts, max_fails = packed.limits_of(spec)
    return fails + 1 < max_fails_of(max_fails) and not 0 < max_attempts <= attempts


# -- ends --


def delete(state: WorkqState, command: commands.Delete, _client: Client) -> replies.Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    state.jobs.replace(job_id, entry, None)
    if not packed.is_run(packed.spec_of(entry)):
        state.record_event(job_id, Command.DELETE)
    state.tell(job_id, replies.NOT_FOUND)
    state.note_end(job_id, packed.opened(entry)[1], is_gone=True, was=entry)
    return replies.DONE


def expire(state: WorkqState, job_id: bytes, entry: packed.Entry) -> None:
    """Its TTL is over."""
    state.jobs.replace(job_id, entry, None)
    state.record_event(job_id, Command.EXPIRE)
    state.tell(job_id, replies.NOT_FOUND)
    state.note_end(job_id, packed.opened(entry)[1], is_gone=True, was=entry)
    if packed.opened(entry)[1] in packed.UNFINISHED:
        state.evicted += 1


def give_up_run(state: WorkqState, job_id: bytes, entry: packed.Entry) -> None:
    """It was not finished in time."""
    state.jobs.replace(job_id, entry, None)
    state.note_end(job_id, packed.FAILED, is_gone=True)
    for waiter in state.waiting.of_job(job_id):
        state.answer(waiter, replies.TIMED_OUT if waiter.is_run else replies.NOT_FOUND)


def client_left(state: WorkqState, command: WorkqGone, _client: Client) -> replies.Reply:
    """The client waits no longer. A run of it that no worker has begun goes as well; one that is
    under way does not, for others may wait for its result."""
    waiter = state.waiting.of_client(command.client)
    if waiter is None:
        return replies.NOT_FOUND
    state.waiting.remove(waiter)
    if waiter.is_run:
        entry = state.jobs.get(waiter.job_id)
        if entry is not None and packed.opened(entry)[1] != packed.LEASED:
            give_up_run(state, waiter.job_id, entry)
    return replies.DONE


# -- what the time brings --


def next_due_ns(state: WorkqState) -> int | None:
    """The first moment at which there is something to do."""
    jobs = state.jobs
    orders = jobs.expiries, jobs.leases, jobs.due
    firsts = [packed.moment_of(order.first()) for order in orders if order.size]
    if state.waiting.deadlines.size:
        firsts.append(state.waiting.deadlines.first()[0])
    if state.gated:
        firsts += [queue.opens_ns(state.now_ns) for queue in state.gated]
    if state.key_gated:
        gated = [queue.key_rates for queue in state.key_gated if queue.key_rates.has_gates]
        firsts += [rates.next_gate_ns(state.now_ns) for rates in gated]
    if state.extensions.is_forgetting:
        firsts.append(state.extensions.forget_at_ns)
    if state.extensions.lingering:
        firsts.append(next(iter(state.extensions.lingering.values())))
    if state.starved or state.loosened or state.extensions.ready_children:
        firsts.append(state.now_ns)
    if state.extensions.waking or state.extensions.ringing:
        firsts.append(state.now_ns)
    if state.extensions.events:
        first = next(iter(state.extensions.events.values()))
        firsts.append(first.done_ns + state.extensions.retention_ns)
    if state.unsaid or state.unwritten:
        firsts.append(state.now_ns)
    return min(firsts, default=None)


def due(state: WorkqState, command: WorkqDue, _client: Client) -> replies.Reply:
    kinds = (
        *(_end_lives, _end_attempts, _wake_up, _end_waits, drain_held, _open_keys),
        parks.wake_some,
    )
    left = command.limit
    share = max(left // len(kinds), 1)
    for limit in (share, left):  # first each its share; then what the others have left
        for treat in kinds:
            left -= treat(state, min(limit, left))
    for queue in [queue for queue in state.gated if queue.opens_ns(state.now_ns) <= state.now_ns]:
        state.gated.discard(queue)
        match(state, queue)
    _forget_options(state)
    while state.starved:
        queue = state.starved.pop()
        match(state, queue)
        if queue in state.starved:
            break
    return replies.DONE


def drain_held(state: WorkqState, limit: int) -> int:
    """Let jobs be ready again that were held back before limits changed. Returns how many."""
    done = 0
    while state.loosened and done < limit:
        queue = next(iter(state.loosened))
        if queue.drain_one():
            done += 1
            if done == limit:
                match(state, queue)
        else:
            state.loosened.discard(queue)
            match(state, queue)
    return done


def _open_keys(state: WorkqState, limit: int) -> int:
    """Let jobs be ready again whose key has room in its rate. Returns how many."""
    done = 0
    for queue in list(state.key_gated):
        before = done
        while done < limit and (key := queue.key_rates.open_one(state.now_ns)) is not None:
            queue.release_one(key)
            done += 1
        if not queue.key_rates.has_gates:
            state.key_gated.discard(queue)
        if done > before:
            match(state, queue)
    return done


def _forget_options(state: WorkqState) -> None:
    """Remove options that the ledger no longer needs, many at a time."""
    extensions = state.extensions
    state.say_unsaid()
    parks.forget_events(state, FORGET_LIMIT)
    for job_id, until_ns in list(islice(extensions.lingering.items(), FORGET_LIMIT)):
        if until_ns > state.now_ns:
            break
        extensions.drop(extensions.lingering, job_id)
        extensions.forget(job_id, state.now_ns)
    if not extensions.is_forgetting or state.now_ns < extensions.forget_at_ns:
        return
    for job_id in list(islice(extensions.forgetting, FORGET_LIMIT)):
        if extensions.is_adding and job_id in extensions.added_now:  # it is not durable yet
            extensions.forget_at_ns = state.now_ns + 1
        else:
            state.forget_now(job_id)
    steps.forget(state, FORGET_LIMIT)
    parents = islice(extensions.forgetting_parents, 0 if extensions.is_adding else FORGET_LIMIT)
    for parent in list(parents):  # their children are forgotten too
        extensions.drop(extensions.forgetting_parents, parent)
        state.ledger.append(ParentForgotten(state.instant, replies.id_text(parent)))


def _has_come(state: WorkqState, order: SortedSet[bytes]) -> bool:
    return order.size > 0 and packed.moment_of(order.first()) <= state.now_ns


def _end_lives(state: WorkqState, limit: int) -> int:
    return _treat_first(state, state.jobs.expiries, limit, expire)


def _end_attempts(state: WorkqState, limit: int) -> int:
    return _treat_first(state, state.jobs.leases, limit, time_out)


def _wake_up(state: WorkqState, limit: int) -> int:
    return _treat_first(state, state.jobs.due, limit, _make_ready)


def _make_ready(state: WorkqState, job_id: bytes, entry: packed.Entry) -> None:
    spec, stage, attempts, fails, started_ns, _, _ = packed.opened(entry)
    if stage == packed.PARKED:
        parks.time_has_come(state, job_id, entry)
        return
    ready = spec if stage == packed.NEW else (spec, stage, attempts, fails, started_ns, 0, None)
    state.jobs.replace(job_id, entry, ready)
    match(state, state.queues.by_number[packed.queue_of(spec)])


def _treat_first(
    state: WorkqState,
    order: SortedSet[bytes],
    limit: int,
    treat: Callable[[WorkqState, bytes, packed.Entry], object],
) -> int:
    """Treat the jobs whose moment has come; each leaves the order by that. Returns how many."""
    done, extensions = 0, state.extensions
    most = extensions.effort + EFFORT_LIMIT  # each may be the parent of many
    while done < limit and _has_come(state, order) and extensions.effort < most:
        job_id = packed.id_in(order.first())
        entry = state.jobs.get(job_id)
        assert entry is not None
        treat(state, job_id, entry)
        done += 1
    return done


def _end_waits(state: WorkqState, limit: int) -> int:
    deadlines, done = state.waiting.deadlines, 0
    while done < limit and deadlines and deadlines.first()[0] <= state.now_ns:
        waiter = state.waiting[deadlines.first()[1]]
        done += 1
        if not waiter.is_run:
            state.answer(waiter, replies.TIMED_OUT)
            continue
        entry = state.jobs.get(waiter.job_id)
        assert entry is not None
        if (
            packed.opened(entry)[1] == packed.LEASED
        ):  # a worker is at it: the TTR counts from now on
            state.waiting.remove(waiter)
            state.waiting.add(waiter._replace(until_ns=None))
        else:
            give_up_run(state, waiter.job_id, entry)
    return done
