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

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import UsageError
from journeyman.logs.ztick import run_history
from journeyman.spark import views
from journeyman.spark.files import Addresses, absolute, filesystem_of, find_source_logs, lines_of
from journeyman.spark.slots import read_units
from journeyman.spark.source.options import SourceOptions, arrow_schema, struct

# ----------------------------------------
# The runs that servers of a schedule have noted beside their logs, as a table.
#
#     <log>.runs/1794769200000.jsonl      one JSON object a line, see logs/ztick/run_history.py
#
# Tasks read the files, wherever they are. A line that is not whole (the last one before a power
# cut) is left out. The log a run belongs to is known by where its file is. History that was put
# elsewhere (setting ``history.path``) is found by naming its directory; it belongs to the one log
# that was given with it.

RUNS = struct(
    "_log string, job string, rule string, runner string, execution_ns bigint, started_ns bigint, "
    "ended_ns bigint, outcome string, detail string, output string"
)
_ROWS_AT_A_TIME: Final = 16 * 1024


class RunFile(NamedTuple):
    """A file of runs, and the log that they belong to."""

    log: str
    path: str


def run_directories(options: SourceOptions, elsewhere: Sequence[str] = ()) -> dict[str, str]:
    """Return, by the name of each ztick log that these options stand for, its runs, if
    it has any."""
    logs = [log.name for log in find_source_logs(options)]
    if elsewhere:
        if len(logs) != 1 or len(elsewhere) != 1:
            raise UsageError("a directory of runs belongs to one log: give one of each")
        directory = absolute(elsewhere[0])
        if not _is_directory(directory):
            raise UsageError(f"{directory} is not a directory of runs")
        return {logs[0]: directory}
    beside = {log: log + run_history.DIRECTORY_SUFFIX for log in logs}
    return {log: directory for log, directory in beside.items() if _is_directory(directory)}


def _is_directory(path: str) -> bool:
    found = filesystem_of(path).find(path)
    return found is not None and found.is_dir


def run_files(directories: Mapping[str, str]) -> list[RunFile]:
    """The files in the directories that ``run_directories`` has found, the oldest of each first."""
    return [
        RunFile(log, posixpath.join(directory, name))
        for log, directory in directories.items()
        for name in run_history.history_files(Addresses().list_dir(directory))
    ]


def read_runs(spark: SparkSession, directories: Mapping[str, str]) -> DataFrame:
    """The runs of logs, by log name; ``run_directories`` says where they are."""
    files = run_files(directories)
    if not files:
        return spark.createDataFrame([], RUNS)
    return read_units(spark, files, _batches_of, RUNS)


def _batches_of(file: RunFile) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(RUNS)
    runs = filter(None, map(whole_run, lines_of(file.path)))
    while some := list(islice(runs, _ROWS_AT_A_TIME)):
        rows = [{"_log": file.log, **asdict(run)} for run in some]
        yield pa.RecordBatch.from_pylist(rows, schema)


def whole_run(line: bytes) -> run_history.RunLine | None:
    """The run of one line; None if it is not such a line, or has times that no column holds."""
    run = run_history.decode_run(line)
    times = () if run is None else (run.execution_ns, run.started_ns, run.ended_ns)
    return run if all(-(2**63) <= each < 2**63 for each in times) else None


def attempts(records: DataFrame, runs: DataFrame) -> DataFrame:
    """One row a run, and one a plan without a run."""
    return attempts_of_groups(grouped(records), runs)


def attempts_of_groups(groups: DataFrame, runs: DataFrame) -> DataFrame:
    """Return the attempts of ``grouped`` records."""
    text = views.statement("schedule_attempts", given_views=("plans", "runs"))
    # The rest is by job, so the groups meet only once.
    plans = groups.where(~F.col("is_rule")).repartition("_log", "key")
    return views.run_in_spark(groups.sparkSession, text, plans=plans, runs=runs)


def grouped(records: DataFrame) -> DataFrame:
    """Records by job (or rule) and time planned for, as ``views/plans.sql`` says."""
    written = records.withColumn("time_ns", F.unix_micros("time") * 1000)
    return views.run_in_spark(records.sparkSession, views.statement("plans"), records=written)
