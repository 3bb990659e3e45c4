"""An audit of logs of any mix of dialects: findings, and an account of every file.

    {"workq": [paths], ...}  -->  Audit(findings, segments)      against: the same of another side

What each dialect's audit looks at:

    ztick     One aggregation of the records by job and planned time: run twice, not run, cut off,
              removed without having been set. Without recorded runs (a log of the original, or
              history turned off) nothing can be said about what ran twice; the other findings need
              the log alone.
    workq     One pass over the records of each job in log order, as in history
              (columnar.workq.attempts), which follows the fold of docs/folds.md. It gives the
              anomalies, and the bytes of each segment that are still needed.
    kestrel   The state tables. Ids of a queue are given out one after the other, so a hole between
              two ids that are still there is an item that was lost. Holes are found segment by
              segment, from the least and the greatest id and how many there are.

What findings there are, and what they mean, is in findings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.columnar.workq import attempts as at
from journeyman.errors import UsageError
from journeyman.spark.findings import (
    COMPARED,
    FINDINGS,
    SEGMENTS,
    as_findings,
    by_word,
    compare,
    dead_bytes,
    moment_text,
    odd_records,
    segments,
    together,
    totals,
)
from journeyman.spark.history.logs import journal_of, records_of, runs_of
from journeyman.spark.history.workq_attempts import Followed, follow, in_job_order
from journeyman.spark.history.ztick_attempts import STATUSES, attempts_of, grouped
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.lakes.views import lag_in, records_in
from journeyman.spark.replay import states
from journeyman.spark.source.options import (
    DAMAGE,
    KESTREL,
    SEGMENT_SHIFT,
    WORKQ,
    ZTICK,
    arrow_schema,
    struct,
)

GRACE_NS = 60 * 1_000_000_000
_FILE = ["_log", "_segment"]
_PLAN = ["_log", "key", "ready_ns"]
_WALKED = struct(
    "_log string, what string, key string, position bigint, ns bigint, segment int, bytes bigint"
)
_BYTES = "bytes"  # the rows that are no anomaly
# anomaly -> finding, and what it says
_FINDINGS = {
    "start-after-finish": ("duplicate-execution", "leased after it was finished"),
    "second-result": ("duplicate-execution", "finished once more; the first result stands"),
    "start-while-leased": ("overlapping-lease", "leased again while it was leased"),
    "start-over-limit": ("over-limit", "leased beyond max-attempts"),
    "replaced": ("vanished", "unfinished, and its id was used again: no end is recorded"),
    "orphan": ("orphan", "a record of a job that was never added"),
    "expired-unrun": ("expired-unrun", "its TTL ended before it was leased"),
    "overdue": ("missed-run", "scheduled, due, and never leased"),
}
Logs = Mapping[str, Sequence[str]]  # paths by dialect
Words: TypeAlias = npt.NDArray[np.str_]
Mapped: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; ``segments`` has one row a file. Both are lazy, and kept once computed."""

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
    """What is due counts as late when its time was over by ``grace_ns`` at ``as_of_ns``."""
    _check_sides(logs, against)
    found: list[DataFrame] = []
    accounts: list[DataFrame] = []
    for dialect, paths in logs.items():
        records = records_of(spark, dialect, paths, [DAMAGE])
        files = totals(records).cache()
        more, live = _of_dialect(
            spark, dialect, paths, records, as_of_ns, grace_ns, run_directories
        )
        found += [*more, odd_records(files, dialect)]
        accounts.append(segments(files, live, dialect))
        if against is not None:
            here = states(spark, dialect, paths)
            there = states(spark, dialect, against[dialect])
            found += _compared(dialect, here, there, records)
    account = together(spark, accounts, SEGMENTS).cache()
    findings = together(spark, [*found, dead_bytes(account)], FINDINGS).cache()
    return Audit(findings, account)


