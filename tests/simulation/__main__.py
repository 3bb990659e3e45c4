"""Run seeds of the simulation: one, or one after another.

    python -m tests.simulation --seed 7
    python -m tests.simulation --seed 1 --seeds 1000 --operations 20000
    python -m tests.simulation --seed 1 --seeds 20 --slow      hours, not operations
    python -m tests.simulation --seed 1 --seeds 20 --pair      two servers on one PostgreSQL
    python -m tests.simulation --seed 1 --operations 80000 --burst 500    commands by the hundred

A seed that fails is printed with the command that runs it again, and the exit code is 1. The same
seed and options give the same story in every process: names are hashed in the same way in each.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace

from tests.simulation import SimulationFailed, SimulationPlan, simulate
from tests.simulation.clients import ClientPace
from tests.simulation.pair import plan_of_pair, simulate_pair

_HASHES = "PYTHONHASHSEED"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Simulate a whole server."
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (1)")
    parser.add_argument("--operations", type=int, default=5_000, help="of each seed (5000)")
    parser.add_argument("--lives", type=int, default=8, help="of the server, at most (8)")
    parser.add_argument("--slow", action="store_true", help="much time between operations")
    parser.add_argument("--burst", type=int, help="commands that a client sends at once (6)")
    parser.add_argument("--pair", action="store_true", help="two servers on one PostgreSQL")
    options = parser.parse_args()
    pace = ClientPace(short_s=5.0, long_s=1800.0, long=0.2) if options.slow else ClientPace()
    pace = pace if options.burst is None else replace(pace, burst=options.burst)
    plan = SimulationPlan(options.operations, options.lives, pace)
    pair_plan = plan_of_pair(options.operations, options.lives)
    out, begun_s = sys.stdout, time.process_time()
    operations, simulated_s = 0, 0.0
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            report = simulate_pair(seed, pair_plan) if options.pair else simulate(seed, plan)
        except SimulationFailed as error:
            slow = " --slow" if options.slow else ""
            slow += " --pair" if options.pair else ""
            slow += "" if options.burst is None else f" --burst {options.burst}"
            out.write(
                f"{error}\nagain: python -m tests.simulation --seed {seed} "
                f"--operations {options.operations} --lives {options.lives}{slow}\n"
            )
            return 1
        operations += report.operations
        simulated_s += report.simulated_s
        out.write(f"{report}\n")
        out.flush()
    cpu_s = time.process_time() - begun_s
    out.write(
        f"{options.seeds} seeds: {operations} operations, {simulated_s / 3600:.1f} simulated hours "
        f"in {cpu_s:.0f} s of CPU: {operations / cpu_s:.0f} operations a second, "
        f"{simulated_s / 60 / cpu_s:.0f} hours a minute\n"
    )
    return 0


if __name__ == "__main__":
    if os.environ.get(_HASHES) != "0":
        os.environ[_HASHES] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
