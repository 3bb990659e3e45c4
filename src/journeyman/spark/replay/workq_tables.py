"""The columns of the tables of workq jobs and orphans."""

from __future__ import annotations

from typing import Final

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

from journeyman.spark.replay.merging import PLACE

__all__ = ["JOBS", "ORPHANS", "ORPHAN_RECORD"]

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
