"""A TCP link to a server that can be stalled and cut. Not a test itself."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Link:
    """Passes bytes on, until ``stall``: then the connections stay open and nothing arrives.

    ``resume`` passes on what came meanwhile. ``cut`` resets all connections, and refuses new ones
    until ``mend``.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._flows = threading.Event()
        self._flows.set()
        self._is_cut = False
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        self._is_cut = True
        self._reset_all()

    def mend(self) -> None:
        self._is_cut = False

    def _reset_all(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            _reset(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self._is_cut:
                _reset(client)
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            _reset(client)
            return
        with self._lock:
            self._ends |= {client, server}
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        self._flows.wait()  # a stalled link does not say that its other end has gone
        with self._lock:
            self._ends -= {source, sink}
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._server.close()
        self._flows.set()
        self._reset_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
    end.close()
