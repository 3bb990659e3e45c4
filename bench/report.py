"""What every result must say about itself: the machine, the versions, the commit.

A figure without them cannot be compared with another one. Results go to bench/results/<name>.json.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["pin_to_one_core", "write_result"]

ROOT = Path(__file__).parent.parent
LIBRARIES = ("numpy", "pyarrow", "numba", "google-crc32c")


def pin_to_one_core() -> None:
    """Stay on one core, so that no library helps itself with threads."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def write_result(name: str, figures: Any) -> Path:
    path = ROOT / "bench" / "results" / f"{name}.json"
    result = {"commit": _commit(), "machine": _machine(), "figures": figures}
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {library: version(library) for library in LIBRARIES},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    """The commit, marked when the tree differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
