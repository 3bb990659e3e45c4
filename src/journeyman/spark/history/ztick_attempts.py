"""Every run of a schedule, and every plan that has not come to one.

    log    job, time planned for, status    what was to happen, and whether it did
    runs   job, time planned for, times     when it did, by which rule, how it ended

The two meet on (log, job, time planned for). A run that the log no longer knows (compaction keeps
the last record of a job alone) is a row all the same; so is a plan of which no run is known, with
the times null and one of these outcomes. A recorded failure without a rule has an end and no start.

    planned triggered       as the log says, and nothing has come since
    executed failed         it ended, and no server recorded when
    replanned removed       before it ran
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.history.columns import as_attempts

_PLAN = ("_log", "key", "ready_ns")
_ENDED = ("executed", "failed")
STATUSES = ("planned", "triggered", *_ENDED)


def attempts(records: DataFrame, runs: DataFrame) -> DataFrame:
    """One row a run, and one a plan without a run."""
    in_order = Window.partitionBy(*_PLAN).orderBy("started_ns", "ended_ns")
    ran = (
        runs.select(
            "_log",
            F.col("job").alias("key"),
            F.col("execution_ns").alias("ready_ns"),
            F.nullif("rule", F.lit("")).alias("rule"),
            F.nullif("runner", F.lit("")).alias("runner"),
            "started_ns",
            "ended_ns",
            F.col("outcome").alias("run_outcome"),
        )
        .withColumn("attempt", F.row_number().over(in_order))
        # A job that no rule matches fails without a run: it has an end and no start.
        .withColumn("started_ns", F.when(F.col("rule").isNotNull(), F.col("started_ns")))
    )
    joined = plans_of(grouped(records)).join(ran, list(_PLAN), "full_outer")
    return as_attempts(
        joined.withColumns(
            {
                "dialect": F.lit("ztick"),
                "attempt": F.coalesce("attempt", F.lit(1)),
                "first": F.coalesce(F.col("attempt") == 1, F.lit(True)),
                "outcome": F.coalesce("run_outcome", "outcome"),
            }
        )
    )


def grouped(records: DataFrame) -> DataFrame:
    """Records by job (or rule) and time planned for; removals are groups of their own.

    Columns: _log, key, is_rule, is_set, ready_ns, latest (position of the last record, times four,
    plus its status), last_length, position (of the first), plans (how often it was planned).
    """
    status = F.lit(0)
    for number, word in enumerate(STATUSES):
        status = F.when(F.col("status") == word, F.lit(number)).otherwise(status)
    # The last status as part of one number, so that Spark hashes instead of sorting every record.
    latest = F.col("_position") * len(STATUSES) + status
    is_rule = F.col("kind").isin("rule_set", "remove_rule")
    is_set = F.col("kind").isin("set", "rule_set")
    return (
        records.where(F.col("kind") != "damage")
        .groupBy(
            "_log",
            F.col("identifier").alias("key"),
            is_rule.alias("is_rule"),
            is_set.alias("is_set"),
            F.col("execution_ns").alias("ready_ns"),
        )
        .agg(
            F.max(latest).alias("latest"),
            F.max_by(F.col("_length").cast("long"), latest).alias("last_length"),
            F.min("_position").alias("position"),
            F.count_if(F.col("status") == "planned").alias("plans"),
        )
    )


def plans_of(groups: DataFrame) -> DataFrame:
    """One row a job and time planned for: what became of it, as far as the log says.

    Columns: _log, key, ready_ns, outcome, plans, position.
    """
    # One job's plans, of which there are few; what follows a plan has taken its place.
    next_is_set = F.lead("is_set").over(Window.partitionBy("_log", "key").orderBy("latest"))
    place = (F.col("latest") % len(STATUSES) + 1).cast("int")
    last = F.element_at(F.array(*map(F.lit, STATUSES)), place)
    replaced = F.when(next_is_set, F.lit("replanned")).otherwise(F.lit("removed"))
    outcome = F.when(last.isin(*_ENDED) | next_is_set.isNull(), last).otherwise(replaced)
    return (
        groups.where(~F.col("is_rule"))
        .withColumn("outcome", outcome)
        .where(F.col("is_set"))
        .select("_log", "key", "ready_ns", "outcome", "plans", "position")
    )
