"""Whether rows come in the order that they claim: inside a batch, a task, and a whole DataFrame.

The place of a row is the tuple of its order columns. They ascend as Spark's ``orderBy`` has them:
nulls first, text and bytes by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from journeyman.errors import UsageError

Place = tuple[Any, ...]


def follows(place: Place, before: Place, *, strictly: bool) -> bool:
    """Whether a row at ``place`` may stand behind one at ``before``."""
    one, other = _comparable(place), _comparable(before)
    return one > other if strictly else one >= other


def shown(place: Place) -> str:
    """For people; long values are cut."""
    texts = [value.hex() if isinstance(value, bytes) else str(value) for value in place]
    return ", ".join(text if len(text) <= 80 else text[:77] + "..." for text in texts)


class OrderCheck:
    """Looks at the batches of one task as they pass."""

    def __init__(self, order_by: Sequence[str], *, strictly: bool = False) -> None:
        self._order_by = list(order_by)
        self._strictly = strictly
        self.first: Place | None = None
        self.last: Place | None = None

    def note(self, batch: pa.RecordBatch) -> None:
        """Raises UsageError for a row that stands before the one in front of it."""
        if not batch.num_rows:
            return
        columns = batch.select(self._order_by)
        first, last = _place(columns, 0), _place(columns, batch.num_rows - 1)
        behind = self.last is None or follows(first, self.last, strictly=self._strictly)
        if not behind or not _is_sorted(columns):
            raise UsageError(
                f"the rows are not in the order of {', '.join(self._order_by)}: sort them by it"
                " (journeyman.spark.sinks.write does)"
            )
        self.first = first if self.first is None else self.first
        self.last = last


def _place(columns: pa.RecordBatch, row: int) -> Place:
    return tuple(column[row].as_py() for column in columns.columns)


def _comparable(place: Place) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value) for value in place)


def _is_sorted(columns: pa.RecordBatch) -> bool:
    if columns.num_columns == 1:
        (only,) = columns.columns
        if pa.types.is_integer(only.type) and not only.null_count:
            values = only.to_numpy()
            return bool(np.all(values[1:] >= values[:-1]))
    # Whether a value is there comes before the value: nulls first.
    arrays = [array for column in columns.columns for array in (column.is_valid(), column)]
    table = pa.Table.from_arrays(arrays, [str(number) for number in range(len(arrays))])
    keys: list[tuple[str, Any]] = [(name, "ascending") for name in table.schema.names]
    return bool(table.take(pc.sort_indices(table, sort_keys=keys)).equals(table))
