"""The keyspace file in bulk: bytes -> Arrow, the fast twin of journeyman.formats.keyspace.file.

    u32 key length | u32 value length | key | value | u32 CRC-32C          big endian

The kernel checks the CRC of every entry and finds its key and value. Here they become two binary
columns, ``raw_key`` and ``value``, and the keys are taken apart by columnar.keyspace into typed
columns, null where a key is none that is known. Values that are not counts are copied only if asked
for with ``payloads=True``; ``value_size`` is always there.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import Column, as_bytes, binary, blobs, gather, numbers
from journeyman.columnar.chunks import (
    MAX_CHUNK_BYTES,
    MAX_RECORDS,
    Chunk,
    checked_offset,
    ending_at,
    first_offset,
    iter_chunks,
    make_fields,
    refused,
)
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints, big_u32
from journeyman.columnar.kernels.key_table import crc32c
from journeyman.columnar.keyspace import decode as keyspace
from journeyman.formats.framing import Buffer, Ending
from journeyman.formats.keyspace.file import CODEC, CRC_BYTES, LENGTHS_BYTES
from journeyman.formats.keyspace.keys import MAX_KEY_BYTES
from journeyman.formats.keyspace.values import MAX_VALUE_BYTES

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("offset", pa.int64()),
    ("length", pa.int32()),  # framing included
    ("raw_key", pa.binary()),
    ("value_size", pa.int32()),
    ("value", pa.binary()),  # null unless asked for
]
SCHEMA = pa.schema([*_COLUMNS, *keyspace.SCHEMA])

_OFFSET, _LENGTH, _KEY_LENGTH, _VALUE_LENGTH = range(4)
_FIELDS = 4
_SMALLEST_ENTRY_BYTES = LENGTHS_BYTES + 1 + CRC_BYTES
_LONGEST_COUNT_BYTES = 8


def decode(
    data: Buffer,
    offset: int | None = None,
    *,
    max_records: int = MAX_RECORDS,
    payloads: bool = False,
) -> Chunk:
    """The rows from ``offset`` on (None: from the start of the file, its header checked)."""
    start = first_offset(CODEC, data, offset)
    if isinstance(start, Ending):
        return refused(SCHEMA, start)
    log = as_bytes(data)
    room = make_fields(_FIELDS, max_records, log.size - start, _SMALLEST_ENTRY_BYTES)
    rows, position, full = _scan(log, start, start + MAX_CHUNK_BYTES, room)
    columns = _columns(log, room[:, :rows], payloads)
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return Chunk(batch, position, None if full else ending_at(CODEC, data, position))


iter_batches = partial(iter_chunks, decode)


def hop(data: Buffer, offset: int, target: int) -> int:
    """The first entry boundary at or after ``target``, hopping over lengths from ``offset``.

    Neither contents nor CRC are looked at. Less than ``target`` when the lengths lead no further.
    """
    return _hop(as_bytes(data), checked_offset(data, offset), target)


def _columns(log: Bytes, fields: Ints, payloads: bool) -> list[Column]:
    key_starts = fields[_OFFSET] + LENGTHS_BYTES
    sizes = fields[_VALUE_LENGTH]
    value_starts = key_starts + fields[_KEY_LENGTH]
    keys = binary(pa.binary(), *gather(log, key_starts, fields[_KEY_LENGTH]))
    # Longer values are no counts, and no reason to copy them.
    short = np.where(sizes > _LONGEST_COUNT_BYTES, 0, sizes)
    counts = binary(pa.binary(), *gather(log, value_starts, short))
    wanted = np.full(fields.shape[1], payloads)
    return [
        numbers(fields[_OFFSET]),
        numbers(fields[_LENGTH].astype(np.int32)),
        keys,
        numbers(sizes.astype(np.int32)),
        blobs(log, value_starts, sizes, wanted),
        *keyspace.decode(cast("pa.BinaryArray", keys), cast("pa.BinaryArray", counts)).columns,
    ]


@kernel
def _entry_end(data: Bytes, position: int) -> int:
    """The end of the entry at ``position``; 0 when its lengths are not to be followed."""
    left = data.size - position
    if left < _SMALLEST_ENTRY_BYTES:
        return 0
    key_length, value_length = big_u32(data, position), big_u32(data, position + 4)
    if key_length == 0 or key_length > MAX_KEY_BYTES or value_length > MAX_VALUE_BYTES:
        return 0
    size = LENGTHS_BYTES + key_length + value_length + CRC_BYTES
    return position + size if size <= left else 0


@kernel
def _hop(data: Bytes, position: int, target: int) -> int:
    while position < target:
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
        if end == 0 or crc32c(data, position, end - CRC_BYTES) != big_u32(data, end - CRC_BYTES):
            break
        fields[_OFFSET, rows] = position
        fields[_LENGTH, rows] = end - position
        fields[_KEY_LENGTH, rows] = big_u32(data, position)
        fields[_VALUE_LENGTH, rows] = big_u32(data, position + 4)
        rows += 1
        position = end
    return rows, position, False
