"""Starting with many waiting jobs: how long until the first answer, and how much memory a job.

    exec ---- imports, log read, jobs queued ---- port open ---- inspect job answered
    |<--------------------------- first answer --------------------------->|

The log was written just before, so it comes out of the page cache: this is the time of the program,
not of the disk. Memory is what the server has resident one second later, beyond what an empty one
has; the payloads and the libraries that read large logs are counted in.
"""

from __future__ import annotations

import random
import shutil
import socket
import time
from pathlib import Path
from uuid import UUID

from bench import peers
from bench.schedule_restart import Restart
from bench.workqueue_load import job_id
from bench.workqueue_peers import journeyman
from journeyman.formats.workq import CODEC, HEADER, Instant, JobAdded

__all__ = ["measure_restart", "write_log"]

SETTLE_S = 1.0
SEGMENT_JOBS = 250_000
PAYLOAD_BYTES = 100
TTL_MS = 2_592_000_000
SEED = 11


def write_log(directory: Path, jobs: int) -> int:
    """Jobs that wait in one queue, each with its own payload; the size of the log in bytes."""
    directory.mkdir(parents=True)
    chance, now_ns, size = random.Random(SEED), time.time_ns(), 0
    for number, begin in enumerate(range(0, jobs, SEGMENT_JOBS), 1):
        with (directory / f"{number:09}.log").open("wb") as file:
            file.write(HEADER)
            for job in range(begin, min(begin + SEGMENT_JOBS, jobs)):
                moment = Instant(now_ns + job)
                size += file.write(CODEC.encode(_added(job, moment, chance)))
    return size


def _added(number: int, moment: Instant, chance: random.Random) -> JobAdded:
    raw_id = UUID(job_id(number).decode()).bytes
    payload = chance.randbytes(PAYLOAD_BYTES)
    return JobAdded(moment, raw_id, "bench", 60_000, TTL_MS, 0, 0, 0, payload, None, moment)


def measure_restart(directory: Path, jobs: int, rounds: int, empty_mb: float = 0.0) -> Restart:
    """The quickest of some starts; ``empty_mb`` is the memory of a server without jobs."""
    log_bytes = write_log(directory / "cmdlog", jobs)
    best: Restart | None = None
    for _ in range(rounds):
        server = journeyman(directory, "interval")
        begin = time.perf_counter()
        try:
            server.start()
            _inspect(server.port, max(jobs - 1, 0), expected=b"+OK 1" if jobs else b"-NOT-FOUND")
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


def _inspect(port: int, number: int, *, expected: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), peers.START_LIMIT_S) as client:
        client.sendall(b"inspect job %b\r\n" % job_id(number))
        answer = client.recv(4096)
    if not answer.startswith(expected):
        raise SystemExit(f"the restarted server answers {answer!r}")
