"""Starting with many waiting jobs: how long until the first answer, and how much memory a job.

    exec ---- imports, log read, jobs queued ---- port open ---- inspect job answered
    |<--------------------------- first answer --------------------------->|

How it is measured is in starts.py. Payloads count as memory of their jobs.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

from bench.starts import Loaded, Restart, ask_once, quickest_start
from bench.workqueue_load import job_id
from bench.workqueue_peers import journeyman
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, JobAdded

__all__ = [
    "measure_finished_restart",
    "measure_restart",
    "write_log",
]

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
    expected = b"+OK 1" if jobs else b"-NOT-FOUND"
    best = quickest_start(
        lambda: journeyman(directory, "interval"),
        lambda port: _inspect(port, max(jobs - 1, 0), expected=expected),
        Loaded(jobs, log_bytes, empty_mb),
        rounds,
    )
    shutil.rmtree(directory)
    return best


def measure_finished_restart(
    directory: Path, jobs: int, records: int, rounds: int, empty_mb: float
) -> Restart:
    """The same with a log of the shape of a busy server: most jobs were leased, and have ended."""
    directory.mkdir(parents=True)
    numbers = ("--records", str(records), "--ids", str(jobs), "--start", "now")
    command = (sys.executable, "-m", "journeyman", "generate", "workq", "cmdlog", *numbers, "-q")
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    log_bytes = sum(file.stat().st_size for file in (directory / "cmdlog").iterdir())
    best = quickest_start(
        lambda: journeyman(directory, "interval"),
        lambda port: ask_once(port, b"inspect queues 0 1\r\n", b"+OK 1"),
        Loaded(jobs, log_bytes, empty_mb),
        rounds,
    )
    shutil.rmtree(directory)
    return best


def _inspect(port: int, number: int, *, expected: bytes) -> None:
    ask_once(port, b"inspect job %b\r\n" % job_id(number), expected)
