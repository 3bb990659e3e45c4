"""The state tables: what columns each has, and how it is made of packets or rows of the source.

    ztick     jobs, rules       the last record of each, unless it is a removal
    workq     jobs, orphans     every job from its add on; records whose add is not there
    kestrel   items, readers    the same put twice is one; readers as folded, and as an opened queue
                                sees them

The folds of workq need no payloads; where two adds can only be told apart by theirs, they are read
from the log again. A reader of kestrel is opened with the ids of the whole queue in mind
(``open_queue``). All it needs of them is the least and the greatest, of which a row without a
packet tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import ArrayType, StructField, StructType

from journeyman.spark.replay.merging import PLACE, StateTable, merge_packets, merge_rows
from journeyman.spark.replay.packing import packets_of
from journeyman.spark.source.options import DAMAGE_KIND, fields, struct


def _table(name: str, rows: str, columns: str, *more: StructField, packets: str = "") -> StateTable:
    schema = StructType([*PLACE.fields, *fields(columns), *more])
    return StateTable(name, packets or name, f"journeyman.spark.replay.{rows}", schema)


def _by_name(*tables: StateTable) -> dict[str, StateTable]:
    return {table.name: table for table in tables}


ORPHAN_RECORD: Final = struct(
    "position bigint, length int, kind string, logged_ns bigint, result_size int"
)
STATE_TABLES: Final[Mapping[str, Mapping[str, StateTable]]] = {
    "ztick": _by_name(
        _table(
            "jobs",
            "ztick_tasks:job_rows",
            "identifier string, execution_ns bigint, status string",
        ),
        _table(
            "rules",
            "ztick_tasks:rule_rows",
            "identifier string, pattern string, runner string, runner_args array<string>",
        ),
    ),
    "workq": _by_name(
        _table(
            "jobs",
            "workq_tasks:job_rows",
            "key string, job_id binary, kind string, logged_ns bigint, name string, "
            "ttr_ms bigint, ttl_ms bigint, priority int, max_attempts bigint, "
            "max_fails bigint, payload_size int, payload binary, time_ns bigint, "
            "created_ns bigint, state string, attempts bigint, fails bigint, result_size int, "
            "result binary, started_ns bigint, finished_ns bigint, exhausted boolean, "
            "owed_timeouts bigint, expires_ns bigint, started_position bigint, "
            "finished_position bigint, result_position bigint, result_file string, "
            "result_length int",
        ),
        _table(
            "orphans",
            "workq_tasks:orphan_rows",
            "key string, job_id binary",
            StructField("records", ArrayType(ORPHAN_RECORD)),
            packets="jobs",
        ),
    ),
    "kestrel": _by_name(
        _table(
            "items",
            "kestrel_tasks:item_rows",
            "queue string, item_id bigint, add_time_ms bigint, expire_time_ms bigint, "
            "error_count int, data_size int, data binary, ordinal int, contested boolean",
        ),
        _table(
            "readers",
            "kestrel_tasks:reader_rows",
            "queue string, reader string, head bigint, done array<bigint>, damaged boolean, "
            "opened_head bigint, opened_done array<bigint>, first_id bigint, tail_id bigint",
        ),
    ),
}


def state_table(frame: DataFrame, dialect: str, name: str) -> DataFrame:
    """A state table, by the records of the source or by packets of them."""
    packets, table = packets_of(frame, dialect), STATE_TABLES[dialect][name]
    if name != "readers":
        return merge_packets(packets, table)
    # Damage of a checkpoint is of interest to the readers.
    wanted = packets.filter((F.col("kind") == DAMAGE_KIND) | (F.col("table") == name))
    return merge_rows(wanted.withColumns({"table": F.lit(name), "bucket": F.lit(0)}), table)


def visible(jobs: DataFrame, as_of_ns: int) -> DataFrame:
    """Of the jobs of workq, those that exist at this moment, with the queue in which each waits.

    ``queue`` is ``scheduled``, ``ready``, or null for a job that is leased or finished.
    """
    moment = F.lit(as_of_ns).cast("long")
    waits: Column = F.when(
        F.col("state") == "new",
        F.when(F.col("time_ns") > moment, "scheduled").otherwise("ready"),
    ).when(F.col("state") == "pending", "ready")
    return jobs.filter(F.col("expires_ns") > moment).withColumn("queue", waits)


def waiting(items: DataFrame, readers: DataFrame) -> DataFrame:
    """Of ``items``, those that some reader still has to be given.

    All of them in a queue without a checkpoint: nothing of it was read.
    """
    opened = readers.filter(F.col("_file").isNotNull() & F.col("opened_head").isNotNull())
    heads = opened.groupBy("_log").agg(F.collect_list("opened_head").alias("_heads"))
    done = opened.select("_log", F.explode("opened_done").alias("item_id"))
    done = done.groupBy("_log", "item_id").agg(F.count("*").alias("_done_by"))
    past_head = F.size(F.filter("_heads", lambda head: head >= F.col("item_id")))
    past = past_head + F.coalesce(F.col("_done_by"), F.lit(0))
    is_dead = F.coalesce(past >= F.size("_heads"), F.lit(False))
    return (
        items.join(F.broadcast(heads), "_log", "left")
        .join(done, ["_log", "item_id"], "left")
        .filter(~is_dead)
        .select(*items.columns)
    )
