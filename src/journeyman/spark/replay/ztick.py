"""The state of ztick logs: the last record of each job and of each rule, if it is no removal.

packets of the last records in each task  ->  the last of these in each bucket
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from journeyman.spark.replay.merging import PLACE, merged, of_table
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

_ROWS: Final = "journeyman.spark.replay.ztick_tasks"


def jobs(frame: DataFrame) -> DataFrame:
    """All jobs that exist, by the records of the source."""
    return merged(of_table(packets_of(frame, "ztick"), "jobs"), f"{_ROWS}:job_rows", JOBS)


def rules(frame: DataFrame) -> DataFrame:
    """All rules that exist, by the records of the source."""
    return merged(of_table(packets_of(frame, "ztick"), "rules"), f"{_ROWS}:rule_rows", RULES)
