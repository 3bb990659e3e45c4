"""A quick look at DataFrames, for commands that show them: damage counted, the first rows.

Each is one action, so that a log is not read more often than it must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.source.sources import damage_read


class DamageFound(NamedTuple):
    """How much of some logs is damaged. ``file`` is one of the files; at least so many records."""

    files: int
    places: int
    damaged_bytes: int
    records: int
    file: str


def damage_in(spark: SparkSession) -> DamageFound:
    """The damage in all logs that were read in this session.

    They are walked through once more for it, which is several times as fast as reading them.
    """
    frames = damage_read(spark)
    if not frames:
        return DamageFound(0, 0, 0, 0, "")
    # Several reads may have met the same damage.
    places = reduce(DataFrame.union, frames).distinct()
    # Of an entry cut short, or a header, it cannot be told whether a record was lost.
    is_record = F.col("_damage").rlike("^(corrupt|padding): ")
    found = places.agg(
        F.count_distinct("_file"),
        F.count(F.lit(1)),
        F.coalesce(F.sum("_length"), F.lit(0)),
        F.count_if(is_record),
        F.coalesce(F.min("_file"), F.lit("")),
    ).collect()[0]
    return DamageFound(*found)


def damaged_places(records: DataFrame) -> int:
    """In how many places the logs are damaged."""
    found = records.agg(F.count_if(F.col("kind") == "damage")).collect()[0][0]
    return int(found)


def in_driver(packets: DataFrame) -> tuple[DataFrame, int]:
    """The packets of small logs, fetched; and in how many places these are damaged."""
    fetched = packets.toArrow()
    places = fetched.column("kind").to_pylist().count("damage")
    return packets.sparkSession.createDataFrame(fetched, packets.schema), places


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
