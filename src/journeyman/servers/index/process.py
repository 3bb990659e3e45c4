"""The server's end of the process that follows the log into the store (child.py).

    start           --started, open_store---->  opens the store; if it cannot, the start ends
    logs recovered  --follow----------------->  follows, in a thread
    a request       --list_jobs, ...--------->  answers from the store
    every second    --take_messages---------->  what the server's log should say
    stop            --end of the pipe-------->  ends after its commit

It is a process of its own, because its work would take half of the throughput of the queue. It is
also the only one that opens the store, so every engine can be asked over HTTP. If it ends by
itself, it is started again, a little later each time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from journeyman.config import Settings
from journeyman.errors import StorageError, UsageError
from journeyman.servers.core.helper_process import Helper, HelperFailed, answer_of
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.index.views import Refusal

MESSAGES_S: Final = 1.0  # between two questions for messages
ASK_S: Final = 20.0
RESTARTS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # until it is started again
_HELPER: Final = Helper(f"{__package__}.child")


class IndexProcess:
    """All methods are called on the event loop."""

    def __init__(self, settings: Settings, messages: ServerLog) -> None:
        self._settings = settings
        self._messages = messages
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()  # a helper answers one question after another
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Returns when the store is open. UsageError: it cannot be."""
        self._child = await _HELPER.start_in_loop()
        try:
            opened = await self._answer("open_store", self._settings)
        except HelperFailed as error:
            raise UsageError(f"storage: {error}") from None
        if isinstance(opened, Refusal):
            await self._end()
            raise UsageError(f"storage: {opened.reason}")
        self._messages.info(f"the store is open: {opened}")

    def follow(self) -> None:
        """The log is recovered: it may be read."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def ask(self, function: str, *arguments: Any) -> Any:
        """UsageError for what cannot be asked; StorageError if there is no answer."""
        try:
            answer = await asyncio.wait_for(self._answer(function, *arguments), ASK_S)
        except TimeoutError:
            raise StorageError("storage", "it does not answer in time") from None
        except HelperFailed as error:
            raise StorageError("storage", str(error)) from None
        if isinstance(answer, Refusal):
            raise UsageError(answer.reason) if answer.is_usage else _failed(answer.reason)
        return answer

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self._end()

    # -- the process --

    async def _answer(self, function: str, *arguments: Any) -> Any:
        """An exchange is carried through even if nobody waits for it any more: its answer must not
        be taken for that of the next question."""
        await self._turn.acquire()
        assert self._child is not None
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
                await self._answer("follow")
                while True:
                    for text in await self._answer("take_messages"):
                        self._messages.info(text)
                        tries = 0
                    await self._wait(MESSAGES_S)
            except HelperFailed as error:
                reason = f"the process that keeps the store has ended ({error})"
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
                    reason = f"the store cannot be opened ({error})"

    async def _wait(self, seconds: float) -> None:
        """Until this time has passed, or the process has ended."""
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


def _failed(reason: str) -> StorageError:
    return StorageError("storage", reason)
