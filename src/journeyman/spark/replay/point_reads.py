"""Records read once more, by their places: payloads that were not carried, and exact comparisons.

    spans of files, in any order --sorted, neighbours joined--> a few reads a file

A replay carries positions instead of payloads. What it needs of the bytes behind them is read here,
in the task that needs it. A file must still be what it was when it was first read; a log that was
compacted or cleaned meanwhile is noticed, since what stands in a place is compared with what was
read there.

    state rows --by blocks of the log, sorted--> one long read after the other --> rows with bytes

Most payloads in a log belong to records that no state keeps, so those that are asked for are
fetched afterwards (``with_payloads``). So that this is not one small read a row, in any order, the
rows are first brought into the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import FormatError, LogError, UsageError
from journeyman.formats.framing import Codec
from journeyman.spark.files import filesystem_of
from journeyman.spark.source.options import OFFSET_MASK

_MAX_GAP_BYTES: Final = 64 * 1024  # read and thrown away rather than skipped
_MAX_READ_BYTES: Final = 8 * 1024 * 1024


class Span(NamedTuple):
    """Where a record is."""

    file: str
    offset: int
    length: int


def read_spans(spans: Sequence[Span]) -> list[bytes]:
    """The bytes of each span. Raises LogError when a file ends before one of them does."""
    found: list[bytes] = [b""] * len(spans)
    order = sorted(range(len(spans)), key=spans.__getitem__)
    file: BinaryIO | None = None
    path = None
    try:
        for run in _runs([spans[place] for place in order]):
            if run.file != path or file is None:
                if file is not None:
                    file.close()
                file, path = _opened(run.file), run.file
            data = _read(file, run)
            while order and run.file == spans[order[0]].file and _inside(spans[order[0]], run):
                place = order.pop(0)
                start = spans[place].offset - run.offset
                found[place] = data[start : start + spans[place].length]
    finally:
        if file is not None:
            file.close()
    return found


def read_records(codec: Codec[Any], spans: Sequence[Span]) -> list[Any]:
    """The records of these spans, as the codec reads them."""
    records = []
    for span, data in zip(spans, read_spans(spans), strict=True):
        try:
            entry = codec.decode(data, 0)
        except FormatError:
            entry = None
        if entry is None or entry.length != span.length:
            raise _changed(span.file)
        records.append(entry.record)
    return records


def read_rows(dialect: str, spans: Sequence[Span]) -> pa.RecordBatch:
    """The records of these spans as columns of journeyman.columnar, payloads among them."""
    from journeyman.columnar.arrays import joined

    module = import_module(f"journeyman.columnar.{dialect}.decode")
    data = b"".join(read_spans(spans))
    rows = joined([chunk.batch for chunk in module.iter_batches(data, 0, payloads=True)])
    if rows.column("length").to_pylist() != [span.length for span in spans]:
        raise _changed(spans[0].file)
    return rows


def _runs(spans: Sequence[Span]) -> Iterator[Span]:
    """Sorted spans joined to longer ones, as far as little lies between them."""
    run: Span | None = None
    for span in spans:
        end = span.offset + span.length
        if (
            run is not None
            and span.file == run.file
            and span.offset - (run.offset + run.length) <= _MAX_GAP_BYTES
            and end - run.offset <= _MAX_READ_BYTES
        ):
            run = run._replace(length=max(run.length, end - run.offset))
            continue
        if run is not None:
            yield run
        run = span
    if run is not None:
        yield run


def _inside(span: Span, run: Span) -> bool:
    return run.offset <= span.offset and span.offset + span.length <= run.offset + run.length


def _opened(path: str) -> BinaryIO:
    try:
        return filesystem_of(path).open(path)
    except FileNotFoundError:
        raise _changed(path) from None


def _read(file: BinaryIO, run: Span) -> bytes:
    file.seek(run.offset)
    data = file.read(run.length)
    if len(data) < run.length:
        raise _changed(run.file)
    return data


def _changed(path: str) -> LogError:
    return LogError(path, "was changed while the log was replayed; ask again")


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
