"""Builds a WorkqEngine from a log: its state at the end of the log, as of now.

    WorkqLoader.add(record)       folds one record after another
    BulkLoader.add_...            the same for millions of rows, without an object per record
    finish                        -> WorkqEngine

The fold (journeyman.folds.workq) gives the state of a job. The loader adds the time:

    TTL ended                the job does not exist; no expire is written
    new, with a time ahead   scheduled
    pending, with a delay    scheduled until the delay is over, counted from its timeout-attempt
    leased                   until the end of its TTR, counted from its start-attempt. If that is
                             past, the first WorkqDue ends the attempt, and a timeout is written

and the data of the ledger (extensions.py): keys, delays of single retries, touched leases, waiting
jobs, limits of queues. The rates of queues count the start-attempts of the log; rates of keys count
those of ids whose key is in the ledger. Ids that are in the ledger are left to the fold.

So TTLs and leases continue through a restart with their remaining time. Orphans are dropped,
because no add can follow at the end of the log.

A BulkLoader applies the usual life of a job by the engine's own transitions (job.py): add, start,
timeout, start, complete, expire. For all else (a second add, a start while leased, a record without
an add) the fold has rules with reasons, so the whole id is left to the fold: it is *odd*. Both ways
of loading agree (tests/property/test_workq_loading.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import adding
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.extensions import JobOptions, LoadedExtensions
from journeyman.engines.workq.job import (
    COMPLETED,
    FAILED,
    ID_BYTES,
    KEY_BYTES,
    LEASED,
    NEW,
    PENDING,
    UNFINISHED,
    WAITING,
    Entry,
    Progress,
    ReadyRows,
    Spec,
    begin_lease,
    cut,
    end_lease,
    entry_of,
    expires_ns_of,
    fields_of,
    id_in,
    job_id_of,
    keep_result,
    lease_fields_of,
    limits_of,
    moment_key,
    move_lease_end,
    opened,
    queue_of,
    try_again,
)
from journeyman.engines.workq.state import WorkqState
from journeyman.folds.workq import FoldedJob, Orphans, apply, visible
from journeyman.formats.workq import Command, JobAdded, Record
from journeyman.units import NS_PER_MS

_COMPLETE, _FAIL = int(Command.COMPLETE), int(Command.FAIL)
_START, _TIMEOUT = int(Command.START_ATTEMPT), int(Command.TIMEOUT_ATTEMPT)
_ENDS = (int(Command.DELETE), int(Command.EXPIRE))


class JobAssembly:
    """Builds a WorkqEngine out of jobs as they were when the log ended."""

    def __init__(
        self,
        now_ns: int,
        paused: Iterable[str],
        seed: int,
        extensions: LoadedExtensions | None = None,
    ) -> None:
        self.now_ns = now_ns
        self.extensions = extensions or LoadedExtensions()
        self._rates = self.extensions.rates
        self._starts: dict[str, list[int]] = {}  # of leases, by queue
        self.key_starts: dict[tuple[str, str], list[int]] = {}  # by queue and key, if that counts
        self._completed: set[bytes] = set()  # jobs that have expired after that
        self._paused = frozenset(paused)
        self._state = WorkqState(seed)
        self.jobs = self._state.jobs
        self._expiries: list[bytes] = []
        self._leases: list[bytes] = []
        self._due: list[bytes] = []
        self._waiting: dict[int, tuple[list[Spec], list[Spec], list[Spec]]] = {}
        self._latest_ns = 0

    def number_of(self, name: str) -> int:
        """The number of the queue with this name; it is made if there is none."""
        return self._state.queues.use(name).number

    def put(self, job_id: bytes, entry: Entry) -> None:
        """One job, whatever its state."""
        progress = opened(entry)
        spec, stage, attempts, fails, started_ns, moment_ns, _ = progress
        expires = expires_ns_of(spec)
        if expires <= self.now_ns:
            return
        ready, scheduled, dead = self._lists(queue_of(spec))
        if stage in WAITING:
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
            options = self.extensions.options.get(job_id)
            if options is not None and options.touched == attempts:
                moment_ns = max(moment_ns, self.now_ns + lease_fields_of(spec)[2] * NS_PER_MS)
                entry = move_lease_end(progress, moment_ns)
            self._leases.append(moment_key(moment_ns, job_id))
            self._state.queues.by_number[queue_of(spec)].count_lease(spec, 1)
        elif stage != COMPLETED:
            dead.append(spec)
        self.jobs.lay(job_id, entry)
        self._expiries.append(moment_key(expires, job_id))

    def put_job(self, job: FoldedJob, timeout_ns: int) -> None:
        """One job as the fold has it, and the time of its last timeout-attempt."""
        added = job.added
        options = self.extensions.options.get(added.job_id, JobOptions())
        entry = entry_of(job, self.number_of(added.name), timeout_ns, options.key)
        if job.state == PENDING and (ready_ns := options.ready_after(timeout_ns)):
            entry = move_lease_end(opened(entry), ready_ns)
        self.put(added.job_id, entry)
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

    def note_start(self, number: int, logged_ns: int) -> None:
        """A job of this queue was leased then."""
        name = self._state.queues.by_number[number].name
        if name in self._rates:
            self._starts.setdefault(name, []).append(logged_ns)

    def note_completed(self, job_id: bytes) -> None:
        """A job that has expired, but has completed before."""
        self._completed.add(job_id)

    def finish(self) -> WorkqEngine:
        state = self._state
        queues, jobs = state.queues, state.jobs
        for number, lists in self._waiting.items():
            queue = queues.by_number[number]
            queue.ready, queue.scheduled, queue.dead = (SortedSet(sorted(each)) for each in lists)
        self._waiting = {}
        jobs.expiries = SortedSet(sorted(self._expiries))
        jobs.leases = SortedSet(sorted(self._leases))
        jobs.due = SortedSet(sorted(self._due))
        for name in sorted(self._paused):
            queues.set_paused(queues.use(name), True)
        state.begin(self._latest_ns)
        self._finish_extensions()
        return WorkqEngine(state)

    def _finish_extensions(self) -> None:
        state, loaded = self._state, self.extensions
        for name, limits in loaded.limits.items():
            queue = state.queues.use(name)
            state.extensions.set_limits(queue, limits)
            queue.starts.extend(sorted(self._starts.get(name, ()))[-limits.rate :])
        self._finish_key_starts()
        for job_id, options in loaded.options.items():
            entry = state.jobs.get(job_id)
            if entry is not None and opened(entry)[1] != COMPLETED:
                state.extensions.options[job_id] = options
            elif entry is not None or job_id not in loaded.children:
                state.extensions.forget_options(job_id, options, self.now_ns)
        adding.load_children(state, loaded, self._completed)

    def _finish_key_starts(self) -> None:
        found = [(sorted(starts), *place) for place, starts in self.key_starts.items()]
        for starts, name, key in sorted(found, key=lambda each: each[0][-1]):
            queue = self._state.queues.use(name)
            if starts[-1] + queue.limits.key_per_ms * NS_PER_MS > self.now_ns:
                queue.key_rates.put(key, starts)

    def _lists(self, number: int) -> tuple[list[Spec], list[Spec], list[Spec]]:
        lists = self._waiting.get(number)
        if lists is None:
            lists = self._waiting[number] = ([], [], [])
        return lists


class WorkqLoader:
    """Takes the records of a log in order; ``finish`` ends it."""

    def __init__(self, extensions: LoadedExtensions | None = None) -> None:
        self._extensions = extensions or LoadedExtensions()
        self._rates = self._extensions.rates
        self._key_rates = self._extensions.key_rates
        self._starts: dict[str, deque[int]] = {}  # of queues with a rate
        self._key_starts: dict[tuple[str, str], list[int]] = {}  # of queues whose keys have one
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
        elif (self._rates or self._key_rates) and record.command == Command.START_ATTEMPT:
            self._note_start(job_id, state, record.logged.unix_ns)

    def _note_start(self, job_id: bytes, state: FoldedJob | Orphans, logged_ns: int) -> None:
        name = state.added.name if isinstance(state, FoldedJob) else ""
        if rate := self._rates.get(name, 0):
            self._starts.setdefault(name, deque(maxlen=rate)).append(logged_ns)
        options = self._extensions.options.get(job_id)
        if options is not None and options.key and (rate := self._key_rates.get(name, 0)):
            starts = self._key_starts.setdefault((name, options.key), [])
            starts.append(logged_ns)
            del starts[:-rate]

    def finish(self, *, now_ns: int, paused: Iterable[str] = (), seed: int = 0) -> WorkqEngine:
        assembly = JobAssembly(now_ns, paused, seed, self._extensions)
        self.give(assembly)
        return assembly.finish()

    def give(self, assembly: JobAssembly) -> None:
        """Put in all jobs that there are, and a queue for each name that there was."""
        for name in self._names:
            assembly.number_of(name)
        for job_id, job in self._states.items():
            if not isinstance(job, FoldedJob):
                continue
            if visible(job, assembly.now_ns):
                assembly.put_job(job, self._timeouts_ns.get(job_id, 0))
            elif job.state == COMPLETED:
                assembly.note_completed(job_id)
        for name, starts in self._starts.items():
            for logged_ns in starts:
                assembly.note_start(assembly.number_of(name), logged_ns)
        assembly.key_starts = self._key_starts


class BulkLoader:
    """Takes the rows of a log in order; ``finish`` ends it.

    ``odd`` are the ids that are left to the fold; ``finish`` takes a loader with all their records.
    """

    def __init__(
        self,
        *,
        now_ns: int,
        paused: Iterable[str] = (),
        seed: int = 0,
        extensions: LoadedExtensions | None = None,
    ) -> None:
        self._assembly = JobAssembly(now_ns, paused, seed, extensions)
        self.counts_starts = bool(self._assembly.extensions.rates)
        self._jobs = self._assembly.jobs
        self._ready: dict[int, list[Spec]] = {}
        self._keys: list[bytes] = []
        self._touched: set[bytes] = set()  # ids that are, or were, more than ready
        self.odd: set[bytes] = set()
        for job_id in self._assembly.extensions.known_ids:
            self.mark_odd(job_id)

    @property
    def now_ns(self) -> int:
        return self._assembly.now_ns

    def number_of(self, name: str) -> int:
        """The number of the queue with this name."""
        return self._assembly.number_of(name)

    def note_latest(self, created_ns: int) -> None:
        self._assembly.note_latest(created_ns)

    def add_ready(self, queue: int, rows: ReadyRows) -> None:
        """Jobs of one queue, not expired."""
        specs = [rows.specs[begin:end] for begin, end in pairwise(rows.ends)]
        self._lay(rows, specs)
        self._ready.setdefault(queue, []).extend(specs)

    def _lay(self, rows: ReadyRows, entries: Sequence[Entry]) -> None:
        by_shard = [*map(entries.__getitem__, rows.by_shard)]
        for job_id in self._jobs.lay_sharded(cut(rows.ids, ID_BYTES), by_shard, rows.counts):
            self.mark_odd(job_id)
        self._keys += cut(rows.expiries, KEY_BYTES)

    def add_completed(self, rows: ReadyRows, columns: Sequence[Sequence[Any]]) -> None:
        """Jobs of which no row follows, not expired; what their entries have after the spec."""
        specs = [rows.specs[begin:end] for begin, end in pairwise(rows.ends)]
        self._lay(rows, [*zip(specs, *columns, strict=True)])

    def add_moved(self, job_id: bytes, entry: Progress) -> None:
        """A job of which no row follows, whatever its state."""
        if job_id not in self.odd:
            self._assembly.put(job_id, entry)

    def add_job(self, job_id: bytes, spec: Spec) -> None:
        self._touched.add(job_id)
        if not self._jobs.lay_new(job_id, spec):
            self.mark_odd(job_id)

    def add_event(self, job_id: bytes, command: int, logged_ns: int, result: bytes | None) -> None:
        """A row that is not an add; ``result`` of complete and fail."""
        if job_id in self.odd:
            return
        entry = self._jobs.get(job_id)
        after = None if entry is None else _apply_row(entry, command, logged_ns, result)
        self._touched.add(job_id)
        if after is not None:
            if self.counts_starts and command == _START:
                self._assembly.note_start(queue_of(after[0]), logged_ns)
            self._jobs.lay(job_id, after)
        elif entry is not None and command in _ENDS:
            self._jobs.lift(job_id)
        else:
            self.mark_odd(job_id)

    def mark_odd(self, job_id: bytes) -> None:
        self.odd.add(job_id)
        self._touched.add(job_id)

    def finish(self, fold: WorkqLoader) -> WorkqEngine:
        assembly, touched = self._assembly, self._touched
        for job_id in touched:
            entry = self._jobs.lift(job_id)
            if entry is not None and job_id not in self.odd:
                assembly.put(job_id, entry)
        for queue, specs in self._ready.items():
            if touched:
                specs[:] = [spec for spec in specs if job_id_of(spec) not in touched]
            assembly.put_ready(queue, specs)
        if touched:
            self._keys = [key for key in self._keys if id_in(key) not in touched]
        assembly.put_expiries(self._keys)
        self._ready, self._keys, self._touched = {}, [], set()
        fold.give(assembly)
        return assembly.finish()


def _wakes_ns(progress: Progress) -> int:
    """When a job that waits is ready; in the past if it is."""
    spec, stage, _, _, _, moment_ns, _ = progress
    if stage == PENDING:
        return moment_ns
    time_ns = fields_of(spec).time_ns
    return 0 if time_ns is None else time_ns


def _apply_row(entry: Entry, command: int, logged_ns: int, result: bytes | None) -> Progress | None:
    """The job after the row; None if it ends the job, or is not part of a usual life."""
    spec, stage, _, fails, _, moment_ns, _ = opened(entry)
    if command == _START and stage in WAITING:
        return begin_lease(entry, lease_fields_of(spec)[2], logged_ns)
    if command in (_COMPLETE, _FAIL) and stage in UNFINISHED:
        after = COMPLETED if command == _COMPLETE else FAILED
        return keep_result(entry, after, logged_ns, result or b"")
    if command == _TIMEOUT and stage == LEASED:
        return end_lease(entry, logged_ns)
    is_retry = command == _TIMEOUT and stage == FAILED and moment_ns == logged_ns
    if is_retry and fails + 1 < limits_of(spec)[1]:
        return try_again(entry, logged_ns)
    return None
