"""The long form of the tests that the promise rests on: about an hour, one lane after another.

    make proof                                   all of it
    python scripts/proof.py --minutes 5          the same lanes, shorter
    python scripts/proof.py --only simulation

Each lane prints one line that says what it did; docs/proof.md keeps some of them. A lane that fails
prints what is wrong and how to run it again, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz import fuzz_server, runner
from tests.support.crash.syscall_faults import Fault, run
from tests.support.crash.whole_cycles import WholeCycles
from tests.support.exhaustion import LANES as EXHAUSTION

from journeyman.testing.simulation import SimulationPlan, simulate
from journeyman.testing.simulation.clients import ClientPace

ROOT = Path(__file__).resolve().parent.parent
BUSY, SLOW = (
    SimulationPlan(operations=20_000, lives=20),
    SimulationPlan(2_000, 12, ClientPace(5.0, 1800.0, 0.2)),
)
CYCLES_A_RUN = 50
INPUTS_A_RUN = 20_000
FAULTS = {
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "openat": ("EMFILE", "ENFILE"),
    "ftruncate": ("EIO",),
    "pwrite64": ("EIO", "ENOSPC", "EINTR"),
}
ENGINES = ("", "rocksdb", "sqlite")  # of the store; the first has none


def _simulation(plan: SimulationPlan, seconds: float, first: int) -> str:
    end_s, begun_s = time.monotonic() + seconds, time.process_time()
    seeds, operations, checked, simulated_s, ends = 0, 0, 0, 0.0, 0
    while time.monotonic() < end_s:
        report = simulate(first + seeds, plan)
        seeds += 1
        operations += report.operations
        checked += report.checked
        simulated_s += report.simulated_s
        ends += report.ends.total()
    cpu_s = time.process_time() - begun_s
    return (
        f"seeds {first} to {first + seeds - 1}: {operations} operations, {checked} checked for "
        f"linearizability, {ends} ends of a server, {simulated_s / 3600:.0f} simulated hours in "
        f"{cpu_s:.0f} s of CPU ({simulated_s / 60 / cpu_s:.0f} hours a minute)"
    )


def _kills(seconds: float, first: int) -> str:
    end_s, kills, operations, runs = time.monotonic() + seconds, 0, 0, 0
    while time.monotonic() < end_s:
        with tempfile.TemporaryDirectory() as directory:
            tally = WholeCycles(Path(directory), seed=first + runs).run(CYCLES_A_RUN)
        runs += 1
        kills += tally.kills.total()
        operations += tally.operations
    return f"{kills} kills of a server with all services, {operations} operations"


def _traces(_: float, __: int) -> str:
    environment = {**os.environ, "JOURNEYMAN_EVERY_STATE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "tests/crash/test_trace_power_loss.py",
    ]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (
        "power cut after every system call of real servers, with logs, RocksDB and SQLite, three "
        "rests of the disk each"
    )


def _system_calls(seconds: float, first: int) -> str:
    end_s, chance = time.monotonic() + seconds, random.Random(first)
    done, injected, ended, refused = 0, 0, 0, 0
    while time.monotonic() < end_s:
        engine = chance.choice(ENGINES)
        unused = {"": "pwrite64", "rocksdb": "pwrite64", "sqlite": "write"}[engine]
        call = chance.choice([each for each in FAULTS if each != unused])
        error = chance.choice(FAULTS[call])
        again = chance.choice(("", "+7") if error == "EINTR" else ("", "+", "+7"))
        fault = Fault(call, error, f"{chance.randrange(1, 60)}{again}")
        with tempfile.TemporaryDirectory() as directory:
            outcome = run(Path(directory), fault, engine)
        done += 1
        injected += outcome.injected
        ended += outcome.has_ended
        refused += outcome.was_refused
    return (
        f"{done} servers with {injected} failed system calls: {ended} ended themselves, "
        f"{refused} refused a command, all held what they had answered"
    )


def _exhaustion(_: float, __: int) -> str:
    said = []
    for name, lane in EXHAUSTION.items():
        with tempfile.TemporaryDirectory() as directory:
            try:
                said.append(lane(Path(directory)))
            except (OSError, subprocess.CalledProcessError) as error:
                said.append(f"{name}: not possible here ({error})")
    return "; ".join(said)


def _fuzz(seconds: float, first: int) -> str:
    end_s, inputs, corpus = time.monotonic() + seconds, 0, fuzz_server.corpus()
    while time.monotonic() < end_s:
        runner.fuzz(
            fuzz_server.check, corpus, inputs=INPUTS_A_RUN, seed=first, first=first + inputs
        )
        inputs += INPUTS_A_RUN
    return f"{inputs} inputs to whole servers, on every port"


# By name: part of the time, and what to do with it.
LANES: Mapping[str, tuple[float, Callable[[float, int], str]]] = {
    "simulation": (0.3, lambda seconds, first: _simulation(BUSY, seconds, first)),
    "simulation-slow": (0.15, lambda seconds, first: _simulation(SLOW, seconds, first)),
    "kills": (0.3, _kills),
    "traces": (0.0, _traces),
    "system-calls": (0.1, _system_calls),
    "exhaustion": (0.0, _exhaustion),
    "fuzz": (0.1, _fuzz),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the long tests, and say what they did.")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all lanes (60)")
    parser.add_argument("--only", choices=LANES, help="one lane, with all of the time")
    parser.add_argument("--first", type=int, help="the first seed; by chance unless given")
    options = parser.parse_args()
    first = random.randrange(1_000_000) if options.first is None else options.first
    chosen = [options.only] if options.only else list(LANES)
    failed = []
    for name in chosen:
        part, lane = LANES[name]
        seconds = options.minutes * 60 * (1.0 if options.only else part)
        began = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        try:
            said = lane(seconds, first)
        except (AssertionError, subprocess.CalledProcessError) as error:
            failed.append(name)
            said = f"FAILED: {error}\nagain: python scripts/proof.py --only {name} --first {first}"
        sys.stdout.write(f"{began}  {name}: {said}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
