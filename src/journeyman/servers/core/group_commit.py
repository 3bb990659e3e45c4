"""Group commit: commands are decided in batches, and each batch is written and synced at once.

    submit --> waiting --take all, decide each--> batch --one write, one sync, in a thread--> done
                 ^ the next ones gather meanwhile                                              |
    clients <-- answers, in order --------------------------------- effects are carried out <--+

- Nobody is told, and nothing is started, before the records it rests on are durable. Reads pass
  through the same queue, so they never show what could still be lost.
- When a batch is durable the next one is handed to the thread before its answers leave: the disk
  does not wait for the network.
- A batch that could not be written (no room) is taken back whole: the engine is as before. Who
  wanted to change something hears of it, reads are decided anew, and what the server itself had to
  say is said again a little later.
- A sync that failed is final: everyone who waits is dropped, ``on_failure`` stops the server.

This is what the doors have in common. How a command is decided, what is done with the outcome and
what a client hears when its batch was taken back is each door's own: writer.py, workq/writer.py.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from journeyman.clock import Clock
from journeyman.errors import JourneymanError, LogClosed, LogPoisoned

MAX_BATCH = 1024  # commands decided at a stretch, a few milliseconds of work
RETRY_S = 1.0  # until what the server itself has to record is tried again

# (client, request) each, what each came to (a JourneymanError: not recorded), when it was decided
Told: TypeAlias = Callable[[Sequence[tuple[Any, Any]], Sequence[object], int], None]


class Engine(Protocol):
    """What decides: a batch of it can be taken back."""

    def begin_batch(self) -> None: ...

    def commit_batch(self) -> None: ...

    def undo_batch(self) -> None: ...


class Recorder(Protocol):
    """The log, as far as a writer needs it. Called from the writer's thread."""

    def write(self, records: Sequence[Any]) -> None:
        """Returns when they are durable. JourneymanError: none was written, or LogPoisoned."""
        ...


class Submitter(Protocol):
    """Whoever submits commands."""

    def answered(self, answers: list[Any]) -> None:
        """To the oldest requests that are in flight, in order."""
        ...

    def room(self) -> None:
        """Commands are taken again; see ``tell_when_room``."""
        ...

    def drop(self) -> None:
        """What is in flight will never be answered."""
        ...


@dataclass(slots=True)
class Batch:
    requests: list[tuple[Any, Any]]  # (client, request); no client: from the server itself
    records: list[Any] = field(default_factory=list)
    answers: dict[Any, list[Any]] = field(default_factory=dict)
    effects: list[Any] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)  # to the server itself
    outcomes: list[Any] = field(default_factory=list)  # of each request, in order
    begun_ns: int = 0
    error: JourneymanError | None = None  # why it could not be written

    def answer(self, client: Any, answer: Any) -> None:
        known = self.answers.get(client)
        if known is None:
            self.answers[client] = [answer]
        else:
            known.append(answer)


def is_over(error: BaseException) -> bool:
    """Whether nothing can be written after this error."""
    return not isinstance(error, JourneymanError) or isinstance(error, LogPoisoned | LogClosed)


