"""The columns of the tables of kestrel items and readers."""

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

__all__ = ["ITEMS", "READERS"]

ITEMS: Final = StructType(
    [
        *PLACE.fields,
        StructField("queue", StringType()),
        StructField("item_id", LongType()),
        StructField("add_time_ms", LongType()),
        StructField("expire_time_ms", LongType()),
        StructField("error_count", IntegerType()),
        StructField("data_size", IntegerType()),
        StructField("data", BinaryType()),
        StructField("ordinal", IntegerType()),
        StructField("contested", BooleanType()),
    ]
)
READERS: Final = StructType(
    [
        *PLACE.fields,
        StructField("queue", StringType()),
        StructField("reader", StringType()),
        StructField("head", LongType()),
        StructField("done", ArrayType(LongType())),
        StructField("damaged", BooleanType()),
        StructField("opened_head", LongType()),
        StructField("opened_done", ArrayType(LongType())),
        StructField("first_id", LongType()),
        StructField("tail_id", LongType()),
    ]
)
