"""Facts without a record in the command log, stored in the ledger: limits, options, children.

    limits of a queue      queue-limits-set          rate and concurrency, also per key
    options of a job       job-options-set           its key; the delay of one retry; that its lease
                                                     was touched; that it was cancelled; how often
                                                     it was given back; if jobs follow it, the
                                                     namespace of the token that added it
    a job that waits for   job-options-set           the whole job and the ids of its parents; the
    others (a child)                                 engine adds it when they have ended
    steps of a job         step-done                 see steps.py
    events                 event-set                 see parks.py
    the workers' names     attempts-begun            soon after the lease; shown by inspect until a
                                                     restart, of the last FORMER_WORKERS jobs

The ledger is written before the command log. So a crash can leave options of a job that was never
added; they are ignored. For the same reason a child's record is not removed in the batch that adds
the child, or a crash could lose it: it is *forgotten* later, and at a start a child whose id is
that of a job counts as added. Options of completed and removed jobs are forgotten in the same way,
many at a time, so that no completion waits for the ledger; at once if another job gets the id. If
keys have a rate, keys *linger* for the time of the rate, because a start counts leases by them.

A parent that ends is removed from its children. If it is gone while some children still wait, a
start could not find out how it ended: ``parent-outcome`` records this once for all of them. A power
cut can leave that record and undo the end of the parent, so it counts only if the log does not have
this parent.

A delay belongs to the timeout-attempt with the time ``failed_ns``: options from before a later
attempt are ignored. ``touched`` is the number of the attempt whose lease was touched; at a start
such a lease has its full TTR again. The job is cancelled if it failed at ``cancelled_ns``: a power
cut can leave that number and undo the failure.

All tables change through ``put`` and ``drop``, so that a batch can be undone. The bodies of the
records are in ledger_entries.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeVar

from journeyman.engines.workq.ledger_entries import Child, StoredJobOptions
from journeyman.engines.workq.namespace_bytes import NamespaceBytes
from journeyman.engines.workq.progress import ProgressNotes
from journeyman.engines.workq.queues import JobQueue, KeyRates
from journeyman.engines.workq.step_table import (
    StepTable,
    StepValue,
)
from journeyman.engines.workq.workers import KnownWorkers
from journeyman.protocols.workq.commands import NO_LIMITS, Add, Limits
from journeyman.units import DAY_MS, NS_PER_MS

MAX_LIMITED_QUEUES: Final = 10_000
EFFORT_LIMIT: Final = 4000  # for children, in one decision: about a microsecond each
EFFORT_BYTES: Final = 1024  # writing so much of a payload takes as long as a step
FORGET_LIMIT: Final = 500  # options forgotten in one decision
MAX_LINGERING: Final = 1_000_000  # keys of jobs that have ended
FORGET_AFTER_NS: Final = 1_000_000_000
FORMER_WORKERS: Final = 100_000  # names of workers of jobs that have ended
EVENT_BYTES: Final = 300  # the size of an event without its value
EVENT_RETENTION_NS: Final = 30 * DAY_MS * NS_PER_MS

K = TypeVar("K")
V = TypeVar("V")


class Extensions:
    """See the module."""

    __slots__ = (
        "_undo",
        "added_children",
        "added_now",
        "begun",
        "child_bytes",
        "children",
        "children_of",
        "effort",
        "event_bytes",
        "events",
        "events_of_namespaces",
        "forget_at_ns",
        "forgetting",
        "forgetting_parents",
        "former_workers",
        "is_allowed",
        "key_period_ns",
        "known_workers",
        "limited",
        "lingering",
        "marked",
        "options",
        "progress",
        "ready_children",
        "retention_ns",
        "ringing",
        "steps",
        "waking",
        "watched",
        "workers",
    )

    def __init__(self) -> None:
        self.is_allowed = True  # there is a ledger, or nothing is kept anyway
        self.options: dict[bytes, StoredJobOptions] = {}
        self.workers: dict[bytes, str] = {}
        self.former_workers: dict[bytes, str] = {}  # oldest first
        self.known_workers = KnownWorkers()
        self.progress = ProgressNotes()
        self.steps = StepTable(self.note_undo)
        self.events: dict[str, StepValue] = {}  # in the order in which they happened
        self.event_bytes = 0
        self.events_of_namespaces = NamespaceBytes(
            lambda: ((name, len(event.value) + EVENT_BYTES) for name, event in self.events.items())
        )
        self.retention_ns = EVENT_RETENTION_NS
        self.ringing: dict[str, None] = {}  # events for which some jobs may still be parked
        self.watched: dict[bytes, dict[bytes, None]] = {}  # jobs parked until this one ends
        self.waking: dict[bytes, None] = {}  # parked jobs to be looked at
        self.begun: list[tuple[str, bytes, int]] = []  # worker, job and attempt of new leases
        self.children: dict[bytes, Child] = {}
        self.children_of: dict[bytes, dict[bytes, None]] = {}
        self.child_bytes = 0
        self.ready_children: dict[bytes, None] = {}  # children to be added, or to fail
        # Added, and the ledger still has them as children.
        self.added_children: dict[bytes, None] = {}
        self.added_now: dict[bytes, Add] = {}  # children that the open batch has added
        # Options that the ledger still has and need not keep.
        self.forgetting: dict[bytes, None] = {}
        # Parents that are gone: the ledger says that they ended, and whether they succeeded.
        self.marked: dict[bytes, bool] = {}
        self.forgetting_parents: dict[bytes, None] = {}
        self.forget_at_ns = 0
        self.lingering: OrderedDict[bytes, int] = OrderedDict()  # forgotten after this time
        self.key_period_ns = 0  # the longest of all rates of keys
        self.effort = 0  # that this batch has done for children
        self.limited: dict[str, JobQueue] = {}  # queues with limits
        self._undo: list[Callable[[], object]] | None = None

    @property
    def is_forgetting(self) -> bool:
        """Return whether the ledger has something that it need not have."""
        return bool(self.forgetting or self.forgetting_parents or self.steps.forgetting)

    @property
    def is_idle(self) -> bool:
        """Return whether no job has anything of this."""
        options = self.options or self.workers or self.forgetting or self.lingering
        waited_for = self.children_of or self.children or self.watched
        steps = self.steps  # those of completed jobs do not count
        return not (options or waited_for or len(steps.by_job) > len(steps.completed))

    @property
    def is_adding(self) -> bool:
        """Return whether the open batch has added children."""
        return self._undo is not None and bool(self.added_now)

    def is_to_be_forgotten(self, job_id: bytes) -> bool:
        """Return whether the ledger still has something of a former job of this id."""
        return job_id in self.forgetting or job_id in self.lingering

    def add_event(self, name: str, event: StepValue) -> None:
        self.put(self.events, name, event)
        self._count_event(name, len(event.value) + EVENT_BYTES)

    def drop_event(self, name: str) -> None:
        size = len(self.events[name].value) + EVENT_BYTES
        self.drop(self.events, name)
        self._count_event(name, -size)

    def _count_event(self, name: str, change: int) -> None:
        self._change_event_bytes(name, change)
        self.note_undo(lambda: self._change_event_bytes(name, -change))

    def _change_event_bytes(self, name: str, change: int) -> None:
        self.event_bytes += change
        self.events_of_namespaces.count(name, change)

    # -- changes -----------------------------------------------------------------------------------

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        if self._undo is not None:
            if key in table:
                before = table[key]
                self._undo.append(lambda: table.__setitem__(key, before))
            else:
                self._undo.append(lambda: table.pop(key, None))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        if key in table:
            if self._undo is not None:
                before = table[key]
                self._undo.append(lambda: table.__setitem__(key, before))
            del table[key]

    def note_undo(self, step: Callable[[], object]) -> None:
        if self._undo is not None:
            self._undo.append(step)

    def worker_of(self, job_id: bytes) -> str:
        return self.workers.get(job_id) or self.former_workers.get(job_id, "")

    def note_worker(self, job_id: bytes, worker: str, attempt: int) -> None:
        """A lease begins; the worker may have no name."""
        if worker:
            self.put(self.workers, job_id, worker)
            self.begun.append((worker, job_id, attempt))
        else:
            self.drop(self.workers, job_id)
        self.drop(self.former_workers, job_id)

    def end_worker(self, job_id: bytes) -> None:
        """The job has ended; the name of its last worker is known for a while."""
        worker = self.workers.get(job_id)
        if worker is not None:
            self.drop(self.workers, job_id)
            self.put(self.former_workers, job_id, worker)
            if len(self.former_workers) > FORMER_WORKERS:
                self.drop(self.former_workers, next(iter(self.former_workers)))

    def note_start(self, queue: JobQueue, now_ns: int) -> None:
        """A lease begins: it counts for the rate."""
        starts, most = queue.starts, queue.limits.rate
        starts.append(now_ns)
        dropped = starts.popleft() if len(starts) > most else None
        if self._undo is not None:
            self._undo.append(lambda: _take_back_start(starts, dropped))

    def set_limits(self, queue: JobQueue, limits: Limits) -> None:
        before = queue.limits, queue.starts, queue.key_rates
        self.note_undo(self._find_key_period)  # undone last
        self.note_undo(lambda: _put_limits(queue, *before))
        kept = deque(queue.starts, limits.rate)  # but unbounded: undo counts on what it pushes out
        rates = queue.key_rates.changed(limits.key_rate, limits.key_per_ms)
        _put_limits(queue, limits, deque(kept), rates)
        if limits == NO_LIMITS:
            self.drop(self.limited, queue.name)
        else:
            self.put(self.limited, queue.name, queue)
        if limits.key_per_ms < before[0].key_per_ms:  # it may have been the longest
            self._find_key_period()
        else:  # a start sets the limits of very many queues
            self.key_period_ns = max(self.key_period_ns, limits.key_per_ms * NS_PER_MS)

    def _find_key_period(self) -> None:
        periods_ms = [queue.limits.key_per_ms for queue in self.limited.values()]
        self.key_period_ns = max(periods_ms, default=0) * NS_PER_MS

    def add_child(self, child: Child) -> None:
        job_id = child.job.job_id
        self.put(self.children, job_id, child)
        self._count_bytes(child.size)
        self._link(child)
        self.note_undo(lambda: self._unlink(child))

    def drop_child(self, job_id: bytes, now_ns: int) -> None:
        child = self.children[job_id]
        self.drop(self.children, job_id)
        self._count_bytes(-child.size)
        self._unlink(child)
        self.note_undo(lambda: self._link(child))
        for parent in self.marked.keys() & set(child.parents) if self.marked else ():
            if parent not in self.children_of:
                self.drop(self.marked, parent)
                self.forget_parent(parent, now_ns)

    def _link(self, child: Child) -> None:
        job_id, children_of = child.job.job_id, self.children_of
        self.effort += len(child.parents)
        for parent in child.parents:
            children = children_of.get(parent)
            if children is None:
                children = children_of[parent] = {}
            children[job_id] = None

    def _unlink(self, child: Child) -> None:
        job_id, children_of = child.job.job_id, self.children_of
        self.effort += len(child.parents)
        for parent in child.parents:
            children = children_of.get(parent)
            if children is not None:
                children.pop(job_id, None)
                if not children:
                    del children_of[parent]

    def end_parent(self, parent: bytes, *, succeeded: bool) -> None:
        """It has ended for all that wait for it; there may be many."""
        told: list[dict[bytes, None]] = []
        self.effort += len(self.children_of[parent])
        for job_id in self.children_of[parent]:
            child = self.children[job_id]
            _, left, _ = child
            if parent not in left:  # it had ended before
                continue
            del left[parent]
            told.append(left)
            if not succeeded and child.fails_with(succeeded=False):
                self.put(self.children, job_id, child._replace(failed=parent))
                self.put(self.ready_children, job_id, None)
            elif not left:
                self.put(self.ready_children, job_id, None)
        self.note_undo(lambda: _take_back_end(told, parent))

    def forget(self, job_id: bytes, now_ns: int) -> None:
        """The ledger need not know this job any more, sooner or later."""
        self._forget_later(self.forgetting, job_id, now_ns)

    def forget_options(self, job_id: bytes, options: StoredJobOptions, now_ns: int) -> None:
        """Forget the options of a job that has ended; a rate may still count its leases by its key.
        If too many have such keys, the one that ended first is forgotten."""
        if not options.key or not self.key_period_ns:
            self.forget(job_id, now_ns)
            return
        self.put(self.lingering, job_id, now_ns + self.key_period_ns)
        if len(self.lingering) > MAX_LINGERING:
            oldest = next(iter(self.lingering))
            self.drop(self.lingering, oldest)
            self.forget(oldest, now_ns)

    def forget_parent(self, parent: bytes, now_ns: int) -> None:
        """Forget that this parent has ended: no job waits for it."""
        self._forget_later(self.forgetting_parents, parent, now_ns)

    def end_steps(self, job_id: bytes, now_ns: int, *, is_gone: bool = True) -> None:
        """Forget the steps of this job, which is gone; those of a completed one, while there is
        room, are kept."""
        if job_id not in self.steps:
            return
        was_forgetting = self.is_forgetting
        change = self.steps.end if is_gone else self.steps.complete
        change(job_id, in_batch=self._undo is not None)
        if not was_forgetting and self.is_forgetting:
            self.forget_at_ns = now_ns + FORGET_AFTER_NS

    def _forget_later(self, table: dict[bytes, None], job_id: bytes, now_ns: int) -> None:
        if not self.is_forgetting:
            self.forget_at_ns = now_ns + FORGET_AFTER_NS
        self.put(table, job_id, None)

    def _count_bytes(self, change: int) -> None:
        self.child_bytes += change
        if self._undo is not None:
            self._undo.append(lambda: setattr(self, "child_bytes", self.child_bytes - change))

    # -- batches -----------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._undo = []
        self.effort = 0

    def commit_batch(self) -> None:
        self._undo = None
        self.steps.ended_now.clear()
        self.added_now.clear()

    def undo_batch(self) -> None:
        undo, self._undo = self._undo or [], None
        for take_back in reversed(undo):
            take_back()
        self.steps.ended_now.clear()
        self.added_now.clear()
        self.begun.clear()


def _take_back_end(tables: list[dict[bytes, None]], parent: bytes) -> None:
    for left in tables:
        left[parent] = None


def _take_back_start(starts: deque[int], dropped: int | None) -> None:
    starts.pop()
    if dropped is not None:
        starts.appendleft(dropped)


def _put_limits(queue: JobQueue, limits: Limits, starts: deque[int], rates: KeyRates) -> None:
    queue.limits = NO_LIMITS if limits == NO_LIMITS else limits
    queue.starts, queue.key_rates = starts, rates
    queue.set_fair(fair=limits.fair, weights=limits.weights)
    queue.drain()
