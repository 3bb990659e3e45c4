"""What is wrong with fan-out queues: ids missing or used twice, readers that cannot be right.

    items    the state table: one row a put          readers   the state table: one row a reader

Ids of a queue are given out one after the other. So a hole between two ids that are still there is
an item that was lost; holes are found segment by segment, from their least and greatest ids and
how many there are, without putting the ids in order.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit.findings import as_findings

_DIALECT = "kestrel"
_FILE = ["_log", "_segment"]


def ids_of_segments(items: DataFrame) -> DataFrame:
    """One row a segment: its least and greatest id, how many, and which were used again."""
    again = F.struct("item_id", F.col("_position").alias("position"))
    return items.groupBy(*_FILE, "_file", "queue").agg(
        F.min("item_id").alias("least"),
        F.max("item_id").alias("greatest"),
        F.count_if(F.col("ordinal") == 0).alias("ids"),
        F.min("_position").alias("position"),
        F.collect_list(F.when(F.col("ordinal") > 0, again)).alias("reused"),
    )


def findings(ids: DataFrame, readers: DataFrame) -> list[DataFrame]:
    """``ids`` from ids_of_segments."""
    return [_holes(ids), _reused(ids), _readers(readers)]


def _holes(ids: DataFrame) -> DataFrame:
    before = F.lag("greatest").over(Window.partitionBy("_log").orderBy("_segment"))
    between = F.coalesce(F.greatest(F.col("least") - before - 1, F.lit(0)), F.lit(0))
    inside = F.greatest(F.col("greatest") - F.col("least") + 1 - F.col("ids"), F.lit(0))
    counted = ids.withColumns({"between": between, "inside": inside})
    missing = counted.where(F.col("between") + F.col("inside") > 0)
    detail = F.format_string(
        "ids missing: %d before %d, %d behind it in %s",
        F.col("between"),
        F.col("least"),
        F.col("inside"),
        F.col("_file"),
    )
    return as_findings(missing, "vanished", _DIALECT, detail=detail, key="queue")


def _reused(ids: DataFrame) -> DataFrame:
    again = ids.select("_log", "queue", F.inline("reused"))
    detail = F.format_string("another item of queue %s has this id; both are kept", F.col("queue"))
    return as_findings(again, "reused-id", _DIALECT, detail=detail, key="item_id")


def _readers(readers: DataFrame) -> DataFrame:
    known = F.col("head").isNotNull()
    last = F.greatest(F.col("head"), F.coalesce(F.array_max("done"), F.col("head")))
    finding = (
        F.when(F.col("damaged"), F.lit("checkpoint-damaged"))
        .when(known & (last > F.col("tail_id")), F.lit("reader-ahead"))
        .when(known & (F.col("head") < F.col("first_id") - 1), F.lit("reader-behind"))
    )
    detail = F.format_string(
        "reader '%s' of queue %s: head %s, items %d to %d",
        F.col("reader"),
        F.col("queue"),
        F.coalesce(F.col("head").cast("string"), F.lit("not known")),
        F.col("first_id"),
        F.col("tail_id"),
    )
    odd = readers.withColumn("finding", finding).where(F.col("finding").isNotNull())
    return as_findings(
        odd, F.col("finding"), _DIALECT, detail=detail, key="reader", position="_position"
    )


def needed_bytes(records: DataFrame, readers: DataFrame) -> DataFrame:
    """Puts that some reader is not past; of each reader its last head, and all finished ids."""
    # A reader stands where the server would open it: not every checkpoint is believed.
    opened = readers.where(F.col("_file").isNotNull() & F.col("opened_head").isNotNull())
    standing = opened.groupBy("_log").agg(
        F.collect_list(F.struct("opened_head", "opened_done")).alias("readers")
    )
    item = F.col("item_id")
    past_all = F.forall(
        "readers",
        lambda reader: (
            (item <= reader["opened_head"]) | F.array_contains(reader["opened_done"], item)
        ),
    )
    is_checkpoint = F.col("reader").isNotNull()
    is_head = is_checkpoint & (F.col("kind") == "READ_HEAD")
    live = (
        F.when(is_checkpoint, F.col("kind") == "READ_DONE")
        # Without a reader nothing is finished.
        .otherwise((F.col("kind") == "PUT") & F.coalesce(~past_all, F.lit(True)))
    )
    length = F.col("_length").cast("long")
    summed = (
        records.join(F.broadcast(standing), "_log", "left")
        .groupBy(*_FILE)
        .agg(
            F.sum(F.when(live, length).otherwise(F.lit(0))).alias("bytes"),
            F.max_by(F.when(is_head, length), F.when(is_head, F.col("_position"))).alias("head"),
        )
    )
    total = F.col("bytes") + F.coalesce("head", F.lit(0))
    return summed.select(*_FILE, total.alias("live_bytes"))
