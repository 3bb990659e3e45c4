"""What is wrong with a schedule: run twice, not run, cut off, removed without having been set.

    log    which plans there were and what became of them      runs   what really ran, and when

Without noted runs (a log of the original, or history turned off) nothing can be said about runs
that happened twice; the other findings need the log alone. One aggregation of the records, by job
and time planned for, is what everything here is made from.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit.findings import as_findings, moment_text
from journeyman.spark.history.ztick_attempts import STATUSES, plans_of
from journeyman.spark.source.schemas import SEGMENT_SHIFT

_DIALECT = "ztick"
_PLAN = ["_log", "key", "ready_ns"]


def findings(groups: DataFrame, runs: DataFrame, as_of_ns: int, grace_ns: int) -> list[DataFrame]:
    """From ``grouped`` records. Late is what was over by ``grace_ns`` at ``as_of_ns``."""
    planned = plans_of(groups)
    ran = runs.withColumnsRenamed({"job": "key", "execution_ns": "ready_ns"})
    return [
        _duplicates(planned, ran),
        _cut_off(ran),
        _not_run(planned, as_of_ns - grace_ns),
        _orphans(groups),
    ]


def needed_bytes(groups: DataFrame) -> DataFrame:
    """The last record of each job and rule that exists: _log, _segment, live_bytes."""
    last = groups.groupBy("_log", "key", "is_rule").agg(
        F.max("latest").alias("latest"),
        F.max(F.when(F.col("is_set"), F.col("latest"))).alias("latest_set"),
        F.max_by("last_length", "latest").alias("length"),
    )
    segment = F.shiftright(F.floor(F.col("latest") / len(STATUSES)), SEGMENT_SHIFT).cast("int")
    return (
        last.where(F.col("latest") == F.col("latest_set"))
        .groupBy("_log", segment.alias("_segment"))
        .agg(F.sum("length").alias("live_bytes"))
    )


def _duplicates(planned: DataFrame, ran: DataFrame) -> DataFrame:
    """More runs of one plan than times it was planned. A log that was compacted shows one plan."""
    ended = ran.where(F.col("outcome") != "cut-off")
    counted = ended.groupBy(*_PLAN).agg(
        F.count("*").alias("runs"),
        F.min("started_ns").alias("first_ns"),
        F.max("started_ns").alias("last_ns"),
    )
    often = counted.where(F.col("runs") > 1).join(planned, _PLAN, "left")
    twice = often.where(F.col("runs") > F.greatest(F.coalesce("plans", F.lit(1)), F.lit(1)))
    detail = F.format_string(
        "ran %d times for %s: first %s, last %s",
        F.col("runs"),
        *(moment_text(F.col(name)) for name in ("ready_ns", "first_ns", "last_ns")),
    )
    return as_findings(twice, "duplicate-execution", _DIALECT, detail=detail)


def _cut_off(ran: DataFrame) -> DataFrame:
    cut_off = ran.where(F.col("outcome") == "cut-off")
    detail = F.format_string(
        "cut off by a stop at %s, by rule %s", moment_text(F.col("ended_ns")), F.col("rule")
    )
    return as_findings(cut_off, "cut-off-run", _DIALECT, detail=detail, position=None)


def _not_run(planned: DataFrame, late_ns: int) -> DataFrame:
    late = planned.where(
        F.col("outcome").isin("planned", "triggered") & (F.col("ready_ns") < late_ns)
    )
    is_missed = F.col("outcome") == "planned"
    finding = F.when(is_missed, F.lit("missed-run")).otherwise(F.lit("never-executed"))
    what = F.when(is_missed, F.lit("still planned")).otherwise(F.lit("triggered, no end recorded"))
    detail = F.format_string("due at %s: %s", moment_text(F.col("ready_ns")), what)
    return as_findings(late, finding, _DIALECT, detail=detail)


def _orphans(groups: DataFrame) -> DataFrame:
    """Removals of what was never set, as far as this log goes back."""
    named = groups.groupBy("_log", "key", "is_rule").agg(
        F.bool_or("is_set").alias("was_set"), F.min("position").alias("position")
    )
    what = F.when(F.col("is_rule"), F.lit("rule")).otherwise(F.lit("job"))
    detail = F.format_string("removal of a %s that this log does not know", what)
    return as_findings(named.where(~F.col("was_set")), "orphan", _DIALECT, detail=detail)
