"""One ztick connection: AUTH first where tokens are asked for, then commands to the writer.

The flow of bytes, commands and answers, and its bounds, are in connection.py. The session decides
nothing about jobs. Who may do what is checked by the writer, with the token that AUTH brought; that
AUTH comes first and in time is checked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from journeyman.config import ALL_NAMESPACES, Token, Tokens
from journeyman.engines.ztick_outcomes import DONE, Reply, Stats
from journeyman.protocols.ztick import (
    AUTH_FAILED,
    AUTH_OK,
    AUTH_REQUIRED,
    Auth,
    AuthRequired,
    Event,
    ListRules,
    Metrics,
    Parser,
    Query,
    Refused,
    TooLong,
    internal,
    ok,
    refusal,
)
from journeyman.servers.answers import Answer, answer
from journeyman.servers.auth import Attempts
from journeyman.servers.connection import LIST_STALL_S, PARSE_BYTES, WINDOW, Connection, Shared
from journeyman.servers.server_log import ServerLog

if TYPE_CHECKING:
    from journeyman.servers.writer import Request, Writer

__all__ = ["LIST_STALL_S", "PARSE_BYTES", "WINDOW", "Session", "Surroundings"]

_GATE_EVENTS = (Auth, AuthRequired, TooLong)
_LISTS = (Query, ListRules)


@dataclass(slots=True)
class Surroundings:
    """What all sessions of a server share."""

    loop: asyncio.AbstractEventLoop
    writer: Writer
    messages: ServerLog
    metrics: Callable[[Stats], Metrics]
    tokens: Tokens | None = None  # None: no authentication
    auth_timeout_s: float = 5.0
    unsent_bytes: int = 1024 * 1024
    max_connections: int = 1024
    attempts: Attempts = field(default_factory=Attempts)
    sessions: set[Session] = field(default_factory=set)
    shared: Shared = field(kw_only=True)


class Session(Connection):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = ("_around", "_parser", "token")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._around = around
        self._parser = Parser(auth_required=around.tokens is not None)
        self.token: Token | None = None

    def _connected(self) -> None:
        around = self._around
        if around.tokens is not None:
            self._timer = around.loop.call_later(around.auth_timeout_s, self._too_late)

    def _parse(self, data: bytes) -> list[Event]:
        return self._parser.feed(data)

    def _is_for_the_door(self, event: Any) -> bool:
        return isinstance(event, _GATE_EVENTS)

    def _stands_alone(self, event: Any) -> bool:
        return isinstance(event, _LISTS)

    # -- from the writer --

    @property
    def namespace(self) -> str:
        return self.token.namespace if self.token is not None else ALL_NAMESPACES

    def render(self, request: Request, reply: Reply | None) -> Answer:
        if reply is DONE:  # nearly always, so it is asked first
            return ok(request.request_id)
        if isinstance(request, Refused):
            return refusal(request)
        return answer(request, reply, self._around.metrics)

    def render_failure(self, request: Request) -> Answer:
        return internal(request.request_id)

    # -- the gate --

    def _handle(self, event: Any) -> None:
        around = self._around
        if isinstance(event, Auth):
            self._authenticate(event)
        elif isinstance(event, AuthRequired):
            self._say_and_close(AUTH_REQUIRED)
        else:
            around.messages.debug("a line is too long: closing", client=self._peer)
            self._drop_input()
            self._ending = True

    def _authenticate(self, event: Auth) -> None:
        around = self._around
        assert around.tokens is not None
        token = around.tokens.find(event.secret)
        if token is None:
            delay_s = around.attempts.failed(self._peer, around.loop.time())
            around.messages.warn("authentication failed", client=self._peer)
            self._drop_input()
            self._stop_reading()
            self._ending = True
            self._in_flight += 1  # keeps the connection until the answer has left
            around.loop.call_later(delay_s, self._say_and_close, AUTH_FAILED)
            return
        self._cancel_timer()
        around.attempts.succeeded(self._peer)
        self.token = token
        self._transport.write(AUTH_OK)

    def _say_and_close(self, words: bytes) -> None:
        if not self._closing:
            self._transport.write(words)
            self._close()

    def _too_late(self) -> None:
        self._timer = None
        self._around.messages.info("no AUTH in time: closing", client=self._peer)
        self._closing = True
        self._transport.abort()