def audit_of_lake(
    spark: SparkSession, lake: Lake, *, as_of_ns: int, grace_ns: int = GRACE_NS
) -> Audit:
    """The same over all that a lake has; it has no files to account for."""
    ztick, workq = (records_in(spark, lake, f"bronze/{each}") for each in (ZTICK, WORKQ))
    runs = records_in(spark, lake, "bronze/runs").where(F.col("kind") == "run")
    found = [
        *ztick_findings(grouped(ztick).cache(), runs, as_of_ns, grace_ns),
        *workq_findings(walked(workq, as_of_ns, grace_ns).cache()),
        *_kestrel_findings_of_lake(spark, lake),
    ]
    nothing = spark.createDataFrame([], SEGMENTS)
    return Audit(together(spark, found, FINDINGS).cache(), nothing)


def _of_dialect(
    spark: SparkSession,
    dialect: str,
    paths: Sequence[str],
    records: DataFrame,
    as_of_ns: int,
    grace_ns: int,
    run_directories: Sequence[str],
) -> tuple[list[DataFrame], DataFrame]:
    """Findings, and the bytes that are needed of each file."""
    if dialect == ZTICK:
        groups = grouped(records).cache()
        runs = runs_of(spark, paths, run_directories)
        found = ztick_findings(groups, runs, as_of_ns, grace_ns)
        return found, ztick_needed_bytes(groups)
    if dialect == KESTREL:
        items, readers = journal_of(spark, paths)
        readers = readers.cache()
        ids = ids_of_segments(items).cache()
        return kestrel_findings(ids, readers), kestrel_needed_bytes(records, readers)
    passed = walked(records, as_of_ns, grace_ns).cache()
    return workq_findings(passed), workq_needed_bytes(passed)


def _compared(
    dialect: str,
    here: Mapping[str, DataFrame],
    there: Mapping[str, DataFrame],
    records: DataFrame,
) -> list[DataFrame]:
    return [
        compare(each, here[each.table], there[each.table], records)
        for each in COMPARED
        if each.dialect == dialect
    ]


def _check_sides(logs: Logs, against: Logs | None) -> None:
    if against is not None and set(logs) != set(against):
        ours, theirs = (", ".join(sorted(side)) or "nothing" for side in (logs, against))
        raise UsageError(f"here are logs of {ours}, there of {theirs}: compare like with like")


def ztick_findings(
    groups: DataFrame, runs: DataFrame, as_of_ns: int, grace_ns: int
) -> list[DataFrame]:
    """From ``grouped`` records. Late is what was over by ``grace_ns`` at ``as_of_ns``."""
    no_runs = runs.where(F.lit(False))  # what the log alone says of each plan
    ran = runs.withColumnsRenamed({"job": "key", "execution_ns": "ready_ns"})
    return [
        _duplicates(groups, ran),
        _cut_off(ran),
        _not_run(attempts_of(groups, no_runs), as_of_ns - grace_ns),
        _orphans(groups),
    ]


def ztick_needed_bytes(groups: DataFrame) -> DataFrame:
    """The last record of each job and rule that exists: _log, _segment, live_bytes."""
    last = groups.groupBy("_log", "key", "is_rule").agg(
        F.max("latest").alias("latest"),
        F.max(F.when(F.col("is_set"), F.col("latest"))).alias("latest_set"),
        F.max_by("last_length", "latest").alias("length"),
    )
    segment = F.shiftright(F.floor(F.col("latest") / len(STATUSES)), SEGMENT_SHIFT).cast("int")
    return (
        last.where(F.col("latest") == F.col("latest_set"))
        .groupBy("_log", segment.alias("_segment"))
        .agg(F.sum("length").alias("live_bytes"))
    )


def _duplicates(groups: DataFrame, ran: DataFrame) -> DataFrame:
    """More runs of one plan than times it was planned. A log that was compacted shows one plan."""
    ended = ran.where(F.col("outcome") != "cut-off")
    counted = ended.groupBy(*_PLAN).agg(
        F.count("*").alias("runs"),
        F.min("started_ns").alias("first_ns"),
        F.max("started_ns").alias("last_ns"),
    )
    planned = groups.where(F.col("is_set") & ~F.col("is_rule")).select(*_PLAN, "plans", "position")
    often = counted.where(F.col("runs") > 1).join(planned, _PLAN, "left")
    twice = often.where(F.col("runs") > F.greatest(F.coalesce("plans", F.lit(1)), F.lit(1)))
    detail = F.format_string(
        "ran %d times for %s: first %s, last %s",
        F.col("runs"),
        *(moment_text(F.col(name)) for name in ("ready_ns", "first_ns", "last_ns")),
    )
    return as_findings(twice, "duplicate-execution", "ztick", detail=detail)


