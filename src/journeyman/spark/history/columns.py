"""The columns of a row of history, whatever log it comes from, and how such rows are grouped.

    wait                   run
    ready ------> started ------> ended        outcome

    dialect   ready is            started, ended are              outcome
    workq     added, due, or      leased; result, timeout,        waiting leased completed failed
              free again          delete, expiry                  timed-out deleted expired replaced
    ztick     the time planned    the run's own, where the        executed failed cut-off, planned
              for                 server has noted them           triggered removed replanned
    kestrel   put                 not known                       finished waiting expired

Rows of all dialects have the same columns (ATTEMPTS), so whatever is computed from them (depth,
throughput, latency, a report) is written once. What a log does not tell is null, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from journeyman.spark import views
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.vectors import AnyColumn, Bools, as_schema, pc

_STRING, _LONG, _INT, _BOOLEAN = StringType(), LongType(), IntegerType(), BooleanType()

ATTEMPTS = StructType(
    [
        StructField("_log", _STRING),
        StructField("dialect", _STRING),
        StructField("key", _STRING),  # job, identifier or item id
        StructField("queue", _STRING),  # workq: the job's name; null for ztick
        StructField("task", _STRING),  # workq: the task that its payload names
        StructField("worker", _STRING),  # workq: who leased it, if a ledger says so
        StructField("rule", _STRING),  # ztick: the rule it ran by
        StructField("runner", _STRING),  # ztick
        StructField("life", _INT),  # workq: an id may be used again; 0 without an add
        StructField("attempt", _INT),  # from 1; without started_ns it is the one waited for
        StructField("first", _BOOLEAN),  # the first row of its job (life), plan or item
        StructField("created_ns", _LONG),
        StructField("ready_ns", _LONG),
        StructField("started_ns", _LONG),
        StructField("ended_ns", _LONG),
        StructField("wait_ns", _LONG),  # ready to started; for ztick the lateness
        StructField("run_ns", _LONG),  # started to ended
        StructField("outcome", _STRING),
        StructField("error", _STRING),  # the class of a failure, or the reason of the runner
        StructField("retried", _BOOLEAN),  # workq: a failure that was taken back
        StructField("exhausted", _BOOLEAN),  # workq: no attempt was left behind this one
        StructField("expires_ns", _LONG),
        StructField("position", _LONG),  # where the record is with which the row begins
    ]
)

# The columns that the folds make; ``views/attempts_at.sql`` adds wait_ns and run_ns.
RAW_ATTEMPTS = StructType([field for field in ATTEMPTS if field.name not in ("wait_ns", "run_ns")])


def attempt_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows of attempts with exactly the columns of RAW_ATTEMPTS; missing ones are null."""
    columns: dict[str, AnyColumn] = {name: rows[name] for name in rows.column_names}
    yield from as_schema(columns, arrow_schema(RAW_ATTEMPTS)).to_batches()


def attempts_at(rows: DataFrame, as_of_ns: int | None = None) -> DataFrame:
    """Rows of RAW_ATTEMPTS as they stood at a moment, with the lengths of waits and runs."""
    statement = views.statement("attempts_at", as_of_ns=as_of_ns)
    return views.run_in_spark(rows.sparkSession, statement, attempts=rows).select(*ATTEMPTS.names)


def whole_jobs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches in the order of (_log, key); a job that goes on in the next one is kept for it."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        begins = np.flatnonzero(first_of_jobs(pa.Table.from_batches([batch])))
        cut = int(begins[-1]) if len(begins) else 0
        if cut > 0 or (kept and not _goes_on(kept[-1], batch)):
            yield pa.Table.from_batches([*kept, batch.slice(0, cut)])
            kept = [batch.slice(cut)]
        elif batch.num_rows:
            kept.append(batch)
    if kept:
        yield pa.Table.from_batches(kept)


def first_of_jobs(rows: pa.Table) -> Bools:
    """Where a row belongs to another job than the one before it."""
    first = np.ones(rows.num_rows, np.bool_)
    if rows.num_rows > 1:
        differs = (
            pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy()
            for column in (rows["key"], rows["_log"])
        )
        first[1:] = reduce(np.logical_or, differs)
    return first


def _goes_on(before: pa.RecordBatch, batch: pa.RecordBatch) -> bool:
    if batch.num_rows == 0:
        return True
    return all(before[name][-1] == batch[name][0] for name in ("_log", "key"))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows of attempts that are asked for: by time, and by a condition in SQL."""

    since_ns: int | None = None
    until_ns: int | None = None
    condition: str | None = None

    def __bool__(self) -> bool:
        return self != RowFilter()

    def rows(self, attempts: DataFrame) -> DataFrame:
        """Rows that meet the condition and were ready, started or ended in this time."""
        chosen = self.of_condition(attempts)
        if self.since_ns is None and self.until_ns is None:
            return chosen
        moments = (
            F.col(name).between(self._least, self._most)
            for name in ("ready_ns", "started_ns", "ended_ns")
        )
        # No function around the columns, so that Parquet can be filtered by them.
        return chosen.where(reduce(Column.__or__, moments))

    def of_condition(self, attempts: DataFrame) -> DataFrame:
        """Rows of any time that meet the condition."""
        return attempts if self.condition is None else attempts.where(self.condition)

    def buckets(self, counted: DataFrame, length_ns: int) -> DataFrame:
        """Buckets that overlap this time: a row that ends in it may have begun long before."""
        begin = F.col("bucket_ns")
        least = max(self._least, -(2**63) + length_ns)
        return counted.where((begin > F.lit(least - length_ns)) & (begin <= F.lit(self._most)))

    @property
    def _least(self) -> int:
        return -(2**63) if self.since_ns is None else self.since_ns

    @property
    def _most(self) -> int:
        return 2**63 - 1 if self.until_ns is None else self.until_ns - 1


EVERY_ROW = RowFilter()
