"""Columns of Arrow as numbers of numpy and back, for the folds of history and the counts of a lake.

Moments are nanoseconds since 1970: null in Arrow, NO_TIME in numpy where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from journeyman.columnar.arrays import text_in
from journeyman.columnar.kernels.key_table import Hashes, hashes_of
from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark.lakes.layout import BETWEEN, DAY_NS, TABLES
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.source.task import with_dictionaries
from journeyman.units import NS_PER_S

# The stubs know few of the types that these take.
pc: Any = pyarrow.compute
arrow: Any = pa

_WORDS: Final = frozenset(
    ("host", "log", "dialect", "queue", "task", "worker", "rule", "runner", "outcome", "status")
)
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
    """Of strings, plain or in a dictionary."""
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
    """The same word in all rows."""
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([word]))


def each_text(
    column: AnyColumn, made: Callable[[AnyColumn], npt.NDArray[Number]], nothing: int = 0
) -> npt.NDArray[Number]:
    """What ``made`` makes of texts, of words in a dictionary once; ``nothing`` where it is null."""
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
    """Of strings; 0 where there is none."""
    return each_text(column, lambda texts: hashes_of(*text_in(texts)))


def hash_column(keys: AnyColumn) -> AnyColumn:
    """What a table has in its column of hashes."""
    return arrow.array(key_hashes(keys).view(np.int64))


def is_one_of(column: AnyColumn, words: Iterable[str]) -> Bools:
    meant = arrow.array(words)
    return each_text(column, lambda texts: np.asarray(pc.is_in(texts, meant)))


def places_in(column: AnyColumn, words: AnyColumn) -> Ints:
    """Where among the words each text is; -1 if it is none of them."""

    def of_texts(texts: AnyColumn) -> Ints:
        found: Ints = pc.index_in(texts, words).fill_null(-1).to_numpy().astype(np.int64)
        return found

    return each_text(column, of_texts, -1)


def where(rows: pa.Table, mask: Bools) -> pa.Table:
    return rows if mask.all() else rows.filter(pa.array(mask))


def shaped(columns: Mapping[str, AnyColumn], table: str) -> pa.Table:
    """Exactly the columns of a table of the lake; null where none is given."""
    return as_schema(columns, schema_of(table))


def schema_of(table: str) -> pa.Schema:
    """Of rows of a table. In silver, words that come again and again are in a dictionary: to move
    and to write them so takes a fraction of the time."""
    schema = arrow_schema(TABLES[table].schema)
    return with_dictionaries(schema, _WORDS) if table.startswith("silver/") else schema


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


def named_logs(rows: pa.Table) -> pa.Table:
    """``rows`` with host and path of a log as one text in ``_log``."""
    hosts, logs = coded(rows["host"]), coded(rows["_log"])
    size = max(1, len(logs.dictionary))
    codes = filled(hosts.indices, 0).astype(np.int64) * size + filled(logs.indices, 0)
    pairs, places = different(codes)
    host_words, log_words = hosts.dictionary.to_pylist(), logs.dictionary.to_pylist()
    names = [f"{host_words[pair // size]}{BETWEEN}{log_words[pair % size]}" for pair in pairs]
    named = pa.DictionaryArray.from_arrays(places.astype(np.int32), pa.array(names, pa.string()))
    return rows.drop_columns(["host", "_log"]).append_column("_log", named)


def hosts_and_logs(column: AnyColumn) -> dict[str, AnyColumn]:
    logs = coded(column)
    pairs = [name.partition(BETWEEN) for name in logs.dictionary.to_pylist()]
    each = {"host": [host for host, _, _ in pairs], "log": [path for _, _, path in pairs]}
    found = {}
    for name, words in each.items():
        once = pa.array(words, pa.string()).dictionary_encode()
        codes = once.indices.take(logs.indices)
        found[name] = pa.DictionaryArray.from_arrays(codes, once.dictionary)
    return found


def taken(rows: pa.Table, places: Ints) -> pa.Table:
    """The rows at these places, in this order."""
    found: pa.Table = rows.take(arrow.array(places))
    return found


def filled(column: AnyColumn, nothing: int) -> Ints:
    """Whole numbers; this one where there is none."""
    found: Ints = column.fill_null(nothing).to_numpy()
    return found


def mixed(words: Sequence[Hashes]) -> Hashes:
    """One number for each row of numbers."""
    found = np.zeros(len(words[0]), np.uint64)
    for word in words:
        found = (found ^ word) * np.uint64(0x9E3779B97F4A7C15)
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
