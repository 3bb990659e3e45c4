"""Records read once more, by their places: payloads that were not carried, and exact comparisons.

    spans of files, in any order --sorted, neighbours joined--> a few reads a file

A replay carries positions instead of payloads. What it needs of the bytes behind them is read here,
in the task that needs it. A file must still be what it was when it was first read; a log that was
compacted or cleaned meanwhile is noticed, since what stands in a place is compared with what was
read there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa

from journeyman.errors import FormatError, LogError
from journeyman.formats.framing import Codec
from journeyman.spark.source.filesystem import filesystem_of

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
    from journeyman.columnar.kernels.take import joined

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
