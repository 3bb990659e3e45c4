"""What the clients of the queues have in common: a connection, and two ways to ask on it.

    once    for what must not be done twice: AnswerLost if the connection breaks behind it
    twice   for what may be: sent again, once, on a new connection

Every answer is waited for at most the usual time beyond what the server was asked to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self, TypeVar

from journeyman.client.connection import Connection, Tls
from journeyman.client.errors import AnswerLost, CannotConnect, ConnectionFailed, TimedOut

__all__ = ["Caller"]

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
        tls: Tls = False,
        timeout_s: float = 10.0,
    ) -> None:
        port = self.default_port if port is None else port
        self._connection = Connection(
            host,
            port,
            tls=tls,
            timeout_s=timeout_s,
            client=type(self).__name__,
            service=self.service,
        )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _once(self, request: bytes, read: Callable[[Connection], T], extra_ms: int = 0) -> T:
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

    def _twice(self, request: bytes, read: Callable[[Connection], T], extra_ms: int = 0) -> T:
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
