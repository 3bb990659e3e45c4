"""Jobs -> an Overhop keyspace: records, indexes, counters and queues, sorted for a bulk load.

    a job --index_entries--> v1:j:  v2:j_qt:  v1:status:  v1:status_fifo:
    all jobs of a queue --count by status--> v1:q_status:        each queue --> v1:q:

    workq state     new, due later   new, pending   leased    completed   failed
    status          delayed          waiting        active    completed   failed

A payload is JSON there. One that is JSON stays as it is; other text becomes a JSON string, other
bytes their base64 in one; both are listed. Entries are written sorted by key, which is what a store
loads fastest (write.format("keyspace")).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.folds.keyspace import payload_text, queue_record
from journeyman.formats.keyspace.keys import CounterKey, QueueKey, encode_key
from journeyman.formats.keyspace.values import JobRecord, encode_value, index_entries
from journeyman.spark.convert.between_logs import Loss, all_losses, losses_of, whole

_ENTRY: Final = "raw_key binary, value binary"
_ENTRY_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("raw_key", pa.binary()),
    ("value", pa.binary()),
]
_FIELDS: Final = ("ttr_ms", "ttl_ms", "priority", "max_fails")
_NO_PLACE: Final = "a job record has no member for it"


def queue_state_to_keyspace(
    tables: dict[str, DataFrame], as_of_ns: int
) -> tuple[DataFrame, DataFrame]:
    """Entries for all workq jobs that exist, and what is not carried over."""
    jobs = tables["jobs"]
    status = (
        F.when(F.col("state").isin("completed", "failed"), F.col("state"))
        .when(F.col("state") == "leased", F.lit("active"))
        .when(F.col("time_ns") > as_of_ns, F.lit("delayed"))
        .otherwise(F.lit("waiting"))
    )
    jobs = jobs.withColumn("status", status).withColumn(
        "_reason", F.when(F.col("expires_ns") <= as_of_ns, F.lit("its time to live is over"))
    )
    has_result = F.coalesce(F.col("result_size"), F.lit(0)) > 0
    losses = [
        whole(F.col("_reason")),
        Loss("result", F.base64("result"), _NO_PLACE, F.col("_reason").isNull() & has_result),
        *_field_losses(F.col("_reason").isNull()),
    ]
    living = jobs.filter(F.col("_reason").isNull())
    return _entries_of(living), losses_of(jobs, F.col("key"), losses)


def queue_rows_to_keyspace(
    rows: DataFrame, losses: DataFrame, as_of_ns: int
) -> tuple[DataFrame, DataFrame]:
    """The same for rows that another conversion has made: jobs that nobody has touched."""
    later = F.col("time_ns") > as_of_ns
    jobs = rows.withColumn("status", F.when(later, F.lit("delayed")).otherwise(F.lit("waiting")))
    jobs = jobs.withColumn("attempts", F.lit(0).cast("long")).withColumn(
        "key",
        F.lower(
            F.regexp_replace(F.hex("job_id"), "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
        ),
    )
    of_jobs = losses_of(jobs, F.col("key"), _field_losses(F.lit(True)))
    return _entries_of(jobs), all_losses([losses, of_jobs])


def _entries_of(jobs: DataFrame) -> DataFrame:
    """All entries for jobs with a status."""
    columns = ("key", "name", "status", "created_ns", "time_ns", "attempts", "max_attempts")
    entries = jobs.select(*columns, "payload").mapInArrow(_entries, _ENTRY)
    counts = jobs.groupBy("name", "status").count().mapInArrow(_counters, _ENTRY)
    queues = jobs.select("name").distinct().mapInArrow(_queues, _ENTRY)
    return entries.unionByName(counts).unionByName(queues)


def _field_losses(when: Column) -> list[Loss]:
    is_json = F.try_parse_json(F.decode("payload", "UTF-8")).isNotNull()
    changed = "it is not JSON, and became a JSON string"
    return [
        *(Loss(name, F.col(name), _NO_PLACE, when) for name in _FIELDS),
        Loss("payload", F.length("payload"), changed, when & ~F.coalesce(is_json, F.lit(False))),
    ]


def _entries(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = [
            entry for row in batch.to_pylist() for entry in index_entries(_record(row)).items()
        ]
        yield _batch(found)


def _counters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield _batch(
            [
                (encode_key(CounterKey(row["name"], row["status"])), encode_value(row["count"]))
                for row in batch.to_pylist()
            ]
        )


def _queues(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = []
        for row in batch.to_pylist():
            name = str(row["name"])
            found.append((encode_key(QueueKey(name)), encode_value(queue_record(name))))
        yield _batch(found)


def _record(row: dict[str, Any]) -> JobRecord:
    job_uuid = UUID(row["key"])
    return JobRecord(
        job_uuid=job_uuid,
        jid=f"{row['name']}:{job_uuid}",
        queue=row["name"],
        status=row["status"],
        created_at_ns=row["created_ns"],
        execution_start_ns=row["created_ns"] if row["time_ns"] is None else row["time_ns"],
        max_attempts=row["max_attempts"] or None,
        attempts_so_far=row["attempts"],
        payload=payload_text(row["payload"] or b""),
    )


def _batch(entries: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    keys, values = zip(*entries, strict=True) if entries else ((), ())
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(_ENTRY_COLUMNS))
