"""Items of fan-out queues and how far each reader has come, as far as a journal says."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark import views
from journeyman.units import NS_PER_MS


def attempts(items: DataFrame, readers: DataFrame) -> DataFrame:
    """One row per item, from the state tables of the journal, with the columns of RAW_ATTEMPTS."""
    return _answer("item_attempts", items, readers)


def lag(items: DataFrame, readers: DataFrame) -> DataFrame:
    """One row per reader: _log, queue, reader, head, tail_id, items_behind, bytes_behind,
    oldest_ns."""
    return _answer("lag", items, readers)


def _answer(view: str, items: DataFrame, readers: DataFrame) -> DataFrame:
    put = items.select(
        "_log",
        "queue",
        "item_id",
        "data_size",
        _nanoseconds("add_time_ms").alias("put_ns"),
        _nanoseconds("expire_time_ms").alias("expires_ns"),
        F.col("_position").alias("position"),
    )
    # Readers stand where opening the queue would place them; others it does not keep.
    standing = readers.where(F.col("opened_head").isNotNull()).select(
        "_log",
        "queue",
        "reader",
        F.col("opened_head").alias("head"),
        F.col("opened_done").alias("done"),
        "tail_id",
    )
    tables = {"items": put, "readers": F.broadcast(standing)}
    return views.run_in_spark(items.sparkSession, views.statement(view), **tables)


def _nanoseconds(milliseconds: str) -> Column:
    return F.try_multiply(F.col(milliseconds), F.lit(NS_PER_MS))
