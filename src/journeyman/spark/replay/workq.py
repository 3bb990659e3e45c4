"""The state of workq logs: every job from its add on, and records whose add is not there.

    packets of events, in log order --fold of each bucket--> jobs, orphans

The fold is journeyman.columnar.workq.fold, which is journeyman.folds.workq in bulk. It needs no
payloads; where two adds can only be told apart by theirs, they are read from the log again.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from journeyman.spark.replay.merging import PLACE, StateTable, merge_packets
from journeyman.spark.replay.packing import packets_of

JOBS: Final = StructType(
    [
        *PLACE.fields,
        StructField("key", StringType()),
        StructField("job_id", BinaryType()),
        StructField("kind", StringType()),
        StructField("logged_ns", LongType()),
        StructField("name", StringType()),
        StructField("ttr_ms", LongType()),
        StructField("ttl_ms", LongType()),
        StructField("priority", IntegerType()),
        StructField("max_attempts", LongType()),
        StructField("max_fails", LongType()),
        StructField("payload_size", IntegerType()),
        StructField("payload", BinaryType()),
        StructField("time_ns", LongType()),
        StructField("created_ns", LongType()),
        StructField("state", StringType()),
        StructField("attempts", LongType()),
        StructField("fails", LongType()),
        StructField("result_size", IntegerType()),
        StructField("result", BinaryType()),
        StructField("started_ns", LongType()),
        StructField("finished_ns", LongType()),
        StructField("exhausted", BooleanType()),
        StructField("owed_timeouts", LongType()),
        StructField("expires_ns", LongType()),
        StructField("started_position", LongType()),
        StructField("finished_position", LongType()),
        StructField("result_position", LongType()),
        StructField("result_file", StringType()),
        StructField("result_length", IntegerType()),
    ]
)
ORPHAN_RECORD: Final = StructType(
    [
        StructField("position", LongType()),
        StructField("length", IntegerType()),
        StructField("kind", StringType()),
        StructField("logged_ns", LongType()),
        StructField("result_size", IntegerType()),
    ]
)
ORPHANS: Final = StructType(
    [
        *PLACE.fields,
        StructField("key", StringType()),
        StructField("job_id", BinaryType()),
        StructField("records", ArrayType(ORPHAN_RECORD)),
    ]
)


_TASKS: Final = "journeyman.spark.replay.workq_tasks"
_JOBS: Final = StateTable("jobs", "jobs", f"{_TASKS}:job_rows", JOBS)
_ORPHANS: Final = StateTable("orphans", "jobs", f"{_TASKS}:orphan_rows", ORPHANS)
TABLES: Final = (_JOBS, _ORPHANS)


def jobs(frame: DataFrame) -> DataFrame:
    """All jobs that were added and have not ended, by the records of the source."""
    return merge_packets(packets_of(frame, "workq"), _JOBS)


def orphans(frame: DataFrame) -> DataFrame:
    """Records of jobs without an add, one row a job id."""
    return merge_packets(packets_of(frame, "workq"), _ORPHANS)


def visible(frame: DataFrame, as_of_ns: int) -> DataFrame:
    """Of ``jobs``, those that exist at this moment, with the queue in which each waits.

    ``queue`` is ``scheduled``, ``ready``, or null for a job that is leased or finished.
    """
    moment = F.lit(as_of_ns).cast("long")
    waits: Column = F.when(
        F.col("state") == "new",
        F.when(F.col("time_ns") > moment, "scheduled").otherwise("ready"),
    ).when(F.col("state") == "pending", "ready")
    return frame.filter(F.col("expires_ns") > moment).withColumn("queue", waits)
