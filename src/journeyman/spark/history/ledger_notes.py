"""The notes of a server's ledger about attempts: who leased them, and which were cancelled.

    attempts-begun   {"worker": "w", "jobs": {id: attempt, ...}}   a note for each job
    job-options-set  {"job": id, "body": {"cancelled_ns": ...}}    a note without an attempt

``views/noted_attempts.sql`` puts notes and attempts together, for logs and for lakes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from journeyman.spark import views
from journeyman.spark.history.columns import RAW_ATTEMPTS
from journeyman.spark.source.options import arrow_schema, struct
from journeyman.spark.vectors import as_schema

KINDS: Final = ("attempts-begun", "job-options-set")
RECORD: Final = ("_log", "kind", "key", "logged_ns", "payload")
_MOST_ATTEMPTS: Final = 2**31 - 1
_MOST_NS: Final = 2**63 - 1
# ``ns`` is when the lease was noted, or when the job was cancelled; then there is no attempt.
NOTES: Final = struct("_log string, key string, attempt int, worker string, ns bigint")


def notes_of(records: pa.Table) -> pa.Table:
    """The notes in these records of ledgers."""
    rows: list[dict[str, Any]] = []
    for record in records.select(list(RECORD)).to_pylist():
        if record["kind"] in KINDS and record["payload"] is not None:
            rows += _notes(record, json.loads(record["payload"]))
    return pa.Table.from_pylist(rows, arrow_schema(NOTES))


def note_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make notes of records, on the executors."""
    for batch in batches:
        yield from notes_of(pa.Table.from_batches([batch])).to_batches()


def _notes(record: dict[str, Any], payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Bodies are whatever JSON a server wrote: values of other types are no notes."""
    if record["kind"] == "attempts-begun":
        worker = payload["worker"].encode("utf-8", "replace").decode()
        for key, attempt in payload["jobs"].items():
            if isinstance(attempt, int) and 0 < attempt <= _MOST_ATTEMPTS:
                noted = {"_log": record["_log"], "key": key.encode("utf-8", "replace").decode()}
                yield {**noted, "attempt": attempt, "worker": worker, "ns": record["logged_ns"]}
    else:
        cancelled_ns = payload["body"].get("cancelled_ns")
        if isinstance(cancelled_ns, int) and 0 < cancelled_ns <= _MOST_NS:
            yield {"_log": record["_log"], "key": record["key"], "ns": cancelled_ns}


def noted_attempts(attempts: pa.Table, notes: pa.Table) -> pa.Table:
    """Attempts with what notes of the same ``place`` say of them."""
    plain = as_schema(
        {name: attempts[name] for name in attempts.column_names}, arrow_schema(RAW_ATTEMPTS)
    ).append_column("place", attempts["place"])
    return views.run_in_duckdb(views.statement("noted_attempts"), attempts=plain, notes=notes)
