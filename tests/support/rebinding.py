"""A host that a page was loaded from and that then answers as another port. Not a test itself.

    with Rebinding(target_port) as host:
        browser.open(f"http://evil.example:{host.port}/page")     # an empty page
        ... and every other request to that origin goes to the target, byte by byte

That is what a page sees after DNS rebinding: its own origin is now a server of this machine, so
the browser lets it send any method, header and body, and read the answers.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

PAGE = b"<!doctype html><title>page</title>"
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(PAGE), PAGE)
)


class Rebinding:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for each in self._open:
            each.close()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            data = client.recv(65536)
            if data.startswith((b"GET /page ", b"GET /favicon.ico ")):
                client.sendall(_ANSWER)
                client.shutdown(socket.SHUT_WR)
                return
            if not data:
                return
            target = socket.create_connection(("127.0.0.1", self._target_port))
            self._open.append(target)
            self._start(_pump, target, client)
            target.sendall(data)
            _pump(client, target)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
