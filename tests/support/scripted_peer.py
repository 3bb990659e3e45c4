"""A peer that expects certain bytes and answers with certain bytes, as a recorded exchange says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

TIMEOUT_S = 60.0


class Cut:
    """In place of an answer: the connection is closed, and the next exchange is on another one."""


Exchange = tuple[bytes, bytes | type[Cut]]


class ScriptedPeer:
    """Plays one script; ``problem`` says what went otherwise. Bytes go out one at a time."""

    def __init__(self, script: Sequence[Exchange]) -> None:
        self._script = list(script)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(TIMEOUT_S)
        self.port: int = self._server.getsockname()[1]
        self.problem = ""
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self) -> None:
        connection: socket.socket | None = None
        try:
            for expected, answer in self._script:
                if connection is None:
                    connection, _ = self._server.accept()
                    connection.settimeout(TIMEOUT_S)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found = self._read(connection, len(expected))
                if found != expected:
                    self.problem = f"{found!r} instead of {expected!r}"
                    return
                if answer is Cut:
                    connection.close()
                    connection = None
                    continue
                assert isinstance(answer, bytes)
                for place in range(len(answer)):
                    connection.sendall(answer[place : place + 1])
        except OSError as error:
            self.problem = f"{error!r}"
        finally:
            if connection is not None:
                connection.close()

    def _read(self, connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count and (piece := connection.recv(count - len(data))):
            data += piece
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.join(TIMEOUT_S)
        self._server.close()
        if kind is None:
            assert self.problem == ""
            assert not self._thread.is_alive()
