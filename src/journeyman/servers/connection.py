"""One connection: bytes in, commands to the writer, answers out in order.

    data_received --> unparsed --parse--> backlog --at most WINDOW at a time--> writer
    transport  <--write-- out  <--------- answered(answers) ------- writer

Everything here is bounded, whatever the client does:

    sends faster than it is answered   reading stops while anything of it is not handed on
    does not fetch its answers         past ``unsent_bytes`` nothing more is taken on for it
    asks for a long list               the list leaves in slices, and nothing behind it starts
    stalls, goes away, half-closes     answers to what was received are sent, then it is closed
    speaks HTTP                        the connection is closed, nothing after that is executed

This is what the doors have in common. What the bytes mean, and who may say what when, is each
door's own: session.py (ztick), workq_session.py.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, cast

from journeyman.protocols.foreign import Foreign
from journeyman.servers.group_commit import Submitter
from journeyman.servers.server_log import ServerLog
from journeyman.servers.sockets import address_of, keep_alive

__all__ = ["LIST_STALL_S", "PARSE_BYTES", "WINDOW", "Answer", "Connection", "Neighbours"]

WINDOW = 1024  # commands of one connection that the writer holds at a time
PARSE_BYTES = 16 * 1024  # commands take more room than their bytes: so many bytes at a time
LIST_STALL_S = 60.0  # a list keeps what it shows in memory: it must be fetched
LAST_WORDS_S = 10.0  # for the answers still unsent when a connection is closed

Answer: TypeAlias = bytes | Iterator[bytes]


class TakesCommands(Protocol):
    """The writer, as a connection sees it."""

    @property
    def has_room(self) -> bool: ...

    def tell_when_room(self, client: Submitter) -> None: ...

    def submit(self, client: Any, requests: Sequence[Any]) -> None: ...


class Neighbours(Protocol):
    """What all connections of a door share."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def writer(self) -> TakesCommands: ...

    @property
    def messages(self) -> ServerLog: ...

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def max_connections(self) -> int: ...

    @property
    def sessions(self) -> set[Any]: ...


