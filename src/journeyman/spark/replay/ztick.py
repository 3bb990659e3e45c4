"""The state of ztick logs: the last record of each job and of each rule, if it is no removal.

packets of the last records in each task  ->  the last of these in each bucket
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from journeyman.spark.replay.merging import PLACE, StateTable, merge_packets
from journeyman.spark.replay.packing import packets_of

JOBS: Final = StructType(
    [
        *PLACE.fields,
        StructField("identifier", StringType()),
        StructField("execution_ns", LongType()),
        StructField("status", StringType()),
    ]
)
RULES: Final = StructType(
    [
        *PLACE.fields,
        StructField("identifier", StringType()),
        StructField("pattern", StringType()),
        StructField("runner", StringType()),
        StructField("runner_args", ArrayType(StringType())),
    ]
)

_TASKS: Final = "journeyman.spark.replay.ztick_tasks"
_JOBS: Final = StateTable("jobs", "jobs", f"{_TASKS}:job_rows", JOBS)
_RULES: Final = StateTable("rules", "rules", f"{_TASKS}:rule_rows", RULES)
TABLES: Final = (_JOBS, _RULES)


def jobs(frame: DataFrame) -> DataFrame:
    """All jobs that exist, by the records of the source."""
    return merge_packets(packets_of(frame, "ztick"), _JOBS)


def rules(frame: DataFrame) -> DataFrame:
    """All rules that exist, by the records of the source."""
    return merge_packets(packets_of(frame, "ztick"), _RULES)
