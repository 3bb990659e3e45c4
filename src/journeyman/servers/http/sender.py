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
    from journeyman.servers.core.shared import Shared


PIECE_BYTES = 64 * 1024


class HttpSender:
    """Made for each connection; ``close`` it when that is gone."""

    def __init__(self, protocol: Any, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        self._protocol = protocol
        self._loop = loop
        self._budget = shared.budget
        self._slices = shared.slices
        self._written = 0  # bytes, to the transport
        self._pending = 0  # bytes of the part that is being written
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
        """In pieces, because the transport keeps a copy of what it cannot send. All counts."""
        self._pending = len(data)
        self._budget.wrote(len(data))
        try:
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                self._written += len(piece)
                await response.write(piece)
        finally:
            self._pending = 0

    def wrote_body(self, response: web.StreamResponse) -> None:
        body = response.body if isinstance(response, web.Response) else None
        if isinstance(body, bytes | bytearray):
            self._written += len(body)
            self._budget.wrote(len(body))

    def close(self) -> None:
        self._budget.remove(self)
        self._wake()

    # -- from the budget --

    def unsent(self) -> int:
        return self._pending + self._in_transport()

    def fetched(self) -> int:
        return self._written - self._in_transport()

    def room_to_send(self) -> None:
        self._wake()

    def close_unread(self) -> None:
        if self._protocol.transport is not None:
            self._protocol.transport.abort()
        self._wake()

    # -- inside --

    def _in_transport(self) -> int:
        transport = self._protocol.transport
        return 0 if transport is None else int(transport.get_write_buffer_size())

    def _wake(self) -> None:
        waiters, self._for_room = self._for_room, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
