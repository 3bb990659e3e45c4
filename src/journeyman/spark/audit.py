"""An audit of logs of any mix of dialects: findings, and an account of every file.

    {"workq": [paths], ...}  -->  Audit(findings, segments)      against: the same of another side

What is wrong, and which bytes are still needed, is said by `.sql` files of ``spark/views``, as all
other figures are. Here their tables are put together:

    ztick     attempts; the plans as the log alone has them, and its records by job and time planned
              for    --> plan_findings, plan_bytes
              Without recorded runs (a log of the original, or history turned off) nothing can be
              said about what ran twice; the other findings need the log alone.
    workq     attempts; what the walk over the records of each job (columnar.workq.attempts) finds
              odd    --> job_findings
    kestrel   items and readers    --> item_findings, journal_bytes
    all       counts by file, odd records    --> segments, file_findings

What findings there are, and what they mean, is in findings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.columnar.workq import attempts as at
from journeyman.errors import UsageError
from journeyman.spark import findings, views
from journeyman.spark.history import workq_attempts, ztick_attempts
from journeyman.spark.history.logs import journal_of, records_of, runs_of
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.lakes.views import as_history, lag_in, records_in
from journeyman.spark.replay import states
from journeyman.spark.source import options
from journeyman.spark.source.options import KESTREL, WORKQ, ZTICK

GRACE_NS = 60 * 1_000_000_000
FINDING_VIEWS = {ZTICK: "plan_findings", WORKQ: "job_findings", KESTREL: "item_findings"}
_WALKED = options.struct(
    "_log string, what string, key string, position bigint, ns bigint, segment int, bytes bigint"
)
_BYTES = "bytes"  # the rows that are no anomaly
Logs = Mapping[str, Sequence[str]]  # paths by dialect
Tables = dict[str, DataFrame]  # the tables that a view reads, by name
Mapped: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings, and one row per file. Both are computed when they are first asked for."""

    findings: DataFrame
    segments: DataFrame


def audit(
    spark: SparkSession,
    logs: Logs,
    *,
    as_of_ns: int,
    grace_ns: int = GRACE_NS,
    run_directories: Sequence[str] = (),
    against: Logs | None = None,
) -> Audit:
    """Audit these logs. A job is late if its time was over by ``grace_ns`` at ``as_of_ns``."""
    check_sides(logs, against)
    found: list[DataFrame] = []
    accounts: list[DataFrame] = []
    for dialect, paths in logs.items():
        records = records_of(spark, dialect, paths, [options.DAMAGE])
        tables, live = _tables_of(spark, dialect, paths, records, as_of_ns, run_directories)
        files = totals(records, dialect).cache()
        account = _run("segments", {"files": files, "live": live}).cache()
        accounts.append(account)
        odd = {"odd_records": files.select("_log", "_file", F.inline("odd")), "segments": account}
        found += [
            found_in(dialect, tables, as_of_ns, grace_ns),
            findings.as_findings(_run("file_findings", odd), dialect),
        ]
        if against is not None:
            here = states(spark, dialect, paths)
            there = states(spark, dialect, against[dialect])
            found += _compared(dialect, here, there, records)
    return Audit(
        findings.together(spark, found, findings.FINDINGS).cache(),
        findings.together(spark, accounts, findings.SEGMENTS),
    )


def audit_of_lake(
    spark: SparkSession, lake: Lake, *, as_of_ns: int, grace_ns: int = GRACE_NS
) -> Audit:
    """Audit all that a lake has; it has no files to account for."""
    attempts = as_history(lake.read(spark, "silver/attempts"))
    groups = ztick_attempts.grouped(records_in(spark, lake, ZTICK)).cache()
    walked = _walked(records_in(spark, lake, WORKQ), as_of_ns)
    tables = {
        ZTICK: {"attempts": attempts, **plan_tables(groups)},
        WORKQ: {"attempts": attempts, "anomalies": walked},
        KESTREL: _journal_in(spark, lake),
    }
    found = [found_in(dialect, each, as_of_ns, grace_ns) for dialect, each in tables.items()]
    nothing = spark.createDataFrame([], findings.SEGMENTS)
    return Audit(findings.together(spark, found, findings.FINDINGS).cache(), nothing)


