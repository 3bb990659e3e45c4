"""A quick look at DataFrames, for commands that show them: damage counted, the first rows.

Each is one action, so that a log is not read more often than it must be.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

__all__ = ["DataFrame", "SparkSession", "count_damage", "first_rows", "in_driver", "named"]


def count_damage(records: DataFrame) -> tuple[int, int]:
    """In how many places the logs are damaged, and how many bytes that is."""
    is_damage = F.col("kind") == "damage"
    found = records.agg(
        F.count_if(is_damage).alias("places"),
        F.sum(F.when(is_damage, F.col("_length"))).alias("damaged_bytes"),
    ).collect()[0]
    return int(found["places"]), int(found["damaged_bytes"] or 0)


def in_driver(packets: DataFrame) -> tuple[DataFrame, tuple[int, int]]:
    """The packets of small logs, fetched; and their damage, counted without asking Spark again."""
    fetched = packets.toArrow()
    kinds, lengths = (fetched.column(name).to_pylist() for name in ("kind", "_length"))
    sizes = [size or 0 for kind, size in zip(kinds, lengths, strict=True) if kind == "damage"]
    held = packets.sparkSession.createDataFrame(fetched, packets.schema)
    return held, (len(sizes), sum(sizes))


def first_rows(frame: DataFrame, columns: Sequence[str], limit: int) -> tuple[DataFrame, int]:
    """The first rows in log order, held in the driver, and the number of all."""
    counting = Observation()
    counted_rows = frame.observe(counting, F.count(F.lit(1)).alias("rows"))
    some = counted_rows.orderBy("_log", "_position").limit(max(limit, 1)).select(*columns)
    held = frame.sparkSession.createDataFrame(some.collect(), some.schema)
    return held, int(counting.get["rows"])


def named(frame: DataFrame, table: str) -> DataFrame:
    """The rows with the name of their table in front."""
    return frame.select(F.lit(table).alias("table"), "*")
