"""The task's side of a write: Arrow batches -> part files, synced, and the message about them.

    batches --order checked--> encoded --> part-<partition>-<attempt>-<number> ...
                               kestrel: one run of parts for each queue and each reader
    task    --PartsWritten--> driver       collected by Spark, one a partition that succeeded

A part of a segmented log begins with the header of a segment and is left once it has reached
``segmentBytes``, so that it can become a segment as it is. Parts of a ztick log have no header and
no limit. Memory: one batch and its bytes.

Only what a message names counts. The names of parts hold a random attempt, so a task that is run
twice never writes into the other's files, and what no message names goes with the staging
directory. So nothing is ever written twice.

Whether rows come in the order that they claim is checked inside a batch, a task, and a whole
DataFrame. The place of a row is the tuple of its order columns. They ascend as Spark's ``orderBy``
has them: nulls first, text and bytes by their bytes.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from journeyman.errors import UsageError
from journeyman.formats import kestrel, workq
from journeyman.logs.segments import check_queue_name, check_reader_name
from journeyman.spark.files import Filesystem, NewFile, filesystem_of
from journeyman.spark.sinks.log_options import POSITION, SinkOptions

RAW: Final = "_raw"  # a column of encoded records, which are written as they are
_LOG: Final = "_log"
Place = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class StagedStream:
    """The rows for one file, or run of segments, of the result.

    All dialects but kestrel have one stream. kestrel has one for the items of each queue and one
    for the checkpoint of each reader.
    """

    queue: str | None = None
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part file: in its stream, behind those of the same task with lower numbers."""

    stream: StagedStream
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class PartsWritten(WriterCommitMessage):
    """Everything one task wrote. ``first`` and ``last`` are its rows' places in the order."""

    partition: int
    parts: tuple[PartFile, ...] = ()
    records: int = 0
    first: tuple[Any, ...] | None = None
    last: tuple[Any, ...] | None = None
    logs: tuple[tuple[StagedStream, str], ...] = ()  # the logs that the rows of a stream come from
    ids: tuple[tuple[str, int, int], ...] = field(default=())  # kestrel: queue, lowest, highest


_ONE_STREAM = StagedStream()


def header_of(dialect: str, stream: StagedStream) -> bytes:
    """Return the header of the files of this stream."""
    if dialect == "kestrel":
        return (kestrel.WRITER if stream.reader is None else kestrel.READER).header
    return workq.HEADER if dialect == "workq" else b""


def write_parts(
    options: SinkOptions, staging: str, partition: int, batches: Iterator[pa.RecordBatch]
) -> PartsWritten:
    """Write the rows of one task."""
    task = _Task(options, staging, partition)
    try:
        for batch in batches:
            if batch.num_rows:
                task.write(batch)
        return task.finish()
    except BaseException:
        task.give_up()
        raise


class _Task:
    def __init__(self, options: SinkOptions, staging: str, partition: int) -> None:
        self._options = options
        self._partition = partition
        self._name = posixpath.join(staging, f"part-{partition:05d}-{secrets.token_hex(4)}")
        self._store = filesystem_of(staging)
        self._check = OrderCheck(options.order_by)
        self._runs: dict[StagedStream, _Run] = {}
        self._records = 0
        self._logs: set[tuple[StagedStream, str]] = set()
        self._ids: dict[str, tuple[int, int]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        self._check.note(batch)
        for stream, rows in self._by_stream(batch):
            if stream not in self._runs:
                name = f"{self._name}-{len(self._runs):03d}"
                self._runs[stream] = _Run(self._options, stream, self._store, name)
            self._runs[stream].write(rows)
            self._note_logs(stream, rows)
            if stream.queue is not None and stream.reader is None:
                self._note_ids(stream.queue, rows)
        self._records += batch.num_rows

    def finish(self) -> PartsWritten:
        parts = tuple(part for run in self._runs.values() for part in run.finish())
        return PartsWritten(
            self._partition,
            parts,
            self._records,
            self._check.first,
            self._check.last,
            tuple(self._logs),
            tuple((queue, low, high) for queue, (low, high) in self._ids.items()),
        )

    def give_up(self) -> None:
        for run in self._runs.values():
            run.give_up()

    def _by_stream(self, batch: pa.RecordBatch) -> Iterator[tuple[StagedStream, pa.RecordBatch]]:
        if self._options.dialect != "kestrel":
            yield _ONE_STREAM, batch
            return
        queues = _text_column(batch, "queue").fill_null(self._options.queue or "")
        readers = _text_column(batch, "reader")
        pairs = pa.Table.from_arrays([queues, readers], ["queue", "reader"])
        for pair in pairs.group_by(["queue", "reader"]).aggregate([]).to_pylist():
            stream = _checked(StagedStream(pair["queue"], pair["reader"]))
            same_queue = pc.equal(queues, pa.scalar(stream.queue, pa.string()))
            same_reader = (
                readers.is_null()
                if stream.reader is None
                else pc.equal(readers, pa.scalar(stream.reader)).fill_null(False)
            )
            yield stream, batch.filter(pc.and_(same_queue, same_reader))

    def _note_logs(self, stream: StagedStream, rows: pa.RecordBatch) -> None:
        if _LOG in rows.schema.names and self._options.order_by == (POSITION,):
            found = pc.unique(rows.column(_LOG)).to_pylist()
            self._logs.update((stream, log) for log in found if log is not None)

    def _note_ids(self, queue: str, rows: pa.RecordBatch) -> None:
        puts = rows.filter(pc.equal(rows.column("kind"), pa.scalar("PUT"))).column("item_id")
        if len(puts):
            low, high = pc.min(puts).as_py(), pc.max(puts).as_py()
            before = self._ids.get(queue, (low, high))
            self._ids[queue] = min(low, before[0]), max(high, before[1])


class _Run:
    """The parts of one stream, one after the other."""

    def __init__(
        self, options: SinkOptions, stream: StagedStream, store: Filesystem, name: str
    ) -> None:
        self._stream = stream
        self._store = store
        self._name = name
        self._header = header_of(options.dialect, stream)
        self._dialect = options.dialect
        is_segmented = options.dialect != "ztick" and stream.reader is None
        self._limit = options.segment_bytes if is_segmented else None
        self._hop = _hop_of(options.dialect) if is_segmented else None
        self._file: NewFile | None = None
        self._parts: list[PartFile] = []
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        encoded = encode_rows(self._dialect, rows, self._rows)
        self._rows += rows.num_rows
        at = 0
        while at < len(encoded):
            file = self._file or self._next_file()
            end = len(encoded)
            if self._limit is not None and self._hop is not None:
                left = self._limit - file.size
                end = self._hop(encoded, at, min(at + max(left, 1), end))
            file.write(encoded[at:end])
            at = end
            if self._limit is not None and file.size >= self._limit:
                self._close_file()

    def finish(self) -> list[PartFile]:
        self._close_file()
        return self._parts

    def give_up(self) -> None:
        if self._file is not None:
            self._file.discard()

    def _next_file(self) -> NewFile:
        self._file = self._store.create(f"{self._name}-{len(self._parts):05d}")
        self._file.write(self._header)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._parts.append(PartFile(self._stream, self._file.path, self._file.size))
            self._file = None


def encode_rows(dialect: str, rows: pa.RecordBatch, first_row: int = 0) -> memoryview:
    """The records of these rows: the bytes in ``_raw`` where there are any, else the columns."""
    # Imported in the task: it brings numba, which the driver can do without.
    encode = import_module(f"journeyman.columnar.{dialect}.encode").encode
    encoded: memoryview
    if RAW not in rows.schema.names or rows.column(RAW).null_count == rows.num_rows:
        encoded = encode(rows, first_row)
        return encoded
    kept = rows.column(RAW).to_pylist()
    return memoryview(
        b"".join(
            bytes(encode(rows.slice(row, 1), first_row + row)) if data is None else data
            for row, data in enumerate(kept)
        )
    )


def _hop_of(dialect: str) -> Callable[[memoryview, int, int], int]:
    module = import_module(f"journeyman.columnar.{dialect}.decode")
    hop: Callable[[memoryview, int, int], int] = module.hop
    return hop


def _text_column(batch: pa.RecordBatch, name: str) -> Any:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.string())
    return batch.column(name).cast(pa.string())


