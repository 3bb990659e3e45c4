"""Builds a WorkqEngine from a log: its state at the end of the log, as of now.

    add(record)                   folds one record after another
    add_ready, add_completed,     many jobs at once, as the bulk reader has folded them already
    add_moved, add_starts         (servers/workq/bulk.py)
    finish                        -> WorkqEngine

The fold (journeyman.folds.workq) gives the state of a job. The loader adds the time:

    TTL ended                the job does not exist; no expire is written
    new, with a time ahead   scheduled
    pending, with a delay    scheduled until the delay is over, counted from its timeout-attempt
    leased                   until the end of its TTR, counted from its start-attempt. If that is
                             past, the first WorkqDue ends the attempt, and a timeout is written

and the data of the ledger (extensions.py): keys, delays of single retries, touched leases, waiting
jobs, limits of queues. The rates of queues count the start-attempts of the log; rates of keys count
those of ids whose key is in the ledger.

So TTLs and leases continue through a restart with their remaining time. Orphans are dropped,
because no add can follow at the end of the log.

The bulk reader leaves some ids to the fold: those with an unusual history and those that are in the
ledger. Their records come by ``add``, so both ways of loading agree
(tests/property/test_workq_loading.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappush, heappushpop
from itertools import pairwise
from typing import Any

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import adding, packed, parks, steps
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.ledger_entries import LoadedExtensions, StoredJobOptions
from journeyman.engines.workq.state import WorkqState
from journeyman.folds.workq import FoldedJob, Orphans, apply, visible
from journeyman.formats.workq import CANCELLATION, Command, JobAdded, JobFinished, Record
from journeyman.protocols.workq.commands import JobWait
from journeyman.units import NS_PER_MS


class WorkqLoader:
    """Takes the records of a log in order; ``finish`` ends it.

    ``until_ns``: records that were logged later do not count.
    """

    def __init__(
        self,
        *,
        now_ns: int,
        paused: Iterable[str] = (),
        seed: int = 0,
        extensions: LoadedExtensions | None = None,
        until_ns: int | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._until_ns = until_ns
        self._paused = frozenset(paused)
        self._extensions = extensions or LoadedExtensions()
        self._rates = self._extensions.rates
        self._key_rates = self._extensions.key_rates
        self._starts: dict[str, list[int]] = {}  # heaps of the latest, of queues with a rate
        # The same for keys, in queues whose keys have a rate.
        self._key_starts: dict[tuple[str, str], list[int]] = {}
        self._folded: dict[bytes, FoldedJob | Orphans] = {}
        self._timeouts_ns: dict[bytes, int] = {}  # when the last timeout-attempt was
        self._names: dict[str, None] = {}
        self._completed: set[bytes] = set()  # jobs that have expired after that
        self._state = WorkqState(seed)
        self._jobs = self._state.jobs
        self._expiries: list[bytes] = []
        self._leases: list[bytes] = []
        self._with_steps = {step.job_id for step in self._extensions.steps.values()}
        self._parked: list[tuple[bytes, JobWait]] = []  # those that time alone does not wake
        self._due: list[bytes] = []
        self._waits: list[bytes] = []
        self._waiting: dict[
            int, tuple[list[packed.Spec], list[packed.Spec], list[packed.Spec]]
        ] = {}
        self._latest_ns = 0

    def add(self, record: Record) -> None:
        if self._until_ns is not None and record.logged.unix_ns > self._until_ns:
            return
        if isinstance(record, JobAdded):
            self._names[record.name] = None
        job_id = record.job_id
        before = self._folded.get(job_id)
        state = apply(before, record)
        if state is None:
            self._folded.pop(job_id, None)
            self._timeouts_ns.pop(job_id, None)
            return
        if state is not before:
            self._folded[job_id] = state
        if record.command == Command.TIMEOUT_ATTEMPT:
            self._timeouts_ns[job_id] = record.logged.unix_ns
        elif record.command == Command.WAKE and isinstance(state, FoldedJob) and state.parks:
            self._timeouts_ns.pop(job_id, None)  # it is ready at once: the park was no failure
        elif (self._rates or self._key_rates) and record.command == Command.START_ATTEMPT:
            self._note_start(job_id, state, record.logged.unix_ns)

    def _note_start(self, job_id: bytes, state: FoldedJob | Orphans, logged_ns: int) -> None:
        name = state.added.name if isinstance(state, FoldedJob) else ""
        self.add_starts(name, [logged_ns])
        options = self._extensions.options.get(job_id)
        if options is not None and options.key and (rate := self._key_rates.get(name, 0)):
            starts = self._key_starts.setdefault((name, options.key), [])
            starts.append(logged_ns)
            del starts[:-rate]

    # -- in bulk --

    @property
    def bulk_arguments(self) -> tuple[Any, ...]:
        """The facts that the bulk reader needs besides the files."""
        known_ids = self._extensions.known_ids
        return self._now_ns, known_ids, frozenset(self._rates), self._until_ns

    def add_queues(self, names: Sequence[str], latest_ns: int) -> None:
        """The queues, whose numbers are their places here, and when the last job was created.

        This comes before all else.
        """
        for name in names:
            self._state.queues.use(name)
        self._latest_ns = latest_ns

    def add_starts(self, name: str, times_ns: Iterable[int]) -> None:
        """Moments at which jobs of this queue were leased."""
        if rate := self._rates.get(name, 0):
            latest = self._starts.setdefault(name, [])
            for logged_ns in times_ns:
                if len(latest) < rate:
                    heappush(latest, logged_ns)
                else:
                    heappushpop(latest, logged_ns)

    def add_ready(self, queue: int, rows: packed.ReadyRows) -> None:
        """Jobs of one queue to which nothing has happened, not expired."""
        specs = _specs_of(rows)
        self._lay(rows, specs)
        self._lists(queue)[0].extend(specs)

    def add_completed(self, rows: packed.ReadyRows, columns: Sequence[Sequence[Any]]) -> None:
        """Jobs that are not expired, and what their entries have after the spec."""
        self._lay(rows, [*zip(_specs_of(rows), *columns, strict=True)])

    def _lay(self, rows: packed.ReadyRows, entries: Sequence[packed.Entry]) -> None:
        by_shard = [*map(entries.__getitem__, rows.by_shard)]
        self._jobs.lay_sharded(packed.cut(rows.ids, packed.ID_BYTES), by_shard, rows.counts)
        self._expiries += packed.cut(rows.expiries, packed.KEY_BYTES)

    def add_moved(self, entries: Iterable[packed.Progress]) -> None:
        """Jobs in any state."""
        for entry in entries:
            self._put(packed.job_id_of(entry[0]), entry)

    # -- the end --

    def finish(self) -> WorkqEngine:
        state = self._state
        queues, jobs = state.queues, state.jobs
        self._put_folded()
        for number, lists in self._waiting.items():
            queue = queues.by_number[number]
            queue.ready, queue.scheduled, queue.dead = (SortedSet(sorted(specs)) for specs in lists)
        self._waiting = {}
        jobs.expiries = SortedSet(sorted(self._expiries))
        jobs.leases = SortedSet(sorted(self._leases))
        jobs.due = SortedSet(sorted(self._due))
        jobs.waits = SortedSet(sorted(self._waits))
        for name in sorted(self._paused):
            queues.set_paused(queues.use(name), True)
        state.begin(self._latest_ns)
        self._finish_extensions()
        return WorkqEngine(state)

    def _put_folded(self) -> None:
        for name in self._names:
            self._state.queues.use(name)
        for job_id, job in self._folded.items():
            if not isinstance(job, FoldedJob):
                continue
            if visible(job, self._now_ns):
                self._put_job(job, self._timeouts_ns.get(job_id, 0))
            elif job.state == packed.COMPLETED:
                self._completed.add(job_id)

    def _put_job(self, job: FoldedJob, timeout_ns: int) -> None:
        """Put in a job as the fold has it; ``timeout_ns`` is the time of its last
        timeout-attempt."""
        added = job.added
        options = self._extensions.options.get(added.job_id, StoredJobOptions())
        number = self._state.queues.use(added.name).number
        entry = packed.entry_of(job, number, timeout_ns, options.key, options.cancelled_ns)
        if job.state == packed.PENDING and (ready_ns := options.ready_after(timeout_ns)):
            entry = packed.move_lease_end(packed.opened(entry), ready_ns)
        if job.state == packed.NEW and options.cancelled_ns == added.created.unix_ns:
            # A job that was cancelled while it waited for others is added and fails at once. A
            # power cut has left the add: the failure is written with the next decision.
            spec, ended_ns = packed.spec_of(entry), added.created.unix_ns
            entry = (spec, packed.CANCELLED, 0, 0, 0, ended_ns, CANCELLATION)
            failed = JobFinished(added.created, added.job_id, Command.FAIL, CANCELLATION)
            self._state.unwritten.append(failed)
        self._put(added.job_id, entry)
        self._latest_ns = max(self._latest_ns, added.created.unix_ns)

    def _put(self, job_id: bytes, entry: packed.Entry) -> None:
        progress = packed.opened(entry)
        spec, stage, attempts, fails, started_ns, moment_ns, _ = progress
        expires = packed.expires_ns_of(spec)
        if expires <= self._now_ns:
            return
        ready, scheduled, dead = self._lists(packed.queue_of(spec))
        if stage in packed.WAITING:
            wakes_ns = _wakes_ns(progress)
            if wakes_ns > self._now_ns:
                entry = (spec, stage, attempts, fails, started_ns, wakes_ns, None)
                # First: it may be out of range.
                self._due.append(packed.moment_key(wakes_ns, job_id))
                scheduled.append(spec)
            else:
                is_plain = stage == packed.NEW and not attempts and not fails
                entry = spec if is_plain else (spec, stage, attempts, fails, started_ns, 0, None)
                ready.append(spec)
        elif stage == packed.LEASED:
            options = self._extensions.options.get(job_id)
            if options is not None and options.touched == attempts:
                moment_ns = max(
                    moment_ns, self._now_ns + packed.lease_fields_of(spec)[2] * NS_PER_MS
                )
                entry = packed.move_lease_end(progress, moment_ns)
            self._leases.append(packed.moment_key(moment_ns, job_id))
            self._state.queues.by_number[packed.queue_of(spec)].count_lease(spec, 1)
        elif stage in packed.DEAD:
            dead.append(spec)
        elif stage == packed.CANCELLED:
            self._jobs.cancelled += 1
            self._state.queues.by_number[packed.queue_of(spec)].cancelled += 1
        elif stage == packed.PARKED:
            entry = self._park(job_id, progress)
        self._jobs.lay(job_id, entry)
        if stage != packed.PARKED:
            self._expiries.append(packed.moment_key(expires, job_id))

    def _park(self, job_id: bytes, entry: packed.Progress) -> packed.Progress:
        wait = parks.wait_of(entry)
        self._jobs.parked += 1
        spec = packed.spec_of(entry)
        self._state.queues.by_number[packed.queue_of(spec)].parked += 1
        is_event_there = wait.event in self._extensions.events
        if wait.jobs or is_event_there or job_id in self._with_steps:
            self._parked.append((job_id, wait))
        if wait.event:
            self._waits.append(packed.event_key(wait.event, job_id))
        if wait.until_ns:
            self._due.append(packed.moment_key(wait.until_ns, job_id))
        return packed.move_lease_end(entry, wait.until_ns)

    def _finish_extensions(self) -> None:
        state, loaded = self._state, self._extensions
        for name, limits in loaded.limits.items():
            queue = state.queues.use(name)
            state.extensions.set_limits(queue, limits)
            queue.starts.extend(sorted(self._starts.get(name, ())))
        self._finish_key_starts()
        for job_id, options in loaded.options.items():
            entry = state.jobs.get(job_id)
            stage = None if entry is None else packed.opened(entry)[1]
            if stage is not None and (stage != packed.COMPLETED or job_id in self._with_steps):
                state.extensions.options[job_id] = options
            elif entry is not None or job_id not in loaded.children:
                state.extensions.forget_options(job_id, options, self._now_ns)
        adding.load_children(state, loaded, self._completed)
        if loaded.steps:
            steps.load(state, loaded)
        for name, event in loaded.events.items():
            state.extensions.add_event(name, event)
        if self._parked:
            parks.load(state, self._parked)

    def _finish_key_starts(self) -> None:
        keys = [(sorted(starts), *place) for place, starts in self._key_starts.items()]
        for starts, name, key in sorted(keys, key=lambda row: row[0][-1]):
            queue = self._state.queues.use(name)
            if starts[-1] + queue.limits.key_per_ms * NS_PER_MS > self._now_ns:
                queue.key_rates.put(key, starts)

    def _lists(self, number: int) -> tuple[list[packed.Spec], list[packed.Spec], list[packed.Spec]]:
        lists = self._waiting.get(number)
        if lists is None:
            lists = self._waiting[number] = ([], [], [])
        return lists


def _specs_of(rows: packed.ReadyRows) -> list[packed.Spec]:
    return [rows.specs[begin:end] for begin, end in pairwise(rows.ends)]


def _wakes_ns(progress: packed.Progress) -> int:
    """When a job that waits is ready; in the past if it is."""
    spec, stage, _, _, _, moment_ns, _ = progress
    if stage == packed.PENDING:
        return moment_ns
    time_ns = packed.fields_of(spec).time_ns
    return 0 if time_ns is None else time_ns
