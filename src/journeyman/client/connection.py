"""A blocking connection: bytes out, lines and blocks in, every wait with an end.

    not connected --first use--> connected --close, any failure--> not connected

After a failure the connection is closed for good: what is still under way on it cannot be told
apart from the answers to come. Whoever uses it may begin anew on a fresh one; whether commands may
be sent again is theirs to know. Not thread-safe: one thread, one connection.

What the clients of the queues have in common: a connection, and two ways to ask on it.

    once    for what must not be done twice: AnswerLost if the connection breaks behind it
    twice   for what may be: sent again, once, on a new connection

Every answer is waited for at most the usual time beyond what the server was asked to wait. With a
``token`` every new connection shows it first; AccessDenied if the server does not take it.
"""

from __future__ import annotations

import socket
import ssl
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NoReturn, Self, TypeAlias, TypeVar

from journeyman.client import checks
from journeyman.client.errors import (
    AccessDenied,
    AnswerLost,
    BadAnswer,
    CannotConnect,
    ConnectionFailed,
    InvalidRequest,
    TimedOut,
)

T = TypeVar("T")


class Caller:
    """Connects at the first call. One thread, one object."""

    default_port: ClassVar[int]
    service: ClassVar[str]  # for messages: "the work queue"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        token: str | None = None,
        tls: Tls = False,
        timeout_s: float = 10.0,
    ) -> None:
        port = self.default_port if port is None else port
        self._secret = _secret(token)
        self._connection = ClientConnection(
            host,
            port,
            tls=tls,
            timeout_s=timeout_s,
            greet=self._greet if token is not None else None,
            client=type(self).__name__,
            service=self.service,
        )

    @abstractmethod
    def _authentication(self, secret: bytes) -> tuple[bytes, bytes]:
        """What to send, and the line that says that it was right."""

    def _greet(self, connection: ClientConnection) -> None:
        request, welcome = self._authentication(self._secret)
        connection.allow()
        connection.send(request)
        answer = connection.read_line(b"\r\n")
        if answer != welcome:
            raise AccessDenied("auth_failed", answer.decode("utf-8", "replace"))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _once(self, request: bytes, read: Callable[[ClientConnection], T], extra_ms: int = 0) -> T:
        """For what must not be done twice."""
        self._connection.open()
        self._connection.allow(extra_ms / 1000)
        try:
            self._connection.send(request)
            return read(self._connection)
        except CannotConnect:
            raise
        except ConnectionFailed as error:
            what = request.split(b"\r\n", 1)[0].decode()
            raise AnswerLost(f"{error}; {what[:120]} may have happened, or not") from error

    def _twice(self, request: bytes, read: Callable[[ClientConnection], T], extra_ms: int = 0) -> T:
        for is_last in (False, True):
            self._connection.open()
            self._connection.allow(extra_ms / 1000)
            try:
                self._connection.send(request)
                return read(self._connection)
            except (CannotConnect, TimedOut):
                raise
            except ConnectionFailed:
                if is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")


def _secret(token: str | None) -> bytes:
    if token is None:
        return b""
    secret = checks.secret(token).encode()
    if not secret or b"\n" in secret or b"\r" in secret:
        raise InvalidRequest("token must be a secret of one line, as in the server's auth file")
    return secret


Tls: TypeAlias = bool | ssl.SSLContext

_RECEIVE_BYTES = 256 * 1024
_MAX_LINE_BYTES = 2 * 1024 * 1024  # of an answer; both protocols stay far below
_SHOWN_CHARACTERS = 200  # of an answer that is not understood
_TLS_ALERT = b"\x15\x03"  # how a TLS server begins its answer to what is not TLS


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """True: a context that trusts what the system trusts, and checks the name of the server."""
    checks.one_of(tls, (bool, ssl.SSLContext), "tls", "True, False or an ssl.SSLContext")
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context() if tls else None


