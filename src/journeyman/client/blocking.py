"""Blocking clients: conversations held over sockets, any number of threads on one client.

    thread --borrow--> link of the pool --conversation--> give back
    no idle link, fewer than ``connections``: a new one; otherwise wait, at most ``timeout_s``

``blocking(call)`` makes a method of a call. An idle link that the server has closed meanwhile is
noticed before anything is sent on it. A forked child begins with connections of its own.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Self, TypeVar

from journeyman.client import conversation
from journeyman.client.errors import CannotConnect, ClientError, ConnectionFailed, Refused
from journeyman.client.service import Endpoint, ServiceClient, as_method, poll_of
from journeyman.local_access import socket_path

P = ParamSpec("P")
T = TypeVar("T")

_RECEIVE_BYTES = 64 * 1024  # more than 128 KiB is mapped, and unmapped, with every reply
_LATE_S = 0.05  # at most, of a timeout


class _Transport:
    """A link and its socket."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._link = endpoint.link()
        self._socket: socket.socket | None = None
        self._poll: select.poll | None = None  # watches the socket
        self._deadline = 0.0
        self._patience_ends = 0.0  # until when a login that the server could not check is repeated
        self._limit_s = 0.0  # the time limit that the socket has now

    def hold(self, call: conversation.Call[T]) -> T:
        """Perform the steps of a conversation, to its end."""
        self._check()
        steps: conversation.Conversation[T] = call(self._link)
        try:
            step = next(steps)
            while True:
                try:
                    self._perform(step)
                except ConnectionFailed as failure:
                    self.close()
                    step = steps.throw(failure)
                else:
                    step = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        except Refused:
            raise
        except BaseException:  # interrupted in the middle of a reply, perhaps
            self._link.drop()
            raise
        finally:
            if not self._link.is_open:
                self.close()

    def close(self) -> None:
        self._link.drop()
        if self._socket is not None:
            self._socket.close()
            self._socket = self._poll = None

    def _check(self) -> None:
        """Something to read before anything was asked: the end of the connection, or a fault."""
        if self._poll is not None and self._poll.poll(0):
            self.close()

    def _perform(self, step: conversation.Step | conversation.Send | conversation.Pause) -> None:
        if isinstance(step, conversation.Send):
            self._deadline = time.monotonic() + self._endpoint.timeout_s + step.extra_s
            try:
                self._ready().sendall(step.data)
            except OSError as error:
                raise self._link.cannot_send(error) from None
        elif step is conversation.CONNECT:
            self._connect()
        elif isinstance(step, conversation.Pause):
            now = time.monotonic()
            if step.number == 1:
                self._patience_ends = now + self._endpoint.timeout_s
            if now >= self._patience_ends:
                raise ConnectionFailed("no login in time")
            time.sleep(step.seconds)
        else:
            try:
                data = self._ready().recv(_RECEIVE_BYTES)
            except OSError as error:
                raise self._link.cannot_receive(error) from None
            self._link.received(data)

    def _connect(self) -> None:
        self.close()
        endpoint = self._endpoint
        opened = None
        try:
            if path := socket_path(endpoint.address[0]):
                opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                opened.settimeout(endpoint.timeout_s)
                opened.connect(path)
            else:
                opened = socket.create_connection(endpoint.address, endpoint.timeout_s)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is not None:
                name = "localhost" if path else endpoint.address[0]
                opened = endpoint.tls.wrap_socket(opened, server_hostname=name)
        except OSError as error:
            if opened is not None:
                opened.close()
            raise self._link.cannot_connect(error) from None
        self._socket = opened
        self._poll = poll_of(opened.fileno())
        self._limit_s = 0.0
        self._link.opened()

    def _ready(self) -> socket.socket:
        """The socket, with the time that is left."""
        left_s = self._deadline - time.monotonic()
        if self._socket is None or left_s <= 0:
            raise TimeoutError("timed out")
        if not left_s <= self._limit_s <= left_s + _LATE_S:  # a call of the system, saved
            self._limit_s = left_s + _LATE_S / 2
            self._socket.settimeout(self._limit_s)
        return self._socket


class _Pool:
    """A pool of at most ``size`` transports, the last used first."""

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self._endpoint = endpoint
        self._size = size
        self._start_over()

    def _start_over(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[_Transport] = []
        self._count = 0
        self._waiting = 0  # threads
        self._generation = 0  # a connection borrowed before a close is closed when it comes back

    def hold(self, call: conversation.Call[T]) -> T:
        """Hold a conversation on a transport that is free."""
        if self._process != os.getpid():
            self._start_over()
        transport, generation = self._take()
        try:
            return transport.hold(call)
        finally:
            self._give_back(transport, generation)

    def close(self) -> None:
        with self._changed:
            self._generation += 1
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._changed.notify_all()
        for transport in idle:
            transport.close()

    def _take(self) -> tuple[_Transport, int]:
        with self._changed:
            if not self._is_free() and not self._wait():
                raise CannotConnect(self._endpoint.all_in_use(self._size))
            if self._idle:
                return self._idle.pop(), self._generation
            self._count += 1
            return _Transport(self._endpoint), self._generation

    def _wait(self) -> bool:
        """Return whether one has become free."""
        self._waiting += 1
        try:
            return self._changed.wait_for(self._is_free, self._endpoint.timeout_s)
        finally:
            self._waiting -= 1

    def _is_free(self) -> bool:
        return bool(self._idle) or self._count < self._size

    def _give_back(self, transport: _Transport, generation: int) -> None:
        with self._changed:
            if is_current := generation == self._generation:
                self._idle.append(transport)
            else:
                self._count -= 1
            if self._waiting:
                self._changed.notify()
        if not is_current:
            transport.close()


class BlockingClient(ServiceClient):
    """Connects at the first call. For any number of threads."""

    def _start(self, endpoint: Endpoint, connections: int) -> None:
        kept_apart = self.service.has_open_reads and connections > 1
        self._pool = _Pool(endpoint, connections - kept_apart)
        self._kept = _Pool(endpoint, 1) if kept_apart else self._pool

    def hold(self, call: conversation.Call[T], *, kept: bool = False) -> T:
        """Hold a conversation; ``kept``: on the connection that is kept for open reads."""
        try:
            return (self._kept if kept else self._pool).hold(call)
        except ClientError as error:
            # Its message says it all: where in the client it was raised would only be read past.
            raise error.with_traceback(None) from None

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self._pool.close()
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def blocking(
    call: Callable[P, conversation.Call[T]], *, kept: bool = False
) -> Callable[Concatenate[BlockingClient, P], T]:
    """The call as a method that waits for its reply."""

    @functools.wraps(call)
    def method(self: BlockingClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.hold(call(*args, **kwargs), kept=kept)

    return as_method(method, call)
