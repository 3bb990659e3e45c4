"""The time machine: asks the process of the past (child.py), for one token after another.

The process starts with the first question and ends when it was not asked for IDLE_S. It gets one
question at a time. Each token has its own line of questions, and the lines take turns, so a tenant
that asks without end makes another one wait for one question, not for all of them. A process that
ends, takes too long or has too little memory is started again with the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from journeyman.servers.core.helper_process import (
    Helper,
    HelperFailed,
    HelperLost,
    HelperNeedsMemory,
    answer_of,
)
from journeyman.servers.http.past import child
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import RouteCall
from journeyman.servers.http.shares import Shares

IDLE_S = 300.0
ANSWER_S = 120.0
MOST_WAITING = 20  # questions of one token
NICENESS = 5  # the server comes first
UNREAD = "the past could not be read: the server's log says why; try again"


class TimeMachine:
    """See the module's docstring. ``memory_bytes`` bounds the process."""

    def __init__(self, memory_bytes: int, warn: Callable[[str], None]) -> None:
        """``warn`` gets why the past could not be read: that may name paths and addresses, which
        are not for every token."""
        self._warn = warn
        self._helper = Helper(child.__name__, memory_bytes, NICENESS)
        self._child: asyncio.subprocess.Process | None = None
        self._shares = Shares(1, MOST_WAITING, "too many requests for past states; try again")
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, call: RouteCall, function: str, *arguments: Any) -> Any:
        """The value of this function of ``child``, asked by this request. ApiError if it fails."""
        async with self._shares.turn(call):
            asking = asyncio.ensure_future(self._ask_in_time(function, arguments))
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                return await asyncio.shield(asking)
            except asyncio.CancelledError:
                # The client has left. What the process has read so far is for the next one; its
                # answer must not be taken for that of the next question, even if the request is
                # cancelled once more meanwhile. ``close`` ends the wait.
                while not asking.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([asking])
                raise

    async def _ask_in_time(self, function: str, arguments: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer_of(await self._running(), function, *arguments)
        except HelperNeedsMemory as error:
            self.close()
            limit = self._helper.memory_bytes
            reason = f"the past needs more than {limit} bytes: raise limits.past_bytes"
            raise ApiError(422, reason, "past_too_large") from error
        except (HelperLost, OSError, TimeoutError) as error:
            self.close()
            self._warn(f"the past could not be read: {error!r}")
            raise ApiError(503, UNREAD) from error
        except HelperFailed as error:
            self._warn(f"the past could not be read: {error}")
            raise ApiError(503, UNREAD) from error

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
        self._child = None

    async def _running(self) -> asyncio.subprocess.Process:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(IDLE_S, self.close)
        if self._child is None or self._child.returncode is not None:
            self._child = await self._helper.start_in_loop()
        return self._child
