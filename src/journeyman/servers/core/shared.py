"""The shared limits of all ports: unsent bytes, turns for long work, file descriptors, timers.

    replies --written--> transports, each with its own limit (``unsent_bytes``)
                 |
                 +--counted--> UnsentBudget, with one limit for all (``total_unsent_bytes``)

    below the limit    nothing happens
    at the limit       tight: a connection with unsent bytes accepts no more commands, and
                       large replies wait; small replies to clients that read continue
    stays there        clients that read nothing for GRACE_S are closed, the largest first; if
                       there are none, after SLOW_S those that read least

So clients that read always get through: they wait at most until those that do not are closed.

Counting is cheap: writes are added up, and only when the sum could have reached the limit are all
transports asked for their real size. Large replies are produced only when the budget allows (see
connection.py), so the limit is exceeded by at most one part of a reply.

    lists asked for --ask--> Slices: o o o o --one slice in a turn of the loop--> asks again, last

Each slice takes a millisecond or two. Many simultaneous lists slow each other down, but no other
client waits for more than one slice at a time.

Timers that are not urgent fire together (``delay_to_second``), so that an idle server wakes up only
every other second.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from journeyman.servers.core.server_log import ServerLog

LOOK_S = 0.05  # between two looks while more than half of the budget is used
GRACE_S = 1.0  # a client that reads takes something within this time
SLOW_S = 5.0  # for those that read a little now and then

WHOLE_S = 1.0
EVEN_S = 2.0


class UnsentSender(Protocol):
    """A connection, as far as its replies are concerned."""

    def unsent(self) -> int:
        """Bytes that its transport holds."""
        ...

    def fetched(self) -> int:
        """Bytes that its client has taken since it connected, never fewer than before."""
        ...

    def room_to_send(self) -> None:
        """The budget is no longer tight; see ``wait``."""
        ...

    def close_unread(self) -> None:
        """Close at once: its client does not read."""
        ...


class UnsentBudget:
    """See the module's docstring. All methods are called on the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit_bytes: int, messages: ServerLog
    ) -> None:
        self._loop = loop
        self._limit = limit_bytes
        self._messages = messages
        self._senders: set[UnsentSender] = set()
        self._waiting: dict[UnsentSender, None] = {}
        self._held = 0  # at the last look
        self._written = 0  # since then
        self._look_at = limit_bytes // 2  # look again when so much was written
        self._timer: asyncio.TimerHandle | None = None
        self._fetched: dict[UnsentSender, tuple[int, float]] = {}  # how much, since when no more
        self._tight_since = 0.0
        # Bytes that each had fetched when it became tight.
        self._at_first: dict[UnsentSender, int] = {}
        self.is_tight = False
        self.closed = 0  # clients that were closed because they did not read

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._senders)

    def add(self, sender: UnsentSender) -> None:
        self._senders.add(sender)

    def remove(self, sender: UnsentSender) -> None:
        self._senders.discard(sender)
        self._waiting.pop(sender, None)
        self._fetched.pop(sender, None)
        self._at_first.pop(sender, None)

    def wrote(self, size: int) -> None:
        """Count the bytes that were given to some transport."""
        self._written += size
        if self._written >= self._look_at:
            self._survey(size)

    def wait(self, sender: UnsentSender) -> None:
        """Call the sender when the budget is no longer tight, in the order of the calls."""
        self._waiting[sender] = None

    @property
    def held_bytes(self) -> int:
        """Return what all transports hold, as of the last look."""
        return self._held

    # -- inside --

    def _survey(self, coming: int = 0) -> None:
        """Ask all transports what they hold, and act on it. ``coming`` may not be there yet."""
        now = self._loop.time()
        held = {sender: size for sender in self._senders if (size := sender.unsent())}
        self._count(held)
        self._note_progress(held, now)
        if self.is_tight:
            self._close_some(held, now)
            self._count(held)
        if self._held + coming < self._limit // 2:
            self._fetched.clear()
        elif self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look_again)
        if not self.is_tight:
            self._wake()

    def _look_again(self) -> None:
        self._timer = None
        self._survey()

    def _count(self, unsent: dict[UnsentSender, int]) -> None:
        self._held = sum(unsent.values())
        self._written = 0
        half, used = self._limit // 2, self._held
        self._look_at = max((half if used < half else self._limit) - used, self._limit // 16)
        is_tight = self._held >= self._limit
        if is_tight and not self.is_tight:
            self._tight_since = self._loop.time()
            self._at_first = {sender: sender.fetched() for sender in unsent}
        self.is_tight = is_tight

    def _note_progress(self, unsent: dict[UnsentSender, int], now: float) -> None:
        before, self._fetched = self._fetched, {}
        for sender in unsent:
            fetched = sender.fetched()
            known = before.get(sender)
            is_stuck = known is not None and known[0] == fetched
            self._fetched[sender] = known if is_stuck and known is not None else (fetched, now)

    def _close_some(self, unsent: dict[UnsentSender, int], now: float) -> None:
        chosen = [s for s in unsent if now - self._fetched[s][1] >= GRACE_S]
        chosen.sort(key=unsent.__getitem__, reverse=True)
        if not chosen and now - self._tight_since >= SLOW_S:
            chosen = sorted(unsent, key=lambda s: s.fetched() - self._at_first.get(s, 0))
            self._tight_since = now
        left, closed = self._held, 0
        for sender in chosen:
            if left <= self._limit * 3 // 4:
                break
            left -= unsent.pop(sender)
            closed += 1
            self.remove(sender)
            sender.close_unread()
        if closed:
            self.closed += closed
            self._messages.warn(
                "clients that do not read their replies were closed: together they had more "
                "unsent than limits.total_unsent_bytes allows",
                clients=closed,
                unsent_bytes=self._held,
            )

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for sender in waiting:
            if self.is_tight:  # those before have used up what there was
                self._waiting.setdefault(sender)
            elif sender in self._senders:
                sender.room_to_send()


class Slices:
    """Turns of the event loop for long work. All methods are called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], object]] = deque()
        self._turn_is_set = False

    def ask(self, slice_: Callable[[], object]) -> None:
        """Call it once, in a turn of its own, after those that asked before."""
        self._waiting.append(slice_)
        self._set_turn()

    async def turn(self) -> None:
        """Give a coroutine a turn: what it does up to its next await is its slice."""
        mine = self._loop.create_future()
        self.ask(partial(_set, mine))
        await mine

    def _set_turn(self) -> None:
        if self._waiting and not self._turn_is_set:
            self._turn_is_set = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_set = False
        slice_ = self._waiting.popleft()
        try:
            slice_()
        finally:
            self._set_turn()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():  # the waiting task may have been cancelled
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class Shared:
    """The limits that all connections of all ports share."""

    budget: UnsentBudget
    slices: Slices
    most_files: int  # file descriptors from this number on are not for connections

    @classmethod
    def create(
        cls,
        loop: asyncio.AbstractEventLoop,
        messages: ServerLog,
        total_unsent_bytes: int,
        most_files: int = 2**31,
    ) -> Shared:
        budget = UnsentBudget(loop, total_unsent_bytes, messages)
        return cls(budget, Slices(loop), most_files)

    def is_short_of_files(self, connection: Any = None) -> bool:
        """Return whether this connection takes a descriptor that logs and programs may need.

        The system gives out the lowest number that is free, so that one shows how many are taken.
        ``connection`` is its socket, if there is one already.
        """
        if connection is not None and connection.fileno() >= self.most_files:
            return True
        if len(self.budget) >= self.most_files:
            return True
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        os.close(descriptor)
        return descriptor >= self.most_files


def delay_to_second(loop: asyncio.AbstractEventLoop, delay_s: float) -> float:
    """Return the delay until the last whole second within ``delay_s`` from now, of two or more the
    last even one. A delay of less than a second stays as it is."""
    if delay_s < WHOLE_S:
        return delay_s
    now_s, step_s = loop.time(), EVEN_S if delay_s >= EVEN_S else WHOLE_S
    return math.floor((now_s + delay_s) / step_s) * step_s - now_s