class ClientConnection:
    """Connects at its first use, and again at the next one behind a failure."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: Tls = False,
        timeout_s: float = 10.0,
        greet: Callable[[ClientConnection], None] | None = None,
        client: str = "ClientConnection",
        service: str = "the server",
    ) -> None:
        """``greet`` is called on every new connection before anything else is sent.

        ``client`` and ``service`` are for messages: who connects, and to what.
        """
        self._address = checks.address(client, host, port)
        self.where = f"{host}:{port}"
        self._service = service
        self._tls = tls_context(tls)
        self._timeout_s = checks.seconds(timeout_s, "timeout_s")
        self._greet = greet
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._at = 0  # what is before it in the buffer was read
        self._deadline = 0.0
        self._heard_anything = False

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def allow(self, extra_s: float = 0.0) -> None:
        """All that follows has the usual time from now on, and so much more."""
        self._deadline = time.monotonic() + self._timeout_s + extra_s

    def open(self) -> None:
        """Connect, unless that is done. Raises CannotConnect."""
        if self._socket is not None:
            return
        try:
            opened = socket.create_connection(self._address, self._timeout_s)
        except OSError as error:
            raise self._cannot_connect(error) from error
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                opened = self._tls.wrap_socket(opened, server_hostname=self._address[0])
        except OSError as error:
            opened.close()
            raise self._no_handshake(error) from error
        self._socket = opened
        self._buffer.clear()
        self._at = 0
        self._heard_anything = False
        if self._greet is not None:
            try:
                self._greet(self)
            except BaseException:
                self.close()
                raise

    def send(self, data: bytes) -> None:
        self.open()
        assert self._socket is not None
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except OSError as error:
            self._fail(f"cannot send to {self.where}: {error}", error)

    def read_line(self, ending: bytes = b"\n") -> bytes:
        """The next line without its ending."""
        searched = self._at
        while (end := self._buffer.find(ending, searched)) < 0:
            searched = max(len(self._buffer) - len(ending) + 1, self._at)
            if len(self._buffer) - self._at > _MAX_LINE_BYTES:
                self.close()
                raise BadAnswer(f"{self.where} sends a line without end")
            searched -= self._receive()
        line = bytes(self._buffer[self._at : end])
        self._at = end + len(ending)
        return line

    def read_exactly(self, count: int) -> bytes:
        while len(self._buffer) - self._at < count:
            self._receive()
        block = bytes(self._buffer[self._at : self._at + count])
        self._at += count
        return block

    def unexpected(self, answer: str) -> BadAnswer:
        """For an answer that this service never gives. Closes the connection."""
        self.close()
        said = answer[:_SHOWN_CHARACTERS]
        return BadAnswer(f"{self.where} answers {said!r}; is this the port of {self._service}?")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _receive(self) -> int:
        """Read some more; how far what is in the buffer moved forward."""
        assert self._socket is not None
        moved, self._at = self._at, 0
        del self._buffer[:moved]
        try:
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            self._fail(f"{self.where} does not answer: {error}{self._is_it_the_port()}", error)
        if not data:
            hint = self._is_it_the_port(or_tls=self._tls is None)
            self._fail(f"{self.where} closed the connection{hint}", None)
        if not self._heard_anything and self._tls is None and data.startswith(_TLS_ALERT):
            self.close()
            raise CannotConnect(f"{self.where} speaks TLS: connect with tls=True")
        self._heard_anything = True
        self._buffer += data
        return moved

    def _cannot_connect(self, error: OSError) -> CannotConnect:
        reason, hint = str(error), ""
        if isinstance(error, ConnectionRefusedError):
            hint = f"; is this the port of {self._service}, and is it running?"
        elif isinstance(error, socket.gaierror):
            reason = "the host is not known"
        return CannotConnect(f"cannot connect to {self.where}: {reason}{hint}")

    def _no_handshake(self, error: OSError) -> CannotConnect:
        reason, hint = str(error), "; does this port speak TLS? If not, leave tls out"
        if isinstance(error, ssl.SSLCertVerificationError):
            reason, hint = f"its certificate is not trusted: {error.verify_message}", ""
        elif isinstance(error, TimeoutError):
            reason = "the TLS handshake timed out"
        return CannotConnect(f"cannot connect to {self.where}: {reason}{hint}")

    def _is_it_the_port(self, *, or_tls: bool = False) -> str:
        """A question for those who may have the wrong port: nothing ever came from it."""
        if self._heard_anything:
            return ""
        tls = ", and does it want TLS (tls=True)" if or_tls else ""
        return f"; is this the port of {self._service}{tls}?"

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _fail(self, reason: str, cause: BaseException | None) -> NoReturn:
        self.close()
        kind = TimedOut if isinstance(cause, TimeoutError) else ConnectionFailed
        raise kind(reason) from cause