def found_in(dialect: str, tables: Tables, as_of_ns: int, grace_ns: int) -> DataFrame:
    """The findings of a dialect, from the tables that its view reads."""
    rows = _run(FINDING_VIEWS[dialect], tables, as_of_ns, as_of_ns - grace_ns)
    return findings.as_findings(rows, dialect)


def _run(
    view: str, tables: Tables, as_of_ns: int | None = None, late_ns: int | None = None
) -> DataFrame:
    given = tuple(tables)
    statement = views.statement(view, as_of_ns=as_of_ns, late_ns=late_ns, given_views=given)
    return views.run_in_spark(tables[given[0]].sparkSession, statement, **tables)


def _tables_of(
    spark: SparkSession,
    dialect: str,
    paths: Sequence[str],
    records: DataFrame,
    as_of_ns: int,
    run_directories: Sequence[str],
) -> tuple[Tables, DataFrame]:
    """The tables that the views of a dialect read, and the bytes needed of each file."""
    if dialect == ZTICK:
        groups = ztick_attempts.grouped(records).cache()
        attempts = ztick_attempts.attempts_of_groups(groups, runs_of(spark, paths, run_directories))
        return {"attempts": attempts, **plan_tables(groups)}, _run("plan_bytes", {"plans": groups})
    if dialect == KESTREL:
        tables = journal_tables(*journal_of(spark, paths))
        return tables, _run("journal_bytes", journal_records(records, tables["readers"]))
    walked = _walked(records, as_of_ns).cache()
    needed = walked.where(F.col("what") == _BYTES)
    live = needed.groupBy("_log", F.col("segment").alias("_segment")).agg(
        F.sum("bytes").alias("live_bytes")
    )
    return {"attempts": workq_attempts.attempts(records), "anomalies": walked}, live


def totals(records: DataFrame, dialect: str) -> DataFrame:
    """One row per file that holds anything, with what is odd about single records of it: damage,
    and commands of another version. Few rows, so whoever needs them twice may keep them.
    """
    is_damage = F.col("kind") == options.DAMAGE_KIND
    length = F.col("_length").cast("long")
    odd = F.struct(
        *("kind", F.col("_position").alias("position")),
        *(F.col("_length").alias("length"), F.col(options.DAMAGE).alias("damage")),
    )
    return (
        records.groupBy("_log", "_segment", "_file")
        .agg(
            F.count_if(~is_damage).alias("records"),
            F.sum(F.when(~is_damage, length).otherwise(F.lit(0))).alias("record_bytes"),
            F.count_if(is_damage).alias("damages"),
            F.sum(F.when(is_damage, length).otherwise(F.lit(0))).alias("damaged_bytes"),
            F.collect_list(F.when(is_damage | (F.col("kind") == "UNKNOWN"), odd)).alias("odd"),
        )
        .withColumn("dialect", F.lit(dialect))
    )


def _compared(
    dialect: str,
    here: Mapping[str, DataFrame],
    there: Mapping[str, DataFrame],
    records: DataFrame,
) -> list[DataFrame]:
    return [
        findings.compare(each, here[each.table], there[each.table], records)
        for each in findings.COMPARED
        if each.dialect == dialect
    ]


def check_sides(logs: Logs, against: Logs | None) -> None:
    """Raises UsageError if two sides have logs of different dialects."""
    if against is not None and set(logs) != set(against):
        ours, theirs = (", ".join(sorted(side)) or "nothing" for side in (logs, against))
        raise UsageError(f"here are logs of {ours}, there of {theirs}: compare like with like")


# ----------------------------------------
# A schedule.


def plan_tables(groups: DataFrame) -> Tables:
    """Return the tables of ``grouped`` records: these, and what became of each plan as far as the
    log says."""
    no_runs = groups.sparkSession.createDataFrame([], ztick_attempts.RUNS)
    return {"plans": groups, "planned": ztick_attempts.attempts_of_groups(groups, no_runs)}


# ----------------------------------------
# A work queue.


