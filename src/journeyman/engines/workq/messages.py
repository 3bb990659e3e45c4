"""The messages to a WorkqEngine besides the commands of clients, and those that it returns.

    a client's command, or WorkqDue, WorkqGone  -->  WorkqOutcome(records, reply, effects)

    records   to be written, as durable as the policy says, before anything of this leaves
    reply     what to answer the client; None: it waits, and a ``WorkqAnswer`` will come for it
    effects   in this order, once the records are durable: answers to clients that have waited

    Add ScheduleJob Delete         DONE, NOT_FOUND, RefusedLine
    Complete Fail Cancel Requeue   DONE, NOT_FOUND, RefusedLine
    PauseQueue ResumeQueue         DONE, RefusedLine
    Lease                          Leased, TIMED_OUT, or None
    AwaitResult                    Finished, TIMED_OUT, NOT_FOUND, or None
    Run                            TIMED_OUT, RefusedLine, None; then Finished, TIMED_OUT, NOT_FOUND
    InspectJob and the lists       JobList, NOT_FOUND
    InspectQueue and the lists     QueueList, NOT_FOUND
    InspectServer                  ServerView with the evicted jobs; the server fills in the rest
    InspectToken                   TokenView, which the server fills in
    WorkqDue                       DONE
    WorkqGone                      DONE; NOT_FOUND if the client did not wait

The values of the protocol are in protocols/workq/commands.py and protocols/workq/replies.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from journeyman.formats.workq import Record
from journeyman.protocols.workq.replies import Reply

Client: TypeAlias = Hashable  # the server's handle of a connection

# A few milliseconds of work, whatever is due.
DUE_LIMIT = 500


# -- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkqDue:
    """See to what the time has brought: TTLs and TTRs that have run out, scheduled jobs, waits
    that are over. At most ``limit`` of all of these; if there is more, ``next_due_ns`` says so."""

    limit: int = DUE_LIMIT


@dataclass(frozen=True, slots=True)
class WorkqGone:
    """The client will never take an answer: it shall not wait, and get no job."""

    client: Client


# -- out -----------------------------------------------------------------------------------------


class WorkqAnswer(NamedTuple):
    """The reply to a client that has waited. It waits no longer."""

    client: Client
    reply: Reply


class QueueFigures(NamedTuple):
    name: str
    ready: int
    scheduled: int
    dead: int
    oldest_ready_ns: int | None  # since when the job that waits longest is ready; None: none does


class WorkqStats(NamedTuple):
    """How many jobs are in which state; ``run`` jobs are counted in."""

    ready: int
    scheduled: int  # due later, or until the delay before a retry is over
    leased: int
    completed: int
    failed: int
    queues: int
    waiting: int  # clients
    evicted: int  # unfinished jobs that the TTL has ended, since the start
    cancelled: int = 0


class WorkqOutcome(NamedTuple):
    """A named tuple because one is made for every command."""

    records: tuple[Record, ...]
    reply: Reply | None
    effects: tuple[WorkqAnswer, ...]
