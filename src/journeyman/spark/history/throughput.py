"""How much came, was started and ended, by group and bucket of time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.buckets import bucket_of
from journeyman.spark.history.columns import grouped_by, moment

# What is counted, in the bucket of which time, and for which rows. A job is added once, whatever
# attempts follow; a plan of a schedule is due once, and the log does not say when it was made. A
# run that nobody recorded (no rule matched, or the server kept no history) has no times of its own:
# its end counts at the time it was planned for.
COUNTS = (
    "added",
    "due",
    "started",
    "completed",
    "failed",
    "timed_out",
    "cut_off",
    "expired",
    "deleted",
)
_ENDS = {
    "completed": ("completed", "executed"),
    "failed": ("failed",),
    "timed_out": ("timed-out",),
    "cut_off": ("cut-off",),
    "expired": ("expired",),
    "deleted": ("deleted", "replaced"),
}


def throughput(
    attempts: DataFrame, bucket_ns: int, by: str = "queue", until_ns: int | None = None
) -> DataFrame:
    """One row a log, group and bucket: _log, group, time, bucket_ns, and a count of each kind."""
    each = attempts.select("_log", grouped_by(by), F.inline(_happenings()))
    happened = each.where(F.col("ns").isNotNull() if until_ns is None else F.col("ns") <= until_ns)
    bucket = bucket_of(F.col("ns"), bucket_ns).alias("bucket_ns")
    counted = happened.groupBy("_log", "group", bucket).agg(
        *(F.count_if(F.col("what") == name).alias(name) for name in COUNTS)
    )
    return counted.select(
        "_log", "group", moment(F.col("bucket_ns")).alias("time"), "bucket_ns", *COUNTS
    )


def _happenings() -> Column:
    first = F.col("first")
    dropped = F.col("outcome").isin("replanned", "removed")
    is_plan = (F.col("dialect") == "ztick") & first & ~dropped
    what_ended = F.lit(None).cast("string")
    for name, outcomes in _ENDS.items():
        what_ended = F.when(F.col("outcome").isin(*outcomes), F.lit(name)).otherwise(what_ended)
    return F.array(
        _happening(F.when(first, F.col("created_ns")), F.lit("added")),
        _happening(F.when(is_plan, F.col("ready_ns")), F.lit("due")),
        _happening(F.col("started_ns"), F.lit("started")),
        _happening(end_or_plan(), what_ended),
    )


def end_or_plan() -> Column:
    """When a row ended; of runs of a schedule that nobody recorded, when they were planned."""
    unrecorded = (F.col("dialect") == "ztick") & F.col("outcome").isin("executed", "failed")
    return F.coalesce("ended_ns", F.when(unrecorded, F.col("ready_ns")))


def _happening(ns: Column, what: Column) -> Column:
    return F.struct(ns.alias("ns"), what.alias("what"))
