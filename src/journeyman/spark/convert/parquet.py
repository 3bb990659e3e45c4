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

    rows in order of file and position --tasks--> bytes --driver--> files of the log, staged
                                                                --one rename--> the log

The target must not be there yet. A directory appears by one rename; of a ztick log the active file
comes last. What the sizes in the manifest say must come out, or nothing is published.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
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
from journeyman.logs.publication import put_in_place, write_whole
from journeyman.spark import files as addresses
from journeyman.spark import read
from journeyman.spark.files import Span, filesystem_of
from journeyman.spark.maintenance.holding import refuse_damage
from journeyman.spark.replay import packets
from journeyman.spark.sinks.commit import LocalDisk, remove_staging
from journeyman.spark.sinks.parts import RAW, encode_rows
from journeyman.spark.source.options import SourceOptions, arrow_schema, struct
from journeyman.spark.tables import read_parquet, write_parquet

MANIFEST: Final = "_log.json"
AFTER: Final = "_after"
_STRETCH: Final = 1024  # rows that are compared, and kept raw, together
_SEALS: Final[dict[str, SealFormat]] = {"ztick": ZTICK_SEALS, "kestrel": KESTREL_SEALS}
_SEALS_AT_A_TIME: Final = 16
_ZEROS_AT_A_TIME: Final = 1024 * 1024
_BYTES: Final = struct("file string, data binary")


def log_to_parquet(
    spark: SparkSession, dialect: str, paths: Sequence[str], output: str, *, force: bool = False
) -> int:
    """Write the logs at these paths; how many records they are. Damage is refused."""
    place = addresses.absolute(output).rstrip("/")
    logs = addresses.find_source_logs(SourceOptions(dialect, tuple(paths)))
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
    """Return the bytes before the first record: the header, and seals; none in a file of zeros."""
    header = filesystem_of(path).read_at(path, 0, min(size, len(codec.header)))
    try:
        start = codec.check_header(header)
    except FormatError:
        return b""
    return header if codec.seals is None else header + _seals_at(codec.seals, path, start)


def _zeros_at_end(path: str, size: int) -> int:
    """Count the zeros with which a file ends, be they of its last record or behind it."""
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
    found = addresses.read_spans([*spans, *gaps.values()])
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
    """Return, by row, what lies between its record and that of the next row."""
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
    try:
        return bytes(encode_rows(dialect, batch))
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
    dialect, files = log_in(source)
    path, disk = new_path(target), LocalDisk()
    staging = posixpath.join(
        posixpath.dirname(path), addresses.staging_name(SystemClock().now_ns())
    )
    disk.make_dirs(staging)
    rows = read_parquet(spark, source).repartitionByRange("_file", "_position")
    ordered = rows.sortWithinPartitions("_file", "_position")
    pieces = ordered.mapInArrow(partial(_bytes_by_file, dialect), _BYTES)
    try:
        _write_files(disk, files, pieces.toLocalIterator(prefetchPartitions=True), staging)
        _publish(disk, dialect, files, staging, path)
    finally:
        remove_staging(disk, staging)
    return dialect


def new_path(target: str) -> str:
    """Return where a log is to be restored. Raises UsageError if nothing can be written there."""
    path = addresses.absolute(target).rstrip("/")
    addresses.refuse_uri(path)
    if LocalDisk().exists(path):
        raise UsageError(f"{path} already exists: give another path")
    return path


def log_in(source: str) -> tuple[str, list[_File]]:
    """Return dialect and files of the log in a directory. Raises UsageError without one."""
    path = posixpath.join(addresses.absolute(source), MANIFEST)
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


def _bytes_by_file(dialect: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = batch.column("_file")
        for file in pc.unique(files):
            data = _bytes_of(dialect, batch.filter(pc.equal(files, file)))
            rows = {"file": [file.as_py()], "data": [data]}
            yield pa.RecordBatch.from_pydict(rows, schema=arrow_schema(_BYTES))


def _bytes_of(dialect: str, batch: pa.RecordBatch) -> bytes:
    """The records of these rows, encoded or as they were kept, and the seals between them."""
    records = encode_rows(dialect, batch)
    pieces: list[bytes | memoryview] = []
    begin = 0
    ends = accumulate(map(int, batch.column("_length").to_numpy()))
    for end, seals in zip(ends, batch.column(AFTER).to_pylist(), strict=True):
        if seals is not None:
            pieces += records[begin:end], seals
            begin = end
    return b"".join([*pieces, records[begin:]])


def _write_files(
    disk: LocalDisk, files: list[_File], pieces: Iterable[tuple[str, bytes]], directory: str
) -> None:
    """Write all files of a log, whose ``pieces`` come one file after the other."""
    waiting = {file.path: file for file in files}
    for path, group in groupby(pieces, key=lambda piece: piece[0]):
        file = waiting.pop(path)
        data = _with_edges(file, (bytes(each[1]) for each in group))
        write_whole(disk, posixpath.join(directory, file.name), data)
    for file in waiting.values():
        write_whole(disk, posixpath.join(directory, file.name), _with_edges(file, ()))


def _with_edges(file: _File, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes before and behind the records too. Raises LogError if these do not fill the file.

    An original leaves zeros behind its last item.
    """
    size = 0
    for piece in chain([bytes.fromhex(file.head)], pieces):
        size += len(piece)
        yield piece
    if size < file.size <= size + file.zeros:
        yield bytes(file.size - size)
        size = file.size
    if size != file.size:
        raise LogError(file.path, f"would have {size} bytes, not {file.size}; nothing was written")


def _publish(disk: LocalDisk, dialect: str, files: list[_File], staging: str, path: str) -> None:
    disk.sync_dir(staging)
    if dialect != "ztick":
        put_in_place(disk, staging, path)
        return
    suffixes = (".compressed", ".to_compress", "")  # the active file comes last
    for suffix in suffixes:
        for file in files:
            if suffix == next(each for each in suffixes if file.name.endswith(each)):
                put_in_place(disk, posixpath.join(staging, file.name), path + suffix)
