"""One ztick connection: bytes in, commands to the writer, answers out in order.

    data_received --> unparsed --Parser--> backlog --at most WINDOW at a time--> writer
    transport  <--write-- out  <--------- answered(replies) ------- writer

Everything here is bounded, whatever the client does:

    sends faster than it is answered   reading stops while anything of it is not handed on
    does not fetch its answers         past ``unsent_bytes`` nothing more is taken on for it
    asks for a long list               the list leaves in slices, and nothing behind it starts
    stalls, goes away, half-closes     answers to what was received are sent, then it is closed

The session decides nothing about jobs. Who may do what is checked by the writer, with the token
that AUTH brought; that AUTH comes first and in time is checked here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

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
from journeyman.servers.server_log import ServerLog
from journeyman.servers.sockets import address_of, keep_alive

if TYPE_CHECKING:
    from journeyman.servers.writer import Request, Writer

__all__ = ["LIST_STALL_S", "WINDOW", "Session", "Surroundings"]

WINDOW = 1024  # commands of one connection that the writer holds at a time
PARSE_BYTES = 16 * 1024  # commands take more room than their bytes: so many bytes at a time
LIST_STALL_S = 60.0  # a list keeps the jobs of its moment in memory: it must be fetched
LAST_WORDS_S = 10.0  # for the answers still unsent when a connection is closed
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


class Session(asyncio.Protocol):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = (
        "_around",
        "_backlog",
        "_closing",
        "_ending",
        "_in_flight",
        "_list_in_flight",
        "_out",
        "_parser",
        "_peer",
        "_pumping",
        "_reading",
        "_sending_paused",
        "_stall_timer",
        "_timer",
        "_transport",
        "_unparsed",
        "token",
    )

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._parser = Parser(auth_required=around.tokens is not None)
        self._unparsed = b""
        self._backlog: deque[Event] = deque()
        self._out: deque[Answer] = deque()
        self._in_flight = 0
        self._list_in_flight = False
        self._pumping = False
        self._reading = True
        self._sending_paused = False
        self._ending = False  # no more input is taken: close once all is answered
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._peer = ""
        self.token: Token | None = None

    # -- from the transport --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        around = self._around
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another family
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        if len(around.sessions) >= around.max_connections:
            self._closing = True
            around.messages.warn("connection refused: too many are open", client=self._peer)
            self._transport.abort()
            return
        around.sessions.add(self)
        around.messages.info("client connected", client=address_of(peer))
        self._transport.set_write_buffer_limits(high=around.unsent_bytes)
        keep_alive(transport.get_extra_info("socket"))
        if around.tokens is not None:
            self._timer = around.loop.call_later(around.auth_timeout_s, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._ending or self._closing:
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._advance()

    def eof_received(self) -> bool:
        self._ending = True
        self._close_if_done()
        return not self._closing

    def pause_writing(self) -> None:
        self._sending_paused = True
        self._stall_timer = self._around.loop.call_later(LIST_STALL_S, self._stalled)

    def resume_writing(self) -> None:
        self._sending_paused = False
        self._cancel_stall_timer()
        self._pump()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio asks so
        self._closing = True
        self._drop_input()
        self._out.clear()
        self._cancel_timer()
        self._cancel_stall_timer()
        if self in self._around.sessions:
            self._around.sessions.discard(self)
            self._around.messages.info("client disconnected", client=self._peer)

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

    def answered(self, answers: list[Answer]) -> None:
        """Answers to the oldest commands in flight, in order."""
        if self._closing:
            return
        if not self._out and all(type(each) is bytes for each in answers):
            self._in_flight -= len(answers)
            self._transport.write(b"".join(cast(list[bytes], answers)))
        else:
            self._out.extend(answers)
            self._pump()
        if self._backlog or self._unparsed or self._ending:
            self._advance()

    def room(self) -> None:
        """The writer can take commands again."""
        self._advance()

    def drop(self) -> None:
        """What waits will never be answered: the log failed."""
        self._closing = True
        self._transport.abort()

    def finish(self) -> None:
        """Take no more input; answer what was received, then close."""
        if not self._closing:
            self._ending = True
            self._stop_reading()
            self._close_if_done()

    # -- inside --

    def _advance(self) -> None:
        """Hand on as much of what was received as there is room for."""
        writer = self._around.writer
        batch: list[Request] = []
        while not (
            self._closing
            or self._sending_paused
            or self._list_in_flight
            or self._in_flight >= WINDOW
        ):
            if not self._backlog:
                if not self._unparsed:
                    break
                self._parse_some()
                continue
            event = self._backlog[0]
            if isinstance(event, _GATE_EVENTS):
                self._backlog.popleft()
                self._handle_gate(event)
                continue
            if not writer.has_room:
                writer.tell_when_room(self)
                break
            self._backlog.popleft()
            self._in_flight += 1
            self._list_in_flight = isinstance(event, _LISTS)
            batch.append(event)
        if batch:
            writer.submit(self, batch)
        if self._closing:
            return
        if self._backlog or self._unparsed or self._sending_paused:
            self._stop_reading()
        elif not self._ending and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._close_if_done()

    def _parse_some(self) -> None:
        data = self._unparsed
        if len(data) <= PARSE_BYTES:
            self._unparsed = b""
        else:
            data, self._unparsed = data[:PARSE_BYTES], data[PARSE_BYTES:]
        self._backlog.extend(self._parser.feed(data))

    def _handle_gate(self, event: Auth | AuthRequired | TooLong) -> None:
        around = self._around
        if isinstance(event, Auth):
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
        elif isinstance(event, AuthRequired):
            self._say_and_close(AUTH_REQUIRED)
        else:
            around.messages.debug("a line is too long: closing", client=self._peer)
            self._drop_input()
            self._ending = True

    def _drop_input(self) -> None:
        self._unparsed = b""
        self._backlog.clear()

    def _pump(self) -> None:
        """Send what waits, lists slice by slice with other connections in between."""
        while self._out and not self._sending_paused and not self._closing and not self._pumping:
            first = self._out[0]
            if isinstance(first, bytes):
                self._transport.write(first)
            elif (part := next(first, None)) is not None:
                if part:
                    self._transport.write(part)
                self._pumping = True
                self._around.loop.call_soon(self._pump_on)
                return
            else:
                self._list_in_flight = False
            self._out.popleft()
            self._in_flight -= 1

    def _pump_on(self) -> None:
        self._pumping = False
        self._pump()
        self._advance()

    def _close_if_done(self) -> None:
        if self._ending and not (
            self._closing or self._unparsed or self._backlog or self._in_flight
        ):
            self._close()

    def _say_and_close(self, words: bytes) -> None:
        if not self._closing:
            self._transport.write(words)
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._cancel_timer()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._timer = self._around.loop.call_later(LAST_WORDS_S, self._transport.abort)

    def _too_late(self) -> None:
        self._timer = None
        self._around.messages.info("no AUTH in time: closing", client=self._peer)
        self._closing = True
        self._transport.abort()

    def _stalled(self) -> None:
        self._stall_timer = None
        if self._list_in_flight:
            self._around.messages.info("a list is not fetched: closing", client=self._peer)
            self._closing = True
            self._transport.abort()

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
