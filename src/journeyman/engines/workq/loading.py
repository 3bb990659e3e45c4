"""A log -> a WorkQueue, as it was when the log ended and is now.

    Loader.add(record)            one record after another: each is folded, whatever it is
    BulkLoader (bulk.py)       the same for millions of rows of a log
    finish(now_ns=...)            -> WorkQueue

The fold (journeyman.folds.workq) says where a job stands. What is added here is the time:

    TTL over                 the job is not there. No expire is written: it was over for everyone
    new, with a time ahead   scheduled
    pending, with a delay    scheduled until the delay is over, counted from its timeout-attempt
    leased                   until the end of its TTR, counted from its start-attempt. If that is
                             past, the first Due ends the attempt, and a timeout is written

So TTLs and leases go on through a restart with what was left of them. Orphans are dropped: when
the log is at its end, no add of theirs can come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from journeyman.engines.sorted_set import Order
from journeyman.engines.workq.engine import WorkQueueEngine
from journeyman.engines.workq.fold_mapping import entry_of
from journeyman.engines.workq.job import (
    COMPLETED,
    LEASED,
    NEW,
    PENDING,
    Entry,
    Progress,
    Spec,
    expires_ns_of,
    fields_of,
    limits_of,
    moment_key,
    opened,
    queue_of,
)
from journeyman.engines.workq.state import State
from journeyman.folds.workq import FoldedJob, Orphans, apply, visible
from journeyman.formats.workq import Command, JobAdded, Record
from journeyman.formats.workq.retry import delay_ms_of
from journeyman.units import NS_PER_MS


class Assembly:
    """Builds a WorkQueue out of jobs as they were when the log ended.

    In an entry that is put in, ``moment_ns`` of a pending job is the time of its timeout-attempt.
    """

    def __init__(self, now_ns: int, paused: Iterable[str], seed: int) -> None:
        self.now_ns = now_ns
        self._paused = frozenset(paused)
        self._state = State(seed)
        self.jobs = self._state.jobs
        self._expiries: list[bytes] = []
        self._leases: list[bytes] = []
        self._due: list[bytes] = []
        self._waiting: dict[int, tuple[list[Spec], list[Spec], list[Spec]]] = {}
        self._latest_ns = 0

    def number_of(self, name: str) -> int:
        """The number of the queue with this name; it is made if there is none."""
        return self._state.queues.named(name).number

    def put(self, job_id: bytes, entry: Entry) -> None:
        """One job, whatever its state."""
        progress = opened(entry)
        spec, stage, attempts, fails, started_ns, moment_ns, _ = progress
        expires = expires_ns_of(spec)
        if expires <= self.now_ns:
            return
        ready, scheduled, dead = self._lists(queue_of(spec))
        if stage in (NEW, PENDING):
            wakes_ns = _wakes_ns(progress)
            if wakes_ns > self.now_ns:
                entry = (spec, stage, attempts, fails, started_ns, wakes_ns, None)
                self._due.append(moment_key(wakes_ns, job_id))  # first: it may be out of range
                scheduled.append(spec)
            else:
                is_plain = stage == NEW and not attempts and not fails
                entry = spec if is_plain else (spec, stage, attempts, fails, started_ns, 0, None)
                ready.append(spec)
        elif stage == LEASED:
            self._leases.append(moment_key(moment_ns, job_id))
        elif stage != COMPLETED:
            dead.append(spec)
        self.jobs.lay(job_id, entry)
        self._expiries.append(moment_key(expires, job_id))

    def put_job(self, job: FoldedJob, timeout_ns: int) -> None:
        """One job as the fold tells it, and the time of its last timeout-attempt."""
        added = job.added
        self.put(added.job_id, entry_of(job, self.number_of(added.name), timeout_ns))
        self.note_latest(added.created.unix_ns)

    def put_ready(self, queue: int, specs: Sequence[Spec]) -> None:
        """Jobs to which nothing has happened, and that are laid in already."""
        self._lists(queue)[0].extend(specs)

    def put_expiries(self, keys: Sequence[bytes]) -> None:
        """Those of jobs that were put in with ``put_ready``."""
        self._expiries += keys

    def note_latest(self, created_ns: int) -> None:
        """A job was created then; new ones come after it."""
        self._latest_ns = max(self._latest_ns, created_ns)

    def finish(self) -> WorkQueueEngine:
        state = self._state
        queues, jobs = state.queues, state.jobs
        for number, lists in self._waiting.items():
            queue = queues.by_number[number]
            queue.ready, queue.scheduled, queue.dead = (Order(sorted(each)) for each in lists)
        self._waiting = {}
        jobs.expiries = Order(sorted(self._expiries))
        jobs.leases = Order(sorted(self._leases))
        jobs.due = Order(sorted(self._due))
        for name in sorted(self._paused):
            queues.set_paused(queues.named(name), True)
        state.begin(self._latest_ns)
        return WorkQueueEngine(state)

    def _lists(self, number: int) -> tuple[list[Spec], list[Spec], list[Spec]]:
        lists = self._waiting.get(number)
        if lists is None:
            lists = self._waiting[number] = ([], [], [])
        return lists


class WorkqLoader:
    """Takes the records of a log in order; ``finish`` ends it."""

    def __init__(self) -> None:
        self._states: dict[bytes, FoldedJob | Orphans] = {}
        self._timeouts_ns: dict[bytes, int] = {}  # of the last timeout-attempt
        self._names: dict[str, None] = {}

    def add(self, record: Record) -> None:
        if isinstance(record, JobAdded):
            self._names[record.name] = None
        job_id = record.job_id
        before = self._states.get(job_id)
        state = apply(before, record)
        if state is None:
            self._states.pop(job_id, None)
            self._timeouts_ns.pop(job_id, None)
            return
        if state is not before:
            self._states[job_id] = state
        if record.command == Command.TIMEOUT_ATTEMPT:
            self._timeouts_ns[job_id] = record.logged.unix_ns

    def finish(self, *, now_ns: int, paused: Iterable[str] = (), seed: int = 0) -> WorkQueueEngine:
        assembly = Assembly(now_ns, paused, seed)
        self.give(assembly)
        return assembly.finish()

    def give(self, assembly: Assembly) -> None:
        """Put in all jobs that there are, and a queue for each name that there was."""
        for name in self._names:
            assembly.number_of(name)
        for job_id, job in self._states.items():
            if isinstance(job, FoldedJob) and visible(job, assembly.now_ns):
                assembly.put_job(job, self._timeouts_ns.get(job_id, 0))


def load(
    records: Iterable[Record], *, now_ns: int, paused: Iterable[str] = (), seed: int = 0
) -> WorkQueueEngine:
    """The WorkQueue of a whole log."""
    loader = WorkqLoader()
    for record in records:
        loader.add(record)
    return loader.finish(now_ns=now_ns, paused=paused, seed=seed)


def _wakes_ns(progress: Progress) -> int:
    """When a job that waits is ready; in the past if it is."""
    spec, stage, _, _, _, moment_ns, _ = progress
    if stage == PENDING:
        delay_ms = delay_ms_of(limits_of(spec)[1])
        return moment_ns + delay_ms * NS_PER_MS if delay_ms else 0
    time_ns = fields_of(spec).time_ns
    return 0 if time_ns is None else time_ns