class GroupCommit(ABC):
    """See the module's docstring. All methods are called on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        engine: Engine,
        *,
        is_recorded: bool,
        on_batch: Callable[[], None],
        on_trouble: Callable[[JourneymanError | None], None],
        on_failure: Callable[[BaseException], None],
        on_told: Told | None,
        max_waiting: int,
    ) -> None:
        """``is_recorded`` no: memory only. ``on_trouble``: a batch was taken back; None: over."""
        self._loop = loop
        self._clock = clock
        self._engine = engine
        self._is_recorded = is_recorded
        self._on_batch = on_batch
        self._on_trouble = on_trouble
        self._on_failure = on_failure
        self._on_told = on_told
        self._max_waiting = max_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journeyman-writer")
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._for_room: dict[Submitter, None] = {}
        self._for_idle: list[asyncio.Future[None]] = []
        self._writing: Batch | None = None
        self._turn_is_set = False
        self._retrying = 0
        self._troubled = False
        self.failure: BaseException | None = None
        self.batches = 0
        self.commands = 0

    # -- what each door does in its own way --

    @abstractmethod
    def _decide(self, batch: Batch) -> None:
        """Decide the requests of the batch, and fill in the rest of it."""

    @abstractmethod
    def _carry_out(self, batch: Batch) -> None:
        """The batch is durable: do its effects, then tell the server's own replies."""

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Returns when the batch is durable. Not called on the loop unless ``_is_quick``."""

    @abstractmethod
    def _answer_anew(self, batch: Batch, error: JourneymanError) -> tuple[Batch, list[Any]]:
        """The batch was taken back: the answers to it, and what each request came to."""

    def _is_written(self, batch: Batch) -> bool:
        """Whether anything of the batch has to be durable."""
        return bool(batch.records)

    def _is_quick(self, batch: Batch) -> bool:  # noqa: ARG002 - some doors look
        """Whether writing this batch may be done here and now, because it waits for no disk."""
        return False

    # -- from clients and from the server itself --

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._max_waiting

    def tell_when_room(self, client: Submitter) -> None:
        self._for_room[client] = None

    def submit(self, client: Submitter, requests: Sequence[Any]) -> None:
        if self.failure is not None:
            client.drop()
            return
        if len(requests) == 1:
            self._waiting.append((client, requests[0]))
        else:
            self._waiting.extend([(client, request) for request in requests])
        self._set_turn()

    def submit_own(self, command: Any) -> None:
        self._waiting.append((None, command))
        self._set_turn()

    async def idle(self) -> None:
        """Until everything that was submitted is durable and answered."""
        while (self._waiting or self._writing or self._retrying) and self.failure is None:
            waiter = self._loop.create_future()
            self._for_idle.append(waiter)
            await waiter

    def close(self) -> None:
        """Nothing may be in flight: see ``idle``."""
        self._thread.shutdown(wait=True)

    # -- a turn: take, decide, hand on --

    def _set_turn(self) -> None:
        if not self._turn_is_set and self._writing is None:
            self._turn_is_set = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_set = False
        if self._writing is None and self.failure is None:
            self._go_on(None)

    def _go_on(self, done: Batch | None) -> None:
        """Begin the next batch, then tell the results of the last one."""
        try:
            batch = self._decide_next()
            if done is not None:
                self._tell(done)
            if batch is not None and self._writing is None:
                self._settle(batch)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: nothing is safe to go on
            self._fail(error)
            return
        if self.failure is not None:
            return
        self._on_batch()
        if self._waiting:
            self._set_turn()
        elif self._writing is None:
            self._wake_idle()
        if self._for_room and self.has_room:
            clients, self._for_room = self._for_room, {}
            for client in clients:
                client.room()

    def _decide_next(self) -> Batch | None:
        """Decide what waits; a batch that must be written is on its way afterwards."""
        if not self._waiting:
            return None
        batch = Batch(self._take_waiting())
        self.batches += 1
        self.commands += len(batch.requests)
        self._engine.begin_batch()
        self._decide(batch)
        if not self._is_recorded or not self._is_written(batch):
            self._engine.commit_batch()
        elif self._is_quick(batch):
            self._write_here(batch)
        else:
            self._writing = batch
            self._thread.submit(self._write, batch).add_done_callback(self._written_elsewhere)
        return batch

    def _take_waiting(self) -> list[tuple[Any, Any]]:
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), MAX_BATCH))]

    def _write_here(self, batch: Batch) -> None:
        try:
            self._write(batch)
        except JourneymanError as error:
            if is_over(error):
                self._fail(error, batch)
                return
            batch.error = error
        else:
            self._engine.commit_batch()

    def _settle(self, batch: Batch) -> None:
        """The end of a batch that no thread writes."""
        if self.failure is not None:
            return
        if batch.error is not None:
            self._take_back(batch, batch.error)
            return
        if self._is_written(batch):
            self._no_trouble()
        self._tell(batch)

    def _tell(self, batch: Batch) -> None:
        """The batch is durable."""
        self._carry_out(batch)
        for client, answers in batch.answers.items():
            client.answered(answers)
        if self._on_told is not None:
            self._on_told(batch.requests, batch.outcomes, batch.begun_ns)

    # -- the end of a write --

    def _written_elsewhere(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._written, future.exception())

    def _written(self, error: BaseException | None) -> None:
        batch, self._writing = self._writing, None
        assert batch is not None
        if error is None:
            self._engine.commit_batch()
            self._no_trouble()
            self._go_on(batch)
        elif isinstance(error, JourneymanError) and not is_over(error):
            self._take_back(batch, error)
            self._go_on(None)
        else:
            self._fail(error, batch)

    def _no_trouble(self) -> None:
        if self._troubled:
            self._troubled = False
            self._on_trouble(None)

    def _take_back(self, batch: Batch, error: JourneymanError) -> None:
        self._engine.undo_batch()
        self._troubled = True
        self._on_trouble(error)
        anew, outcomes = self._answer_anew(batch, error)
        for client, answers in anew.answers.items():
            client.answered(answers)
        if self._on_told is not None:
            self._on_told(batch.requests, outcomes, batch.begun_ns)

    def _say_again_later(self, command: Any) -> None:
        """What the server itself had to record, once there may be room again."""
        self._retrying += 1
        self._loop.call_later(RETRY_S, self._retry, command)

    def _retry(self, command: Any) -> None:
        self._retrying -= 1
        self.submit_own(command)

    def _fail(self, error: BaseException, batch: Batch | None = None) -> None:
        self.failure = error
        clients = {client for client, _ in self._waiting if client is not None}
        clients |= set(batch.answers) if batch is not None else set()
        self._waiting.clear()
        for client in clients:
            client.drop()
        self._wake_idle()
        self._on_failure(error)

    def _wake_idle(self) -> None:
        waiters, self._for_idle = self._for_idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
