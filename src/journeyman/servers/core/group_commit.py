"""Group commit: commands are decided in batches, and each batch is written and synced at once.

    submit --> waiting --take all, decide each--> batch --one write, one sync--> done
                 ^ the next ones gather meanwhile                                 |
    clients <-- answers, in order -------------------- effects are carried out <--+

- No client is answered, and no run is started, before its records are durable. Reads pass through
  the same queue, so they never show what could still be lost.
- A batch is written on the event loop if it only waits for the sync of an append and the last
  writes were all quick, because handing over to a thread costs more than a quick sync (``Wait``).
  Otherwise the writer's thread writes it. A disk that begins to stall blocks the loop once; the
  watch of writes reports that (writes.py). The loop never waits for a thread that writes to the
  ledger or the log.
- After a slow write in the thread, its answers leave before the next batch is taken, which then
  includes the next commands of these clients. Otherwise two halves of the clients would alternate,
  and each sync would serve one half. After a quick write the next batch does not wait for the
  network.
- A batch that could not be written (disk full) is undone completely. A client that wanted to change
  something gets an error, reads are decided again, and the server's own commands are repeated a
  little later.
- Ledger records are written first, and undone if the log cannot be written. They are synced before
  the log is written, unless the log itself is synced later (``Recorder.is_urgent``). A batch
  without such records does not touch the ledger.
- On a disk in a database everything is written by the thread, and the server's lease decides
  whether anything is decided or answered: without it, all wait (disk/guard.py).
- A failed sync is final: all waiting clients are dropped, and ``on_failure`` stops the server.
- Waiting commands are bounded, in number and in bytes; so is a batch.

    submit         commands of a client, weighed
    submit_first   a command that comes before everything else that waits
    submit_due     due events, likewise, once
    leave          a client has disconnected: likewise, so that it gets nothing more
    run_between    work for the writer's thread between two batches: an interval sync
    ask            a command from inside the process: HTTP, or a rule of the schedule

All services share this. What each adds are two objects: a Dialect decides its commands, and a
Recorder writes its log (contract.py; writer.py of each service).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from journeyman import threads
from journeyman.clock import Clock
from journeyman.config import ALL_NAMESPACES
from journeyman.errors import JourneymanError, LogClosed, LogError, LogPoisoned
from journeyman.formats.framing import DecodedRecords
from journeyman.servers.core import contract
from journeyman.servers.core.internal_call import InternalCall
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.writes import WriteInFlight
from journeyman.units import NS_PER_MS

MAX_BATCH = 1024  # commands decided at a stretch, a few milliseconds of work
MAX_BATCH_BYTES = 8 * 1024 * 1024  # payloads or items of a batch
QUICK_NS = 2 * NS_PER_MS  # a write that takes less than deciding a large batch
QUICK_BYTES = 64 * 1024  # a larger batch is the thread's: a client could make every 17th one huge
QUICK_IN_A_ROW = 16  # so many writes in the thread, and the next one is waited for on the loop
LEASE_LOOK_S = 0.02
RETRY_S = 1.0  # until what the server itself has to record is tried again


def is_final(error: BaseException) -> bool:
    """Return whether nothing can be written after this error."""
    return not isinstance(error, JourneymanError) or isinstance(error, LogPoisoned | LogClosed)


class GroupCommit:
    """See the module's docstring. All methods are called on the event loop."""

    def __init__(
        self,
        owner: contract.WriterOwner,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        dialect: contract.Dialect,
        recorder: contract.Recorder | None,
        *,
        max_waiting: int = 10_000,
        ledger: Ledger | None = None,
    ) -> None:
        """``recorder`` None: memory only. Without a ledger, what belongs there is not kept."""
        self._owner = owner
        self._loop = loop
        self._clock = clock
        self.dialect = dialect
        dialect.writer = self
        self._engine = dialect.engine
        self._recorder = recorder
        self._ledger = ledger
        self._max_waiting = max_waiting
        self._thread = threads.worker("journeyman-writer")
        self.in_flight = WriteInFlight(clock)
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._waiting_bytes = 0
        self.due_waits = False  # the dialect says when it has been decided
        self._errands: deque[Callable[[], None]] = deque()
        self._for_room: dict[contract.Submitter, None] = {}
        self._for_idle: list[asyncio.Future[None]] = []
        self._writing: contract.Batch | None = None
        self._turn_is_set = False
        # While it is not valid, nothing is decided or answered.
        self.lease: contract.AnswerLease | None = None
        self._is_held = False
        self._quick_in_a_row = 0  # writes that took less than QUICK_NS
        self._retrying = 0
        self._troubled = False
        self.failure: BaseException | None = None
        # Called with what became durable.
        self.watchers: list[Callable[[Collection[Any]], None]] = []
        self.batches = 0
        self.commands = 0

    # -- from clients and from the server itself --

    @property
    def has_room(self) -> bool:
        is_light = self._waiting_bytes < self.dialect.max_waiting_bytes
        return is_light and len(self._waiting) < self._max_waiting

    def notify_when_room(self, client: contract.Submitter) -> None:
        self._for_room[client] = None

    def submit(self, client: contract.Submitter, requests: Sequence[Any]) -> None:
        if self.failure is not None:
            client.drop()
            return
        self._waiting_bytes += self.dialect.weigh(requests)
        if len(requests) == 1:
            self._waiting.append((client, requests[0]))
        else:
            self._waiting.extend([(client, request) for request in requests])
        if not self._turn_is_set:
            self._set_turn()

    def submit_own(self, command: Any) -> None:
        self._waiting.append((None, command))
        self._set_turn()

    def submit_first(self, client: Any, command: Any) -> None:
        """No client: the command is the server's own."""
        self._waiting.appendleft((client, command))
        self._set_turn()

    def submit_due(self) -> None:
        if not self.due_waits:
            self.due_waits = True
            self.submit_first(None, self.dialect.due)

    def leave(self, client: Any) -> None:
        """The client waits for nothing any more; it gets nothing from now on."""
        if self.failure is None and (gone := self.dialect.departure(client)) is not None:
            self.submit_first(client, gone)

    def run_between(self, errand: Callable[[], None]) -> None:
        """Have the writer's thread do this between two batches. A JourneymanError that leaves the
        log writable is reported, and the caller does it again later; any other one is final."""
        self._errands.append(errand)
        self._set_turn()

    async def ask(
        self,
        command: Any,
        *,
        namespace: str = ALL_NAMESPACES,
        client: InternalCall | None = None,
    ) -> Any:
        """The reply to a command from inside the process, or NotDone.

        The command is limited to this namespace. If the caller is cancelled, the command waits no
        longer. ``client`` is a call that asked before and keeps what it got then.
        """
        call = client or InternalCall(self._loop, self.dialect.has_stopped)
        call.begin(namespace)
        self.submit(call, [command])
        try:
            return await call.reply
        except asyncio.CancelledError:
            call.is_lost = True
            self.leave(call)
            raise

    async def idle(self) -> None:
        """Wait until everything that was submitted is durable and answered."""
        while self.failure is None and (
            self._waiting or self._errands or self._writing or self._retrying or self._is_held
        ):
            waiter = self._loop.create_future()
            self._for_idle.append(waiter)
            await waiter

    def close(self) -> None:
        """End the thread; nothing may be in flight: see ``idle``."""
        self._thread.close()

    # -- a turn: take, decide, hand on --

    def _set_turn(self) -> None:
        if not self._turn_is_set and self._writing is None and not self._is_held:
            self._turn_is_set = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_set = False
        if self._writing is None and self.failure is None and not self._is_held:
            self._advance(None)

    def _advance_later(self, done: contract.Batch | None) -> None:
        self._is_held = False
        if self.failure is None:
            self._advance(done)

    def _advance(self, done: contract.Batch | None) -> None:
        """Answer the last batch and begin the next: at once, or a turn after its answers."""
        if self.lease is not None and not self.lease.is_valid:
            self._is_held = True
            self._loop.call_later(LEASE_LOOK_S, self._advance_later, done)
            return
        try:
            is_slow = self._quick_in_a_row == 0 or self.lease is not None
            was_slow = done is not None and is_slow
            batch = None if was_slow else self._decide_next()
            if self.lease is not None and not self.lease.is_valid:
                raise LogError("the log", "the lease ended between a decision and its answer")
            if done is not None:
                self._complete(done)
            if batch is not None and self._writing is None:
                self._complete_or_take_back(batch)
        except Exception as error:  # noqa: BLE001 - a bug: it is not safe to go on
            self.fail(error)
            return
        if self.failure is not None:
            return
        if done is not None or self._writing is None:  # once a batch, and after its answers
            self._owner.on_batch()
        if self._waiting or self._errands:
            self._set_turn()
        elif self._writing is None:
            self._wake_idle()
        if self._for_room and self.has_room:
            clients, self._for_room = self._for_room, {}
            for client in clients:
                client.room()

    def _decide_next(self) -> contract.Batch | None:
        """Decide what waits; a batch that must be written is on its way afterwards."""
        if self._errands:
            self._begin_errand(self._errands.popleft())
            return None
        if not self._waiting:
            return None
        batch = contract.Batch(self._take_waiting())
        self.batches += 1
        self.commands += len(batch.requests)
        self._engine.begin_batch()
        self.dialect.decide(batch)
        ledger = self._engine.take_ledger()
        if ledger and self._ledger is not None:
            batch.ledger = ledger
        if self._recorder is None or not self._is_written(batch):
            self._engine.commit_batch()
        elif self._is_for_the_loop(batch, self._recorder):
            self._write_here(batch)
        else:
            self._writing = batch
            self.in_flight.begin()
            self._thread.submit((partial(self._write_timed, batch), self._written_elsewhere))
        return batch

    def _is_for_the_loop(self, batch: contract.Batch, recorder: contract.Recorder) -> bool:
        if self.lease is not None:
            return False  # a database may not answer, and the loop has to say so
        if batch.ledger and self.dialect.weigh([r for _, r in batch.requests]) > QUICK_BYTES:
            return False  # children are in the ledger, with their payloads
        wait = recorder.wait_of(batch.records)
        if wait is contract.WriteWait.NOTHING:
            return not batch.ledger
        if wait is contract.WriteWait.MORE or self._quick_in_a_row < QUICK_IN_A_ROW:
            return False
        return self._ledger is None or not batch.ledger or self._ledger.try_lock()

    def _write_timed(self, batch: contract.Batch) -> None:
        quick_in_a_row, self._quick_in_a_row = self._quick_in_a_row, 0
        begun_ns = self._clock.monotonic_ns()
        self._write_all(batch)
        if self._clock.monotonic_ns() - begun_ns < QUICK_NS:
            self._quick_in_a_row = quick_in_a_row + 1

    def _is_written(self, batch: contract.Batch) -> bool:
        """Return whether anything of the batch has to be durable."""
        return bool(batch.ledger or batch.records)

    def _write_all(self, batch: contract.Batch) -> None:
        """The ledger first: a crash in between leaves something more that is known, not less."""
        assert self._recorder is not None
        if not batch.ledger:
            self._recorder.write(batch.records)
            return
        assert self._ledger is not None
        is_urgent = self._recorder.is_urgent(batch.ledger)
        then = partial(self._recorder.write, batch.records) if batch.records else None
        if self.lease is not None and then is not None:
            # In a database a sync commits all that was written, so the log's does for both.
            self._ledger.write(batch.ledger, sync=False, then=then)
            if is_urgent:
                self._sync_ledger_of_written_log()
            return
        if is_urgent:
            self._recorder.sync()  # the ledger may forget what the log has, for good
        self._ledger.write(batch.ledger, sync=is_urgent, then=then)

    def _sync_ledger_of_written_log(self) -> None:
        assert self._ledger is not None
        try:
            self._ledger.sync()
        except LogPoisoned:
            raise
        except LogError as error:  # the log has its part, which cannot be taken back any more
            raise LogPoisoned(error.path, error.reason) from error

    def _take_waiting(self) -> list[tuple[Any, Any]]:
        waiting = self._waiting
        if len(waiting) <= MAX_BATCH and self._waiting_bytes <= MAX_BATCH_BYTES:  # nearly always
            everything = list(waiting)
            waiting.clear()
            self._waiting_bytes = 0
            return everything
        taken: list[tuple[Any, Any]] = []
        size = 0
        while waiting and len(taken) < MAX_BATCH and size < MAX_BATCH_BYTES:
            entry = waiting.popleft()
            size += self.dialect.weigh((entry[1],))
            taken.append(entry)
        self._waiting_bytes = max(0, self._waiting_bytes - size) if waiting else 0
        return taken

    def put_back(self, batch: contract.Batch, index: int) -> None:
        """Leave the requests of a batch from this one on to the next: it has taken long enough.

        The client of the last one before goes behind all others that wait; each keeps its order.
        """
        rest = batch.requests[index:]
        del batch.requests[index:]
        self.commands -= len(rest)
        self._waiting_bytes += self.dialect.weigh([request for _, request in rest])
        self._waiting.extendleft(reversed(rest))
        busy = batch.requests[-1][0]
        if busy is not None:
            self._waiting = deque(sorted(self._waiting, key=lambda entry: entry[0] is busy))

    def _begin_errand(self, errand: Callable[[], None]) -> None:
        self._writing = contract.Batch([])
        self.in_flight.begin()
        self._thread.submit((errand, self._errand_done_elsewhere))

    def _errand_done_elsewhere(self, error: BaseException | None) -> None:
        self._call_on_loop(self._errand_done, error)

    def _errand_done(self, error: BaseException | None) -> None:
        self._writing = None
        self.in_flight.end()
        if error is not None and is_final(error):
            self.fail(error)
            return
        if isinstance(error, JourneymanError):  # it will be done again
            self._troubled = True
            self._owner.on_trouble(error)
        self._advance(None)

    def _write_here(self, batch: contract.Batch) -> None:
        self.in_flight.begin(holds_loop=True)
        try:
            self._write_timed(batch)
        except Exception as error:  # noqa: BLE001 - as of the thread
            if not isinstance(error, JourneymanError) or is_final(error):
                self.fail(error, batch)
                return
            batch.error = error
        else:
            self._engine.commit_batch()
        finally:
            self.in_flight.end()
            if batch.ledger and self._ledger is not None:
                self._ledger.unlock()

    def _complete_or_take_back(self, batch: contract.Batch) -> None:
        """The end of a batch that no thread writes."""
        if self.failure is not None:
            return
        if batch.error is not None:
            self._take_back(batch, batch.error)
            return
        if self._is_written(batch):
            self._no_trouble()
        self._complete(batch)

    def _complete(self, batch: contract.Batch) -> None:
        """The batch is durable."""
        if batch.effects or batch.replies:
            self.dialect.carry_out(batch)
        for client, answers in batch.answers.items():
            client.answered(answers)
        self._owner.on_answered(batch.requests, batch.outcomes, batch.begun_ns)
        if self.watchers and batch.records:
            codec = self.dialect.codec
            durable = batch.records if codec is None else DecodedRecords(codec, batch.records)
            for watch in tuple(self.watchers):
                watch(durable)

    # -- the end of a write --

    def _written_elsewhere(self, error: BaseException | None) -> None:
        self._call_on_loop(self._written, error)

    def _call_on_loop(
        self, call: Callable[[BaseException | None], None], error: BaseException | None
    ) -> None:
        with suppress(RuntimeError):  # the loop has been closed: no client waits any more
            self._loop.call_soon_threadsafe(call, error)

    def _written(self, error: BaseException | None) -> None:
        batch, self._writing = self._writing, None
        self.in_flight.end()
        assert batch is not None
        if error is None:
            self._engine.commit_batch()
            self._no_trouble()
            self._advance(batch)
        elif isinstance(error, JourneymanError) and not is_final(error):
            self._take_back(batch, error)
            self._advance(None)
        else:
            self.fail(error, batch)

    def _no_trouble(self) -> None:
        if self._troubled:
            self._troubled = False
            self._owner.on_trouble(None)

    def _take_back(self, batch: contract.Batch, error: JourneymanError) -> None:
        self._engine.undo_batch()
        self._troubled = True
        self._owner.on_trouble(error)
        again, outcomes = self.dialect.decide_again(batch, error)
        for client, answers in again.answers.items():
            client.answered(answers)
        self._owner.on_answered(batch.requests, outcomes, batch.begun_ns)

    def repeat_later(self, command: Any) -> None:
        """Submit what the server itself had to record once there may be room again."""
        self._retrying += 1
        self._loop.call_later(RETRY_S, self._retry, command)

    def _retry(self, command: Any) -> None:
        self._retrying -= 1
        self.submit_own(command)

    def fail(self, error: BaseException, batch: contract.Batch | None = None) -> None:
        self.failure = error
        clients = {client for client, _ in self._waiting if client is not None}
        clients |= set(batch.answers) if batch is not None else set()
        self._waiting.clear()
        for client in clients:
            client.drop()
        self._wake_idle()
        self._owner.on_failure(error)

    def _wake_idle(self) -> None:
        waiters, self._for_idle = self._for_idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
