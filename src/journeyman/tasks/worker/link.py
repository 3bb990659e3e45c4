r"""A pipelined connection to the work queue: many commands on the way, replies in order.

    ask(request) -> Future[list[Row]]       one write per turn of the event loop, however many asks
    lost        every open future raises ConnectionResetError; ``connect`` makes a new one

A reply is a head line, and for ``lease`` and ``inspect`` the blocks after it. A Row is a line of
words and the payload that follows it. Errors of the server are ``LinkRefused`` with its words.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import NamedTuple, Self, cast

from journeyman.client import AccessDenied, BadAnswer, CannotConnect, ClientError
from journeyman.client.service import ServerUrl, tls_context
from journeyman.client.workq import DEFAULT_PORT

_END = b"\r\n"
_MAX_BUFFER_BYTES = 64 * 1024 * 1024
CONNECT_TIMEOUT_S = 10.0


class Row(NamedTuple):
    """``ID NAME TTR SIZE ...`` and SIZE bytes."""

    words: list[str]
    payload: bytes


class LinkRefused(ClientError):
    """The server refused a command; the text is its reply without the minus."""


class NothingReady(LinkRefused):
    """``-TIMEOUT``."""


class WorkerLink(asyncio.Protocol):
    """See the module. One event loop, one WorkerLink."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._open: deque[tuple[asyncio.Future[list[Row]], int]] = deque()  # and place of SIZE
        self._buffer = bytearray()
        self._needed = 0  # bytes; parsing is tried again only then
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self.lost.add_done_callback(lambda future: future.exception())

    @classmethod
    async def connect(cls, address: ServerUrl) -> Self:
        """Raises CannotConnect, AccessDenied."""
        loop = asyncio.get_running_loop()
        host, port = address.host, address.ports.get("work_queue", DEFAULT_PORT)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, protocol = await loop.create_connection(
                    cls, host, port, ssl=tls_context(address.tls_setting())
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or "timed out"
            if isinstance(error, ConnectionRefusedError):
                reason = "connection refused; is journeyman serve running there?"
            raise CannotConnect(f"cannot connect to {host}:{port}: {reason}") from error
        link = protocol
        if address.token:
            try:
                await link.ask(b"auth %b\r\n" % address.token.encode())
            except LinkRefused as error:
                link.close()
                raise AccessDenied("auth_failed", str(error)) from None
        return link

    def ask(self, request: bytes, size_at: int = -1) -> asyncio.Future[list[Row]]:
        """Send a command. ``size_at``: which word of a reply's line is the size of its payload."""
        future: asyncio.Future[list[Row]] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(ConnectionResetError("the connection is closed"))
            return future
        self._open.append((future, size_at))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(request)
        return future

    def end_input(self) -> None:
        """No more commands: a waiting lease is answered at once."""
        self._flush()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:  # a server that vanished is noticed also while nothing is sent
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < self._needed:
            return
        at = 0
        try:
            while self._open and (end := self._read_reply(at)) >= 0:
                at = end
        except (ValueError, IndexError, BadAnswer) as error:
            self._fail(BadAnswer(f"not a reply of the work queue: {error}"))
        if len(self._buffer) - at > _MAX_BUFFER_BYTES:
            self._fail(BadAnswer("the server sends more than was asked for"))
        del self._buffer[:at]
        self._needed -= at

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    # -- details -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def _read_reply(self, at: int) -> int:
        """Where the reply that begins at ``at`` ends, its future done; -1: it is not all here."""
        buffer = self._buffer
        end = buffer.find(_END, at)
        if end < 0:
            self._needed = len(buffer) + 1
            return -1
        head = buffer[at:end].decode()
        future, size_at = self._open[0]
        rows: list[Row] = []
        at = end + 2
        if head.startswith("+OK "):
            for _ in range(int(head[4:])):
                end = buffer.find(_END, at)
                if end < 0:
                    self._needed = len(buffer) + 1
                    return -1
                words = buffer[at:end].decode().split(" ")
                at = end + 2
                size = int(words[size_at])
                if len(buffer) < at + size + 2:
                    self._needed = at + size + 2
                    return -1
                rows.append(Row(words, bytes(buffer[at : at + size])))
                at += size + 2
        self._open.popleft()
        if not future.done():
            if head.startswith("+OK"):
                future.set_result(rows)
            elif head.startswith("-"):
                kind = NothingReady if head == "-TIMEOUT" else LinkRefused
                future.set_exception(kind(head[1:]))
            else:
                raise BadAnswer(repr(head[:80]))
        return at

    def _fail(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        while self._open:
            future, _ = self._open.popleft()
            if not future.done():
                future.set_exception(ConnectionResetError(str(error)))
        if not self.lost.done():
            self.lost.set_exception(error)
