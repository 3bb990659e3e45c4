"""Items of kestrel queues and how far each reader has come, as far as a journal tells.

A journal says when an item was put. When it was delivered or confirmed is written nowhere: a
checkpoint has no time, and the one before it is overwritten. So an item has no start and no end
here, only an outcome:

    finished    every reader is past it
    waiting     some reader still has to be given it
    expired     likewise, but its time is over: a reader will step over it

Lag is exact, but only as of the last checkpoint of each reader.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.columns import as_attempts, expired_by
from journeyman.units import NS_PER_MS


def attempts(items: DataFrame, readers: DataFrame, as_of_ns: int | None = None) -> DataFrame:
    """One row an item, from the state tables of the journal."""
    standing = (
        _standing(readers)
        .groupBy("_log")
        .agg(F.collect_list(F.struct("head", "done")).alias("readers"))
    )
    put_ns = F.try_multiply(F.col("add_time_ms"), F.lit(NS_PER_MS))
    expires_ns = F.try_multiply(F.col("expire_time_ms"), F.lit(NS_PER_MS))
    finished = F.forall(
        "readers", lambda reader: _is_past(F.col("item_id"), reader["head"], reader["done"])
    )
    outcome = F.when(finished, F.lit("finished")).otherwise(F.lit("waiting"))
    rows = as_attempts(
        items.join(F.broadcast(standing), "_log", "left").select(
            "_log",
            F.lit("kestrel").alias("dialect"),
            F.col("item_id").cast("string").alias("key"),
            "queue",
            F.lit(1).alias("attempt"),
            F.lit(True).alias("first"),
            put_ns.alias("created_ns"),
            put_ns.alias("ready_ns"),
            expires_ns.alias("expires_ns"),
            outcome.alias("outcome"),
            F.col("_position").alias("position"),
        )
    )
    return rows if as_of_ns is None else expired_by(rows, as_of_ns)


def lag(items: DataFrame, readers: DataFrame) -> DataFrame:
    """One row a reader: how many items and bytes are before it, and since when.

    Columns: _log, queue, reader, head, tail_id, items_behind, bytes_behind, oldest_ns.
    """
    narrow = items.select("_log", "item_id", "data_size", "add_time_ms")
    standing = _standing(readers).select("_log", "reader", "head", "done")
    before = narrow.join(F.broadcast(standing), "_log").where(
        ~_is_past(F.col("item_id"), F.col("head"), F.col("done"))
    )
    behind = before.groupBy("_log", "reader").agg(
        F.count("*").alias("items_behind"),
        F.sum(F.col("data_size").cast("long")).alias("bytes_behind"),
        F.try_multiply(F.min("add_time_ms"), F.lit(NS_PER_MS)).alias("oldest_ns"),
    )
    return (
        _standing(readers)
        .select("_log", "queue", "reader", "head", "tail_id")
        .join(behind, ["_log", "reader"], "left")
        .select(
            "_log",
            "queue",
            "reader",
            "head",
            "tail_id",
            F.coalesce("items_behind", F.lit(0)).alias("items_behind"),
            F.coalesce("bytes_behind", F.lit(0)).alias("bytes_behind"),
            "oldest_ns",
        )
    )


def _standing(readers: DataFrame) -> DataFrame:
    """Where the readers stand that opening the queue keeps."""
    return readers.where(F.col("opened_head").isNotNull()).select(
        "_log",
        "queue",
        "reader",
        F.col("opened_head").alias("head"),
        F.col("opened_done").alias("done"),
        "tail_id",
    )


def _is_past(item_id: Column, head: Column, done: Column) -> Column:
    return (item_id <= head) | F.array_contains(done, item_id)
