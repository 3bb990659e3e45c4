"""The single writer of the fan-out queues: every command passes through here, in batches.

    sessions       --commands--> +--------+ --items--> journals
    ticker         --Due-------> | writer | --answers--> clients, also those that waited
    a client went  --Gone------> |        | --Fetch----> a thread that reads --Fetched--> here again
    checkpoints    --Checkpoint> +--------+ --Save-----> a thread that writes them

How batches are made, written and taken back is in group_commit.py. Here:

- Many gets of one connection may be decided in one batch. One that has to wait holds up those
  after it: they are kept aside, and come back when it is answered.
- A client that asks for more than it fetches is put off in the same way, until it has fetched.
- To make or remove a queue or reader waits several times for the disk. A batch has a few of these;
  one that asks for more is put off until the next, and holds up no other client.
- After an answer that ends a connection nothing of that client is done.
- A client that went away gets nothing: its open reads go back before anything else is decided.
- When a batch was taken back for lack of room, puts that were stored all the same stand; other
  changes are answered with an error, reads are decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from journeyman.clock import Clock
from journeyman.engines.kestrel import messages
from journeyman.engines.kestrel.bulk import KINDS
from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.errors import JourneymanError
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.replies import STORED, Reply, ServerError
from journeyman.servers.core.contract import Batch, Dialect
from journeyman.servers.kestrel.persistence import ItemFetcher, KestrelLogs, PartlyWritten

MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_SAID_BYTES = 1024 * 1024  # to one client in one batch, and one answer more
MAX_ALL_SAID_BYTES = 8 * 1024 * 1024  # to all clients in one batch, the same way
_LONG_ANSWERS = (ask.GetItem, ask.Monitor, ask.ShowStats, ask.DumpStats)  # the answers may be long
MAX_RUN = 128  # commands of one client that are decided in one step
MAX_CHANGES = 8  # queues and readers that one batch makes or removes
NOT_FOR_THE_LOST = (ask.GetItem, ask.Monitor, ask.Confirm)
DECIDED_LATER = object()  # the outcome of a command that is decided later, and counted then
NO_ROOM = ServerError("the journal cannot be written")


def item_bytes(request: Any) -> int:
    """How much memory a request takes, beyond a little."""
    return len(request.data) if type(request) is ask.Put else 0


class _Released(NamedTuple):
    """An effect of the writer's own: this client waits no longer."""

    client: Any
    goes_on: bool = True


class Unfinished(NamedTuple):
    """A part of an answer: more of it will come."""

    reply: Reply


class KestrelOwner(Protocol):
    """The service, as its dialect sees it."""

    def on_effect(self, effect: messages.Effect) -> None:
        """It is durable."""
        ...

    def on_unread(self, error: Exception) -> None:
        """Items could not be read; that is tried again."""
        ...


class Inquiries(Protocol):
    """The answers to questions about the server, and refusals of what its status forbids."""

    usual: frozenset[type]  # commands of clients for which it need not be asked now

    def answer(self, request: Any) -> Reply | None: ...


