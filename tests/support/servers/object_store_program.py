"""What tests.integration.test_object_store runs: the pipeline on logs that are in a bucket.

python -m tests.support.servers.object_store_program BUCKET DIRECTORY

Where the store is, and the keys to it, are in the environment, as they are on a cluster: Python
workers have it from Java, and Java from this process. What it prints is compared with what the same
logs hold that lie in a directory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark import read, replay
from journeyman.spark.replay import STATE_TABLES, write_states
from journeyman.spark.session import build_session

SPLIT_BYTES = "64k"


def main(bucket: str, directory: Path) -> None:
    spark = build_session("local[2]", small=True, tiny=True)
    logs = f"{bucket}/host=*/logfile"
    packets = replay.packets(spark, "ztick", logs, splitBytes=SPLIT_BYTES)
    targets = {name: str(directory / name) for name in STATE_TABLES["ztick"]}
    written = write_states(packets, "ztick", targets)
    jobs = replay.states(spark, "ztick", f"{bucket}/host=a")["jobs"]
    told = {
        "records": counts(read(spark, "ztick", logs, splitBytes=SPLIT_BYTES)),
        "replayed": written,
        "jobs": identifiers(jobs),
        "written": identifiers(spark.read.parquet(targets["jobs"]).filter("host = 'a'")),
        "payloads": sizes(replay.states(spark, "workq", f"{bucket}/cmdlog", payloads=True)["jobs"]),
        "streamed": streamed(
            spark.readStream.format("ztick").load(f"{bucket}/host=a"), directory / "streamed"
        ),
    }
    spark.stop()
    print(json.dumps(told))


def counts(rows: DataFrame) -> dict[str, int]:
    return {row["host"]: row["count"] for row in rows.groupBy("host").count().collect()}


def identifiers(rows: DataFrame) -> list[str]:
    return sorted(row["identifier"] for row in rows.select("identifier").collect())


def sizes(jobs: DataFrame) -> int:
    """The bytes of all payloads: they are read again, one by one."""
    return int(jobs.agg(F.sum(F.octet_length("payload"))).collect()[0][0])


def streamed(rows: DataFrame, target: Path) -> int:
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(target.with_name("checkpoint")))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    return rows.sparkSession.read.parquet(str(target)).count()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
