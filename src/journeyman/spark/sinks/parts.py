"""The task's side of a write: Arrow batches -> part files, synced, and the message about them.

    batches --order checked--> encoded --> part-<partition>-<attempt>-<number> ...
                               kestrel: one run of parts for each queue and each reader

A part of a segmented log begins with the header of a segment and is left once it has reached
``segmentBytes``, so that it can become a segment as it is. Parts of a ztick log have no header and
no limit. The names hold a random attempt, so a task that is run twice never writes into the other's
files. Memory: one batch and its bytes.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from journeyman.errors import UsageError
from journeyman.formats import kestrel, workq
from journeyman.formats.keyspace import file as keyspace_file
from journeyman.logs.segments import check_queue_name, check_reader_name
from journeyman.spark.files import Filesystem, NewFile, filesystem_of
from journeyman.spark.sinks.options import POSITION, SinkOptions
from journeyman.spark.sinks.staging import OrderCheck, Part, PartsWritten, StagedStream

_LOG = "_log"
_ALONE = StagedStream()


def header_of(dialect: str, stream: StagedStream) -> bytes:
    """What a file of this stream begins with."""
    if dialect == "kestrel":
        return (kestrel.WRITER if stream.reader is None else kestrel.READER).header
    return {"workq": workq.HEADER, "keyspace": keyspace_file.HEADER}.get(dialect, b"")


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
        self._check = OrderCheck(options.order_by, strictly=options.dialect == "keyspace")
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
            yield _ALONE, batch
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
        self._encode: Callable[..., memoryview] = _encoder(options.dialect).encode
        is_segmented = options.dialect != "ztick" and stream.reader is None
        self._limit = options.segment_bytes if is_segmented else None
        self._hop = _hop_of(options.dialect) if is_segmented else None
        self._file: NewFile | None = None
        self._parts: list[Part] = []
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        encoded = self._encode(rows, self._rows)
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

    def finish(self) -> list[Part]:
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
            self._parts.append(Part(self._stream, self._file.path, self._file.size))
            self._file = None


def _encoder(dialect: str) -> Any:
    """Imported in the task: it brings numba, which the driver can do without."""
    return import_module(f"journeyman.columnar.{dialect}.encode")


def _hop_of(dialect: str) -> Callable[[memoryview, int, int], int]:
    name = "file" if dialect == "keyspace" else "decode"
    module = import_module(f"journeyman.columnar.{dialect}.{name}")
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
