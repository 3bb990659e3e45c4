"""Every attempt of every job of a workq log, from its records alone.

    records --narrowed--> by (log, job), in log order --walk--> rows of attempts
                                                          \\--> whose bytes are still needed

The fold of a job needs its records in order, so they meet once: narrowed to numbers, shuffled by
job and sorted inside a partition. Payloads and results do not travel. What is made of them there
is compiled code (columnar.workq.attempts), a few nanoseconds a record.

Two adds of one id that differ in nothing but the bytes of their payload count as the same add.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from journeyman.columnar.workq import attempts as at
from journeyman.formats.workq import Command
from journeyman.spark.history.columns import as_attempts, expired_by
from journeyman.units import NS_PER_MS

_WORDS = {command.word: int(command) for command in Command}
_MAX_NS = 2**63 - 1

# From records of the source to what the kernel needs.
_NUMBERS = {
    at.KIND: "command",
    at.LOGGED_NS: "logged_ns",
    at.CREATED_NS: "created_ns",
    at.DUE_NS: "time_ns",
    at.EXPIRES_NS: "expires_ns",
    at.TTR_MS: "ttr_ms",
    at.MAX_ATTEMPTS: "max_attempts",
    at.MAX_FAILS: "max_fails",
    at.IDENTITY: "identity",
}
_TIMES = (at.LOGGED_NS, at.CREATED_NS, at.DUE_NS, at.EXPIRES_NS)
_SAME_ADD = (
    *("kind", "name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails"),
    *("payload_size", "time_ns", "created_ns"),
)
_ROWS = StructType(
    [
        StructField("_log", StringType()),
        StructField("key", StringType()),
        StructField("queue", StringType()),
        StructField("life", IntegerType()),
        StructField("attempt", IntegerType()),
        StructField("first", BooleanType()),
        StructField("created_ns", LongType()),
        StructField("ready_ns", LongType()),
        StructField("started_ns", LongType()),
        StructField("ended_ns", LongType()),
        StructField("outcome", StringType()),
        StructField("retried", IntegerType()),
        StructField("exhausted", IntegerType()),
        StructField("expires_ns", LongType()),
        StructField("position", LongType()),
    ]
)
Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"


def attempts(records: DataFrame, as_of_ns: int | None = None) -> DataFrame:
    """One row a job and attempt.

    Jobs whose time to live is over at ``as_of_ns`` have expired, whether or not the log says so;
    without it, only what the log says counts.
    """
    rows = in_job_order(records).mapInArrow(_attempt_batches, _ROWS)
    rows = rows.withColumns(
        {
            "dialect": F.lit("workq"),
            "retried": F.col("retried") == 1,
            "exhausted": F.col("exhausted") == 1,
        }
    )
    found = as_attempts(rows)
    return found if as_of_ns is None else expired_by(found, as_of_ns)


def in_job_order(records: DataFrame, *more_columns: str) -> DataFrame:
    """The records of each job together and in log order, as the walk needs them."""
    is_add = F.col("kind").isin("add", "schedule")
    begins_ns = F.when(F.col("kind") == "schedule", F.coalesce("time_ns", "created_ns")).otherwise(
        F.col("created_ns")
    )
    lives_ns = F.try_multiply(F.col("ttl_ms"), F.lit(NS_PER_MS))
    expires_ns = F.coalesce(F.try_add(begins_ns, lives_ns), F.lit(_MAX_NS))
    command = F.lit(0)
    for word, number in _WORDS.items():
        command = F.when(F.col("kind") == word, F.lit(number)).otherwise(command)
    return (
        records.where(F.col("kind").isin(*_WORDS))
        .select(
            "_log",
            "key",
            "_position",
            command.alias("command"),
            "logged_ns",
            "name",
            "created_ns",
            "time_ns",
            F.when(is_add, expires_ns).alias("expires_ns"),
            "ttr_ms",
            "max_attempts",
            "max_fails",
            F.when(is_add, F.xxhash64(*_SAME_ADD)).alias("identity"),
            *more_columns,
        )
        .repartition("_log", "key")
        .sortWithinPartitions("_log", "key", "_position")
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """What the walk made of the records of whole jobs."""

    records: pa.Table
    rows: at.Ints
    owner: at.Ints
    anomaly: at.Codes


def follow(batches: Iterable[pa.RecordBatch]) -> Iterator[Followed]:
    """Walk over batches in job order; a job that goes on in the next batch is kept for it."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        cut = _last_job_begins(batch)
        if cut > 0 or (kept and not _goes_on(kept[-1], batch)):
            yield walked([*kept, batch.slice(0, cut)])
            kept = [batch.slice(cut)]
        elif batch.num_rows:
            kept.append(batch)
    if kept:
        yield walked(kept)


