"""ztick -> workq: what is planned becomes a scheduled job of the work queue.

    job "mail.17" at T, by rule "mail"  ->  schedule <id of "mail.17"> mail T, payload mail.17

The queue of a job is its rule's identifier, by the longest pattern that the job's identifier begins
with, as the server chooses; or the name that was asked for. The payload is the identifier, so that
the way back finds it. Rules have no counterpart: a work queue runs nothing by itself.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.spark.convert.job_ids import id_column
from journeyman.spark.convert.losses import Loss, all_losses, losses_of, whole
from journeyman.spark.convert.queue_jobs import QUEUE_COLUMNS, JobDefaults

_NS_PER_MS = 1_000_000


def schedule_to_queue(
    tables: dict[str, DataFrame], settings: JobDefaults
) -> tuple[DataFrame, DataFrame]:
    """Rows for the workq sink, and what is not carried over."""
    jobs = _first_of_each_name(with_rule(tables["jobs"], tables["rules"]))
    expires = F.col("execution_ns") > settings.now_ns - settings.ttl_ms * _NS_PER_MS
    jobs = jobs.withColumn(
        "_reason",
        F.when(F.col("_again") > 1, F.lit("another log has a job of this identifier"))
        .when(F.col("status").isin("executed", "failed"), F.concat(F.lit("it has run: "), "status"))
        .when(~expires, F.lit("due so long ago that its time to live is over")),
    )
    carried = jobs.filter(F.col("_reason").isNull())
    rows = carried.select(
        "_log",
        "_position",
        *(column.alias(name) for name, column in settings.columns().items()),
        F.lit("schedule").alias("kind"),
        id_column(F.col("identifier")).alias("job_id"),
        settings.name_column(F.col("rule")).alias("name"),
        F.encode("identifier", "UTF-8").alias("payload"),
        F.octet_length("identifier").alias("payload_size"),
        F.col("execution_ns").alias("time_ns"),
        F.lit(settings.now_ns).cast("long").alias("created_ns"),
    ).select("_log", "_position", *QUEUE_COLUMNS)
    key = F.col("identifier")
    runner = F.concat_ws(" ", "runner", F.concat_ws(" ", "runner_args"))
    is_carried = F.col("_reason").isNull()
    under_way = Loss(
        "status",
        F.col("status"),
        "its run was under way; it is due again",
        is_carried & (F.col("status") != "planned"),
    )
    no_runner = Loss("runner", runner, "a work queue runs nothing by itself: workers do")
    losses = [
        losses_of(jobs, key, [whole(F.col("_reason")), under_way]),
        losses_of(tables["rules"], key, [no_runner]),
    ]
    return rows, all_losses(losses)


def with_rule(jobs: DataFrame, rules: DataFrame) -> DataFrame:
    """Jobs with the identifier of the ``rule`` that each runs by, null if by none.

    Patterns have few lengths, so the beginnings of each identifier that have one of them are looked
    up, instead of comparing every job with every rule.
    """
    lengths = [
        row["length"]
        for row in rules.filter("pattern != ''")
        .select(F.length("pattern").alias("length"))
        .distinct()
        .collect()
    ]
    best = rules.groupBy("_log", "pattern").agg(F.min("identifier").alias("rule"))
    if not lengths:
        return jobs.withColumn("rule", F.lit(None).cast("string"))
    prefixes = jobs.select(
        "_log", "identifier", F.explode(F.array(*map(F.lit, lengths))).alias("length")
    ).filter(F.length("identifier") >= F.col("length"))
    prefixes = prefixes.withColumn("pattern", F.expr("left(identifier, length)"))
    found = (
        prefixes.join(F.broadcast(best), ["_log", "pattern"])
        .groupBy("_log", "identifier")
        .agg(F.max_by("rule", "length").alias("rule"))
    )
    return jobs.join(found, ["_log", "identifier"], "left")


def _first_of_each_name(jobs: DataFrame) -> DataFrame:
    """``_again`` counts the logs that have a job of the same identifier, from 1."""
    order = Window.partitionBy("identifier").orderBy("_log")
    return jobs.withColumn("_again", F.row_number().over(order))
