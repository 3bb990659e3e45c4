"""What the lake costs beside a replay of the same logs, and what a little new data costs.

    python -m bench.lake                     300,000 ztick, 50,000 workq and 50,000 kestrel records
    python -m bench.lake --factor 100        30 M, 5 M, 5 M
    python -m bench.lake --logs DIR          logs that an earlier run wrote there, or writes now
    python -m bench.lake --heap 1g           the most that Java may take, for figures of memory

replay    the state tables of the three logs, written as Parquet: what a pipeline did without a lake
first     an ingest of all of it into a new lake: bronze, silver and gold
second    the same after 1 % more records of each, those of ztick of 1 % of its jobs
tables    the part of each in which silver and gold are computed
idle      the same with nothing new
report    the page of the lake: the first, and a second in the same warm session

All in one session, one after the other, so that ratios hold on a noisy machine. Bars are ratios of
one run; that of the second ingest counts what it takes beyond one that finds nothing new.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.process_tree import Watch
from bench.report import write_result
from bench.sample_logs import START_NS, kestrel_log, workq_log, ztick_log
from bench.verdicts import Verdict, print_verdicts
from journeyman.formats import kestrel, workq, ztick
from journeyman.spark.lakes import ingest as ingesting
from journeyman.spark.lakes.storage import open_lake
from journeyman.spark.replay import STATE_TABLES, packets, write_states
from journeyman.spark.report import report_of_lake
from journeyman.spark.session import SparkSession, build_session

ZTICK, WORKQ_JOBS, KESTREL = 300_000, 16_667, 50_000
SEGMENT_JOBS = 100_000  # about 64 MiB
REPORT_BAR_S = 10.0


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return round(time.perf_counter() - began, 2)


def paths_below(directory: Path) -> dict[str, list[str]]:
    places = {"ztick": "ztick/logfile", "workq": "workq", "kestrel": "kestrel"}
    return {dialect: [str(directory / place)] for dialect, place in places.items()}


def write_logs(directory: Path, factor: int) -> None:
    """The sample logs, as often as the factor says; repeats of workq are other jobs."""
    (ztick_path,), (workq_path,), (kestrel_path,) = (
        [Path(path) for path in paths] for paths in paths_below(directory).values()
    )
    for path in (ztick_path.parent, workq_path, kestrel_path):
        path.mkdir(parents=True)
    with ztick_path.open("wb") as file:
        chunk = ztick_log(ZTICK)
        for _ in range(factor):
            file.write(chunk)
    jobs = WORKQ_JOBS * factor
    for number, begin in enumerate(range(0, jobs, SEGMENT_JOBS)):
        part = workq_log(min(SEGMENT_JOBS, jobs - begin), seed=number)
        (workq_path / f"{number + 1:09d}.log").write_bytes(part)
    (kestrel_path / "jobs.1700000000000").write_bytes(kestrel_log(KESTREL * factor))


def grow(directory: Path, factor: int) -> None:
    """One record in a hundred more, behind the last one."""
    jobs = [
        ztick.JobSet(f"mail.db{at % 20}.daily", START_NS + at * 10**9, ztick.Status.PLANNED)
        for at in range(ZTICK * factor // 100)
    ]
    with (directory / "ztick" / "logfile").open("ab") as file:
        file.write(b"".join(map(ztick.CODEC.encode, jobs)))
    added = workq_log(WORKQ_JOBS * factor // 100, seed=10**6).removeprefix(workq.HEADER)
    with max((directory / "workq").glob("*.log")).open("ab") as file:
        file.write(added)
    first_id, now_ms = KESTREL * factor + 1, 1_790_000_500_000
    items = range(first_id, first_id + KESTREL * factor // 100)
    puts = (kestrel.ItemPut(number, now_ms, None, 0, b"x" * 100) for number in items)
    with (directory / "kestrel" / "jobs.1700000000000").open("ab") as file:
        file.write(b"".join(map(kestrel.WRITER.encode, puts)))


def replay(spark: SparkSession, logs: dict[str, list[str]], output: Path) -> None:
    for dialect, paths in logs.items():
        places = {name: str(output / dialect / name) for name in STATE_TABLES[dialect]}
        write_states(packets(spark, dialect, paths), dialect, places)


class Measured:
    """Ingests of one lake, and the part of each in which its tables are computed."""

    def __init__(self, spark: SparkSession, lake: str, logs: dict[str, list[str]]):
        self._spark, self._lake, self._logs = spark, lake, logs
        self.tables_s = 0.0
        steps: Any = ingesting
        refresh = steps.refresh

        def timed_refresh(*args: Any, **kwargs: Any) -> None:
            self.tables_s = timed(lambda: refresh(*args, **kwargs))

        steps.refresh = timed_refresh

    def __call__(self) -> None:
        ingesting.ingest(lambda: self._spark, self._lake, self._logs, host="a")


def measure(directory: Path, asked: argparse.Namespace) -> dict[str, Any]:
    factor, kept = asked.factor, Path(asked.logs or directory / "new")
    if not kept.exists():
        write_logs(kept, factor)
    shutil.copytree(kept, directory / "logs")
    logs = paths_below(directory / "logs")
    heap = {"spark.driver.memory": asked.heap} if asked.heap else {}
    spark = build_session("local[2]", heap, "bench-lake")
    lake = str(directory / "lake")
    bring_up_to_date = Measured(spark, lake, logs)

    def page() -> None:
        report_of_lake(spark, open_lake(lake), made_ns=time.time_ns(), title="bench")

    replay(spark, logs, directory / "warm")
    found: dict[str, Any] = {"replay_s": timed(lambda: replay(spark, logs, directory / "states"))}
    with Watch() as watch:
        found["first_s"] = timed(bring_up_to_date)
    found["first_tables_s"] = bring_up_to_date.tables_s
    found["peak_mb"] = dict(watch.peak_mb)
    grow(directory / "logs", factor)
    found["second_s"] = timed(bring_up_to_date)
    found["second_tables_s"] = bring_up_to_date.tables_s
    found["idle_s"] = timed(bring_up_to_date)
    found["report_s"] = timed(page)
    found["warm_report_s"] = timed(page)
    spark.stop()
    return found


def verdicts(found: dict[str, Any]) -> list[Verdict]:
    """``second``: what Spark takes to start and plan is not the data's."""

    def ratio(one: str, other: str) -> float:
        return round(float(found[one]) / float(found[other]), 3)

    return [
        Verdict("first ingest / replay", ratio("first_s", "replay_s"), 1.5, False),
        Verdict("second ingest / first", ratio("second_s", "first_s"), 0.05, False),
        Verdict("second ingest - idle, s", round(found["second_s"] - found["idle_s"], 2), 3, False),
        Verdict("tables of second / first", ratio("second_tables_s", "first_tables_s"), 0.1, False),
        Verdict("report, warm, s", found["warm_report_s"], REPORT_BAR_S, False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=int, default=1)
    parser.add_argument("--logs")
    parser.add_argument("--heap")
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="journeyman-lake-"))
    try:
        figures = {"factor": asked.factor, "heap": asked.heap, **measure(directory, asked)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:16} {value}")
    figures["bars"] = print_verdicts(verdicts(figures))
    print(write_result("lake", figures))


if __name__ == "__main__":
    main()
