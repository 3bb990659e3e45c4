"""Every run of a schedule, and every plan that has not come to one.

    log    job, time planned for, status    what was to happen, and whether it did
    runs   job, time planned for, times     when it did, by which rule, how it ended

The two meet on (log, job, time planned for). A run that the log no longer knows (compaction keeps
the last record of a job alone) is a row all the same; so is a plan of which no run is known, with
the times null and one of these outcomes. A recorded failure without a rule has an end and no start.
With a ledger beside the log, ``created_ns`` is when a job was planned, and ``ended_ns`` of what
ended without a known run is when that was written.

    planned triggered       as the log says, and nothing has come since
    executed failed         it ended, and no server recorded its run
    replanned removed       before it ran
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from journeyman.errors import UsageError
from journeyman.logs.segments import COMPACTED_SUFFIX
from journeyman.logs.ztick.run_history import DIRECTORY_SUFFIX, SUFFIX
from journeyman.spark.files import absolute, filesystem_of, find_logs
from journeyman.spark.history.columns import as_attempts
from journeyman.spark.source.options import SourceOptions

# ----------------------------------------
# The runs that servers of a schedule have noted beside their logs, as a table.
#
#     <log>.runs/1794769200000.jsonl      one JSON object a line, see formats/ztick/run_history
#
# A line that is not whole (the last one before a power cut) is left out. The log a run belongs to
# is told by where its file is. History that was put elsewhere (setting ``history.path``) is found
# by naming its directory; it belongs to the one log that was given with it.

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


_PLAN = ("_log", "key", "ready_ns")
_ENDED = ("executed", "failed")
STATUSES = ("planned", "triggered", *_ENDED)


def attempts(records: DataFrame, runs: DataFrame) -> DataFrame:
    """One row a run, and one a plan without a run."""
    in_order = Window.partitionBy(*_PLAN).orderBy("started_ns", "ended_ns")
    ran = (
        runs.select(
            "_log",
            F.col("job").alias("key"),
            F.col("execution_ns").alias("ready_ns"),
            F.nullif("rule", F.lit("")).alias("rule"),
            F.nullif("runner", F.lit("")).alias("runner"),
            "started_ns",
            "ended_ns",
            F.col("outcome").alias("run_outcome"),
        )
        .withColumn("attempt", F.row_number().over(in_order))
        # A job that no rule matches fails without a run: it has an end and no start.
        .withColumn("started_ns", F.when(F.col("rule").isNotNull(), F.col("started_ns")))
    )
    joined = plans_of(grouped(records)).join(ran, list(_PLAN), "full_outer")
    return as_attempts(
        joined.withColumns(
            {
                "dialect": F.lit("ztick"),
                "attempt": F.coalesce("attempt", F.lit(1)),
                "first": F.coalesce(F.col("attempt") == 1, F.lit(True)),
                "outcome": F.coalesce("run_outcome", "outcome"),
                "ended_ns": F.coalesce("ended_ns", "written_ns"),
            }
        )
    )


def grouped(records: DataFrame) -> DataFrame:
    """Records by job (or rule) and time planned for; removals are groups of their own.

    Columns: _log, key, is_rule, is_set, ready_ns, latest (position of the last record, times four,
    plus its status), last_length, position (of the first), plans (how often it was planned),
    created_ns and last_ns (when the first and the last of them were written, if that is known).
    """
    status = F.lit(0)
    for number, word in enumerate(STATUSES):
        status = F.when(F.col("status") == word, F.lit(number)).otherwise(status)
    # The last status as part of one number, so that Spark hashes instead of sorting every record.
    latest = F.col("_position") * len(STATUSES) + status
    # What was compacted is known as of its compaction, which is not when it was written.
    is_own = ~F.col("_file").endswith(COMPACTED_SUFFIX)
    written_ns = F.when(is_own, F.unix_micros("time") * 1000)
    is_rule = F.col("kind").isin("rule_set", "remove_rule")
    is_set = F.col("kind").isin("set", "rule_set")
    return (
        records.where(F.col("kind") != "damage")
        .groupBy(
            "_log",
            F.col("identifier").alias("key"),
            is_rule.alias("is_rule"),
            is_set.alias("is_set"),
            F.col("execution_ns").alias("ready_ns"),
        )
        .agg(
            F.max(latest).alias("latest"),
            F.max_by(F.col("_length").cast("long"), latest).alias("last_length"),
            F.min("_position").alias("position"),
            F.count_if(F.col("status") == "planned").alias("plans"),
            F.min(F.when(F.col("status") == "planned", written_ns)).alias("created_ns"),
            F.max_by(written_ns, latest).alias("last_ns"),
        )
    )


def plans_of(groups: DataFrame) -> DataFrame:
    """One row a job and time planned for: what became of it, as far as the log says.

    Columns: _log, key, ready_ns, outcome, plans, position, created_ns, written_ns (of its end).
    """
    # One job's plans, of which there are few; what follows a plan has taken its place.
    next_is_set = F.lead("is_set").over(Window.partitionBy("_log", "key").orderBy("latest"))
    place = (F.col("latest") % len(STATUSES) + 1).cast("int")
    last = F.element_at(F.array(*map(F.lit, STATUSES)), place)
    replaced = F.when(next_is_set, F.lit("replanned")).otherwise(F.lit("removed"))
    outcome = F.when(last.isin(*_ENDED) | next_is_set.isNull(), last).otherwise(replaced)
    return (
        groups.where(~F.col("is_rule"))
        .withColumn("outcome", outcome)
        .where(F.col("is_set"))
        .withColumn("written_ns", F.when(F.col("outcome").isin(*_ENDED), F.col("last_ns")))
        .select(
            *("_log", "key", "ready_ns", "outcome", "plans", "position"),
            *("created_ns", "written_ns"),
        )
    )
