"""Kill workers and server while jobs run, as often as asked: python -m tests.kills.tasks 200

Prints what was killed and how many jobs were done; the exit code is 1 if a job was lost, or run
again after its completion was acknowledged (tests/support/crash/task_cycles.py).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.support.crash.task_cycles import TaskCycles


def main() -> int:
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        world = TaskCycles(Path(place), workers=2, seed=int(time.time()))
        try:
            world.run(cycles)
        except AssertionError as broken:
            sys.stderr.write(f"{broken}\n")
            return 1
    sys.stdout.write(f"{cycles} cycles, {world.kills}; {len(world.sent)} jobs, all done\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