def _cut_off(ran: DataFrame) -> DataFrame:
    cut_off = ran.where(F.col("outcome") == "cut-off")
    detail = F.format_string(
        "cut off by a stop at %s, by rule %s", moment_text(F.col("ended_ns")), F.col("rule")
    )
    return as_findings(cut_off, "cut-off-run", "ztick", detail=detail, position=None)


def _not_run(planned: DataFrame, late_ns: int) -> DataFrame:
    late = planned.where(
        F.col("outcome").isin("planned", "triggered") & (F.col("ready_ns") < late_ns)
    )
    is_missed = F.col("outcome") == "planned"
    finding = F.when(is_missed, F.lit("missed-run")).otherwise(F.lit("never-executed"))
    what = F.when(is_missed, F.lit("still planned")).otherwise(F.lit("triggered, no end recorded"))
    detail = F.format_string("due at %s: %s", moment_text(F.col("ready_ns")), what)
    return as_findings(late, finding, "ztick", detail=detail)


def _orphans(groups: DataFrame) -> DataFrame:
    """Removals of what was never set, as far as this log goes back."""
    named = groups.groupBy("_log", "key", "is_rule").agg(
        F.bool_or("is_set").alias("was_set"), F.min("position").alias("position")
    )
    what = F.when(F.col("is_rule"), F.lit("rule")).otherwise(F.lit("job"))
    detail = F.format_string("removal of a %s that this log does not know", what)
    return as_findings(named.where(~F.col("was_set")), "orphan", "ztick", detail=detail)


def walked(records: DataFrame, as_of_ns: int, grace_ns: int) -> DataFrame:
    """The one pass; what it gives is small, and goes to both functions below."""
    in_order = in_job_order(records, "_segment", "_length")
    return in_order.mapInArrow(_walk(as_of_ns, as_of_ns - grace_ns), _WALKED)


def workq_findings(passed: DataFrame) -> list[DataFrame]:
    anomaly = F.col("what")
    finding = by_word(anomaly, {word: name for word, (name, _) in _FINDINGS.items()})
    text = by_word(anomaly, {word: says for word, (_, says) in _FINDINGS.items()})
    known = passed.where(finding.isNotNull())
    detail = F.concat_ws(", ", text, moment_text(F.col("ns")))
    return [as_findings(known, finding, "workq", detail=detail)]


def workq_needed_bytes(passed: DataFrame) -> DataFrame:
    """Bytes of each segment that the state needs: _log, _segment, live_bytes."""
    counted = passed.where(F.col("what") == _BYTES)
    return counted.groupBy("_log", F.col("segment").alias("_segment")).agg(
        F.sum("bytes").alias("live_bytes")
    )


