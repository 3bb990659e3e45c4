"""How much came, was started and ended, by group and bucket of time."""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import UsageError
from journeyman.spark.history.columns import grouped_by, moment

# ----------------------------------------
# Stretches of time of one length, and rows of attempts told by the stretch they fall into.
#
#     1m        1 ms, 1 s, 1 m, 1 h, 1 d and multiples        12:00:00  12:01:00  12:02:00 ...
#
# A bucket is named by its beginning. Buckets in which nothing happened have no row.

_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_BUCKET = re.compile(r"([1-9][0-9]{0,8})\s*(ms|s|m|h|d)")
# What people like to read along an axis.
_ROUND_NS = (
    *(number * 10**6 for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * 10**9 for number in (1, 2, 5, 10, 15, 30)),
    *(number * 60 * 10**9 for number in (1, 2, 5, 10, 15, 30)),
    *(number * 3600 * 10**9 for number in (1, 2, 3, 6, 12)),
    *(number * 86_400 * 10**9 for number in (1, 2, 7, 14, 28, 91, 182, 364)),
)


def parse_bucket(text: str) -> int:
    """Nanoseconds. Raises UsageError."""
    match = _BUCKET.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"a bucket is a duration such as 10s, 1m or 1h, not {text!r}")
    return int(match[1]) * _UNITS_NS[match[2]]


