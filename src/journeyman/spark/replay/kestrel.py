"""The state of kestrel queues: their items, and where their readers stand.

    packets of puts         --by block of ids--> items; the same put twice is one
    packets of checkpoints  --by queue-->        readers, as folded and as an opened queue sees them
    damage of a checkpoint  --/

A reader is opened with the ids of the whole queue in mind (``open_queue``). All it needs of them is
the least and the greatest, of which a row without a packet tells.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
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

from journeyman.spark.replay.merging import PLACE, StateTable, merge_packets, merge_rows
from journeyman.spark.replay.packing import packets_of
from journeyman.spark.source.options import DAMAGE_KIND

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


_TASKS: Final = "journeyman.spark.replay.kestrel_tasks"
_ITEMS: Final = StateTable("items", "items", f"{_TASKS}:item_rows", ITEMS)
_READERS: Final = StateTable("readers", "readers", f"{_TASKS}:reader_rows", READERS)
TABLES: Final = (_ITEMS, _READERS)


def items(frame: DataFrame) -> DataFrame:
    """All items that were put, by the records of the source."""
    return merge_packets(packets_of(frame, "kestrel"), _ITEMS)


def readers(frame: DataFrame) -> DataFrame:
    """All readers of all queues, by the records of the source."""
    packets = packets_of(frame, "kestrel")
    is_damage = F.col("kind") == DAMAGE_KIND
    wanted = (
        packets.filter(is_damage | (F.col("table") == "readers"))
        .withColumn("table", F.lit("readers"))
        .withColumn("bucket", F.lit(0))
    )
    return merge_rows(wanted, _READERS)


def waiting(items: DataFrame, readers: DataFrame) -> DataFrame:
    """Of ``items``, those that some reader still has to be given.

    All of them in a queue without a checkpoint: nobody has read anything.
    """
    opened = readers.filter(F.col("_file").isNotNull() & F.col("opened_head").isNotNull())
    heads = opened.groupBy("_log").agg(F.collect_list("opened_head").alias("_heads"))
    done = opened.select("_log", F.explode("opened_done").alias("item_id"))
    done = done.groupBy("_log", "item_id").agg(F.count("*").alias("_done_by"))
    past_head = F.size(F.filter("_heads", lambda head: head >= F.col("item_id")))
    past = past_head + F.coalesce(F.col("_done_by"), F.lit(0))
    is_dead = F.coalesce(past >= F.size("_heads"), F.lit(False))
    return (
        items.join(F.broadcast(heads), "_log", "left")
        .join(done, ["_log", "item_id"], "left")
        .filter(~is_dead)
        .select(*items.columns)
    )
