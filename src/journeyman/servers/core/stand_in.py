"""Answers on the HTTP port while the event loop waits for a disk.

    GET /health, /v1/health    200 {"status":"ok"}: the process is alive
    anything else              503 with the reason, application/problem+json

A connection that the event loop has accepted before gets its answer when the loop is free again.
It runs in a thread of its own with a small event loop, from the moment the watch has noticed
(writes.py) until the write has ended. Nothing is read but the head of a request, and no token is
asked for: the answer says only how long a write takes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from journeyman.servers.core.listener import BACKLOG
from journeyman.servers.core.writes import WriteWatch

HEALTH_PATHS = (b"/health", b"/v1/health")
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
REQUEST_LIMIT_S = 5.0
POLL_S = 0.01  # between two checks whether the loop is free again


def stand_in(
    writes: WriteWatch, copies: Callable[[], list[socket.socket]], tls: ssl.SSLContext | None
) -> None:
    """Blocks until the event loop is free. ``copies`` gives copies of the listening sockets."""
    # Without a free file descriptor nothing answers until the write has ended.
    with suppress(OSError):
        asyncio.run(_StandIn(writes, tls).serve(copies()))


class _StandIn:
    def __init__(self, writes: WriteWatch, tls: ssl.SSLContext | None) -> None:
        self._writes = writes
        self._tls = tls
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, sockets: list[socket.socket]) -> None:
        # The backlog is that of the port: listening again must not change it.
        servers = [
            await asyncio.start_server(
                self._accept,
                sock=listening,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else REQUEST_LIMIT_S,
                backlog=BACKLOG,
                limit=MAX_HEAD_BYTES,
            )
            for listening in sockets
        ]
        while self._writes.is_loop_held():
            await asyncio.sleep(POLL_S)
        for server in servers:
            server.close()
        # Also those that were accepted a moment ago; each has its time limit.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError,
                          asyncio.LimitOverrunError):  # fmt: skip
                async with asyncio.timeout(REQUEST_LIMIT_S):
                    await self._converse(reader, writer)
        finally:
            writer.close()
            self._connections.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer(head))
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        # Closing with unread bytes would reset the connection before the answer is read.
        while await reader.read(MAX_HEAD_BYTES):
            pass

    def _answer(self, head: bytes) -> bytes:
        path = b"".join(head.split(b" ", 2)[1:2]).partition(b"?")[0]
        if path in HEALTH_PATHS:
            return _response("200 OK", "application/json", {"status": "ok"})
        reason = self._writes.reason_of_loop()
        problem = {
            "type": "urn:journeyman:problem:stuck",
            "title": "Service Unavailable",
            "status": 503,
            "code": "stuck",
            "detail": reason,
            "services": dict.fromkeys(("schedule", "work", "fan-out"), reason),
        }
        return _response("503 Service Unavailable", "application/problem+json", problem)


def _response(status: str, content_type: str, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n"
        "Retry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data
