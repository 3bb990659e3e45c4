"""One connection: bytes in, commands to the writer, answers out in order.

    data_received --> unparsed --parse--> backlog --at most WINDOW at a time--> writer
    transport  <--part by part-- out  <--------- answered(answers) ------------- writer

Everything here is bounded, whatever the client does:

    sends faster than it is answered   reading stops while anything of it is not handed on
    does not fetch its answers         past ``unsent_bytes`` nothing more is taken on for it
    many that do not                   share one budget (shared.py); then slow ones are closed
    asks for a long list               the list leaves in slices, and nothing after it starts; if it
                                       is fetched too slowly, the connection is closed
    asks for something large           it is made when there is room to send it, not before
    stalls, goes away, half-closes     answers to what was received are sent, then it is closed
    speaks HTTP                        the connection is closed, nothing after that is executed
    says nothing                       it is closed after the idle timeout of its port, if set

An answer is bytes, if it is small. Otherwise it is a call that makes the bytes, or an iterator of
parts, and each is made only when it can be sent. Of all connections together, one part is made in
a turn of the event loop.

Where tokens are asked for, AUTH comes first:

    connected --AUTH, in time--> waits for its turn (access.py) --right--> open
        |                            |                          --wrong--> refused, closed
        |                            +--no turn in time--> "try again", closed
        +--a command, or nothing in time--> refused or closed

While a secret waits to be checked nothing after it is executed, and nothing more is read. The
answer also comes if the client has closed its sending side meanwhile. Who has sent more than
PARSE_BYTES along with a secret that must wait is to try again at once.

This is the same on all ports. What the bytes mean, how AUTH looks and which commands may wait is
each dialect's own: session.py in ztick/, workq/ and kestrel/.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

from journeyman.config import ALL_NAMESPACES, Token
from journeyman.errors import SnapshotGivenUp
from journeyman.local_access import user_of
from journeyman.protocols import Auth, AuthRequired, Foreign
from journeyman.servers.core.access import Access, Attempt
from journeyman.servers.core.server_log import ServerLog, address_of
from journeyman.servers.core.shared import Shared

WINDOW = 1024  # commands of one connection that the writer holds at a time
TIGHT_WINDOW = 16  # the same while the clients together have too much unsent
WINDOW_BYTES = 256 * 1024  # input that became these commands; answers may repeat it
PARSE_BYTES = 16 * 1024  # commands take more room than their bytes: so many bytes at a time
LAST_WORDS_S = 10.0  # for the answers still unsent when a connection is closed
LIST_STALL_S = 60.0  # a list keeps what it shows in memory: it must be fetched

_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))  # seconds, probes

_SMALL = {bytes}

Answer: TypeAlias = bytes | Callable[[], bytes] | Iterator[bytes]


@dataclass(slots=True)
class PortContext:
    """The context that the connections of one port share."""

    loop: asyncio.AbstractEventLoop
    writer: Any  # the GroupCommit of the dialect
    messages: ServerLog
    shared: Shared
    access: Access = field(default_factory=Access)
    unsent_bytes: int = 1024 * 1024
    max_connections: int = 1024
    sessions: set[Any] = field(default_factory=set)  # the open ones


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The host of a client; of a Unix socket the user."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return str(peer[0])
    sock = transport.get_extra_info("socket")
    return user_of(sock) if sock is not None and sock.family == socket.AF_UNIX else ""


def keep_alive(sock: Any) -> None:
    """Find out about clients that vanished without a word; and answer at once."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection(asyncio.Protocol):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = (
        "_address",
        "_attempt",
        "_backlog",
        "_budget",
        "_closing",
        "_context",
        "_ending",
        "_idle_checks",
        "_in_flight",
        "_is_alone",
        "_out",
        "_peer",
        "_pumping",
        "_reading",
        "_sending_paused",
        "_stall_timer",
        "_timer",
        "_transport",
        "_unparsed",
        "_window_bytes",
        "_written",
        "prefix",
        "token",
    )

    window_bytes = WINDOW_BYTES
    welcome: ClassVar[bytes]
    secret_is_wrong: ClassVar[bytes]
    secret_is_missing: ClassVar[bytes]
    try_again: ClassVar[bytes]  # the secret was not checked in time; empty: close without a word
    last_event: ClassVar[type]  # the event of a parser that cannot go on
    why_last: ClassVar[str]
    for_session: ClassVar[frozenset[type]]  # events for ``_handle`` and not for the writer

    def __init_subclass__(cls) -> None:
        cls.for_session = frozenset({Auth, AuthRequired, Foreign, cls.last_event})

    def __init__(self, context: PortContext) -> None:
        self._context = context
        self._budget = context.shared.budget
        self._transport: asyncio.Transport
        self._peer = ""  # host
        self._address = ""  # host and port
        self._timer: asyncio.TimerHandle | None = None
        # In.
        self._unparsed = b""
        self._backlog: deque[Any] = deque()
        self._reading = True
        self._ending = False  # no more input is taken: close once all is answered
        self._closing = False
        self._idle_checks = 0  # for idle connections, since something was received
        # In flight.
        self._in_flight = 0
        self._is_alone = False  # nothing more is handed on until all in flight is answered
        self._window_bytes = 0  # the input whose commands are in flight
        # Out.
        self._out: deque[Answer] = deque()
        self._written = 0  # bytes, to the transport
        self._pumping = False
        self._sending_paused = False
        self._stall_timer: asyncio.TimerHandle | None = None
        # The client.
        self._attempt: Attempt | None = None  # while a secret waits to be checked
        self.token: Token | None = None
        self.prefix = ""  # names that it touches must begin with this

    # -- what each dialect does in its own way --

    @abstractmethod
    def _parse(self, data: bytes) -> list[Any]:
        """The events of these bytes."""

    @abstractmethod
    def _must_be_alone(self, event: Any) -> bool:
        """Return whether nothing after this command may start before it is answered."""

    def _connected(self) -> None:
        """The connection was let in."""
        access = self._context.access
        if access.tokens is not None:
            self._timer = self._context.loop.call_later(access.auth_timeout_s, self._too_late)

    def _may_read_on(self) -> bool:
        """Return whether to go on reading though not all of it can be handed on."""
        return False

    # -- from the transport: bytes in --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        context = self._context
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another family
        peer = transport.get_extra_info("peername")
        self._peer = peer_of(transport)
        if len(context.sessions) >= context.max_connections:
            self._refuse_connection("too many are open")
            return
        if context.shared.is_short_of_files(transport.get_extra_info("socket")):
            self._refuse_connection("the remaining file descriptors are reserved for logs")
            return
        context.sessions.add(self)
        self._budget.add(self)
        self._address = address_of(peer) or self._peer
        context.messages.debug("client connected", client=self._address)
        self._transport.set_write_buffer_limits(high=context.unsent_bytes)
        keep_alive(transport.get_extra_info("socket"))
        self._connected()

    def _refuse_connection(self, reason: str) -> None:
        self._closing = True
        self._context.messages.warn(f"connection refused: {reason}", client=self._peer)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._ending or self._closing:
            return
        self._idle_checks = 0
        if self._in_flight or self._unparsed or self._backlog or len(data) > PARSE_BYTES:
            self._unparsed = self._unparsed + data if self._unparsed else data
            self._advance()
            return
        # Most clients send one command, and the next when it is answered.
        events = self._parse(data)
        if (
            len(events) == 1
            and not (self._sending_paused or self._out or self._budget.is_tight)
            and type(events[0]) not in self.for_session
            and self._context.writer.has_room
        ):
            self._in_flight = 1
            self._is_alone = self._must_be_alone(events[0])
            self._context.writer.submit(self, events)
            return
        self._backlog.extend(events)
        self._advance()

    def eof_received(self) -> bool:
        self._ending = True
        self._close_if_done()
        return not self._closing

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio asks so
        self._closing = True
        self._drop_input()
        self._out.clear()
        self._give_up_attempt()
        self._cancel_timer()
        self._cancel_stall_timer()
        self._budget.remove(self)
        if self in self._context.sessions:
            self._context.sessions.discard(self)
            self._context.messages.debug("client disconnected", client=self._address)

    # -- from the writer --

    def answered(self, answers: list[Answer]) -> None:
        """Answers to the oldest commands in flight, in order."""
        if self._closing:
            return
        if not self._out and set(map(type, answers)) == _SMALL:
            self._in_flight -= len(answers)
            self._is_alone = self._is_alone and self._in_flight > 0
            small: Any = answers
            self._write(small[0] if len(small) == 1 else b"".join(small))
        else:
            self._out.extend(answers)
            self._pump()
        if self._backlog or self._unparsed or self._ending:
            self._advance()

    def room(self) -> None:
        """The writer can take commands again."""
        self._advance()

    def drop(self) -> None:
        """Waiting commands are never answered: the log failed, or the token was removed."""
        self._closing = True
        self._give_up_attempt()
        self._transport.abort()

    def finish(self) -> None:
        """Take no more input; answer what was received, then close."""
        if self._attempt is not None:
            self._not_checked("the server stops before a secret was checked")
        if not self._closing:
            self._ending = True
            self._stop_reading()
            self._close_if_done()

    # -- from the clock --

    def close_if_idle(self, looks: int) -> bool:
        """Close it if it was idle in so many looks in a row, this one counted. Return whether."""
        if self._closing or self._in_flight or self._backlog or self._out or self.unsent():
            self._idle_checks = 0
            return False
        self._idle_checks += 1
        if self._idle_checks < looks:
            return False
        self._context.messages.info("client is idle: closing", client=self._peer)
        self.finish()
        if not self._closing:  # half a command is left, which will never be whole
            self._close()
        return True

    # -- inside: in --

    def _handle(self, event: Any) -> None:
        """An event that is about the connection itself."""
        if type(event) is Auth:
            self._authenticate(event.secret)
        elif type(event) is AuthRequired:
            self._refuse(self.secret_is_missing)
        elif type(event) is Foreign:
            self._turn_away(event)
        else:
            self._context.messages.debug(f"{self.why_last}: closing", client=self._peer)
            self._drop_input()
            self._ending = True

    def _window(self) -> int:
        return TIGHT_WINDOW if self._budget.is_tight else WINDOW

    def _advance(self) -> None:
        """Hand on as much of what was received as there is room for."""
        writer = self._context.writer
        batch: list[Any] = []
        window = self._window()
        while not (
            self._closing or self._is_alone or self._in_flight >= window or self._must_wait()
        ):
            if not self._backlog:
                if not self._unparsed or (
                    self._in_flight and self._window_bytes >= self.window_bytes
                ):
                    break
                self._parse_some()
                continue
            if type(self._backlog[0]) in self.for_session:
                self._handle(self._backlog.popleft())
                continue
            if not writer.has_room:
                writer.notify_when_room(self)
                break
            self._take_run(batch, window)
        if batch:
            writer.submit(self, batch)
        if self._closing:
            return
        held_up = self._backlog or self._unparsed or self._sending_paused or self._attempt
        if held_up and not self._may_read_on():
            self._stop_reading()
        elif not self._ending and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._close_if_done()

    def _take_run(self, batch: list[Any], window: int) -> None:
        """Take from the backlog, whose first event is for the writer, all that may go with it."""
        backlog = self._backlog
        while backlog and not self._is_alone and self._in_flight < window:
            if type(backlog[0]) in self.for_session:
                return
            event = backlog.popleft()
            self._in_flight += 1
            self._is_alone = self._must_be_alone(event)
            batch.append(event)

    def _parse_some(self) -> None:
        data = self._unparsed
        if len(data) <= PARSE_BYTES:
            self._unparsed = b""
        else:
            data, self._unparsed = data[:PARSE_BYTES], data[PARSE_BYTES:]
        self._window_bytes = len(data) + (self._window_bytes if self._in_flight else 0)
        self._backlog.extend(self._parse(data))

    def _turn_away(self, foreign: Foreign) -> None:
        """A web page may have sent it: what follows must not be executed."""
        where = self._transport.get_extra_info
        self._context.messages.warn(
            f"a client speaks {foreign.protocol} to a port that does not: closed, nothing after it "
            "was executed",
            client=address_of(where("peername")),
            port=address_of(where("sockname")),
        )
        self._drop_input()
        self._stop_reading()
        self._ending = True

    def _drop_input(self) -> None:
        self._unparsed = b""
        self._backlog.clear()

    def _close_if_done(self) -> None:
        if self._ending and not (
            self._closing or self._unparsed or self._backlog or self._in_flight or self._out
        ):
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._give_up_attempt()
        self._cancel_timer()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._timer = self._context.loop.call_later(LAST_WORDS_S, self._transport.abort)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- from the transport: room for bytes out --

    def pause_writing(self) -> None:
        self._sending_paused = True
        self._stall_timer = self._context.loop.call_later(LIST_STALL_S, self._stalled)

    def resume_writing(self) -> None:
        self._sending_paused = False
        self._cancel_stall_timer()
        self._pump()
        self._advance()

    # -- from the budget that all connections share --

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def fetched(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def room_to_send(self) -> None:
        self._pump()
        self._advance()

    def close_unread(self) -> None:
        self._closing = True
        self._transport.abort()

    # -- inside: out --

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        self._budget.wrote(len(data))

    def _must_wait(self) -> bool:
        """Return whether nothing more may be taken on now. Something calls ``_advance`` later."""
        if self._sending_paused or self._out:
            return True
        if self._budget.is_tight and self._transport.get_write_buffer_size():
            self._budget.wait(self)
            return True
        return False

    def _pump(self) -> None:
        """Send what waits, lists and large answers part by part with others in between."""
        while self._out and not self._sending_paused and not self._closing and not self._pumping:
            first = self._out[0]
            if isinstance(first, bytes):
                self._write(first)
                self._answer_left()
            elif self._budget.is_tight:
                self._budget.wait(self)
                return
            else:
                self._pumping = True
                self._context.shared.slices.ask(self._send_part)

    def _send_part(self) -> None:
        """Make and send one part of the answer that is first."""
        self._pumping = False
        if self._out and not self._sending_paused and not self._closing:
            first = self._out[0]
            assert not isinstance(first, bytes)
            if self._budget.is_tight:
                self._budget.wait(self)
                return
            try:
                if callable(first):
                    self._write(first())
                    self._answer_left()
                elif (part := next(first, None)) is None:
                    self._answer_left()
                elif part:
                    self._write(part)
            except SnapshotGivenUp as error:
                self._abandon(str(error))
                return
        self._pump()
        self._advance()

    def _answer_left(self) -> None:
        """The first answer has been sent to its end."""
        self._out.popleft()
        self._in_flight -= 1
        self._is_alone = self._is_alone and self._in_flight > 0

    def _stalled(self) -> None:
        self._stall_timer = None
        if self._is_alone:
            self._abandon("a list is not fetched")

    def _abandon(self, reason: str) -> None:
        self._context.messages.info(f"{reason}: closing", client=self._peer)
        self._closing = True
        self._out.clear()
        self._transport.abort()

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # -- inside: the client --

    def _authenticate(self, secret: bytes) -> None:
        """Check a secret, which comes as the first command: nothing is in flight."""
        access = self._context.access
        if access.tokens is None:
            self._transport.write(self.welcome)
            return
        self._in_flight += 1  # keeps the connection until the answer has left
        self._is_alone = True  # later commands wait for it
        attempt = access.log_in(
            self._context.loop, self._peer, secret, self._secret_was_checked, to_write=True
        )
        if attempt.is_waiting:
            self._attempt = attempt
            self._stop_reading()
            if len(self._unparsed) > PARSE_BYTES:
                self._not_checked("too much was sent along with a secret that must wait")

    def _secret_was_checked(self, token: Token | None) -> None:
        if self._closing:
            return
        waited, self._attempt = self._attempt is not None, None
        self._cancel_timer()
        self._in_flight -= 1
        self._is_alone = False
        if token is None:
            self._context.messages.warn("authentication failed", client=self._peer)
            self._refuse(self.secret_is_wrong)
            return
        self.token = token
        self.prefix = "" if token.namespace == ALL_NAMESPACES else token.namespace
        self._transport.write(self.welcome)
        if waited:  # else the caller goes on by itself
            self._advance()

    def _not_checked(self, reason: str) -> None:
        self._give_up_attempt()
        self._context.messages.info(f"{reason}: closing", client=self._peer)
        if self.try_again:
            self._refuse(self.try_again)
        else:
            self._closing = True
            self._transport.abort()

    def _give_up_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.give_up()
            self._attempt = None

    def _refuse(self, refusal: bytes) -> None:
        if not self._closing:
            self._drop_input()
            self._transport.write(refusal)
            self._close()

    def _too_late(self) -> None:
        self._timer = None
        if self._attempt is not None:
            self._not_checked("a secret could not be checked in time")
            return
        self._context.messages.info(
            "client did not authenticate in time: closing", client=self._peer
        )
        self._closing = True
        self._transport.abort()
