"""Connections that show wrong secrets, or none, and come back when they are closed. Not a test."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

CONNECTIONS = 160


class LoginFlood:
    """``with LoginFlood([(port, b"AUTH wrong\\n"), ...]) as flood: ...`` from one address."""

    def __init__(
        self, doors: Sequence[tuple[int, bytes]], *, connections: int = CONNECTIONS
    ) -> None:
        self._doors = doors
        self._connections = connections
        self._stopping = threading.Event()
        self.ready = threading.Event()  # all are connected, and have said what they say
        self.answers: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.ready.wait(60)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for place in range(self._connections):
                self._connect(selector, place)
            self.ready.set()
            while not self._stopping.is_set():
                for key, _ in selector.select(0.05):
                    assert isinstance(key.fileobj, socket.socket)
                    answer = b""
                    with suppress(OSError):
                        answer = key.fileobj.recv(4096)
                    self.answers.append(answer)
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self._connect(selector, key.data)
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()

    def _connect(self, selector: selectors.BaseSelector, place: int) -> None:
        port, words = self._doors[place % len(self._doors)]
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        with suppress(OSError):
            connection.sendall(words)
        selector.register(connection, selectors.EVENT_READ, place)
