"""One connection: bytes in, commands to the writer, answers out in order.

    data_received --> unparsed --parse--> backlog --at most WINDOW at a time--> writer
    transport  <--write-- out  <--------- answered(answers) ------- writer

Everything here is bounded, whatever the client does:

    sends faster than it is answered   reading stops while anything of it is not handed on
    does not fetch its answers         past ``unsent_bytes`` nothing more is taken on for it
    many that do not                   share one budget, and those that do not read are closed
    asks for a long list               the list leaves in slices, and nothing behind it starts
    asks for something large           it is made when there is room to send it, not before
    stalls, goes away, half-closes     answers to what was received are sent, then it is closed
    speaks HTTP                        the connection is closed, nothing after that is executed
    says nothing                       it is closed after the idle timeout of its port, if set

How answers leave is in sending.py. This is what the ports have in common. What the bytes mean, and
who may say what when, is each port's own: session.py (ztick), workq/session.py.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections import deque
from typing import Any, cast

from journeyman.protocols.foreign import Foreign
from journeyman.servers.core.sending import Answer, Neighbours, Sending

# ----------------------------------------
# What a connected socket needs, and how its other end is called in messages.

_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))  # seconds, probes


def address_of(peer: Any) -> str:
    """What ``getpeername`` gave, as people write it."""
    if not isinstance(peer, tuple):
        return str(peer)
    host, port = peer[0], peer[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def keep_alive(sock: Any) -> None:
    """Find out about clients that vanished without a word; and answer at once."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


WINDOW = 1024  # commands of one connection that the writer holds at a time
TIGHT_WINDOW = 16  # the same while the clients together have too much unsent
WINDOW_BYTES = 256 * 1024  # of input that these commands were read from: answers may repeat it
PARSE_BYTES = 16 * 1024  # commands take more room than their bytes: so many bytes at a time
LAST_WORDS_S = 10.0  # for the answers still unsent when a connection is closed


class Connection(Sending):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = (
        "_address",
        "_backlog",
        "_ending",
        "_quiet_looks",
        "_reading",
        "_timer",
        "_unparsed",
        "_window_bytes",
    )

    window_bytes = WINDOW_BYTES

    def __init__(self, neighbours: Neighbours) -> None:
        super().__init__(neighbours)
        self._window_bytes = 0  # of input whose commands are in flight
        self._quiet_looks = 0  # for idle connections, since something was received
        self._unparsed = b""
        self._backlog: deque[Any] = deque()
        self._reading = True
        self._ending = False  # no more input is taken: close once all is answered
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""  # host and port

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
            self._refuse_connection("too many are open")
            return
        if around.shared.is_short_of_files(transport.get_extra_info("socket")):
            self._refuse_connection("the file descriptors that are left are for the logs")
            return
        around.sessions.add(self)
        self._budget.add(self)
        self._address = address_of(peer)
        around.messages.debug("client connected", client=self._address)
        self._transport.set_write_buffer_limits(high=around.unsent_bytes)
        keep_alive(transport.get_extra_info("socket"))
        self._connected()

    def _refuse_connection(self, reason: str) -> None:
        self._closing = True
        self._neighbours.messages.warn(f"connection refused: {reason}", client=self._peer)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._ending or self._closing:
            return
        self._quiet_looks = 0
        if self._in_flight or self._unparsed or self._backlog or len(data) > PARSE_BYTES:
            self._unparsed = self._unparsed + data if self._unparsed else data
            self._advance()
            return
        # Most clients send one command, and the next when it is answered.
        events = self._parse(data)
        if len(events) == 1 and not self._must_wait() and not self._is_for_the_door(events[0]):
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

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio asks so
        self._closing = True
        self._drop_input()
        self._out.clear()
        self._cancel_timer()
        self._cancel_stall_timer()
        self._budget.remove(self)
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
            self._write(ready[0] if len(ready) == 1 else b"".join(ready))
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

    # -- from the clock --

    def close_if_idle(self, looks: int) -> bool:
        """Close it if it was idle in so many looks in a row, this one counted; whether it was."""
        if self._closing or self._in_flight or self._backlog or self._out or self.unsent():
            self._quiet_looks = 0
            return False
        self._quiet_looks += 1
        if self._quiet_looks < looks:
            return False
        self._neighbours.messages.info("client is idle: closing", client=self._peer)
        self.finish()
        if not self._closing:  # half a command is left, which will never be whole
            self._close()
        return True

    # -- inside --

    def _window(self) -> int:
        return TIGHT_WINDOW if self._budget.is_tight else WINDOW

    def _advance(self) -> None:
        """Hand on as much of what was received as there is room for."""
        writer = self._neighbours.writer
        batch: list[Any] = []
        window = self._window()
        while not (self._closing or self._alone or self._in_flight >= window or self._must_wait()):
            if not self._backlog:
                if not self._unparsed or (
                    self._in_flight and self._window_bytes >= self.window_bytes
                ):
                    break
                self._parse_some()
                continue
            if self._is_for_the_door(self._backlog[0]):
                self._handle(self._backlog.popleft())
                continue
            if not writer.has_room:
                writer.tell_when_room(self)
                break
            self._take_run(batch, window)
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

    def _take_run(self, batch: list[Any], window: int) -> None:
        """From the backlog, whose first event is for the writer, take all that may go with it."""
        backlog = self._backlog
        while backlog and not self._alone and self._in_flight < window:
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
        self._window_bytes = len(data) + (self._window_bytes if self._in_flight else 0)
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

    def _close_if_done(self) -> None:
        if self._ending and not (
            self._closing or self._unparsed or self._backlog or self._in_flight or self._out
        ):
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._cancel_timer()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._timer = self._neighbours.loop.call_later(LAST_WORDS_S, self._transport.abort)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
