"""Every attempt of every job of a workq log, from its records alone.

    records --by (log, job), in log order--> narrowed --walk--> rows of attempts
                                                          \\--> whose bytes are still needed

The fold of a job needs its records in order, so they meet once: shuffled by job and sorted inside
a partition. Payloads and results do not travel. What is made of them there is compiled code
(columnar.workq.attempts), a few nanoseconds a record. An ingest of the lake does the same.

Two adds of one id that differ in nothing but the bytes of their payload count as the same add.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.columnar.workq import attempts as at
from journeyman.formats.workq import Command
from journeyman.spark import vectors
from journeyman.spark.history import columns
from journeyman.units import NS_PER_MS

# The columns of a record that history needs.
RECORD: Final = (
    *("_log", "kind", "key", "_position", "logged_ns", "name", "ttr_ms", "ttl_ms", "priority"),
    *("max_attempts", "max_fails", "payload_size", "time_ns", "created_ns"),
)
NAMES: Final = ("task", "error")  # known of records that were read with payloads
_KINDS: Final = [command.word for command in Command]
_COMMANDS: Final = np.array([int(command) for command in Command], np.int64)
_MAX_NS: Final = 2**63 - 1
_NUMBERS: Final = {
    at.KIND: "command",
    at.LOGGED_NS: "logged_ns",
    at.CREATED_NS: "created_ns",
    at.DUE_NS: "time_ns",
    at.EXPIRES_NS: "expires_ns",
    at.TTR_MS: "ttr_ms",
    at.TTL_MS: "ttl_ms",
    at.MAX_ATTEMPTS: "max_attempts",
    at.MAX_FAILS: "max_fails",
    at.IDENTITY: "identity",
}
_TIMES: Final = (at.LOGGED_NS, at.CREATED_NS, at.DUE_NS, at.EXPIRES_NS)
_SAME_ADD: Final = (
    *("ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "payload_size"),
    *("time_ns", "created_ns"),
)
_NO_LONGER_NEEDED: Final = ["kind", "priority", "payload_size"]


def attempts(records: DataFrame) -> DataFrame:
    """One row per job and attempt, with the columns of RAW_ATTEMPTS."""
    return in_job_order(records).mapInArrow(_attempt_batches, columns.RAW_ATTEMPTS)


def in_job_order(records: DataFrame, *more_columns: str) -> DataFrame:
    """The records of each job together and in log order, as the walk needs them."""
    known = [name for name in NAMES if name in records.columns]
    of_jobs = records.where(F.col("kind").isin(_KINDS)).select(*RECORD, *known, *more_columns)
    return of_jobs.repartition("_log", "key").sortWithinPartitions("_log", "key", "_position")


def _attempt_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make attempts of records, on the executors, once for each partition."""
    for followed in follow(batches):
        yield from columns.attempt_batches(attempt_table(followed))


@dataclass(frozen=True, slots=True)
class Followed:
    """The result of the walk over the narrowed records of whole jobs."""

    records: pa.Table
    rows: at.Ints
    owner: at.Ints
    anomaly: at.Codes


def follow(batches: Iterable[pa.RecordBatch]) -> Iterator[Followed]:
    """Walk over batches of records in job order."""
    for records in columns.whole_jobs(batches):
        narrowed = narrow(records)
        yield walk_records(narrowed, columns.first_of_jobs(narrowed))


def narrow(rows: pa.Table) -> pa.Table:
    """Records of jobs as numbers, as the walk needs them; columns not known here stay."""
    found = vectors.places_in(rows["kind"], pa.array(_KINDS))
    rows, command = vectors.where(rows, found >= 0), _COMMANDS[found[found >= 0]]
    is_add = (command == Command.ADD) | (command == Command.SCHEDULE)
    created, due = vectors.ns_in(rows["created_ns"]), vectors.ns_in(rows["time_ns"])
    begins = np.where(command == Command.SCHEDULE, vectors.first_known(due, created), created)
    others = rows.drop_columns(_NO_LONGER_NEEDED)
    return pa.table(
        {
            **{name: others[name] for name in others.column_names},
            "key": vectors.text_of(rows["key"]),
            "name": vectors.coded(rows["name"]),
            "command": pa.array(command),
            "expires_ns": pa.array(_expiry(begins, vectors.ns_in(rows["ttl_ms"])), mask=~is_add),
            "identity": pa.array(_same_adds(rows, command), mask=~is_add),
        }
    )


