"""What the fold of the workq log knows of one job id, and how that looks at a given moment.

    None        nothing: never seen, or added and ended
    Orphans     records of a job whose add is not here (yet)
    Job         an added job: state, attempts, result

    state       0 new ──lease──▶ 4 leased ──TTR──▶ 3 pending ──lease──▶ 4 leased
                any of these ──complete──▶ 1 completed,  ──fail──▶ 2 failed

A ``Job`` and ``Orphans`` are changed in place by the fold, which owns them; they are equal when
all their fields are. What depends on the time is never in them. Ask a view:

    visible(state, as_of_ns)     the job, unless its TTL has run out (then nobody may see it)
    queue_of(job, as_of_ns)      "ready", "scheduled", or None when leased or finished
    lease_deadline_ns(job)       when a lease runs out
    queue_order(job)             the sort key of all queues and listings
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from journeyman.formats.workq import Command, Instant, JobAdded, JobEvent, JobFinished

__all__ = [
    "Job",
    "JobState",
    "Orphans",
    "State",
    "expires_ns",
    "lease_deadline_ns",
    "queue_of",
    "queue_order",
    "settled",
    "visible",
]

NS_PER_MS = 1_000_000


class JobState(IntEnum):
    """Where a job stands; the values are those that ``inspect`` shows."""

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3  # attempted before, queued again
    LEASED = 4


@dataclass(slots=True)
class Job:
    """A job from its add on.

    ``started`` is set once ``attempts`` is above 0, ``finished`` exactly in COMPLETED and FAILED.
    """

    added: JobAdded
    state: JobState = JobState.NEW
    attempts: int = 0
    fails: int = 0  # failures that were followed by a retry
    result: bytes | None = None
    started: Instant | None = None  # when the last attempt was logged
    finished: Instant | None = None
    exhausted: bool = False  # FAILED because the attempts ran out, not by a fail record
    owed_timeouts: int = 0  # leases that a later start cut off; their timeouts are still to come


@dataclass(slots=True)
class Orphans:
    """Records without an add, in log order; at least one. Only the first may be a delete."""

    records: list[JobEvent | JobFinished]


State: TypeAlias = Job | Orphans | None


def expires_ns(job: Job) -> int:
    """When job and result vanish: TTL after its time if scheduled, else after its creation."""
    added = job.added
    begins = added.created
    if added.command == Command.SCHEDULE and added.time is not None:
        begins = added.time
    return begins.unix_ns + added.ttl_ms * NS_PER_MS


def visible(state: State, as_of_ns: int) -> Job | None:
    """The job that exists at this moment, if any."""
    if isinstance(state, Job) and as_of_ns < expires_ns(state):
        return state
    return None


def settled(state: State) -> Job | None:
    """What is left when the log ends here for good: orphans wait for an add that cannot come.

    For a compaction of the whole log. Where later segments follow, keep the orphans.
    """
    return state if isinstance(state, Job) else None


def queue_of(job: Job, as_of_ns: int) -> Literal["ready", "scheduled"] | None:
    """The queue in which the job waits at this moment."""
    if job.state == JobState.NEW:
        due = job.added.time
        return "scheduled" if due is not None and as_of_ns < due.unix_ns else "ready"
    return "ready" if job.state == JobState.PENDING else None


def queue_order(job: Job) -> tuple[int, bool, int, int, bytes]:
    """Sort key: priority descending, time ascending (none first), created, id."""
    added = job.added
    due = added.time
    due_ns = 0 if due is None else due.unix_ns
    return -added.priority, due is not None, due_ns, added.created.unix_ns, added.job_id


def lease_deadline_ns(job: Job) -> int | None:
    """When the lease runs out; None when the job is not leased."""
    if job.state != JobState.LEASED or job.started is None:
        return None
    return job.started.unix_ns + job.added.ttr_ms * NS_PER_MS
