"""What the lake costs beside a replay of the same logs, and what a little new data costs.

    python -m bench.lake                     300,000 ztick, 150,000 workq, 50,000 kestrel records
    python -m bench.lake --factor 100        30 M, 15 M, 5 M

replay    the state tables of the three logs, written as Parquet: what a pipeline did without a lake
first     an ingest of all of it into a new lake: bronze, silver and gold
second    the same after 1 % more workq and kestrel records
idle      the same with nothing new
report    the page of the lake, in the same warm session

All in one session, one after the other, so that ratios hold on a noisy machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import write_result
from bench.sample_logs import kestrel_log, workq_log, ztick_log
from journeyman.formats import kestrel, workq
from journeyman.spark.lake.ingest import ingest
from journeyman.spark.lake.storage import open_lake
from journeyman.spark.replay.state_files import write_states
from journeyman.spark.report.lake import report_of_lake
from journeyman.spark.session import SparkSession, build_session
from journeyman.spark.tables import TABLES, packets

ZTICK, WORKQ_JOBS, KESTREL = 300_000, 50_000, 50_000


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return round(time.perf_counter() - began, 2)


def write_logs(directory: Path, factor: int) -> dict[str, list[str]]:
    """The sample logs, as often as the factor says; repeats of workq are other jobs."""
    ztick_path = directory / "ztick" / "logfile"
    workq_path, kestrel_path = directory / "workq", directory / "kestrel"
    for path in (ztick_path.parent, workq_path, kestrel_path):
        path.mkdir(parents=True)
    with ztick_path.open("wb") as file:
        chunk = ztick_log(ZTICK)
        for _ in range(factor):
            file.write(chunk)
    for number in range(factor):
        (workq_path / f"{number + 1:09d}.log").write_bytes(workq_log(WORKQ_JOBS, seed=number))
    puts = kestrel_log(KESTREL * factor)
    (kestrel_path / "jobs.1700000000000").write_bytes(puts)
    return {"ztick": [str(ztick_path)], "workq": [str(workq_path)], "kestrel": [str(kestrel_path)]}


def grow(directory: Path, factor: int) -> None:
    """One record in a hundred more, behind the last one."""
    jobs = max(WORKQ_JOBS * factor // 100, 1)
    last = max((directory / "workq").iterdir())
    with last.open("ab") as file:
        file.write(workq_log(jobs, seed=factor + 1).removeprefix(workq.HEADER))
    first_id, now_ms = KESTREL * factor + 1, 1_790_000_500_000
    items = range(first_id, first_id + max(KESTREL * factor // 100, 1))
    puts = (kestrel.ItemPut(number, now_ms, None, 0, b"x" * 100) for number in items)
    with (directory / "kestrel" / "jobs.1700000000000").open("ab") as file:
        file.write(b"".join(map(kestrel.WRITER.encode, puts)))


def replay(spark: SparkSession, logs: dict[str, list[str]], output: Path) -> None:
    for dialect, paths in logs.items():
        places = {name: str(output / dialect / name) for name in TABLES[dialect]}
        write_states(packets(spark, dialect, paths), dialect, places)


def measure(directory: Path, factor: int, format_: str) -> dict[str, Any]:
    logs = write_logs(directory / "logs", factor)
    spark = build_session("local[2]", {}, "bench-lake")
    lake = str(directory / "lake")

    def bring_up_to_date() -> None:
        ingest(spark, lake, logs, host="a", format_=format_)

    def page() -> None:
        report_of_lake(spark, open_lake(lake), made_ns=time.time_ns(), title="bench")

    replay(spark, logs, directory / "warm")
    found: dict[str, Any] = {"replay_s": timed(lambda: replay(spark, logs, directory / "states"))}
    found["first_s"] = timed(bring_up_to_date)
    grow(directory / "logs", factor)
    found["second_s"] = timed(bring_up_to_date)
    found["idle_s"] = timed(bring_up_to_date)
    found["report_s"] = timed(page)
    spark.stop()
    found["first_to_replay"] = round(found["first_s"] / found["replay_s"], 2)
    found["second_to_first"] = round(found["second_s"] / found["first_s"], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=int, default=1)
    parser.add_argument("--format", default="parquet", choices=["parquet", "delta"])
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="journeyman-lake-"))
    try:
        figures = {"factor": asked.factor, **measure(directory, asked.factor, asked.format)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:16} {value}")
    print(write_result("lake", figures))


if __name__ == "__main__":
    main()
