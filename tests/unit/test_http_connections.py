"""Connections of the HTTP port: however many only wait, who sends a request gets in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from journeyman.servers.http import server


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_aborted = False
        self.transport: SimpleNamespace | None = SimpleNamespace(
            abort=self._abort, is_closing=lambda: self.is_aborted
        )

    def _abort(self) -> None:
        self.is_aborted = True


class Asked(dict[str, Any]):
    """A request."""

    def __init__(self, **what: Any) -> None:
        self.__dict__.update(what)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Any:
    now = SimpleNamespace(s=100.0)
    loop = SimpleNamespace(time=lambda: now.s, call_later=lambda *_: None)
    monkeypatch.setattr(
        server,
        "HttpSender",
        lambda *_: SimpleNamespace(close=lambda: None, wrote_body=lambda _: None),
    )
    shared = SimpleNamespace(is_short_of_files=lambda: False)
    around: Any = SimpleNamespace(
        loop=loop, messages=SimpleNamespace(warn=lambda _: None), shared=shared
    )
    connections = server._Connections(around, 3, 30.0)
    connections.make = Connection
    return SimpleNamespace(open=connections, now=now, connections=connections)


def test_the_connection_that_waited_longest_makes_room(port):
    first, second, third = (port.open() for _ in range(3))
    assert isinstance(port.open(), server._Refusal)  # all of them have just come
    port.connections._since[first] = float("inf")  # it has a request
    port.now.s += 1.5
    port.connections._since[third] = port.now.s
    assert isinstance(port.open(), Connection)
    assert [each.is_aborted for each in (first, second, third)] == [False, True, False]
    assert isinstance(port.open(), server._Refusal)
    assert len(port.connections._since) == len(port.connections._senders) == 3


def test_connections_that_are_gone_do_not_count(port):
    async def handler(_: Any) -> Any:
        return None

    note: Any = port.connections.note
    for _ in range(10):  # at the same moment: no sweep comes between
        connection = port.open()
        assert isinstance(connection, Connection)
        request = Asked(protocol=connection, can_read_body=False)
        asyncio.run(note(request, handler))
        connection.transport = None
    assert isinstance(port.open(), Connection)
    assert len(port.connections._since) == len(port.connections._senders) <= 3


def test_a_request_of_a_connection_that_made_room_is_refused(port):
    request: Any = SimpleNamespace(protocol=Connection(), path="/v1/health")

    async def handler(_: Any) -> Any:
        raise AssertionError

    note: Any = port.connections.note
    assert asyncio.run(note(request, handler)).status == 503
