"""kestrel -> workq: items that some reader still waits for become jobs of the work queue.

    queue "mail", item 17, data  ->  add <id of ".../mail/17"> mail, payload data, created when put

The id is that of the whole path: queues of one name on several hosts hold different items.
A work queue gives each job to one worker: readers have no counterpart and are listed. An item with
several readers becomes one job. TTL is what the item has left by its expiry, or what was asked for.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.folds.workq import MAX_TTL_MS
from journeyman.formats.workq import MAX_PAYLOAD_BYTES
from journeyman.spark.convert.job_ids import id_column
from journeyman.spark.convert.losses import Loss, all_losses, losses_of, whole
from journeyman.spark.convert.queue_jobs import QUEUE_COLUMNS, JobDefaults
from journeyman.spark.replay.kestrel import waiting

_NS_PER_MS = 1_000_000


def journal_to_queue(
    tables: dict[str, DataFrame], settings: JobDefaults
) -> tuple[DataFrame, DataFrame]:
    """Rows for the workq sink, and what is not carried over. The items come with data."""
    items = tables["items"]
    left = waiting(items, tables["readers"])
    finished = items.join(left.select("_log", "_position"), ["_log", "_position"], "left_anti")
    asked_ttl = F.lit(settings.ttl_ms).cast("long")
    ttl_ms = F.coalesce(F.col("expire_time_ms") - F.col("add_time_ms"), asked_ttl)
    now_ms = settings.now_ns // _NS_PER_MS
    left = (
        left.withColumn("_ttl_ms", F.least(ttl_ms, F.lit(MAX_TTL_MS).cast("long")))
        .withColumn("_wanted_ttl_ms", ttl_ms)
        .withColumn(
            "_reason",
            F.when(F.col("data_size") > MAX_PAYLOAD_BYTES, F.lit("larger than 1 MiB")).when(
                (F.col("_ttl_ms") < 1) | (F.col("add_time_ms") + F.col("_ttl_ms") <= now_ms),
                F.lit("its time to live is over"),
            ),
        )
    )
    carried = left.filter(F.col("_reason").isNull())
    shared = settings.columns()
    del shared["ttl_ms"]
    place = ("item_id", F.when(F.col("ordinal") > 0, F.col("ordinal")))
    name = F.concat_ws("/", "queue", *place)
    rows = carried.select(
        "_log",
        "_position",
        *(column.alias(each) for each, column in shared.items()),
        F.col("_ttl_ms").alias("ttl_ms"),
        F.lit("add").alias("kind"),
        id_column(F.concat_ws("/", "_log", *place)).alias("job_id"),
        settings.name_column(F.col("queue")).alias("name"),
        F.col("data").alias("payload"),
        F.col("data_size").alias("payload_size"),
        F.lit(None).cast("long").alias("time_ns"),
        (F.col("add_time_ms") * _NS_PER_MS).alias("created_ns"),
    ).select("_log", "_position", *QUEUE_COLUMNS)
    reader = F.concat_ws("+", "queue", "reader")
    is_carried = F.col("_reason").isNull()
    of_item = [
        whole(F.col("_reason")),
        Loss(
            "error_count",
            F.col("error_count"),
            "a new job has not failed yet",
            is_carried & (F.col("error_count") != 0),
        ),
        Loss(
            "expire_time_ms",
            F.col("expire_time_ms"),
            "a time to live is 30 days at most",
            is_carried & (F.col("_wanted_ttl_ms") > F.col("_ttl_ms")),
        ),
    ]
    of_reader = Loss("reader", F.col("opened_head"), "a work queue gives each job to one worker")
    losses = [
        losses_of(finished, name, [whole(F.lit("every reader has finished it"))]),
        losses_of(left, name, of_item),
        losses_of(tables["readers"], reader, [of_reader]),
    ]
    return rows, all_losses(losses)
