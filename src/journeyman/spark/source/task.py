"""The pieces of a partition -> record batches: what one task does.

    pieces --read_piece----> chunks, damages --Selection--RowMaker--> rows
           --read_piece----> the same --Selection, combine----------> packets
           --read_damages--> damages --> rows about these alone

What is damaged goes by the mode: PERMISSIVE makes a row of it, DROPMALFORMED leaves it out,
FAILFAST raises. A damage is one row of kind ``damage``: its place in the envelope, its bytes and
the reason in the two columns at the end, everything else null. A combiner sees good records only;
rows about damage are put behind its own, and to each of its rows the columns are added that the
path of its log stands for.

Batches have exactly the schema that Spark expects, and only its columns are made; a narrower one
costs less. Numbers for kinds, statuses and runners become words by taking from a short array, and
what is the same for a whole file (its path, its log, its host) is made once and cut to length.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` import pandas the first time they are called, and
that takes longer than reading many a log. So they are not used on the way of good records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from journeyman.columnar import arrays
from journeyman.columnar.chunks import Chunk
from journeyman.errors import LogError
from journeyman.formats import task_names
from journeyman.logs.damage import Damage
from journeyman.spark.files import filesystem_of
from journeyman.spark.source import options as source_options
from journeyman.spark.source.chunks import no_records
from journeyman.spark.source.packets import combine
from journeyman.spark.source.piece_reader import read_damages, read_piece
from journeyman.spark.source.pieces import Piece, SplitContext

# Where a record says when it was written, and how many nanoseconds its unit has.
_TIMES: Final = {
    source_options.WORKQ: ("logged_ns", 1),
    source_options.LEDGER: ("logged_ns", 1),
    source_options.KESTREL: ("add_time_ms", 1_000_000),
}
# Columns of names, the blocks of JSON that begin with them, and how these begin.
_NAMED_IN: Final = {
    "task": ("payload", task_names.TASK),
    "error": ("result", task_names.ERROR),
}
_TIME = pa.timestamp("us", tz="UTC")
_CODED: Any = pa.dictionary(pa.int32(), pa.string())
# The calendars of Spark and Python reach from the year 1 to 9999.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_HEX_DIGITS = np.array([list(b"%02x" % byte) for byte in range(256)], np.uint8)
_DIGIT_PLACES = np.array([at for at in range(36) if at not in (8, 13, 18, 23)])


def read_partition(
    pieces: Sequence[Piece],
    options: source_options.SourceOptions,
    schema: StructType,
    *,
    coded: frozenset[str] = frozenset(),
) -> Iterator[pa.RecordBatch]:
    """The rows of these pieces, in their order. Words of ``coded`` columns are in a dictionary."""
    task = _Task(pieces, options, with_dictionaries(source_options.arrow_schema(schema), coded))
    if options.damage_only:
        return task.damage_rows()
    return task.rows() if options.reduce is None else task.reduced_rows()


def with_dictionaries(schema: pa.Schema, coded: frozenset[str]) -> pa.Schema:
    """The schema with words of these columns in a dictionary."""
    for at, field in enumerate(schema):
        if field.name in coded:
            schema = schema.set(at, pa.field(field.name, _CODED))
    return schema


class _Task:
    def __init__(
        self, pieces: Sequence[Piece], options: source_options.SourceOptions, schema: pa.Schema
    ) -> None:
        self._pieces = pieces
        self._options = options
        self._schema = schema
        self._maker = RowMaker(options.dialect, self._schema, options.corrupt_column)
        self._selection = Selection(options)
        self._damages: list[pa.RecordBatch] = []  # rows that go behind those of a reducer

    def rows(self) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces:
            for item in self._items(piece, read_piece(piece, self._options)):
                batch = self._rows_of(piece.context, item)
                if batch.num_rows:
                    yield batch

    def damage_rows(self) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces:
            for item in self._items(piece, read_damages(piece, self._options)):
                yield self._rows_of(piece.context, item)

    def reduced_rows(self) -> Iterator[pa.RecordBatch]:
        for batch in combine(self._options.dialect, self._records()):
            yield self._completed(batch)
        yield from self._damages

    def _records(self) -> Iterator[tuple[SplitContext, Chunk]]:
        """Yield the chunks for a reducer; a file begins with an empty one, so none is missed."""
        for piece in self._pieces:
            if piece.begin == 0:
                yield piece.context, no_records(self._options.dialect)
            for item in self._items(piece, read_piece(piece, self._options)):
                if isinstance(item, Chunk):
                    yield piece.context, item
                else:
                    self._damages.append(item)

    def _items(
        self, piece: Piece, items: Iterable[Damage | Chunk]
    ) -> Iterator[pa.RecordBatch | Chunk]:
        """Wanted chunks, and batches of one row about damage."""
        for item in items:
            if isinstance(item, Chunk):
                yield self._selection.select(item, piece.context)
            elif self._options.mode == source_options.FAILFAST:
                raise LogError(item.file, _complaint(item))
            elif self._options.mode != source_options.DROPMALFORMED:
                length = min(item.length, source_options.MAX_CORRUPT_BYTES)
                raw = filesystem_of(item.file).read_at(item.file, item.offset, length)
                yield self._maker.damage(piece.context, item, raw)

    def _rows_of(self, context: SplitContext, item: pa.RecordBatch | Chunk) -> pa.RecordBatch:
        return self._maker.rows(context, item.batch) if isinstance(item, Chunk) else item

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A reducer's batch with the columns that were asked for."""
        columns = []
        for field in self._schema:
            at = batch.schema.get_field_index(field.name)
            columns.append(batch.column(at) if at >= 0 else self._added(batch, field))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _added(self, batch: pa.RecordBatch, field: pa.Field[Any]) -> Any:
        """Return the column that the paths of the logs state; null for columns about damage."""
        said = {p.context.log: dict(p.context.partitions).get(field.name) for p in self._pieces}
        if not any(said.values()):
            return pa.nulls(batch.num_rows, field.type)
        return texts(said.values()).take(pc.index_in(batch.column("_log"), texts(said)))


