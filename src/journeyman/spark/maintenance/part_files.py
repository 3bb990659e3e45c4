"""Rows in order -> bytes of a log in part files, written by the tasks.

    frame --sorted by _position--> task: encode, part files --> rows about the files --> driver

As with the sinks, only files that a task's answer names count: a task that is run twice leaves
others behind, which go with the staging directory. The sinks encode columns; here the function that
is given makes the bytes, because records are copied as they are in the log, to the last bit.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from journeyman.formats.framing import Buffer
from journeyman.logs.publication import WRITE_BYTES
from journeyman.spark.files import NewFile, filesystem_of

Encode = Callable[[pa.RecordBatch], Iterable[Buffer]]  # what each row becomes: whole records

_ANSWER: Final = "first_position long, number int, path string, size long, records long"
_ANSWER_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("first_position", pa.int64()),
    ("number", pa.int32()),
    ("path", pa.string()),
    ("size", pa.int64()),
    ("records", pa.int64()),
]
_ANSWER_SCHEMA: Final = pa.schema(_ANSWER_COLUMNS)


@dataclass(frozen=True, slots=True)
class PartWritten:
    """A part file, complete and synced."""

    path: str
    size: int
    records: int


def write_part_files(
    frame: DataFrame, staging: str, encode: Encode, header: bytes, part_bytes: int | None
) -> list[PartWritten]:
    """Write the rows in the order of ``_position``; the parts in that order.

    A part is left once it has reached ``part_bytes``, so that it can be a segment; None: never.
    """
    task = _Task(staging, encode, header, part_bytes)
    ordered = frame.repartitionByRange("_position").sortWithinPartitions("_position")
    rows = ordered.mapInArrow(task.run, _ANSWER).collect()
    rows.sort(key=lambda row: (row["first_position"], row["number"]))
    return [PartWritten(row["path"], row["size"], row["records"]) for row in rows]


@dataclass(frozen=True, slots=True)
class _Task:
    staging: str
    encode: Encode
    header: bytes
    part_bytes: int | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first: int | None = None
        parts = _Parts(posixpath.join(self.staging, f"part-{secrets.token_hex(8)}"), self.header)
        for batch in batches:
            if batch.num_rows:
                first = batch.column("_position")[0].as_py() if first is None else first
                for record in self.encode(batch):
                    parts.add(record)
                    if self.part_bytes is not None and parts.size >= self.part_bytes:
                        parts.leave()
        parts.leave()
        rows = [
            {"first_position": first, "number": number, **asdict(part)}
            for number, part in enumerate(parts.written)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_ANSWER_SCHEMA)


class _Parts:
    """The part files of one task, one after the other."""

    def __init__(self, name: str, header: bytes) -> None:
        self._name = name
        self._header = header
        self._store = filesystem_of(name)
        self._file: NewFile | None = None
        self._gathered = bytearray()
        self._records = 0
        self.written: list[PartWritten] = []

    @property
    def size(self) -> int:
        return (0 if self._file is None else self._file.size) + len(self._gathered)

    def add(self, record: Buffer) -> None:
        if self._file is None:
            self._file = self._store.create(f"{self._name}-{len(self.written):05d}")
            self._gathered += self._header
        self._gathered += record
        self._records += 1
        if len(self._gathered) >= WRITE_BYTES:
            self._flush(self._file)

    def leave(self) -> None:
        """Close the file, if there is one; the next record begins another."""
        if self._file is not None:
            self._flush(self._file)
            self._file.close()
            self.written.append(PartWritten(self._file.path, self._file.size, self._records))
        self._file, self._records = None, 0

    def _flush(self, file: NewFile) -> None:
        file.write(bytes(self._gathered))
        self._gathered.clear()