def _walk(as_of_ns: int, late_ns: int) -> Mapped:
    def walk(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for followed in follow(batches):
            yield _anomalies(followed)
            yield _missed(followed, as_of_ns, late_ns)
            yield _needed(followed, as_of_ns)

    return walk


def _anomalies(followed: Followed) -> pa.RecordBatch:
    odd = np.flatnonzero(followed.anomaly)
    words = np.array(at.ANOMALIES)[followed.anomaly[odd]]
    return _batch(followed, odd, words, _times(followed, "logged_ns")[odd])


def _missed(followed: Followed, as_of_ns: int, late_ns: int) -> pa.RecordBatch:
    """Jobs of which no attempt was begun, though their time has come or is over; and those that
    were still to be finished when another took their id."""
    rows = followed.rows
    adds = rows[at.ADD_ROW]
    expires, due = _times(followed, "expires_ns"), _times(followed, "time_ns")
    outcome = np.array(at.OUTCOMES)[rows[at.OUTCOME]]
    unrun = (adds >= 0) & (rows[at.ATTEMPT] == 1) & (rows[at.STARTED_NS] == at.NO_TIME)
    waiting = unrun & (outcome == "waiting")
    over = expires[adds] <= as_of_ns
    expired = (unrun & (outcome == "expired")) | (waiting & over)
    overdue = waiting & ~over & (due[adds] != at.NO_TIME) & (due[adds] < late_ns)
    replaced = outcome == "replaced"
    words = np.select([expired, overdue, replaced], ["expired-unrun", "overdue", "replaced"], "")
    when = np.select([expired, overdue], [expires[adds], due[adds]], rows[at.ENDED_NS])
    found = np.flatnonzero(words != "")
    return _batch(followed, adds[found], words[found], when[found])


def _needed(followed: Followed, as_of_ns: int) -> pa.RecordBatch:
    """Bytes by log and segment of the records whose job exists at the moment."""
    owner = followed.owner
    live = np.flatnonzero((owner >= 0) & (_times(followed, "expires_ns")[owner] > as_of_ns))
    records = followed.records.select(["_log", "_segment", "_length"]).take(live)
    sums = records.group_by(["_log", "_segment"]).aggregate([("_length", "sum")])
    what = pa.array([_BYTES] * sums.num_rows, pa.string())
    return _walked_rows(
        _log=sums["_log"], what=what, segment=sums["_segment"], bytes=sums["_length_sum"]
    )


def _times(followed: Followed, name: str) -> at.Ints:
    column: Any = followed.records[name]
    times: at.Ints = column.fill_null(at.NO_TIME).to_numpy()
    return times


def _batch(followed: Followed, places: at.Ints, words: Words, times: at.Ints) -> pa.RecordBatch:
    """One row a record at ``places``: what is odd about it, and when that was."""
    records: Any = followed.records
    return _walked_rows(
        _log=records["_log"].take(places),
        what=pa.array(words, pa.string()),
        key=records["key"].take(places),
        position=records["_position"].take(places),
        ns=pa.array(times, pa.int64()),
    )


def _walked_rows(**columns: Any) -> pa.RecordBatch:
    """A batch of these columns; the others are null."""
    shape = arrow_schema(_WALKED)
    nothing = pa.nulls(len(columns["_log"]))
    table = pa.table({name: columns.get(name, nothing) for name in shape.names}).cast(shape)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=shape)


def ids_of_segments(items: DataFrame) -> DataFrame:
    """One row a segment: its least and greatest id, how many, and which were used again."""
    again = F.struct("item_id", F.col("_position").alias("position"))
    return items.groupBy(*_FILE, "_file", "queue").agg(
        F.min("item_id").alias("least"),
        F.max("item_id").alias("greatest"),
        F.count_if(F.col("ordinal") == 0).alias("ids"),
        F.min("_position").alias("position"),
        F.collect_list(F.when(F.col("ordinal") > 0, again)).alias("reused"),
    )


def kestrel_findings(ids: DataFrame, readers: DataFrame) -> list[DataFrame]:
    """``ids`` from ids_of_segments."""
    return [_holes(ids), _reused(ids), _readers(readers)]


def _holes(ids: DataFrame) -> DataFrame:
    before = F.lag("greatest").over(Window.partitionBy("_log").orderBy("_segment"))
    between = F.coalesce(F.greatest(F.col("least") - before - 1, F.lit(0)), F.lit(0))
    inside = F.greatest(F.col("greatest") - F.col("least") + 1 - F.col("ids"), F.lit(0))
    counted = ids.withColumns({"between": between, "inside": inside})
    missing = counted.where(F.col("between") + F.col("inside") > 0)
    detail = F.format_string(
        "ids missing: %d before %d, %d after it in %s",
        F.col("between"),
        F.col("least"),
        F.col("inside"),
        F.col("_file"),
    )
    return as_findings(missing, "vanished", "kestrel", detail=detail, key="queue")


