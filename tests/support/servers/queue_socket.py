"""A blocking connection to a queue of a real server: bytes and lines, every wait with an end.

Not a test itself. What the test clients of the work queue and of the fan-out queues are made of.
"""

from __future__ import annotations

import socket
from typing import Self

from tests.support.servers.schedule_process import ANSWER_TIMEOUT_S


class QueueSocket:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self._buffer = b""

    def send(self, data: bytes | str) -> None:
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def read_exactly(self, count: int) -> bytes:
        """Fewer when the server closes."""
        while len(self._buffer) < count and (data := self._receive()):
            self._buffer += data
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def read_line(self) -> str:
        while b"\r\n" not in self._buffer:
            data = self._receive()
            assert data, f"closed in the middle of {self._buffer!r}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line.decode(errors="surrogateescape")

    def read_to_the_end(self) -> bytes:
        """Everything until the server closes."""
        parts = [self._buffer]
        while data := self._receive():
            parts.append(data)
        self._buffer = b""
        return b"".join(parts)

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
