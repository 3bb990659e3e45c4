"""The load generator: one process, raw sockets, requests that were built before the clock started.

    python -m bench.schedule_load PROTOCOL PORT CONNECTIONS DEPTH SECONDS FIRST IDS

Each connection sends DEPTH requests in one write, waits until all are answered, sends the next.
Every answer of the three protocols is one line, so answers are counted as line breaks. A figure is
the answers a second after a short warm-up; ``cpu`` is the part of its core that the generator
needed, so that one sees whether it or the server was the limit.

    FIRST   number of the first job; each run has others
    IDS     0: every request makes a new job. n: the jobs 0 to n-1 are set again, in random order

The times of the jobs are random, within one year that has not come.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle

from bench.generator import Rate, cpu_seconds, measured_apart

__all__ = ["FAR_AWAY_NS", "PROTOCOLS", "YEAR_NS", "Rate", "identifier", "measure"]

WARM_UP_S = 0.3
POOL = 300_000  # requests that are built; if they run out they begin again
FAR_AWAY_NS = 4_000_000_000_000_000_000
YEAR_NS = 365 * 24 * 3600 * 10**9
DELAY_S = 365 * 24 * 3600
SEED = 7


def identifier(number: int) -> bytes:
    return b"app.task.%09d" % number


def _journeyman(number: int, execution_ns: int) -> bytes:
    return b"r SET %s %d\n" % (identifier(number), execution_ns)


def _beanstalkd(number: int, execution_ns: int) -> bytes:
    """Its times are seconds from now; they are all the same, which is no more work for it."""
    del execution_ns
    body = identifier(number)
    return b"put 1024 %d 60 %d\r\n%s\r\n" % (DELAY_S, len(body), body)


def _redis(number: int, execution_ns: int) -> bytes:
    """A schedule in Redis is a sorted set: times and jobs."""
    words = (b"ZADD", b"schedule", b"%d" % execution_ns, identifier(number))
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


# Requests, and a byte that is once in every good answer and in no other: "OK", "INSERTED", ":1".
PROTOCOLS: dict[str, tuple[Callable[[int, int], bytes], bytes]] = {
    "journeyman": (_journeyman, b"K"),
    "beanstalkd": (_beanstalkd, b"S"),
    "redis": (_redis, b":"),
}


def measure(
    protocol: str,
    port: int,
    *,
    connections: int,
    depth: int,
    seconds: float,
    first: int = 0,
    ids: int = 0,
) -> Rate:
    """Run the generator in a process of its own."""
    numbers = (port, connections, depth, seconds, first, ids)
    return measured_apart("bench.schedule_load", protocol, numbers)


class _Connection:
    """Bursts out, answers counted."""

    def __init__(self, port: int, depth: int, bursts: Iterator[bytes], mark: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._depth = depth
        self._bursts = bursts
        self._mark = mark
        self._good = 0
        self._missing = 0
        self.answered = 0

    def send(self) -> None:
        self._missing = self._depth
        self.socket.sendall(next(self._bursts))

    def receive(self) -> None:
        data = self.socket.recv(65536)
        count = data.count(b"\n")
        self._good += data.count(self._mark)
        self.answered += count
        # An answer may be cut in two, with its mark in the first part.
        if not data or not 0 <= self._good - self.answered <= 1:
            raise SystemExit(f"an answer that is none: {data[:200]!r}")
        self._missing -= count
        if self._missing == 0:
            self.send()


def run(
    protocol: str, port: int, connections: int, depth: int, seconds: float, first: int, ids: int
) -> Rate:
    build, mark = PROTOCOLS[protocol]
    chosen = random.Random(SEED + first)
    requests = [
        build(chosen.randrange(ids) if ids else first + n, FAR_AWAY_NS + chosen.randrange(YEAR_NS))
        for n in range(POOL)
    ]
    bursts = cycle([b"".join(requests[i : i + depth]) for i in range(0, POOL, depth)])
    selector = selectors.EpollSelector()
    all_of_them = [_Connection(port, depth, bursts, mark) for _ in range(connections)]
    for each in all_of_them:
        selector.register(each.socket, selectors.EVENT_READ, each.receive)
        each.send()
    _turn_until(selector, time.perf_counter() + WARM_UP_S)
    answered = sum(each.answered for each in all_of_them)
    begin, cpu = time.perf_counter(), cpu_seconds()
    end = _turn_until(selector, begin + seconds)
    answered = sum(each.answered for each in all_of_them) - answered
    cpu = cpu_seconds() - cpu
    return Rate(answered / (end - begin), cpu / (end - begin))


def _turn_until(selector: selectors.BaseSelector, deadline: float) -> float:
    while (now := time.perf_counter()) < deadline:
        for key, _ in selector.select(deadline - now):
            key.data()
    return now


def main() -> None:
    protocol, port, connections, depth, seconds, first, ids = sys.argv[1:]
    rate = run(
        protocol, int(port), int(connections), int(depth), float(seconds), int(first), int(ids)
    )
    print(json.dumps({"per_second": rate.per_second, "cpu": rate.cpu}))


if __name__ == "__main__":
    main()
