"""Starting with a log that is full of jobs: the time to the first answer, and the memory of a job.

The log was written just before, so it comes out of the page cache: this is the time of the program,
not of the disk. Memory is what the server has resident one second later, beyond what an empty one
has; the libraries that read large logs are counted in.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import peers

__all__ = ["Loaded", "Restart", "ask_once", "quickest_start"]

SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the server starts with; ``empty_mb``: the memory of one that starts with nothing."""

    jobs: int
    log_bytes: int
    empty_mb: float


@dataclass(frozen=True, slots=True)
class Restart:
    jobs: int
    log_mb: float
    first_answer_s: float
    resident_mb: float
    peak_mb: float
    bytes_a_job: float | None  # None: there are no jobs


def quickest_start(
    server_of: Callable[[], peers.Peer],
    ask: Callable[[int], None],
    loaded: Loaded,
    rounds: int,
) -> Restart:
    """The quickest of some starts. ``ask`` is given the port, and returns when it is answered."""
    return min(
        (_start(server_of(), ask, loaded) for _ in range(rounds)),
        key=lambda start: start.first_answer_s,
    )


def _start(server: peers.Peer, ask: Callable[[int], None], loaded: Loaded) -> Restart:
    begin = time.perf_counter()
    try:
        server.start()
        ask(server.port)
        took_s = time.perf_counter() - begin
        time.sleep(SETTLE_S)
        now, peak = server.memory_bytes()
    finally:
        server.stop()
    grown = now - loaded.empty_mb * 1e6
    return Restart(
        loaded.jobs,
        round(loaded.log_bytes / 1e6, 1),
        round(took_s, 3),
        round(now / 1e6, 1),
        round(peak / 1e6, 1),
        round(grown / loaded.jobs) if loaded.jobs else None,
    )


def ask_once(port: int, question: bytes, expected: bytes) -> None:
    """Ask over a new connection; SystemExit if the answer begins in another way."""
    with socket.create_connection(("127.0.0.1", port), peers.START_LIMIT_S) as client:
        client.sendall(question)
        answer = client.recv(4096)
    if not answer.startswith(expected):
        raise SystemExit(f"the restarted server answers {answer!r}")
