"""What one row of history holds, whatever log it comes from, and how such rows are grouped.

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

from journeyman.errors import UsageError
from journeyman.spark.lake.columns import (
    AnyColumn,
    Bools,
    as_schema,
    length_ns,
    ns_column,
    ns_in,
    pc,
)
from journeyman.spark.source.options import arrow_schema

_STRING, _LONG, _INT, _BOOLEAN = StringType(), LongType(), IntegerType(), BooleanType()

ATTEMPTS = StructType(
    [
        StructField("_log", _STRING),
        StructField("dialect", _STRING),
        StructField("key", _STRING),  # job, identifier or item id
        StructField("queue", _STRING),  # workq: the job's name; null for ztick
        StructField("task", _STRING),  # workq: the task that its payload names
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
        StructField("error", _STRING),  # of a failure: its class, or what the runner said
        StructField("retried", _BOOLEAN),  # workq: a failure that was taken back
        StructField("exhausted", _BOOLEAN),  # workq: no attempt was left behind this one
        StructField("expires_ns", _LONG),
        StructField("position", _LONG),  # of the record with which the row begins
    ]
)

# How rows are put together; the words of --by.
GROUPINGS = ("queue", "rule", "prefix", "log")
_SEPARATORS = "[.:/]"


def as_attempts(frame: DataFrame) -> DataFrame:
    """``frame`` with exactly the columns above; missing ones are null."""
    return frame.select(
        *(
            (frame[field.name] if field.name in frame.columns else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in ATTEMPTS.fields
        )
    )


def length(begin: str, end: str) -> Column:
    """Nanoseconds, never negative: logged times may step back. Null if one of the two is."""
    found = F.try_subtract(F.col(end), F.col(begin))
    return F.when(found < 0, F.lit(0).cast(_LONG)).otherwise(found)


def attempt_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """The same of a table of Arrow; wait and run are computed."""
    found: dict[str, AnyColumn] = {name: rows[name] for name in rows.column_names}
    started = ns_in(rows["started_ns"])
    found["wait_ns"] = ns_column(length_ns(ns_in(rows["ready_ns"]), started))
    found["run_ns"] = ns_column(length_ns(started, ns_in(rows["ended_ns"])))
    yield from as_schema(found, arrow_schema(ATTEMPTS)).to_batches()


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


def expired_by(rows: DataFrame, as_of_ns: int) -> DataFrame:
    """Rows of attempts in which whatever nobody can have any more at this time has expired.

    A work queue may not have logged it yet, and a journal never does.
    """
    is_open = F.col("outcome").isin("waiting", "leased")
    is_over = is_open & F.coalesce(F.col("expires_ns") <= as_of_ns, F.lit(False))
    ended_ns = F.when(is_over, F.col("expires_ns")).otherwise(F.col("ended_ns"))
    length = F.try_subtract(ended_ns, F.col("started_ns"))
    return rows.withColumns(
        {
            "ended_ns": ended_ns,
            "run_ns": F.when(length < 0, F.lit(0).cast(_LONG)).otherwise(length),
            "outcome": F.when(is_over, F.lit("expired")).otherwise(F.col("outcome")),
        }
    )


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


def grouped_by(by: str) -> Column:
    """The group of a row of attempts, as a column ``group``; empty where it has none."""
    if by == "queue":
        # A schedule has no queues: there the rule stands for what runs alike.
        column = F.coalesce("queue", "rule")
    elif by == "rule":
        column = F.coalesce("rule", "queue")
    elif by == "prefix":
        named = F.when(F.col("dialect") == "ztick", F.col("key")).otherwise(F.col("queue"))
        column = F.regexp_extract(named, f"^(.*?)({_SEPARATORS}|$)", 1)
    elif by == "log":
        column = F.col("_log")
    else:
        raise UsageError(f"rows are grouped by {', '.join(GROUPINGS)}, not by {by!r}")
    return F.coalesce(column, F.lit("")).alias("group")


def moment(ns: Column) -> Column:
    """Nanoseconds since 1970 as a timestamp, to the microsecond below."""
    # A double cannot hold the nanoseconds of today, but it can hold their whole microseconds.
    whole = F.try_subtract(ns, F.pmod(ns, F.lit(1000)))
    return F.timestamp_micros(F.round(whole / 1000).cast("long"))
