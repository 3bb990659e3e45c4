"""Payloads, results and data for the rows of a state table: read from the log by their places.

    state rows --by blocks of the log, sorted--> one long read after the other --> rows with bytes

A replay carries no payloads, because most of those in a log belong to records that no state keeps.
Those that are asked for are fetched afterwards. So that this is not one small read a row, in any
order, the rows are first brought into the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import UsageError
from journeyman.spark.replay.merging import OFFSET_MASK
from journeyman.spark.replay.point_reads import Span, read_rows

_BLOCK_BITS: Final = 26  # 64 MiB of log


def with_payloads(table: DataFrame) -> DataFrame:
    """``workq.jobs`` with payload and result, or ``kestrel.items`` with data."""
    if "payload" in table.columns:
        fill = _fill_jobs
    elif "data" in table.columns:
        fill = _fill_items
    else:
        raise UsageError("only workq jobs and kestrel items have payloads")
    block = F.shiftrightunsigned("_position", _BLOCK_BITS)
    return (
        table.repartition("_log", block)
        .sortWithinPartitions("_log", "_position")
        .mapInArrow(partial(_filled, fill), table.schema)
    )


def _filled(fill: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield fill(batch) if batch.num_rows else batch


def _fill_items(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _put(batch, "data", _own_rows("kestrel", batch).column("data"))


def _fill_jobs(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch = _put(batch, "payload", _own_rows("workq", batch).column("payload"))
    has_result = pc.is_valid(batch.column("result_position"))
    results = pa.nulls(batch.num_rows, pa.binary())
    finished = batch.filter(has_result)
    if finished.num_rows:
        offsets = pc.bit_wise_and(finished.column("result_position"), OFFSET_MASK)
        spans = _spans(finished.column("result_file"), offsets, finished.column("result_length"))
        results = pc.replace_with_mask(
            results, has_result, read_rows("workq", spans).column("result")
        )
    # Attempts that ran out leave an empty result that stands in no record.
    results = pc.if_else(batch.column("exhausted"), pa.scalar(b""), results)
    return _put(batch, "result", results)


def _own_rows(dialect: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = (batch.column(name) for name in ("_file", "_offset", "_length"))
    return read_rows(dialect, _spans(*columns))


def _spans(files: Any, offsets: Any, lengths: Any) -> list[Span]:
    columns = zip(files.to_pylist(), offsets.to_pylist(), lengths.to_pylist(), strict=True)
    return [Span(*each) for each in columns]


def _put(batch: pa.RecordBatch, name: str, column: Any) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    return batch.set_column(at, batch.schema.field(at), column)
