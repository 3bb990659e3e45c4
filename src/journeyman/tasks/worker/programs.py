"""The programs that a thread has started: they end with a job that is cancelled or takes too long.

A thread that waits for a program runs no Python code, so it cannot be interrupted; it comes back
when the program ends. Linux lists the children of each thread, elsewhere nothing is found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_START_FIELD = 19  # the time of the start in /proc/PID/stat, counted after the name
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    return time.clock_gettime(_CLOCK)


def signal_programs(thread: int, begun_s: float, number: int) -> None:
    """Send the signal to what this thread has started since then, and to what that has started: a
    shell would leave its command running."""
    pending = [
        pid for pid in _children(_PROC / "self/task" / str(thread)) if _started_s(pid) >= begun_s
    ]
    while pending:
        pid = pending.pop()
        with suppress(OSError):
            for task in (_PROC / str(pid) / "task").iterdir():
                pending += _children(task)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _children(task: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from map(int, (task / "children").read_text().split())


def _started_s(pid: int) -> float:
    """When it was started, in seconds since the boot, as a moment that is not too early."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[_START_FIELD]) + 1) / ticks
