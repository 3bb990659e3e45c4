"""What the clients of the queues have in common: a connection, and two ways to ask on it.

    once    for what must not be done twice: AnswerLost if the connection breaks behind it
    twice   for what may be: sent again, once, on a new connection

Every answer is waited for at most the usual time beyond what the server was asked to wait. With a
``token`` every new connection shows it first; AccessDenied if the server does not take it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, TypeVar

from journeyman.client import checks
from journeyman.client.connection import ClientConnection, Tls
from journeyman.client.errors import (
    AccessDenied,
    AnswerLost,
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
