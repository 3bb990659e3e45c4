"""The results of an audit: one table of findings of all kinds, and an account of files.

    finding               severity   what it means
    duplicate-execution   serious    something ran, or got a result, more than once
    missed-run            serious    its time passed and it did not run
    never-executed        serious    it was triggered, and no end is recorded
    vanished              serious    it was there, and no record says that it ended
    reader-ahead          serious    a reader has finished more than there is: items were lost
    checkpoint-damaged    serious    nobody knows how far a reader has come
    reused-id             serious    different items under one id
    damage                serious    bytes that are no record
    only-here only-there  serious    a comparison: the other side does not have it
    different             serious    a comparison: both have it, not the same
    cut-off-run           warning    a stop ended the run; what it did by then it did
    overlapping-lease     warning    leased again while a worker still had it
    over-limit            warning    leased more often than max-attempts allows
    expired-unrun         warning    its time to live was over before anybody leased it
    orphan                warning    a record about something of which no beginning is known
    reader-behind         warning    items were erased that a reader had not been given
    unknown-record        warning    a record of another version of the format
    dead-bytes            info       bytes of a file that the state no longer needs
    ended-here            info       a comparison: it has ended here, and lives on there

Every row names its log; ``key`` and ``position`` are null where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from journeyman.spark.source.options import struct

SERIOUS, WARNING, INFO = SEVERITIES = ("serious", "warning", "info")
SEVERITY = {
    "duplicate-execution": SERIOUS,
    "missed-run": SERIOUS,
    "never-executed": SERIOUS,
    "vanished": SERIOUS,
    "reader-ahead": SERIOUS,
    "checkpoint-damaged": SERIOUS,
    "reused-id": SERIOUS,
    "damage": SERIOUS,
    "only-here": SERIOUS,
    "only-there": SERIOUS,
    "different": SERIOUS,
    "cut-off-run": WARNING,
    "overlapping-lease": WARNING,
    "over-limit": WARNING,
    "expired-unrun": WARNING,
    "orphan": WARNING,
    "reader-behind": WARNING,
    "unknown-record": WARNING,
    "dead-bytes": INFO,
    "ended-here": INFO,
}
FINDINGS = struct(
    "finding string, severity string, dialect string, log string, key string, position bigint, "
    "detail string"
)
SEGMENTS = struct(
    "dialect string, _log string, _segment int, _file string, records bigint, "
    "record_bytes bigint, live_bytes bigint, dead_bytes bigint, damages bigint, "
    "damaged_bytes bigint"
)


def as_findings(rows: DataFrame, dialect: str) -> DataFrame:
    """Return the rows of a view of findings in words: severity, dialect and moments as texts."""
    detail = F.col("detail")
    for number in (1, 2, 3):
        moment = F.col(f"ns_{number}")
        text = F.replace(detail, F.lit(f"@{number}"), moment_text(moment))
        detail = F.when(moment.isNull(), detail).otherwise(text)
    return rows.select(
        "finding",
        by_word(F.col("finding"), SEVERITY).alias("severity"),
        F.lit(dialect).alias("dialect"),
        F.col("_log").alias("log"),
        "key",
        "position",
        detail.alias("detail"),
    )


def by_word(column: Column, values: Mapping[str, Column | str | int]) -> Column:
    """Return, for each word of a column, what stands beside it here; null for any other word."""
    return F.coalesce(
        *(
            F.when(column == word, value if isinstance(value, Column) else F.lit(value))
            for word, value in values.items()
        )
    )


def together(spark: SparkSession, frames: Sequence[DataFrame], schema: StructType) -> DataFrame:
    """All rows in one table; with no frame at all, an empty one."""
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionByName, frames)


def most_serious(findings: DataFrame, count: int) -> DataFrame:
    """Return so many findings, the most serious first."""
    return findings.orderBy(_rank(), "finding", "log", "position", "key").limit(count)


def count_findings(findings: DataFrame) -> DataFrame:
    """How many of each: finding, severity, count, logs; the most serious first."""
    counted = findings.groupBy("finding", "severity").agg(
        F.count("*").alias("count"), F.count_distinct("log").alias("logs")
    )
    return counted.orderBy(_rank(), F.desc("count"), "finding")


def _rank() -> Column:
    return by_word(F.col("severity"), {level: place for place, level in enumerate(SEVERITIES)})


def moment_text(ns: Column) -> Column:
    """Nanoseconds since 1970 as people read them, to the millisecond, in UTC."""
    return F.concat(
        F.date_format(F.timestamp_micros(F.floor(ns / 1000)), "yyyy-MM-dd'T'HH:mm:ss.SSS"),
        F.lit("Z"),
    )


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
    """Findings: what one side has and the other has not, or not alike.

    What is compared is the final state, not the records: a compacted log equals the one it was made
    from. On each side a key counts once, in whichever of its logs it stands; positions say nothing.
    A key that is only there, but whose end is recorded here, has merely ended earlier:
    ``ended-here``.
    """
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
    nothing = dict.fromkeys(("ns_1", "ns_2", "ns_3"), F.lit(None).cast("long"))
    found = joined.withColumns(
        {
            "finding": finding,
            "_log": F.coalesce("ours.log", "theirs.log"),
            "key": name,
            "position": F.coalesce("ended", "ours.position"),
            **nothing,
        }
    ).where(F.col("finding").isNotNull())
    return as_findings(found.withColumn("detail", _detail(compared)), compared.dialect)


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
                    _state_text(f"ours.values.{name}"),
                    _state_text(f"theirs.values.{name}"),
                ),
            )
            for name in compared.values
        ),
    )
    texts = {
        "only-here": F.lit(f"{compared.what} that the other side does not have"),
        "only-there": F.concat(
            F.lit(f"{compared.what} of "),
            F.col("theirs.log"),
            F.lit(" that is not here, and no record says that it ended"),
        ),
        "ended-here": F.concat(F.lit(f"{compared.what} that lives on in "), F.col("theirs.log")),
        "different": F.concat(F.lit(f"{compared.what}: "), differing),
    }
    return by_word(F.col("finding"), texts)


def _state_text(name: str) -> Column:
    """``{"status":"planned"}`` -> ``"planned"``; nothing is ``none``."""
    value = F.regexp_extract(F.col(name), r'^\{"[^"]*":(.*)\}$', 1)
    return F.when(value == "", F.lit("none")).otherwise(value)
