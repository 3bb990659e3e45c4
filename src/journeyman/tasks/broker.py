"""Where an app puts its jobs: the interface, with two implementations.

    ServerBroker (server.py)                      a Journeyman server, over its work queue port
    InMemory (journeyman.testing)                 the engine of the work queue in this process

    task --Order--> broker.add --> True, or False: an unfinished job has this id already
    job  --id-----> broker.ending --> Ending, or None if it does not end within the wait

Both keep the same rules because both run the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from journeyman.protocols.workq.replies import JobProgress
from journeyman.tasks.options import Options


@dataclass(slots=True)
class Order:
    """A job to add."""

    job_id: UUID
    payload: bytes
    options: Options
    at: datetime | None = None
    limit_key: str = ""
    after: tuple[UUID, ...] = ()  # it waits until these have succeeded
    even_failed: bool = False  # they may also have failed
    unless_same: bool = False  # no finished job of the same id and payload is replaced
    has_followers: bool = False  # the rest of a chain is in its envelope
    moves: bool = False  # an unstarted job of the same id is replaced: its wait begins again
    unless: UUID | None = None  # not added if this job is unstarted


class JobEnding(NamedTuple):
    """How a job ended: its result, or its failure (envelope.py)."""

    succeeded: bool
    result: bytes


class InspectedJob(NamedTuple):
    """A job as the server knows it. ``state`` is a word of ``state_word``."""

    queue: str
    payload: bytes
    state: str
    priority: int
    attempts: int
    created: datetime | None
    due: datetime | None  # when it was to start, if a time was given
    worker: str  # that has it, or had it last; may be unknown


STATES = ("ready", "done", "dead", "retrying", "running")  # by number of the protocol


def state_word(
    state: int, after: int, due: datetime | None, now: datetime, *, is_cancelled: bool
) -> str:
    """Return what people call the state of a job that waits for ``after`` others, or until ``due``:
    the words of docs/glossary.md."""
    if after:
        return "waiting"
    if is_cancelled:
        return "cancelled"
    word = STATES[state]
    return "scheduled" if word == "ready" and due is not None and due > now else word


class Broker(Protocol):
    """The interface that an app needs. The a-methods are the same for asyncio."""

    def salt(self) -> bytes:
        """Return the salt of derived ids: mixed in, no other namespace can take them. It may be
        empty."""
        ...

    async def asalt(self) -> bytes: ...

    def add(self, order: Order) -> bool: ...

    async def aadd(self, order: Order) -> bool: ...

    def add_many(self, orders: Sequence[Order]) -> None:
        """Add jobs; those that exist already are left as they are."""
        ...

    async def aadd_many(self, orders: Sequence[Order]) -> None: ...

    def ending(self, job_id: UUID, wait_s: float) -> JobEnding | None:
        """Raises NotFound if there is no such job (any more)."""
        ...

    async def aending(self, job_id: UUID, wait_s: float) -> JobEnding | None: ...

    def endings(self, job_ids: Sequence[UUID]) -> list[JobEnding | None]:
        """Return the endings of many jobs; None for one that has not ended or does not exist."""
        ...

    async def aendings(self, job_ids: Sequence[UUID]) -> list[JobEnding | None]: ...

    def state(self, job_id: UUID) -> str:
        """Return a word of ``state_word``, or ``gone`` if there is no such job (any more)."""
        ...

    async def astate(self, job_id: UUID) -> str: ...

    def facts(self, job_id: UUID) -> InspectedJob | None:
        """Return what the server knows of a job. None: there is no such job (any more)."""
        ...

    def delete(self, job_id: UUID) -> bool:
        """Remove the job; returns whether it existed."""
        ...

    async def adelete(self, job_id: UUID) -> bool: ...

    def cancel(self, job_id: UUID) -> bool:
        """End an unfinished job; returns whether it was one."""
        ...

    async def acancel(self, job_id: UUID) -> bool: ...

    def emit(self, event: str, value: bytes) -> None:
        """An event has happened. Raises Refused if it had happened with another value."""
        ...

    async def aemit(self, event: str, value: bytes) -> None: ...

    def fork(self, job_id: UUID, step: str, number: int) -> UUID:
        """Return the id of a new job. Raises NotFound, or Refused if there is no such step."""
        ...

    async def afork(self, job_id: UUID, step: str, number: int) -> UUID: ...

    def progress(self, job_id: UUID) -> JobProgress:
        """Raises NotFound."""
        ...

    async def aprogress(self, job_id: UUID) -> JobProgress: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class Relayed(NamedTuple):
    """The outcome of a round of an outbox: rows that were sent, and rows that never will be."""

    sent: int
    expired: int
    refused: int


class Relay(Protocol):
    """The part of an outbox that a worker needs (outbox.py)."""

    table: str

    def relay(self, broker: Broker) -> Relayed:
        """Send what waits. Raises ConnectionFailed, and whatever the database raises."""
        ...
