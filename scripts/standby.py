"""Kill or freeze the active one of two servers on a PostgreSQL of their own, again and again.

    python scripts/standby.py --cycles 50

The loop of tests/integration/test_standby.py for as long as wanted; one in five is a freeze. The
database syncs its commits. When something is lost the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.task_peers import durable_postgres
from tests.support.crash.standby_cycles import StandbyCycles


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the active server, and check the other.")
    parser.add_argument("--cycles", type=int, default=50, help="how many takeovers (50)")
    parser.add_argument("--seed", type=int, help="the same choices as an earlier run")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    begin, out = time.monotonic(), sys.stdout
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standby-")))
        address = durable_postgres(place / "postgres", stack)
        cycles = StandbyCycles(place, address, seed=seed)
        stack.callback(cycles.close)
        cycles.begin()

        def tell(kind: str) -> None:
            done, took_s = cycles.tally.kinds.total(), cycles.tally.answered_s[-1]
            out.write(f"{done:>4}  {time.monotonic() - begin:6.0f} s  {kind}: {took_s:.2f} s\n")
            out.flush()

        kinds = ["freeze" if n % 5 == 4 else "kill" for n in range(options.cycles)]
        try:
            cycles.run(kinds, tell)
        except AssertionError as error:
            out.write(f"{error}\nseed {seed}\n")
            return 1
    out.write(f"{cycles.tally}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
