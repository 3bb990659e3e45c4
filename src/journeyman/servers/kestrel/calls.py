"""Commands of the fan-out queues from inside the process: from HTTP, and from the schedule's rules.

    reason = await calls.put("orders", b"item")      "" when it is recorded
    reply = await calls.ask(Described("orders"))     None: the door has closed

They go through the same writer as those of clients, and what they say is as durable.
"""

from __future__ import annotations

import asyncio

from journeyman.engines.kestrel.messages import Reply
from journeyman.protocols.kestrel import replies as words
from journeyman.protocols.kestrel.commands import Put
from journeyman.servers.kestrel.stats import Described
from journeyman.servers.kestrel.writer import FanOutWriter


class FanOutCalls:
    def __init__(self, loop: asyncio.AbstractEventLoop, writer: FanOutWriter) -> None:
        self._loop = loop
        self._writer = writer

    async def ask(self, command: Put | Described) -> Reply | None:
        call = _Call(self._loop)
        self._writer.submit(call, [command])
        reply = await call.reply
        if reply is not None and reply.hangup:
            self._writer.leave(call)
        return reply

    async def put(self, queue: str, data: bytes) -> str:
        """Why the item could not be put, or nothing."""
        reply = await self.ask(Put(queue, 0, data))
        if reply is None:
            return "the fan-out queues have stopped"
        if reply.data == words.STORED:
            return ""
        if reply.data == words.NOT_STORED:
            return f"queue {queue} refused the item: it is full, or the item is too large"
        said = reply.data.decode("latin-1").strip().partition(" ")[2]
        return f"queue {queue} refused the item: {said}"


class _Call:
    """One command, as a client of the writer."""

    is_leaving = False
    is_lost = False
    is_slow = False
    is_held_back = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reply: asyncio.Future[Reply | None] = loop.create_future()

    def answered(self, answers: list[tuple[Reply, bool]]) -> None:
        ((reply, _),) = answers
        if not self.reply.done():  # whoever asked may have gone
            self.reply.set_result(reply)

    def room(self) -> None:
        """Not asked for: there are never many of these."""

    def drop(self) -> None:
        if not self.reply.done():
            self.reply.set_result(None)