def _reused(ids: DataFrame) -> DataFrame:
    again = ids.select("_log", "queue", F.inline("reused"))
    detail = F.format_string("another item of queue %s has this id; both are kept", F.col("queue"))
    return as_findings(again, "reused-id", "kestrel", detail=detail, key="item_id")


def _readers(readers: DataFrame) -> DataFrame:
    known = F.col("head").isNotNull()
    last = F.greatest(F.col("head"), F.coalesce(F.array_max("done"), F.col("head")))
    finding = (
        F.when(F.col("damaged"), F.lit("checkpoint-damaged"))
        .when(known & (last > F.col("tail_id")), F.lit("reader-ahead"))
        .when(known & (F.col("head") < F.col("first_id") - 1), F.lit("reader-behind"))
    )
    detail = F.format_string(
        "reader '%s' of queue %s: head %s, items %d to %d",
        F.col("reader"),
        F.col("queue"),
        F.coalesce(F.col("head").cast("string"), F.lit("not known")),
        F.col("first_id"),
        F.col("tail_id"),
    )
    odd = readers.withColumn("finding", finding).where(F.col("finding").isNotNull())
    return as_findings(
        odd, F.col("finding"), "kestrel", detail=detail, key="reader", position="_position"
    )


def kestrel_needed_bytes(records: DataFrame, readers: DataFrame) -> DataFrame:
    """Puts that some reader is not past; of each reader its last head, and all finished ids."""
    # A reader stands where the server would open it: not every checkpoint is believed.
    opened = readers.where(F.col("_file").isNotNull() & F.col("opened_head").isNotNull())
    standing = opened.groupBy("_log").agg(
        F.collect_list(F.struct("opened_head", "opened_done")).alias("readers")
    )
    item = F.col("item_id")
    past_all = F.forall(
        "readers",
        lambda reader: (
            (item <= reader["opened_head"]) | F.array_contains(reader["opened_done"], item)
        ),
    )
    is_checkpoint = F.col("reader").isNotNull()
    is_head = is_checkpoint & (F.col("kind") == "READ_HEAD")
    live = (
        F.when(is_checkpoint, F.col("kind") == "READ_DONE")
        # Without a reader nothing is finished.
        .otherwise((F.col("kind") == "PUT") & F.coalesce(~past_all, F.lit(True)))
    )
    length = F.col("_length").cast("long")
    summed = (
        records.join(F.broadcast(standing), "_log", "left")
        .groupBy(*_FILE)
        .agg(
            F.sum(F.when(live, length).otherwise(F.lit(0))).alias("bytes"),
            F.max_by(F.when(is_head, length), F.when(is_head, F.col("_position"))).alias("head"),
        )
    )
    total = F.col("bytes") + F.coalesce("head", F.lit(0))
    return summed.select(*_FILE, total.alias("live_bytes"))


def _kestrel_findings_of_lake(spark: SparkSession, lake: Lake) -> list[DataFrame]:
    """Of all items that were ever ingested, and of readers as they were last seen."""
    log = F.concat(F.col("host"), F.lit(":"), F.col("log"))
    put = lake.read(spark, "silver/items").withColumn("_log", log)
    by_id = Window.partitionBy("_log", "item_id").orderBy("position")
    items = put.withColumns(
        {
            "_position": F.col("position"),
            "_segment": F.shiftright("position", SEGMENT_SHIFT).cast("int"),
            "_file": F.col("log"),
            "ordinal": F.row_number().over(by_id) - 1,
        }
    )
    ids = ids_of_segments(items).cache()
    first = ids.groupBy("_log").agg(F.min("least").alias("first_id"))
    readers = (
        lag_in(spark, lake)
        .join(first, "_log", "left")
        .withColumns(
            {
                "damaged": F.col("head").isNull(),
                "done": F.lit(None).cast("array<bigint>"),
                # What was erased before the lake began is not known to be missing.
                "first_id": F.least(F.col("first_id"), F.col("head") + 1),
                "_position": F.lit(None).cast("bigint"),
            }
        )
    )
    return kestrel_findings(ids, readers)