class KestrelDialect(Dialect):
    """How the commands of the fan-out queues are decided."""

    due = messages.KestrelDue()
    max_waiting_bytes = MAX_WAITING_BYTES
    has_stopped = "the fan-out queues have stopped"

    def __init__(
        self,
        engine: KestrelEngine,
        clock: Clock,
        owner: KestrelOwner,
        logs: KestrelLogs,
        facts: Inquiries,
    ) -> None:
        super().__init__(engine)
        self._fan_out = engine
        self._clock = clock
        self._owner = owner
        self._facts = facts
        self._held: dict[Any, list[Any]] = {}  # requests that follow a command that waits
        self._newly_held: set[Any] = set()  # by the batch that is decided or written
        self._put_off: set[Any] = set()  # those of the held for whom nothing waits: they are slow
        self._said: dict[Any, int] = {}  # bytes, to whom, by the batch that is decided
        self._all_said = 0  # to all of them
        self._changes = 0  # queues and readers that it makes or removes
        self.fetcher = ItemFetcher(
            asyncio.get_running_loop(),
            logs.read_after,
            self,
            on_unread=owner.on_unread,
        )

    # -- from clients and from the server itself --

    def stop_waiting(self, client: Any) -> None:
        """The client will say no more: what it waits for is answered now."""
        self.writer.submit_first(None, messages.StopWaiting(client))

    def resume(self, client: Any) -> None:
        """The client has fetched its answers: what was put off comes before all else."""
        if client in self._put_off:
            self._release(_Released(client))

    def weigh(self, requests: Sequence[Any]) -> int:
        return sum([len(request.data) for request in requests if type(request) is ask.Put])

    def departure(self, client: Any) -> messages.KestrelGone:
        return messages.KestrelGone(client)

    # -- deciding --

    def decide(self, batch: Batch) -> None:
        now_ns = batch.begun_ns = self._clock.now_ns()
        self._newly_held.clear()
        self._said.clear()
        self._all_said = 0
        self._changes = 0
        decide, held, said = self._fan_out.decide, self._held, self._said
        usual, outcomes = self._facts.usual, batch.outcomes
        last, is_well = None, False
        requests, done = batch.requests, 0
        for place, (client, request) in enumerate(requests):
            if place < done:
                continue
            if client is not last:  # it comes with many at a time, and does not change meanwhile
                last = client
                is_well = client is not None and not (
                    client.is_lost or client.is_slow or client.is_held_back
                )
            if (
                not is_well
                or type(request) not in usual
                or client in held
                or said.get(client, 0) >= MAX_SAID_BYTES
                or self._all_said >= MAX_ALL_SAID_BYTES
                or self._changes >= MAX_CHANGES
            ):
                outcomes.append(self._decide_one(batch, client, request, now_ns))
                usual = self._facts.usual  # it may have been a change of status
                continue
            if type(request) in KINDS and (run := self._run_at(requests, place)):
                done = place + self._decide_run(batch, client, run, now_ns)
                if done > place:
                    continue
            # The same as _decide_one does, without all that it need not ask.
            outcome = decide(request, now_ns, client)
            writes, reply, effects = outcome
            if reply is None or effects or reply.hangup:
                outcomes.append(self._finish_one(batch, client, type(request), outcome, now_ns))
                continue
            if writes:
                batch.records += writes
                self._changes += type(writes[0]) is not messages.Append
            said[client] = said.get(client, 0) + reply.size
            self._all_said += reply.size
            batch.answers[client].append(reply)
            outcomes.append(reply)

    @staticmethod
    def _run_at(requests: Sequence[tuple[Any, Any]], place: int) -> list[Any]:
        """Return what a client asks in a row from this place on, of one kind; empty if it is one
        thing.
        """
        client, first = requests[place]
        kind, run = type(first), [first]
        for other, request in islice(requests, place + 1, place + MAX_RUN):
            if other is not client or type(request) is not kind:
                break
            run.append(request)
        return run if len(run) > 1 else []

    def _decide_run(self, batch: Batch, client: Any, run: list[Any], now_ns: int) -> int:
        """Decide as many of the run as can be decided in one step. Returns how many that were."""
        said = self._said.get(client, 0)
        most = min(MAX_SAID_BYTES - said, MAX_ALL_SAID_BYTES - self._all_said)
        writes, replies = self._fan_out.decide_run(run, now_ns, client, most)
        size = sum([reply.size for reply in replies])
        batch.records += writes
        self._said[client] = said + size
        self._all_said += size
        batch.answers[client] += replies
        batch.outcomes += replies
        return len(replies)

    def _decide_one(self, batch: Batch, client: Any, request: Any, now_ns: int) -> object:
        kind = type(request)
        if client is None:
            self.writer.due_waits &= kind is not messages.KestrelDue
        elif kind is messages.KestrelGone:
            batch.effects.append(_Released(client, goes_on=False))
        elif client in self._held:
            self._held[client].append(request)
            return DECIDED_LATER
        elif client.is_lost and kind in NOT_FOR_THE_LOST:
            return None
        elif (
            client.is_slow
            or self._says_enough(client)
            or self._is_held_back(client, kind)
            or (self._changes >= MAX_CHANGES and self._fan_out.changes_files(request))
        ):
            self._hold(client, [request])
            self._put_off.add(client)
            if not client.is_slow and not self._is_held_back(client, kind):
                batch.effects.append(_Released(client))
            return DECIDED_LATER
        else:
            reply = self._facts.answer(request)
            if reply is not None:
                self._say(batch, client, reply, final=True)
                return reply
        outcome = self._fan_out.decide(request, now_ns, client)
        return self._finish_one(batch, client, kind, outcome, now_ns)

    def _says_enough(self, client: Any) -> bool:
        """Return whether the rest of what this client asks is for the next batch."""
        is_enough = self._said.get(client, 0) >= MAX_SAID_BYTES
        return is_enough or self._all_said >= MAX_ALL_SAID_BYTES

    def _is_held_back(self, client: Any, kind: type) -> bool:
        return kind in _LONG_ANSWERS and client.is_held_back

    def _finish_one(
        self, batch: Batch, client: Any, kind: type, outcome: messages.KestrelOutcome, now_ns: int
    ) -> Reply | None:
        self._gather(batch, client, kind, outcome)
        if (
            outcome.reply is None
            and client is not None
            and kind is not messages.KestrelGone
            and client.is_leaving
        ):
            self._decide_one(batch, None, messages.StopWaiting(client), now_ns)
        return outcome.reply

    def _gather(
        self, batch: Batch, client: Any, kind: type, outcome: messages.KestrelOutcome
    ) -> None:
        writes, reply, effects = outcome
        batch.records += writes
        self._changes += sum(type(write) is not messages.Append for write in writes)
        if client is not None and kind is not messages.KestrelGone:
            if reply is not None:
                self._say(batch, client, reply, final=True)
            else:
                self._hold(client, [])  # until its Answer comes
        for effect in effects:
            if type(effect) is messages.KestrelAnswer:
                self._say(batch, effect.client, effect.reply, final=effect.final)
                if effect.final:
                    batch.effects.append(_Released(effect.client))
            else:
                batch.effects.append(effect)

    def _say(self, batch: Batch, client: Any, reply: Reply, *, final: bool) -> None:
        self._said[client] = self._said.get(client, 0) + reply.size
        self._all_said += reply.size
        batch.answers[client].append(reply if final else Unfinished(reply))
        if reply.hangup and client.sends_more:
            self._hold(client, [])  # later requests are never answered

    def _hold(self, client: Any, behind: list[Any]) -> None:
        self._held[client] = behind
        self._newly_held.add(client)

    def _release(self, released: _Released) -> None:
        """The command that waited is answered: what followed it comes before all else."""
        self._put_off.discard(released.client)
        behind = self._held.pop(released.client, ())
        if released.goes_on:
            for request in reversed(behind):
                self.writer.submit_first(released.client, request)

    # -- when it is written, or could not be --

    def carry_out(self, batch: Batch) -> None:
        for effect in batch.effects:
            if type(effect) is messages.Fetch:
                self.fetcher.fetch(effect)
            elif type(effect) is _Released:
                self._release(effect)
            else:
                self._owner.on_effect(effect)

    def decide_again(self, batch: Batch, error: JourneymanError) -> tuple[Batch, list[Any]]:
        self._changes = 0
        # The others were held before; or they have resumed meanwhile, and wait for the next batch.
        held = {each for each in self._newly_held if self._held.pop(each, None) is not None}
        self._put_off -= held
        partly = error if isinstance(error, PartlyWritten) else None
        written = partly.written if partly is not None else {}
        stored = {id(item.data) for items in written.values() for item in items}
        again = Batch([])
        self._fan_out.begin_batch()
        for queue in partly.erased if partly is not None else ():
            self._gather(again, None, messages.EraseQueue, self._fan_out.forget(queue))
        for queue, items in written.items():
            outcome = self._fan_out.adopt(queue, items, self._clock.now_ns())
            self._gather(again, None, messages.Append, outcome)
        self._fan_out.commit_batch()
        outcomes: list[Any] = []
        for (client, request), outcome in zip(batch.requests, batch.outcomes, strict=True):
            if outcome is DECIDED_LATER and client not in held:
                outcomes.append(DECIDED_LATER)
            else:
                outcomes.append(self._decide_again(again, client, request, stored, error))
        self.carry_out(again)
        return again, outcomes

    def _decide_again(
        self, batch: Batch, client: Any, request: Any, stored: set[int], error: JourneymanError
    ) -> object:
        """Decide again what needs no room; answer the rest that there is none."""
        kind = type(request)
        if client is None:
            if kind is not messages.KestrelDue:  # the ticker sees for itself what is due
                self.writer.repeat_later(request)
            return error
        if kind is messages.KestrelGone:
            self.writer.leave(client)
            return error
        if kind is ask.Put and id(request.data) in stored:
            batch.answers[client].append(STORED)
            return STORED
        self._fan_out.begin_batch()
        trial = Batch([])
        reply = self._decide_one(trial, client, request, self._clock.now_ns())
        if trial.records or self._fan_out.take_ledger():
            self._fan_out.undo_batch()
            self._held.pop(client, None)
            self._put_off.discard(client)
            batch.answers[client].append(NO_ROOM)
            return error
        self._fan_out.commit_batch()
        batch.effects += trial.effects
        for told, answers in trial.answers.items():
            batch.answers[told] += answers
        return reply
