"""Puts of a kestrel queue -> its items: the fold of journeyman.folds.kestrel in bulk.

    PUTS    id 1   2   3   3   4         an id is normally put once, and ids ascend
    items      1   2   3  (3)  4         the same put again is no item; another of the same id is

PUTS holds everything of a put but its data. Two puts of one id that are equal in all numbers may
still hold different data; only then are these read from the file (``reread``) and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import Bools, numbers_in
from journeyman.columnar.kernels.take import column_of, rows_at, rows_where
from journeyman.columnar.kernels.write_bytes import Ints
from journeyman.columnar.kestrel.decode import PUT

PUTS = pa.schema(
    [
        ("item_id", pa.int64()),
        ("position", pa.int64()),
        ("length", pa.int32()),
        ("add_time_ms", pa.int64()),
        ("expire_time_ms", pa.int64()),  # null if it does not expire
        ("error_count", pa.int32()),
        ("data_size", pa.int32()),
    ]
)

# Of these positions, the data of the items as they are in the journal.
Reread: TypeAlias = Callable[[Sequence[int]], list[bytes]]


class Items(NamedTuple):
    """Rows of PUTS that are items, by id and in journal order."""

    rows: Ints
    ordinals: Ints  # 0; 1, 2 ... for further items of the same id
    contested: Bools  # whether the id has more than one


def puts_in(batch: pa.RecordBatch, first_position: int) -> pa.RecordBatch:
    """The puts of a chunk of columnar.kestrel as rows of PUTS.

    ``first_position`` is the position of offset 0 of the chunk's file.
    """
    positions = column_of(numbers_in(batch.column("offset")) + first_position)
    puts = batch.append_column("position", positions).select(PUTS.names)
    is_put = numbers_in(batch.column("kind")) == PUT
    return puts if is_put.all() else rows_where(puts, is_put)


def items(puts: pa.RecordBatch, reread: Reread) -> Items:
    """What is left of all puts of some ids, given in any order."""
    ids, positions = (numbers_in(puts.column(name)) for name in ("item_id", "position"))
    ascend = (ids[1:] > ids[:-1]).all()
    rows = np.arange(len(ids)) if ascend else np.lexsort((positions, ids))
    again = ids[rows[1:]] == ids[rows[:-1]]
    ordinals, contested = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
    if not again.any():
        return Items(rows, ordinals, contested)
    kept = np.ones(len(rows), np.bool_)
    for first, last in _runs(again):
        chosen = _different(rows_at(puts, rows[first : last + 1]), reread)
        kept[first : last + 1] = False
        for ordinal, place in enumerate(chosen):
            kept[first + place] = True
            ordinals[first + place] = ordinal
            contested[first + place] = len(chosen) > 1
    return Items(rows[kept], ordinals[kept], contested[kept])


def _runs(again: Bools) -> list[tuple[int, int]]:
    """First and last place of every run of equal ids; ``again`` tells an id like the one before."""
    edges = np.diff(np.concatenate([[False], again, [False]]).astype(np.int8))
    return list(
        zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
    )


def _different(puts: pa.RecordBatch, reread: Reread) -> list[int]:
    """Of puts of one id in journal order, those that are not the same as one before."""
    places_of: dict[tuple[object, ...], list[int]] = {}
    names = ("add_time_ms", "expire_time_ms", "error_count", "data_size")
    for place, row in enumerate(puts.select(names).to_pylist()):
        places_of.setdefault(tuple(row.values()), []).append(place)
    positions: list[int] = numbers_in(puts.column("position")).tolist()
    chosen: list[int] = []
    for places in places_of.values():
        if len(places) == 1:
            chosen += places
            continue
        seen: set[bytes] = set()
        for place, data in zip(places, reread([positions[p] for p in places]), strict=True):
            if data not in seen:
                seen.add(data)
                chosen.append(place)
    return sorted(chosen)
