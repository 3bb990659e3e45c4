"""The tasks of a replay of workq logs: carry what the fold needs, then fold bucket by bucket.

    before the shuffle   records --bucket of job id--> packets of EVENTS, and beside them ADDS: the
                         option ``reduce=events``, without payloads and results
    behind it            all events of a bucket in log order --fold--> rows of jobs, or of orphans

Where a job stands depends on the order of all its records, so nothing is folded before the shuffle:
states of parts of a log cannot be merged into the state of the whole. What crosses it is about 40
bytes a record, and 70 more for an add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from journeyman.columnar import arrays
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import buckets_of, hashes_of
from journeyman.columnar.workq import fold as at
from journeyman.columnar.workq.fold import ADDS, EVENTS, States, events_and_adds, fold
from journeyman.errors import LogError
from journeyman.formats.workq import CODEC, Command, Record
from journeyman.spark.files import Span, read_records
from journeyman.spark.replay import STATE_TABLES, PacketGroup, files_at, place_columns
from journeyman.spark.source.options import KINDS, OFFSET_MASK, SEGMENT_SHIFT
from journeyman.spark.source.packets import Combiner, by_bucket, pack, unpack
from journeyman.spark.source.pieces import SplitContext
from journeyman.spark.source.task import uuid_texts
from journeyman.units import NS_PER_MS

_TABLES: Final = STATE_TABLES["workq"]
JOBS_TABLE: Final = "jobs"


class WorkqCombiner(Combiner):
    """Makes packets of one log."""

    def __init__(self, context: SplitContext) -> None:
        super().__init__(context)
        self._events: list[pa.RecordBatch] = []
        self._adds: list[pa.RecordBatch] = []

    def _keep(self, batch: pa.RecordBatch, first_position: int) -> None:
        events, adds = events_and_adds(batch, first_position)
        self._events.append(events)
        self._adds.append(adds)

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not self._events:
            return
        events, adds = arrays.joined(self._events), arrays.joined(self._adds)
        self._events, self._adds = [], []
        buckets = buckets_of(hashes_of(*arrays.text_in(events.column("job_id"))), self._buckets)
        is_add = arrays.numbers_in(events.column("kind")) <= Command.SCHEDULE
        yield from pack(
            self._source,
            JOBS_TABLE,
            by_bucket(events, buckets),
            details=by_bucket(adds, buckets[np.flatnonzero(is_add)]),
        )


_STATES: Final = pa.array(["new", "completed", "failed", "pending", "leased"])
_KINDS: Final = pa.array([None, *KINDS["workq"]])
_ADDED: Final = (
    "name",
    "ttr_ms",
    "ttl_ms",
    "priority",
    "max_attempts",
    "max_fails",
    "payload_size",
)
_INT64_MAX: Final = 2**63 - 1


class _Folded(NamedTuple):
    events: pa.RecordBatch
    adds: pa.RecordBatch
    states: States


def job_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of jobs."""
    events, adds, states = _folded(group)
    known = states.jobs
    begun = arrays.rows_at(events, known[:, at.ADD])
    add = arrays.rows_at(adds, states.add_numbers)
    result = arrays.rows_at(events, known[:, at.RESULT])
    exhausted = known[:, at.EXHAUSTED] == 1
    nothing = pa.nulls(len(known), pa.binary())
    columns = [
        *place_columns(group, begun),
        _keys(begun),
        begun.column("job_id"),
        _KINDS.take(begun.column("kind")),
        begun.column("logged_ns"),
        *(add.column(name) for name in _ADDED),
        nothing,  # payload
        add.column("time_ns"),
        add.column("created_ns"),
        arrays.values_at(_STATES, known[:, at.STATE]),
        arrays.column_of(known[:, at.ATTEMPTS].copy()),
        arrays.column_of(known[:, at.FAILS].copy()),
        _result_sizes(result, exhausted),
        nothing,  # result
        arrays.values_at(events.column("logged_ns"), known[:, at.STARTED]),
        arrays.values_at(events.column("logged_ns"), known[:, at.FINISHED]),
        arrays.column_of(exhausted),
        arrays.column_of(known[:, at.OWED].copy()),
        arrays.column_of(known[:, at.PARKED] >= 0),
        arrays.column_of(_expires_ns(add, known)),
        arrays.values_at(events.column("position"), known[:, at.STARTED]),
        arrays.values_at(events.column("position"), known[:, at.FINISHED]),
        result.column("position"),
        files_at(group, arrays.numbers_in(result.column("position").fill_null(-1))),
        result.column("length"),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=_TABLES["jobs"].schema.names)


