"""Columns of Arrow as numbers of numpy and back, for the folds of history and the counts of a lake.

Moments are nanoseconds since 1970: null in Arrow, NO_TIME in numpy where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from journeyman.columnar.arrays import text_in
from journeyman.columnar.kernels.key_table import Hashes, hashes_of
from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark.views import DAY_NS
from journeyman.units import NS_PER_S

# The stubs know few of the types that these take.
pc: Any = pyarrow.compute
arrow: Any = pa

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
AnyColumn: TypeAlias = Any  # pa.Array or pa.ChunkedArray
Number = TypeVar("Number", bound=np.generic)


def ns_in(column: AnyColumn) -> Ints:
    """Whole numbers; NO_TIME where there is none."""
    found: Ints = column.cast(pa.int64()).fill_null(NO_TIME).to_numpy()
    return found


def ns_column(values: Ints) -> AnyColumn:
    return pa.array(values, mask=values == NO_TIME)


def length_ns(begin: Ints, end: Ints) -> Ints:
    """Never negative: logged times may step back. NO_TIME if one is missing, or it is too long."""
    length = end - begin
    overflows = ((end ^ begin) & (end ^ length)) < 0
    missing = (begin == NO_TIME) | (end == NO_TIME) | overflows
    return np.where(missing, NO_TIME, np.maximum(length, 0))


def first_known(*columns: Ints) -> Ints:
    found = columns[0]
    for column in columns[1:]:
        found = np.where(found == NO_TIME, column, found)
    return found


def day_of(moments_ns: Ints) -> npt.NDArray[np.int32]:
    """Days since 1970; of NO_TIME the first, which stands for no day at all."""
    return np.where(moments_ns == NO_TIME, 0, moments_ns // DAY_NS).astype(np.int32)


def moment_column(values_ns: Ints) -> AnyColumn:
    """Timestamps, to the microsecond below."""
    micros = pa.array(values_ns // 1000, mask=values_ns == NO_TIME)
    return micros.cast(pa.timestamp("us", "UTC"))


def seconds_column(values_ns: Ints) -> AnyColumn:
    return pa.array(values_ns / float(NS_PER_S), mask=values_ns == NO_TIME)


def one_array(column: AnyColumn) -> AnyColumn:
    """Return one array of a column of strings, plain or in a dictionary."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # beyond what one array of strings can hold, or none
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    return column


def text_of(column: AnyColumn) -> AnyColumn:
    """One array of plain strings."""
    found = one_array(column)
    return found.cast(pa.string()) if pa.types.is_dictionary(found.type) else found


def coded(column: AnyColumn) -> AnyColumn:
    """One array of strings in a dictionary."""
    found = one_array(column)
    return found if pa.types.is_dictionary(found.type) else found.dictionary_encode()


def constant(word: str, rows: int) -> AnyColumn:
    """Return a column with the same word in all rows."""
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([word]))


def each_text(
    column: AnyColumn, made: Callable[[AnyColumn], npt.NDArray[Number]], nothing: int = 0
) -> npt.NDArray[Number]:
    """Apply ``made`` to texts, to those of a dictionary once; null becomes ``nothing``."""
    texts = one_array(column)
    if pa.types.is_dictionary(texts.type):
        found = made(texts.dictionary)
        codes = texts.indices.fill_null(len(found)).to_numpy()
        known: npt.NDArray[Number] = np.append(found, np.array([nothing], found.dtype))[codes]
        return known
    found = made(texts.fill_null(""))
    if texts.null_count:
        found = np.where(np.asarray(texts.is_valid()), found, found.dtype.type(nothing))
    return found


def key_hashes(column: AnyColumn) -> Hashes:
    """Return the hashes of strings; 0 where there is none."""
    return each_text(column, lambda texts: hashes_of(*text_in(texts)))


def hash_column(keys: AnyColumn) -> AnyColumn:
    """Return the column of hashes that a table has for these keys."""
    return arrow.array(key_hashes(keys).view(np.int64))


def is_one_of(column: AnyColumn, texts_wanted: Iterable[str]) -> Bools:
    meant = arrow.array(texts_wanted)
    return each_text(column, lambda texts: np.asarray(pc.is_in(texts, meant)))


def places_in(column: AnyColumn, choices: AnyColumn) -> Ints:
    """Where among the choices each text is; -1 if it is none of them."""

    def of_texts(texts: AnyColumn) -> Ints:
        found: Ints = pc.index_in(texts, choices).fill_null(-1).to_numpy().astype(np.int64)
        return found

    return each_text(column, of_texts, -1)


def where(rows: pa.Table, mask: Bools) -> pa.Table:
    return rows if mask.all() else rows.filter(pa.array(mask))


def as_schema(columns: Mapping[str, AnyColumn], schema: pa.Schema) -> pa.Table:
    rows = len(next(iter(columns.values())))
    found = [
        _cast(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(found, schema=schema)


def _cast(column: AnyColumn, kind: pa.DataType) -> AnyColumn:
    return coded(column) if pa.types.is_dictionary(kind) else column.cast(kind)


def taken(rows: pa.Table, places: Ints) -> pa.Table:
    """The rows at these places, in this order."""
    found: pa.Table = rows.take(arrow.array(places))
    return found


def filled_numbers(column: AnyColumn, nothing: int) -> Ints:
    """Whole numbers; this one where there is none."""
    found: Ints = column.fill_null(nothing).to_numpy()
    return found


def mixed(numbers: Sequence[Hashes]) -> Hashes:
    """One number for each row of numbers."""
    found = np.zeros(len(numbers[0]), np.uint64)
    for number in numbers:
        found = (found ^ number) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found


def begins_of(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """Where in sorted rows another group begins."""
    size = len(columns[0])
    if size == 0:
        return np.zeros(0, np.int64)
    differs = np.zeros(size, np.bool_)
    differs[0] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def different(values: Ints) -> tuple[Ints, Ints]:
    """The different ones of these numbers, none negative, in order; and which of them each is."""
    most = int(values.max()) if len(values) else 0
    if most > 2 * len(values) + 1_000_000:
        found, places = np.unique(values, return_inverse=True)
        return found, places
    is_there = np.zeros(most + 1, np.bool_)
    is_there[values] = True  # a table of so few takes less time than to sort
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[values]


def unless_empty(column: AnyColumn) -> AnyColumn:
    text = text_of(column)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def moment_pairs(times_ns: Mapping[str, Ints]) -> dict[str, AnyColumn]:
    pairs = {name: ns_column(column) for name, column in times_ns.items()}
    for name, column in times_ns.items():
        pairs[f"{name.removesuffix('_ns')}_at"] = moment_column(column)
    return pairs
