"""Any log -> Parquet, with all that it takes to come back byte for byte.

    OUTPUT/part-....parquet     the rows of the source with payloads, ``_raw`` and ``_after``
    OUTPUT/_log.json            which files there were, how long each was, and how each begins

Columns leave a little out: zone offsets, numbers beyond 64 bits, header words of unknown commands.
So every stretch of rows is encoded again and compared with the log. Where that gives the same
bytes, as it does for all that this program writes, ``_raw`` is null; elsewhere it holds the record
as it is.

Seals make no rows. ``_after`` holds those that stand directly after a record, and the manifest
those that stand between the header of a file and its first record.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from journeyman.errors import EncodeError, FormatError
from journeyman.formats.framing import Codec
from journeyman.formats.kestrel import SEALS as KESTREL_SEALS
from journeyman.formats.seals import SealFormat
from journeyman.formats.ztick.codec import SEALS as ZTICK_SEALS
from journeyman.logs.catalog import Log
from journeyman.spark import read
from journeyman.spark.files import absolute, filesystem_of
from journeyman.spark.maintenance.holding import logs_at, refuse_damage
from journeyman.spark.replay.point_reads import Span, read_spans
from journeyman.spark.tables import packets

MANIFEST: Final = "_log.json"
RAW: Final = "_raw"
AFTER: Final = "_after"
_STRETCH: Final = 1024  # rows that are compared, and kept raw, together
_SEALS: Final[dict[str, SealFormat]] = {"ztick": ZTICK_SEALS, "kestrel": KESTREL_SEALS}
_SEALS_AT_A_TIME: Final = 16
_ZEROS_AT_A_TIME: Final = 1024 * 1024


def log_to_parquet(
    spark: SparkSession, dialect: str, paths: Sequence[str], output: str, *, force: bool = False
) -> int:
    """Write the logs at these paths; how many records they are. Damage is refused."""
    place = absolute(output).rstrip("/")
    logs = logs_at(dialect, tuple(paths))
    records = refuse_damage(packets(spark, dialect, list(paths)), ", ".join(paths))
    frame = rows_with_raw(
        read(spark, dialect, *paths, payloads=True, mode="DROPMALFORMED"), dialect
    )
    frame.write.mode("overwrite" if force else "errorifexists").parquet(place)
    manifest = json.dumps({"dialect": dialect, "logs": [_described(log) for log in logs]})
    file = filesystem_of(place).create(posixpath.join(place, MANIFEST))
    file.write(manifest.encode())
    file.close()
    return records


def rows_with_raw(frame: DataFrame, dialect: str) -> DataFrame:
    """Rows of the source with the bytes that the columns alone would not give back."""
    kept = [StructField(RAW, BinaryType()), StructField(AFTER, BinaryType())]
    schema = StructType([*frame.schema.fields, *kept])

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(0, batch.num_rows, _STRETCH):
                yield _with_raw(dialect, batch.slice(begin, _STRETCH))

    return frame.mapInArrow(task, schema)


def _described(log: Log) -> dict[str, Any]:
    files = [
        {
            "path": file.path,
            "size": file.size,
            "head": _head_of(file.codec, file.path, file.size).hex(),
            "zeros": _zeros_at_end(file.path, file.size),
        }
        for file in log.files
    ]
    return {"name": log.name, "files": files}


def _head_of(codec: Codec[Any], path: str, size: int) -> bytes:
    """What stands before the first record: the header, and seals. Nothing in a file of zeros."""
    header = filesystem_of(path).read_at(path, 0, min(size, len(codec.header)))
    try:
        start = codec.check_header(header)
    except FormatError:
        return b""
    return header if codec.seals is None else header + _seals_at(codec.seals, path, start)


def _zeros_at_end(path: str, size: int) -> int:
    """With how many zeros a file ends, be they of its last record or behind it."""
    end = size
    while end:
        begin = max(0, end - _ZEROS_AT_A_TIME)
        rest = filesystem_of(path).read_at(path, begin, end - begin).rstrip(b"\0")
        end = begin + len(rest)
        if rest:
            break
    return size - end


def _with_raw(dialect: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column(name).to_pylist() for name in ("_file", "_offset", "_length")]
    spans = [Span(*each) for each in zip(*columns, strict=True)]
    format_ = _SEALS.get(dialect)
    gaps = {} if format_ is None else _gaps(spans)
    found = read_spans([*spans, *gaps.values()])
    raw, between = found[: len(spans)], found[len(spans) :]
    same = _encoded(dialect, batch) == b"".join(raw)
    column = pa.nulls(batch.num_rows, pa.binary()) if same else pa.array(raw, pa.binary())
    after: list[bytes | None] = [None] * len(spans)
    if format_ is not None:
        for row, data in zip(gaps, between, strict=True):
            after[row] = _leading_seals(format_, data) or None
        for row in _last_rows(spans):
            after[row] = _seals_at(format_, spans[row].file, _end(spans[row])) or None
    return batch.append_column(RAW, column).append_column(AFTER, pa.array(after, pa.binary()))


def _gaps(spans: Sequence[Span]) -> dict[int, Span]:
    """By row: what lies between its record and that of the next row."""
    return {
        row: Span(span.file, _end(span), following.offset - _end(span))
        for row, (span, following) in enumerate(pairwise(spans))
        if span.file == following.file and _end(span) < following.offset
    }


def _last_rows(spans: Sequence[Span]) -> list[int]:
    """The rows after which another file begins, or nothing is known of what follows."""
    last = [row for row, (a, b) in enumerate(pairwise(spans)) if a.file != b.file]
    return [*last, len(spans) - 1]


def _end(span: Span) -> int:
    return span.offset + span.length


def _seals_at(format_: SealFormat, path: str, offset: int) -> bytes:
    """The seals of a file from ``offset`` on, up to what is none."""
    found = b""
    with filesystem_of(path).open(path) as file:
        file.seek(offset)
        while seals := _leading_seals(format_, file.read(_SEALS_AT_A_TIME * format_.size)):
            found += seals
            file.seek(offset + len(found))
    return found


def _leading_seals(format_: SealFormat, data: bytes) -> bytes:
    end = 0
    while format_.is_like_seal(data, end):
        end += format_.size
    return data[:end]


def _encoded(dialect: str, batch: pa.RecordBatch) -> bytes | None:
    encode = import_module(f"journeyman.columnar.{dialect}.encode").encode
    try:
        return bytes(encode(batch))
    except EncodeError:
        return None  # a record that columns cannot hold
