"""The kestrel journal in bulk: bytes -> Arrow, the fast twin of journeyman.formats.kestrel.

    command byte | header words | data            command in the high four bits, words in the low
      8 PUT         i32 size, i32 errors, i64 id, i64 added ms, [i64 expires ms]; the item
      0 READ_HEAD   i64 id
      9 READ_DONE   i32 size; i64 ids
      others        stepped over by their sizes

The data are the last bytes of an entry, so their span follows from its end and their size. A zero
command byte ends the journal without a fault (Stop.ZERO_BYTE).

Seals make no rows; whether they fit is seen to by journeyman.columnar.seals.

Columns that a kind does not have are null; the comments in the schema say which. ``data`` is null
everywhere unless ``payloads=True``. Header words of commands that are not known are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from journeyman.columnar import arrays, chunks
from journeyman.columnar.arrays import Bools, Column
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints, little_i32, little_i64, u8
from journeyman.columnar.seals import is_kestrel_seal
from journeyman.formats.framing import Buffer, Codec, Ending
from journeyman.formats.kestrel import (
    FIRST_UNKNOWN_PUT_WORDS,
    MAX_DATA_BYTES,
    SEAL_BYTE,
    WRITER,
    Record,
)

PUT, READ_HEAD, READ_DONE = 8, 0, 9
UNKNOWN_PUT = 24  # a PUT with header words that are not known

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("kind", pa.int8()),  # the command, 0 to 15; 24 for a PUT of a newer writer
    ("item_id", pa.int64()),  # PUT, READ_HEAD
    ("offset", pa.int64()),
    ("length", pa.int32()),  # command byte included
    ("add_time_ms", pa.int64()),  # PUT
    ("expire_time_ms", pa.int64()),  # PUT that expires
    ("error_count", pa.int32()),  # PUT
    ("data_size", pa.int32()),
    ("data", pa.binary()),  # all but READ_HEAD and READ_DONE
    ("done_ids", pa.list_(pa.int64())),  # READ_DONE
]
SCHEMA = pa.schema(_COLUMNS)

# The fields that the kernel writes for each entry.
_KIND, _OFFSET, _LENGTH, _DATA_SIZE, _ITEM_ID, _ERRORS, _ADDED_MS, _EXPIRES, _EXPIRES_MS = range(9)
_FIELDS = 9

_SMALLEST_ENTRY_BYTES = 1  # a command below 8, without header words
_FIRST_DATA_COMMAND = 8
_PUT_WORDS = 6
_EXPIRING_PUT_WORDS = 8
_READ_HEAD_WORDS = 2
_READ_DONE_WORDS = 1
_ID_BYTES = 8


def decode(
    data: Buffer,
    offset: int | None = None,
    *,
    max_records: int = chunks.MAX_RECORDS,
    payloads: bool = False,
    codec: Codec[Record] = WRITER,
) -> chunks.Chunk:
    """The rows from ``offset`` on (None: from the start of the file, its header checked).

    ``codec`` says which header: WRITER for items, READER for a checkpoint.
    """
    start = chunks.first_offset(codec, data, offset)
    if isinstance(start, Ending):
        return chunks.refused_chunk(SCHEMA, start)
    log = arrays.as_bytes(data)
    room = chunks.make_fields(_FIELDS, max_records, log.size - start, _SMALLEST_ENTRY_BYTES)
    rows, position, full = _scan(log, start, start + chunks.MAX_CHUNK_BYTES, room)
    fields = room[:, :rows]
    kinds = fields[_KIND]
    is_put, is_head, is_done = kinds == PUT, kinds == READ_HEAD, kinds == READ_DONE
    data_starts = fields[_OFFSET] + fields[_LENGTH] - fields[_DATA_SIZE]
    columns = [
        arrays.numbers(kinds.astype(np.int8)),
        arrays.numbers(fields[_ITEM_ID], is_put | is_head),
        arrays.numbers(fields[_OFFSET]),
        arrays.numbers(fields[_LENGTH].astype(np.int32)),
        arrays.numbers(fields[_ADDED_MS], is_put),
        arrays.numbers(fields[_EXPIRES_MS], fields[_EXPIRES] == 1),
        arrays.numbers(fields[_ERRORS].astype(np.int32), is_put),
        arrays.numbers(fields[_DATA_SIZE].astype(np.int32)),
        arrays.blobs(log, data_starts, fields[_DATA_SIZE], ~(is_head | is_done) & payloads),
        _done_ids(log, data_starts, fields[_DATA_SIZE], is_done),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return chunks.Chunk(batch, position, None if full else chunks.ending_at(codec, data, position))


iter_batches = partial(chunks.iter_chunks, decode)


def hop(data: Buffer, offset: int, target: int) -> int:
    """The first entry boundary at or after ``target``, hopping over sizes from ``offset``.

    Contents are not looked at. Less than ``target`` when the sizes lead no further.
    """
    return _hop(arrays.as_bytes(data), chunks.checked_offset(data, offset), target)


def _done_ids(log: Bytes, starts: Ints, sizes: Ints, valid: Bools) -> Column:
    if not valid.any():
        return pa.nulls(len(valid), pa.list_(pa.int64()))
    offsets, values = arrays.gather_spans(log, starts, np.where(valid, sizes, 0))
    return arrays.int64_lists(offsets // _ID_BYTES, values.view("<i8"), valid)


@kernel
def _entry_end(data: Bytes, position: int) -> int:
    """The end of the entry at ``position``; 0 where its sizes cannot be followed."""
    byte = u8(data, position)
    command, words = byte >> 4, byte & 0x0F
    left = data.size - position
    header = 1 + 4 * words
    if byte == 0 or header > left:
        return 0
    if command < _FIRST_DATA_COMMAND:
        return position + header
    if words == 0:
        return 0
    size = little_i32(data, position + 1)
    if size < 0 or size > MAX_DATA_BYTES or size > left - header:
        return 0
    return position + header + size


@kernel
def _hop(data: Bytes, position: int, target: int) -> int:
    while position < min(target, data.size):
        end = _entry_end(data, position)
        if end == 0:
            break
        position = end
    return position


@kernel
def _scan(data: Bytes, position: int, stop: int, fields: Ints) -> tuple[int, int, bool]:
    """Fill ``fields``; (entries, the offset behind them, whether a limit of the chunk was met)."""
    rows = 0
    while position < data.size:
        if rows == fields.shape[1] or position >= stop:
            return rows, position, True
        end = _entry_end(data, position)
        if end == 0:
            break
        byte = u8(data, position)
        if byte == SEAL_BYTE and is_kestrel_seal(data, position):
            position = end
            continue
        command, words = byte >> 4, byte & 0x0F
        size = end - position - 1 - 4 * words
        item_id, errors, added_ms, expires, expires_ms = 0, 0, 0, 0, 0
        if command == PUT:
            if words >= FIRST_UNKNOWN_PUT_WORDS:
                command = UNKNOWN_PUT
            elif words != _PUT_WORDS and words != _EXPIRING_PUT_WORDS:
                break
            else:
                errors = little_i32(data, position + 5)
                item_id = little_i64(data, position + 9)
                added_ms = little_i64(data, position + 17)
                if words == _EXPIRING_PUT_WORDS:
                    expires, expires_ms = 1, little_i64(data, position + 25)
        elif command == READ_HEAD:
            if words != _READ_HEAD_WORDS:
                break
            item_id = little_i64(data, position + 1)
        elif command == READ_DONE and (words != _READ_DONE_WORDS or size % _ID_BYTES != 0):
            break
        fields[_KIND, rows] = command
        fields[_OFFSET, rows] = position
        fields[_LENGTH, rows] = end - position
        fields[_DATA_SIZE, rows] = size
        fields[_ITEM_ID, rows] = item_id
        fields[_ERRORS, rows] = errors
        fields[_ADDED_MS, rows] = added_ms
        fields[_EXPIRES, rows] = expires
        fields[_EXPIRES_MS, rows] = expires_ms
        rows += 1
        position = end
    return rows, position, False


# ----------------------------------------
# Puts of a kestrel queue -> its items: the fold of journeyman.folds.kestrel in bulk.
#
#     PUTS    id 1   2   3   3   4         an id is normally put once, and ids ascend
#     items      1   2   3  (3)  4         the same put again is no item; another of the same id is
#
# PUTS holds everything of a put but its data. Two puts of one id that are equal in all numbers may
# still hold different data; only then are these read from the file (``reread``) and compared.

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

# Reads the data of the items at these positions of the journal.
Reread: TypeAlias = Callable[[Sequence[int]], list[bytes]]


class Items(NamedTuple):
    """Rows of PUTS that are items, by id and in journal order."""

    rows: Ints
    ordinals: Ints  # 0; 1, 2 ... for further items of the same id
    contested: Bools  # true if the id has more than one item


def puts_in(batch: pa.RecordBatch, first_position: int) -> pa.RecordBatch:
    """The puts of a chunk of columnar.kestrel as rows of PUTS.

    ``first_position`` is the position of offset 0 of the chunk's file.
    """
    positions = arrays.column_of(arrays.numbers_in(batch.column("offset")) + first_position)
    puts = batch.append_column("position", positions).select(PUTS.names)
    is_put = arrays.numbers_in(batch.column("kind")) == PUT
    return puts if is_put.all() else arrays.rows_where(puts, is_put)


def fold_items(puts: pa.RecordBatch, reread: Reread) -> Items:
    """Return what is left of all puts of some ids, given in any order."""
    ids, positions = (arrays.numbers_in(puts.column(name)) for name in ("item_id", "position"))
    ascend = (ids[1:] > ids[:-1]).all()
    rows = np.arange(len(ids)) if ascend else np.lexsort((positions, ids))
    again = ids[rows[1:]] == ids[rows[:-1]]
    ordinals, contested = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
    if not again.any():
        return Items(rows, ordinals, contested)
    kept = np.ones(len(rows), np.bool_)
    for first, last in _runs(again):
        chosen = _different(arrays.rows_at(puts, rows[first : last + 1]), reread)
        kept[first : last + 1] = False
        for ordinal, place in enumerate(chosen):
            kept[first + place] = True
            ordinals[first + place] = ordinal
            contested[first + place] = len(chosen) > 1
    return Items(rows[kept], ordinals[kept], contested[kept])


def _runs(repeats: Bools) -> list[tuple[int, int]]:
    """First and last place of every run of equal ids; ``repeats`` marks ids like the one before."""
    edges = np.diff(np.concatenate([[False], repeats, [False]]).astype(np.int8))
    return list(
        zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
    )


def _different(puts: pa.RecordBatch, reread: Reread) -> list[int]:
    """Return those puts of one id, in journal order, that differ from all before them."""
    places_of: dict[tuple[object, ...], list[int]] = {}
    names = ("add_time_ms", "expire_time_ms", "error_count", "data_size")
    for place, row in enumerate(puts.select(names).to_pylist()):
        places_of.setdefault(tuple(row.values()), []).append(place)
    positions: list[int] = arrays.numbers_in(puts.column("position")).tolist()
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
