"""The sending half of a connection: answers leave in order, and large ones when there is room.

    answers --> out --one part in a turn of the loop, while nothing holds it up--> transport

    held up by   the client     it has more than ``unsent_bytes`` to fetch
                 all clients    the budget is tight (unsent.py); then large answers wait

An answer is bytes, if it is small. Otherwise it is a call that makes the bytes, or an iterator of
parts, and each is made only when it can be sent. Of all connections together, one part is made in
a turn of the event loop (slices.py).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from journeyman.servers.core.group_commit import Submitter
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared

LIST_STALL_S = 60.0  # a list keeps what it shows in memory: it must be fetched

Answer: TypeAlias = bytes | Callable[[], bytes] | Iterator[bytes]


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
    def shared(self) -> Shared: ...

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def max_connections(self) -> int: ...

    @property
    def sessions(self) -> set[Any]: ...


class Sending(asyncio.Protocol):
    """What a connection does to send its answers. Commands in flight are counted here, too."""

    __slots__ = (
        "_alone",
        "_budget",
        "_closing",
        "_in_flight",
        "_neighbours",
        "_out",
        "_peer",
        "_pumping",
        "_sending_paused",
        "_stall_timer",
        "_transport",
        "_written",
    )

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self._budget = neighbours.shared.budget
        self._written = 0  # bytes, to the transport
        self._out: deque[Answer] = deque()
        self._in_flight = 0
        self._alone = False  # nothing more is handed on until all in flight is answered
        self._pumping = False
        self._sending_paused = False
        self._closing = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._peer = ""

    @abstractmethod
    def _advance(self) -> None:
        """Hand on as much of what was received as there is room for."""

    # -- from the transport --

    def pause_writing(self) -> None:
        self._sending_paused = True
        self._stall_timer = self._neighbours.loop.call_later(LIST_STALL_S, self._stalled)

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

    # -- inside --

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        self._budget.wrote(len(data))

    def _must_wait(self) -> bool:
        """Whether nothing more may be taken on now. Something calls ``_advance`` later."""
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
                self._neighbours.shared.slices.ask(self._send_part)

    def _send_part(self) -> None:
        """Make and send one part of the answer that is first."""
        self._pumping = False
        if self._out and not self._sending_paused and not self._closing:
            first = self._out[0]
            assert not isinstance(first, bytes)
            if self._budget.is_tight:
                self._budget.wait(self)
                return
            if callable(first):
                self._write(first())
                self._answer_left()
            elif (part := next(first, None)) is None:
                self._answer_left()
            elif part:
                self._write(part)
        self._pump()
        self._advance()

    def _answer_left(self) -> None:
        """The first answer has been sent to its end."""
        self._out.popleft()
        self._in_flight -= 1
        self._alone = self._alone and self._in_flight > 0

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
