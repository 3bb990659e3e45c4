"""Rows of a source -> packets, for a replay of a DataFrame that was not reduced while it was read.

    rows of the source --mapInArrow--> Combiner of the dialect, as in the source itself --> packets

The rows may come from anywhere (filtered, cached, in another order): they are sorted out by log and
file again, and the merge goes by positions. What a reducer never sees, rows about damage, is passed
on without a packet.

As many buckets are made for each log as the session's shuffle partitions suggest, since nothing
here knows how large a log is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from journeyman.errors import UsageError
from journeyman.formats.ztick.codec import RUNNER_WORDS
from journeyman.spark.replay.merging import extra_columns, with_constants
from journeyman.spark.source.options import (
    DAMAGE_KIND,
    DIALECT_COLUMNS,
    KINDS,
    PACKET_SCHEMA,
    arrow_schema,
    base_schema,
    kind_codes,
)
from journeyman.spark.source.packets import Combiner, combiner_class
from journeyman.spark.source.splits import SplitContext

# The words that rows of ztick use for numbers of the log, by number.
STATUSES: Final = pa.array(["planned", "triggered", "executed", "failed"])
RUNNERS: Final = pa.array(RUNNER_WORDS)


_BUCKETS_A_PARTITION: Final = 4
_MAX_BUCKETS: Final = 1 << 16
_MAX_LOGS: Final = 256  # combined at the same time in one task
# The columns of ztick that hold numbers in the log and words in a row.
_WORDS: Final = {"status": STATUSES, "runner": RUNNERS}
_NEEDED: Final = ("_log", "_file", "_segment", "_offset", "_length", "kind")


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
    partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    return min(_MAX_BUCKETS, 1 << (_BUCKETS_A_PARTITION * partitions - 1).bit_length())


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
        if name in _WORDS:
            return pc.index_in(column, _WORDS[name]).cast(field.type)
        return column if column.type == field.type else column.cast(field.type)
