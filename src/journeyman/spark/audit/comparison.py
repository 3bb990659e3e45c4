"""Two sides compared: the state of some logs here, and of others there.

    here  {job: values}      there  {job: values}      only-here   only-there   different

What is compared is the final state, not the records: a compacted log equals the one it was made
from. On each side a key counts once, in whichever of its logs it stands; positions say nothing.
A key that is only there, but whose end is recorded here, has merely ended earlier: ``ended-here``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit.findings import as_findings
from journeyman.spark.source.options import struct


@dataclass(frozen=True, slots=True)
class Compared:
    """One state table: what names a row, what must be equal, and which records end it."""

    dialect: str
    table: str
    what: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    ends: tuple[str, ...] = ()


COMPARED = (
    Compared("ztick", "jobs", "job", ("identifier",), ("execution_ns", "status"), ("remove",)),
    Compared(
        "ztick",
        "rules",
        "rule",
        ("identifier",),
        ("pattern", "runner", "runner_args"),
        ("remove_rule",),
    ),
    Compared(
        "workq",
        "jobs",
        "job",
        ("key",),
        (
            *("kind", "name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails"),
            *("payload_size", "time_ns", "created_ns", "state", "attempts", "fails"),
        ),
        ("delete", "expire"),
    ),
    Compared(
        "kestrel",
        "items",
        "item",
        ("queue", "item_id", "ordinal"),
        ("add_time_ms", "expire_time_ms", "data_size"),
    ),
)


def compare(
    compared: Compared,
    here: DataFrame,
    there: DataFrame,
    records_here: DataFrame | None = None,
) -> DataFrame:
    """Findings: what one side has and the other has not, or not alike."""
    keys = [f"key_{number}" for number in range(len(compared.keys))]
    ours, theirs = _side(compared, here, "ours"), _side(compared, there, "theirs")
    joined = ours.join(theirs, keys, "full_outer")
    name = F.concat_ws(" ", *(F.col(key).cast("string") for key in keys))
    if records_here is not None and compared.ends:
        joined = joined.join(_ends(compared, records_here), keys, "left")
    else:
        joined = joined.withColumn("ended", F.lit(None).cast("long"))
    gone_here = F.when(F.col("ended").isNotNull(), F.lit("ended-here")).otherwise(
        F.lit("only-there")
    )
    finding = (
        F.when(F.col("theirs").isNull(), F.lit("only-here"))
        .when(F.col("ours").isNull(), gone_here)
        .when(F.col("ours.values") != F.col("theirs.values"), F.lit("different"))
    )
    found = joined.withColumns(
        {
            "finding": finding,
            "_log": F.coalesce("ours.log", "theirs.log"),
            "name": name,
            "position": F.coalesce("ended", "ours.position"),
        }
    ).where(F.col("finding").isNotNull())
    return as_findings(
        found, F.col("finding"), compared.dialect, detail=_detail(compared), key="name"
    )


def _side(compared: Compared, state: DataFrame, side: str) -> DataFrame:
    """One row a key: where it stands, and its values as one struct to compare."""
    keys = [F.col(name).alias(f"key_{at}") for at, name in enumerate(compared.keys)]
    values = F.struct(*(_comparable(name) for name in compared.values)).alias("values")
    row = F.struct(F.col("_log").alias("log"), F.col("_position").alias("position"), values)
    # The same key in two logs of one side: the one whose log comes last by name stands for it.
    return (
        state.select(*keys, row.alias("row"))
        .groupBy(*(f"key_{at}" for at in range(len(compared.keys))))
        .agg(F.max("row").alias(side))
    )


def _comparable(name: str) -> Column:
    """Null and absent compare as equal to themselves."""
    return F.coalesce(F.to_json(F.struct(F.col(name))), F.lit("{}")).alias(name)


def _ends(compared: Compared, records: DataFrame) -> DataFrame:
    (key,) = compared.keys
    column = F.col("identifier") if compared.dialect == "ztick" else F.col(key)
    ends = records.where(F.col("kind").isin(*compared.ends))
    return ends.groupBy(column.alias("key_0")).agg(F.max("_position").alias("ended"))


def _detail(compared: Compared) -> Column:
    differing = F.concat_ws(
        ", ",
        *(
            F.when(
                F.col(f"ours.values.{name}") != F.col(f"theirs.values.{name}"),
                F.format_string(
                    "%s %s there %s",
                    F.lit(name),
                    _shown(f"ours.values.{name}"),
                    _shown(f"theirs.values.{name}"),
                ),
            )
            for name in compared.values
        ),
    )
    words: Mapping[str, Column] = {
        "only-here": F.lit(f"{compared.what} that the other side does not have"),
        "only-there": F.concat(
            F.lit(f"{compared.what} of "),
            F.col("theirs.log"),
            F.lit(" that is not here, and no record says that it ended"),
        ),
        "ended-here": F.concat(F.lit(f"{compared.what} that lives on in "), F.col("theirs.log")),
        "different": F.concat(F.lit(f"{compared.what}: "), differing),
    }
    detail = F.lit(None).cast("string")
    for finding, text in words.items():
        detail = F.when(F.col("finding") == finding, text).otherwise(detail)
    return detail


def _shown(name: str) -> Column:
    """``{"status":"planned"}`` -> ``"planned"``; nothing is ``none``."""
    value = F.regexp_extract(F.col(name), r'^\{"[^"]*":(.*)\}$', 1)
    return F.when(value == "", F.lit("none")).otherwise(value)


# ----------------------------------------
# Every file of a log: records, damage, and how many of its bytes the state still needs.
#
#     file   [live][dead][dead][#### damage ####][live][dead]
#
# A byte is live when the state needs its record: the last SET of a job or rule that exists, every
# record of a work job that exists, an item that some reader still has to be given, the last word of
# a reader. The same account as that of ``journeyman verify``, for logs of any size.
#
# One look at all records gives the totals of every file, and in the same look what is odd about
# single records: damage, and commands of another version.

SEGMENTS = struct(
    "dialect string, _log string, _segment int, _file string, records bigint, "
    "record_bytes bigint, live_bytes bigint, dead_bytes bigint, damages bigint, "
    "damaged_bytes bigint"
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
