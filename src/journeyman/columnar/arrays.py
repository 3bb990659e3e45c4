"""numpy columns -> Arrow arrays, copying only where bytes lie scattered in the log.

Numbers are handed over as they are. Strings and blobs arrive as spans (start, length) into the log
and are gathered into one contiguous run, as Arrow wants them:

    log      ....alpha.......be....gamma...
    spans        ^5          ^2    ^5
    Arrow    offsets 0 5 7 12   values alphabegamma

A span must lie inside the data; the kernels have checked that. Null rows have spans of length 0
and numbers of 0, so no byte of uninitialised memory ever leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.kernels.byte_access import Bytes, Ints, copy_spans, copy_spans_behind
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


def gather(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Ints, Bytes]:
    """Offsets (one more than spans) and the bytes of all spans, end to end."""
    offsets = np.empty(len(lengths) + 1, np.int32)
    values = np.empty(int(lengths.sum()), np.uint8)
    copy_spans(data, starts, lengths, offsets, values)
    return offsets, values


def gather_behind(heads: Bytes, data: Bytes, starts: Ints, lengths: Ints) -> tuple[Ints, Bytes]:
    """The same, each span behind a row of ``heads``, which are end to end and of one size."""
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
    return binary(pa.binary(), *gather(data, starts, np.where(valid, lengths, 0)), valid)


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


# ----------------------------------------
# Arrow columns -> numpy, as the kernels want them: without a copy, read-only, nulls as zeros.
#
# Kernels are compiled once for each type of argument, and to numba an array that may be written to
# is of another type than one that may not. So every column comes out of here in one and the same
# shape.

A = TypeVar("A", bound="npt.NDArray[Any]")


def numbers_in(column: Column) -> Ints:
    """The values of a column of numbers; 0 where it is null."""
    values = stored_in(column)
    if column.null_count:
        values = frozen(np.where(valid_in(column), values, values.dtype.type(0)))
    return values


def stored_in(column: Column) -> Ints:
    """The same of a column that a decoder has made: there are zeros where it is null.

    Not ``to_numpy``, which imports pandas, and not ``fill_null``, which imports another part of
    Arrow: that takes longer than to decode a million rows.
    """
    buffer = column.buffers()[1]
    values: Ints = np.frombuffer(
        b"" if buffer is None else memoryview(buffer), column.type.to_pandas_dtype()
    )
    return frozen(values[column.offset : column.offset + len(column)])


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


# ----------------------------------------
# Rows picked out of Arrow batches by numpy arrays.

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
