"""Starting with many planned jobs: how long until the first answer, and how much memory a job.

    exec ---- imports, log read, jobs queued ---- port open ---- GET answered
    |<------------------------- first answer --------------------------->|

How it is measured is in starts.py.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from bench import peers
from bench.schedule_load import FAR_AWAY_NS, YEAR_NS, identifier
from bench.starts import Loaded, Restart, ask_once, quickest_start

__all__ = ["measure_restart", "write_log"]

LOG = "logfile"
CHUNK = 100_000
SEED = 11


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
    expected = b"r OK planned " if jobs else b"r ERROR"
    best = quickest_start(
        lambda: peers.journeyman(directory, {"database.compression_interval": 0}),
        lambda port: _get(port, max(jobs - 1, 0), expected=expected),
        Loaded(jobs, (directory / LOG).stat().st_size, empty_mb),
        rounds,
    )
    shutil.rmtree(directory)
    return best


def _get(port: int, number: int, *, expected: bytes) -> None:
    ask_once(port, b"r GET %s\n" % identifier(number), expected)
