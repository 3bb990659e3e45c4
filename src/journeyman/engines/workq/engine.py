"""The work queue decides: state + command + time -> records, reply, effects.

    queue = WorkqEngine(seed=7)                 empty; loaded ones: loading.py
    queue.begin_batch()
    outcome = queue.decide(command, now_ns, client)     client: any hashable handle
    ... write outcome.records ...
    queue.commit_batch()  |  queue.undo_batch()
    queue.next_due_ns()                             when to decide WorkqDue() next, or None
    queue.paused                                    names of paused queues

    state        records                 by
    -----------  ----------------------  ---------------------------------------------------------
    new          JobAdded                add, schedule
    leased       start-attempt           lease, or a lease that waited
    pending      timeout-attempt         TTR over, attempts left
    pending      fail, timeout-attempt   fail, fails and attempts left (both with the same time)
    failed       timeout-attempt         TTR over, no attempts left
    failed       fail                    fail, no fails or attempts left
    completed    complete                complete
    no job       delete | expire         delete | TTL over
    new again    delete, JobAdded        requeue of a failed job: a new life, with a full TTL
    parked       park                    park, before a timeout-attempt at the first time
    pending      wake                    what it waits for has come: parks.py

- Whatever is decided is applied at once, and records say all of it: the fold of the records written
  is the state (``run`` jobs apart, of which nothing is written). A batch can be taken back.
- While a client waits (reply None) it must not submit another command. One ``WorkqAnswer``
  ends its wait; so does ``WorkqGone(client)``, after which nothing comes for it.
- After every decision no client waits for a job beside a ready job that it could have, unless that
  queue is paused. Of the clients that wait for a queue the longest waiting one is served first.
- Pauses are not in the log: they leave in ``take_ledger`` and come back in ``WorkqLoader.finish``.
- The delay before a retry is in the log (formats.workq); it begins with the timeout-attempt's time.
- Time is an argument, chance a seed: the same commands at the same times give the same outcomes.

Commands of the usual kind are decided in one step, and their records encoded at once:

    add        a new id, into a queue that is in use and that no client waits for
    lease      of one queue without limits that has a ready job; for a worker without a name
    complete   of a leased job that no client waits for

``usual_at`` does what the decisions do, or leaves the command to them; the decisions are the law
(tests/property/test_workq_engine.py). It is for jobs that have nothing in the ledger: no job has
options, no worker a name, none waits for another. Nothing may be expired, held back or limited, so
there is nothing to be done but the command itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from msgspec import structs

from journeyman.engines.sorted_set import StillSorting
from journeyman.engines.workq import (
    adding,
    browsing,
    forks,
    lifecycle,
    messages,
    packed,
    parks,
    steps,
    views,
    worker_commands,
    workers,
)
from journeyman.engines.workq.extensions import MAX_LIMITED_QUEUES
from journeyman.engines.workq.ledger_entries import limits_body
from journeyman.engines.workq.state import WorkqState
from journeyman.folds.workq import FoldedJob
from journeyman.formats.ledger import (
    QueueLimitsRemoved,
    QueueLimitsSet,
    QueuePaused,
    QueueResumed,
)
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.timed_frame import UTC_OFFSET_MIN, cached_moment_bytes, moment_bytes
from journeyman.formats.workq import (
    Command,
    encode_add,
    encode_event,
    encode_finished,
    pack_max_fails,
)
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.commands import NO_LIMITS, Add, Complete, Lease
from journeyman.protocols.workq.replies import DONE, Leased, Reply
from journeyman.units import DAY_MS, NS_PER_MS

_START, _COMPLETE = int(Command.START_ATTEMPT), int(Command.COMPLETE)
_UNUSUAL = packed.IS_RUN | packed.HAS_KEY | packed.WAS_PARKED
_leased = tuple.__new__  # a third of the time of Leased(...)

Encoded: TypeAlias = list[Any]  # records of a batch, of which some are bytes


def _decide_usual(state: WorkqState, records: Encoded, command: Any) -> Reply | None:
    """The reply, and its record is in ``records``; None: nothing was done, it is not usual."""
    usual = _USUAL.get(type(command))
    if usual is None or not state.extensions.is_idle:
        return None
    return usual(state, command, records)


def _is_calm(state: WorkqState) -> bool:
    """Return whether no job at all has expired."""
    return state.now_ns < state.jobs.calm_until_ns or state.now_ns < state.jobs.look_for_calm()


def _add_usual(state: WorkqState, command: Add, records: Encoded) -> Reply | None:
    job_id, name, ttr_ms, ttl_ms, payload, priority, attempts, fails, delay_ms, options = command
    queue = state.queues.get(name)
    if options is not None or queue is None or not queue.is_used or queue.waiters.size:
        return None
    if state.jobs.get(job_id) is not None:
        return None
    if delay_ms:
        fails = pack_max_fails(fails, delay_ms)
    now_ns = state.now_ns = state.now_ns + 1
    moment = moment_bytes(now_ns, UTC_OFFSET_MIN)  # each record has a moment of its own
    records.append(
        encode_add(moment, job_id, payload, name, ttr_ms, ttl_ms, priority, attempts, fails)
    )
    spec = packed.pack(
        job_id, queue.number, ttr_ms, ttl_ms, priority, attempts, fails, now_ns, None, 0, payload
    )
    state.jobs.add_ready(job_id, spec, queue, now_ns + ttl_ms * NS_PER_MS)
    return DONE


def _lease_usual(state: WorkqState, command: Lease, records: Encoded) -> Reply | None:
    if len(command.names) > 1 or command.max_jobs or command.worker or not _is_calm(state):
        return None
    queue = state.queues.get(command.names[0])
    if queue is None or not queue.ready.size or queue.paused or queue.limits is not NO_LIMITS:
        return None
    spec = queue.ready.first()
    job_id, _, ttr_ms = packed.lease_fields_of(spec)
    entry = state.jobs.get(job_id)
    if entry is None or packed.flags_of(spec) & _UNUSUAL or queue.held_size:
        return None
    now_ns = state.now_ns
    records.append(encode_event(cached_moment_bytes(now_ns, UTC_OFFSET_MIN), _START, job_id))
    state.jobs.lease_ready(job_id, entry, packed.begin_lease(entry, ttr_ms, now_ns), queue)
    return _leased(Leased, (job_id, queue.name, ttr_ms, packed.shown_payload_of(spec)))


def _complete_usual(state: WorkqState, command: Complete, records: Encoded) -> Reply | None:
    job_id, result = command.job_id, command.result
    entry = state.jobs.get(job_id)
    if (
        not isinstance(entry, tuple)
        or entry[1] != packed.LEASED
        or packed.flags_of(entry[0]) & _UNUSUAL
    ):
        return None
    queue = state.queues.by_number[packed.queue_of(entry[0])]
    if queue.held_size or queue.limits is not NO_LIMITS or state.waiting.awaits(job_id):
        return None
    if (command.attempt and command.attempt != entry[2]) or not _is_calm(state):
        return None
    now_ns = state.now_ns
    records.append(
        encode_finished(cached_moment_bytes(now_ns, UTC_OFFSET_MIN), _COMPLETE, job_id, result)
    )
    state.jobs.end_lease(
        job_id, entry, packed.keep_result(entry, packed.COMPLETED, now_ns, result), queue
    )
    return DONE


_USUAL: dict[type, Callable[[WorkqState, Any, Encoded], Reply | None]] = {
    Add: _add_usual,
    Lease: _lease_usual,
    Complete: _complete_usual,
}


_NO_LEDGER = ask.RefusedLine(ask.Complaint.NO_LEDGER)
_TOO_MANY_LIMITS = ask.RefusedLine(ask.Complaint.TOO_MANY_LIMITS)

Decidable: TypeAlias = (
    ask.Command
    | browsing.BrowseJobs
    | browsing.CountFacets
    | browsing.BrowseQueues
    | workers.BrowseWorkers
    | messages.WorkqDue
    | messages.WorkqGone
)


def _pause(state: WorkqState, command: ask.PauseQueue, _client: messages.Client) -> Reply:
    if not state.extensions.is_allowed:
        return _NO_LEDGER
    queue = state.queues.use(command.name)
    if not queue.paused:
        state.queues.set_paused(queue, True)
        state.ledger.append(QueuePaused(state.instant, queue.name))
    return DONE


def _resume(state: WorkqState, command: ask.ResumeQueue, _client: messages.Client) -> Reply:
    queue = state.queues.get(command.name)
    if queue is not None and queue.paused:
        state.queues.set_paused(queue, False)
        state.ledger.append(QueueResumed(state.instant, queue.name))
        lifecycle.match(state, queue)
    return DONE


def _set_limits(state: WorkqState, command: ask.SetLimits, _client: messages.Client) -> Reply:
    extensions = state.extensions
    if not extensions.is_allowed:
        return _NO_LEDGER
    name, limits = command.name, command.limits
    if command.kept and (limited := state.queues.get(name)) is not None:
        before = limited.limits
        limits = structs.replace(limits, **{name: getattr(before, name) for name in command.kept})
    if limits == ask.NO_LIMITS:
        queue = state.queues.get(name)
        if queue is None or name not in extensions.limited:
            return DONE
        state.ledger.append(QueueLimitsRemoved(state.instant, name))
    else:
        if name not in extensions.limited and len(extensions.limited) >= MAX_LIMITED_QUEUES:
            return _TOO_MANY_LIMITS
        queue = state.queues.use(name)
        if queue.limits == limits:
            return DONE
        state.ledger.append(QueueLimitsSet(state.instant, name, limits_body(limits)))
    extensions.set_limits(queue, limits)
    state.loosened.add(queue)
    lifecycle.drain_held(state, messages.DUE_LIMIT)
    state.jobs.freed.append(queue)
    return DONE


def _delete(state: WorkqState, command: ask.Delete, client: messages.Client) -> Reply:
    if command.job_id in state.extensions.children:
        return adding.delete_child(state, command, client)
    return lifecycle.delete(state, command, client)


def _cancel(state: WorkqState, command: ask.Cancel, client: messages.Client) -> Reply:
    if command.job_id in state.extensions.children:
        return adding.cancel_child(state, command, client)
    return lifecycle.cancel(state, command, client)


def _browse(
    state: WorkqState, command: browsing.BrowseJobs, _client: messages.Client
) -> browsing.JobsFound | StillSorting:
    options = state.extensions.options
    return browsing.browse(state.jobs, state.queues, options, command, state.now_ns)


def _count_facets(
    state: WorkqState, command: browsing.CountFacets, _client: messages.Client
) -> browsing.FacetCounts | StillSorting:
    return browsing.count_facets(state.jobs, state.queues, command)


def _browse_queues(
    state: WorkqState, command: browsing.BrowseQueues, _client: messages.Client
) -> browsing.QueuesFound:
    return browsing.browse_queues(state.queues, command, state.now_ns)


def _browse_workers(
    state: WorkqState, command: workers.BrowseWorkers, _client: messages.Client
) -> workers.WorkersFound:
    return worker_commands.browse_workers(state, command)


_DECISIONS: dict[type, Callable[[WorkqState, Any, messages.Client], Any]] = {
    ask.Add: adding.add,
    ask.ScheduleJob: adding.schedule,
    ask.RunJob: adding.run,
    ask.Requeue: adding.requeue,
    ask.RequeueAll: adding.requeue_all,
    ask.SetLimits: _set_limits,
    ask.Touch: lifecycle.touch,
    ask.Lease: lifecycle.lease,
    ask.AwaitOrders: worker_commands.await_orders,
    ask.NoteProgress: worker_commands.note_progress,
    ask.InspectProgress: views.progress,
    ask.RecordStep: steps.record,
    ask.InspectSteps: steps.inspect,
    ask.Park: parks.park,
    ask.Emit: parks.emit,
    ask.InspectEvent: parks.inspect_event,
    ask.Fork: forks.fork,
    ask.Complete: lifecycle.complete,
    ask.Fail: lifecycle.fail,
    ask.AwaitResult: lifecycle.result,
    ask.Delete: _delete,
    ask.Cancel: _cancel,
    ask.PauseQueue: _pause,
    ask.ResumeQueue: _resume,
    ask.InspectServer: views.server,
    ask.InspectToken: views.token,
    ask.InspectQueues: views.queues,
    ask.InspectQueue: views.queue,
    ask.InspectJobs: views.jobs,
    ask.InspectScheduledJobs: views.scheduled_jobs,
    ask.InspectJob: views.job,
    ask.InspectDeadJobs: views.dead_jobs,
    ask.InspectPausedQueues: views.paused_queues,
    browsing.BrowseJobs: _browse,
    browsing.CountFacets: _count_facets,
    browsing.BrowseQueues: _browse_queues,
    workers.BrowseWorkers: _browse_workers,
    messages.WorkqDue: lifecycle.due,
    messages.WorkqGone: lifecycle.client_left,
}


def _look_at_freed(state: WorkqState) -> None:
    """Limits of these queues may have room again."""
    freed = state.jobs.freed
    while freed:
        lifecycle.match(state, freed.pop())


_outcome = tuple.__new__  # a third of the time of Outcome(...), and one is made every time


class WorkqEngine:
    """Jobs, queues and waiting clients. Loaded ones: see loading.py."""

    __slots__ = ("_in_batch", "_state")

    def __init__(self, state: WorkqState | None = None, *, seed: int = 0) -> None:
        self._state = WorkqState(seed) if state is None else state
        self._in_batch = False

    def decide(
        self, command: Decidable, now_ns: int, client: messages.Client = None
    ) -> messages.WorkqOutcome:
        """Apply the command of a client, or what the server itself submits (then ``client`` is
        not looked at). A command that can wait needs a client."""
        state = self._state
        state.begin(now_ns)
        if state.unwritten:
            state.write_unwritten()
        reply = _DECISIONS[type(command)](state, command, client)
        if state.extensions.ready_children:
            adding.add_ready_children(state)
        if state.extensions.waking or state.extensions.ringing:
            parks.wake_some(state, parks.WAKE_LIMIT)
        if state.leaving:
            state.mark_leaving()
        if state.jobs.freed:
            _look_at_freed(state)
        if state.waiting.unwatched:
            state.release_queues()
        records, effects = state.records, state.effects
        if records:
            state.records = []
        if effects:
            state.effects = []
        return _outcome(messages.WorkqOutcome, (tuple(records), reply, tuple(effects)))

    def usual_at(self, now_ns: int, records: list[Any]) -> Callable[[Any], Reply | None]:
        """Return what decides commands of the usual kind of clients, now: None, and nothing was
        done, if one is not. Their records are appended to ``records``, encoded."""
        self._state.begin(now_ns)
        return partial(_decide_usual, self._state, records)

    def next_due_ns(self) -> int | None:
        """When to decide ``WorkqDue`` next; None: not before another command."""
        return lifecycle.next_due_ns(self._state)

    @property
    def paused(self) -> frozenset[str]:
        return self._state.queues.paused

    def job(self, job_id: bytes) -> tuple[FoldedJob, int, int] | None:
        """A job as the fold has it, the time of its last timeout-attempt (packed.py), and when it
        is ready if a delay was chosen for this retry alone, else 0.
        None if there is none, and for a ``run``, of which nothing is written."""
        entry = self._state.jobs.get(job_id)
        if entry is None or packed.is_run(packed.spec_of(entry)):
            return None
        job, timed_out_ns = packed.job_of(
            entry, self._state.queues.by_number[packed.queue_of(packed.spec_of(entry))].name
        )
        options = self._state.extensions.options.get(job_id)
        if options is not None and timed_out_ns and options.ready_ns == packed.opened(entry)[5]:
            return job, options.failed_ns, options.ready_ns
        return job, timed_out_ns, 0

    def has(self, job_id: bytes) -> bool:
        return self._state.jobs.get(job_id) is not None

    def summaries(self) -> Iterator[browsing.JobSummary]:
        """All jobs as of the last decision, in no order; nothing may be decided meanwhile."""
        return browsing.summaries(self._state.jobs, self._state.queues, self._state.now_ns)

    def largest_queues(
        self, most: int
    ) -> tuple[list[messages.QueueFigures], messages.QueueFigures]:
        """The queues with most jobs, by name; and all others together, nameless."""
        return views.largest_queues(self._state, most)

    def queue_totals(self) -> list[tuple[int, int]]:
        """Return, by number of the queue, the jobs added and leases started since the process
        started."""
        return [(queue.added, queue.started) for queue in self._state.queues.by_number]

    def queue_of(self, job_id: bytes) -> str | None:
        """The name of the queue that the job was put on, None if there is none of this id."""
        entry = self._state.jobs.get(job_id)
        if entry is None:
            child = self._state.extensions.children.get(job_id)
            return None if child is None else child.job.name
        return self._state.queues.by_number[packed.queue_of(packed.spec_of(entry))].name

    def namespace_of(self, job_id: bytes) -> str:
        """The namespace of the token that added the job, * for all; empty if it is not known."""
        child = self._state.extensions.children.get(job_id)
        if child is not None:
            return "" if child.job.options is None else child.job.options.namespace
        options = self._state.extensions.options.get(job_id)
        return "" if options is None else options.namespace

    @property
    def keeps_options(self) -> bool:
        """True if there is a ledger for what the log has no place for."""
        return self._state.extensions.is_allowed

    def refuse_extensions(self) -> None:
        """There is no ledger: refuse what must be in it."""
        self._state.extensions.is_allowed = False

    def keep_events(self, days: int) -> None:
        """How long an event counts, also one that was loaded."""
        self._state.extensions.retention_ns = days * DAY_MS * NS_PER_MS

    def stats(self) -> messages.WorkqStats:
        return views.stats(self._state)

    @property
    def can_take_effort(self) -> bool:
        extensions = self._state.extensions
        return bool(extensions.children or extensions.steps.by_job or self._state.jobs.parked)

    @property
    def effort(self) -> int:
        """How much the open batch has done for children, forks and parked jobs: maybe much."""
        return self._state.extensions.effort

    def take_ledger(self) -> list[LedgerRecord]:
        """The ledger records decided since the last call, for the same batch."""
        ledger = self._state.ledger
        if ledger:
            self._state.ledger = []
        return ledger

    def take_begun(self) -> list[tuple[str, bytes, int]]:
        """Worker, job and attempt of the leases that began since the last call."""
        begun = self._state.extensions.begun
        if begun:
            self._state.extensions.begun = []
        return begun

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """Begin a batch, which can be taken back as a whole."""
        assert not self._in_batch
        self._in_batch = True
        self._state.begin_batch()

    def commit_batch(self) -> None:
        """The records of the batch are durable."""
        assert self._in_batch
        self._in_batch = False
        self._state.commit_batch()

    def undo_batch(self) -> None:
        """The records could not be written: be as if the batch had never been. Nothing that it
        gave out may be used: no reply, no effect. Clients that waited before it wait again."""
        assert self._in_batch
        self._in_batch = False
        self._state.undo_batch()
