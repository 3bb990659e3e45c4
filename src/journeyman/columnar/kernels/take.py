"""Rows picked out of Arrow batches by numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from journeyman.columnar.arrays import Bools, Column
from journeyman.columnar.kernels.write_bytes import Ints

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
