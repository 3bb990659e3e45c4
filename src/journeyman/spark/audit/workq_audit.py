"""What is wrong with a work queue, and which of its bytes are still needed: one pass for both.

    records --by job, in log order--> walk --> anomalies of records        -> findings
                                          \\-> needed bytes of each segment -> segments

The walk is that of history (columnar.workq.attempts), which follows the fold of docs/folds.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.columnar.workq import attempts as at
from journeyman.spark.audit.findings import as_findings, moment_text
from journeyman.spark.history.workq_attempts import Followed, follow, in_job_order

_DIALECT = "workq"
_WALKED = "_log string, what string, key string, position long, ns long, segment int, bytes long"
_BYTES = "bytes"  # the rows that are no anomaly

# anomaly -> finding, and what it says
_FINDINGS = {
    "start-after-finish": ("duplicate-execution", "leased after it was finished"),
    "second-result": ("duplicate-execution", "finished once more; the first result stands"),
    "start-while-leased": ("overlapping-lease", "leased again while it was leased"),
    "start-over-limit": ("over-limit", "leased beyond max-attempts"),
    "replaced": ("vanished", "unfinished, and its id was used again: no end is recorded"),
    "orphan": ("orphan", "a record of a job that was never added"),
    "expired-unrun": ("expired-unrun", "its time to live was over before it was leased"),
    "overdue": ("missed-run", "scheduled, due, and never leased"),
}
Words: TypeAlias = npt.NDArray[np.str_]
Mapped: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def walked(records: DataFrame, as_of_ns: int, grace_ns: int) -> DataFrame:
    """The one pass; what it gives is small, and goes to both functions below."""
    in_order = in_job_order(records, "_segment", "_length")
    return in_order.mapInArrow(_walk(as_of_ns, as_of_ns - grace_ns), _WALKED)


def findings(passed: DataFrame) -> list[DataFrame]:
    odd = passed.where(F.col("what") != _BYTES)
    finding = text = F.lit(None).cast("string")
    for word, (name, says) in _FINDINGS.items():
        finding = F.when(F.col("what") == word, F.lit(name)).otherwise(finding)
        text = F.when(F.col("what") == word, F.lit(says)).otherwise(text)
    detail = F.concat_ws(", ", text, moment_text(F.col("ns")))
    known = odd.where(finding.isNotNull())
    return [as_findings(known, finding, _DIALECT, detail=detail)]


def needed_bytes(passed: DataFrame) -> DataFrame:
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
    nothing = pa.nulls(sums.num_rows)
    table = pa.table(
        {
            "_log": sums["_log"],
            "what": pa.array([_BYTES] * sums.num_rows, pa.string()),
            "key": nothing.cast(pa.string()),
            "position": nothing.cast(pa.int64()),
            "ns": nothing.cast(pa.int64()),
            "segment": sums["_segment"].cast(pa.int32()),
            "bytes": sums["_length_sum"].cast(pa.int64()),
        }
    )
    return _one_batch(table)


def _times(followed: Followed, name: str) -> at.Ints:
    column: Any = followed.records[name]
    times: at.Ints = column.fill_null(at.NO_TIME).to_numpy()
    return times


def _batch(followed: Followed, places: at.Ints, words: Words, times: at.Ints) -> pa.RecordBatch:
    """One row a record at ``places``: what is odd about it, and when that was."""
    records: Any = followed.records
    nothing = pa.nulls(len(places))
    table = pa.table(
        {
            "_log": records["_log"].take(places),
            "what": pa.array(words, pa.string()),
            "key": records["key"].take(places),
            "position": records["_position"].take(places),
            "ns": pa.array(times, pa.int64()),
            "segment": nothing.cast(pa.int32()),
            "bytes": nothing.cast(pa.int64()),
        }
    )
    return _one_batch(table)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
