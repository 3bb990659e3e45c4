"""Rows in order -> bytes of a log in part files, written by the tasks.

    frame --sorted by _position--> task: encode, part files --> rows about the files --> driver

As with the sinks, only files that a task's answer names count: a task that is run twice leaves
others behind, which go with the staging directory. The sinks encode columns; here the function that
is given makes the bytes, because records are copied as they are in the log, to the last bit.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it
from pyspark.sql.types import BinaryType

from journeyman.errors import LogError
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


# ----------------------------------------
# Whether two state tables say the same, row for row.
#
#     before: +1 a row --+
#                        +--> group by all columns --> any group whose sum is not 0
#     after:  -1 a row --+
#
# Exact, as a multiset, and one shuffle. Places are left out: they are what changes. Bytes are
# compared by their SHA-256, so that a payload is shuffled as 32 bytes.

# What a state is, by dialect and table: all but the places of records.
COMPARED: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("ztick", "jobs"): ("identifier", "execution_ns", "status"),
    ("ztick", "rules"): ("identifier", "pattern", "runner", "runner_args"),
    ("workq", "jobs"): (
        "key",
        "kind",
        "logged_ns",
        "name",
        "ttr_ms",
        "ttl_ms",
        "priority",
        "max_attempts",
        "max_fails",
        "payload",
        "time_ns",
        "created_ns",
        "state",
        "attempts",
        "fails",
        "result",
        "started_ns",
        "finished_ns",
        "exhausted",
        "owed_timeouts",
        "expires_ns",
    ),
    ("kestrel", "items"): (
        "queue",
        "item_id",
        "add_time_ms",
        "expire_time_ms",
        "error_count",
        "data",
        "ordinal",
        "contested",
    ),
    ("kestrel", "readers"): ("queue", "reader", "head", "done", "damaged", "opened_head"),
}


def check_same(
    log: str, table: str, before: DataFrame, after: DataFrame, columns: Sequence[str]
) -> None:
    """Raises LogError, naming one row, when the tables differ."""
    for row in differences(before, after, columns).limit(1).collect():
        where = "is missing from" if row["_sum"] > 0 else "has come up in"
        shown = {name: row[name] for name in columns[:2]}
        raise LogError(
            log, f"the new files hold another state: {table} {shown} {where} them; nothing changed"
        )


def differences(before: DataFrame, after: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows that one of the tables has more often than the other; ``_sum`` says by how much."""
    signed = _signed(before, columns, 1).unionByName(_signed(after, columns, -1))
    return signed.groupBy(*columns).agg(F.sum("_sign").alias("_sum")).filter("_sum != 0")


def _signed(frame: DataFrame, columns: Sequence[str], sign: int) -> DataFrame:
    return frame.select(*(_compared(frame, name) for name in columns), F.lit(sign).alias("_sign"))


def _compared(frame: DataFrame, name: str) -> Column:
    if isinstance(frame.schema[name].dataType, BinaryType):
        return F.sha2(F.col(name), 256).alias(name)
    return F.col(name)
