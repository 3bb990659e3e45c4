"""The HTTP port before its first client: open, with nothing behind it that would cost memory."""

from __future__ import annotations

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from journeyman.config import Address
from journeyman.servers.http import port, server
from journeyman.servers.http.port import HttpPort
from journeyman.servers.preflight import HTTP_CONNECTIONS

ANSWER = b"answered"
ANYWHERE = Address("127.0.0.1", 0)


class Answering(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(ANSWER)
        transport.close()


class World:
    """A port whose application is built when the test says so."""

    def __init__(self, max_connections: int = 10) -> None:
        self.asked = asyncio.Event()
        self.built: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.said: list[str] = []
        self.refusals: list[OSError] = []
        self.closed = 0
        self.told_max_connections = 0
        around: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            messages=SimpleNamespace(error=self._say, warn=self._say),
            max_connections=max_connections,
            access=SimpleNamespace(tls=None),
        )
        self.port = HttpPort(around, self._build)

    def _say(self, what: str, **_: Any) -> None:
        self.said.append(what)

    async def _build(self, max_connections: int) -> Any:
        self.told_max_connections = max_connections
        self.asked.set()
        if self.refusals:
            raise self.refusals.pop()
        await self.built
        return SimpleNamespace(connections=Answering, close=self._close)

    async def _close(self) -> None:
        self.closed += 1


async def fetch(address: Address) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request) -> Any:
    """Both event loops that a server may run on."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_here(scenario: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario(), 60))

    return run_here


def test_clients_are_answered_when_what_answers_them_is_there(run):
    async def scenario() -> None:
        world = World()
        address = await world.port.open(ANYWHERE, handshake_timeout_s=5)
        assert not world.asked.is_set()
        clients = [asyncio.ensure_future(fetch(address)) for _ in range(3)]
        await world.asked.wait()
        assert len(world.port.sessions) == 0
        world.built.set_result(None)
        assert await asyncio.gather(*clients) == [ANSWER] * 3
        assert await fetch(address) == ANSWER
        await world.port.close()
        assert world.closed == 1
        with pytest.raises(ConnectionError):
            await fetch(address)

    run(scenario)


@pytest.mark.parametrize("of_other_ports", [10, 10_000])
def test_what_serves_has_the_limit_of_the_port(run, of_other_ports):
    async def scenario() -> None:
        world = World(of_other_ports)
        world.built.set_result(None)
        assert await fetch(await world.port.open(ANYWHERE, handshake_timeout_s=5)) == ANSWER
        await world.port.close()
        assert world.told_max_connections == world.port.max_connections
        assert world.port.max_connections == min(of_other_ports, HTTP_CONNECTIONS)

    run(scenario)


def test_a_port_that_was_never_asked_closes(run):
    async def scenario() -> None:
        world = World()
        address = await world.port.open(ANYWHERE, handshake_timeout_s=5)
        await world.port.close()
        with pytest.raises(ConnectionError):
            await fetch(address)
        assert not world.asked.is_set()

    run(scenario)


def test_a_stop_while_clients_wait_ends_their_waiting(run):
    async def scenario() -> None:
        world = World()
        address = await world.port.open(ANYWHERE, handshake_timeout_s=5)
        client = asyncio.ensure_future(fetch(address))
        await world.asked.wait()
        await world.port.close()
        with pytest.raises(ConnectionError):
            await client
        assert world.built.cancelled()

    run(scenario)


def test_what_cannot_be_imported_closes_the_port_and_says_so(run):
    async def scenario() -> None:
        world = World()
        address = await world.port.open(ANYWHERE, handshake_timeout_s=5)
        world.built.set_exception(ImportError("cannot import name 'web'"))
        with pytest.raises(ConnectionError):
            await fetch(address)
        assert world.said == ["HTTP cannot be served; restart the server"]
        with pytest.raises(ConnectionError):
            await fetch(address)

    run(scenario)


def test_clients_wait_while_there_are_no_files_to_import_with(run, monkeypatch):
    monkeypatch.setattr(port, "RETRY_S", 0.001)

    async def scenario() -> None:
        world = World()
        world.refusals = [OSError(number, "used up") for number in (errno.EMFILE, errno.ENFILE)]
        address = await world.port.open(ANYWHERE, handshake_timeout_s=5)
        world.built.set_result(None)
        assert await fetch(address) == ANSWER
        assert world.said == ["HTTP cannot be served yet"] * 2
        await world.port.close()

    run(scenario)


def test_an_address_that_is_taken_is_named(run):
    async def scenario() -> None:
        first, second = World(), World()
        address = await first.port.open(ANYWHERE, handshake_timeout_s=5)
        with pytest.raises(OSError, match="another process has this address") as caught:
            await second.port.open(address, handshake_timeout_s=5)
        assert caught.value.filename == str(address)
        await first.port.close()

    run(scenario)


def test_a_port_that_cannot_be_watched_is_closed(run, monkeypatch):
    """Else it would be open, and nothing would ever accept its clients."""
    sockets: list[int] = []

    def no_more(descriptor: int) -> int:
        sockets.append(descriptor)
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", no_more)
            with pytest.raises(OSError, match="cannot listen: Too many open files") as caught:
                await World().port.open(ANYWHERE, handshake_timeout_s=5)
        await asyncio.sleep(0.01)  # a turn of the loop, which closes it
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sockets[0])
        assert caught.value.errno == errno.EMFILE  # it holds what would be closed as garbage

    run(scenario)


def test_nothing_runs_while_the_assets_of_the_console_are_read(monkeypatch):
    """A stop at that moment would leave it running: nothing else knows of it yet."""
    begun: list[str] = []

    def unreadable() -> None:
        begun.append("assets")
        raise OSError(errno.EIO, "Input/output error")

    async def scenario() -> None:
        monkeypatch.setattr(server, "all_assets", unreadable)
        monkeypatch.setattr(server, "Console", lambda *_: begun.append("console"))
        around: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        nothing: Any = None
        with pytest.raises(OSError, match="Input/output error"):
            await server.build_http(
                around,
                nothing,
                nothing,
                ANYWHERE,
                max_connections=1,
                timeout_s=1,
                body_bytes=1,
            )
        assert begun == ["assets"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
