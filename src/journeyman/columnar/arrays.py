"""Conversion of numpy columns to Arrow arrays and back, copying only scattered bytes of a log.

To Arrow, for what decodes. Numbers are handed over as they are. Strings and blobs arrive as spans
(start, length) into the log and are gathered into one contiguous run:

    log      ....alpha.......be....gamma...
    spans        ^5          ^2    ^5
    Arrow    offsets 0 5 7 12   values alphabegamma

A span must lie inside the data; the kernels have checked that. Null rows have spans of length 0
and numbers of 0, so no byte of uninitialised memory ever leaves.

From Arrow, for what encodes (``Inputs``), without copies:

    column of          gives           a kernel reads
    numbers            Numbers         values[row] where valid[row]
    words or codes     codes           codes[row], NO_CODE for null
    strings, blobs     Spans           data[offsets[row] : offsets[row + 1]] where valid[row]
    lists              Lists           the same, of another column's rows

A column that is not there is a column of nulls. What cannot be encoded is an EncodeError that names
row and column; rows are counted from ``first_row``, so that a writer of many batches can count on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from journeyman.columnar.kernels.byte_access import Bytes, Ints, copy_spans, copy_spans_behind
from journeyman.errors import EncodeError
from journeyman.formats.framing import Buffer

Bools: TypeAlias = npt.NDArray[np.bool_]
Column: TypeAlias = "pa.Array[Any]"

_HIGHEST_ASCII = 0x7F


def as_bytes(data: Buffer) -> Bytes:
    """The buffer as a read-only array, without a copy.

    Read-only whatever the buffer is: kernels are compiled once for each type of argument.
    """
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


def gather_spans(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Ints, Bytes]:
    """Offsets (one more than spans) and the bytes of all spans, end to end."""
    offsets = np.empty(len(lengths) + 1, np.int32)
    values = np.empty(int(lengths.sum()), np.uint8)
    copy_spans(data, starts, lengths, offsets, values)
    return offsets, values


def gather_behind(heads: Bytes, data: Bytes, starts: Ints, lengths: Ints) -> tuple[Ints, Bytes]:
    """Gather spans, each behind a row of ``heads``, which are end to end and of one size."""
    head_bytes = heads.size // max(len(lengths), 1)
    offsets = np.empty(len(lengths) + 1, np.int64)
    values = np.empty(heads.size + int(lengths.sum()), np.uint8)
    copy_spans_behind(frozen(heads), head_bytes, data, starts, lengths, offsets, values)
    return offsets, values


def is_ascii(values: Bytes) -> bool:
    return values.size == 0 or int(values.max()) <= _HIGHEST_ASCII


def numbers(values: Ints, valid: Bools | None = None) -> Column:
    """A column of numbers, null where not ``valid``."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), _buffer(values)])


