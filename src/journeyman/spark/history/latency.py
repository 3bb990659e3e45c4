"""How long jobs waited and ran: percentiles by group, and by bucket of time if asked for.

Percentiles are Spark's ``approx_percentile`` (an element that really occurred, its rank off by at
most one in ten thousand) unless the exact ones are asked for (interpolated; all values of a group
then meet in one task).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.buckets import bucket_of
from journeyman.spark.history.columns import grouped_by, moment

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
