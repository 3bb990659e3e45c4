"""One HTTP connection, as far as what it sends is concerned: its part in the budget of all ports.

await sender.turn()              one slice of a list, or one large answer, may be made now
await sender.write(response, b)  sent, and counted; returns when the client keeps up
sender.wrote_body(response)      counted: aiohttp sends it
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from journeyman.servers.connection import Shared


class HttpSender:
    """Made for each connection; ``close`` it when that is gone."""

    def __init__(self, protocol: Any, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        self._protocol = protocol
        self._loop = loop
        self._budget = shared.budget
        self._slices = shared.slices
        self._written = 0
        self._for_room: list[asyncio.Future[None]] = []
        self._budget.add(self)

    async def turn(self) -> None:
        """Returns when there is room for one more part, in a turn of the loop of its own."""
        await self._slices.turn()
        while self._budget.is_tight:
            waiter = self._loop.create_future()
            self._for_room.append(waiter)
            self._budget.wait(self)
            await waiter
            await self._slices.turn()

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        self._wrote(len(data))
        await response.write(data)

    def wrote_body(self, response: web.StreamResponse) -> None:
        body = response.body if isinstance(response, web.Response) else None
        if isinstance(body, bytes | bytearray):
            self._wrote(len(body))

    def close(self) -> None:
        self._budget.remove(self)
        self._wake()

    # -- from the budget --

    def unsent(self) -> int:
        transport = self._protocol.transport
        return 0 if transport is None else int(transport.get_write_buffer_size())

    def fetched(self) -> int:
        return self._written - self.unsent()

    def room_to_send(self) -> None:
        self._wake()

    def close_unread(self) -> None:
        if self._protocol.transport is not None:
            self._protocol.transport.abort()
        self._wake()

    # -- inside --

    def _wrote(self, size: int) -> None:
        self._written += size
        self._budget.wrote(size)

    def _wake(self) -> None:
        waiters, self._for_room = self._for_room, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
