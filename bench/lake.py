"""What the lake costs beside a replay of the same log, and what a little new data costs.

    python -m bench.lake                      work queues of 0.5 and 2 million records, some minutes
    python -m bench.lake --sizes 0.5 2 8 40   others, in millions; nothing is written
    python -m bench.lake --ingests 20         fewer small ingests; nothing is written

Of each size, in one warm session of two cores, in this order:

replay    the state tables of the log, written as Parquet
first     an ingest of all of it into a new lake: bronze, silver and gold
new       three ingests, each of 20,000 more records about new jobs; the middle one counts
old       an ingest of 20,000 records about jobs that the lake has
report    the page of the lake

Then, on small logs: a hundred ingests of 300 records each, of which the last ten are compared with
the first; and two commands from the shell with all that a process costs, an ingest that finds
nothing new and a replay.

``cpu`` is the processor time of all processes. ``old`` has bars for 2 and 8 million records, which
are multiples of what the lake before Delta took on the same machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from bench.process_tree import Watch, cpu_seconds
from bench.report import ROOT, write_result
from bench.sample_logs import START_NS, workq_log
from bench.verdicts import Verdict, print_verdicts
from journeyman.formats import workq
from journeyman.formats.timed_frame import Instant
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.storage import open_lake
from journeyman.spark.replay import STATE_TABLES, packets, write_states
from journeyman.spark.report import report_of_lake
from journeyman.spark.session import SparkSession, build_session

SIZES = (0.5, 2.0)
INGESTS = 100
NEW_RECORDS, SMALL_RECORDS = 20_000, 300
SEGMENT_JOBS = 100_000  # about 64 MiB
OLD_CPU_S = {2.0: 2.5 * 2.1, 8.0: 2 * 6.9}
_TENTH = 10

Figures = dict[str, float]


class Lake:
    """A work queue of some size and the lake that is made of it."""

    def __init__(self, spark: SparkSession, directory: Path, records: int) -> None:
        self.spark, self.directory = spark, directory
        self.log, self.lake = directory / "workq", str(directory / "lake")
        self.log.mkdir(parents=True)
        jobs = records // 3
        for number, begin in enumerate(range(0, jobs, SEGMENT_JOBS)):
            part = workq_log(min(SEGMENT_JOBS, jobs - begin), seed=number)
            (self.log / f"{number + 1:09d}.log").write_bytes(part)
        self._seed = 10**6

    def ingest(self) -> None:
        ingest(lambda: self.spark, self.lake, {"workq": [str(self.log)]}, host="a")

    def replay(self) -> None:
        places = {name: str(self.directory / "states" / name) for name in STATE_TABLES["workq"]}
        found = packets(self.spark, "workq", str(self.log))
        write_states(found, "workq", places, overwrite=True)

    def report(self) -> None:
        lake = open_lake(self.lake)
        report_of_lake(self.spark, lake, made_ns=time.time_ns(), title="bench")

    def add_new(self, records: int) -> None:
        """Append records about jobs that are not there yet."""
        self._seed += 1
        self._append(workq_log(records // 3, seed=self._seed).removeprefix(workq.HEADER))

    def add_old(self, records: int) -> None:
        """Append records about jobs that are there: each was leased once more."""
        keys = open_lake(self.lake).read_arrow("silver/jobs", columns=["key"])["key"].unique()
        chosen = Random(1).choices(keys.to_pylist(), k=records)
        now = Instant(START_NS + 10**15)
        events = (
            workq.JobEvent(now, UUID(str(key)).bytes, workq.Command.START_ATTEMPT) for key in chosen
        )
        self._append(b"".join(map(workq.CODEC.encode, events)))

    def _append(self, data: bytes) -> None:
        with max(self.log.glob("*.log")).open("ab") as file:
            file.write(data)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return round(time.perf_counter() - began, 2)


def cpu(call: Callable[[], object]) -> float:
    """Return the processor time of all processes during a call."""
    began = cpu_seconds()
    call()
    return round(cpu_seconds() - began, 2)


def measure_size(lake: Lake) -> Figures:
    """Return the figures of a lake of one size."""
    found: Figures = {"replay_cpu_s": cpu(lake.replay)}
    with Watch() as watch:
        found["first_cpu_s"] = cpu(lake.ingest)
    found |= {f"{name}_mb": mb for name, mb in watch.peak_mb.items()}
    new = []
    for _ in range(3):
        lake.add_new(NEW_RECORDS)
        new.append(seconds(lake.ingest))
    found["new_s"] = statistics.median(new)
    lake.add_old(NEW_RECORDS)
    found["old_cpu_s"] = cpu(lake.ingest)
    found["report_s"] = seconds(lake.report)
    return found


def measure_small(lake: Lake, ingests: int) -> Figures:
    """Return how long small ingests take, and commands from the shell."""
    took = []
    for _ in range(ingests):
        lake.add_new(SMALL_RECORDS)
        took.append(seconds(lake.ingest))
    part = max(1, ingests // _TENTH)
    log = str(lake.log)
    return {
        "small_first_s": statistics.median(took[:part]),
        "small_last_s": statistics.median(took[-part:]),
        "idle_s": seconds(lambda: command("ingest", log, "--lake", lake.lake, "--host", "a")),
        "cold_replay_s": seconds(
            lambda: command("replay", log, "--output", str(lake.directory / "cold"))
        ),
    }


def command(*words: str) -> None:
    """Run a command of the pipeline."""
    line = [sys.executable, "-m", "journeyman", "pipeline", *words, "--quiet"]
    subprocess.run(line, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def measure(directory: Path, sizes: Sequence[float], ingests: int) -> dict[str, Any]:
    """Return the figures of all sizes, by size, and those of small logs."""
    spark = build_session("local[2]", {}, "bench-lake")
    warm = Lake(spark, directory / "warm", 30_000)
    for _ in range(2):
        measure_size(warm)
    found: dict[str, Any] = {}
    for size in sizes:
        place = directory / f"{size:g}m"
        found[f"{size:g}M"] = measure_size(Lake(spark, place, int(size * 10**6)))
        shutil.rmtree(place)
    small = Lake(spark, directory / "small", 30_000)
    small.ingest()
    found["small"] = measure_small(small, ingests)
    spark.stop()
    return found


def verdicts(found: dict[str, Any], sizes: Sequence[float]) -> list[Verdict]:
    """Return the bars, with what was measured."""
    by_size = {size: found[f"{size:g}M"] for size in sizes}
    small = found["small"]
    asked = []
    for size, figures in by_size.items():
        ratio = figures["first_cpu_s"] / figures["replay_cpu_s"]
        asked.append(
            Verdict(f"{size:g} M: first ingest / replay, cpu", round(ratio, 2), 3.5, False)
        )
        asked.append(Verdict(f"{size:g} M: 20,000 new records, s", figures["new_s"], 1.5, False))
        if size in OLD_CPU_S:
            bar = round(OLD_CPU_S[size], 2)
            asked.append(
                Verdict(f"{size:g} M: 20,000 about old jobs, cpu", figures["old_cpu_s"], bar, False)
            )
    least, most = by_size[min(sizes)], by_size[max(sizes)]

    def growth(name: str) -> float:
        return round(float(most[name]) / float(least[name]), 2)

    return [
        *asked,
        Verdict("new records, largest / smallest", growth("new_s"), 1.2, False),
        Verdict("memory of the driver, the same", growth("driver_mb"), 1.2, False),
        Verdict(
            "small ingests, last / first",
            round(small["small_last_s"] / small["small_first_s"], 2),
            1.2,
            False,
        ),
        Verdict("idle ingest, whole process, s", small["idle_s"], 1, False),
        Verdict("replay of a small log, command, s", small["cold_replay_s"], 8, False),
        Verdict("report of a lake, s", most["report_s"], 10, False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, metavar="MILLIONS")
    parser.add_argument("--ingests", type=int, default=INGESTS)
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="journeyman-lake-", dir="/var/tmp"))
    try:
        found = measure(directory, asked.sizes, asked.ingests)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, figures in found.items():
        print(name, *(f"{figure} {value:g}" for figure, value in figures.items()), sep="  ")
    found["bars"] = print_verdicts(verdicts(found, asked.sizes))
    if tuple(asked.sizes) == SIZES and asked.ingests == INGESTS:
        print(write_result("lake", found))


if __name__ == "__main__":
    main()
