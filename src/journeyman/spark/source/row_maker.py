"""Chunks and damages -> record batches of exactly the schema that Spark expects.

    Chunk (columns of columnar)  +  SplitContext  --RowMaker-->  RecordBatch (columns asked for)

Only the columns of the schema are made; a narrower one costs less. Numbers for kinds, statuses and
runners become words by taking from a short array, and what is the same for a whole file (its path,
its log, its host) is made once and cut to length.

A damage is one row of kind ``damage``: its place in the envelope, its bytes and the reason in the
two columns at the end, everything else null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from journeyman.columnar.arrays import numbers
from journeyman.columnar.chunks import Chunk
from journeyman.formats.ztick.layout import RUNNER_WORDS
from journeyman.logs.damage import Damage
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.rows import (
    DAMAGE_KIND,
    KESTREL_PUT,
    KIND_WORDS,
    MAX_CORRUPT_BYTES,
    SEGMENT_SHIFT,
    kind_codes,
    kinds_in,
    uuid_texts,
)
from journeyman.spark.source.schemas import (
    DAMAGE,
    KESTREL,
    KEYSPACE,
    WORKQ,
    ZTICK,
    mask,
    raw_numbers,
    repeated,
    texts,
    valid_rows,
)
from journeyman.spark.source.splits import SplitContext

# ----------------------------------------
# Which records of a chunk are wanted: the options kinds, startTime, endTime and asOf.
#
#     startTime   at or after it        endTime   before it        asOf   at or before it
#
# A record that says no time (a kestrel reader's) is never between two times; but it is kept as of
# any time, since a state without its readers would be no state. Damage is not a record and always
# stays.

# Where a record says when it was written, and how many nanoseconds its unit has.
_TIMES: Final = {WORKQ: ("logged_ns", 1), KESTREL: ("add_time_ms", 1_000_000)}


class Selection:
    """The options as a test on the rows of a chunk."""

    def __init__(self, options: SourceOptions) -> None:
        self._codes: npt.NDArray[np.int8] | None = None
        if options.kinds is not None:
            self._codes = np.array(kind_codes(options.dialect, options.kinds), np.int8)
        self._time, self._unit_ns = _TIMES.get(options.dialect, ("", 1))
        # In units of the column: x * unit >= start is x >= ceil(start / unit), and so on.
        self._first = self._ceiling(options.start_ns)
        self._behind = self._ceiling(options.end_ns)
        self._as_of = None if options.as_of_ns is None else options.as_of_ns // self._unit_ns
        limits = (options.kinds, options.start_ns, options.end_ns, options.as_of_ns)
        self.takes_all = all(limit is None for limit in limits)

    def of(self, chunk: Chunk) -> Chunk:
        """The chunk with only the rows that are wanted."""
        if self.takes_all:
            return chunk
        wanted = np.ones(chunk.batch.num_rows, np.bool_)
        if self._codes is not None:
            wanted &= np.isin(raw_numbers(kinds_in(chunk.batch)), self._codes)
        if self._time:
            wanted &= self._in_time(chunk.batch.column(self._time))
        if wanted.all():
            return chunk
        return Chunk(chunk.batch.filter(mask(wanted)), chunk.next_offset, chunk.ending)

    def _in_time(self, column: Any) -> Any:
        times = raw_numbers(column)
        said = valid_rows(column)
        wanted = np.ones(len(times), np.bool_)
        if self._first is not None:
            wanted &= said & (times >= self._first)
        if self._behind is not None:
            wanted &= said & (times < self._behind)
        if self._as_of is not None:
            wanted &= ~said | (times <= self._as_of)
        return wanted

    def _ceiling(self, moment_ns: int | None) -> int | None:
        return None if moment_ns is None else -(-moment_ns // self._unit_ns)


_Column = Any  # pa.Array of any type
_TIME = pa.timestamp("us", tz="UTC")
_STATUSES = ("planned", "triggered", "executed", "failed")
# What Spark's and Python's calendars reach: the years 1 to 9999.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


class RowMaker:
    """Makes batches of one schema for one dialect."""

    def __init__(self, dialect: str, schema: pa.Schema, corrupt_column: str | None) -> None:
        self._dialect = dialect
        self._schema = schema
        self._corrupt_column = corrupt_column
        self._words = {name: texts(words) for name, words in _words(dialect)}
        self._constants: dict[tuple[SplitContext, str], _Column] = {}

    def rows(self, context: SplitContext, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each of the chunk."""
        columns = [self.column(context, chunk, field.name) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def damage(self, context: SplitContext, damage: Damage, raw: bytes) -> pa.RecordBatch:
        """One row about a damage whose first bytes are ``raw``."""
        values: dict[str, object] = {
            **context.constants(),
            "_offset": damage.offset,
            "_length": min(damage.length, 2**31 - 1),
            "_position": context.segment << SEGMENT_SHIFT | damage.offset,
            "kind": DAMAGE_KIND,
            DAMAGE: f"{damage.kind}: {damage.reason}",
        }
        if self._corrupt_column is not None:
            values[self._corrupt_column] = raw[:MAX_CORRUPT_BYTES]
        row = [pa.array([values.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(row, schema=self._schema)

    def column(self, context: SplitContext, chunk: pa.RecordBatch, name: str) -> _Column:
        """One column by its name, for all rows of the chunk."""
        if name in _ENVELOPE:
            return _ENVELOPE[name](context, chunk)
        if name == "key":
            return _KEYS[self._dialect](chunk)
        if name == "time":
            return _TIME_COLUMNS[self._dialect](chunk)
        if name == "kind":
            return self._words[name].take(kinds_in(chunk))
        if name in self._words:
            return _in_words(self._words[name], chunk.column(name))
        at = chunk.schema.get_field_index(name)
        if at >= 0:
            return _as_type(chunk.column(at), self._type_of(name))
        return self._constant(context, name, chunk.num_rows)

    def _constant(self, context: SplitContext, name: str, rows: int) -> _Column:
        """What is the same in all rows of a file; null for what good rows do not have."""
        known = self._constants.get((context, name))
        if known is None or len(known) < rows:
            known = repeated(context.constants().get(name), self._type_of(name), rows)
            self._constants = {
                key: column for key, column in self._constants.items() if key[0] is context
            }
            self._constants[context, name] = known
        return known[:rows]

    def _type_of(self, name: str) -> pa.DataType:
        at = self._schema.get_field_index(name)
        return self._schema.field(at).type if at >= 0 else pa.string()


def _words(dialect: str) -> list[tuple[str, tuple[str | None, ...]]]:
    words: list[tuple[str, tuple[str | None, ...]]] = [("kind", KIND_WORDS[dialect])]
    if dialect == ZTICK:
        words += [("status", _STATUSES), ("runner", RUNNER_WORDS)]
    return words


def _in_words(words: _Column, codes: _Column) -> _Column:
    if codes.null_count == len(codes):
        return pa.nulls(len(codes), pa.string())
    return words.take(codes)


def _as_type(column: _Column, kind: pa.DataType) -> _Column:
    return column if column.type == kind else column.cast(kind)


def _position(context: SplitContext, chunk: pa.RecordBatch) -> _Column:
    return numbers(raw_numbers(chunk.column("offset")) | context.segment << SEGMENT_SHIFT)


_ENVELOPE: Final[dict[str, Callable[[SplitContext, pa.RecordBatch], _Column]]] = {
    "_offset": lambda _, chunk: chunk.column("offset"),
    "_length": lambda _, chunk: chunk.column("length"),
    "_position": _position,
}


# -- key and time, by dialect --------------------------------------------------------------------


def _no_time(chunk: pa.RecordBatch) -> _Column:
    return pa.nulls(chunk.num_rows, _TIME)


def _moments(microseconds: Any, valid: Any = None) -> _Column:
    """Timestamps; null where not ``valid``, and where the calendar does not reach."""
    reached = (microseconds >= _FIRST_US) & (microseconds <= _LAST_US)
    if valid is not None:
        reached &= valid
    return numbers(microseconds, reached).view(_TIME)


def _workq_time(chunk: pa.RecordBatch) -> _Column:
    return _moments(raw_numbers(chunk.column("logged_ns")) // 1000)


def _kestrel_time(chunk: pa.RecordBatch) -> _Column:
    column = chunk.column("add_time_ms")
    added_ms = raw_numbers(column)
    reach = np.clip(added_ms, _FIRST_US // 1000 - 1, _LAST_US // 1000 + 1)
    return _moments(reach * 1000, valid_rows(column))


def _workq_key(chunk: pa.RecordBatch) -> _Column:
    """Ids as people write them: 8-4-4-4-12 hexadecimal digits."""
    ids = chunk.column("job_id")
    _, _, values = ids.buffers()
    raw = np.frombuffer(b"" if values is None else memoryview(values), np.uint8)
    raw = raw[16 * ids.offset : 16 * (ids.offset + len(ids))].reshape(-1, 16)
    return uuid_texts(raw)


def _kestrel_key(chunk: pa.RecordBatch) -> _Column:
    is_put = raw_numbers(chunk.column("kind")) == KESTREL_PUT
    return numbers(raw_numbers(chunk.column("item_id")), is_put).cast(pa.string())


def _keyspace_key(chunk: pa.RecordBatch) -> _Column:
    return pc.coalesce(chunk.column("job_uuid"), chunk.column("queue"))


_KEYS: Final[dict[str, Callable[[pa.RecordBatch], _Column]]] = {
    ZTICK: lambda chunk: chunk.column("identifier"),
    WORKQ: _workq_key,
    KESTREL: _kestrel_key,
    KEYSPACE: _keyspace_key,
}
_TIME_COLUMNS: Final[dict[str, Callable[[pa.RecordBatch], _Column]]] = {
    ZTICK: _no_time,
    WORKQ: _workq_time,
    KESTREL: _kestrel_time,
    KEYSPACE: _no_time,
}
