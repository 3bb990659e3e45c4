"""Producers and readers of fan-out queues who keep the book, until the server is killed under them.

producer   a burst of items, answers read later
reader     opens a few items, then: confirms them | gives some back | hangs up and comes back
"""

from __future__ import annotations

import random
import time
from collections import deque

from tests.support.crash.fanout_ledger import FanBook
from tests.support.crash.kill_loop import LoadThread
from tests.support.servers.fanout_process import FanOutClient

__all__ = ["MAX_OPEN", "FanProducer", "FanReaderThread", "FanWire"]

MAX_BURST = 60
MAX_UNANSWERED = 120
MAX_OPEN = 8  # items that a connection has open at most; the server is set so


class FanWire(FanOutClient):
    """A connection that may end at any moment: then EOFError is raised."""

    def _receive(self) -> bytes:
        data = super()._receive()
        if not data:
            raise EOFError
        return data


class _Loader(LoadThread):
    client: FanWire

    def __init__(self, port: int, number: int, queue: str, book: FanBook, life: int) -> None:
        super().__init__(f"{type(self).__name__} {number}")
        self.number = number
        self.random = random.Random(f"{life}.{self.name}")
        self.port = port
        self.queue = queue
        self.book = book
        self.life = life
        self.client = FanWire(port)


class FanProducer(_Loader):
    def __init__(self, port: int, number: int, queue: str, book: FanBook, life: int) -> None:
        super().__init__(port, number, queue, book, life)
        self._waiting: deque[str] = deque()
        self._put = 0

    def step(self) -> None:
        burst = b"".join(self._command() for _ in range(self.random.randint(1, MAX_BURST)))
        self.client.send(burst)
        self._read_answers(self.random.randint(0, MAX_UNANSWERED))
        time.sleep(self.random.uniform(0, 0.02))

    def finish(self) -> None:
        self._read_answers(0)

    def _command(self) -> bytes:
        self._put += 1
        item = f"{self.queue}.{self.life}.{self.number}.{self._put} " + "x" * (self._put % 90)
        self.book.put_sent(item)
        self._waiting.append(item)
        return f"set {self.queue} 0 0 {len(item)}\r\n{item}\r\n".encode()

    def _read_answers(self, leave: int) -> None:
        while len(self._waiting) > leave:
            answer = self.client.read_line()
            assert answer == "STORED", answer
            self.book.put_answered(self._waiting.popleft())


class FanReaderThread(_Loader):
    def __init__(
        self, port: int, number: int, queue: str, reader: str, book: FanBook, life: int
    ) -> None:
        super().__init__(port, number, queue, book, life)
        self.reader = reader
        self.key = f"{queue}+{reader}" if reader else queue
        self._open: list[str] = []

    def step(self) -> None:
        self._open_some(self.random.randint(1, MAX_OPEN - len(self._open)))
        choice = self.random.random()
        if not self._open:
            return
        if choice < 0.8:
            self._confirm(self.random.randint(1, len(self._open)))
        elif choice < 0.95:
            self._give_back_oldest()
        else:
            self._hang_up()
        if len(self._open) == MAX_OPEN:
            self._confirm(1)

    def finish(self) -> None:
        """Read until there is nothing more, and confirm all of it."""
        while self._open_some(MAX_OPEN - len(self._open)) or self._open:
            self._confirm(len(self._open))

    def _open_some(self, count: int) -> int:
        wait_ms = self.random.choice((0, 5, 30))
        self.client.send(f"get {self.key}/open/t={wait_ms}\r\n" * count)
        came = 0
        for _ in range(count):
            item = self.client.read_item()
            if item is not None:
                came += 1
                self._open.append(item.decode())
                self.book.delivered(self.reader, item.decode())
        return came

    def _confirm(self, count: int) -> None:
        items, self._open = self._open[:count], self._open[count:]
        self.book.confirm_sent(self.reader, items)
        answer = self.client.ask(f"confirm {self.key} {count}")
        assert answer == "END", answer
        self.book.confirm_answered(self.reader, items)

    def _give_back_oldest(self) -> None:
        self.book.given_back(self.reader, [self._open.pop(0)])
        assert self.client.get(f"{self.key}/abort") is None

    def _hang_up(self) -> None:
        self.book.given_back(self.reader, self._open)
        self._open = []
        self.client.close()
        self.client = FanWire(self.port)
