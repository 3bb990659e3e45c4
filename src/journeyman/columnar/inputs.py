"""Arrow columns -> what the kernels that encode read: numbers, codes and spans, without copies.

    column of          gives           a kernel reads
    numbers            Numbers         values[row] where valid[row]
    words or codes     codes           codes[row], NO_CODE for null
    strings, blobs     Spans           data[offsets[row] : offsets[row + 1]] where valid[row]
    lists              Lists           the same, of another column's rows

A column that is not there is a column of nulls. What cannot be encoded is an EncodeError that names
row and column; rows are counted from ``first_row``, so that a writer of many batches can count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from journeyman.columnar.arrays import Bools, Column, as_bytes, is_ascii
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.errors import EncodeError

NO_CODE = -1


@dataclass(frozen=True, slots=True)
class Numbers:
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
        """Of every row, 0 at a null."""
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

    def numbers(self, name: str) -> Numbers:
        column = self.column(name, pa.int64())
        return Numbers(_int64_values(column), _valid(column))

    def codes(self, name: str, words: Mapping[str, int]) -> Ints:
        """The code of each word, NO_CODE for null. Codes may also be given as numbers."""
        index = self._batch.schema.get_field_index(name)
        if index >= 0 and pa.types.is_integer(self._batch.column(index).type):
            given = self.numbers(name)
            values = np.where(given.valid, given.values, NO_CODE)
            known = np.isin(values, [*words.values(), NO_CODE])
            if not known.all():
                row = int(known.argmin())
                self.refuse(row, name, f"{values[row]} is none of {_listed(words.values())}")
            return values
        column = self.column(name, pa.string())
        found = pc.index_in(column, value_set=pa.array(list(words), pa.string()))
        unknown = _valid(column) & ~_valid(found)
        if unknown.any():
            row = int(unknown.argmax())
            self.refuse(row, name, f"{column[row].as_py()!r} is none of {_listed(words)}")
        places = found.fill_null(len(words)).to_numpy()
        codes: Ints = np.array([*words.values(), NO_CODE], np.int64)[places]
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
        return Lists(_int64_values(column.values), offsets, _valid(column))

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


def _valid(column: Column) -> Bools:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _int64_values(column: Column) -> npt.NDArray[np.int64]:
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros(len(column), np.int64)
    return np.frombuffer(memoryview(buffer), np.int64, len(column), 8 * column.offset)


def _spans(column: Column) -> Spans:
    _, offset_buffer, value_buffer = column.buffers()
    data = as_bytes(b"" if value_buffer is None else memoryview(value_buffer))
    if offset_buffer is None or len(column) == 0:
        return Spans(data, np.zeros(len(column) + 1, np.int32), _valid(column))
    offsets = np.frombuffer(memoryview(offset_buffer), np.int32, len(column) + 1, 4 * column.offset)
    return Spans(data, offsets, _valid(column))
