"""Trouble for the active one of two servers on a PostgreSQL of their own, again and again.

    python -m tests.kills.takeovers --kill 50 --freeze 10 --cut 5 --stall 5 --restart 5 --stop 5

The loop of tests/integration/test_database_standby.py for as long as wanted. PostgreSQL syncs its
commits here. When something is lost, or read after the end of a lease, the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.task_peers import DurablePostgres

from tests.support.crash.takeover_cycles import KINDS, TakeoverCycles


def main() -> int:
    parser = argparse.ArgumentParser(description="Trouble the active server, check the other.")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=1, help="how often (1)")
    parser.add_argument("--seed", type=int, help="the same choices as an earlier run")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    kinds = [kind for kind in KINDS for _ in range(getattr(options, kind))]
    random.Random(seed).shuffle(kinds)
    begin, out = time.monotonic(), sys.stdout
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="takeovers-")))
        postgres = DurablePostgres(place / "postgres")
        postgres.start()
        stack.callback(postgres.stop)
        cycles = TakeoverCycles(place, postgres.port, "postgres", seed, postgres)
        stack.callback(cycles.close)
        cycles.begin()

        def report(kind: str) -> None:
            done, took_s = cycles.tally.kinds.total(), cycles.tally.answered_s[kind][-1]
            out.write(f"{done:>4}  {time.monotonic() - begin:6.0f} s  {kind}: {took_s:.2f} s\n")
            out.flush()

        try:
            cycles.run(kinds, report)
        except AssertionError as error:
            out.write(f"{error}\nseed {seed}\n")
            return 1
    out.write(f"{cycles.tally}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