def walked(batches: list[pa.RecordBatch]) -> Followed:
    table = pa.Table.from_batches(batches).combine_chunks()
    size = table.num_rows
    records = np.empty((at.RECORD_FIELDS, size), np.int64)
    for field, name in _NUMBERS.items():
        nothing = at.NO_TIME if field in _TIMES else 0
        column: Any = table[name].cast(pa.int64())
        records[field] = column.fill_null(nothing).to_numpy()
    rows = np.empty((at.ROW_FIELDS, size), np.int64)
    owner = np.full(size, -1, np.int64)
    anomaly = np.zeros(size, np.int8)
    count = at.walk_attempts(_first_of_jobs(table), records, rows, owner, anomaly)
    return Followed(table, rows[:, :count], owner, anomaly)


def _first_of_jobs(table: pa.Table) -> at.Bools:
    """Where the record belongs to another job than the one before it."""
    first = np.ones(table.num_rows, np.bool_)
    if table.num_rows > 1:
        for at_column, name in enumerate(("key", "_log")):
            column = table[name]
            other = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy()
            first[1:] = other if at_column == 0 else first[1:] | other
    return first


def _last_job_begins(batch: pa.RecordBatch) -> int:
    if batch.num_rows == 0:
        return 0
    first = _first_of_jobs(pa.Table.from_batches([batch.select(["_log", "key"])]))
    return int(np.flatnonzero(first)[-1])


def _goes_on(before: pa.RecordBatch, batch: pa.RecordBatch) -> bool:
    if batch.num_rows == 0:
        return True
    return all(before[name][-1] == batch[name][0] for name in ("_log", "key"))


def _attempt_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What runs on the executors, once a partition."""
    for followed in follow(batches):
        yield from attempt_table(followed).to_batches()


def attempt_table(followed: Followed) -> pa.Table:
    rows, records = followed.rows, followed.records
    began = pa.array(rows[at.BEGAN_ROW])
    add_row = rows[at.ADD_ROW]
    adds = pa.array(add_row, mask=add_row < 0)
    begins_with_add = rows[at.BEGAN_ROW] == add_row
    return pa.table(
        {
            "_log": records["_log"].take(began),
            "key": records["key"].take(began),
            "queue": records["name"].take(adds),
            "life": _ints(rows[at.LIFE]),
            "attempt": _ints(rows[at.ATTEMPT]),
            # The attempt a retry waits for may be the first as well, if nobody had leased the job.
            "first": pa.array(np.where(add_row < 0, rows[at.ATTEMPT] == 1, begins_with_add)),
            "created_ns": records["created_ns"].take(adds),
            "ready_ns": _moments(rows[at.READY_NS]),
            "started_ns": _moments(rows[at.STARTED_NS]),
            "ended_ns": _moments(rows[at.ENDED_NS]),
            "outcome": pa.array(at.OUTCOMES).take(pa.array(rows[at.OUTCOME])),
            "retried": _ints(rows[at.RETRIED]),
            "exhausted": _ints(rows[at.EXHAUSTED]),
            "expires_ns": records["expires_ns"].take(adds),
            "position": records["_position"].take(began),
        }
    )


def _ints(numbers: at.Ints) -> Column:
    return pa.array(numbers.astype(np.int32))


def _moments(times_ns: at.Ints) -> Column:
    return pa.array(times_ns, mask=times_ns == at.NO_TIME)
