"""Shares per token: of connections for requests that wait, and of work in turns.

Each request that waits, for a job, a result or the next event, keeps a connection from others. A
token may have as many requests waiting as connections are free: alone it gets half of them, a
second token half of what is left. So however many tokens wait, another one finds a connection.

Work that few requests may do at a time is given out in turns over the tokens:

    token a: o o o o o o          a b a c a a ...   at most ``at_once`` of them work
    token b: o            --turns-->
    token c: o

A token that asks without end waits for itself: another one waits for at most one piece of work
of each token before its own. A token whose line is full is refused, and no other token is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import RouteCall, who_asks


class WaitingRequests:
    """The requests that wait. ``answering`` counts the connections whose request has no answer."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self.answering = 0
        self._by_token: Counter[str] = Counter()

    @contextmanager
    def share_of(self, request: web.Request) -> Iterator[None]:
        """Count this request while it waits. ApiError: too many of its token wait."""
        who = who_asks(request)
        own, free = self._by_token[who], self._max_connections - self.answering
        if own and own >= free:
            raise ApiError(503, "too many requests of this token are waiting; try again")
        self._by_token[who] += 1
        try:
            yield
        finally:
            self._by_token[who] -= 1


class Shares:
    """``at_once`` pieces of work, and a line of at most ``most_waiting`` requests per token."""

    def __init__(self, at_once: int, most_waiting: int, refusal: str) -> None:
        self._free = at_once
        self._most_waiting = most_waiting
        self._refusal = refusal
        # The token whose turn is next comes first.
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, call: RouteCall) -> AsyncIterator[None]:
        """Wait for a turn of the token that asks, and keep it. ApiError: its line is full."""
        with call.request["waits"].share_of(call.request):
            await self._begin(call.who)
            try:
                yield
            finally:
                self._end()

    async def _begin(self, who: str) -> None:
        if self._free and not self._lines:
            self._free -= 1
            return
        line = self._lines.setdefault(who, deque())
        if len(line) >= self._most_waiting:
            raise ApiError(503, self._refusal)
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end()  # it was given the turn just before
            elif turn in line:
                line.remove(turn)
                if not line:
                    del self._lines[who]
            raise

    def _end(self) -> None:
        while self._lines:
            who, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[who] = line  # behind the other tokens
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
