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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.columnar.arrays import binary, text_in
from journeyman.columnar.kernels.key_table import KeyTable
from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.columnar.ztick.plans import PLAN_COLUMNS, PlanTable
from journeyman.errors import UsageError
from journeyman.logs.segments import COMPACTED_SUFFIX
from journeyman.logs.ztick.run_history import (
    DIRECTORY_SUFFIX,
    RunLine,
    decode_run,
    history_files,
)
from journeyman.spark import vectors
from journeyman.spark.files import Addresses, absolute, filesystem_of, find_logs, lines_of
from journeyman.spark.history.columns import RAW_ATTEMPTS, attempt_batches, whole_jobs
from journeyman.spark.slots import read_units
from journeyman.spark.source.options import SourceOptions, arrow_schema, struct
from journeyman.spark.vectors import arrow, pc

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
_ERROR_CHARACTERS: Final = 200


class RunFile(NamedTuple):
    """A file of runs, and the log that they belong to."""

    log: str
    path: str


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


def run_files(directories: Mapping[str, str]) -> list[RunFile]:
    """The files in the directories that ``run_directories`` has found, the oldest of each first."""
    return [
        RunFile(log, posixpath.join(directory, name))
        for log, directory in directories.items()
        for name in history_files(Addresses().list_dir(directory))
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


def whole_run(line: bytes) -> RunLine | None:
    """The run of one line; None if it is not such a line, or has times that no column holds."""
    run = decode_run(line)
    times = () if run is None else (run.execution_ns, run.started_ns, run.ended_ns)
    return run if all(-(2**63) <= each < 2**63 for each in times) else None


STATUSES = ("planned", "triggered", "executed", "failed")
_ENDED = ("executed", "failed")
_KEYS = PLAN_COLUMNS[:3]
PLANS: Final[pa.Schema] = arrow.schema(
    [
        ("_log", pa.string()),
        ("key", pa.string()),
        *((name, pa.int64()) for name in PLAN_COLUMNS[2:]),
    ]
)
_RUN = ("_log", "key", "ready_ns", "rule", "runner", "started_ns", "ended_ns", "outcome", "detail")


def attempts(records: DataFrame, runs: DataFrame) -> DataFrame:
    """One row a run, and one a plan without a run."""
    return attempts_of(grouped(records), runs)


def attempts_of(groups: DataFrame, runs: DataFrame) -> DataFrame:
    """The same, from ``grouped`` records."""
    plans = groups.where(~F.col("is_rule")).select(*PLANS.names)
    ran = runs.withColumnsRenamed({"job": "key", "execution_ns": "ready_ns"}).select(*_RUN)
    rows = plans.unionByName(ran, allowMissingColumns=True)
    in_order = rows.repartition("_log", "key").sortWithinPartitions("_log", "key")
    return in_order.mapInArrow(_attempt_batches, RAW_ATTEMPTS)


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


def _attempt_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What runs on the executors, once a partition."""
    for rows in whole_jobs(batches):
        is_plan = rows["latest"].is_valid()
        plans, runs = rows.filter(is_plan), rows.filter(pc.invert(is_plan))
        yield from attempt_batches(attempt_table(plans, runs))


def attempt_table(plans: pa.Table, runs: pa.Table) -> pa.Table:
    """One row a run, and one a plan without a run; all plans and runs of each job are here."""
    known = KeyTable()
    plan_keys = known.numbers_of(*text_in(vectors.text_of(plans["key"])))
    run_keys = known.numbers_of(*text_in(vectors.text_of(runs["key"])))
    logs = pa.concat_arrays(
        [vectors.text_of(plans["_log"]), vectors.text_of(runs["_log"])]
    ).dictionary_encode()
    codes = logs.indices.to_numpy().astype(np.int64)
    plan = _plans(plans, codes[: plans.num_rows], plan_keys)
    run = _runs(runs, codes[plans.num_rows :], run_keys)
    joined = plan.join(run, list(_KEYS), join_type="full outer").combine_chunks()
    attempt = pc.fill_null(joined["attempt"], 1)
    keys = binary(pa.string(), *known.keys())
    return pa.table(
        {
            "_log": logs.dictionary.take(joined["log"]),
            "key": keys.take(joined["key"]),
            "dialect": pa.repeat("ztick", joined.num_rows),
            "attempt": attempt,
            "first": pc.equal(attempt, 1),
            "outcome": pc.coalesce(joined["run_outcome"], joined["outcome"]),
            "ended_ns": pc.coalesce(joined["ended_ns"], joined["written_ns"]),
            **{name: joined[name] for name in ("ready_ns", "started_ns", "created_ns")},
            **{name: joined[name] for name in ("rule", "runner", "error", "position")},
        }
    )


def _plans(plans: pa.Table, logs: vectors.Ints, keys: vectors.Ints) -> pa.Table:
    """What became of each plan, as far as the log says."""
    columns = {name: vectors.ns_in(plans[name]) for name in PLANS.names[2:]}
    table = PlanTable()  # a plan may come from several parts of a log
    table.add({"log": logs, "key": keys, **columns}, np.ones(plans.num_rows, np.bool_))
    found = table.columns()
    order = np.lexsort((found["latest"], found["key"], found["log"]))
    found = {name: column[order] for name, column in found.items()}
    is_set = found["ready_ns"] != NO_TIME
    begins = vectors.begins_of([found["log"], found["key"]])
    is_last = np.zeros(len(order), np.bool_)
    is_last[begins[1:] - 1] = True
    is_last[-1:] = True
    status = found["latest"] % len(STATUSES)
    has_ended = status >= STATUSES.index("executed")
    replaced = np.where(np.append(is_set[1:], False), len(STATUSES), len(STATUSES) + 1)
    outcome = np.where(has_ended | is_last, status, replaced)[is_set]
    words = pa.array([*STATUSES, "replanned", "removed"])
    found = {name: column[is_set] for name, column in found.items()}
    ended = np.isin(outcome, [STATUSES.index(each) for each in _ENDED])
    return pa.table(
        {
            **{name: pa.array(found[name]) for name in (*_KEYS, "position")},
            "outcome": words.take(pa.array(outcome)),
            "created_ns": vectors.ns_column(found["created_ns"]),
            "written_ns": vectors.ns_column(np.where(ended, found["last_ns"], NO_TIME)),
        }
    )


def _runs(runs: pa.Table, logs: vectors.Ints, keys: vectors.Ints) -> pa.Table:
    """Runs, numbered by plan in the order in which they started."""
    times = {name: vectors.ns_in(runs[name]) for name in ("ready_ns", "started_ns", "ended_ns")}
    order = np.lexsort((times["ended_ns"], times["started_ns"], times["ready_ns"], keys, logs))
    logs, keys = logs[order], keys[order]
    times = {name: column[order] for name, column in times.items()}
    begins = vectors.begins_of([logs, keys, times["ready_ns"]])
    sizes = np.diff(begins, append=len(order))
    attempt = np.arange(len(order)) - np.repeat(begins, sizes) + 1
    runs = vectors.taken(runs, order)
    rule = vectors.unless_empty(runs["rule"])
    # A job that no rule matches fails without a run: it has an end and no start.
    started = np.where(np.asarray(rule.is_valid()), times["started_ns"], NO_TIME)
    return pa.table(
        {
            "log": logs,
            "key": keys,
            "ready_ns": times["ready_ns"],
            "attempt": pa.array(attempt.astype(np.int32)),
            "rule": rule,
            "runner": vectors.unless_empty(runs["runner"]),
            "started_ns": vectors.ns_column(started),
            "ended_ns": vectors.ns_column(times["ended_ns"]),
            "run_outcome": vectors.text_of(runs["outcome"]),
            "error": pc.utf8_slice_codeunits(
                vectors.unless_empty(runs["detail"]), 0, _ERROR_CHARACTERS
            ),
        }
    )
