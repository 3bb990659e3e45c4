"""Load generators run in a process of their own: starting one, and what it needed.

measured_apart("bench.workqueue_load", words)   python -m ..., its last line is a Rate as JSON
cpu_seconds()                                   of this process, so far
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Rate", "cpu_seconds", "measured_apart"]


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    cpu: float  # part of a core that the generator needed


def measured_apart(module: str, subject: str, words: Iterable[object]) -> Rate:
    command = [sys.executable, "-m", module, subject, *map(str, words)]
    root = Path(__file__).parent.parent
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"the load on {subject} broke off: {found.stderr[-1000:]}")
    return Rate(**json.loads(found.stdout))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
