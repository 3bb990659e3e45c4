"""The long form of the tests that the promise rests on: about an hour, one lane after another.

    make proof                                   all of it
    python scripts/proof.py --minutes 5          the same lanes, shorter
    python scripts/proof.py --only simulation

Each lane says how far it is, every minute, and in the end what it did; docs/proof.md keeps some of
these lines. A lane that fails prints what is wrong and how to run it again, the others go on, and
the exit code is 1. What this machine does not allow (strace, mount) is named in the last line.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz import fuzz_server, runner
from tests.mutations.lane import plant_and_test, read_bugs
from tests.simulation import SimulationFailed, SimulationPlan, SimulationReport, simulate
from tests.simulation.clients import ClientPace
from tests.simulation.pair import plan_of_pair, simulate_pair
from tests.support import workflow_examples
from tests.support.crash.syscall_faults import Fault, run
from tests.support.crash.traces import StraceRefused
from tests.support.crash.whole_cycles import WholeCycles
from tests.support.exhaustion import LANES as EXHAUSTION
from tests.support.exhaustion import NotPossible

ROOT = Path(__file__).resolve().parent.parent
BUSY, SLOW = (
    SimulationPlan(operations=20_000, lives=20),
    SimulationPlan(2_000, 12, ClientPace(5.0, 1800.0, 0.2)),
)
PAIR = plan_of_pair(5_000, 40)
BURSTS = SimulationPlan(80_000, 8, ClientPace(burst=500))
OPERATIONS = 10_000_000  # in bursts
CYCLES_A_RUN = 50
INPUTS_A_RUN = 20_000
FAULTS = {
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "openat": ("EMFILE", "ENFILE"),
    "ftruncate": ("EIO",),
}
EVERY_S = 60.0  # between two lines of a lane about how far it is


class Lane:
    """The time of a lane, and what it says. ``first``: its first seed."""

    def __init__(self, name: str, seconds: float, first: int) -> None:
        self.name = name
        self.first = first
        self.not_possible: list[str] = []
        self._end_s = time.monotonic() + seconds
        self._is_begun = False
        self._next_s = time.monotonic() + EVERY_S

    def goes_on(self, so_far: str) -> bool:
        """Whether there is time left, at first in any case; now and then it says how far it is."""
        now_s, is_first, self._is_begun = time.monotonic(), not self._is_begun, True
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self.say(f"... {so_far}")
        return is_first or now_s < self._end_s

    def say(self, text: str) -> None:
        sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M}  {self.name}: {text}\n")
        sys.stdout.flush()


def _simulation(
    lane: Lane,
    plan: SimulationPlan,
    options: str,
    run_seed: Callable[[int, SimulationPlan], SimulationReport] = simulate,
    least: int = 0,
) -> str:
    """``least``: operations that are simulated, also beyond the time of the lane."""
    begun_s = time.process_time()
    seeds, operations, checked, simulated_s, ends, times_stuck = 0, 0, 0, 0.0, 0, 0
    while lane.goes_on(f"{seeds} seeds, {operations} operations") or operations < least:
        try:
            report = run_seed(lane.first + seeds, plan)
        except SimulationFailed as error:
            error.add_note(
                f"again: python -m tests.simulation --seed {lane.first + seeds} "
                f"--operations {plan.operations} --lives {plan.lives}{options}"
            )
            raise
        seeds += 1
        operations += report.operations
        checked += report.checked
        simulated_s += report.simulated_s
        ends += report.ends.total() + report.takeovers
        times_stuck += report.times_stuck
    cpu_s = time.process_time() - begun_s
    return (
        f"seeds {lane.first} to {lane.first + seeds - 1}: {operations} operations, {checked} "
        f"checked for linearizability, {ends} ends and takeovers of a server, {times_stuck} "
        f"probes of a stuck one, {simulated_s / 3600:.0f} simulated hours in {cpu_s:.0f} s of CPU "
        f"({simulated_s / 60 / cpu_s:.0f} hours a minute)"
    )


def _kills(lane: Lane) -> str:
    kills, operations, runs = 0, 0, 0
    while lane.goes_on(f"{kills} kills, {operations} operations"):
        with tempfile.TemporaryDirectory() as directory:
            tally = WholeCycles(Path(directory), seed=lane.first + runs).run(CYCLES_A_RUN)
        runs += 1
        kills += tally.kills.total()
        operations += tally.operations
    return f"{kills} kills of a server with all services, {operations} operations"


def _traces(_: Lane) -> str:
    environment = {**os.environ, "JOURNEYMAN_EVERY_STATE": "1"}
    tests = "tests/crash/test_trace_power_loss.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-8_000:]}{done.stderr[-2_000:]}")
    return (
        "power cut after every system call of a real server, three rests of the disk each: "
        f"{done.stdout.strip().splitlines()[-1]}"
    )


def _system_calls(lane: Lane) -> str:
    chance = random.Random(lane.first)
    done, injected, ended, refused = 0, 0, 0, 0
    while lane.goes_on(f"{done} servers, {injected} failed system calls"):
        call = chance.choice(list(FAULTS))
        error = chance.choice(FAULTS[call])
        again = chance.choice(("", "+7") if error == "EINTR" else ("", "+", "+7"))
        fault = Fault(call, error, f"{chance.randrange(1, 60)}{again}")
        with tempfile.TemporaryDirectory() as directory:
            try:
                outcome = run(Path(directory), fault)
            except Exception as failure:
                failure.add_note(f"server {done}: {fault}")
                raise
        done += 1
        injected += outcome.injected
        ended += outcome.has_ended
        refused += outcome.was_refused
    return (
        f"{done} servers with {injected} failed system calls: {ended} ended themselves, "
        f"{refused} refused a command, all held what they had answered"
    )


def _exhaustion(lane: Lane) -> str:
    said = []
    for name, use_up in EXHAUSTION.items():
        with tempfile.TemporaryDirectory() as directory:
            try:
                said.append(use_up(Path(directory)))
            except NotPossible as error:
                lane.not_possible.append(f"{name} ({error})")
            except Exception as failure:
                failure.add_note(f"what was used up: {name}")
                raise
        lane.goes_on("; ".join(said))
    return "; ".join(said)


def _fuzz(lane: Lane) -> str:
    inputs, corpus, first = 0, fuzz_server.corpus(), lane.first
    while lane.goes_on(f"{inputs} inputs"):
        runner.fuzz(
            fuzz_server.check, corpus, inputs=INPUTS_A_RUN, seed=first, first=first + inputs
        )
        inputs += INPUTS_A_RUN
    return f"{inputs} inputs to whole servers, on every port"


def _mutations(lane: Lane) -> str:
    bugs = read_bugs()
    survivors: list[str] = []
    for number, bug in enumerate(bugs):
        lane.goes_on(f"{number} of {len(bugs)} bugs")
        if not plant_and_test(bug).noticed:
            survivors.append(bug.name)
    if survivors:
        raise AssertionError(f"planted bugs that no test noticed: {', '.join(survivors)}")
    return f"{len(bugs)} planted bugs, all noticed by the tests"


def _pipeline(lane: Lane) -> str:
    """Every command on S3 and on a cluster; a packed environment; streams and ingests killed again
    and again; ingests that end after each commit; skew, tiny and large logs, killed executors;
    killed ingests into a lake on S3."""
    spark = (
        "object_store",
        "lake_uri",
        "lake_snapshots",
        "lake_killed",
        "streams_killed",
        "submit",
    )
    tests = [*(f"tests/spark/test_{name}.py" for name in spark), "tests/unit/test_lake_storage.py"]
    matrix = [sys.executable, "-m", "pytest", "-q", "-n", "0", *tests]
    cases = [sys.executable, "-m", "tests.kills.cluster"]
    kills = [sys.executable, "-m", "tests.kills.lake", "--s3"]
    said = []
    for command in (matrix, cases, kills):
        lane.goes_on(" ".join(command[1:]))
        environment = {**os.environ, "JOURNEYMAN_WHOLE_MATRIX": "1", "HYPOTHESIS_PROFILE": "deep"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
        said += done.stdout.splitlines()[-4:]
    return "; ".join(said)


def _workflows(lane: Lane) -> str:
    said = []
    for name in workflow_examples.REQUIREMENTS:
        lane.goes_on(name)
        with tempfile.TemporaryDirectory() as directory:
            said.append(workflow_examples.run_example(name, Path(directory)))
    return "; ".join(said)


# By name: part of the time, and what to do with it. Those without a part come first and take what
# they take, some minutes each; the others share what is left.
LANES: Mapping[str, tuple[float, Callable[[Lane], str]]] = {
    "mutations": (0.0, _mutations),
    "traces": (0.0, _traces),
    "exhaustion": (0.0, _exhaustion),
    "simulation-bursts": (
        0.0,
        lambda lane: _simulation(lane, BURSTS, " --burst 500", least=OPERATIONS),
    ),
    "pipeline": (0.0, _pipeline),
    "workflows": (0.0, _workflows),
    "system-calls": (0.1, _system_calls),
    "fuzz": (0.1, _fuzz),
    "simulation": (0.3, lambda lane: _simulation(lane, BUSY, "")),
    "simulation-slow": (0.15, lambda lane: _simulation(lane, SLOW, " --slow")),
    "simulation-pair": (0.15, lambda lane: _simulation(lane, PAIR, " --pair", simulate_pair)),
    "kills": (0.2, _kills),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the long tests, and say what they did.")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of it (60)")
    parser.add_argument("--only", choices=LANES, help="one lane, with all of the time")
    parser.add_argument("--first", type=int, help="the first seed; by chance unless given")
    options = parser.parse_args()
    first = random.randrange(1_000_000) if options.first is None else options.first
    chosen = [options.only] if options.only else list(LANES)
    failed, not_possible, begun_s = [], list[str](), time.monotonic()
    for name in chosen:
        part, run_lane = LANES[name]
        shares = sum(LANES[each][0] for each in chosen[chosen.index(name) :])
        left_s = begun_s + options.minutes * 60 - time.monotonic()
        lane = Lane(name, left_s * part / (shares or 1.0), first)
        lane.say("begins")
        try:
            lane.say(run_lane(lane))
        except StraceRefused as error:
            not_possible.append(f"{name} ({error})")
        except Exception:  # noqa: BLE001 - whatever it is, the other lanes run
            failed.append(name)
            again = f"python scripts/proof.py --only {name} --first {first}"
            lane.say(f"FAILED\n{traceback.format_exc()}all of it again: {again}")
        not_possible += lane.not_possible
    said = [f"{len(chosen)} lanes in {(time.monotonic() - begun_s) / 60:.0f} minutes"]
    said += [f"not possible here: {', '.join(not_possible)}"] if not_possible else []
    said += [f"FAILED: {', '.join(failed)}" if failed else "nothing failed"]
    sys.stdout.write(f"{'; '.join(said)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
