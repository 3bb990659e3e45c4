"""What tests.spark.test_connect runs: the pipeline by a client that has no Java of its own.

python -m tests.support.spark.connect_program LOG DIRECTORY

A session of Spark Connect knows DataFrames only: no context, no RDDs, no way into the JVM. What it
prints is compared with what the log holds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark import read, register, replay, write
from journeyman.spark.maintenance import compact
from journeyman.spark.replay import STATE_TABLES, write_states
from journeyman.spark.session import TINY_SETTINGS
from journeyman.spark.session.java import archive_options, local_java_options, prepare_launch


def main(log: str, directory: Path) -> None:
    java = prepare_launch(on_this_machine=True)
    quick = [*archive_options(java), local_java_options(java, "", small=True, log_level="fatal")]
    builder = SparkSession.builder.remote("local[2]")
    for name, value in TINY_SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.extraJavaOptions", " ".join(quick)).getOrCreate()
    assert type(spark).__module__ == "pyspark.sql.connect.session"
    register(spark)
    jobs = replay.states(spark, "ztick", log)["jobs"]
    targets = {name: str(directory / name) for name in STATE_TABLES["ztick"]}
    files = write_states(replay.packets(spark, "ztick", log), "ztick", targets)
    write(jobs.withColumn("kind", F.lit("set")), "ztick", str(directory / "written"))
    found = sorted(row["identifier"] for row in jobs.select("identifier").collect())
    (outcome,) = compact(spark, "ztick", [log])
    told = {
        "jobs": found,
        "rows": files,
        "written": read(spark, "ztick", str(directory / "written")).count(),
        "compacted": outcome.records_after,
        "error": outcome.error,
    }
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
