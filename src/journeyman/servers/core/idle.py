"""Closes connections that say nothing, wait for nothing and are owed nothing, after a while.

Whoever waits for a job, an item or a result is not idle, and neither is a client that has not
fetched its replies: that is the budget's business (unsent.py). A connection is looked at LOOKS
times within its timeout, so it is closed at the latest one part of LOOKS after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

LOOKS = 8


class Idler(Protocol):
    def close_if_idle(self, looks: int) -> bool:
        """Close it if it was idle in so many looks in a row, this one counted; whether it was."""
        ...


class IdleWatch:
    """``sessions`` are the open ones of a port. A timeout of 0 watches nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sessions: Collection[Idler], timeout_s: float
    ) -> None:
        self._loop = loop
        self._sessions = sessions
        self._look_s = timeout_s / LOOKS
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s > 0:
            self._timer = loop.call_later(self._look_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        for session in list(self._sessions):
            session.close_if_idle(LOOKS + 1)
        self._timer = self._loop.call_later(self._look_s, self._look)
