"""The workers that the server knows, and what they must be told: which of their jobs others ended.

    worker NAME WAIT   it says what it is, and waits; answered when a job that it has leased is
                       cancelled, or TIMED_OUT
    cancel             the worker of the job is answered; one that does not wait now, next time

All of this is in memory alone: a worker says it again soon. A name belongs to a namespace, so no
token learns of jobs that it may not see. A worker that has been silent for FORGET_NS is forgotten;
names are bounded for each namespace and for all of them, and so are the orders that wait for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from journeyman.engines.workq.packed import LEASED, opened, queue_of
from journeyman.engines.workq.queues import Waiter
from journeyman.protocols.workq import replies
from journeyman.protocols.workq.commands import AwaitOrders, Complaint, RefusedLine, WorkerFacts
from journeyman.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from journeyman.engines.workq.messages import Client
    from journeyman.engines.workq.state import WorkqState

MAX_WORKERS: Final = 10_000
MAX_WORKERS_OF_A_NAMESPACE: Final = 1_000
MAX_ORDERS: Final = 1_000  # for one worker; it learns of the others when it renews their leases
MAX_JOBS_SEEN: Final = 100_000  # leases that a listing looks at
SHOWN_JOBS: Final = 100  # jobs of one worker in a listing
FORGET_NS: Final = 180 * NS_PER_S
_TOO_MANY = RefusedLine(Complaint.TOO_MANY_WORKERS)


@dataclass(slots=True)
class KnownWorker:
    facts: WorkerFacts
    since_ns: int
    seen_ns: int
    orders: dict[bytes, replies.Finished] = field(default_factory=dict)


class BrowseWorkers(Struct, frozen=True):
    """Workers by name, above ``after``; jobs of queues that begin with ``prefix``."""

    after: str = ""
    limit: int = 50
    prefix: str = ""


class WorkersFound(Struct, frozen=True):
    workers: tuple[replies.WorkerView, ...]
    has_more: bool


class Workers:
    """Those that have said what they are: by name, then by namespace."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, KnownWorker]] = {}
        self._counts: dict[str, int] = {}  # how many each namespace has
        self._looked_ns = 0

    def note(self, command: AwaitOrders, now_ns: int) -> KnownWorker | None:
        """None: there are too many."""
        found = self._known.get(command.worker, {}).get(command.prefix)
        if found is None:
            self._forget_silent(now_ns)
            count = self._counts.get(command.prefix, 0)
            if count >= MAX_WORKERS_OF_A_NAMESPACE or sum(self._counts.values()) >= MAX_WORKERS:
                return None
            found = KnownWorker(command.facts, now_ns, now_ns)
            self._known.setdefault(command.worker, {})[command.prefix] = found
            self._counts[command.prefix] = count + 1
        found.facts, found.seen_ns = command.facts, now_ns
        return found

    def called(self, name: str) -> dict[str, KnownWorker]:
        """By namespace."""
        return self._known.get(name, {})

    def names(self) -> list[str]:
        return sorted(self._known)

    def _forget_silent(self, now_ns: int) -> None:
        if now_ns - self._looked_ns < NS_PER_S:
            return
        self._looked_ns = now_ns
        for name, namespaces in list(self._known.items()):
            for prefix, worker in list(namespaces.items()):
                if is_silent(worker, now_ns):
                    del namespaces[prefix]
                    self._counts[prefix] -= 1
            if not namespaces:
                del self._known[name]
        self._counts = {prefix: count for prefix, count in self._counts.items() if count}


def is_silent(worker: KnownWorker, now_ns: int) -> bool:
    return now_ns - worker.seen_ns > FORGET_NS


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
