"""The time machine: asks the process of the past (child.py), for one token after another.

The process starts with the first question and ends when it was not asked for IDLE_S. It gets one
question at a time. Each token has its own line of questions, and the lines take turns, so a tenant
that asks without end makes another one wait for one question, not for all of them. A process that
ends, takes too long or has too little memory is started again with the next question.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from contextlib import suppress
from typing import Any

from journeyman.servers.http.past import child
from journeyman.servers.http.past.child import FAILED, NO_MEMORY
from journeyman.servers.http.routes import ApiError
from journeyman.servers.http.shares import Shares

IDLE_S = 300.0
ANSWER_S = 120.0
MOST_WAITING = 20  # questions of one token
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CHILD = f"import gc; gc.disable(); from {child.__name__} import main; main()"
# Else pools and threads that are not used take part of its memory.
_SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}


class TimeMachine:
    """See the module's docstring. ``memory_bytes`` bounds the process."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._child: asyncio.subprocess.Process | None = None
        self._shares = Shares(1, MOST_WAITING, "too many requests for past states; try again")
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, who: str, function: str, *arguments: Any) -> Any:
        """What this function of ``child`` returns, asked by a token. ApiError if it cannot."""
        async with self._shares.turn(who):
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
                return await self._ask(function, arguments)
        except asyncio.IncompleteReadError as error:
            self.close()
            raise ApiError(503, "the process that reads the past ended; try again") from error
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise ApiError(503, f"the past could not be read: {error!r}") from error

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
        self._child = None

    async def _ask(self, function: str, arguments: tuple[Any, ...]) -> Any:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps((function, arguments)))
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(8))
        if size > MAX_ANSWER_BYTES:
            raise OSError("the answer is too large")
        outcome, answer = pickle.loads(await process.stdout.readexactly(size))
        if outcome == NO_MEMORY:
            self.close()
            reason = f"the past needs more than {self._memory_bytes} bytes: raise limits.past_bytes"
            raise ApiError(422, reason, "past_too_large")
        if outcome == FAILED:
            raise ApiError(503, f"the past could not be read: {answer}")
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(IDLE_S, self.close)
        if self._child is None or self._child.returncode is not None:
            paths = os.pathsep.join(filter(None, sys.path))
            environment = os.environ | _SPARING | {"PYTHONPATH": paths}
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", _CHILD, str(self._memory_bytes),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, env=environment, limit=MAX_ANSWER_BYTES,
            )  # fmt: skip
        return self._child
