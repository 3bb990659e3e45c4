"""Answers over HTTP in pieces: lists and large answers within the budget, live events.

A connection has its part in the budget of all ports (core/shared.py):

    await sender.turn()              one slice of a list, or one large answer, may be made now
    await sender.write(response, b)  sent, and counted; returns when the client keeps up
    sender.wrote_body(response)      counted: aiohttp sends it

Consoles see figures once a second, and records as they become durable:

    figures   made once for all subscribers, never without one
    records   a batch tells what became durable; at most MOST_RECORDS of each FLUSH_S are shown,
              the others are counted. So the cost for the server does not grow with its rate

A stream that is not read is bounded: beyond MOST_WAITING events the oldest are dropped. A client
that takes nothing for WRITE_S is disconnected, so that it keeps no place from others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from aiohttp import web

from journeyman.servers.core.shared import Shared

PIECE_BYTES = 64 * 1024

FIGURES_S = 1.0
FLUSH_S = 0.5
MOST_RECORDS = 25  # shown of each service each FLUSH_S
MOST_WAITING = 32
PING_S = 15.0
WRITE_S = 30.0


class HttpSender:
    """Made for each connection; ``close`` it when that is gone."""

    def __init__(self, protocol: Any, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        self._protocol = protocol
        self._loop = loop
        self._budget = shared.budget
        self._slices = shared.slices
        self._written = 0  # bytes, to the transport
        self._pending = 0  # bytes of the part that is being written
        self._body = 0  # bytes of the last answer, which is kept until all of it was sent
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
        """Write data in pieces, because the transport keeps a copy of what it cannot send. All of
        it counts."""
        self._pending += len(data)
        self._budget.wrote(len(data))
        try:
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                self._written += len(piece)
                await response.write(piece)
        finally:
            self._pending -= len(data)

    def wrote_body(self, response: web.StreamResponse) -> None:
        body = response.body if isinstance(response, web.Response) else None
        if isinstance(body, bytes | bytearray):
            self._written += len(body)
            # It is written right after this. Until then the transport does not show it, and the
            # budget would have room for as many answers as are made in this turn of the loop.
            self._pending += len(body)
            self._body = len(body)
            self._budget.wrote(len(body))
            self._loop.call_soon(self._is_in_transport, len(body))

    def _is_in_transport(self, size: int) -> None:
        self._pending -= size

    def close(self) -> None:
        self._budget.remove(self)
        self._wake()

    # -- from the budget --

    def unsent(self) -> int:
        held = self._in_transport()
        return self._pending + (max(held, self._body) if held else 0)

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


@dataclass(slots=True, eq=False)
class Stream:
    """One subscriber."""

    is_over: bool = False
    events: deque[bytes] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, event: bytes) -> None:
        self.events.append(event)
        self.wake.set()


class Channel:
    """Subscribers of one kind of event. ``make`` gives the next event, or None for none."""

    def __init__(
        self, make: Callable[[], Awaitable[bytes | None]], every_s: float,
        switch: Callable[[bool], None] | None = None,
    ) -> None:  # fmt: skip
        """``switch`` is called when the first subscriber comes, and when the last has left."""
        self._make = make
        self._every_s = every_s
        self._switch = switch
        self._streams: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._task is None:
            if self._switch is not None:
                self._switch(True)
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, stream: Stream) -> None:
        self._streams.discard(stream)
        if not self._streams and self._task is not None:
            self.close()

    def close(self) -> None:
        """Close the connection and end its streams: a server that stops does not wait for them."""
        for stream in self._streams:
            stream.is_over = True
            stream.wake.set()
        if self._task is not None:
            self._task.cancel()
            self._task = None
            if self._switch is not None:
                self._switch(False)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            event = None
            try:
                event = await self._make()
            except Exception as error:  # noqa: BLE001 - it is logged, and the next one may be made
                loop.call_exception_handler({"message": "no live event", "exception": error})
            if event is not None:
                for stream in self._streams:
                    stream.push(event)
            await asyncio.sleep(self._every_s)


class RecordSample:
    """Takes what writers tell, and forgets all but a sample of it."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any]] = []
        self._counts: dict[str, int] = {}

    def note(self, service: str, records: Collection[Any]) -> None:
        seen = self._counts.get(service, 0)
        self._counts[service] = seen + len(records)
        if seen < MOST_RECORDS:
            some = islice(records, MOST_RECORDS - seen)  # records of some logs are decoded only now
            self._kept += [(service, record) for record in some]

    def take(self) -> tuple[list[tuple[str, Any]], int]:
        """The sample, and how many more there were."""
        kept, total = self._kept, sum(self._counts.values())
        self._kept, self._counts = [], {}
        return kept, total - len(kept)


def event_bytes(name: str, data: bytes) -> bytes:
    lines = data.replace(b"\r", b"").split(b"\n")
    return b"event: " + name.encode() + b"\n" + b"".join(b"data: %b\n" % x for x in lines) + b"\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_S):
        await response.write(data)


async def stream_events(request: web.Request, channels: Iterable[Channel]) -> web.StreamResponse:
    """Send the events of these channels until the client goes, the server stops, or its lease has
    ended."""
    with request["waits"].share_of(request):
        return await _stream(request, list(channels))


async def _stream(request: web.Request, channels: list[Channel]) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    stream = Stream()
    await response.prepare(request)
    await response.write(b"retry: 2000\n\n")
    for channel in channels:
        channel.add(stream)
    try:
        while not stream.is_over:
            stream.wake.clear()
            while stream.events:
                if not request["is_active"]():
                    return response  # another server may know better by now
                await _write(response, stream.events.popleft())
            try:
                async with asyncio.timeout(PING_S):
                    await stream.wake.wait()
            except TimeoutError:
                await _write(response, b": still here\n\n")
    except TimeoutError:  # it does not read
        if request.transport is not None:
            request.transport.abort()
    finally:
        for channel in channels:
            channel.remove(stream)
    return response
