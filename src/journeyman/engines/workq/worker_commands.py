"""Commands by which workers report and are told, and the listing of workers.

worker NAME WAIT   it says what it is, and waits; answered when a job that it has leased is
                   cancelled, or TIMED_OUT
cancel             the worker of the job is answered; one that does not wait now, next time
progress ID        of a leased job: replaces what was said before; its lines are added
"""

from __future__ import annotations

from typing import Final

from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.packed import LEASED, opened, queue_of
from journeyman.engines.workq.queues import Waiter
from journeyman.engines.workq.state import WorkqState
from journeyman.engines.workq.workers import BrowseWorkers, WorkersFound, is_silent
from journeyman.protocols.workq import replies
from journeyman.protocols.workq.commands import AwaitOrders, Complaint, NoteProgress, RefusedLine
from journeyman.units import NS_PER_MS

MAX_ORDERS: Final = 1_000  # for one worker; it learns of the others when it renews their leases
MAX_JOBS_SEEN: Final = 100_000  # leases that a listing looks at
SHOWN_JOBS: Final = 100  # jobs of one worker in a listing
_TOO_MANY = RefusedLine(Complaint.TOO_MANY_WORKERS)
_NOT_LEASED = RefusedLine(Complaint.NOT_LEASED)


def note_progress(state: WorkqState, command: NoteProgress, _client: Client) -> replies.Reply:
    entry = state.find(command.job_id)
    if entry is None:
        return replies.NOT_FOUND
    if opened(entry)[1] != LEASED:
        return _NOT_LEASED
    state.extensions.progress.add(command, state.now_ns)
    return replies.DONE


def await_orders(state: WorkqState, command: AwaitOrders, client: Client) -> replies.Reply | None:
    worker = state.extensions.known_workers.note(command, state.now_ns)
    if worker is None:
        return _TOO_MANY
    if worker.orders:
        orders, worker.orders = worker.orders, {}
        state.extensions.note_undo(lambda: worker.orders.update(orders))
        return replies.EndedJobs(tuple(orders.values()))
    if not command.wait_ms:
        return replies.TIMED_OUT
    until_ns = state.now_ns + command.wait_ms * NS_PER_MS
    place = place_of(command.prefix, command.worker)
    state.waiting.add(Waiter(state.waiting.next_number(), client, until_ns, job_id=place))
    return None


def tell_worker(state: WorkqState, queue: str, ended: replies.Finished) -> None:
    """A job that is leased was ended by another client."""
    extensions = state.extensions
    name = extensions.workers.get(ended.job_id, "")
    for prefix, worker in extensions.known_workers.called(name).items():
        if not queue.startswith(prefix):
            continue
        waiters = state.waiting.of_job(place_of(prefix, name))
        for waiter in waiters:
            state.answer(waiter, replies.EndedJobs((ended,)))
        if not waiters and len(worker.orders) < MAX_ORDERS:
            extensions.put(worker.orders, ended.job_id, ended)


def place_of(prefix: str, name: str) -> bytes:
    """Where its client waits, among those that wait for jobs: longer than any id."""
    return f"worker {prefix} {name}".encode().ljust(17)


def browse_workers(state: WorkqState, query: BrowseWorkers) -> WorkersFound:
    known, rows = state.extensions.known_workers, list[replies.WorkerView]()
    jobs = _running_jobs(state, query.prefix)
    for name in known.names():
        if name <= query.after:
            continue
        if len(rows) >= query.limit:
            return WorkersFound(tuple(rows), True)
        for prefix, worker in known.called(name).items():
            if is_silent(worker, state.now_ns) or not prefix.startswith(query.prefix):
                continue
            waits = state.waiting.awaits(place_of(prefix, name))
            own = tuple(job for job in jobs.get(name, ()) if job.queue.startswith(prefix))
            since_ns, seen_ns = worker.since_ns, worker.seen_ns
            rows.append(replies.WorkerView(name, waits, since_ns, seen_ns, worker.facts, own))
    return WorkersFound(tuple(rows), False)


def _running_jobs(state: WorkqState, prefix: str) -> dict[str, list[replies.RunningJob]]:
    found: dict[str, list[replies.RunningJob]] = {}
    for number, (job_id, name) in enumerate(state.extensions.workers.items()):
        if number >= MAX_JOBS_SEEN:
            break
        entry = state.jobs.get(job_id)
        jobs = found.setdefault(name, [])
        if isinstance(entry, tuple) and entry[1] == LEASED and len(jobs) < SHOWN_JOBS:
            spec, _, _, _, started_ns, _, _ = opened(entry)
            queue = state.queues.by_number[queue_of(spec)].name
            if queue.startswith(prefix):
                jobs.append(replies.RunningJob(job_id, queue, started_ns))
    return found
