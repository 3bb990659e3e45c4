"""The single writer: every command passes through here, one batch after another.

    submit --> waiting --take all, decide each--> batch --one write, one sync, in a thread--> done
                 ^ the next ones gather meanwhile                                              |
    clients <-- answers, in order --------------------------------------- runs are started <---+

- Nobody is told, and nothing is started, before the records it rests on are durable. Reads pass
  through the same queue, so they never show what could still be lost.
- When a batch is durable the next one is handed to the thread before its answers leave: the disk
  does not wait for the network.
- A batch that could not be written (no room) is taken back whole: the engine is as before, those
  who wanted to change something hear ``ERROR internal``, reads are decided anew, and what the
  server itself had to say (due, finished) is said again a little later.
- A sync that failed is final: everyone who waits is dropped, ``on_failure`` stops the server.

Not here: what commands do (the engine), how answers look (the clients render them).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from journeyman.clock import Clock
from journeyman.engines.ztick import Schedule
from journeyman.engines.ztick_outcomes import Due, Finished, Reply, Resume, StartRun
from journeyman.errors import JourneymanError, LogClosed, LogPoisoned
from journeyman.formats.ztick import Record
from journeyman.protocols.ztick import (
    Command,
    Refused,
    Remove,
    RemoveRule,
    Set,
    SetRule,
)

__all__ = ["MAX_BATCH", "RETRY_S", "Client", "Journal", "Request", "Writer"]

MAX_BATCH = 1024  # commands decided at a stretch, a few milliseconds of work
RETRY_S = 1.0  # until what the server itself has to record is tried again

Request: TypeAlias = Command | Refused
Internal: TypeAlias = Due | Finished | Resume

# (client, request) each, what each came to (a JourneymanError: not recorded), when it was decided
Told: TypeAlias = Callable[[Sequence[tuple[Any, Any]], Sequence[object], int], None]

_CHANGES = (Set, Remove, SetRule, RemoveRule)
_OWN = (Due, Finished, Resume)


class Client(Protocol):
    """Whoever submits commands. ``render`` makes of a reply whatever ``answered`` wants."""

    @property
    def namespace(self) -> str: ...

    def render(self, request: Request, reply: Reply | None) -> Any:
        """``reply`` is None for a Refused."""
        ...

    def render_failure(self, request: Request) -> Any:
        """The command could not be recorded."""
        ...

    def answered(self, answers: list[Any]) -> None:
        """To the oldest requests that are in flight, in order."""
        ...

    def room(self) -> None:
        """Commands are taken again; see ``tell_when_room``."""
        ...

    def drop(self) -> None:
        """What is in flight will never be answered."""
        ...


class Journal(Protocol):
    """The log, as far as the writer needs it. Called from the writer's thread."""

    def write(self, records: Sequence[Record]) -> None:
        """Returns when they are durable. JourneymanError: none was written, or LogPoisoned."""
        ...


@dataclass(slots=True)
class _Batch:
    requests: list[tuple[Client | None, Request | Internal]]
    records: list[Record] = field(default_factory=list)
    answers: dict[Client, list[Any]] = field(default_factory=dict)
    effects: list[StartRun] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)  # to the server itself
    outcomes: list[Reply | None] = field(default_factory=list)  # of each request, in order
    begun_ns: int = 0