def bucket_for(span_ns: int, most: int) -> int:
    """The shortest round length with which ``span_ns`` makes at most ``most`` buckets."""
    for length_ns in _ROUND_NS:
        if span_ns // length_ns + 2 <= most:
            return length_ns
    return _ROUND_NS[-1] * (span_ns // (_ROUND_NS[-1] * max(most - 2, 1)) + 1)


def bucket_of(ns: Column, bucket_ns: int) -> Column:
    """Where the bucket of a moment begins, in nanoseconds; rounds down before 1970 too."""
    return ns - F.pmod(ns, F.lit(bucket_ns))


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
ENDS = {
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
    for name, outcomes in ENDS.items():
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


# ----------------------------------------
# How long jobs waited and ran: percentiles by group, and by bucket of time if asked for.
#
# Percentiles are Spark's ``approx_percentile`` (an element that really occurred, its rank off by at
# most one in ten thousand) unless the exact ones are asked for (interpolated; all values of a group
# then meet in one task).

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_ACCURACY = 10_000
_FAILURES = ("failed", "timed-out", "cut-off")


def latency(
    attempts: DataFrame,
    by: str = "queue",
    bucket_ns: int | None = None,
    *,
    exact: bool = False,
    totals: bool = False,
) -> DataFrame:
    """One row a log and group (and bucket of the start): counts, and percentiles in nanoseconds.

    ``totals`` adds rows over all buckets, all groups and all logs, with null in their place.
    Columns: _log, group, [time, bucket_ns,] started, failed, wait_p50_ns ... wait_p999_ns,
    wait_max_ns, run_p50_ns ... run_p999_ns, run_max_ns.
    """
    started = attempts.where(F.col("started_ns").isNotNull())
    keys = ["_log", "group"]
    rows = started.select("_log", grouped_by(by), "started_ns", "wait_ns", "run_ns", "outcome")
    if bucket_ns is not None:
        rows = rows.withColumn("bucket_ns", bucket_of(F.col("started_ns"), bucket_ns))
        keys.append("bucket_ns")
    measured = (rows.rollup(*keys) if totals else rows.groupBy(*keys)).agg(
        F.count("*").alias("started"),
        F.count_if(F.col("outcome").isin(*_FAILURES)).alias("failed"),
        *_measures("wait", exact),
        *_measures("run", exact),
    )
    names = [f"{what}_{name}_ns" for what in ("wait", "run") for name in (*PERCENTILES, "max")]
    when: list[Column | str] = (
        [] if bucket_ns is None else [moment(F.col("bucket_ns")).alias("time"), "bucket_ns"]
    )
    return measured.select("_log", "group", *when, "started", "failed", *map(_number, names))


def _measures(what: str, exact: bool) -> list[Column]:
    ranks = F.array(*(F.lit(rank) for rank in PERCENTILES.values()))
    column = f"{what}_ns"
    ranked = F.percentile(column, ranks) if exact else F.percentile_approx(column, ranks, _ACCURACY)
    return [ranked.alias(f"{what}_ranked"), F.max(column).alias(f"{what}_max_ns")]


def _number(name: str) -> Column:
    what, _, rest = name.partition("_")
    rank = rest.removesuffix("_ns")
    if rank == "max":
        return F.col(name)
    place = list(PERCENTILES).index(rank)
    return F.col(f"{what}_ranked")[place].cast("long").alias(name)


# ----------------------------------------
# How many jobs wait, are scheduled or run, over time.
#
#     row of attempts         created      ready          started          ended
#     scheduled                  +1          -1
#     ready                                  +1              -1
#     running                                                +1              -1
#
# Every row becomes a few changes; changes are added up by group and bucket, and only those sums are
# run through in the order of time. So the depth at the end of a bucket is what all changes up to
# then come to, and at the end of everything it is the state that a replay finds.
#
# Kestrel's items have no recorded end: finished ones are left out, so a queue shows since when its
# present backlog has been waiting.
#
# A schedule counts a plan as waiting from the time it was planned for to its first run; how long it
# waited to be run again is recorded nowhere. Plans that ended without a recorded run never show up,
# and those that the log calls triggered, without a recorded run, run since the time planned for.

STATES = ("scheduled", "ready", "running")
NO_WAIT = ("finished", "replanned", "removed")


def depth(
    attempts: DataFrame, bucket_ns: int, by: str = "queue", until_ns: int | None = None
) -> DataFrame:
    """One row a log, group and bucket in which something changed: the depth at its end.

    Jobs that are due later are ready later: without ``until_ns`` the table goes on into the future.
    Columns: _log, group, time, bucket_ns, scheduled, ready, running.
    """
    summed = changes(attempts, bucket_ns, by, until_ns)
    so_far = (
        Window.partitionBy("_log", "group")
        .orderBy("bucket_ns")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return summed.select(
        "_log",
        "group",
        moment(F.col("bucket_ns")).alias("time"),
        "bucket_ns",
        *(F.sum(state).over(so_far).alias(state) for state in STATES),
    )


def changes(
    attempts: DataFrame, bucket_ns: int, by: str = "queue", until_ns: int | None = None
) -> DataFrame:
    """Sums of what came and went: _log, group, bucket_ns, scheduled, ready, running."""
    known = attempts.where(
        ~F.col("outcome").isin(*NO_WAIT) & ~_without_add() & ~_ended_unrecorded()
    )
    each = known.select("_log", grouped_by(by), F.inline(_changes_of_row()))
    happened = each.where(F.col("ns").isNotNull() if until_ns is None else F.col("ns") <= until_ns)
    return happened.groupBy(
        "_log", "group", bucket_of(F.col("ns"), bucket_ns).alias("bucket_ns")
    ).agg(
        *(
            F.sum(F.when(F.col("state") == state, F.col("change")).otherwise(F.lit(0))).alias(state)
            for state in STATES
        )
    )


def _without_add() -> Column:
    return F.coalesce(F.col("life") == 0, F.lit(False))


def _ended_unrecorded() -> Column:
    """Runs of a schedule that are over, at a time nobody recorded."""
    return F.col("outcome").isin("executed", "failed") & F.col("ended_ns").isNull()


def _changes_of_row() -> Column:
    """An array of (ns, state, change); changes that did not happen have no ns."""
    triggered = F.col("outcome") == "triggered"
    started = F.coalesce("started_ns", F.when(triggered, F.col("ready_ns")))
    left = F.coalesce(started, "ended_ns")  # when it stopped waiting, if it has
    # A job may be ended before it is due, and a clock may step back.
    ready = F.coalesce(F.least("ready_ns", F.coalesce(left, "ready_ns")), "started_ns")
    run_again = (F.col("dialect") == "ztick") & ~F.col("first")
    ready = F.when(run_again, started).otherwise(ready)
    scheduled = F.col("first") & (F.col("created_ns") < ready)
    return F.array(
        _change(F.when(scheduled, F.col("created_ns")), "scheduled", 1),
        _change(F.when(scheduled, ready), "scheduled", -1),
        _change(ready, "ready", 1),
        _change(F.when(ready.isNotNull(), left), "ready", -1),
        _change(started, "running", 1),
        _change(F.when(started.isNotNull(), F.col("ended_ns")), "running", -1),
    )


def _change(ns: Column, state: str, by: int) -> Column:
    return F.struct(ns.alias("ns"), F.lit(state).alias("state"), F.lit(by).alias("change"))