def orphan_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of orphans."""
    events, _, states = _folded(group)
    if not states.orphans:
        return
    firsts = arrays.rows_at(events, np.array([rows[0] for rows in states.orphans]))
    records = arrays.rows_at(events, np.array([row for rows in states.orphans for row in rows]))
    fields = {
        "position": records.column("position"),
        "length": records.column("length"),
        "kind": _KINDS.take(records.column("kind")),
        "logged_ns": records.column("logged_ns"),
        "result_size": records.column("result_size"),
    }
    ends = np.cumsum([0, *(len(rows) for rows in states.orphans)])
    lists: Any = pa.ListArray
    columns = [
        *place_columns(group, firsts),
        _keys(firsts),
        firsts.column("job_id"),
        lists.from_arrays(
            pa.array(ends, pa.int32()),
            pa.StructArray.from_arrays(list(fields.values()), names=list(fields)),
        ),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=_TABLES["orphans"].schema.names)


def _folded(group: PacketGroup) -> _Folded:
    if group.kept is None:
        group.kept = _fold(group)
    folded: _Folded = group.kept
    return folded


def _fold(group: PacketGroup) -> _Folded:
    packets = [each for each in group.packets if each.packet]
    events = arrays.joined([unpack(each.packet, EVENTS) for each in packets])
    no_adds = [pa.RecordBatch.from_pylist([], schema=ADDS)]
    adds = arrays.joined(
        [unpack(each.details, ADDS) for each in packets if each.details] or no_adds
    )
    events, adds = _in_log_order(events), _in_log_order(adds)
    return _Folded(events, adds, fold(events, adds, partial(_reread, group, events)))


def _in_log_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Packets of one task follow each other; rows that came another way may not."""
    positions = arrays.numbers_in(rows.column("position"))
    if (positions[1:] > positions[:-1]).all():
        return rows
    return arrays.rows_at(rows, np.argsort(positions, kind="stable"))


def _reread(group: PacketGroup, events: pa.RecordBatch, positions: Sequence[int]) -> list[Record]:
    """The records at these positions of the log."""
    files = group.files()
    rows = np.searchsorted(arrays.numbers_in(events.column("position")), positions)
    known = arrays.rows_at(events, rows).to_pylist()
    spans = [
        Span(files[place >> SEGMENT_SHIFT], place & OFFSET_MASK, each["length"])
        for place, each in zip(positions, known, strict=True)
    ]
    records = read_records(CODEC, spans)
    for record, each, span in zip(records, known, spans, strict=True):
        if (record.job_id, record.command) != (each["job_id"], each["kind"]):
            raise LogError(span.file, "was changed during the replay; try again")
    return records


def _keys(events: pa.RecordBatch) -> arrays.Column:
    offsets, data = arrays.text_in(events.column("job_id"))
    keys: arrays.Column = uuid_texts(data[offsets[0] : offsets[-1]].reshape(-1, 16))
    return keys


def _result_sizes(result: pa.RecordBatch, exhausted: Any) -> arrays.Column:
    """Attempts that ran out leave an empty result, which no record brought."""
    sizes = result.column("result_size")
    known = arrays.valid_in(sizes) | exhausted
    return pa.array(arrays.numbers_in(sizes), mask=~known)


def _expires_ns(add: pa.RecordBatch, facts: Ints) -> Ints:
    """``folds.workq.expires_ns``, at most what 64 bits hold."""
    is_due = arrays.valid_in(add.column("time_ns"))
    is_due = is_due & (arrays.numbers_in(add.column("kind")) == Command.SCHEDULE)
    created, due = (arrays.numbers_in(add.column(name)) for name in ("created_ns", "time_ns"))
    begins: Ints = np.where(is_due, due, created)
    begins = np.where(facts[:, at.BEGINS] >= 0, facts[:, at.BEGINS_NS], begins)
    ttl_ms = arrays.numbers_in(add.column("ttl_ms"))
    fits = ttl_ms <= (_INT64_MAX - np.maximum(begins, 0)) // NS_PER_MS
    expires: Ints = begins + np.where(fits, ttl_ms, 0) * NS_PER_MS
    for row in np.flatnonzero(~fits).tolist():
        expires[row] = min(_INT64_MAX, int(begins[row]) + int(ttl_ms[row]) * NS_PER_MS)
    expires[facts[:, at.PARKED] >= 0] = _INT64_MAX
    return expires
