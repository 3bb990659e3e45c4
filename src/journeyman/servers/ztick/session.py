"""One ztick connection: AUTH first where tokens are asked for, then commands to the writer.

The flow of bytes, commands and answers, and its bounds, are in connection.py. The session decides
nothing about jobs. Who may do what is checked by the writer, with the token that AUTH brought; that
AUTH comes first and in time is checked in guarded.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from journeyman.config import ALL_NAMESPACES
from journeyman.engines.ztick.messages import DONE, Reply, ScheduleStats
from journeyman.protocols.foreign import Foreign
from journeyman.protocols.ztick import (
    AUTH_FAILED,
    AUTH_OK,
    AUTH_REQUIRED,
    SETTLED,
    Auth,
    AuthRequired,
    ErrorCode,
    Event,
    ListRules,
    Metrics,
    Query,
    RefusedCommand,
    SetRule,
    TooLong,
    ZtickParser,
    internal,
    ok,
    settled,
)
from journeyman.servers.core.access import Access
from journeyman.servers.core.guarded import Guarded
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.ztick.answers import Answer, answer

if TYPE_CHECKING:
    from journeyman.servers.ztick.writer import Request, Writer

_GATE_EVENTS = (Auth, AuthRequired, TooLong, Foreign)
_LISTS = (Query, ListRules)


@dataclass(slots=True)
class ZtickContext:
    """What all sessions of a server share."""

    loop: asyncio.AbstractEventLoop
    writer: Writer
    messages: ServerLog
    metrics: Callable[[ScheduleStats], Metrics]
    access: Access = field(default_factory=Access)
    unsent_bytes: int = 1024 * 1024
    max_connections: int = 1024
    sessions: set[ZtickSession] = field(default_factory=set)
    shared: Shared = field(kw_only=True)


class ZtickSession(Guarded):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = ("_around", "_parser")

    welcome = AUTH_OK
    secret_is_wrong = AUTH_FAILED
    secret_is_missing = AUTH_REQUIRED

    def __init__(self, around: ZtickContext) -> None:
        super().__init__(around, around.access)
        self._around = around
        self._parser = ZtickParser(auth_required=around.access.tokens is not None)

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

    def denies(self, rule: SetRule) -> RefusedCommand | None:
        """The token may not have such a rule."""
        reason = "" if self.token is None else self.token.refuses(rule.runner)
        return RefusedCommand(rule.request_id, ErrorCode.AUTH_DENIED, reason) if reason else None

    def render(self, request: Request, reply: Reply | None) -> Answer:
        if reply is DONE:  # nearly always, so it is asked first
            return ok(request.request_id)
        if isinstance(request, SETTLED):
            return settled(request)
        return answer(request, reply, self._around.metrics)

    def render_failure(self, request: Request) -> Answer:
        return internal(request.request_id)

    # -- the gate --

    def _handle(self, event: Any) -> None:
        around = self._around
        if isinstance(event, Auth):
            self._authenticate(event.secret)
        elif isinstance(event, AuthRequired):
            self._refuse(self.secret_is_missing)
        elif isinstance(event, Foreign):
            self._turn_away(event)
        else:
            around.messages.debug("a line is too long: closing", client=self._peer)
            self._drop_input()
            self._ending = True
