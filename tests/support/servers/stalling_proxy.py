"""A TCP proxy that treats bytes badly: splits, stalls and cuts. Not a test itself."""

from __future__ import annotations

import random
import socket
import threading
import time
from types import TracebackType
from typing import Self


class StallingProxy:
    """Passes bytes on in pieces of 1 to ``largest`` bytes, with pauses; may cut after so many.

    ``cut_after`` counts the bytes of both directions of a connection; then both are reset.
    """

    def __init__(
        self, port: int, *, largest: int = 7, pause_s: float = 0.0, cut_after: int | None = None
    ) -> None:
        self._target = port
        self._largest = largest
        self._pause_s = pause_s
        self._cut_after = cut_after
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            passed = [0]
            threads = [
                threading.Thread(target=self._pass_on, args=(source, sink, passed), daemon=True)
                for source, sink in ((client, server), (server, client))
            ]
            closing = threading.Thread(
                target=self._close_behind, args=(threads, client, server), daemon=True
            )
            for thread in (*threads, closing):
                thread.start()
            self._threads += [*threads, closing]

    def _close_behind(self, threads: list[threading.Thread], *ends: socket.socket) -> None:
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket, passed: list[int]) -> None:
        dice = random.Random(self._largest)
        try:
            while data := source.recv(4096):
                at = 0
                while at < len(data):
                    piece = data[at : at + dice.randint(1, self._largest)]
                    at += len(piece)
                    passed[0] += len(piece)
                    if self._cut_after is not None and passed[0] > self._cut_after:
                        raise OSError("cut")
                    sink.sendall(piece)
                    if self._pause_s:
                        time.sleep(self._pause_s)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for each in (source, sink):
                each.close()

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
