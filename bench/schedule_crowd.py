"""Ten thousand jobs due within one second: how long does a GET take meanwhile?

Each job is a program (``direct /bin/true``), and as many run at a time as is usual. One connection
asks again and again while they run.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from bench import peers

__all__ = ["Crowd", "measure_crowd"]

BEGIN_S = 3.0  # the first job is due so long after they are sent
PAUSE_S = 0.002  # between two questions
LIMIT_S = 120.0
SETTINGS = {"database.compression_interval": 0, "log.level": "warn"}


@dataclass(frozen=True, slots=True)
class Crowd:
    jobs: int
    done_s: float  # until all had ended
    get_p50_ms: float
    get_p99_ms: float
    get_worst_ms: float


def measure_crowd(directory: Path, *, jobs: int) -> Crowd:
    with (
        peers.journeyman(directory, SETTINGS) as server,
        socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as client,
    ):
        begin_ns = time.time_ns() + int(BEGIN_S * 1e9)
        client.sendall(
            b"r RULE SET crowd crowd. direct /bin/true\n"
            + b"".join(
                b"r SET crowd.%d %d\n" % (number, begin_ns + number * 10**9 // jobs)
                for number in range(jobs)
            )
        )
        missing = jobs + 1
        while missing:
            missing -= client.recv(65536).count(b"\n")
        time.sleep(max(0.0, (begin_ns - time.time_ns()) / 1e9))
        took_s: list[float] = []
        begin = time.perf_counter()
        while not _all_ended(client, jobs) and time.perf_counter() < begin + LIMIT_S:
            for number in range(100):
                asked = time.perf_counter()
                client.sendall(b"g GET crowd.%d\n" % number)
                client.recv(4096)
                took_s.append(time.perf_counter() - asked)
                time.sleep(PAUSE_S)
        done_s = time.perf_counter() - begin
    took_s.sort()

    def at(part: float) -> float:
        return round(took_s[min(int(part * len(took_s)), len(took_s) - 1)] * 1e3, 2)

    return Crowd(jobs, round(done_s, 1), at(0.5), at(0.99), at(1.0))


def _all_ended(client: socket.socket, jobs: int) -> bool:
    client.sendall(b"s STAT\n")
    answer = b""
    while not answer.endswith(b"s OK\n"):
        answer += client.recv(65536)
    return b"jobs_executed %d\n" % jobs in answer
