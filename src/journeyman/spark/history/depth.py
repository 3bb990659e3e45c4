"""How many jobs wait, are scheduled or run, over time.

    row of attempts         created      ready          started          ended
    scheduled                  +1          -1
    ready                                  +1              -1
    running                                                +1              -1

Every row becomes a few changes; changes are added up by group and bucket, and only those sums are
run through in the order of time. So the depth at the end of a bucket is what all changes up to
then come to, and at the end of everything it is the state that a replay finds.

Kestrel's items have no recorded end: finished ones are left out, so a queue shows since when
its present backlog has been waiting.

A schedule counts a plan as waiting from the time it was planned for to its first run; how long it
waited to be run again is recorded nowhere. Plans that ended without a recorded run never show up,
and those that the log calls triggered, without a recorded run, run since the time planned for.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.buckets import bucket_of
from journeyman.spark.history.columns import grouped_by, moment

STATES = ("scheduled", "ready", "running")
_NO_WAIT = ("finished", "replanned", "removed")


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
        ~F.col("outcome").isin(*_NO_WAIT) & ~_without_add() & ~_ended_unrecorded()
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
