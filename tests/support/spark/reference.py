"""The state tables by plain DataFrames: what ``journeyman.spark.states`` gives, in code to read.

A window, a group, and the folds of ``journeyman.folds`` record by record: no packets, no kernels.
Rows have the columns that make a state; ``states`` also says where the deciding record stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.folds import workq as fold
from journeyman.formats import workq
from journeyman.formats.timed_frame import Instant
from journeyman.spark.source.options import arrow_schema, struct

_JOBS = struct(
    "_log string, key string, name string, state string, attempts bigint, fails bigint, "
    "started_ns bigint, finished_ns bigint, exhausted boolean, owed_timeouts bigint, "
    "expires_ns bigint"
)
_AS_THEY_ARE = ("name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "payload")
_MAX_NS = 2**63 - 1


def ztick_jobs(records: DataFrame) -> DataFrame:
    """The last record of each job, unless it is a removal."""
    last = _last(records.where(F.col("kind").isin("set", "remove")))
    return last.where(F.col("kind") == "set").select("_log", "identifier", "execution_ns", "status")


def ztick_rules(records: DataFrame) -> DataFrame:
    """The last record of each rule, unless it is a removal."""
    last = _last(records.where(F.col("kind").isin("rule_set", "remove_rule")))
    columns = ("_log", "identifier", "pattern", "runner", "runner_args")
    return last.where(F.col("kind") == "rule_set").select(*columns)


def _last(records: DataFrame) -> DataFrame:
    newest = Window.partitionBy("_log", "identifier").orderBy(F.desc("_position"))
    return records.withColumn("rank", F.row_number().over(newest)).where("rank = 1")


def workq_jobs(records: DataFrame) -> DataFrame:
    """Each job that has an add, folded in log order. ``records`` need ``payloads=True``."""
    of_jobs = records.where(F.col("key").isNotNull()).groupBy("_log", "key")
    return of_jobs.applyInArrow(_fold_job, _JOBS)


def _fold_job(records: pa.Table) -> pa.Table:
    rows = records.sort_by("_position").to_pylist()
    job = fold.fold(_record(row) for row in rows)
    found = [] if not isinstance(job, fold.FoldedJob) else [_job_row(rows[0], job)]
    return pa.Table.from_pylist(found, schema=arrow_schema(_JOBS))


def _job_row(row: Mapping[str, Any], job: fold.FoldedJob) -> dict[str, object]:
    return {
        "_log": row["_log"],
        "key": row["key"],
        "name": job.added.name,
        "state": job.state.name.lower(),
        "attempts": job.attempts,
        "fails": job.fails,
        "started_ns": job.started and job.started.unix_ns,
        "finished_ns": job.finished and job.finished.unix_ns,
        "exhausted": job.exhausted,
        "owed_timeouts": job.owed_timeouts,
        "expires_ns": min(fold.expires_ns(job), _MAX_NS),
    }


def _record(row: Mapping[str, Any]) -> workq.Record:
    """A record again, from its row."""
    logged, job_id = Instant(row["logged_ns"]), row["job_id"]
    command = next(each for each in workq.Command if each.word == row["kind"])
    if row["kind"] in ("complete", "fail", "park"):
        return workq.JobFinished(logged, job_id, command, row["result"])
    if row["kind"] not in ("add", "schedule"):
        return workq.JobEvent(logged, job_id, command)
    return workq.JobAdded(
        logged=logged,
        job_id=job_id,
        time=None if row["time_ns"] is None else Instant(row["time_ns"]),
        created=Instant(row["created_ns"]),
        command=command,
        **{name: row[name] for name in _AS_THEY_ARE},
    )


def kestrel_items(records: DataFrame) -> DataFrame:
    """Each different put of an id, in journal order. ``records`` need ``payloads=True``."""
    what = ["add_time_ms", "expire_time_ms", "error_count", "data_size", "data"]
    puts = records.where(F.col("kind") == "PUT")
    first = puts.groupBy("_log", "queue", "item_id", *what).agg(F.min("_position").alias("at"))
    of_id = Window.partitionBy("_log", "item_id")
    columns = ("_log", "queue", "item_id", *what[:-1])
    ordinal = (F.row_number().over(of_id.orderBy("at")) - 1).alias("ordinal")
    return first.select(*columns, ordinal, (F.count("*").over(of_id) > 1).alias("contested"))
