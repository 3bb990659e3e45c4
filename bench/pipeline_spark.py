"""One Spark application that replays a log several times: run by bench.pipeline, one a master.

    python -m bench.pipeline_spark --master local[2] --dialect ztick --log PATH --output DIR
        [--repeats 3] [--warming 1] [--write-back] [--partitions N] [--paced]

Prints one line of JSON: seconds and processor seconds of every run (those that warm up by
themselves), rows, bytes that crossed the shuffle, peaks of memory. A run does what the command
``journeyman pipeline replay`` does once its session stands: all tables of the dialect, to Parquet
with zstd. ``reading`` is the first part of that by itself: read and reduce, no shuffle, no files.
``--partitions`` cuts the log into so many parts, whatever the master would have it cut into.
``--paced`` replays once for each line on stdin and prints one line of JSON for each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from bench.process_tree import Watch, cpu_seconds
from journeyman.spark import replay
from journeyman.spark.maintenance.compaction import write_compacted
from journeyman.spark.replay import STATE_TABLES, write_states
from journeyman.spark.session import build_session

MAIN_TABLE = {"ztick": "jobs", "workq": "jobs", "kestrel": "items"}


def replay_to_parquet(
    spark: SparkSession, dialect: str, log: str, output: Path, partitions: int | None
) -> None:
    packets = replay.packets(spark, dialect, log, minPartitions=partitions)
    targets = {name: str(output / name) for name in STATE_TABLES[dialect]}
    write_states(packets, dialect, targets, overwrite=True)


def replay_to_log(spark: SparkSession, log: str, output: Path) -> None:
    """A compacted logfile, as ``pipeline compact`` stages it."""
    target = output / "logfile"
    target.unlink(missing_ok=True)
    write_compacted(replay.states(spark, "ztick", log), str(target), seals=True)


def shuffled(spark: SparkSession, dialect: str, log: str) -> dict[str, int]:
    """What leaves the tasks that read: packets, their bytes, and the records they stand for."""
    packets = replay.packets(spark, dialect, log)
    size = F.octet_length("packet") + F.coalesce(F.octet_length("details"), F.lit(0))
    row = packets.agg(
        F.count("packet").alias("packets"),
        F.sum(size).alias("packet_bytes"),
        F.sum("records").alias("records"),
    ).collect()[0]
    return {name: int(row[name] or 0) for name in ("packets", "packet_bytes", "records")}


def void(_: object) -> None:
    """Throw an answer away."""


def timed(run: Callable[[], None], repeats: int, warming: int = 1) -> dict[str, Any]:
    """Seconds and processor seconds; the runs that warm up are told by themselves."""
    wall, cpu = [], []
    for _ in range(warming + repeats):
        cpu_before, start = cpu_seconds(), time.perf_counter()
        run()
        wall.append(round(time.perf_counter() - start, 3))
        cpu.append(round(cpu_seconds() - cpu_before, 2))
    counted = wall[warming:]
    return {
        "warming_s": wall[:warming],
        "warm_s": counted,
        "cpu_s": cpu[warming:],
        "best_s": min(counted),
        "middle_s": statistics.median(counted),
    }


def main() -> None:
    options = _options()
    output = Path(options.output)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    spark = build_session(options.master)
    dialect, log = options.dialect, options.log
    if options.paced:
        for _ in sys.stdin:
            run = timed(
                lambda: replay_to_parquet(spark, dialect, log, output, options.partitions), 1, 0
            )
            print(json.dumps({"seconds": run["best_s"], "cpu_s": run["cpu_s"][0]}), flush=True)
        spark.stop()
        return
    with Watch() as watch:
        run = timed(
            lambda: replay_to_parquet(spark, dialect, log, output, options.partitions),
            options.repeats,
            options.warming,
        )
    result: dict[str, Any] = {"master": options.master, "replay": run, "peak_mb": watch.peak_mb}
    result["rows"] = spark.read.parquet(str(output / MAIN_TABLE[dialect])).count()
    result["shuffle"] = shuffled(spark, dialect, log)
    result["reading"] = timed(lambda: void(shuffled(spark, dialect, log)), options.repeats)
    if options.write_back:
        result["write_back"] = timed(lambda: replay_to_log(spark, log, output), options.repeats)
    spark.stop()
    print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dialect", choices=list(MAIN_TABLE), required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warming", type=int, default=1)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--write-back", action="store_true")
    parser.add_argument("--paced", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