def flags(values: Bools, valid: Bools) -> Column:
    """A column of true and false, null where not ``valid``."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bitmap(valid), _bitmap(values)])


def binary(kind: pa.DataType, offsets: Ints, values: Bytes, valid: Bools | None = None) -> Column:
    """A binary or string column from gathered bytes. Strings are not checked here."""
    buffers = [_bitmap(valid), _buffer(offsets), _buffer(values)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def blobs(data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> Column:
    """A binary column of the spans that are ``valid``, null elsewhere."""
    if not valid.any():
        return pa.nulls(len(valid), pa.binary())
    return binary(pa.binary(), *gather_spans(data, starts, np.where(valid, lengths, 0)), valid)


def int64_lists(offsets: Ints, values: Ints, valid: Bools) -> Column:
    """A column of lists of numbers."""
    kind = pa.list_(pa.int64())
    buffers = [_bitmap(valid), _buffer(offsets)]
    children = [numbers(values.astype(np.int64))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=children)


def stretched(compact: Column, places: Ints, rows: int) -> Column:
    """``compact``, of strings or lists, over ``rows`` rows: at ``places``, null everywhere else."""
    valid = np.zeros(rows, np.bool_)
    valid[places] = True
    _, offset_buffer, *_ = compact.buffers()
    assert offset_buffer is not None
    compact_offsets = np.frombuffer(memoryview(offset_buffer), np.int32)[: len(compact) + 1]
    offsets = np.repeat(compact_offsets, np.diff(places, prepend=-1, append=rows))
    buffers = [_bitmap(valid), _buffer(offsets)]
    if isinstance(compact, pa.ListArray):
        return pa.Array.from_buffers(compact.type, rows, buffers, children=[compact.values])
    return pa.Array.from_buffers(compact.type, rows, [*buffers, compact.buffers()[2]])


def _bitmap(valid: Bools | None) -> pa.Buffer | None:
    return None if valid is None else _buffer(np.packbits(valid, bitorder="little"))


def _buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(array.data)


A = TypeVar("A", bound="npt.NDArray[Any]")


def numbers_in(column: Column) -> Ints:
    """The values of a column of numbers; 0 where it is null."""
    values = stored_in(column)
    if column.null_count:
        values = frozen(np.where(valid_in(column), values, values.dtype.type(0)))
    return values


def stored_in(column: Column) -> Ints:
    """Return the values of a column that a decoder has made: there are zeros where it is null.

    Not ``to_numpy``, which imports pandas, and not ``fill_null``, which imports another part of
    Arrow: that takes longer than to decode a million rows.
    """
    buffer, kind = column.buffers()[1], np.dtype(column.type.to_pandas_dtype())
    if buffer is None or not len(column):
        return frozen(np.zeros(len(column), kind))
    begin = column.offset * kind.itemsize
    return frozen(np.frombuffer(memoryview(buffer), kind, len(column), begin))


def valid_in(column: Column) -> Bools:
    """Where the column is not null."""
    bitmap = column.buffers()[0]
    if bitmap is None:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(memoryview(bitmap), np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].view(np.bool_)


def text_in(column: Column) -> tuple[Ints, Bytes]:
    """Offsets and bytes of a column of strings or of fixed-size bytes, without nulls."""
    if pa.types.is_fixed_size_binary(column.type):
        width, (_, values) = column.type.byte_width, column.buffers()
        first = column.offset * width
        offsets = np.arange(first, first + width * len(column) + 1, width, dtype=np.int32)
    else:
        _, offset_buffer, values = column.buffers()
        offsets = np.zeros(1, np.int32)
        if len(column):
            assert offset_buffer is not None
            offsets = np.frombuffer(memoryview(offset_buffer), np.int32)
            offsets = offsets[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(b"" if values is None else memoryview(values), np.uint8)
    return frozen(offsets), frozen(data)


def frozen(array: A) -> A:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


_arrow: Any = pa  # the stubs know neither numpy arrays as indices nor concat_batches


def column_of(values: Ints | Bools) -> Column:
    """A column without nulls."""
    column: Column = _arrow.array(values)
    return column


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows as one batch; at least one batch is given."""
    batch: pa.RecordBatch = _arrow.concat_batches(batches)
    return batch


