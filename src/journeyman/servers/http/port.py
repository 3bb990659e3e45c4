"""The HTTP port, until it is first asked for something: open, with nothing imported.

    first client --> the system keeps it, and those after it
                     build: imports in a thread, then the application (server.py)
                 <-- all of them are answered

aiohttp, the routes and the console take 20 MB and a fifth of a second. A server that is asked
nothing over HTTP spends neither, and the other ports answer meanwhile in any case.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Sized
from typing import TYPE_CHECKING

from journeyman.config import Address
from journeyman.disk import is_out_of_files
from journeyman.servers.core.listener import Listener, listen
from journeyman.servers.preflight import HTTP_CONNECTIONS

if TYPE_CHECKING:
    from journeyman.servers.http.server import HttpServing
    from journeyman.servers.ztick.session import ZtickContext

RETRY_S = 1.0


class HttpPort:
    """``close`` lets requests under way end first."""

    def __init__(
        self, context: ZtickContext, build: Callable[[int], Awaitable[HttpServing]]
    ) -> None:
        """``build`` is given ``max_connections``."""
        self._context = context
        self._build = build
        self.loop, self.messages = context.loop, context.messages
        self.max_connections = min(HTTP_CONNECTIONS, context.max_connections)
        self._listener: Listener | None = None
        self._copies: list[socket.socket] = []
        self._serving: HttpServing | None = None
        self._beginning: asyncio.Task[None] | None = None

    @property
    def sessions(self) -> Sized:
        return () if self._serving is None else self._serving.connections

    async def open(
        self, address: Address, *, handshake_timeout_s: float, socket_mode: int = 0o600
    ) -> Address:
        """Where it listens; OSError, worded for people, when that cannot be."""
        self._listener = await listen(
            self,
            address,
            make_session=self._make_session,
            tls=self._context.access.tls,
            handshake_timeout_s=handshake_timeout_s,
            at_first_client=self._begin,
            socket_mode=socket_mode,
        )
        try:
            self._copies = self._listener.copies()
        except OSError:
            self._listener.close()
            raise
        return self._listener.address

    def sockets(self) -> list[socket.socket]:
        """Copies of the listening sockets, for the stand-in: it closes them."""
        return [each.dup() for each in self._copies]

    async def close(self) -> None:
        self._stop_listening()
        if self._beginning is not None:
            self._beginning.cancel()
        if self._serving is not None:
            await self._serving.close()

    def _stop_listening(self) -> None:
        for copy in self._copies:
            copy.close()
        if self._listener is not None:
            self._listener.close()

    def _make_session(self) -> asyncio.Protocol:
        assert self._serving is not None
        return self._serving.connections()

    def _begin(self) -> None:
        self._beginning = self.loop.create_task(self._serve())

    async def _serve(self) -> None:
        assert self._listener is not None
        try:
            self._serving = await self._build_when_possible()
        except Exception as error:  # noqa: BLE001 - libraries replaced since the start, say
            self.messages.error("HTTP cannot be served; restart the server", reason=repr(error))
            self._stop_listening()
            return
        gc.freeze()  # imported objects stay, as at the start (process.py)
        await self._listener.serve()

    async def _build_when_possible(self) -> HttpServing:
        """Files that are all in use become free again; until then clients wait."""
        while True:
            try:
                return await self._build(self.max_connections)
            except OSError as error:
                if not is_out_of_files(error):
                    raise
                self.messages.warn("HTTP cannot be served yet", reason=error)
            await asyncio.sleep(RETRY_S)
