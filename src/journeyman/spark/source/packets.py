"""Packets: many records of a log in one row, so that Spark moves bytes instead of rows.

    records of a task --bucket of key--> one packet a bucket --Spark's shuffle--> merged, bucket by
                                         bucket, in one place

A row costs Spark a hundred times what its bytes cost, so what the reducers leave over crosses the
shuffle packed: a packet is an Arrow batch, serialised, with the records of one log whose keys fall
into one bucket. All records of a key are in the same bucket, whichever task read them, so whoever
merges a bucket sees every one of them. The number of buckets grows with the log (SplitContext), and
a bucket is what has to fit into memory.

Beside its bytes a row says where the packet comes from (PACKET_SCHEMA); ``kind`` is ``packet``.
Rows of kind ``damage``, which the task adds, have no packet.

What goes into packets is said by one combiner a log, which is fed with the log's chunks in order:

    pieces     log A, log A, log A, log B, ...
    combiner   take, take, take, finish; take, ... finish      packets come out of take and finish

    ztick    latest   the last record of each job and each rule, removals among them
    workq    events   what the fold needs of every record: no payloads, no results
    kestrel  items    the same of every put; and the records of checkpoints

A combiner lets packets go whenever it holds enough, so its memory does not grow with the log. It is
imported by the first task that reduces, because it brings numba: journeyman.spark.replay.*_tasks,
beside what merges its packets.

A DataFrame that was not reduced while it was read can be packed too (``packets_of``). Its rows may
come from anywhere (filtered, cached, in another order): they are sorted out by log and file again,
and the merge goes by positions. Rows about damage are passed on without a packet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from journeyman.columnar.chunks import Chunk
from journeyman.errors import UsageError
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import (
    DAMAGE,
    DAMAGE_KIND,
    DIALECT_COLUMNS,
    KINDS,
    PACKET_KIND,
    PACKET_SCHEMA,
    ZTICK_WORDS,
    arrow_schema,
    base_schema,
    kind_codes,
)
from journeyman.spark.source.splits import SplitContext, Stretch

if TYPE_CHECKING:  # it brings numba, and planning is done without
    from journeyman.columnar.arrays import Column
    from journeyman.columnar.kernels.byte_access import Ints


Buckets = Sequence[tuple[int, pa.RecordBatch]]  # of each bucket its rows
_SHAPE: Final = arrow_schema(PACKET_SCHEMA)
_SCHEMA_BYTES: Final = 64 * 1024  # at most, of a schema's message,
_HEAD_BYTES: Final = 16 * 1024  # and of a batch's, with what its columns are filled up with
_BUCKETS_A_SLOT: Final = 4
_MAX_BUCKETS: Final = 1 << 16
_MAX_LOGS: Final = 256  # combined at the same time in one task
_NEEDED: Final = ("_log", "_file", "_segment", "_offset", "_length", "kind")


class Combiner(Protocol):
    """Makes packets of the records of one log."""

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the dialect's columnar schema, from one file."""
        ...

    def take_bytes(self, context: SplitContext, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """As many of these entries as it can; it says in the stretch how far it came."""
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is still held."""
        ...


class RowCombiner:
    """One that needs rows: it takes no bytes."""

    def take_bytes(
        self,
        context: SplitContext,  # noqa: ARG002 - as every combiner
        stretch: Stretch,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        return iter(())


def combiner_class(dialect: str) -> Callable[[SplitContext], Combiner]:
    """What makes the packets of a log of this dialect."""
    module = import_module(f"journeyman.spark.replay.{dialect}_tasks")
    combiner: Callable[[SplitContext], Combiner] = getattr(
        module, f"{dialect.capitalize()}Combiner"
    )
    return combiner


def combine(
    dialect: str, pieces: Iterator[tuple[SplitContext, Chunk | Stretch]]
) -> Iterator[pa.RecordBatch]:
    """The packets of a partition, whose pieces come log by log.

    In front of the chunks of each file comes one without rows, also of a file without records.
    Instead of a chunk the bytes may be offered first: see Stretch.
    """
    combiner_for = combiner_class(dialect)
    log, combiner = None, None
    for context, item in pieces:
        if combiner is None or context.log != log:
            if combiner is not None:
                yield from combiner.finish()
            log, combiner = context.log, combiner_for(context)
        if isinstance(item, Stretch):
            yield from combiner.take_bytes(context, item)
        else:
            yield from combiner.take(context, item.batch)
    if combiner is not None:
        yield from combiner.finish()


@dataclass(slots=True)
class PacketSource:
    """Where the records of packets come from: one log, some of its files."""

    log: str
    queue: str | None = None
    reader: str | None = None
    files: dict[int, str] = field(default_factory=dict)  # by segment
    records: int = 0  # read and not yet told of in a packet


def pack(
    source: PacketSource,
    table: str,
    rows: Buckets,
    details: Buckets = (),
) -> Iterator[pa.RecordBatch]:
    """Rows of PACKET_SCHEMA: one for each bucket of ``rows``.

    ``rows`` have a column ``position``. Inside a packet they keep their order. The first packet
    tells of all records of the source; with no rows there is no packet and nothing is told.
    """
    beside = dict(details)
    made = []
    for bucket, part in rows:
        made.append(
            {
                **_about(source, table, bucket),
                "_position": int(part.column("position").to_numpy().min()),
                "packet": part,
                "details": beside.get(bucket),
            }
        )
        source.records = 0
    if made:
        yield _rows(made)


def presence(
    source: PacketSource, table: str, ids: tuple[int, int] | None = None
) -> pa.RecordBatch:
    """A row that says only that there is such a log or file, and between which ids its items are.

    It tells of the records that no packet has told of.
    """
    row = _about(source, table, 0, ids)
    source.records = 0
    return _rows([row])


def unpack(serialised: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch that was packed. Its memory is aligned as that of the bytes, for the kernels."""
    return pa.ipc.read_record_batch(serialised, schema)


def _about(
    source: PacketSource, table: str, bucket: int, ids: tuple[int, int] | None = None
) -> dict[str, Any]:
    least, greatest = ids or (None, None)
    return {
        "_log": source.log,
        "kind": PACKET_KIND,
        "table": table,
        "bucket": bucket,
        "records": source.records,
        "source": {
            "queue": source.queue,
            "reader": source.reader,
            "segments": list(source.files),
            "files": list(source.files.values()),
            "least_id": least,
            "greatest_id": greatest,
        },
    }


def _rows(made: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [_column([row.get(each.name) for row in made], each.type) for each in _SHAPE]
    return pa.RecordBatch.from_arrays(columns, schema=_SHAPE)


def _column(values: list[Any], kind: pa.DataType) -> Column:
    if pa.types.is_binary(kind):
        return _serialised(values, kind)
    column: Column = pa.array(values, kind)
    return column


def _serialised(batches: list[pa.RecordBatch | None], kind: pa.DataType) -> Column:
    """Batches of one schema as blobs, written one behind another: each byte is copied once."""
    from journeyman.columnar.arrays import binary

    schema = next((batch.schema for batch in batches if batch is not None), None)
    if schema is None:
        nothing: Column = pa.array([None] * len(batches), kind)
        return nothing
    room = _SCHEMA_BYTES + sum(_HEAD_BYTES + batch.nbytes for batch in batches if batch is not None)
    data = np.empty(room, np.uint8)
    ends = np.empty(len(batches) + 1, np.int32)
    with (
        pa.FixedSizeBufferWriter(pa.py_buffer(data.data)) as sink,
        pa.ipc.new_stream(sink, schema) as out,
    ):
        ends[0] = schema.serialize().size  # it goes in front of the first batch
        for number, batch in enumerate(batches, 1):
            if batch is not None:
                out.write_batch(batch)
            ends[number] = max(int(ends[0]), sink.tell())
    return binary(kind, ends, data, np.array([batch is not None for batch in batches]))


def by_bucket(batch: pa.RecordBatch, buckets: Ints) -> Buckets:
    """The rows of each bucket that has any, in their order."""
    from journeyman.columnar.arrays import rows_at

    if batch.num_rows == 0:
        return []
    low, high = int(buckets.min()), int(buckets.max())
    if low == high:
        return [(low, batch)]
    order = np.argsort(buckets.astype(np.uint16), kind="stable")  # 65,536 buckets at most
    batch = rows_at(batch, order)
    starts = np.cumsum(np.bincount(buckets, minlength=high + 2)) - np.bincount(
        buckets, minlength=high + 2
    )
    return [
        (bucket, batch.slice(start, end - start))
        for bucket, (start, end) in enumerate(
            zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        )
        if end > start
    ]


def packets_of(frame: DataFrame, dialect: str) -> DataFrame:
    """``frame`` as packets: itself, if it was read with a reducer."""
    names = frame.columns
    if "packet" in names:
        return frame
    known = base_schema(dialect).names
    missing = [name for name in (*_NEEDED, *_wanted(dialect)) if name not in names]
    if missing:
        raise UsageError(
            f"a replay of {dialect} needs the column {missing[0]}: give it the rows of the source"
        )
    extras = extra_columns(frame, known)
    extra_names = tuple(each.name for each in extras)
    rows = frame.select(*_NEEDED, *_wanted(dialect), *extra_names)
    pack = partial(_pack_rows, dialect, _buckets(frame), extra_names)
    return rows.mapInArrow(pack, StructType([*PACKET_SCHEMA.fields, *extras]))


def _wanted(dialect: str) -> list[str]:
    """The dialect's columns that a fold looks at: all but payloads."""
    left_out = {"payload", "result", "data"}
    return [each.name for each in DIALECT_COLUMNS[dialect] if each.name not in left_out]


def _buckets(frame: DataFrame) -> int:
    """As many as the slots suggest: nothing here knows how large a log is."""
    wanted = _BUCKETS_A_SLOT * slots_of(frame.sparkSession)
    return min(_MAX_BUCKETS, 1 << (wanted - 1).bit_length())


def _pack_rows(
    dialect: str, buckets: int, extras: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task does with its rows."""
    packing = _Packing(dialect, buckets, extras)
    for batch in batches:
        yield from packing.take(batch)
    yield from packing.finish()


class _Packing:
    """One combiner for each log that comes along."""

    def __init__(self, dialect: str, buckets: int, extras: tuple[str, ...]) -> None:
        self._buckets = buckets
        self._extras = extras
        self._combiner_for = combiner_class(dialect)
        self._combiners: dict[str, Combiner] = {}
        self._extra_values: dict[str, list[Any]] = {}
        self._decoded = _Decoded(dialect)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        is_damage = pc.equal(batch.column("kind"), pa.scalar(DAMAGE_KIND))
        if pc.any(is_damage).as_py():
            yield from self._damages(batch.filter(is_damage))
            batch = batch.filter(pc.invert(is_damage))
        for part in _by_file(batch):
            context = self._context(part)
            if context.log not in self._combiners:
                if len(self._combiners) == _MAX_LOGS:
                    yield from self.finish()
                self._combiners[context.log] = self._combiner_for(context)
            self._extra_values[context.log] = [
                part.column(name)[0].as_py() for name in self._extras
            ]
            packets = self._combiners[context.log].take(context, self._decoded.batch(part))
            yield from self._completed(context.log, packets)

    def finish(self) -> Iterator[pa.RecordBatch]:
        combiners, self._combiners = self._combiners, {}
        for log, combiner in combiners.items():
            yield from self._completed(log, combiner.finish())

    def _context(self, part: pa.RecordBatch) -> SplitContext:
        first = part.slice(0, 1).to_pylist()[0]
        return SplitContext(
            first["_log"],
            first["_file"],
            first["_segment"],
            first.get("queue"),
            first.get("reader"),
            buckets=self._buckets,
        )

    def _completed(self, log: str, packets: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = dict(zip(self._extras, self._extra_values[log], strict=True))
        for batch in packets:
            yield with_constants(batch, values)

    def _damages(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        shape = arrow_schema(PACKET_SCHEMA)
        for name in self._extras:
            shape = shape.append(pa.field(name, pa.string()))
        columns = [
            rows.column(field.name)
            if field.name in _NEEDED or field.name in self._extras
            else pa.nulls(rows.num_rows, field.type)
            for field in shape
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=shape)


def _by_file(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of each file, in their order."""
    if batch.num_rows == 0:
        return
    codes = [
        batch.column(name).dictionary_encode().indices.to_numpy() for name in ("_log", "_file")
    ]
    code = codes[0].astype(np.int64) << 32 | codes[1]
    if (code == code[0]).all():
        yield batch
        return
    order = np.argsort(code, kind="stable")
    _, starts = np.unique(code[order], return_index=True)
    indices: Any = pa.array(order)
    batch = batch.take(indices)
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield batch.slice(start, end - start)


class _Decoded:
    """Rows of the source -> the columns that they were made of, payloads left out."""

    def __init__(self, dialect: str) -> None:
        self._schema = import_module(f"journeyman.columnar.{dialect}.decode").SCHEMA
        kinds = [(word, kind_codes(dialect, frozenset({word}))[0]) for word in KINDS[dialect]]
        self._kinds = pa.array([word for word, _ in kinds])
        self._kind_codes = pa.array([code for _, code in kinds], pa.int8())
        self._words = {name: pa.array(words) for name, words in ZTICK_WORDS.items()}

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [self._column(rows, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, rows: pa.RecordBatch, field: pa.Field[Any]) -> Any:
        name = {"offset": "_offset", "length": "_length"}.get(field.name, field.name)
        if name not in rows.schema.names:
            return pa.nulls(rows.num_rows, field.type)
        column = rows.column(name)
        if name == "kind":
            return self._kind_codes.take(pc.index_in(column, self._kinds))
        if name in self._words:
            return pc.index_in(column, self._words[name]).cast(field.type)
        return column if column.type == field.type else column.cast(field.type)


def extra_columns(frame: DataFrame, known: Iterable[str]) -> list[StructField]:
    """The partition columns: what stands behind the known columns, without those of damage."""
    names = set(known)
    extras = [each for each in frame.schema.fields if each.name not in names]
    if extras and extras[-1].name == DAMAGE:
        extras = extras[:-2]  # the damaged bytes, under whatever name, and the reason
    return extras


def with_constants(batch: pa.RecordBatch, values: dict[str, str | None]) -> pa.RecordBatch:
    """The batch with a column for each of these values, the same in all rows."""
    for name, value in values.items():
        column = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        batch = batch.append_column(name, column)
    return batch
