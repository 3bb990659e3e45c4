"""Kill a server under load, again and again, and compare what it holds with an outside ledger.

    python -m tests.kills.server --cycles 200
    python -m tests.kills.server --service all --cycles 1000
    python -m tests.kills.server --service workq --cycles 200
    python -m tests.kills.server --service workq --soak 600
    python -m tests.kills.server --service kestrel --cycles 200
    python -m tests.kills.server --service timetables --cycles 100

The loops of tests/crash/test_*_ledger.py for as long as wanted.
When the ledger does not agree the exit code is 1, and the directory is left for inspection.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.support.crash.fanout_ledger_cycles import FanCycles
from tests.support.crash.schedule_ledger_cycles import Cycles
from tests.support.crash.timetable_cycles import TimetableCycles
from tests.support.crash.whole_cycles import WholeCycles
from tests.support.crash.work_ledger_cycles import WorkCycles


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a server under load and check its memory.")
    parser.add_argument(
        "--service",
        choices=("ztick", "workq", "kestrel", "timetables", "all"),
        default="ztick",
        help="which service is killed",
    )
    parser.add_argument("--cycles", type=int, default=200, help="how many kills (200)")
    parser.add_argument("--soak", type=float, help="workq: no kills, but load for so many seconds")
    parser.add_argument("--jobs", type=int, default=0, help="ztick: begin with a log of so many")
    parser.add_argument("--seed", type=int, help="the same choices as an earlier run")
    parser.add_argument("--directory", help="where to make the working directory")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="ledger-", dir=options.directory))
    out = sys.stdout
    out.write(f"seed {seed}, {options.cycles} cycles in {directory}\n")
    begin = time.monotonic()
    cycles: Cycles | WorkCycles | FanCycles | TimetableCycles | WholeCycles
    if options.service == "workq":
        cycles = WorkCycles(directory, seed=seed)
    elif options.service == "kestrel":
        cycles = FanCycles(directory, seed=seed)
    elif options.service == "all":
        cycles = WholeCycles(directory, seed=seed)
    elif options.service == "timetables":
        cycles = TimetableCycles(directory, seed=seed)
    else:
        cycles = Cycles(directory, seed=seed, jobs=options.jobs)
    done = 0

    def tell(kind: str) -> None:
        nonlocal done
        done += 1
        if done % 10 == 0:
            out.write(f"{done:>5}  {time.monotonic() - begin:6.0f} s  last kill: {kind}\n")
            out.flush()

    try:
        if options.soak and isinstance(cycles, WorkCycles):
            tally: object = cycles.soak(options.soak, workers=100, adds=0)
        else:
            tally = cycles.run(options.cycles, tell)
    except AssertionError as error:
        out.write(
            f"{error}\nafter {done} cycles, seed {seed}: {cycles.tally}\n{directory} is kept\n"
        )
        return 1
    shutil.rmtree(directory)
    out.write(f"{tally}\nnothing lost, nothing invented, nothing run after its end\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
