"""The work queue decides: state + command + time -> records, reply, effects.

    queue = WorkqEngine(seed=7)                 empty; loaded ones: loading.py
    queue.begin_batch()
    outcome = queue.decide(command, now_ns, client)     client: any hashable handle
    ... write outcome.records ...
    queue.commit_batch()  |  queue.undo_batch()
    queue.next_due_ns()                             when to decide WorkqDue() next, or None
    queue.paused                                    names of paused queues, to be saved

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

- Whatever is decided is applied at once, and records say all of it: the fold of the records written
  is the state (``run`` jobs apart, of which nothing is written). A batch can be taken back.
- While a client waits (reply None) it must not submit another command. One ``WorkqAnswer``
  ends its wait; so does ``WorkqGone(client)``, after which nothing comes for it.
- After every decision no client waits for a job beside a ready job that it could have, unless that
  queue is paused. Of the clients that wait for a queue the longest waiting one is served first.
- Pauses are not in the log: they leave in ``take_ledger``, and in ``PauseChanged`` for who keeps
  them elsewhere; they come back in ``WorkqLoader.finish``.
  The delay before a retry is (formats.workq); it begins with the timeout-attempt's time.
- Time is an argument, chance a seed: the same commands at the same times give the same outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from journeyman.engines.workq import adding, dependencies, fast_path, lifecycle, views
from journeyman.engines.workq.browsing import (
    LEASED_NOW,
    BrowseJobs,
    BrowseQueues,
    JobsFound,
    QueuesFound,
    SeeJob,
    SeenJob,
    SortingJobs,
    browse,
    browse_queues,
    seen,
    seen_child,
)
from journeyman.engines.workq.extensions import MAX_LIMITED_QUEUES, limits_body
from journeyman.engines.workq.job import entry_of, is_run, job_of, opened, queue_of, spec_of
from journeyman.engines.workq.messages import (
    DUE_LIMIT,
    Client,
    PauseChanged,
    QueueFigures,
    WorkqDue,
    WorkqGone,
    WorkqOutcome,
    WorkqStats,
)
from journeyman.engines.workq.state import WorkqState
from journeyman.folds.workq import FoldedJob
from journeyman.formats.ledger import (
    QueueLimitsRemoved,
    QueueLimitsSet,
    QueuePaused,
    QueueResumed,
)
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, JobMissing, Reply

_NO_LEDGER = ask.RefusedLine(ask.Complaint.NO_LEDGER)
_TOO_MANY_LIMITS = ask.RefusedLine(ask.Complaint.TOO_MANY_LIMITS)

Decidable: TypeAlias = ask.Command | BrowseJobs | BrowseQueues | SeeJob | WorkqDue | WorkqGone


def _pause(state: WorkqState, command: ask.PauseQueue, _client: Client) -> Reply:
    queue = state.queues.use(command.name)
    if not queue.paused:
        state.queues.set_paused(queue, True)
        state.ledger.append(QueuePaused(state.instant, queue.name))
        state.effects.append(PauseChanged(queue.name, True))
    return DONE


def _resume(state: WorkqState, command: ask.ResumeQueue, _client: Client) -> Reply:
    queue = state.queues.get(command.name)
    if queue is not None and queue.paused:
        state.queues.set_paused(queue, False)
        state.ledger.append(QueueResumed(state.instant, queue.name))
        state.effects.append(PauseChanged(queue.name, False))
        lifecycle.match(state, queue)
    return DONE


def _set_limits(state: WorkqState, command: ask.SetLimits, _client: Client) -> Reply:
    extensions = state.extensions
    if not extensions.is_allowed:
        return _NO_LEDGER
    name, limits = command.name, command.limits
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
    lifecycle.drain_held(state, DUE_LIMIT)
    state.jobs.freed.append(queue)
    return DONE


def _add(state: WorkqState, command: ask.Add, client: Client) -> Reply:
    options = command.options
    if options is None or not options.after:
        return adding.add(state, command, client)
    if not state.extensions.is_allowed:
        return _NO_LEDGER
    refused = adding.refusal(state, command.job_id, command.payload, options)
    return refused or dependencies.add_child(state, command)


def _delete(state: WorkqState, command: ask.Delete, client: Client) -> Reply:
    if command.job_id in state.extensions.children:
        return dependencies.delete_child(state, command, client)
    return lifecycle.delete(state, command, client)


def _browse(state: WorkqState, command: BrowseJobs, _client: Client) -> JobsFound | SortingJobs:
    return browse(state.jobs, state.queues, command, state.now_ns)


def _browse_queues(state: WorkqState, command: BrowseQueues, _client: Client) -> QueuesFound:
    return browse_queues(state.queues, command)


def _see(state: WorkqState, command: SeeJob, _client: Client) -> SeenJob | JobMissing:
    found = seen(state.jobs, state.queues, command.job_id, state.now_ns)
    if found is None:
        child = state.extensions.children.get(command.job_id)
        return NOT_FOUND if child is None else seen_child(child)
    worker = state.extensions.workers.get(command.job_id, "")
    return replace(found, worker=worker) if found.state == LEASED_NOW else found


_DECISIONS: dict[type, Callable[[WorkqState, Any, Client], Any]] = {
    ask.Add: _add,
    ask.ScheduleJob: adding.schedule,
    ask.Run: adding.run,
    ask.Requeue: adding.requeue,
    ask.RequeueAll: adding.requeue_all,
    ask.SetLimits: _set_limits,
    ask.Touch: lifecycle.touch,
    ask.Lease: lifecycle.lease,
    ask.Complete: lifecycle.complete,
    ask.Fail: lifecycle.fail,
    ask.AwaitResult: lifecycle.result,
    ask.Delete: _delete,
    ask.PauseQueue: _pause,
    ask.ResumeQueue: _resume,
    ask.InspectServer: views.server,
    ask.InspectQueues: views.queues,
    ask.InspectQueue: views.queue,
    ask.InspectJobs: views.jobs,
    ask.InspectScheduledJobs: views.scheduled_jobs,
    ask.InspectJob: views.job,
    ask.InspectDeadJobs: views.dead_jobs,
    ask.InspectPausedQueues: views.paused_queues,
    BrowseJobs: _browse,
    BrowseQueues: _browse_queues,
    SeeJob: _see,
    WorkqDue: lifecycle.due,
    WorkqGone: lifecycle.gone,
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

    def decide(self, command: Decidable, now_ns: int, client: Client = None) -> WorkqOutcome:
        """Apply the command of a client, or what the server itself submits (then ``client`` is
        not looked at). A command that can wait needs a client."""
        state = self._state
        state.begin(now_ns)
        reply = _DECISIONS[type(command)](state, command, client)
        if state.extensions.settling:
            dependencies.settle(state)
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
        return _outcome(WorkqOutcome, (tuple(records), reply, tuple(effects)))

    def usual_at(self, now_ns: int, records: list[Any]) -> Callable[[Any], Reply | None]:
        """What decides commands of the usual kind of clients, now: None, and nothing was done, if
        one is not. Their records are appended to ``records``, encoded. See fast_path.py."""
        self._state.begin(now_ns)
        return partial(fast_path.decide_usual, self._state, records)

    def next_due_ns(self) -> int | None:
        """When to decide ``WorkqDue`` next; None: not before another command."""
        return lifecycle.next_due_ns(self._state)

    @property
    def paused(self) -> frozenset[str]:
        return self._state.queues.paused

    def job(self, job_id: bytes) -> tuple[FoldedJob, int, int] | None:
        """A job as the fold has it, the time of its last timeout-attempt (job.py), and when it is
        ready if a delay was chosen for this retry alone, else 0.
        None if there is none, and for a ``run``, of which nothing is written."""
        entry = self._state.jobs.get(job_id)
        if entry is None or is_run(spec_of(entry)):
            return None
        job, timed_out_ns = job_of(
            entry, self._state.queues.by_number[queue_of(spec_of(entry))].name
        )
        options = self._state.extensions.options.get(job_id)
        if options is not None and timed_out_ns and options.ready_ns == opened(entry)[5]:
            return job, options.failed_ns, options.ready_ns
        return job, timed_out_ns, 0

    def has(self, job_id: bytes) -> bool:
        return self._state.jobs.get(job_id) is not None

    def is_child(self, job_id: bytes) -> bool:
        """Whether it waits for other jobs, and is none yet."""
        return job_id in self._state.extensions.children

    @property
    def elsewhere(self) -> dict[bytes, tuple[str, int]]:
        """Queue and end of TTL of completed jobs that are not in memory, and that children of the
        next batch name. The store's side fills it (servers/workq/store.py)."""
        return self._state.extensions.elsewhere

    def bring(self, job: FoldedJob) -> None:
        """A completed job that is kept elsewhere comes; between two batches."""
        entry = entry_of(job, self._state.queues.use(job.added.name).number, 0)
        self._state.jobs.bring(job.added.job_id, opened(entry))

    def put_away(self, job_ids: Iterable[bytes]) -> None:
        """Those of these jobs that have completed go, and are kept elsewhere; likewise."""
        for job_id in job_ids:
            self._state.jobs.put_away(job_id)

    def largest_queues(self, most: int) -> tuple[list[QueueFigures], QueueFigures]:
        """The queues with most jobs, by name; and all others together, nameless."""
        return views.largest_queues(self._state, most)

    def queue_totals(self) -> list[tuple[int, int]]:
        """By number of the queue: jobs added and leases started since the process started."""
        return [(queue.added, queue.started) for queue in self._state.queues.by_number]

    def queue_of(self, job_id: bytes) -> str | None:
        """The name of the queue that the job was put on, None if there is none of this id."""
        entry = self._state.jobs.get(job_id)
        if entry is None:
            child = self._state.extensions.children.get(job_id)
            elsewhere, _ = self._state.extensions.elsewhere.get(job_id, ("", 0))
            return (elsewhere or None) if child is None else child.job.name
        return self._state.queues.by_number[queue_of(spec_of(entry))].name

    def refuse_extensions(self) -> None:
        """There is no ledger: refuse what must be in it."""
        self._state.extensions.is_allowed = False

    def stats(self) -> WorkqStats:
        return views.stats(self._state)

    @property
    def has_children(self) -> bool:
        return bool(self._state.extensions.children)

    @property
    def steps(self) -> int:
        """How much the open batch has done for children of jobs, which may be very many."""
        return self._state.extensions.steps

    def take_ledger(self) -> list[LedgerRecord]:
        """What was decided since the last call and belongs in the ledger, for the same batch."""
        ledger = self._state.ledger
        if ledger:
            self._state.ledger = []
        return ledger

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """From here on everything can be taken back."""
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
