"""A driver of one query over three streams, to be killed: logs of three dialects to Parquet.

python -m tests.support.spark.stream_program DIRECTORY
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from journeyman.spark.session import build_session

LOGS = {"ztick": "ztick/logfile", "workq": "workq", "kestrel": "kestrel"}
COLUMNS = ["_log", "_file", "_segment", "_offset", "_position", "kind", "key", "_damage"]


def main() -> None:
    spark = build_session("local[2]", {}, "stream-program", small=True, tiny=True)
    query(spark, Path(sys.argv[1])).start().awaitTermination()


def query(spark: SparkSession, directory: Path) -> DataStreamWriter:
    """The query over the logs of this directory, not started yet."""
    streams = [_stream(spark, dialect, directory / path) for dialect, path in LOGS.items()]
    return (
        reduce(DataFrame.unionByName, streams)
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )


def _stream(spark: SparkSession, dialect: str, path: Path) -> DataFrame:
    reader = spark.readStream.format(dialect).option("maxBytesPerTrigger", "1m")
    return reader.load(str(path)).select(COLUMNS)


if __name__ == "__main__":
    main()
