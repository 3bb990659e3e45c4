"""The server's end of a helper process that follows a log (following.py is its own).

    open      --started, opening function-->  opens what it needs, or refuses
    follow    --start_following------------->  follows, in a thread
    ask       --a function------------------>  answers
    every second    --take_messages--------->  what the server's log should say
    stop      --end of the pipe------------->  ends after its step

It is a process of its own, because its work would take half of the throughput of the server. If it
ends by itself, it is started again, a little later each time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from journeyman.errors import UsageError
from journeyman.servers.core.following import Refusal
from journeyman.servers.core.helper_process import Helper, HelperFailed, answer_of
from journeyman.servers.core.server_log import ServerLog

MESSAGES_S: Final = 1.0  # between two questions for messages
ASK_S: Final = 20.0
RESTARTS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # until it is started again


class FollowerProcess:
    """All methods are called on the event loop."""

    def __init__(
        self,
        helper: Helper,
        name: str,
        section: str,
        messages: ServerLog,
        opening: str,
        *arguments: Any,
    ) -> None:
        """``name``: of what it keeps, in messages; ``section``: its settings; ``opening``: the
        first function, with its arguments."""
        self._helper = helper
        self._name = name
        self._section = section
        self._messages = messages
        self._opening = opening, *arguments
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()  # a helper answers one question after another
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Returns when it is open. UsageError: it cannot be."""
        self._child = await self._helper.start_in_loop()
        try:
            opened = await self._answer(*self._opening)
        except HelperFailed as error:
            raise UsageError(f"{self._section}: {error}") from None
        if isinstance(opened, Refusal):
            await self._end()
            raise UsageError(f"{self._section}: {opened.reason}")
        self._messages.info(f"opened the {self._name}: {opened}")

    def follow(self) -> None:
        """The log is recovered: it may be read."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def ask(self, function: str, *arguments: Any) -> Any:
        """UsageError for what cannot be asked; HelperFailed if there is no answer."""
        try:
            answer = await asyncio.wait_for(self._answer(function, *arguments), ASK_S)
        except TimeoutError:
            raise HelperFailed("it does not answer in time") from None
        if isinstance(answer, Refusal):
            raise UsageError(answer.reason) if answer.is_usage else HelperFailed(answer.reason)
        return answer

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self._end()

    async def _answer(self, function: str, *arguments: Any) -> Any:
        """An exchange is carried through even if nobody waits for it any more: its answer must not
        be taken for that of the next question."""
        await self._turn.acquire()
        if self._child is None:
            self._turn.release()
            raise HelperFailed("it is not running")
        exchange = asyncio.ensure_future(answer_of(self._child, function, *arguments))
        exchange.add_done_callback(self._end_turn)
        return await asyncio.shield(exchange)

    def _end_turn(self, exchange: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not exchange.cancelled():
            exchange.exception()  # it may be that nobody waits for it

    async def _watch(self) -> None:
        """Pass its messages on; start it again when it has ended."""
        tries = 0
        while True:
            try:
                await self._answer("start_following")
                while True:
                    for text in await self._answer("take_messages"):
                        self._messages.info(text)
                        tries = 0
                    await self._wait(MESSAGES_S)
            except HelperFailed as error:
                reason = f"the process that keeps the {self._name} has ended ({error})"
            await self._end()
            is_open = False
            while not is_open:
                wait_s = RESTARTS_S[min(tries, len(RESTARTS_S) - 1)]
                self._messages.warn(f"{reason}; it is started again in {wait_s:g} s")
                tries += 1
                await asyncio.sleep(wait_s)
                try:
                    await self.open()
                    is_open = True
                except UsageError as error:
                    reason = f"the {self._name} cannot be opened ({error})"

    async def _wait(self, seconds: float) -> None:
        """Wait until this time has passed, or the process has ended."""
        assert self._child is not None
        try:
            await asyncio.wait_for(self._child.wait(), seconds)
        except TimeoutError:
            return

    async def _end(self) -> None:
        child = self._child
        if child is not None and child.returncode is None:
            assert child.stdin is not None
            child.stdin.close()
            try:
                await asyncio.wait_for(child.wait(), ASK_S)
            except TimeoutError:
                child.kill()
                await child.wait()