class Connection(asyncio.Protocol):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = (
        "_address",
        "_alone",
        "_backlog",
        "_closing",
        "_ending",
        "_in_flight",
        "_neighbours",
        "_out",
        "_peer",
        "_pumping",
        "_reading",
        "_sending_paused",
        "_stall_timer",
        "_timer",
        "_transport",
        "_unparsed",
    )

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self._unparsed = b""
        self._backlog: deque[Any] = deque()
        self._out: deque[Answer] = deque()
        self._in_flight = 0
        self._alone = False  # nothing more is handed on until all in flight is answered
        self._pumping = False
        self._reading = True
        self._sending_paused = False
        self._ending = False  # no more input is taken: close once all is answered
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._peer = ""  # its host
        self._address = ""  # with its port

    # -- what each door does in its own way --

    @abstractmethod
    def _parse(self, data: bytes) -> list[Any]:
        """The events of these bytes."""

    @abstractmethod
    def _is_for_the_door(self, event: Any) -> bool:
        """Whether the event is for ``_handle`` and not for the writer."""

    @abstractmethod
    def _handle(self, event: Any) -> None:
        """An event that is about the connection itself."""

    @abstractmethod
    def _stands_alone(self, event: Any) -> bool:
        """Whether nothing behind this command may start before it is answered."""

    def _connected(self) -> None:
        """The connection was let in."""

    def _may_read_on(self) -> bool:
        """Whether to go on reading though not all of it can be handed on."""
        return False

    # -- from the transport --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        around = self._neighbours
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another family
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        if len(around.sessions) >= around.max_connections:
            self._closing = True
            around.messages.warn("connection refused: too many are open", client=self._peer)
            self._transport.abort()
            return
        around.sessions.add(self)
        self._address = address_of(peer)
        around.messages.debug("client connected", client=self._address)
        self._transport.set_write_buffer_limits(high=around.unsent_bytes)
        keep_alive(transport.get_extra_info("socket"))
        self._connected()

    def data_received(self, data: bytes) -> None:
        if self._ending or self._closing:
            return
        if self._in_flight or self._unparsed or self._backlog or len(data) > PARSE_BYTES:
            self._unparsed = self._unparsed + data if self._unparsed else data
            self._advance()
            return
        # Most clients send one command, and the next when it is answered.
        events = self._parse(data)
        if len(events) == 1 and not self._sending_paused and not self._is_for_the_door(events[0]):
            writer = self._neighbours.writer
            if writer.has_room:
                self._in_flight = 1
                self._alone = self._stands_alone(events[0])
                writer.submit(self, events)
                return
        self._backlog.extend(events)
        self._advance()

    def eof_received(self) -> bool:
        self._ending = True
        self._close_if_done()
        return not self._closing

    def pause_writing(self) -> None:
        self._sending_paused = True
        self._stall_timer = self._neighbours.loop.call_later(LIST_STALL_S, self._stalled)

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
        if self in self._neighbours.sessions:
            self._neighbours.sessions.discard(self)
            self._neighbours.messages.debug("client disconnected", client=self._address)

    # -- from the writer --

    def answered(self, answers: list[Answer]) -> None:
        """Answers to the oldest commands in flight, in order."""
        if self._closing:
            return
        ready = [each for each in answers if type(each) is bytes]
        if not self._out and len(ready) == len(answers):
            self._in_flight -= len(ready)
            self._alone = self._alone and self._in_flight > 0
            self._transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
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
        writer = self._neighbours.writer
        batch: list[Any] = []
        while not (
            self._closing or self._sending_paused or self._alone or self._in_flight >= WINDOW
        ):
            if not self._backlog:
                if not self._unparsed:
                    break
                self._parse_some()
                continue
            if self._is_for_the_door(self._backlog[0]):
                self._handle(self._backlog.popleft())
                continue
            if not writer.has_room:
                writer.tell_when_room(self)
                break
            self._take_run(batch)
        if batch:
            writer.submit(self, batch)
        if self._closing:
            return
        held_up = self._backlog or self._unparsed or self._sending_paused
        if held_up and not self._may_read_on():
            self._stop_reading()
        elif not self._ending and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._close_if_done()

    def _take_run(self, batch: list[Any]) -> None:
        """From the backlog, whose first event is for the writer, take all that may go with it."""
        backlog = self._backlog
        while backlog and not self._alone and self._in_flight < WINDOW:
            if self._is_for_the_door(backlog[0]):
                return
            event = backlog.popleft()
            self._in_flight += 1
            self._alone = self._stands_alone(event)
            batch.append(event)

    def _parse_some(self) -> None:
        data = self._unparsed
        if len(data) <= PARSE_BYTES:
            self._unparsed = b""
        else:
            data, self._unparsed = data[:PARSE_BYTES], data[PARSE_BYTES:]
        self._backlog.extend(self._parse(data))

    def _turn_away(self, found: Foreign) -> None:
        """A web page may be behind it: what follows must not be executed."""
        where = self._transport.get_extra_info
        self._neighbours.messages.warn(
            f"a client speaks {found.protocol} to a port that does not: closed, nothing after it "
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
                self._neighbours.loop.call_soon(self._pump_on)
                return
            self._out.popleft()
            self._in_flight -= 1
            self._alone = self._alone and self._in_flight > 0

    def _pump_on(self) -> None:
        self._pumping = False
        self._pump()
        self._advance()

    def _close_if_done(self) -> None:
        if self._ending and not (
            self._closing or self._unparsed or self._backlog or self._in_flight
        ):
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._cancel_timer()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._timer = self._neighbours.loop.call_later(LAST_WORDS_S, self._transport.abort)

    def _stalled(self) -> None:
        self._stall_timer = None
        if self._alone:
            self._neighbours.messages.info("a list is not fetched: closing", client=self._peer)
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
