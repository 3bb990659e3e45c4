"""Asyncio clients called like blocking ones, so that one test says what both kinds do.

queue_of = kind_of(request, WorkQueue, AsyncWorkQueue)       a fixture with params KINDS
with ScriptedPeer(...) as peer, queue_of(peer) as queue:
    queue.add("mail")                                         waits, whichever kind it is
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from journeyman.client.awaiting import AsyncClient
from tests.support.scripted_peer import ScriptedPeer

KINDS = ("blocking", "asyncio")


class Waiting:
    """An asyncio client whose calls wait, on an event loop of their own."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = method(*args, **kwargs)
            if inspect.isasyncgen(given):
                return self._runner.run(_all_of(given))
            return self._runner.run(given)

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


async def _all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def of(client: type[AsyncClient]) -> Callable[..., Any]:
    """Makes asyncio clients of this class whose calls wait."""
    return lambda *args, **kwargs: Waiting(client(*args, **kwargs))


def kind_of(kind: str, blocking: Any, awaiting: type[AsyncClient]) -> Callable[..., Any]:
    """What makes a client of this kind for a peer."""
    make = blocking if kind == "blocking" else of(awaiting)

    def connect(peer: ScriptedPeer, **options: Any) -> Any:
        return make(port=peer.port, timeout_s=60.0, **options)

    return connect
