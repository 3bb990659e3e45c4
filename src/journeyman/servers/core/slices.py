"""Turns of the event loop for long work: one slice of one piece of work in each.

    lists asked for --ask--> o o o o --one slice in a turn of the loop--> the first asks again, last

Each slice takes a millisecond or two. Many lists at once take longer, each of them, but nobody who
wants something else waits for more than one slice at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial


class Slices:
    """All methods are called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], object]] = deque()
        self._turn_is_set = False

    def ask(self, slice_: Callable[[], object]) -> None:
        """Call it once, in a turn of its own, after those that asked before."""
        self._waiting.append(slice_)
        self._set_turn()

    async def turn(self) -> None:
        """The same for a coroutine: what it does up to its next await is its slice."""
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
    if not future.done():  # whoever waited may have been cancelled
        future.set_result(None)
