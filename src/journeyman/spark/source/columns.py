"""Small ways between Python, numpy and Arrow columns that do not import pandas.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` all do, the first time they are called, and that
takes longer than reading many a log. So they are not used on the way of good records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.arrays import Bools, Column, binary, numbers


def texts(values: Iterable[str | None]) -> Column:
    """A short column of strings."""
    given = [None if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *(len(value or b"") for value in given)]).astype(np.int32)
    joined = np.frombuffer(b"".join(value or b"" for value in given), np.uint8)
    return binary(pa.string(), offsets, joined, np.array([value is not None for value in given]))


def repeated(value: str | int | None, kind: Any, rows: int) -> Column:
    """The same text, number or null in all rows; ``kind`` is its type in Arrow."""
    if value is None:
        nothing: Column = pa.nulls(rows, kind)
        return nothing
    if isinstance(value, int):
        return numbers(np.full(rows, value, np.int32))
    text: Any = texts([value])[0]
    column: Column = pa.repeat(text, rows)
    return column


def mask(wanted: Bools) -> Any:
    """Which rows are wanted, as a filter takes it."""
    bits = pa.py_buffer(np.packbits(wanted, bitorder="little").data)
    return pa.Array.from_buffers(pa.bool_(), len(wanted), [None, bits])


def raw_numbers(column: Column) -> npt.NDArray[Any]:
    """The numbers of a column; where it is null, whatever is there (columnar puts 0)."""
    values = column.buffers()[1]
    kind = np.dtype(column.type.to_pandas_dtype())  # in spite of its name, a type of numpy
    raw = np.frombuffer(b"" if values is None else memoryview(values), kind)
    return raw[column.offset : column.offset + len(column)]


def valid_rows(column: Column) -> Bools:
    """Which rows of a column are not null."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    end = column.offset + len(column)
    unpacked = np.unpackbits(np.frombuffer(memoryview(bits), np.uint8), bitorder="little")
    return unpacked[column.offset : end].astype(np.bool_)
