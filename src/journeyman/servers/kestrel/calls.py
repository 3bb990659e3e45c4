"""Commands of the fan-out queues from inside the process: from HTTP, and from the schedule's rules.

    reason = await calls.put("orders", b"item")      "" when it is recorded
    reply = await calls.ask(Described("orders"))     None: the door has closed

They go through the same writer as those of clients, and what they say is as durable.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from journeyman.config import ALL_NAMESPACES
from journeyman.protocols.kestrel.commands import Put
from journeyman.protocols.kestrel.replies import (
    NOT_STORED,
    STORED,
    Reply,
    ServerError,
    ServerLines,
)
from journeyman.servers.http.api import ApiError, read_number
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
        if reply is STORED:
            return ""
        if reply is NOT_STORED:
            return f"queue {queue} refused the item: it is full, or the item is too large"
        reason = reply.reason if isinstance(reply, ServerError) else ""
        return f"queue {queue} refused the item: {reason}"


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


# ----------------------------------------
# The fan-out queues over HTTP: what is in them.
#
#     GET /fan-out?offset=0&limit=100    [{"name", "created", "puts", "stored_bytes", "readers"},
# ...]
#     GET /fan-out/{name}                the same shape                                         404
#
# Each of ``readers`` is {"name", "items", "bytes", "open", "waiting", "expired", "discarded",
# "given_back", "age_ms"}; the default reader has an empty name.
#
# Queues know no namespaces, so this is for tokens of all namespaces: others hear 403.

MAX_LISTED = 100
MAX_OFFSET = 2**31 - 1


def add_fan_out_routes(app: web.Application, calls: FanOutCalls) -> None:
    async def queues(request: web.Request) -> web.Response:
        offset = read_number(request, "offset", 0, 0, MAX_OFFSET)
        limit = read_number(request, "limit", MAX_LISTED, 1, MAX_LISTED)
        return await _told(request, calls, Described(None, offset, limit))

    async def queue(request: web.Request) -> web.Response:
        return await _told(request, calls, Described(request.match_info["name"]))

    app.router.add_route("GET", "/fan-out", queues)
    app.router.add_route("GET", "/fan-out/{name}", queue)


async def _told(request: web.Request, calls: FanOutCalls, asked: Described) -> web.Response:
    if request["namespace"] != ALL_NAMESPACES:
        raise ApiError(403, "insufficient namespace scope")
    reply = await calls.ask(asked)
    if reply is None:
        raise ApiError(503, "internal: the fan-out queues have stopped")
    if not isinstance(reply, ServerLines) or not reply.data:
        raise ApiError(404, "not found")
    return web.Response(body=reply.data, content_type="application/json")
