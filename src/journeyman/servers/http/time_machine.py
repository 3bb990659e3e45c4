"""Asks a child process what the logs were like at a moment (past/child.py).

The child starts with the first question and ends when it was not asked for IDLE_S. There is one,
and it gets one question at a time; those that wait are bounded, and so is its memory. A child that
ends, takes too long or has too little memory is started again with the next question.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from contextlib import suppress
from typing import Any

from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.past import child
from journeyman.servers.http.past.child import FAILED, NO_MEMORY

IDLE_S = 300.0
ANSWER_S = 120.0
MOST_WAITING = 20
_CHILD = f"import gc; gc.disable(); from {child.__name__} import main; main()"
# Else pools and threads that are not used take part of its memory.
_SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class TimeMachine:
    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._child: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, directory: str, kind: str, *arguments: Any) -> Any:
        """What ``past.child.Past`` answers. ApiError if it cannot."""
        if self._waiting >= MOST_WAITING:
            raise ApiError(503, "too many ask for the past; try again")
        self._waiting += 1
        try:
            async with self._asking:
                asking = asyncio.ensure_future(self._ask_in_time(directory, kind, arguments))
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())
                try:
                    return await asyncio.shield(asking)
                except asyncio.CancelledError:
                    # The client has left. What the child has read so far is for the next one; its
                    # answer must not be taken for that of the next question, even if the request is
                    # cancelled once more meanwhile. ``close`` ends the wait.
                    while not asking.done():
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([asking])
                    raise
        finally:
            self._waiting -= 1

    async def _ask_in_time(self, directory: str, kind: str, arguments: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(directory, kind, arguments)
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

    async def _ask(self, directory: str, kind: str, arguments: tuple[Any, ...]) -> Any:
        child = await self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        asked = pickle.dumps((os.path.abspath(directory), kind, arguments))
        child.stdin.write(asked)
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(8))
        if size > MAX_ANSWER_BYTES:
            raise OSError("the answer is too large")
        outcome, answer = pickle.loads(await child.stdout.readexactly(size))
        if outcome == NO_MEMORY:
            self.close()
            said = f"the past does not fit into {self._memory_bytes} bytes: raise limits.past_bytes"
            raise ApiError(422, said, "past_too_large")
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
