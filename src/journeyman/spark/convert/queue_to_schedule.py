"""workq -> ztick: jobs that wait for their time become planned jobs of the schedule.

    schedule <id> mail T, payload mail.17  ->  job "mail.17" at T    if <id> is that of "mail.17"
    schedule <id> mail T, payload {...}    ->  job "<id>" at T       and the payload is listed

A schedule keeps an identifier, a time and a status. Everything else that a job of the work queue
says is listed field by field; jobs that are ready, leased or finished are listed as a whole.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.spark.convert.job_ids import id_column
from journeyman.spark.convert.losses import Loss, losses_of, whole

_FIELDS: Final = ("name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails")
_NO_PLACE: Final = "a schedule has no place for it"


def queue_to_schedule(tables: dict[str, DataFrame], as_of_ns: int) -> tuple[DataFrame, DataFrame]:
    """Rows for the ztick sink, and what is not carried over. The jobs come with payloads."""
    text = F.decode("payload", "UTF-8")
    is_name = F.coalesce(id_column(text) == F.col("job_id"), F.lit(False))
    jobs = (
        tables["jobs"]
        .withColumn("_is_name", is_name)
        .withColumn("identifier", F.when(is_name, text).otherwise(F.col("key")))
        .withColumn("_again", F.row_number().over(Window.partitionBy("key").orderBy("_log")))
        .withColumn(
            "_reason",
            F.when(F.col("expires_ns") <= as_of_ns, F.lit("its time to live is over"))
            .when(F.col("_again") > 1, F.lit("another log has a job of this id"))
            .when(F.col("state") != "new", F.concat(F.lit("it is "), "state"))
            .when(F.col("time_ns").isNull(), F.lit("it is ready at once, not scheduled")),
        )
    )
    carried = jobs.filter(F.col("_reason").isNull())
    rows = carried.select(
        "_log",
        "_position",
        F.lit("set").alias("kind"),
        "identifier",
        F.col("time_ns").alias("execution_ns"),
        F.lit("planned").alias("status"),
    )
    is_carried = F.col("_reason").isNull()
    payload_stays = F.col("_is_name") | (F.col("payload_size") == 0)
    losses = [
        whole(F.col("_reason")),
        *(Loss(name, F.col(name), _NO_PLACE, is_carried) for name in _FIELDS),
        Loss("payload", F.base64("payload"), _NO_PLACE, is_carried & ~payload_stays),
    ]
    return rows, losses_of(jobs, F.col("key"), losses)
