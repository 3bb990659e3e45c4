"""All jobs of a schedule: their states, how many have which status, and what is due next.

    plan      SET             any status  -> planned
    take_due  the time came   planned, for the caller to move on at once
    move      a run           planned -> triggered -> executed | failed      planned -> failed
    remove    REMOVE          any status  -> gone

Which of these a command leads to is decided elsewhere (engine.py); here they are done, all four in
one place: the job is in its shard, the counts are right, the queue knows it if it is planned,
and while a batch is open, what was there before is noted.

    len(due queue) >= counts[PLANNED]        the rest of the queue is stale
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from journeyman.engines.sharded_dict import ShardedDict
from journeyman.engines.ztick.due import DueQueue
from journeyman.engines.ztick.job import (
    PLANNED,
    STATUS_AT,
    TRIGGERED,
    Job,
    execution_ns_of,
    identifier_of,
    order_of,
    pack,
)
from journeyman.engines.ztick.messages import JobListing

NO_RUN = 0  # the run id of a triggered job whose run is yet to be made; real ones begin at 1

_Change: TypeAlias = tuple[str, Job | None]  # identifier, its state before


class ScheduledJobTable:
    """The jobs by identifier. ``interrupted`` are those found triggered in the log, by time."""

    __slots__ = (
        "_by_name",
        "_changes",
        "_counts",
        "_due",
        "_next_order",
        "_saved",
        "get",
        "interrupted",
    )

    def __init__(
        self, by_name: ShardedDict[str, Job] | None = None, jobs: Sequence[Job] = ()
    ) -> None:
        """``jobs`` are all that are in ``by_name``, in the order of the log."""
        self._by_name: ShardedDict[str, Job] = ShardedDict() if by_name is None else by_name
        self.get = self._by_name.get
        self._due = DueQueue(self.holds)
        planned = [job for job in jobs if job[STATUS_AT] == PLANNED]
        others = [job for job in jobs if job[STATUS_AT] != PLANNED]
        self._due.fill(planned)
        self._counts = [len(planned), 0, 0, 0]
        for job in others:
            self._counts[job[STATUS_AT]] += 1
        self._next_order = order_of(jobs[-1]) + 1 if jobs else 0
        self._changes: list[_Change] | None = None  # of the open batch
        self._saved: tuple[list[int], tuple[Job, ...]] = ([], ())
        # Their order was a place in the log, which must not be taken for a run.
        triggered = sorted(job for job in others if job[STATUS_AT] == TRIGGERED)
        self.interrupted = tuple(self.move(identifier_of(job), job, TRIGGERED) for job in triggered)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many jobs are planned, triggered, executed, failed."""
        return tuple(self._counts)

    def holds(self, job: Job) -> bool:
        """Whether this is the present state of its job."""
        return self.get(identifier_of(job)) is job

    def listing(self, prefix: str | None) -> JobListing:
        """The jobs whose identifier begins with ``prefix``; None: no jobs."""
        return JobListing(None if prefix is None else self._by_name.snapshot(), prefix or "")

    def next_due_ns(self) -> int | None:
        return self._due.next_ns()

    def count_due(self, now_ns: int) -> int:
        """How many planned jobs are due; those that are stale are left out."""
        return self._due.count(now_ns)

    def present_bound(self, now_ns: int) -> Job:
        """Compares, by time and by order, as one that is planned now would."""
        return pack(now_ns, self._next_order, PLANNED, "")

    def take_due(self, now_ns: int, limit: int) -> Iterator[Job]:
        """The planned jobs that are due, in order. Move each on before the next is asked for."""
        return self._due.take(now_ns, limit)

    # -- changes ---------------------------------------------------------------------------------

    def plan(self, identifier: str, execution_ns: int) -> Job | None:
        """Create the job or plan it anew; its state before."""
        shard = self._by_name.shard_to_change(identifier)
        before = shard.get(identifier)
        order = self._next_order
        self._next_order = order + 1
        self._counts[PLANNED] += 1
        if before is not None:
            self._counts[before[STATUS_AT]] -= 1
        job = pack(execution_ns, order, PLANNED, identifier)
        shard[identifier] = job
        self._due.push(job)
        if self._changes is not None:
            self._changes.append((identifier, before))
        if before is not None and before[STATUS_AT] == PLANNED:
            self._due.tidy(self._counts[PLANNED])
        return before

    def move(self, identifier: str, job: Job, status: int, order: int = NO_RUN) -> Job:
        """Give the job, now at ``job``, a status other than planned; its state then."""
        moved = pack(execution_ns_of(job), order, status, identifier)
        self._by_name.shard_to_change(identifier)[identifier] = moved
        self._counts[job[STATUS_AT]] -= 1
        self._counts[status] += 1
        if self._changes is not None:
            self._changes.append((identifier, job))
        return moved

    def remove(self, identifier: str) -> Job | None:
        """Forget the job; its last state, None if there is no such job."""
        before = self._by_name.shard_to_change(identifier).pop(identifier, None)
        if before is None:
            return None
        self._counts[before[STATUS_AT]] -= 1
        if self._changes is not None:
            self._changes.append((identifier, before))
        if before[STATUS_AT] == PLANNED:
            self._due.tidy(self._counts[PLANNED])
        return before

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []
        self._saved = (self._counts.copy(), self.interrupted)
        self._due.begin_batch()

    def commit_batch(self) -> None:
        self._changes = None
        self._due.commit_batch()

    def undo_batch(self) -> None:
        changes, self._changes = self._changes or [], None
        for identifier, before in reversed(changes):
            shard = self._by_name.shard_to_change(identifier)
            if before is None:
                del shard[identifier]
            else:
                shard[identifier] = before
        self._counts, self.interrupted = self._saved
        self._due.undo_batch()
        for _ in changes:  # each has left a stale job behind, if it was a SET
            self._due.tidy(self._counts[PLANNED])