def _expiry(begins_ns: vectors.Ints, ttl_ms: vectors.Ints) -> vectors.Ints:
    """When a job expires; never if that is beyond what 64 bits hold."""
    most_ms = _MAX_NS // NS_PER_MS
    fits = (np.abs(ttl_ms // 2) < most_ms // 2) & (begins_ns != at.NO_TIME)
    lives_ns = np.where(fits, ttl_ms, 0) * NS_PER_MS
    ends_ns = begins_ns + lives_ns
    overflows = ((begins_ns ^ ends_ns) & (lives_ns ^ ends_ns)) < 0
    return np.where(fits & ~overflows, ends_ns, _MAX_NS)


def _same_adds(rows: pa.Table, command: vectors.Ints) -> vectors.Ints:
    """A number that is the same for adds which differ in nothing but when they were logged."""
    words = [vectors.key_hashes(rows["name"]), command.view(np.uint64)]
    words += [vectors.ns_in(rows[name]).view(np.uint64) for name in _SAME_ADD]
    return vectors.mixed(words).view(np.int64)


def walk_records(records: pa.Table, first: vectors.Bools) -> Followed:
    """Over narrowed records in job order, all of each job; ``first`` marks where one begins."""
    table = records.combine_chunks()
    size = table.num_rows
    numbers = np.empty((at.RECORD_FIELDS, size), np.int64)
    for field, name in _NUMBERS.items():
        numbers[field] = vectors.filled_numbers(
            table[name].cast(pa.int64()), at.NO_TIME if field in _TIMES else 0
        )
    rows = np.empty((at.ROW_FIELDS, size), np.int64)
    owner = np.full(size, -1, np.int64)
    anomaly = np.zeros(size, np.int8)
    count = at.walk_attempts(first, numbers, rows, owner, anomaly)
    return Followed(table, rows[:, :count], owner, anomaly)


def attempt_table(followed: Followed) -> pa.Table:
    rows, records = followed.rows, followed.records
    began = pa.array(rows[at.BEGAN_ROW])
    add_row = rows[at.ADD_ROW]
    adds = pa.array(add_row, mask=add_row < 0)
    begins_with_add = rows[at.BEGAN_ROW] == add_row
    return pa.table(
        {
            "_log": records["_log"].take(began),
            "dialect": vectors.constant("workq", rows.shape[1]),
            "key": records["key"].take(began),
            "queue": records["name"].take(adds),
            "life": pa.array(rows[at.LIFE]),
            "attempt": pa.array(rows[at.ATTEMPT]),
            # The attempt a retry waits for may be the first as well, if nobody had leased the job.
            "first": pa.array(np.where(add_row < 0, rows[at.ATTEMPT] == 1, begins_with_add)),
            "created_ns": records["created_ns"].take(adds),
            "ready_ns": vectors.ns_column(rows[at.READY_NS]),
            "started_ns": vectors.ns_column(rows[at.STARTED_NS]),
            "ended_ns": vectors.ns_column(rows[at.ENDED_NS]),
            **_names(followed, adds),
            "outcome": pa.DictionaryArray.from_arrays(
                rows[at.OUTCOME].astype(np.int32), pa.array(at.OUTCOMES)
            ),
            "retried": pa.array(rows[at.RETRIED] == 1),
            "exhausted": pa.array(rows[at.EXHAUSTED] == 1),
            "expires_ns": vectors.ns_column(rows[at.ENDS_NS]),
            "position": records["_position"].take(began),
        }
    )


def _names(followed: Followed, adds: vectors.AnyColumn) -> dict[str, vectors.AnyColumn]:
    """The task of each attempt, and the class of the error with which it failed, if known."""
    records, failed = followed.records, followed.rows[at.FAILED_ROW]
    places = {"task": adds, "error": pa.array(failed, mask=failed < 0)}
    return {
        name: records[name].take(place)
        for name, place in places.items()
        if name in records.column_names
    }
