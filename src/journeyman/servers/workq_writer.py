"""The single writer of the work queue: every command passes through here, in batches.

    sessions, HTTP, queue runs --commands--> +--------+ --records--> command log, or store
    ticker         --Due-------------------> | writer | --answers--> clients, also those that waited
    a client went  --Gone------------------> +--------+ --paused---> beside them

How batches are made, written and taken back is in group_commit.py. What is special here:

- A command may wait (lease, result, run). Its client has nothing else in flight then; the answer
  comes out of a later decision, and leaves when that one's records are durable.
- A client that went away gets no job: it is taken out of the engine before anything else of the
  next batch is decided, and what it asked for and could wait is not even decided.
- When a batch was taken back for lack of room, changes are answered with the original's error,
  reads and waits are decided anew.
- What waits to be decided is bounded in bytes as well: a job may bring a megabyte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from journeyman.clock import Clock
from journeyman.engines.workq import WorkQueue
from journeyman.engines.workq_outcomes import Answer, Due, Gone, Outcome
from journeyman.errors import JourneymanError
from journeyman.formats.workq import Record
from journeyman.protocols.workq_commands import (
    Add,
    Command,
    Complete,
    Delete,
    Fail,
    Lease,
    PauseQueue,
    Refused,
    Requeue,
    Result,
    ResumeQueue,
    Run,
    Schedule,
)
from journeyman.protocols.workq_replies import DONE, Reply
from journeyman.servers.group_commit import MAX_BATCH, Batch, GroupCommit, Submitter, Told

__all__ = ["CAN_WAIT", "Client", "Journal", "Request", "WorkqWriter", "payload_bytes"]

MAX_BATCH_BYTES = 8 * 1024 * 1024  # of payloads
MAX_WAITING_BYTES = 32 * 1024 * 1024

Request: TypeAlias = Command | Refused

CAN_WAIT = frozenset({Lease, Result, Run})
_CHANGES = frozenset({Add, Schedule, Complete, Fail, Delete, Requeue, PauseQueue, ResumeQueue})
_PAYLOADS: dict[type, Callable[[Any], bytes]] = {
    Add: attrgetter("payload"),
    Schedule: attrgetter("payload"),
    Run: attrgetter("payload"),
    Complete: attrgetter("result"),
    Fail: attrgetter("result"),
}
NOTHING = b""  # the answer to a command whose client no longer waits for one


def payload_bytes(request: Any) -> int:
    """How much memory a request takes, beyond a little."""
    payload = _PAYLOADS.get(type(request))
    return len(payload(request)) if payload is not None else 0


class Client(Submitter, Protocol):
    """Whoever submits commands. ``render`` makes of a reply whatever ``answered`` wants."""

    @property
    def is_leaving(self) -> bool:
        """It takes answers, but does not wait for one."""
        ...

    @property
    def is_lost(self) -> bool:
        """It takes no answers any more."""
        ...

    def render(self, reply: Reply) -> Any: ...

    def render_failure(self) -> Any:
        """The command could not be recorded."""
        ...


class Journal(Protocol):
    """What keeps the records: a command log, or a store."""

    @property
    def is_quick(self) -> bool:
        """Whether a write now would wait for no disk and no lock."""
        ...

    def write(self, records: Sequence[Record], paused: Iterable[str] | None = None) -> None:
        """JourneymanError: nothing was written, unless it is final."""
        ...


class WorkqWriter(GroupCommit):
    """See the module's docstring. All methods are called on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        queue: WorkQueue,
        journal: Journal | None,
        *,
        on_batch: Callable[[], None],
        on_trouble: Callable[[JourneymanError | None], None],
        on_failure: Callable[[BaseException], None],
        on_told: Told | None = None,
        max_waiting: int = 10_000,
    ) -> None:
        """``journal`` None: memory only. ``on_trouble``: a batch was taken back; None: over."""
        super().__init__(
            loop,
            clock,
            queue,
            is_recorded=journal is not None,
            on_batch=on_batch,
            on_trouble=on_trouble,
            on_failure=on_failure,
            on_told=on_told,
            max_waiting=max_waiting,
        )
        self._queue = queue
        self._journal = journal
        self._waiting_bytes = 0
        self._due_waits = False
        self._errands: deque[Callable[[], None]] = deque()

    # -- from clients and from the server itself --

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._max_waiting and self._waiting_bytes < MAX_WAITING_BYTES

    def submit(self, client: Submitter, requests: Sequence[Any]) -> None:
        for request in requests:
            self._waiting_bytes += payload_bytes(request)
        super().submit(client, requests)

    def submit_due(self) -> None:
        """What is due is due before whatever else waits."""
        if not self._due_waits:
            self._due_waits = True
            self._waiting.appendleft((None, Due()))
            self._set_turn()

    def leave(self, client: Any) -> None:
        """The client waits for nothing any more; it gets no job from now on."""
        self._waiting.appendleft((client, Gone(client)))
        self._set_turn()

    def run_between(self, errand: Callable[[], None]) -> None:
        """Have the writer's thread do this between two batches. If it raises, that is final."""
        self._errands.append(errand)
        self._set_turn()

    # -- deciding --

    def _take_waiting(self) -> list[tuple[Any, Any]]:
        waiting = self._waiting
        if len(waiting) <= MAX_BATCH and self._waiting_bytes <= MAX_BATCH_BYTES:
            everything = list(waiting)
            waiting.clear()
            self._waiting_bytes = 0
            return everything
        taken: list[tuple[Any, Any]] = []
        size = 0
        while waiting and len(taken) < MAX_BATCH and size < MAX_BATCH_BYTES:
            entry = waiting.popleft()
            size += payload_bytes(entry[1])
            taken.append(entry)
        self._waiting_bytes = self._waiting_bytes - size if waiting else 0
        return taken

    def _decide_next(self) -> Batch | None:
        if not self._errands:
            return super()._decide_next()
        self._writing = Batch([])
        errand = self._thread.submit(self._errands.popleft())
        errand.add_done_callback(self._errand_done_elsewhere)
        return None

    def _errand_done_elsewhere(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._errand_done, future.exception())

    def _errand_done(self, error: BaseException | None) -> None:
        self._writing = None
        if error is not None:
            self._fail(error)
        else:
            self._go_on(None)

    def _decide(self, batch: Batch) -> None:
        now_ns = batch.begun_ns = self._clock.now_ns()
        decide, outcomes = self._queue.decide, batch.outcomes
        for client, request in batch.requests:
            kind = type(request)
            if kind is Refused:
                batch.answer(client, client.render(request))
                outcomes.append(request)
                continue
            if client is None:
                self._due_waits = False
            elif client.is_lost and kind in CAN_WAIT:
                outcomes.append(None)
                continue
            outcome = decide(request, now_ns, client)
            records, reply, effects = outcome
            outcomes.append(reply)
            if effects or reply is None or client is None or kind is Gone:
                self._gather(batch, client, request, outcome, now_ns)
            else:  # nearly always
                batch.answer(client, client.render(reply))
                if records:
                    batch.records += records

    def _gather(
        self, batch: Batch, client: Any, request: Any, outcome: Outcome, now_ns: int
    ) -> None:
        """Put into the batch what was decided."""
        records, reply, effects = outcome
        if records:
            batch.records += records
        for effect in effects:
            if type(effect) is Answer:
                waiter: Any = effect.client
                batch.answer(waiter, waiter.render(effect.reply))
            else:
                batch.effects.append(effect)
        if client is None:
            return
        if type(request) is Gone:
            if reply is DONE:
                batch.answer(client, NOTHING)
        elif reply is not None:
            batch.answer(client, client.render(reply))
        elif client.is_leaving:
            self._gather(batch, client, Gone(client), self._queue.decide(Gone(client), now_ns), 0)

    # -- writing --

    def _is_written(self, batch: Batch) -> bool:
        return bool(batch.records or batch.effects)

    def _is_quick(self, batch: Batch) -> bool:
        assert self._journal is not None
        return self._journal.is_quick and not batch.effects

    def _write(self, batch: Batch) -> None:
        assert self._journal is not None
        paused = batch.effects[-1].names if batch.effects else None  # the last ones are all
        self._journal.write(batch.records, paused)

    def _carry_out(self, batch: Batch) -> None:
        """Nothing: pauses are saved with the records, answers leave by themselves."""

    def _answer_anew(self, batch: Batch, error: JourneymanError) -> tuple[Batch, list[Any]]:
        anew = Batch(batch.requests)
        outcomes: list[Any] = [error] * len(batch.requests)
        now_ns = self._clock.now_ns()
        for index, (client, request) in enumerate(batch.requests):
            kind = type(request)
            if client is None:
                continue  # the ticker sees for itself what is due
            if kind is Gone:
                self.leave(client)
            elif kind is Refused:
                outcomes[index] = request
                anew.answer(client, client.render(request))
            elif kind in _CHANGES or not self._decide_again(anew, client, request, now_ns):
                anew.answer(client, client.render_failure())
            else:
                outcomes[index] = None
        return anew, outcomes

    def _decide_again(self, anew: Batch, client: Any, request: Any, now_ns: int) -> bool:
        """Whether it could be decided without a record."""
        if client.is_lost and type(request) in CAN_WAIT:
            return True
        self._queue.begin_batch()
        outcome = self._queue.decide(request, now_ns, client)
        if outcome.records:
            self._queue.undo_batch()
            return False
        self._queue.commit_batch()
        self._gather(anew, client, request, outcome, now_ns)
        return True
