"""Rows of ``workq.jobs`` -> the bytes of their snapshots.

    state, attempts, fails                    records
    new, 0, 0                                 the add
    leased, 1, 0                              the add, the start
    completed or failed, 0 or 1, 0            the add, the start if there was one, the result
    anything else                             what journeyman.folds.workq makes of it

The first three are copied from the log by the places that the replay has noted. So is every record
that the last one is made from, which are then decoded: zone offsets and numbers beyond 64 bits are
in no column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from journeyman.errors import FormatError, LogError
from journeyman.folds.workq import FoldedJob, JobState, snapshot
from journeyman.formats.framing import Buffer
from journeyman.formats.workq import CODEC
from journeyman.spark.replay.merging import OFFSET_MASK
from journeyman.spark.replay.point_reads import Span, read_spans
from journeyman.spark.source.rows import SEGMENT_SHIFT

_Row = dict[str, Any]
_COLUMNS = (
    "_position",
    "_length",
    "state",
    "attempts",
    "fails",
    "exhausted",
    "owed_timeouts",
    "started_position",
    "finished_position",
    "result_position",
    "result_length",
)
_EVENT_BYTES = 37  # of a record that is nothing but a time, a command and an id
_STATES = {state.name.lower(): state for state in JobState}


@dataclass(frozen=True, slots=True)
class SnapshotBytes:
    """Called with batches of jobs; ``files`` are those of their one log, by segment."""

    files: Mapping[int, str]

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Buffer]:
        rows = batch.select(list(_COLUMNS)).to_pylist()
        spans = [self._spans(row) for row in rows]
        found = read_spans([span for each in spans for span in each.values()])
        at = 0
        for row, each in zip(rows, spans, strict=True):
            pieces = dict(zip(each, found[at : at + len(each)], strict=True))
            at += len(each)
            yield b"".join(pieces.values()) if _is_copied(row) else _encoded(row, pieces)

    def _spans(self, row: _Row) -> dict[str, Span]:
        """The records that a job is told from, in the order of a snapshot."""
        spans = {"added": self._span(row["_position"], row["_length"])}
        if row["started_position"] is not None:
            spans["started"] = self._span(row["started_position"], _EVENT_BYTES)
        if row["result_position"] is not None:
            spans["result"] = self._span(row["result_position"], row["result_length"])
        if row["finished_position"] not in (None, row["result_position"]):
            spans["finished"] = self._span(row["finished_position"], _EVENT_BYTES)
        return spans

    def _span(self, position: int, length: int) -> Span:
        return Span(self.files[position >> SEGMENT_SHIFT], position & OFFSET_MASK, length)


def _is_copied(row: _Row) -> bool:
    """Whether the records of the log, as they are, are the snapshot."""
    if row["fails"] or row["exhausted"] or row["owed_timeouts"] or row["attempts"] > 1:
        return False
    if row["state"] == "leased":
        return bool(row["attempts"] == 1)
    if row["state"] == "new":
        return bool(row["attempts"] == 0)
    is_finished = row["state"] in ("completed", "failed")
    return is_finished and row["finished_position"] == row["result_position"]


def _encoded(row: _Row, pieces: Mapping[str, bytes]) -> bytes:
    records = {name: _decoded(data) for name, data in pieces.items()}
    started, result = records.get("started"), records.get("result")
    finished = records.get("finished", result)
    job = FoldedJob(
        records["added"],
        _STATES[row["state"]],
        row["attempts"],
        row["fails"],
        None if result is None else result.result,
        None if started is None else started.logged,
        None if row["finished_position"] is None or finished is None else finished.logged,
        row["exhausted"],
        row["owed_timeouts"],
    )
    if job.exhausted:
        job.result = b""
    return b"".join(CODEC.encode(record) for record in snapshot(job))


def _decoded(data: bytes) -> Any:
    try:
        entry = CODEC.decode(data, 0)
    except FormatError as error:
        raise LogError("", f"a record changed while the log was cleaned: {error.reason}") from error
    assert entry is not None
    return entry.record
