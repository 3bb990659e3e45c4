"""Parquet -> the log that it was made from, byte for byte.

    rows in order of file and position --tasks--> part files --driver--> files of the log, staged
                                                                      --one rename--> the log

The target must not be there yet. A directory appears by one rename; of a ztick log the active file
comes last. What the sizes in the manifest say must come out, or nothing is published.
"""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from journeyman.clock import SystemClock
from journeyman.errors import LogError, UsageError
from journeyman.logs.publication import put_in_place
from journeyman.spark.convert.parquet import AFTER, MANIFEST, RAW
from journeyman.spark.files import absolute, filesystem_of, staging_name
from journeyman.spark.sinks.staging import LocalDisk, remove_staging

_ANSWER: Final = "file string, first_position long, path string, size long"


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
    if disk.exists(path):
        raise UsageError(f"{path} is there already: give a path that is not")
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
        yield pa.RecordBatch.from_pylist(rows, schema=_answer_schema())

    frame = spark.read.parquet(source)
    ordered = frame.repartitionByRange("_file", "_position")
    answers = ordered.sortWithinPartitions("_file", "_position").mapInArrow(task, _ANSWER).collect()
    parts: dict[str, list[str]] = {}
    for row in sorted(answers, key=lambda each: each["first_position"]):
        parts.setdefault(row["file"], []).append(row["path"])
    return parts


def _answer_schema() -> pa.Schema:
    columns: list[tuple[str, pa.DataType]] = [
        ("file", pa.string()),
        ("first_position", pa.int64()),
        ("path", pa.string()),
        ("size", pa.int64()),
    ]
    return pa.schema(columns)


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
            raise LogError(file.path, f"came out as {size} bytes, not {file.size}; nothing is kept")
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
