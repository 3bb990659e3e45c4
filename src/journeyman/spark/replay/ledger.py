"""The state of ledgers: the last record of each family and key, if it removes nothing.

A ledger is small, so this is a plain query on the rows of the source, without packets. Records
without a key stand by themselves; the same record twice is one.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.source.options import DAMAGE_KIND

_ROW = "_last"


def entries(frame: DataFrame) -> DataFrame:
    """What is in effect, by the records of the source; its columns, without the removed."""
    own_key = F.concat_ws(" ", "logged_ns", "payload")
    columns = [F.col(name) for name in ("_log", "family", "key")]
    about = Window.partitionBy(*columns, F.when(F.col("key").isNull(), own_key))
    last = F.row_number().over(about.orderBy(F.col("_position").desc()))
    records = frame.where(F.col("kind") != DAMAGE_KIND).withColumn(_ROW, last)
    removed = F.coalesce("removes", F.lit(False))
    return records.where((F.col(_ROW) == 1) & ~removed).drop(_ROW, "removes")
