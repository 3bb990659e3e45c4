"""Starting with many planned jobs: how long until the first answer, and how much memory a job.

    exec ---- imports, log read, jobs queued ---- port open ---- GET answered
    |<------------------------- first answer --------------------------->|

The log was written just before, so it comes out of the page cache: this is the time of the program,
not of the disk. Memory is what the server has resident one second later, beyond what an empty one
has, the libraries that read large logs counted in.
"""

from __future__ import annotations

import random
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import peers
from bench.schedule_load import FAR_AWAY_NS, YEAR_NS, identifier

__all__ = ["Restart", "measure_restart", "write_log"]

LOG = "logfile"
SETTLE_S = 1.0
CHUNK = 100_000
SEED = 11


@dataclass(frozen=True, slots=True)
class Restart:
    jobs: int
    log_mb: float
    first_answer_s: float
    resident_mb: float
    peak_mb: float
    bytes_a_job: float | None  # None: there are no jobs


def write_log(path: Path, jobs: int) -> None:
    """A log of planned jobs with times in no order."""
    with path.open("wb") as file:
        for begin in range(0, jobs, CHUNK):
            file.write(b"".join(_entries(begin, min(begin + CHUNK, jobs))))


def _entries(begin: int, end: int) -> Iterator[bytes]:
    times = random.Random(SEED + begin)
    size = len(identifier(begin))
    layout = struct.Struct(f">IBH{size}sqB")
    for number in range(begin, end):
        execution_ns = FAR_AWAY_NS + times.randrange(YEAR_NS)
        yield layout.pack(layout.size - 4, 0, size, identifier(number), execution_ns, 0)


def measure_restart(directory: Path, jobs: int, rounds: int, empty_mb: float = 0.0) -> Restart:
    """The quickest of some starts; ``empty_mb`` is the memory of a server without jobs."""
    directory.mkdir(parents=True)
    write_log(directory / LOG, jobs)
    log_bytes = (directory / LOG).stat().st_size
    best: Restart | None = None
    for _ in range(rounds):
        server = peers.journeyman(directory, {"database.compression_interval": 0})
        begin = time.perf_counter()
        try:
            server.start()
            _get(server.port, max(jobs - 1, 0), expected=b"r OK planned " if jobs else b"r ERROR")
            took_s = time.perf_counter() - begin
            time.sleep(SETTLE_S)
            now, peak = server.memory_bytes()
        finally:
            server.stop()
        if best is None or took_s < best.first_answer_s:
            growth = now / 1e6 - empty_mb
            best = Restart(
                jobs,
                round(log_bytes / 1e6, 1),
                round(took_s, 3),
                round(now / 1e6, 1),
                round(peak / 1e6, 1),
                round(growth * 1e6 / jobs) if jobs else None,
            )
    shutil.rmtree(directory)
    assert best is not None
    return best


def _get(port: int, number: int, *, expected: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), peers.START_LIMIT_S) as client:
        client.sendall(b"r GET %s\n" % identifier(number))
        answer = client.recv(4096)
    if not answer.startswith(expected):
        raise SystemExit(f"the restarted server answers {answer!r}")
