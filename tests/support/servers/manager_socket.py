"""The socket of a service manager, such as systemd, and what a server says to it."""

from __future__ import annotations

import socket
import threading
from queue import Queue

PATIENCE_S = 60.0


class Manager:
    """The socket of a service manager. What comes is taken at once: the system keeps ten messages,
    and drops others."""

    def __init__(self, address: str | bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._address = address
        self._heard: Queue[str] = Queue()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        while message := self._socket.recv(4096).decode():
            self._heard.put(message)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._address)
        self._listener.join()
        self._socket.close()

    def hear(self) -> str:
        return self._heard.get(timeout=PATIENCE_S)

    def wait_for(self, message: str) -> None:
        """Signs of life may come before it, and nothing else."""
        while (heard := self.hear()) != message:
            assert heard == "WATCHDOG=1"
