"""The state of the work queue: all jobs and the orders they stand in, and what decisions share.

    jobs                       WorkqJobTable, below
    queues, waiting            see queues.py
    extensions                 see extensions.py
    now_ns, instant            the moment of the decision, and the same for a record
    records, effects           the outcome so far
    ledger                     what of it belongs in the ledger; taken once a batch

The moment is the caller's time, except that it does not go back by less than a second, and that
every add has a moment of its own, a nanosecond after the last recorded one. So jobs that are added
within one batch keep their order, and the times in the log do not run backwards.

A job whose TTL is over does not exist for clients, although it may take a little while until
``WorkqDue`` gets to it and records that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias
from zlib import crc32

from journeyman.engines.sharded_dict import ShardedDict
from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import packed
from journeyman.engines.workq.creation_order import CreationOrder
from journeyman.engines.workq.extensions import Extensions
from journeyman.engines.workq.ledger_entries import StoredJobOptions, options_body
from journeyman.engines.workq.messages import WorkqAnswer
from journeyman.engines.workq.queues import JobQueue, Queues, Waiter, Waiting
from journeyman.formats.ledger import (
    JobOptionsRemoved,
    JobOptionsSet,
    ParentOutcome,
)
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobEvent, Record
from journeyman.protocols.workq.commands import NO_LIMITS
from journeyman.protocols.workq.replies import Reply, id_text
from journeyman.units import NS_PER_S

_Change: TypeAlias = tuple[bytes, packed.Entry | None]  # a job's id, its state before

NEVER_NS = 2**90


class WorkqJobTable:
    """The jobs by id, in a sharded dict, and in their orders:

    job                      its orders
    -----------------------  ------------------------------------------------
    any but a run            expiries: by the end of its TTL, unless it is parked
    new, pending: ready      ready of its queue
    new, pending: not yet    scheduled of its queue, and due: by when it is ready
    leased                   leases: by the end of its TTR
    failed                   dead of its queue
    parked                   due: by the end of its wait; waits: by the event
    completed, cancelled     no other

    ``replace`` is the only way to create, change or end a job: it takes the old state out of its
    orders and puts the new one in. So a job is always in exactly the orders it belongs to, and a
    batch is undone by replacing once more, the last change first.
    """

    __slots__ = (
        "_changes",
        "_entries",
        "_queues",
        "_shard_of",
        "browsing",
        "calm_until_ns",
        "cancelled",
        "due",
        "expiries",
        "freed",
        "get",
        "leases",
        "parked",
        "runs",
        "waits",
    )

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._entries: ShardedDict[bytes, packed.Entry] = ShardedDict(crc32)
        self._shard_of = self._entries.shard_of
        self.browsing: CreationOrder | None = None  # after the first request
        self.get = self._entries.get
        self._changes: list[_Change] | None = None  # made by the open batch
        self.expiries: SortedSet[bytes] = SortedSet()
        self.leases: SortedSet[bytes] = SortedSet()
        self.due: SortedSet[bytes] = SortedSet()
        self.waits: SortedSet[bytes] = SortedSet()
        self.parked = 0  # jobs
        self.freed: list[JobQueue] = []  # limits of theirs may have room again
        self.runs = 0  # jobs without a TTL
        self.cancelled = 0  # jobs
        self.calm_until_ns = 0  # no job expires before; see look_for_calm

    def __len__(self) -> int:
        return len(self.expiries) + self.runs + self.parked

    def __iter__(self) -> Iterator[tuple[bytes, packed.Entry]]:
        return self._entries.items()

    def replace(
        self, job_id: bytes, before: packed.Entry | None, after: packed.Entry | None
    ) -> None:
        """``before`` is the present state; None: no such job, before or after."""
        if self._changes is not None:
            self._changes.append((job_id, before))
        self._put(job_id, before, after)
        self._count(before, after, 1)

    def add_ready(self, job_id: bytes, spec: packed.Spec, queue: JobQueue, expires_ns: int) -> None:
        """``replace(job_id, None, spec)``, for a caller that knows what is in the spec."""
        if self._changes is not None:
            self._changes.append((job_id, None))
        self._shard_of(job_id)[job_id] = spec
        if self.browsing is not None:
            self.browsing.begin(job_id, spec)
        queue.ready.add(spec)
        queue.added += 1
        self.expiries.add(packed.moment_key(expires_ns, job_id))
        if expires_ns < self.calm_until_ns:
            self.calm_until_ns = expires_ns

    def lease_ready(
        self, job_id: bytes, ready: packed.Entry, leased: packed.Progress, queue: JobQueue
    ) -> None:
        """``replace(job_id, ready, leased)``, for a caller that knows both."""
        if self._changes is not None:
            self._changes.append((job_id, ready))
        self._shard_of(job_id)[job_id] = leased
        spec = leased[0]
        if queue.held_size:
            self._leave_ready(queue, spec)
        else:
            queue.ready.remove(spec)
        queue.count_lease(spec, 1)
        queue.started += 1
        self.leases.add(packed.moment_key(leased[5], job_id))

    def end_lease(
        self, job_id: bytes, leased: packed.Progress, finished: packed.Progress, queue: JobQueue
    ) -> None:
        """``replace(job_id, leased, finished)`` of a job without a key that completes, where the
        queue has no limits."""
        if self._changes is not None:
            self._changes.append((job_id, leased))
        self._shard_of(job_id)[job_id] = finished
        queue.leased -= 1
        self.leases.remove(packed.moment_key(leased[5], job_id))

    def waiting_for(self, event: str, limit: int) -> list[bytes]:
        """Ids of jobs that are parked until this event."""
        prefix = packed.event_key(event)
        keys = self.waits.beginning_with(prefix, prefix, limit)
        return [key[len(prefix) :] for key in keys]

    def look_for_calm(self) -> int:
        """No job expires before this."""
        self.calm_until_ns = (
            packed.moment_of(self.expiries.first()) if self.expiries.size else NEVER_NS
        )
        return self.calm_until_ns

    # -- loading: what is laid in is in no order yet --

    def lay(self, job_id: bytes, entry: packed.Entry) -> None:
        self._shard_of(job_id)[job_id] = entry

    def lay_sharded(
        self, ids: Sequence[bytes], entries: Sequence[packed.Entry], counts: Iterable[int]
    ) -> None:
        """Store very many jobs: so many of the first shard, then those of the next."""
        end = 0
        for number, count in enumerate(counts):
            begin, end = end, end + count
            self._entries.numbered(number).update(
                zip(ids[begin:end], entries[begin:end], strict=True)
            )

    # -- inside --

    def _put(self, job_id: bytes, before: packed.Entry | None, after: packed.Entry | None) -> None:
        shard = self._shard_of(job_id)
        if before is not None:
            self._leave(job_id, before)
        if after is not None:
            shard[job_id] = after
            self._enter(job_id, after)
            if before is None:
                self._begin(job_id, packed.spec_of(after))
            elif packed.spec_of(before) is not packed.spec_of(after):  # its TTL begins again
                self._end_life(job_id, packed.spec_of(before))
                self._begin_life(job_id, packed.spec_of(after))
        elif before is not None:
            del shard[job_id]
            self._end(job_id, packed.spec_of(before))

    def _count(self, before: packed.Entry | None, after: packed.Entry | None, change: int) -> None:
        """Jobs that came and leases that began, or that are taken back."""
        if after is None:
            return
        if before is None:
            self._queues.by_number[packed.queue_of(packed.spec_of(after))].added += change
        if _is_leased(after) and not _is_leased(before):
            self._queues.by_number[packed.queue_of(packed.spec_of(after))].started += change

    def in_order(self) -> CreationOrder:
        """Return the jobs in the order of their creation, which is kept from the first call on."""
        if self.browsing is None:
            self.browsing = CreationOrder(self._entries)
        return self.browsing

    def _begin(self, job_id: bytes, spec: packed.Spec) -> None:
        if self.browsing is not None:
            self.browsing.begin(job_id, spec)
        if packed.is_run(spec):
            self.runs += 1
        else:
            self._begin_life(job_id, spec)

    def _begin_life(self, job_id: bytes, spec: packed.Spec) -> None:
        expires_ns = packed.expires_ns_of(spec)
        if expires_ns == packed.FAR:  # it is parked
            return
        self.expiries.add(packed.moment_key(expires_ns, job_id))
        self.calm_until_ns = min(self.calm_until_ns, expires_ns)

    def _end(self, job_id: bytes, spec: packed.Spec) -> None:
        if self.browsing is not None:
            self.browsing.end(job_id, spec)
        if packed.is_run(spec):
            self.runs -= 1
        else:
            self._end_life(job_id, spec)

    def _end_life(self, job_id: bytes, spec: packed.Spec) -> None:
        expires_ns = packed.expires_ns_of(spec)
        if expires_ns != packed.FAR:
            self.expiries.remove(packed.moment_key(expires_ns, job_id))

    def _enter(self, job_id: bytes, entry: packed.Entry) -> None:
        if isinstance(entry, bytes):
            self._queues.by_number[packed.queue_of(entry)].ready.add(entry)
            return
        spec, stage, _, _, _, moment_ns, _ = entry
        if stage == packed.LEASED:
            self.leases.add(packed.moment_key(moment_ns, job_id))
            self._queues.by_number[packed.queue_of(spec)].count_lease(spec, 1)
        elif stage in packed.WAITING:
            queue = self._queues.by_number[packed.queue_of(spec)]
            if moment_ns:
                queue.scheduled.add(spec)
                self.due.add(packed.moment_key(moment_ns, job_id))
            else:
                queue.ready.add(spec)
        elif stage in packed.DEAD:
            self._queues.by_number[packed.queue_of(spec)].dead.add(spec)
            if self.browsing is not None:
                self.browsing.died(job_id, spec)
        elif stage == packed.CANCELLED:
            self.cancelled += 1
            self._queues.by_number[packed.queue_of(spec)].cancelled += 1
        elif stage == packed.PARKED:
            self.parked += 1
            self._queues.by_number[packed.queue_of(spec)].parked += 1
            if moment_ns:
                self.due.add(packed.moment_key(moment_ns, job_id))
            if event := packed.event_of(entry):
                self.waits.add(packed.event_key(event, job_id))

    def _leave(self, job_id: bytes, entry: packed.Entry) -> None:
        if isinstance(entry, bytes):
            self._leave_ready(self._queues.by_number[packed.queue_of(entry)], entry)
            return
        spec, stage, _, _, _, moment_ns, _ = entry
        if stage == packed.LEASED:
            self.leases.remove(packed.moment_key(moment_ns, job_id))
            self._end_lease(self._queues.by_number[packed.queue_of(spec)], spec)
        elif stage in packed.WAITING:
            queue = self._queues.by_number[packed.queue_of(spec)]
            if moment_ns:
                queue.scheduled.remove(spec)
                self.due.remove(packed.moment_key(moment_ns, job_id))
            else:
                self._leave_ready(queue, spec)
        elif stage in packed.DEAD:
            self._queues.by_number[packed.queue_of(spec)].dead.remove(spec)
            if self.browsing is not None:
                self.browsing.revived(job_id, spec)
        elif stage == packed.CANCELLED:
            self.cancelled -= 1
            self._queues.by_number[packed.queue_of(spec)].cancelled -= 1
        elif stage == packed.PARKED:
            self.parked -= 1
            self._queues.by_number[packed.queue_of(spec)].parked -= 1
            if moment_ns:
                self.due.remove(packed.moment_key(moment_ns, job_id))
            if event := packed.event_of(entry):
                self.waits.remove(packed.event_key(event, job_id))

    def _leave_ready(self, queue: JobQueue, spec: packed.Spec) -> None:
        if queue.leave_ready(spec):
            self.freed.append(queue)

    def _end_lease(self, queue: JobQueue, spec: packed.Spec) -> None:
        queue.count_lease(spec, -1)
        if queue.held_size:
            queue.release_one(packed.key_of(spec))
        if queue.limits is not NO_LIMITS:
            self.freed.append(queue)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        changes, self._changes = self._changes or (), None
        for job_id, before in reversed(changes):
            now = self.get(job_id)
            if now is not before:
                self._put(job_id, now, before)
                self._count(before, now, -1)


def _is_leased(entry: packed.Entry | None) -> bool:
    return isinstance(entry, tuple) and entry[1] == packed.LEASED


# A clock that goes back further was set: jobs would live too long if it were not followed.
SMALL_STEP_NS = NS_PER_S

# A linear congruential generator of 64 bits (Knuth's constants), of which the upper half is used.
_MULTIPLIER, _INCREMENT, _MASK64 = 6364136223846793005, 1442695040888963407, 2**64 - 1


class WorkqState:
    """The decisions are functions that take it."""

    __slots__ = (
        "_chance",
        "_saved",
        "effects",
        "evicted",
        "extensions",
        "gated",
        "jobs",
        "key_gated",
        "leaving",
        "ledger",
        "loosened",
        "now_ns",
        "queues",
        "records",
        "starved",
        "unsaid",
        "unwritten",
        "waiting",
    )

    def __init__(self, seed: int) -> None:
        self.queues = Queues()
        self.jobs = WorkqJobTable(self.queues)
        self.waiting = Waiting()
        self.evicted = 0  # unfinished jobs that their TTL has ended
        self.extensions = Extensions()
        self.starved: set[JobQueue] = set()  # see lifecycle.py
        self.gated: set[JobQueue] = set()  # the rate had no room for a lease
        self.key_gated: set[JobQueue] = set()  # the rates of keys had none; see queues.KeyRates
        self.loosened: set[JobQueue] = set()  # limits have changed: jobs drain back
        self.records: list[Record] = []
        self.ledger: list[LedgerRecord] = []
        self.leaving: list[tuple[bytes, bool, int]] = []  # parents; did they succeed; life_of
        self.unsaid: list[LedgerRecord] = []  # written to the ledger first, after a start
        self.unwritten: list[Record] = []  # the same for the log
        self.effects: list[WorkqAnswer] = []
        self.now_ns = 0
        self._chance = seed & _MASK64
        self._saved = self.evicted, self.starved, self.gated

    def pick(self, count: int) -> int:
        """A number below ``count``, each as likely as another: chance that comes from the seed."""
        self._chance = (self._chance * _MULTIPLIER + _INCREMENT) & _MASK64
        return (self._chance >> 32) * count >> 32

    # -- the moment --

    def begin(self, now_ns: int) -> None:
        """A decision begins at this time."""
        ahead_ns = self.now_ns - now_ns
        if ahead_ns < 0 or ahead_ns > SMALL_STEP_NS:
            self.now_ns = now_ns

    def moment_of_its_own(self) -> Instant:
        """Return a time after all that was recorded so far."""
        self.now_ns += 1
        return self.instant

    @property
    def instant(self) -> Instant:
        """The moment, for a record."""
        return Instant(self.now_ns)

    # -- jobs --

    def find(self, job_id: bytes) -> packed.Entry | None:
        """The job, unless its TTL is over."""
        entry = self.jobs.get(job_id)
        if entry is None or self.is_expired(entry):
            return None
        return entry

    def is_expired(self, entry: packed.Entry) -> bool:
        jobs = self.jobs
        # Mostly none is, and that is quickly seen.
        if self.now_ns < jobs.calm_until_ns or self.now_ns < jobs.look_for_calm():
            return False
        spec = packed.spec_of(entry)
        return not packed.is_run(spec) and packed.expires_ns_of(spec) <= self.now_ns

    def record_event(self, job_id: bytes, command: Command) -> None:
        self.records.append(JobEvent(self.instant, job_id, command))

    def record_timeout(self, job_id: bytes, spec: packed.Spec) -> None:
        """Hidden of a job that was parked: the original has it in its queue."""
        hidden = packed.was_parked(spec)
        self.records.append(JobEvent(self.instant, job_id, Command.TIMEOUT_ATTEMPT, hidden))

    # -- extensions --

    def set_options(self, job_id: bytes, options: StoredJobOptions) -> None:
        extensions = self.extensions
        extensions.put(extensions.options, job_id, options)
        extensions.drop(extensions.forgetting, job_id)
        extensions.drop(extensions.lingering, job_id)
        added = extensions.added_now.get(job_id)
        if added is None:
            extensions.drop(extensions.added_children, job_id)
        body = options_body(options, added)
        self.ledger.append(JobOptionsSet(self.instant, id_text(job_id), body))

    def note_end(
        self, job_id: bytes, stage: int, *, is_gone: bool = False, was: packed.Entry | None = None
    ) -> None:
        """A job has come to this stage, or is gone from it: for its options and its children.
        ``was``: a job that is gone."""
        extensions = self.extensions
        if is_gone or stage == packed.COMPLETED:
            extensions.end_steps(job_id, self.now_ns, is_gone=is_gone)
        if extensions.is_idle:
            return
        extensions.end_worker(job_id)
        if is_gone:
            extensions.progress.forget(job_id)
        self.tell_children(job_id, stage, is_gone=is_gone, was=was)
        for parked in extensions.watched.get(job_id, ()):
            extensions.put(extensions.waking, parked, None)
        extensions.drop(extensions.watched, job_id)
        if is_gone:
            self._drop_options(job_id)
        elif stage != packed.COMPLETED or job_id in extensions.steps:
            return  # they may go on, or be forked
        elif (options := extensions.options.get(job_id)) is not None:
            extensions.drop(extensions.options, job_id)
            extensions.forget_options(job_id, options, self.now_ns)

    def tell_children(
        self, job_id: bytes, stage: int, *, is_gone: bool, was: packed.Entry | None
    ) -> None:
        extensions = self.extensions
        if job_id not in extensions.children_of:
            return
        succeeded = stage == packed.COMPLETED
        extensions.end_parent(job_id, succeeded=succeeded)
        if is_gone:
            self.leaving.append((job_id, succeeded, packed.life_of(was)))

    def mark_leaving(self) -> None:
        """Mark the parents that left in this batch and that children still wait for: for other
        parents, or to be added."""
        leaving, self.leaving = self.leaving, []
        for job_id, succeeded, life in leaving:
            if job_id in self.extensions.children_of:
                self.mark_parent(job_id, succeeded=succeeded, life=life)

    def mark_parent(self, job_id: bytes, *, succeeded: bool, life: int = 0) -> None:
        """A start could not tell any more how this parent has ended. A life that fails, after one
        that succeeded, is not marked: that would count for children of the former one. Its own have
        failed, or do with a parent that is gone."""
        extensions = self.extensions
        if not succeeded and extensions.marked.get(job_id):
            return
        extensions.put(extensions.marked, job_id, succeeded)
        extensions.drop(extensions.forgetting_parents, job_id)
        self.say_unsaid()  # that may be about an end before this one
        failed = int(not succeeded)
        self.ledger.append(ParentOutcome(self.instant, id_text(job_id), life, failed))

    def say_unsaid(self) -> None:
        if self.unsaid:
            self.extensions.note_undo(partial(setattr, self, "unsaid", self.unsaid))
            self.ledger, self.unsaid = self.ledger + self.unsaid, []

    def write_unwritten(self) -> None:
        self.extensions.note_undo(partial(setattr, self, "unwritten", self.unwritten))
        self.records, self.unwritten = self.records + self.unwritten, []

    def _drop_options(self, job_id: bytes) -> None:
        """The ledger is written before the log, and a crash in between would leave the job without
        them: so they go later. But a child would be one again if its job is gone: that goes now."""
        extensions = self.extensions
        is_child = job_id in extensions.added_children
        if not is_child and job_id not in extensions.options:
            return
        options = extensions.options.get(job_id, StoredJobOptions())
        extensions.drop(extensions.options, job_id)
        if not is_child:
            extensions.forget_options(job_id, options, self.now_ns)
        elif job_id not in extensions.added_now:
            self.forget_now(job_id)
            if any(options):  # not of a child any more, and after the removal, which is urgent
                body = options_body(options)
                self.ledger.append(JobOptionsSet(self.instant, id_text(job_id), body))
                extensions.forget_options(job_id, options, self.now_ns)
        else:  # added and gone in one batch: right after it
            extensions.forget(job_id, self.now_ns)
            extensions.forget_at_ns = self.now_ns

    def forget_now(self, job_id: bytes) -> None:
        """The ledger need not know this job any more, or another one gets its id."""
        extensions = self.extensions
        extensions.drop(extensions.forgetting, job_id)
        extensions.drop(extensions.lingering, job_id)
        extensions.drop(extensions.added_children, job_id)
        self.ledger.append(JobOptionsRemoved(self.instant, id_text(job_id)))

    # -- waiting clients --

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        self.waiting.remove(waiter)
        self.effects.append(WorkqAnswer(waiter.client, reply))

    def tell(self, job_id: bytes, reply: Reply) -> None:
        """Answer all clients that wait for this job."""
        for waiter in self.waiting.of_job(job_id):
            self.answer(waiter, reply)

    def release_queues(self) -> None:
        """Remove, at the end of a decision, the queues that only existed for waiting clients."""
        unwatched, self.waiting.unwatched = self.waiting.unwatched, []
        self.queues.release(unwatched)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._saved = self.evicted, self.starved.copy(), self.gated.copy()
        for part in (self.jobs, self.waiting, self.queues, self.extensions):
            part.begin_batch()

    def commit_batch(self) -> None:
        for part in (self.jobs, self.waiting, self.queues, self.extensions):
            part.commit_batch()

    def undo_batch(self) -> None:
        self.ledger = []
        self.evicted, self.starved, self.gated = self._saved
        self.loosened.update(self.extensions.limited.values())  # their limits may be others again
        self.extensions.undo_batch()
        self.loosened.update(self.extensions.limited.values())
        for part in (self.jobs, self.waiting, self.queues):
            part.undo_batch()
        self.jobs.freed.clear()
        self.waiting.unwatched.clear()  # the queues are there again, or gone