def _complaint(damage: Damage) -> str:
    where = f"{damage.length} bytes from offset {damage.offset} on are damaged"
    return f"{where} ({damage.kind}: {damage.reason}); mode PERMISSIVE reads on"


class Selection:
    """The selection of records of a chunk by the options kinds, key, startTime, endTime and asOf.

    A record that says no time (a kestrel reader's) is never between two times; but it is kept as of
    any time, since a state without its readers would be no state. Damage is not a record and always
    stays.
    """

    def __init__(self, options: source_options.SourceOptions) -> None:
        self._codes: npt.NDArray[np.int8] | None = None
        if options.kinds is not None:
            self._codes = np.array(
                source_options.kind_codes(options.dialect, options.kinds), np.int8
            )
        self._time, self._unit_ns = _TIMES.get(options.dialect, ("", 1))
        # In units of the column: x * unit >= start is x >= ceil(start / unit), and so on.
        self._first = self._ceiling(options.start_ns)
        self._behind = self._ceiling(options.end_ns)
        self._as_of = None if options.as_of_ns is None else options.as_of_ns // self._unit_ns
        self._is_marked = options.dialect == source_options.ZTICK and options.has_moment
        self._key = None if options.key is None else pa.scalar(options.key)
        self._key_of = _KEYS[options.dialect]
        limits = (options.kinds, options.key, options.start_ns, options.end_ns, options.as_of_ns)
        self.takes_all = all(limit is None for limit in limits)

    def select(self, chunk: Chunk, context: SplitContext) -> Chunk:
        """The chunk with only the rows that are wanted."""
        if self.takes_all:
            return chunk
        wanted = np.ones(chunk.batch.num_rows, np.bool_)
        if self._codes is not None:
            wanted &= np.isin(arrays.stored_in(kinds_in(chunk.batch)), self._codes)
        if self._key is not None:
            same = pc.equal(self._key_of(chunk.batch), self._key)
            wanted &= same.fill_null(False).to_numpy(zero_copy_only=False)
        if self._is_marked:
            times, said = marked_times(context, chunk.batch)
            wanted &= said & self._in_time(times, said)
        elif self._time:
            column = chunk.batch.column(self._time)
            wanted &= self._in_time(arrays.stored_in(column), arrays.valid_in(column))
        if wanted.all():
            return chunk
        return Chunk(chunk.batch.filter(mask(wanted)), chunk.next_offset, chunk.ending)

    def _in_time(self, times: Any, has_time: arrays.Bools) -> Any:
        wanted = np.ones(len(times), np.bool_)
        if self._first is not None:
            wanted &= has_time & (times >= self._first)
        if self._behind is not None:
            wanted &= has_time & (times < self._behind)
        if self._as_of is not None:
            wanted &= ~has_time | (times <= self._as_of)
        return wanted

    def _ceiling(self, moment_ns: int | None) -> int | None:
        return None if moment_ns is None else -(-moment_ns // self._unit_ns)


class RowMaker:
    """Makes batches of one schema for one dialect."""

    def __init__(self, dialect: str, schema: pa.Schema, corrupt_column: str | None) -> None:
        self._dialect = dialect
        self._schema = schema
        self._corrupt_column = corrupt_column
        self._word_columns = {name: texts(words) for name, words in _word_columns(dialect)}
        self._constants: dict[tuple[SplitContext, str], arrays.Column] = {}

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
            "_position": context.segment << source_options.SEGMENT_SHIFT | damage.offset,
            "kind": source_options.DAMAGE_KIND,
            source_options.DAMAGE: f"{damage.kind}: {damage.reason}",
        }
        if self._corrupt_column is not None:
            values[self._corrupt_column] = raw[: source_options.MAX_CORRUPT_BYTES]
        row = [pa.array([values.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(row, schema=self._schema)

    def column(self, context: SplitContext, chunk: pa.RecordBatch, name: str) -> arrays.Column:
        """One column by its name, for all rows of the chunk."""
        if name in _ENVELOPE:
            return _ENVELOPE[name](context, chunk)
        if name == "key":
            return _KEYS[self._dialect](chunk)
        if name == "time":
            return _TIME_COLUMNS[self._dialect](context, chunk)
        if name in self._word_columns:
            codes = kinds_in(chunk) if name == "kind" else chunk.column(name)
            return _in_words(self._word_columns[name], codes, self._type_of(name))
        if self._dialect == source_options.WORKQ and name in _NAMED_IN:
            return _named(chunk.column(_NAMED_IN[name][0]), _NAMED_IN[name][1])
        at = chunk.schema.get_field_index(name)
        if at >= 0:
            return _as_type(chunk.column(at), self._type_of(name))
        return self._constant(context, name, chunk.num_rows)

    def _constant(self, context: SplitContext, name: str, rows: int) -> arrays.Column:
        """Return a column that is the same in all rows of a file; null if good rows lack it."""
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


def _named(blocks: arrays.Column, pattern: str) -> arrays.Column:
    """The name that stands first in blocks of JSON, as workers of tasks write them.

    Other blocks have none. Only the first bytes are looked at: a payload may have a megabyte.
    """
    if blocks.null_count == len(blocks):
        nothing: arrays.Column = pa.nulls(len(blocks), pa.string())
        return nothing
    heads: Any = pc.binary_slice(blocks, 0, task_names.NAME_BYTES)
    found: Any = pc.extract_regex(heads, pattern)
    names: Any = pc.struct_field(found, 0)
    # Bytes that a pattern of ASCII has let through may still be no text.
    texts_found: arrays.Column = names.cast(pa.string())
    return texts_found


def _word_columns(dialect: str) -> list[tuple[str, tuple[str | None, ...]]]:
    words: list[tuple[str, tuple[str | None, ...]]] = [("kind", source_options.KIND_WORDS[dialect])]
    if dialect == source_options.ZTICK:
        words += source_options.ZTICK_WORDS.items()
    return words


def _in_words(texts: arrays.Column, codes: arrays.Column, kind: Any) -> arrays.Column:
    if codes.null_count == len(codes):
        nothing: arrays.Column = pa.nulls(len(codes), kind)
        return nothing
    if kind == _CODED:
        each: Any = texts.dictionary_encode()  # a word may have several numbers
        return pa.DictionaryArray.from_arrays(each.indices.take(codes), each.dictionary)
    return texts.take(codes)


def _as_type(column: arrays.Column, kind: pa.DataType) -> arrays.Column:
    return column if column.type == kind else column.cast(kind)


def _position(context: SplitContext, chunk: pa.RecordBatch) -> arrays.Column:
    return arrays.numbers(
        arrays.stored_in(chunk.column("offset")) | context.segment << source_options.SEGMENT_SHIFT
    )


_ENVELOPE: Final[dict[str, Callable[[SplitContext, pa.RecordBatch], arrays.Column]]] = {
    "_offset": lambda _, chunk: chunk.column("offset"),
    "_length": lambda _, chunk: chunk.column("length"),
    "_position": _position,
}


def marked_times(context: SplitContext, chunk: pa.RecordBatch) -> tuple[Any, arrays.Bools]:
    """When ztick records were written, in nanoseconds, and of which that is known."""
    offsets, times = arrays.stored_in(chunk.column("offset")), context.times
    if times is None:
        return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
    places = np.searchsorted(np.array(times.ends, np.int64), offsets, side="right")
    known = np.array([*times.times_ns, times.whole_ns or 0], np.int64)
    return known[places], (places < len(times.ends)) | (times.whole_ns is not None)


def _marked_time(context: SplitContext, chunk: pa.RecordBatch) -> arrays.Column:
    times, said = marked_times(context, chunk)
    return _moments(times // 1000, said)


def _moments(microseconds: Any, valid: Any = None) -> arrays.Column:
    """Timestamps; null where not ``valid``, and where the calendar does not reach."""
    reached = (microseconds >= _FIRST_US) & (microseconds <= _LAST_US)
    if valid is not None:
        reached &= valid
    return arrays.numbers(microseconds, reached).view(_TIME)


def _logged_time(_: SplitContext, chunk: pa.RecordBatch) -> arrays.Column:
    return _moments(arrays.stored_in(chunk.column("logged_ns")) // 1000)


def _kestrel_time(_: SplitContext, chunk: pa.RecordBatch) -> arrays.Column:
    column = chunk.column("add_time_ms")
    added_ms = arrays.stored_in(column)
    reach = np.clip(added_ms, _FIRST_US // 1000 - 1, _LAST_US // 1000 + 1)
    return _moments(reach * 1000, arrays.valid_in(column))


def _workq_key(chunk: pa.RecordBatch) -> arrays.Column:
    """Ids as people write them: 8-4-4-4-12 hexadecimal digits."""
    ids = chunk.column("job_id")
    _, _, values = ids.buffers()
    raw = np.frombuffer(b"" if values is None else memoryview(values), np.uint8)
    raw = raw[16 * ids.offset : 16 * (ids.offset + len(ids))].reshape(-1, 16)
    return uuid_texts(raw)


def _kestrel_key(chunk: pa.RecordBatch) -> arrays.Column:
    is_put = arrays.stored_in(chunk.column("kind")) == source_options.KESTREL_PUT
    return arrays.numbers(arrays.stored_in(chunk.column("item_id")), is_put).cast(pa.string())


_KEYS: Final[dict[str, Callable[[pa.RecordBatch], arrays.Column]]] = {
    source_options.ZTICK: lambda chunk: chunk.column("identifier"),
    source_options.WORKQ: _workq_key,
    source_options.KESTREL: _kestrel_key,
    source_options.LEDGER: lambda chunk: chunk.column("subject"),
}
_TIME_COLUMNS: Final[dict[str, Callable[[SplitContext, pa.RecordBatch], arrays.Column]]] = {
    source_options.ZTICK: _marked_time,
    source_options.WORKQ: _logged_time,
    source_options.KESTREL: _kestrel_time,
    source_options.LEDGER: _logged_time,
}


def kinds_in(chunk: pa.RecordBatch) -> Any:
    """The numbers of the kinds."""
    return chunk.column("kind")


def uuid_texts(raw: Any) -> arrays.Column:
    """Rows of 16 bytes -> a column of ids as people write them, 36 characters each."""
    text = np.full((len(raw), 36), ord("-"), np.uint8)
    text[:, _DIGIT_PLACES] = _HEX_DIGITS[raw].reshape(-1, 32)
    offsets = np.arange(0, 36 * len(raw) + 1, 36, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(text.data)]
    return pa.Array.from_buffers(pa.string(), len(raw), buffers)


def texts(values: Iterable[str | None]) -> arrays.Column:
    """A short column of strings."""
    given = [None if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *(len(value or b"") for value in given)]).astype(np.int32)
    joined = np.frombuffer(b"".join(value or b"" for value in given), np.uint8)
    return arrays.binary(
        pa.string(), offsets, joined, np.array([value is not None for value in given])
    )


def repeated(value: str | int | None, kind: Any, rows: int) -> arrays.Column:
    """Return a column with one text, number or null in all rows; ``kind`` is its type in Arrow."""
    if value is None:
        nothing: arrays.Column = pa.nulls(rows, kind)
        return nothing
    if isinstance(value, int):
        return arrays.numbers(np.full(rows, value, np.int32))
    if kind == _CODED:
        return pa.DictionaryArray.from_arrays(
            arrays.numbers(np.zeros(rows, np.int32)), texts([value])
        )
    text: Any = texts([value])[0]
    column: arrays.Column = pa.repeat(text, rows)
    return column


def mask(wanted: arrays.Bools) -> Any:
    """Return which rows are wanted, in the form that a filter takes."""
    bits = pa.py_buffer(np.packbits(wanted, bitorder="little").data)
    return pa.Array.from_buffers(pa.bool_(), len(wanted), [None, bits])
