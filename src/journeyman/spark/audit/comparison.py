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
