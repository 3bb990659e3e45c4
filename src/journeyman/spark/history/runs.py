"""The runs that servers of a schedule have noted beside their logs, as a table.

    <log>.runs/1794769200000.jsonl      one JSON object a line, see formats/ztick/run_history

A line that is not whole (the last one before a power cut) is left out. The log a run belongs to is
told by where its file is. History that was put elsewhere (setting ``history.path``) is found by
naming its directory; it belongs to the one log that was given with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from journeyman.errors import UsageError
from journeyman.logs.ztick.run_history import DIRECTORY_SUFFIX, SUFFIX
from journeyman.spark.source.filesystem import absolute, filesystem_of
from journeyman.spark.source.layout import find_logs
from journeyman.spark.source.options import SourceOptions

# A line, field by field.
LINES = StructType(
    [
        StructField("job", StringType()),
        StructField("rule", StringType()),
        StructField("runner", StringType()),
        StructField("execution_ns", LongType()),
        StructField("started_ns", LongType()),
        StructField("ended_ns", LongType()),
        StructField("outcome", StringType()),
        StructField("detail", StringType()),
        StructField("output", StringType()),
    ]
)
RUNS = StructType([StructField("_log", StringType()), *LINES.fields])
_NEEDED = ("job", "execution_ns", "started_ns", "ended_ns", "outcome")
_IN_DIRECTORY = rf"\{DIRECTORY_SUFFIX}/[^/]*$"
_HADOOP_GLOB = re.compile(r"([\\*?\[\]{}])")


def run_directories(options: SourceOptions, elsewhere: Sequence[str] = ()) -> dict[str, str]:
    """By the name of each ztick log that these options stand for: its runs, if it has any."""
    logs = [log.name for log in find_logs(options)]
    if elsewhere:
        if len(logs) != 1 or len(elsewhere) != 1:
            raise UsageError("a directory of runs belongs to one log: give one of each")
        directory = absolute(elsewhere[0])
        if not _is_directory(directory):
            raise UsageError(f"{directory} is not a directory of runs")
        return {logs[0]: directory}
    beside = {log: log + DIRECTORY_SUFFIX for log in logs}
    return {log: directory for log, directory in beside.items() if _is_directory(directory)}


def _is_directory(path: str) -> bool:
    found = filesystem_of(path).find(path)
    return found is not None and found.is_dir


def read_runs(spark: SparkSession, directories: Mapping[str, str]) -> DataFrame:
    """The runs of logs, by log name; ``run_directories`` says where they are."""
    beside = [path for log, path in directories.items() if path == log + DIRECTORY_SUFFIX]
    frames = [_read(spark, beside).withColumn("_log", _log_of_file())] if beside else []
    for log, path in directories.items():
        if path not in beside:
            frames.append(_read(spark, [path]).withColumn("_log", F.lit(log)))
    if not frames:
        return spark.createDataFrame([], RUNS)
    return reduce(DataFrame.unionByName, [frame.select(*RUNS.names) for frame in frames])


def _read(spark: SparkSession, directories: Sequence[str]) -> DataFrame:
    lines = (
        spark.read.schema(LINES)
        .option("mode", "DROPMALFORMED")
        .option("pathGlobFilter", f"*{SUFFIX}")
        .json([_HADOOP_GLOB.sub(r"\\\1", path) for path in directories])
    )
    return lines.where(_all_there(_NEEDED))


def _all_there(names: Iterable[str]) -> Column:
    return reduce(Column.__and__, [F.col(name).isNotNull() for name in names])


def _log_of_file() -> Column:
    """The log beside whose file the line stands, spelt as the source spells it."""
    # Spark gives a URI: local files as file:///a%20b. A plus sign is one, not a space.
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    local = F.regexp_replace(path, "^file:(//)?/", "/")
    return F.regexp_replace(local, _IN_DIRECTORY, "")
