"""Arrow columns -> numpy, as the kernels want them: without a copy, read-only, nulls as zeros.

Kernels are compiled once for each type of argument, and to numba an array that may be written to is
of another type than one that may not. So every column comes out of here in one and the same shape.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.arrays import Bools, Column
from journeyman.columnar.kernels.copying import Ints
from journeyman.columnar.kernels.read_bytes import Bytes

A = TypeVar("A", bound="npt.NDArray[Any]")


def numbers_in(column: Column) -> Ints:
    """The values of a column of numbers; 0 where it is null."""
    if column.null_count:
        column = column.fill_null(0)
    values: Ints = column.to_numpy(zero_copy_only=True)
    return frozen(values)


def valid_in(column: Column) -> Bools:
    """Where the column is not null."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


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
