"""Replay on a real cluster of this machine, with an executor killed -9 each time, and compare.

    python scripts/cluster.py
    python scripts/cluster.py --kills 10 --records 30000000

A Spark master and two workers are started on loopback, each in a process of its own. A generated
ztick log is replayed on ``local[*]`` first, then on the cluster as often as asked for; each time
one of the two executors is killed some moment after it has begun to read. The tables must be those
of the first replay, row for row, with no file beside them. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.spark.cluster import SETTINGS, standalone_cluster

EXECUTOR = "CoarseGrainedExecutorBackend"
PATIENCE_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill executors of a cluster during replays.")
    parser.add_argument("--kills", type=int, default=3, help="how many replays (3)")
    parser.add_argument("--records", type=int, default=10_000_000, help="of the log (10,000,000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-") as name, ExitStack() as stack:
        directory = Path(name)
        log = directory / "logfile"
        journeyman("generate", "ztick", str(log), "--records", str(options.records), "--quiet")
        journeyman("pipeline", "replay", str(log), "--output", str(directory / "expected"))
        master = stack.enter_context(standalone_cluster(directory))
        for number in range(options.kills):
            moment = random.uniform(0, 5)
            output = directory / f"found-{number}"
            replay_with_a_kill(master, log, output, moment)
            wrong = differences(directory / "expected", output)
            sys.stdout.write(f"killed after {moment:.1f} s of reading: {wrong or 'the same'}\n")
            if wrong:
                return 1
    return 0


def journeyman(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "journeyman", *words], check=True)


def replay_with_a_kill(master: str, log: Path, output: Path, moment: float) -> None:
    conf = [word for each in SETTINGS.items() for word in ("--conf", "=".join(each))]
    command = ["pipeline", "replay", str(log), "--master", master, *conf, "--output", str(output)]
    replay = subprocess.Popen(
        [sys.executable, "-m", "journeyman", *command], stderr=subprocess.DEVNULL
    )
    wait_until(lambda: len(processes(EXECUTOR)) >= 2 and bool(processes("pyspark.worker")))
    time.sleep(moment)
    executors = processes(EXECUTOR)
    if not executors:
        raise SystemExit("the replay ended before an executor could be killed: give more --records")
    os.kill(min(executors), signal.SIGKILL)
    if replay.wait(10 * PATIENCE_S) != 0:
        raise SystemExit(f"the replay ended with {replay.returncode}")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("no executor has begun to read")
        time.sleep(0.05)


def processes(word: str) -> list[int]:
    """The ids of the processes that were started with such a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if word.encode() in words:
                found.append(int(entry.name))
    return found


def differences(expected: Path, found: Path) -> str:
    """What is not the same, in words; nothing if all is."""
    for table in ("jobs", "rules"):
        if rows(expected / table) != rows(found / table):
            return f"{table} differ"
    strays = [each.name for each in found.iterdir() if each.name not in ("jobs", "rules")]
    return f"left behind: {strays}" if strays else ""


def rows(table: Path) -> pa.Table:
    return pq.read_table(table).sort_by([("_log", "ascending"), ("_position", "ascending")])


if __name__ == "__main__":
    sys.exit(main())
