"""Any log -> Parquet, with all that it takes to come back byte for byte; and back.

    OUTPUT/part-....parquet     the rows of the source with payloads, ``_raw`` and ``_after``
    OUTPUT/_log.json            which files there were, how long each was, and how each begins

Columns leave a little out: zone offsets, numbers beyond 64 bits, header words of unknown commands.
So every stretch of rows is encoded again and compared with the log. Where that gives the same
bytes, as it does for all that this program writes, ``_raw`` is null; elsewhere it holds the record
as it is.

Seals make no rows. ``_after`` holds those that stand directly after a record, and the manifest
those that stand between the header of a file and its first record.

The way back:

    rows in order of file and position --tasks--> part files --driver--> files of the log, staged
                                                                      --one rename--> the log

The target must not be there yet. A directory appears by one rename; of a ztick log the active file
comes last. What the sizes in the manifest say must come out, or nothing is published.
"""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from journeyman.clock import SystemClock
from journeyman.errors import EncodeError, FormatError, LogError, UsageError
from journeyman.formats.framing import Codec
from journeyman.formats.kestrel import SEALS as KESTREL_SEALS
from journeyman.formats.seals import SealFormat, is_marked
from journeyman.formats.ztick.codec import SEALS as ZTICK_SEALS
from journeyman.logs.catalog import Log
from journeyman.logs.publication import put_in_place
from journeyman.spark import read
from journeyman.spark.files import (
    Span,
    absolute,
    filesystem_of,
    find_logs,
    read_spans,
    refuse_uri,
    staging_name,
)
from journeyman.spark.maintenance.holding import refuse_damage
from journeyman.spark.replay import packets
from journeyman.spark.sinks.commit import LocalDisk, remove_staging
from journeyman.spark.source.options import SourceOptions, arrow_schema, struct
from journeyman.spark.tables import read_parquet, write_parquet

MANIFEST: Final = "_log.json"
RAW: Final = "_raw"
AFTER: Final = "_after"
_STRETCH: Final = 1024  # rows that are compared, and kept raw, together
_SEALS: Final[dict[str, SealFormat]] = {"ztick": ZTICK_SEALS, "kestrel": KESTREL_SEALS}
_SEALS_AT_A_TIME: Final = 16
_ZEROS_AT_A_TIME: Final = 1024 * 1024
_ANSWER: Final = struct("file string, first_position bigint, path string, size bigint")


def log_to_parquet(
    spark: SparkSession, dialect: str, paths: Sequence[str], output: str, *, force: bool = False
) -> int:
    """Write the logs at these paths; how many records they are. Damage is refused."""
    place = absolute(output).rstrip("/")
    logs = find_logs(SourceOptions(dialect, tuple(paths)))
    records = refuse_damage(packets(spark, dialect, list(paths)), ", ".join(paths))
    frame = rows_with_raw(
        read(spark, dialect, *paths, payloads=True, mode="DROPMALFORMED"), dialect
    )
    write_parquet(frame, place, overwrite=force)
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
    while is_marked(format_, data, end):
        end += format_.size
    return data[:end]