class Writer:
    """See the module's docstring. All methods are called on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        schedule: Schedule,
        journal: Journal | None,
        *,
        start_runs: Callable[[Sequence[StartRun]], None],
        on_batch: Callable[[], None],
        on_trouble: Callable[[JourneymanError | None], None],
        on_failure: Callable[[BaseException], None],
        on_reply: Callable[[Reply], None],
        on_told: Told | None = None,
        max_waiting: int = 10_000,
    ) -> None:
        """``journal`` None: memory only. ``on_trouble``: a batch was taken back; None: over."""
        self._loop = loop
        self._clock = clock
        self._schedule = schedule
        self._journal = journal
        self._start_runs = start_runs
        self._on_batch = on_batch
        self._on_trouble = on_trouble
        self._on_failure = on_failure
        self._on_reply = on_reply
        self._on_told = on_told
        self._max_waiting = max_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journeyman-writer")
        self._waiting: deque[tuple[Client | None, Request | Internal]] = deque()
        self._for_room: dict[Client, None] = {}
        self._for_idle: list[asyncio.Future[None]] = []
        self._writing: _Batch | None = None
        self._turn_is_set = False
        self._due_waits = False
        self._retrying = 0
        self._troubled = False
        self.failure: BaseException | None = None
        self.batches = 0
        self.commands = 0

    # -- from clients, ticker and runs --

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._max_waiting

    def tell_when_room(self, client: Client) -> None:
        self._for_room[client] = None

    def submit(self, client: Client, requests: Iterable[Request]) -> None:
        if self.failure is not None:
            client.drop()
            return
        self._waiting.extend([(client, request) for request in requests])
        self._set_turn()

    def submit_due(self) -> None:
        """What is due is due before whatever else waits."""
        if not self._due_waits:
            self._due_waits = True
            self._waiting.appendleft((None, Due()))
            self._set_turn()

    def submit_own(self, command: Finished | Resume) -> None:
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

    def _go_on(self, done: _Batch | None) -> None:
        """Begin the next batch, then tell the results of the last one."""
        try:
            batch = self._decide_next()
            if done is not None:
                self._tell(done)
            if batch is not None and self._writing is None:
                self._tell(batch)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: nothing is safe to go on
            self._fail(error)
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

    def _decide_next(self) -> _Batch | None:
        """Decide what waits; a batch with records is on its way to the log afterwards."""
        waiting = self._waiting
        if not waiting:
            return None
        count = min(len(waiting), MAX_BATCH)
        batch = _Batch([waiting.popleft() for _ in range(count)])
        self.batches += 1
        self.commands += count
        self._schedule.begin_batch()
        self._decide(batch)
        if batch.records and self._journal is not None:
            self._writing = batch
            self._thread.submit(self._journal.write, batch.records).add_done_callback(
                self._written_elsewhere
            )
        else:
            self._schedule.commit_batch()
        return batch

    def _decide(self, batch: _Batch) -> None:
        decide, now_ns = self._schedule.decide, self._clock.now_ns()
        records, effects, answers = batch.records, batch.effects, batch.answers
        outcomes, batch.begun_ns = batch.outcomes, now_ns
        for client, request in batch.requests:
            if client is None:
                assert not isinstance(request, Refused)
                if type(request) is Due:
                    self._due_waits = False
                outcome = decide(request, now_ns)
                if outcome.reply is not None:
                    batch.replies.append(outcome.reply)
            else:
                assert not isinstance(request, _OWN)
                if isinstance(request, Refused):
                    _add(answers, client, client.render(request, None))
                    outcomes.append(None)
                    continue
                outcome = decide(request, now_ns, client.namespace)
                _add(answers, client, client.render(request, outcome.reply))
            outcomes.append(outcome.reply)
            if outcome.records:
                records += outcome.records
            if outcome.effects:
                effects += outcome.effects

    def _tell(self, batch: _Batch) -> None:
        """The batch is durable."""
        if batch.effects:
            self._start_runs(batch.effects)
        for client, answers in batch.answers.items():
            client.answered(answers)
        for reply in batch.replies:
            self._on_reply(reply)
        if self._on_told is not None:
            self._on_told(batch.requests, batch.outcomes, batch.begun_ns)

    # -- the end of a write --

    def _written_elsewhere(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._written, future.exception())

    def _written(self, error: BaseException | None) -> None:
        batch, self._writing = self._writing, None
        assert batch is not None
        if error is None:
            self._schedule.commit_batch()
            if self._troubled:
                self._troubled = False
                self._on_trouble(None)
            self._go_on(batch)
        elif isinstance(error, JourneymanError) and not isinstance(error, LogPoisoned | LogClosed):
            self._take_back(batch, error)
            self._go_on(None)
        else:
            self._fail(error, batch)

    def _take_back(self, batch: _Batch, error: JourneymanError) -> None:
        self._schedule.undo_batch()
        self._troubled = True
        self._on_trouble(error)
        answers: dict[Client, list[Any]] = {}
        outcomes: list[object] = [error] * len(batch.requests)
        now_ns = self._clock.now_ns()
        for index, (client, request) in enumerate(batch.requests):
            if client is None:
                if not isinstance(request, Due):  # the ticker sees for itself what is due
                    self._retrying += 1
                    self._loop.call_later(RETRY_S, self._retry, request)
            elif isinstance(request, _CHANGES):
                _add(answers, client, client.render_failure(request))
            elif isinstance(request, Refused):
                outcomes[index] = None
                _add(answers, client, client.render(request, None))
            else:
                assert not isinstance(request, _OWN)
                reply = self._schedule.decide(request, now_ns, client.namespace).reply
                outcomes[index] = reply
                _add(answers, client, client.render(request, reply))
        for client, its_answers in answers.items():
            client.answered(its_answers)
        if self._on_told is not None:
            self._on_told(batch.requests, outcomes, batch.begun_ns)

    def _retry(self, command: Any) -> None:
        self._retrying -= 1
        self.submit_own(command)

    def _fail(self, error: BaseException, batch: _Batch | None = None) -> None:
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


def _add(answers: dict[Client, list[Any]], client: Client, answer: Any) -> None:
    known = answers.get(client)
    if known is None:
        answers[client] = [answer]
    else:
        known.append(answer)
