"""The pipeline on a real cluster of this machine, on logs and in moments that are hard.

    python -m tests.kills.cluster                      all cases
    python -m tests.kills.cluster --only kills --kills 10 --records 30000000

A Spark master and two workers are started on loopback, each in a process of its own. Cases:

    kills     a ztick log is replayed, and an executor killed -9 meanwhile, again and again
    skew      one key has half of all records, of a ztick and of a workq log
    tiny      20,000 logs of three records
    large     one ztick file of 2 GB

Tables must be those of a replay on ``local[*]``, or those that the case knows, row for row, with no
file beside them. Exit code 1 if not. (tests/spark/test_object_store.py has every command once on
S3 and a cluster.)
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
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from bench.process_tree import below

from tests.support.spark.cluster import SETTINGS, standalone_cluster
from tests.support.spark.hard_logs import skewed_workq, skewed_ztick, tiny_logs

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
PATIENCE_S: Final = 120
SKEWED_RECORDS, TINY_LOGS, LARGE_RECORDS = 2_000_000, 20_000, 70_000_000


class Wrong(Exception):
    """A replay has come to other rows than it should."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Hard cases on a cluster of this machine.")
    parser.add_argument("--only", choices=CASES, help="one case")
    parser.add_argument("--kills", type=int, default=3, help="how many replays with a kill (3)")
    parser.add_argument("--records", type=int, default=10_000_000, help="of their log (10,000,000)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes of the other cases")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-") as name:
        directory = Path(name)
        with standalone_cluster(directory) as master:
            for case in [options.only] if options.only else list(CASES):
                begun_s = time.monotonic()
                try:
                    said = CASES[case](directory, master, options)
                except Wrong as error:
                    sys.stdout.write(f"{case}: {error}\n")
                    return 1
                sys.stdout.write(f"{case}: {said}, {time.monotonic() - begun_s:.0f} s\n")
                sys.stdout.flush()
    return 0


def kills(directory: Path, master: str, options: argparse.Namespace) -> str:
    log, expected = directory / "logfile", directory / "expected"
    journeyman("generate", "ztick", str(log), "--records", str(options.records), "--quiet")
    journeyman("pipeline", "replay", str(log), "--output", str(expected))
    moments = [random.uniform(0, 5) for _ in range(options.kills)]
    for number, moment in enumerate(moments):
        output = directory / f"killed-{number}"
        replay_with_a_kill(master, log, output, moment)
        if wrong := differences(expected, output):
            raise Wrong(f"killed after {moment:.1f} s of reading: {wrong}")
    return f"{options.kills} replays of {options.records:,} records, an executor killed in each"


def skew(directory: Path, master: str, options: argparse.Namespace) -> str:
    records = int(SKEWED_RECORDS * options.scale)
    planned = skewed_ztick(directory / "skewed", records)
    jobs = replayed(directory, master, directory / "skewed")
    found = dict(
        zip(
            *(jobs.column(each).to_pylist() for each in ("identifier", "execution_ns")), strict=True
        )
    )
    if found != planned:
        raise Wrong("jobs of the ztick log differ")
    expected = skewed_workq(directory / "skewed-workq", records)
    jobs = replayed(directory, master, directory / "skewed-workq")
    columns = (jobs.column(each).to_pylist() for each in ("key", "state", "attempts"))
    if {
        name: (state, attempts) for name, state, attempts in zip(*columns, strict=True)
    } != expected:
        raise Wrong("jobs of the workq log differ")
    return f"{records:,} records of each log, half of them of one key"


def tiny(directory: Path, master: str, options: argparse.Namespace) -> str:
    count = tiny_logs(directory / "tiny", int(TINY_LOGS * options.scale))
    jobs = replayed(directory, master, directory / "tiny", "--dialect", "ztick")
    if (jobs.num_rows, len(set(jobs.column("host").to_pylist()))) != (count, count):
        raise Wrong(f"{jobs.num_rows} jobs of {count} logs")
    return f"{count:,} logs"


def large(directory: Path, master: str, options: argparse.Namespace) -> str:
    log, records = directory / "large", int(LARGE_RECORDS * options.scale)
    journeyman("generate", "ztick", str(log), "--records", str(records), "--quiet")
    journeyman("pipeline", "replay", str(log), "--output", str(directory / "large-expected"))
    replayed(directory, master, log)
    if wrong := differences(directory / "large-expected", directory / "large-state"):
        raise Wrong(wrong)
    return f"one file of {log.stat().st_size / 1e9:.1f} GB"


CASES: Final[dict[str, Callable[[Path, str, argparse.Namespace], str]]] = {
    "kills": kills,
    "skew": skew,
    "tiny": tiny,
    "large": large,
}


def replayed(directory: Path, master: str, log: Path, *words: str) -> pa.Table:
    """The jobs of a log, replayed on the cluster."""
    output = directory / f"{log.name}-state"
    journeyman("pipeline", "replay", str(log), *words, *on(master), "--output", str(output))
    return pq.read_table(output / "jobs")


def on(master: str) -> list[str]:
    conf = [word for each in SETTINGS.items() for word in ("--conf", "=".join(each))]
    return ["--master", master, *conf]


def journeyman(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "journeyman", *words], check=True)


def replay_with_a_kill(master: str, log: Path, output: Path, moment: float) -> None:
    command = ["pipeline", "replay", str(log), *on(master), "--output", str(output)]
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
    """The processes of this cluster, never of another one here, that were started with a word."""
    found = []
    for process in below(os.getpid()):
        with suppress(OSError):  # it has ended
            if word.encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
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
