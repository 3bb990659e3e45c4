"""Connections in memory: the server sees transports of asyncio, clients a Wire.

    Wire.send --pieces, each after its latency--> protocol.data_received      unless reading paused
    Wire.read <--pieces, after their latency----- transport.write

What may go wrong is chosen by the chance of each connection (``Weather``): a write arrives in
pieces, with pauses between them; the connection is cut, with what is on its way lost; a client
does not read for a while, and the server's transport fills up. A cut is seen by each side after a
latency of its own.

A connection draws from a chance of its own, by its number, so the order in which a server looks at
its connections (they are in a set) does not change what happens.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.world import Loop, World

DEFAULT_HIGH_BYTES = 64 * 1024
_DATE = re.compile(rb"Date: [^\r\n]*")  # of the real clock, in answers of HTTP
WINDOW_BYTES = 64 * 1024  # that a client's kernel takes though the client does not read


class ConnectionCut(Exception):
    """The other side is gone; whether the last command was carried out is not known."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How connections behave. Chances are for each write."""

    latency_s: float = 0.0005  # at most
    split: float = 0.0
    stall: float = 0.0
    stall_s: float = 5.0
    cut: float = 0.0


class Network:
    """The ports of one world."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.connections = 0
        self._ports: dict[int, dict[Loop, Callable[[], asyncio.Protocol]]] = {}
        self._choice = world.fork("which server")
        self._open: dict[Wire, None] = {}

    def fork(self, name: object) -> random.Random:
        return self.world.fork(name)

    def listener(self, loop: Loop) -> Callable[..., Any]:
        """What ``create_server`` of this loop does."""

        def listen(
            make_protocol: Callable[[], asyncio.Protocol],
            host: str,
            port: int,
            *,
            start_serving: bool = True,
            **_: Any,
        ):
            del host
            listening = _Listening(self._ports.setdefault(port, {}), loop, make_protocol)
            if start_serving:
                listening.open()
            return listening

        return listen

    def connect(self, client: Loop, port: int) -> Wire:
        """A connection to one of the servers that listen there; ConnectionCut if none does."""
        listening = [each for each in self._ports.get(port, {}).items() if not each[0].is_dead]
        if not listening:
            raise ConnectionCut
        server, make_protocol = listening[0]
        if len(listening) > 1:
            server, make_protocol = self._choice.choice(listening)
        self.connections += 1
        wire = Wire(self, client, server, self.connections)
        self._open[wire] = None
        server.call_soon(wire.begin, make_protocol)
        return wire

    def server_died(self, server: Loop) -> None:
        """Its ports are closed, and its clients find out sooner or later."""
        for listening in self._ports.values():
            listening.pop(server, None)
        for wire in list(self._open):
            if wire.server is server:
                wire.lost_by_server()

    def listens(self, server: Loop) -> bool:
        """True if a client can connect to this server."""
        return any(server in listening for listening in self._ports.values())

    def forget(self, wire: Wire) -> None:
        self._open.pop(wire, None)


@dataclass(slots=True)
class _Listening:
    _listening: dict[Loop, Callable[[], asyncio.Protocol]]
    _server: Loop
    _make_protocol: Callable[[], asyncio.Protocol]
    sockets: tuple[Any, ...] = ()

    def open(self) -> None:
        self._listening[self._server] = self._make_protocol

    async def start_serving(self) -> None:
        self.open()

    def close(self) -> None:
        if self._listening.get(self._server) is self._make_protocol:
            del self._listening[self._server]

    async def wait_closed(self) -> None:
        """It is closed at once."""


class Wire:
    """The client's end."""

    def __init__(self, network: Network, client: Loop, server: Loop, number: int) -> None:
        self._network = network
        self._world = network.world
        self._weather = network.weather
        self._client = client
        self.server = server
        self.number = number
        self._chance = network.world.fork(f"connection {number}")
        self._transport = SimulatedTransport(self, server)
        self._arrives_s = [0.0, 0.0]  # when the last piece arrives at the server, at the client
        self._received = bytearray()
        self._reader: asyncio.Future[None] | None = None
        self._is_over = False
        self._is_stalled = False
        self.held_bytes = 0  # by the server's transport, because the client does not read

    # -- for the client --

    def send(self, data: bytes) -> None:
        if self._is_over:
            raise ConnectionCut
        weather, chance = self._weather, self._chance
        if weather.cut and chance.random() < weather.cut:
            data = data[: chance.randrange(len(data) + 1)]  # of which a part may arrive
            self._pieces(data)
            self.cut()
            raise ConnectionCut
        self._pieces(data)

    async def read_line(self) -> bytes:
        """Up to LF, without it and without a CR before it."""
        while (end := self._received.find(b"\n")) < 0:
            await self._more()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line.removesuffix(b"\r")

    async def read_lines(self, most: int) -> list[str]:
        while b"\n" not in self._received:
            await self._more()
        *lines, self._received = self._received.split(b"\n", most)
        return [line.removesuffix(b"\r").decode() for line in lines]

    async def read_bytes(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._more()
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def cut(self) -> None:
        """End it at once, without a word."""
        if not self._is_over:
            self._over()
            self._at(self.server, 0, self._transport.lose)

    # -- between --

    def begin(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._transport.begin(make_protocol())

    def to_client(self, data: bytes) -> None:
        weather, chance = self._weather, self._chance
        if weather.cut and chance.random() < weather.cut:
            self.server.call_soon(self._transport.lose)
            self.lost_by_server()
            return
        if weather.stall and not self._is_stalled and chance.random() < weather.stall:
            self._is_stalled = True
            self._client.call_later(chance.random() * weather.stall_s, self._read_on)
        if self._is_stalled:
            self.held_bytes += len(data)
        self._at(self._client, 1, self._arrive, data)

    def lost_by_server(self) -> None:
        self._at(self._client, 1, self._over)

    def _read_on(self) -> None:
        self._is_stalled = False
        self.held_bytes = 0
        self._wake()
        self._at(self.server, 0, self._transport.drained)

    def _pieces(self, data: bytes) -> None:
        chance = self._chance
        while data:
            size = len(data)
            if self._weather.split and chance.random() < self._weather.split:
                size = chance.randrange(1, size + 1)
            self._at(self.server, 0, self._transport.receive, data[:size])
            data = data[size:]

    def _at(self, loop: Loop, side: int, step: Callable[..., None], *args: Any) -> None:
        """After a latency, and after all that was sent before."""
        arrives_s = loop.time() + self._chance.random() * self._weather.latency_s
        self._arrives_s[side] = max(arrives_s, self._arrives_s[side])
        loop.call_at(self._arrives_s[side], step, *args)

    def _arrive(self, data: bytes) -> None:
        if not self._is_over:
            self._world.note(self.number, _DATE.sub(b"", data) if b"Date:" in data else data)
            self._received += data
            self._wake()

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._world.note(self.number, "over")
            self._network.forget(self)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done() and not self._is_stalled:
            self._reader.set_result(None)

    async def _more(self) -> None:
        before = len(self._received)
        while len(self._received) == before or self._is_stalled:
            if self._is_over:
                raise ConnectionCut
            self._reader = self._client.create_future()
            await self._reader


class SimulatedTransport(asyncio.Transport):
    """The server's end."""

    def __init__(self, wire: Wire, loop: Loop) -> None:
        super().__init__()
        self._wire = wire
        self._loop = loop
        self._protocol: asyncio.Protocol
        self._is_closing = False
        self._is_lost = False
        self._is_reading = True
        self._unread = b""
        self._high = DEFAULT_HIGH_BYTES
        self._is_full = False

    # -- for the protocol --

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return "192.0.2.1", self._wire.number
        return ("192.0.2.2", 1) if name == "sockname" else default

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing or self._is_lost or self._loop.is_dead:
            return
        self._wire.to_client(bytes(data))
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return max(0, self._wire.held_bytes - WINDOW_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = DEFAULT_HIGH_BYTES if high is None else high
        del low

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._unread:
            self._loop.call_soon(self.receive, b"")

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._wire.lost_by_server()
            self._loop.call_soon(self.lose)

    def abort(self) -> None:
        self.close()

    # -- from the wire --

    def begin(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        self._unread += data
        if self._is_reading and not (self._is_closing or self._is_lost) and self._unread:
            data, self._unread = self._unread, b""
            self._protocol.data_received(data)

    def drained(self) -> None:
        if self._is_full and not self._is_lost:
            self._is_full = False
            self._protocol.resume_writing()

    def lose(self) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._protocol.connection_lost(None)
