"""Asyncio clients: the same conversations held over streams, any number of tasks on one client.

``awaited(call)`` makes a coroutine method of a call. A task that is cancelled in the middle of a
conversation closes its connection. A client belongs to the event loop that used it last; in another
loop it begins with new connections.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from journeyman.client import conversation
from journeyman.client.errors import CannotConnect, ClientError, ConnectionFailed, Refused
from journeyman.client.service import Endpoint, ServiceClient, as_method, poll_of
from journeyman.local_access import socket_path

P = ParamSpec("P")
T = TypeVar("T")

_RECEIVE_BYTES = 256 * 1024


class _Transport:
    """A link and its streams."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._link = endpoint.link()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._deadline = 0.0
        self._patience_ends = 0.0  # until when a login that the server could not check is repeated

    async def hold(self, call: conversation.Call[T]) -> T:
        """Perform the steps of a conversation, to its end."""
        self._check()
        steps: conversation.Conversation[T] = call(self._link)
        try:
            step = next(steps)
            while True:
                try:
                    await self._perform(step)
                except ConnectionFailed as failure:
                    self.close()
                    step = steps.throw(failure)
                else:
                    step = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        except Refused:
            raise
        except BaseException:  # cancelled in the middle of a reply, perhaps
            self._link.drop()
            raise
        finally:
            if not self._link.is_open:
                self.close()

    def _check(self) -> None:
        """Something to read before anything was asked: the end of the connection, or a fault."""
        if self._writer is not None:
            number = self._writer.get_extra_info("socket").fileno()
            if self._writer.is_closing() or number < 0 or poll_of(number).poll(0):
                self.close()

    def close(self) -> None:
        self._link.drop()
        if self._writer is not None:
            self._writer.transport.abort()  # nothing unsent matters, and no wait for TLS
            self._reader = self._writer = None

    async def _perform(
        self, step: conversation.Step | conversation.Send | conversation.Pause
    ) -> None:
        if isinstance(step, conversation.Send):
            now = asyncio.get_running_loop().time()
            self._deadline = now + self._endpoint.timeout_s + step.extra_s
            await self._send(step.data)
        elif step is conversation.CONNECT:
            await self._connect()
        elif isinstance(step, conversation.Pause):
            now = asyncio.get_running_loop().time()
            if step.number == 1:
                self._patience_ends = now + self._endpoint.timeout_s
            if now >= self._patience_ends:
                raise ConnectionFailed("no login in time")
            await asyncio.sleep(step.seconds)
        else:
            await self._receive()

    async def _send(self, data: bytes) -> None:
        assert self._writer is not None
        try:
            async with asyncio.timeout_at(self._deadline):
                self._writer.write(data)
                await self._writer.drain()
        except OSError as error:
            raise self._link.cannot_send(error) from None

    async def _receive(self) -> None:
        assert self._reader is not None
        try:
            async with asyncio.timeout_at(self._deadline):
                data = await self._reader.read(_RECEIVE_BYTES)
        except OSError as error:
            raise self._link.cannot_receive(error) from None
        self._link.received(data)

    async def _connect(self) -> None:
        self.close()
        host, port = self._endpoint.address
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                opened = await _open(host, port, self._endpoint.tls)
        except (OSError, ssl.SSLError) as error:
            raise self._link.cannot_connect(error) from None
        self._reader, self._writer = opened
        self._link.opened()


async def _open(
    host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if path := socket_path(host):
        name = None if tls is None else "localhost"
        return await asyncio.open_unix_connection(path, ssl=tls, server_hostname=name)
    return await asyncio.open_connection(host, port, ssl=tls)


class _Pool:
    """A pool of at most ``size`` transports, the last used first, all of one event loop."""

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self._endpoint = endpoint
        self._size = size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(size)
        self._idle: list[_Transport] = []
        self._generation = 0  # a connection borrowed before a close is closed when it comes back

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[_Transport]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._free, self._idle = loop, asyncio.Semaphore(self._size), []
            self._generation += 1
        free, generation = self._free, self._generation
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                await free.acquire()
        except TimeoutError:
            raise CannotConnect(self._endpoint.all_in_use(self._size)) from None
        transport = self._idle.pop() if self._idle else _Transport(self._endpoint)
        try:
            yield transport
        finally:
            free.release()
            if generation == self._generation:
                self._idle.append(transport)
            else:
                transport.close()

    def close(self) -> None:
        self._generation += 1
        idle, self._idle = self._idle, []
        for transport in idle:
            transport.close()


class AsyncClient(ServiceClient):
    """Connects at the first call. For any number of tasks of one event loop."""

    def _start(self, endpoint: Endpoint, connections: int) -> None:
        kept_apart = self.service.has_open_reads and connections > 1
        self._pool = _Pool(endpoint, connections - kept_apart)
        self._kept = _Pool(endpoint, 1) if kept_apart else self._pool

    async def hold(self, call: conversation.Call[T], *, kept: bool = False) -> T:
        """Hold a conversation; ``kept``: on the connection that is kept for open reads."""
        try:
            async with (self._kept if kept else self._pool).borrow() as transport:
                return await transport.hold(call)
        except ClientError as error:  # see BlockingClient.hold
            raise error.with_traceback(None) from None

    async def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self._pool.close()
        self._kept.close()
        await asyncio.sleep(0)  # sockets are closed in the loop's next turn

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def awaited(
    call: Callable[P, conversation.Call[T]], *, kept: bool = False
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The call as a coroutine method."""

    @functools.wraps(call)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.hold(call(*args, **kwargs), kept=kept)

    return as_method(method, call)
