"""Rows must come in the order that they claim."""

from __future__ import annotations

import pyarrow as pa
import pytest

from journeyman.errors import UsageError
from journeyman.spark.sinks.parts import OrderCheck, PartsWritten, in_order


def batch(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def note_each(check: OrderCheck, rows: pa.RecordBatch) -> None:
    for row in range(rows.num_rows):
        check.note(rows[row : row + 1])


SORTED = [
    {"a": [1, 2, 2, 5]},
    {"a": [None, None, -1]},
    {"a": ["", "a", "b", "é"]},
    {"a": [b"\x7f", b"\x80"]},
    {"a": [1, 1, 2], "b": [None, 7, 1]},
]
UNSORTED = [
    {"a": [1, 3, 2]},
    {"a": [1, None]},
    {"a": ["é", "b"]},
    {"a": [1, 1], "b": [2, 1]},
]


@pytest.mark.parametrize("columns", SORTED)
def test_what_ascends_passes_whole_and_row_by_row(columns):
    rows = batch(**columns)
    whole, single = OrderCheck(columns), OrderCheck(columns)
    whole.note(rows)
    note_each(single, rows)
    assert whole.first == single.first == tuple(column[0] for column in columns.values())
    assert whole.last == single.last == tuple(column[-1] for column in columns.values())


@pytest.mark.parametrize("columns", UNSORTED)
def test_what_does_not_ascend_is_refused_whole_and_row_by_row(columns):
    rows = batch(**columns)
    with pytest.raises(UsageError, match="not in the order of a"):
        OrderCheck(columns).note(rows)
    with pytest.raises(UsageError, match="not in the order of a"):
        note_each(OrderCheck(columns), rows)


def test_messages_are_put_in_the_order_of_partitions_and_must_ascend():
    first = PartsWritten(0, first=(1,), last=(3,))
    empty = PartsWritten(1)
    last = PartsWritten(2, first=(3,), last=(9,))
    assert in_order([last, None, empty, first], ["a"]) == [first, empty, last]
    with pytest.raises(UsageError, match=r"partition 2 begins at 3, behind 5; .*write sorts them"):
        in_order([PartsWritten(0, first=(4,), last=(5,)), last], ["a"])