def _checked(stream: StagedStream) -> StagedStream:
    if not stream.queue:
        raise UsageError("rows without a queue: give them a column queue, or the option queue")
    check_queue_name(stream.queue)
    check_reader_name(stream.reader or "")
    return stream


def in_order(
    messages: Iterable[WriterCommitMessage | None], order_by: Sequence[str]
) -> list[PartsWritten]:
    """The messages in the order of their partitions. Raises UsageError if the rows are not."""
    found = sorted(
        (message for message in messages if isinstance(message, PartsWritten)),
        key=lambda message: message.partition,
    )
    filled = [message for message in found if message.first is not None]
    for before, message in pairwise(filled):
        assert before.last is not None
        assert message.first is not None
        if not follows(message.first, before.last):
            raise UsageError(
                f"the rows are not in the order of {', '.join(order_by)}: partition"
                f" {message.partition} begins at {describe_place(message.first)}, behind"
                f" {describe_place(before.last)}; journeyman.spark.write sorts them"
            )
    return found


def follows(place: Place, before: Place) -> bool:
    """Return whether a row at ``place`` may stand behind one at ``before``."""
    return _comparable(place) >= _comparable(before)


def describe_place(place: Place) -> str:
    """Name a place for people; long values are cut."""
    texts = [value.hex() if isinstance(value, bytes) else str(value) for value in place]
    return ", ".join(text if len(text) <= 80 else text[:77] + "..." for text in texts)


class OrderCheck:
    """Looks at the batches of one task as they pass."""

    def __init__(self, order_by: Sequence[str]) -> None:
        self._order_by = list(order_by)
        self.first: Place | None = None
        self.last: Place | None = None

    def note(self, batch: pa.RecordBatch) -> None:
        """Raises UsageError for a row that stands before the one in front of it."""
        if not batch.num_rows:
            return
        columns = batch.select(self._order_by)
        first, last = _place(columns, 0), _place(columns, batch.num_rows - 1)
        behind = self.last is None or follows(first, self.last)
        if not behind or not _is_sorted(columns):
            raise UsageError(
                f"the rows are not in the order of {', '.join(self._order_by)}: sort them by it"
                " (journeyman.spark.write does)"
            )
        self.first = first if self.first is None else self.first
        self.last = last


def _place(columns: pa.RecordBatch, row: int) -> Place:
    return tuple(column[row].as_py() for column in columns.columns)


def _comparable(place: Place) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value) for value in place)


def _is_sorted(columns: pa.RecordBatch) -> bool:
    if columns.num_columns == 1:
        (only,) = columns.columns
        if pa.types.is_integer(only.type) and not only.null_count:
            values = only.to_numpy()
            return bool(np.all(values[1:] >= values[:-1]))
    # Nulls come first: the presence of a value is compared before the value.
    arrays = [array for column in columns.columns for array in (column.is_valid(), column)]
    table = pa.Table.from_arrays(arrays, [str(number) for number in range(len(arrays))])
    keys: list[tuple[str, Any]] = [(name, "ascending") for name in table.schema.names]
    return bool(table.take(pc.sort_indices(table, sort_keys=keys)).equals(table))
