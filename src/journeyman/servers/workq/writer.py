"""The single writer of the work queue: every command passes through here, in batches.

    sessions, HTTP, queue runs --commands--> +--------+ --records--> command log
    ticker         --Due-------------------> | writer | --answers--> clients, also those that waited
    a client went  --Gone------------------> +--------+

How batches are made, written and taken back is in group_commit.py. Here:

- A command may wait (lease, result, run). Its client has nothing else in flight then; the answer
  comes out of a later decision, and leaves when that one's records are durable.
- A client that went away gets no job: it is taken out of the engine before anything else of the
  next batch is decided, and what it asked for and could wait is not even decided. One that only
  ended its input hears TIMEOUT, so that the answers to what it sent afterwards are in step.
- When a batch was taken back for lack of room, changes are answered with the original's error,
  reads and waits are decided again.
- What waits to be decided is bounded in bytes as well: a job may bring a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from msgspec import structs

from journeyman.clock import Clock
from journeyman.config import ALL_NAMESPACES
from journeyman.engines.workq.browsing import BrowseJobs, BrowseQueues, CountFacets
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.ledger_entries import PARENT_BYTES
from journeyman.engines.workq.messages import WorkqDue, WorkqGone, WorkqOutcome
from journeyman.engines.workq.workers import BrowseWorkers
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import JobOptionsSet
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.workq import CODEC, JobAdded, JobFinished, Record
from journeyman.logs.workq.log import WorkqLog
from journeyman.protocols.workq import commands
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, TIMED_OUT, JobMissing, id_text
from journeyman.servers.core.contract import Batch, Dialect, Recorder, WriteWait
from journeyman.servers.core.group_commit import QUICK_BYTES
from journeyman.servers.core.ledger import Ledger

REFUSALS = (commands.RefusedLine, JobMissing)

_OUTSIDE = commands.RefusedLine(commands.Complaint.SCOPE)
_ID_TAKEN = commands.RefusedLine(commands.Complaint.ID_TAKEN)
_NO_JOB = bytes(16)  # no job has this id: that of a new job is a UUID of version 4
_ADDS = frozenset({commands.Add, commands.ScheduleJob})
_OF_A_NAME = frozenset(
    {
        commands.Add,
        commands.ScheduleJob,
        commands.RunJob,
        commands.PauseQueue,
        commands.ResumeQueue,
        commands.RequeueAll,
        commands.SetLimits,
        commands.InspectQueue,
        commands.InspectJobs,
        commands.InspectScheduledJobs,
        commands.InspectDeadJobs,
    }
)
_OF_AN_ID = frozenset(
    {
        commands.AwaitResult,
        commands.Complete,
        commands.Fail,
        commands.Delete,
        commands.InspectJob,
        commands.Requeue,
        commands.Cancel,
        commands.Touch,
        commands.NoteProgress,
        commands.InspectProgress,
        commands.RecordStep,
        commands.InspectSteps,
        commands.Park,
        commands.Fork,
    }
)
_IN_A_NAMESPACE = frozenset({commands.RecordStep, commands.Fork})
_OF_AN_EVENT = frozenset({commands.Emit, commands.InspectEvent})
_HARMLESS = frozenset(
    {commands.InspectServer, commands.InspectToken, commands.RefusedLine, WorkqGone}
)
_LISTS = frozenset(
    {
        commands.InspectQueues,
        commands.InspectPausedQueues,
        commands.AwaitOrders,
        *(BrowseJobs, BrowseQueues, BrowseWorkers, CountFacets),
    }
)


def in_scope(queue: WorkqEngine, request: Any, prefix: str) -> Any:
    """The request as it may be decided, or what to answer instead: one of REFUSALS.

    a queue by its name       outside the namespace: Insufficient namespace scope
    a job by its id           of such a queue: as if there were none
    an id to be replaced      of such a queue: it is taken, see scoped_reply
    lists, workers            know only the namespace
    a command not known here  is refused

    Asked when a command is decided, because the queue of a job may have been decided just before.
    """
    kind = type(request)
    if not prefix:
        return request
    if kind in _OF_A_NAME:
        if kind in _ADDS and (options := request.options) is not None:
            if options.after:
                # The parent of another namespace is one that does not exist, to the last reply.
                parents = [
                    _NO_JOB if is_foreign(queue, each, prefix) else each for each in options.after
                ]
                options = options._replace(after=tuple(parents))
            if is_foreign(queue, request.job_id, prefix):
                options = options._replace(replaces_finished=False, replaces_unstarted=False)
            if options.unless and is_foreign(queue, options.unless, prefix):
                options = options._replace(unless=b"")
            request = request._replace(options=options)
        return request if request.name.startswith(prefix) else _OUTSIDE
    if kind is commands.Lease:
        return request if all(name.startswith(prefix) for name in request.names) else _OUTSIDE
    if kind in _OF_AN_EVENT:
        if not request.name.startswith(prefix):
            return _OUTSIDE
        return structs.replace(request, namespace=prefix) if kind is commands.Emit else request
    if kind in _OF_AN_ID:
        if is_foreign(queue, request.job_id, prefix):
            return NOT_FOUND
        if kind in _IN_A_NAMESPACE:
            return structs.replace(request, namespace=prefix)
        return _park_in_scope(queue, request, prefix) if kind is commands.Park else request
    if kind in _LISTS:
        return structs.replace(request, prefix=prefix)
    return request if kind in _HARMLESS else _OUTSIDE


def _park_in_scope(queue: WorkqEngine, park: commands.Park, prefix: str) -> Any:
    """Jobs of other namespaces do not exist, so they are not waited for."""
    if park.wait.event and not park.wait.event.startswith(prefix):
        return _OUTSIDE
    ids = [UUID(text).bytes for text in park.wait.jobs]
    own = [id_text(_NO_JOB if is_foreign(queue, each, prefix) else each) for each in ids]
    return structs.replace(park, wait=structs.replace(park.wait, jobs=tuple(own)))


def with_origin(
    queue: WorkqEngine, request: Any, prefix: str, namespace_of: Callable[[str], str]
) -> tuple[Any, str]:
    """An add as it may be decided, or its refusal; and what its names must begin with.

    A job that follows another is added by the worker of that one. What the sender of the first job
    may do counts, also for what follows it later: a worker for many tenants adds nothing for one
    tenant that this one could not add. Who that was is in the ledger, if the sender said that jobs
    follow; else it may have been any token that covers the queue, so the narrowest one counts. The
    worker's own token still counts, or a worker could do more than its token by naming a job.
    """
    options = request.options
    if options.follows:
        name = queue.queue_of(options.follows)
        if name is None or not name.startswith(prefix):
            return NOT_FOUND, prefix
        sender = queue.namespace_of(options.follows) or namespace_of(name)
        sender = "" if sender == ALL_NAMESPACES else sender
        prefix = max(prefix, sender, key=len)  # both begin the name of the queue
    namespace = ""
    if options.has_followers and queue.keeps_options:
        # Only a token of all namespaces can use a queue that none of them covers: the ledger need
        # not say so.
        namespace = prefix or (ALL_NAMESPACES if namespace_of(request.name) else "")
    options = options._replace(has_followers=False, namespace=namespace)
    return in_scope(queue, request._replace(options=options), prefix), prefix


def is_foreign(queue: WorkqEngine, job_id: bytes, prefix: str) -> bool:
    """True if a job of this id stands in a queue outside the namespace."""
    name = queue.queue_of(job_id)
    return name is not None and not name.startswith(prefix)


def scoped_reply(queue: WorkqEngine, request: Any, reply: Any, prefix: str) -> Any:
    """The reply as the client of a namespace gets it.

    A duplicate means to clients that their job is there. If another namespace has the id, it is
    not there: that is an error of its own.
    """
    is_duplicate = (
        type(reply) is commands.RefusedLine and reply.complaint is commands.Complaint.DUPLICATE_JOB
    )
    if not is_duplicate:
        return reply
    new_id = request.new_id if type(request) is commands.Fork else request.job_id
    return _ID_TAKEN if is_foreign(queue, new_id, prefix) else reply


class LogRecorder(Recorder):
    """The command log: a batch goes in, and is as durable as the policy says on return.

    always      written and synced
    interval    written; synced by the clock, see sync
    os          written

    A segment that is full is synced whatever the policy, and while the log is cleaned there is a
    lock to wait for: ``wait_of`` says so.
    ``write`` and ``sync`` never run at the same time: the writer sees to that.
    """

    def __init__(
        self,
        log: WorkqLog,
        waits: bool,
        segment_bytes: int,
        ledger: Ledger | None = None,
    ) -> None:
        """``waits``: the policy is always. ``ledger`` is synced before the log."""
        self._log = log
        self._waits = waits
        self._segment_bytes = segment_bytes
        self._ledger = ledger
        end = log.appender.end()
        self._end = end.offset if end is not None else 0
        self.is_unsynced = False  # something was written since the last ``sync``
        self.is_shared = False  # another thread is at the log

    def wait_of(self, records: Sequence[Record | bytes]) -> WriteWait:
        if self.is_shared or self._end >= self._segment_bytes:
            return WriteWait.MORE
        if not self._waits:
            return WriteWait.NOTHING
        return wait_for_sync_of(records)

    def is_urgent(self, ledger: Sequence[LedgerRecord]) -> bool:
        """Options of a job are as durable as its records. What a start would judge other jobs by,
        and what is removed, is durable at once: those may be old."""
        is_urgent = self._waits or not all(
            isinstance(each, JobOptionsSet) and "after" not in each.body for each in ledger
        )
        # Also if there is nothing for the log, as with a touch: ``sync`` is for both.
        self.is_unsynced = self.is_unsynced or not is_urgent
        return is_urgent

    def write(self, records: Sequence[Record | bytes]) -> None:
        """JourneymanError: nothing was written, unless it is LogPoisoned."""
        # One piece, not one per record: where in the log a record stands is not needed.
        encode = CODEC.encode
        data = b"".join([each if isinstance(each, bytes) else encode(each) for each in records])
        (begin,) = self._log.appender.append([data])
        self._end = begin.offset + len(data)
        self.is_unsynced = True

    def sync(self) -> None:
        if not self.is_unsynced:
            return
        if self._ledger is not None:
            self._ledger.sync()
        self._log.appender.sync()
        self.is_unsynced = False


def wait_for_sync_of(records: Sequence[Record | bytes]) -> WriteWait:
    is_little = sum(map(_size_of, records)) <= QUICK_BYTES
    return WriteWait.SYNC if is_little else WriteWait.MORE


def _size_of(record: Record | bytes) -> int:
    """About how many bytes a record takes in the log."""
    if isinstance(record, bytes):
        return len(record)
    if isinstance(record, JobAdded):
        return EVENT_BYTES + len(record.payload)
    return EVENT_BYTES + (len(record.result) if isinstance(record, JobFinished) else 0)


MAX_WAITING_BYTES = 32 * 1024 * 1024
EVENT_BYTES = 64  # the size of a record without payload and result
MAX_EFFORT = 20_000  # for children of jobs, in one batch: some ten milliseconds

Request: TypeAlias = commands.Command | commands.RefusedLine

CAN_WAIT = frozenset({commands.Lease, commands.AwaitResult, commands.AwaitOrders, commands.RunJob})
_CHANGES = frozenset(
    {
        commands.Add,
        commands.ScheduleJob,
        commands.Complete,
        commands.Fail,
        commands.Delete,
        commands.Cancel,
        commands.Requeue,
        commands.PauseQueue,
        commands.ResumeQueue,
        commands.RequeueAll,
        commands.SetLimits,
        commands.RecordStep,
        commands.Park,
        commands.Emit,
        commands.Fork,
    }
)


def _job_bytes(job: commands.Add | commands.ScheduleJob) -> int:
    parents = 0 if job.options is None else PARENT_BYTES * len(job.options.after)
    return len(job.payload) + parents


_WEIGHTS: dict[type, Callable[[Any], int]] = {
    commands.Add: _job_bytes,
    commands.ScheduleJob: _job_bytes,
    commands.RunJob: lambda run: len(run.payload),
    commands.Complete: lambda complete: len(complete.result),
    commands.Fail: lambda fail: len(fail.result),
    commands.RecordStep: lambda step: len(step.value),
    commands.Park: lambda park: PARENT_BYTES * len(park.wait.jobs),
    commands.Emit: lambda emit: len(emit.value),
}


def request_size(request: Any) -> int:
    """How much memory a request takes, beyond a little."""
    weigh = _WEIGHTS.get(type(request))
    return 0 if weigh is None else weigh(request)


class WorkqDialect(Dialect):
    """How the commands of the work queue are decided."""

    due = WorkqDue()
    codec = CODEC
    max_waiting_bytes = MAX_WAITING_BYTES
    has_stopped = "the work queue has stopped"

    def __init__(
        self,
        queue: WorkqEngine,
        clock: Clock,
        namespace_of: Callable[[str], str] | None = None,
    ) -> None:
        """``namespace_of``: the narrowest one of the tokens that covers a queue, if there are
        tokens."""
        super().__init__(queue)
        self._queue = queue
        self._clock = clock
        self._namespace_of = namespace_of

    def weigh(self, requests: Sequence[Any]) -> int:
        if len(requests) == 1:
            return request_size(requests[0])
        return sum(map(request_size, requests))

    def departure(self, client: Any) -> WorkqGone:
        return WorkqGone(client)

    # -- deciding --

    def decide(self, batch: Batch) -> None:
        now_ns = batch.begun_ns = self._clock.now_ns()
        decide, outcomes = self._queue.decide, batch.outcomes
        can_take_effort = self._queue.can_take_effort
        usual = self._queue.usual_at(now_ns, batch.records)
        answers = batch.answers
        for client, request in batch.requests:
            if client is not None and not (client.prefix or client.is_lost):
                done = usual(request)
                if done is not None:  # nearly always
                    outcomes.append(done)
                    answers[client].append(client.render(done))
                    continue
            if can_take_effort and self._queue.effort > MAX_EFFORT:
                self.writer.put_back(batch, len(outcomes))
                break
            kind = type(request)
            if kind is commands.RefusedLine:
                batch.answers[client].append(client.render(request))
                outcomes.append(request)
                continue
            if client is None:
                self.writer.due_waits = False
            elif client.is_lost and kind in CAN_WAIT:
                outcomes.append(None)
                continue
            prefix = "" if client is None else client.prefix
            if prefix or kind in _ADDS:
                request, prefix = self._scoped(request, prefix)  # noqa: PLW2901
                if type(request) in REFUSALS:
                    batch.answers[client].append(client.render(request))
                    outcomes.append(request)
                    continue
            outcome = decide(request, now_ns, client)
            records, reply, effects = outcome
            if prefix and type(reply) is commands.RefusedLine:
                reply = scoped_reply(self._queue, request, reply, prefix)
                outcome = outcome._replace(reply=reply)
            outcomes.append(reply)
            if effects or reply is None or client is None or kind is WorkqGone:
                self._gather(batch, client, request, outcome, now_ns)
            else:
                batch.answers[client].append(client.render(reply))
                if records:
                    batch.records += records

    def _scoped(self, request: Any, prefix: str) -> tuple[Any, str]:
        """The request as it may be decided, or its refusal; what its names must begin with."""
        options = request.options if type(request) in _ADDS else None
        is_of_chain = options is not None and (options.follows or options.has_followers)
        if is_of_chain and self._namespace_of is not None:
            return with_origin(self._queue, request, prefix, self._namespace_of)
        return in_scope(self._queue, request, prefix), prefix

    def _gather(
        self, batch: Batch, client: Any, request: Any, outcome: WorkqOutcome, now_ns: int
    ) -> None:
        """Put into the batch what was decided."""
        records, reply, effects = outcome
        if records:
            batch.records += records
        for answer in effects:
            waiter: Any = answer.client
            batch.answers[waiter].append(waiter.render(answer.reply))
        if client is None:
            return
        if type(request) is WorkqGone:
            if reply is DONE and not client.is_lost:
                batch.answers[client].append(client.render(TIMED_OUT))
        elif reply is not None:
            batch.answers[client].append(client.render(reply))
        elif client.gives_up(request):
            self._gather(
                batch, client, WorkqGone(client), self._queue.decide(WorkqGone(client), now_ns), 0
            )

    def decide_again(self, batch: Batch, error: JourneymanError) -> tuple[Batch, list[Any]]:
        again = Batch(batch.requests)
        outcomes: list[Any] = [error] * len(batch.requests)
        now_ns = self._clock.now_ns()
        for index, (client, request) in enumerate(batch.requests):
            kind = type(request)
            if client is None:
                continue  # the ticker sees for itself what is due
            if kind is WorkqGone:
                self.writer.leave(client)
            elif kind is commands.RefusedLine:
                outcomes[index] = request
                again.answers[client].append(client.render(request))
            elif type(request) in _CHANGES or not self._decide_again(
                again, client, request, now_ns
            ):
                again.answers[client].append(client.render_failure())
            else:
                outcomes[index] = None
        return again, outcomes

    def _decide_again(self, batch: Batch, client: Any, request: Any, now_ns: int) -> bool:
        """Return whether it could be decided without a record."""
        if client.is_lost and type(request) in CAN_WAIT:
            return True
        request, prefix = self._scoped(request, client.prefix)
        if type(request) in REFUSALS:
            batch.answers[client].append(client.render(request))
            return True
        self._queue.begin_batch()
        outcome = self._queue.decide(request, now_ns, client)
        if outcome.records or self._queue.take_ledger():
            self._queue.undo_batch()
            return False
        self._queue.commit_batch()
        reply = scoped_reply(self._queue, request, outcome.reply, prefix)
        self._gather(batch, client, request, outcome._replace(reply=reply), now_ns)
        return True
