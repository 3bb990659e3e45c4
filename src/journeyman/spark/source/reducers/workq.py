"""workq ``events``: what the fold needs of every record, without payloads and results.

    records of a task --bucket of job id--> packets of EVENTS, and beside them ADDS

Where a job stands depends on the order of all its records, so nothing is folded here: states of
parts of a log cannot be merged into the state of the whole. What crosses the shuffle is about 40
bytes a record, and 70 more for an add.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import numbers_in, text_in
from journeyman.columnar.kernels.key_table import buckets_of, hashes_of
from journeyman.columnar.kernels.take import joined
from journeyman.columnar.workq.fold import events_and_adds
from journeyman.formats.workq import Command
from journeyman.spark.source.packets import PacketSource, by_bucket, pack
from journeyman.spark.source.reducers.combining import RowCombiner
from journeyman.spark.source.rows import SEGMENT_SHIFT
from journeyman.spark.source.splits import SplitContext

JOBS_TABLE: Final = "jobs"

_MAX_ROWS: Final = 1_000_000  # held; about 80 bytes each


class WorkqCombiner(RowCombiner):
    """Makes packets of one log."""

    def __init__(self, context: SplitContext) -> None:
        self._source = PacketSource(context.log)
        self._buckets = context.buckets
        self._events: list[pa.RecordBatch] = []
        self._adds: list[pa.RecordBatch] = []

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._source.files[context.segment] = context.file
        self._source.records += batch.num_rows
        events, adds = events_and_adds(batch, context.segment << SEGMENT_SHIFT)
        self._events.append(events)
        self._adds.append(adds)
        if self._source.records >= _MAX_ROWS:
            yield from self.finish()
            self._source.files = {context.segment: context.file}

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not self._events:
            return
        events, adds = joined(self._events), joined(self._adds)
        self._events, self._adds = [], []
        buckets = buckets_of(hashes_of(*text_in(events.column("job_id"))), self._buckets)
        is_add = numbers_in(events.column("kind")) <= Command.SCHEDULE
        yield from pack(
            self._source,
            JOBS_TABLE,
            by_bucket(events, buckets),
            details=by_bucket(adds, buckets[np.flatnonzero(is_add)]),
        )
