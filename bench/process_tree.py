"""What a process and all below it use: memory and processor time, by kind of process.

A Spark application is a driver in Python, a JVM, and Python workers that come and go. ``Watch``
looks at all of them ten times a second and keeps the peaks. Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Self

__all__ = ["Watch", "below", "cpu_seconds"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.1


class Watch:
    """Peaks of resident memory in MB, while inside the ``with`` block.

    ``driver`` is this process, ``jvm`` all Java below it, ``workers`` all Python below the JVM
    together. Memory that workers share with the process they were forked from counts for each.
    """

    def __init__(self) -> None:
        self.peak_mb: dict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_how: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_EVERY_S):
            now: dict[str, float] = defaultdict(float)
            now["driver"] = _resident_mb(os.getpid())
            for process in below(os.getpid()):
                kind = "jvm" if _name(process) == "java" else "workers"
                now[kind] += _resident_mb(process)
            for kind, mb in now.items():
                self.peak_mb[kind] = max(self.peak_mb[kind], round(mb, 1))


def cpu_seconds() -> float:
    """Processor time of this process and all that live below it, with their ended children."""
    return sum(_cpu(process) for process in (os.getpid(), *below(os.getpid())))


def below(parent: int) -> Iterator[int]:
    """The ids of all processes that this one started, and that those started, while they live."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    waiting = [parent]
    while waiting:
        found = children.get(waiting.pop(), [])
        yield from found
        waiting += found


def _stat(process: int) -> list[str]:
    """The fields behind the name; none when the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def _resident_mb(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * _PAGE_BYTES / 1e6


def _cpu(process: int) -> float:
    fields = _stat(process)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0
