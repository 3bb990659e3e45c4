"""The columns of a packet's row: see packets.py, which makes and opens them.

By itself, because planning a query needs the columns, and should not import Arrow for them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

PACKET_KIND: Final = "packet"
SEAM_KIND: Final = "seam"  # no packet, but where a part of a file began and ended

PACKET_SCHEMA: Final = StructType(
    [
        StructField("_log", StringType()),
        StructField("_file", StringType()),
        StructField("_segment", IntegerType()),
        StructField("_offset", LongType()),
        StructField("_length", IntegerType()),
        StructField("_position", LongType()),  # the lowest in the packet
        StructField("kind", StringType()),
        StructField("table", StringType()),  # which of the dialect's tables it is for
        StructField("bucket", IntegerType()),
        StructField("records", LongType()),  # of the log that were read for it and those beside it
        StructField("least_id", LongType()),  # kestrel, in rows without a packet: of the items
        StructField("greatest_id", LongType()),
        StructField("queue", StringType()),
        StructField("reader", StringType()),
        StructField("segments", ArrayType(IntegerType())),  # those that records may come from,
        StructField("files", ArrayType(StringType())),  # and their files
        StructField("packet", BinaryType()),
        StructField("reached", LongType()),  # of a seam: behind the last record of its part
        StructField("details", BinaryType()),  # workq: what adds say beyond other records
    ]
)
