r"""The load generator of queues with several readers: one process, raw sockets, bursts of 100.

    python -m bench.fanout_load PROTOCOL PORT CONNECTIONS SECONDS READERS

    journeyman   set                        redis   XADD
                 get QUEUE+READER/open              XREADGROUP ... COUNT 1
                 confirm QUEUE+READER 1             XACK

Each connection puts 100 items in one write and waits until all are answered, then takes 100 (maybe
others'), then confirms each of them, and begins again. The figure is items a second that have come
all the way, after a short warm-up; ``cpu`` is the part of its core that the generator needed.

With READERS above 0 items are only put, into a queue that so many readers have registered for.

Every answer is a number of whole lines, and items hold no line break: so answers are counted as
line breaks, and looked at more closely only where something in them is needed.
"""

from __future__ import annotations

import json
import socket
import sys

from bench.generator import Rate, drive, measured_apart

__all__ = ["DEPTH", "ITEM", "measure"]

DEPTH = 100
ITEM = b"p" * 100


class _Journeyman:
    """The bursts of one connection, and how many lines answer each."""

    lines = (DEPTH, 3 * DEPTH, DEPTH)
    put_all = b"set bench 0 0 %d\r\n%b\r\n" % (len(ITEM), ITEM) * DEPTH
    get_all = b"get bench+r0/open\r\n" * DEPTH
    confirm_all = b"confirm bench+r0 1\r\n" * DEPTH

    @staticmethod
    def prepare(client: socket.socket, readers: int) -> None:
        for number in range(readers):
            client.sendall(b"get bench+r%d/peek\r\n" % number)
            if not (answer := client.recv(1000)).endswith(b"END\r\n"):
                raise SystemExit(f"a new reader was answered {answer[:200]!r}")

    def step(self, number: int, answer: bytes) -> bytes:
        if number == 0:
            return self.put_all
        if number == 1:
            _check(answer, b"STORED\r\n" * DEPTH)
            return self.get_all
        if answer.count(b"VALUE bench+r0 ") != DEPTH:
            raise SystemExit(f"not every get brought an item: {answer[:200]!r}")
        return self.confirm_all

    @staticmethod
    def check_end(answer: bytes) -> None:
        _check(answer, b"END\r\n" * DEPTH)


def _words(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class _Redis:
    read_lines = 13  # of the answer to one XREADGROUP
    id_line = 7
    lines = (2 * DEPTH, read_lines * DEPTH, DEPTH)
    put_all = _words(b"XADD", b"bench", b"*", b"d", ITEM) * DEPTH
    get_all = (
        _words(b"XREADGROUP", b"GROUP", b"r0", b"c", b"COUNT", b"1", b"STREAMS", b"bench", b">")
        * DEPTH
    )

    @staticmethod
    def prepare(client: socket.socket, readers: int) -> None:
        for number in range(readers):
            client.sendall(
                _words(b"XGROUP", b"CREATE", b"bench", b"r%d" % number, b"$", b"MKSTREAM")
            )
            if (answer := client.recv(1000)) != b"+OK\r\n" and b"BUSYGROUP" not in answer:
                raise SystemExit(f"a new group was answered {answer[:200]!r}")

    def step(self, number: int, answer: bytes) -> bytes:
        if number == 0:
            return self.put_all
        if number == 1:
            if answer.count(b"$") != DEPTH:
                raise SystemExit(f"not every item was put: {answer[:200]!r}")
            return self.get_all
        ids = answer.split(b"\r\n")[self.id_line :: self.read_lines]
        return b"".join([_words(b"XACK", b"bench", b"r0", item_id) for item_id in ids])

    @staticmethod
    def check_end(answer: bytes) -> None:
        _check(answer, b":1\r\n" * DEPTH)


PROTOCOLS: dict[str, type[_Journeyman | _Redis]] = {"journeyman": _Journeyman, "redis": _Redis}


def _check(answer: bytes, expected: bytes) -> None:
    if answer != expected:
        raise SystemExit(f"an answer that is none: {answer[:200]!r}")


def measure(
    protocol: str, port: int, *, connections: int, seconds: float, readers: int = 0
) -> Rate:
    """Run the generator in a process of its own."""
    return measured_apart("bench.fanout_load", protocol, (port, connections, seconds, readers))


class _Connection:
    """One connection; ``steps`` is 3 for whole cycles, 1 for puts only."""

    def __init__(self, port: int, protocol: _Journeyman | _Redis, steps: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = protocol
        self._steps = steps
        self._step = 0
        self._received: list[bytes] = []
        self._lines_left = protocol.lines[0]
        self.cycles = 0

    def begin(self) -> None:
        self.socket.sendall(self._protocol.step(0, b""))

    def receive(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit("the server has closed the connection")
        self._received.append(data)
        self._lines_left -= data.count(b"\n")
        if self._lines_left > 0:
            return
        answer = b"".join(self._received)
        self._received.clear()
        self._step += 1
        if self._step == self._steps:
            if self._steps == len(self._protocol.lines):
                self._protocol.check_end(answer)
            self._step = 0
            self.cycles += 1
        self.socket.sendall(self._protocol.step(self._step, answer))
        self._lines_left = self._protocol.lines[self._step]


def run(name: str, port: int, connections: int, seconds: float, readers: int) -> Rate:
    protocol = PROTOCOLS[name]()
    with socket.create_connection(("127.0.0.1", port)) as client:
        protocol.prepare(client, max(readers, 1))
    senders = [_Connection(port, protocol, 1 if readers else 3) for _ in range(connections)]
    rate = drive(senders, seconds)
    return Rate(rate.per_second * DEPTH, rate.cpu)


if __name__ == "__main__":
    name, port, connections, seconds, readers = sys.argv[1:]
    rate = run(name, int(port), int(connections), float(seconds), int(readers))
    print(json.dumps({"per_second": rate.per_second, "cpu": rate.cpu}))