def _encoded(dialect: str, batch: pa.RecordBatch) -> bytes | None:
    encode = import_module(f"journeyman.columnar.{dialect}.encode").encode
    try:
        return bytes(encode(batch))
    except EncodeError:
        return None  # a record that columns cannot hold


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the log as the manifest has it."""

    path: str
    size: int
    head: str  # in hex: what stands before the first record
    zeros: int  # with how many of them it ends, be they of its last record or behind it

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


def parquet_to_log(spark: SparkSession, source: str, target: str) -> str:
    """Restore the log in ``source`` at ``target``, a new path; its dialect."""
    dialect, files = _manifest(absolute(source).rstrip("/"))
    path, disk = absolute(target).rstrip("/"), LocalDisk()
    refuse_uri(path)
    if disk.exists(path):
        raise UsageError(f"{path} already exists: give another path")
    directory = posixpath.dirname(path)
    disk.make_dirs(directory)
    staging = posixpath.join(directory, staging_name(SystemClock().now_ns()))
    try:
        parts = _write_parts(spark, source, dialect, staging)
        built = _assembled(disk, files, parts, staging)
        _publish(disk, dialect, built, path, staging)
    finally:
        remove_staging(disk, staging)
    return dialect


def _manifest(source: str) -> tuple[str, list[_File]]:
    path = posixpath.join(source, MANIFEST)
    try:
        with filesystem_of(path).open(path) as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        raise UsageError(f"{source} was not written by this conversion: no {MANIFEST}") from None
    files = [_File(**each) for log in found["logs"] for each in log["files"]]
    if len({posixpath.dirname(each.path) for each in files}) > 1 or (
        found["dialect"] == "ztick" and len(found["logs"]) > 1
    ):
        raise UsageError(f"{source} holds {len(found['logs'])} logs: convert them one by one")
    return found["dialect"], files


def _write_parts(
    spark: SparkSession, source: str, dialect: str, staging: str
) -> dict[str, list[str]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        store = filesystem_of(staging)
        for batch in batches:
            for file, piece in _by_file(batch):
                path = posixpath.join(staging, f"part-{secrets.token_hex(8)}")
                part = store.create(path)
                part.write(_bytes_of(dialect, piece))
                part.close()
                first = piece.column("_position")[0].as_py()
                rows.append(
                    {"file": file, "first_position": first, "path": path, "size": part.size}
                )
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(_ANSWER))

    frame = read_parquet(spark, source)
    ordered = frame.repartitionByRange("_file", "_position")
    answers = ordered.sortWithinPartitions("_file", "_position").mapInArrow(task, _ANSWER).collect()
    parts: dict[str, list[str]] = {}
    for row in sorted(answers, key=lambda each: each["first_position"]):
        parts.setdefault(row["file"], []).append(row["path"])
    return parts


def _by_file(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    files = batch.column("_file")
    for file in map(str, pc.unique(files).to_pylist()):
        yield file, batch.filter(pc.equal(files, pa.scalar(file)))


def _bytes_of(dialect: str, batch: pa.RecordBatch) -> bytes:
    """The records of these rows, encoded or as they were kept, and the seals between them."""
    records = _records_of(dialect, batch)
    after = batch.column(AFTER)
    if after.null_count == batch.num_rows:
        return records
    pieces: list[bytes] = []
    begin = 0
    ends = accumulate(map(int, batch.column("_length").to_numpy()))
    for end, seals in zip(ends, after.to_pylist(), strict=True):
        if seals is not None:
            pieces += records[begin:end], seals
            begin = end
    return b"".join([*pieces, records[begin:]])


def _records_of(dialect: str, batch: pa.RecordBatch) -> bytes:
    encode = import_module(f"journeyman.columnar.{dialect}.encode").encode
    raw = batch.column(RAW)
    if raw.null_count == batch.num_rows:
        return bytes(encode(batch))
    kept = raw.to_pylist()
    return b"".join(
        bytes(encode(batch.slice(row, 1))) if data is None else data
        for row, data in enumerate(kept)
    )


def _assembled(
    disk: LocalDisk, files: list[_File], parts: dict[str, list[str]], staging: str
) -> dict[str, str]:
    """Whole files in a directory of their own: name -> path."""
    building = f"{staging}.new"
    disk.make_dirs(staging)
    disk.make_dirs(building)
    built = {}
    for file in files:
        head = posixpath.join(staging, f"head-{file.name}")
        part = filesystem_of(staging).create(head)
        part.write(bytes.fromhex(file.head))
        part.close()
        path = posixpath.join(building, file.name)
        pieces = [head, *parts.get(file.path, ())]
        size = disk.concatenate([(each, 0) for each in pieces], path)
        if size < file.size <= size + file.zeros:
            size = _padded(disk, path, file.size)
        if size != file.size:
            raise LogError(
                file.path, f"would have {size} bytes, not {file.size}; nothing was written"
            )
        built[file.name] = path
    return built


def _padded(disk: LocalDisk, path: str, size: int) -> int:
    """Zeros to the end, as the original leaves them behind its last item."""
    file = disk.open_append(path)
    try:
        file.write(bytes(size - file.size()))
        file.sync()
        return file.size()
    finally:
        file.close()


def _publish(disk: LocalDisk, dialect: str, built: dict[str, str], path: str, staging: str) -> None:
    if dialect != "ztick":
        disk.sync_dir(f"{staging}.new")
        put_in_place(disk, f"{staging}.new", path)
        return
    suffixes = (".compressed", ".to_compress", "")
    for suffix in suffixes:
        for name, file in built.items():
            if (name.endswith(suffix) and suffix) or (
                not suffix and not name.endswith(suffixes[:2])
            ):
                put_in_place(disk, file, path + suffix)