def rows_at(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    """These rows; a row of nulls for each that is negative."""
    return batch.take(_indices(rows))


def rows_where(batch: pa.RecordBatch, mask: Bools) -> pa.RecordBatch:
    return batch.filter(_arrow.array(mask))


def values_at(column: Column, rows: Ints) -> Column:
    """The values at these rows; null for each that is negative."""
    return column.take(_indices(rows))


def _indices(rows: Ints) -> Any:
    is_none = rows < 0
    return _arrow.array(rows, mask=is_none) if is_none.any() else _arrow.array(rows)


NO_CODE = -1


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of whole numbers; what stands at a null is not to be looked at."""

    values: npt.NDArray[np.int64]
    valid: Bools


@dataclass(frozen=True, slots=True)
class Spans:
    """A column of strings or blobs: the value of a row is data[offsets[row]:offsets[row + 1]]."""

    data: Bytes
    offsets: Ints
    valid: Bools

    @property
    def lengths(self) -> Ints:
        """Return the length of every row, 0 for a null."""
        return np.where(self.valid, np.diff(self.offsets), 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Lists:
    """A column of lists of whole numbers."""

    values: npt.NDArray[np.int64]
    offsets: Ints
    valid: Bools


class Inputs:
    """The columns of one batch by name."""

    def __init__(self, batch: pa.RecordBatch, first_row: int = 0) -> None:
        self._batch = batch
        self._first_row = first_row
        self.rows = batch.num_rows

    def refuse(self, row: int, column: str, reason: str) -> NoReturn:
        raise EncodeError(f"row {self._first_row + row}, column {column}: {reason}")

    def refuse_where(self, mask: Bools, column: str, reason: str) -> None:
        """Refuse the first row that the mask has, if it has any."""
        if mask.any():
            self.refuse(int(mask.argmax()), column, reason)

    def column(self, name: str, kind: pa.DataType) -> Column:
        """The column as this type; nulls if there is none."""
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            return self._nulls(kind)
        column = self._batch.column(index)
        if column.type == kind:
            return column
        if pa.types.is_null(column.type):
            return self._nulls(kind)
        try:
            return column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise EncodeError(f"column {name}: {column.type} is not {kind}: {error}") from error

    def _nulls(self, kind: pa.DataType) -> Column:
        return pa.array([None], kind).take(np.zeros(self.rows, np.int64))

    def numbers(self, name: str) -> NumberColumn:
        column = self.column(name, pa.int64())
        return NumberColumn(stored_in(column), valid_in(column))

    def codes(self, name: str, code_of: Mapping[str, int]) -> Ints:
        """The code of each word, NO_CODE for null. Codes may also be given as numbers."""
        index = self._batch.schema.get_field_index(name)
        if index >= 0 and pa.types.is_integer(self._batch.column(index).type):
            given = self.numbers(name)
            values = np.where(given.valid, given.values, NO_CODE)
            known = np.isin(values, [*code_of.values(), NO_CODE])
            if not known.all():
                row = int(known.argmin())
                self.refuse(row, name, f"{values[row]} is none of {_listed(code_of.values())}")
            return values
        column = self.column(name, pa.string())
        found = pc.index_in(column, value_set=pa.array(list(code_of), pa.string()))
        unknown = valid_in(column) & ~valid_in(found)
        if unknown.any():
            row = int(unknown.argmax())
            self.refuse(row, name, f"{column[row].as_py()!r} is none of {_listed(code_of)}")
        places = found.fill_null(len(code_of)).to_numpy()
        codes: Ints = np.array([*code_of.values(), NO_CODE], np.int64)[places]
        return codes

    def blobs(self, name: str) -> Spans:
        return _spans(self.column(name, pa.binary()))

    def strings(self, name: str) -> Spans:
        """Text, proven to be UTF-8: Arrow and Spark pass on what they are given."""
        column = self.column(name, pa.string())
        spans = _spans(column)
        if not is_ascii(spans.data[spans.offsets[0] : spans.offsets[-1]]):
            self._check_utf8(column, name)
        return spans

    def lists(self, name: str) -> Lists:
        column = self.column(name, pa.list_(pa.int64()))
        assert isinstance(column, pa.ListArray)
        if column.values.null_count and column.flatten().null_count:
            raise EncodeError(f"column {name}: a null in a list")
        offsets = column.offsets.to_numpy()
        return Lists(stored_in(column.values), offsets, valid_in(column))

    def _check_utf8(self, column: Column, name: str) -> None:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for row, raw in enumerate(column.cast(pa.binary()).to_pylist()):
                try:
                    str(raw or b"", "utf-8")
                except UnicodeDecodeError:
                    self.refuse(row, name, "not UTF-8")
            raise


def _listed(choices: Any) -> str:
    return ", ".join(map(str, choices))


def _spans(column: Column) -> Spans:
    offsets, data = text_in(column)
    return Spans(data, offsets, valid_in(column))