def _walked(records: DataFrame, as_of_ns: int) -> DataFrame:
    """One pass over the records of each job: what is odd, and bytes that are needed by segment."""
    in_order = workq_attempts.in_job_order(records, "_segment", "_length")
    return in_order.mapInArrow(_walk(as_of_ns), _WALKED)


def _walk(as_of_ns: int) -> Mapped:
    def walk(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for followed in workq_attempts.follow(batches):
            yield _anomalies(followed)
            yield _needed(followed, as_of_ns)

    return walk


def _anomalies(followed: workq_attempts.Followed) -> pa.RecordBatch:
    odd = np.flatnonzero(followed.anomaly)
    records: Any = followed.records.take(odd)
    words = np.array(at.ANOMALIES)[followed.anomaly[odd]]
    return _walked_rows(
        _log=records["_log"],
        what=pa.array(words, pa.string()),
        key=records["key"],
        position=records["_position"],
        ns=records["logged_ns"],
    )


def _needed(followed: workq_attempts.Followed, as_of_ns: int) -> pa.RecordBatch:
    """Bytes by log and segment of the records whose job exists at the moment."""
    owner = followed.owner
    known = followed.rows[:, followed.rows[at.ADD_ROW] >= 0]
    expires_ns = np.zeros(len(owner), np.int64)
    expires_ns[known[at.ADD_ROW]] = known[at.ENDS_NS]  # that of the last row of each job stays
    live = np.flatnonzero((owner >= 0) & (expires_ns[owner] > as_of_ns))
    records = followed.records.select(["_log", "_segment", "_length"]).take(live)
    sums = records.group_by(["_log", "_segment"]).aggregate([("_length", "sum")])
    what = pa.array([_BYTES] * sums.num_rows, pa.string())
    return _walked_rows(
        _log=sums["_log"], what=what, segment=sums["_segment"], bytes=sums["_length_sum"]
    )


def _walked_rows(**columns: Any) -> pa.RecordBatch:
    """A batch of these columns; the others are null."""
    shape = options.arrow_schema(_WALKED)
    nothing = pa.nulls(len(columns["_log"]))
    table = pa.table({name: columns.get(name, nothing) for name in shape.names}).cast(shape)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=shape)


# ----------------------------------------
# A journal.


def journal_tables(items: DataFrame, readers: DataFrame) -> Tables:
    """Return the tables of fan-out queues from their state tables."""
    last_done = F.array_max("done").alias("last_done")
    position = F.col("_position").alias("position")
    return {
        "items": items.withColumn("position", F.col("_position")),
        "readers": readers.select("*", last_done, position).cache(),
    }


def journal_records(records: DataFrame, readers: DataFrame) -> Tables:
    """Records, and the readers as the server would open them: not every checkpoint is believed."""
    renamed = {"_length": "length", "_position": "position"}
    opened = readers.where(F.col("_file").isNotNull() & F.col("opened_head").isNotNull())
    standing = opened.select(
        "_log", F.col("opened_head").alias("head"), F.col("opened_done").alias("done")
    )
    return {"records": records.withColumnsRenamed(renamed), "readers": F.broadcast(standing)}


def _journal_in(spark: SparkSession, lake: Lake) -> Tables:
    """All items that were ever ingested, and readers as they were last seen."""
    put = as_history(lake.read(spark, "silver/items"))
    by_id = Window.partitionBy("_log", "item_id").orderBy("position")
    items = put.withColumns(
        {
            "_segment": F.shiftright("position", options.SEGMENT_SHIFT).cast("int"),
            "_file": F.col("log"),
            "ordinal": F.row_number().over(by_id) - 1,
        }
    )
    first = items.groupBy("_log").agg(F.min("item_id").alias("first_id"))
    readers = (
        lag_in(spark, lake)
        .join(first, "_log", "left")
        .withColumns(
            {
                "damaged": F.col("head").isNull(),
                # Items that were erased before the lake began are not known to be missing.
                "first_id": F.least(F.col("first_id"), F.col("head") + 1),
                **dict.fromkeys(("last_done", "position"), F.lit(None).cast("bigint")),
            }
        )
    )
    return {"items": items, "readers": readers}
