"""The load generator of the work queue: one process, raw sockets, one cycle after another.

    python -m bench.workqueue_load PROTOCOL PORT CONNECTIONS SECONDS FIRST

    journeyman   add, lease, complete         beanstalkd   put, reserve, delete

Each connection adds a job, takes a job (maybe another's), finishes it, and begins again; every
step waits for its answer. The figure is the cycles a second after a short warm-up; ``cpu`` is the
part of its core that the generator needed, so that one sees whether it or the server was the limit.

FIRST is the number of the first job: a job's id is made of its number, and each run has others.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from itertools import count

from bench.generator import Rate, drive, measured_apart

__all__ = ["PAYLOAD", "job_id", "measure"]

PAYLOAD = b"p" * 100
TTL_MS = 60_000


def job_id(number: int) -> bytes:
    """A UUID of version 4, as text."""
    return b"%08x-0000-4000-8000-%012x" % (number % 2**32, number)


class _Journeyman:
    """What to send, step by step; ``answer`` is that to the step before, complete or not."""

    def __init__(self, numbers: count[int]) -> None:
        self._numbers = numbers

    def add(self, _: bytes) -> bytes:
        return b"add %b bench 60000 %d %d\r\n%b\r\n" % (
            job_id(next(self._numbers)),
            TTL_MS,
            len(PAYLOAD),
            PAYLOAD,
        )

    def take(self, _: bytes) -> bytes:
        return b"lease bench 60000\r\n"

    def finish(self, answer: bytes) -> bytes:
        return b"complete %b 0\r\n\r\n" % answer[7:43]

    # How long an answer is at least, and how it begins.
    answers = ((5, b"+OK\r\n"), (7 + 36 + len(b" bench 60000 100\r\n") + 102, b"+OK 1\r\n"))
    finished = (5, b"+OK\r\n")


class _Beanstalkd:
    def __init__(self, numbers: count[int]) -> None:
        del numbers  # it numbers its jobs itself

    def add(self, _: bytes) -> bytes:
        return b"put 1024 0 60 %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)

    def take(self, _: bytes) -> bytes:
        return b"reserve\r\n"

    def finish(self, answer: bytes) -> bytes:
        return b"delete %b\r\n" % answer.split(b" ", 2)[1]

    answers = ((len(b"INSERTED 1\r\n"), b"INSERTED"), (len(b"RESERVED 1 100\r\n") + 102, b"RESERV"))
    finished = (len(b"DELETED\r\n"), b"DELETED")


PROTOCOLS: dict[str, Callable[[count[int]], _Journeyman | _Beanstalkd]] = {
    "journeyman": _Journeyman,
    "beanstalkd": _Beanstalkd,
}


def measure(protocol: str, port: int, *, connections: int, seconds: float, first: int = 0) -> Rate:
    """Run the generator in a process of its own."""
    numbers = (port, connections, seconds, first)
    return measured_apart("bench.workqueue_load", protocol, numbers)


class _Connection:
    def __init__(self, port: int, protocol: _Journeyman | _Beanstalkd) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._steps = (protocol.add, protocol.take, protocol.finish)
        self._expected = (*protocol.answers, protocol.finished)
        self._step = 0
        self._received = b""
        self.cycles = 0

    def begin(self) -> None:
        self.socket.sendall(self._steps[0](b""))

    def receive(self) -> None:
        answer = self._received + self.socket.recv(65536)
        length, beginning = self._expected[self._step]
        if len(answer) < length or not answer.endswith(b"\n"):
            if not answer or not (answer.startswith(beginning) or beginning.startswith(answer)):
                raise SystemExit(f"an answer that is none: {answer[:200]!r}")
            self._received = answer
            return
        if not answer.startswith(beginning):
            raise SystemExit(f"an answer that is none: {answer[:200]!r}")
        self._received = b""
        self._step += 1
        if self._step == len(self._steps):
            self._step = 0
            self.cycles += 1
        self.socket.sendall(self._steps[self._step](answer))


def run(protocol: str, port: int, connections: int, seconds: float, first: int) -> Rate:
    numbers = count(first)
    senders = [_Connection(port, PROTOCOLS[protocol](numbers)) for _ in range(connections)]
    return drive(senders, seconds)


if __name__ == "__main__":
    name, port, connections, seconds, first = sys.argv[1:]
    rate = run(name, int(port), int(connections), float(seconds), int(first))
    print(json.dumps({"per_second": rate.per_second, "cpu": rate.cpu}))
