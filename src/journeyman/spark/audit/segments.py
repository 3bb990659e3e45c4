"""Every file of a log: records, damage, and how many of its bytes the state still needs.

    file   [live][dead][dead][#### damage ####][live][dead]

A byte is live when the state needs its record: the last SET of a job or rule that exists, every
record of a work job that exists, an item that some reader still has to be given, the last word of
a reader. The same account as that of ``journeyman verify``, for logs of any size.

One look at all records gives the totals of every file, and in the same look what is odd about
single records: damage, and commands of another version.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from journeyman.spark.audit.findings import as_findings

SEGMENTS = StructType(
    [
        StructField("dialect", StringType()),
        StructField("_log", StringType()),
        StructField("_segment", IntegerType()),
        StructField("_file", StringType()),
        StructField("records", LongType()),
        StructField("record_bytes", LongType()),
        StructField("live_bytes", LongType()),
        StructField("dead_bytes", LongType()),
        StructField("damages", LongType()),
        StructField("damaged_bytes", LongType()),
    ]
)
_FILE = ["_log", "_segment"]


def totals(records: DataFrame) -> DataFrame:
    """One row a file that holds anything; few rows, so whoever needs it twice may keep it."""
    is_damage = F.col("kind") == "damage"
    length = F.col("_length").cast("long")
    odd = F.struct("kind", F.col("_position").alias("position"), "_length", "_damage")
    return records.groupBy(*_FILE, "_file").agg(
        F.count_if(~is_damage).alias("records"),
        _sum_where(~is_damage, length).alias("record_bytes"),
        F.count_if(is_damage).alias("damages"),
        _sum_where(is_damage, length).alias("damaged_bytes"),
        F.collect_list(F.when(is_damage | (F.col("kind") == "UNKNOWN"), odd)).alias("odd"),
    )


def segments(files: DataFrame, live: DataFrame, dialect: str) -> DataFrame:
    """``totals`` with what is needed of each file. ``live``: _log, _segment, live_bytes."""
    needed = F.coalesce(F.col("live_bytes"), F.lit(0).cast("long"))
    return files.join(live, _FILE, "left").select(
        F.lit(dialect).alias("dialect"),
        "_log",
        "_segment",
        "_file",
        "records",
        "record_bytes",
        needed.alias("live_bytes"),
        (F.col("record_bytes") - needed).alias("dead_bytes"),
        "damages",
        "damaged_bytes",
    )


def odd_records(files: DataFrame, dialect: str) -> DataFrame:
    """Damaged stretches, and records of another version, one finding each."""
    odd = files.select("_log", "_file", F.inline("odd"))
    is_damage = F.col("kind") == "damage"
    finding = F.when(is_damage, F.lit("damage")).otherwise(F.lit("unknown-record"))
    what = F.coalesce("_damage", F.lit("unknown command"))
    detail = F.format_string("%s, %d bytes of %s", what, F.col("_length"), F.col("_file"))
    return as_findings(odd, finding, dialect, detail=detail, key=None)


def dead_bytes(account: DataFrame) -> DataFrame:
    """Files with dead bytes, as findings."""
    share = F.floor(F.col("dead_bytes") * 100 / F.col("record_bytes"))
    detail = F.format_string(
        "%d of %d bytes (%d %%) of %s",
        F.col("dead_bytes"),
        F.col("record_bytes"),
        share,
        F.col("_file"),
    )
    dead = account.where(F.col("dead_bytes") > 0)
    return as_findings(dead, "dead-bytes", F.col("dialect"), detail=detail, key=None, position=None)


def _sum_where(condition: Column, number: Column) -> Column:
    return F.sum(F.when(condition, number).otherwise(F.lit(0)))
