"""Arrow -> the keyspace file in bulk: the way back of columnar.keyspace.file.

    u32 key length | u32 value length | key | value | u32 CRC-32C          big endian

One row is one entry, from its columns ``raw_key`` and ``value``; others are left alone. The header
of a file is not written here. Keys must ascend strictly within a batch; across batches and files
whoever writes them looks at the first and last key of each. A value of null was not read, and is
refused. Agrees with the codec in formats.keyspace.file byte for byte.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import Inputs
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints, copy_span, put_big_32
from journeyman.columnar.kernels.key_table import crc32c
from journeyman.formats.keyspace.file import CRC_BYTES, LENGTHS_BYTES
from journeyman.formats.keyspace.keys import MAX_KEY_BYTES
from journeyman.formats.keyspace.values import MAX_VALUE_BYTES


def encode(batch: pa.RecordBatch, first_row: int = 0) -> memoryview:
    """The entries of all rows, end to end. Raises EncodeError naming row and column."""
    inputs = Inputs(batch, first_row)
    keys, values = inputs.blobs("raw_key"), inputs.blobs("value")
    inputs.refuse_where(~keys.valid, "raw_key", "null")
    unread = "null: was the keyspace read without its payloads?"
    inputs.refuse_where(~values.valid, "value", unread)
    inputs.refuse_where(keys.lengths == 0, "raw_key", "a key of no bytes")
    inputs.refuse_where(keys.lengths > MAX_KEY_BYTES, "raw_key", f"over {MAX_KEY_BYTES} bytes")
    inputs.refuse_where(values.lengths > MAX_VALUE_BYTES, "value", f"over {MAX_VALUE_BYTES} bytes")
    disorder = _first_disorder(keys.data, keys.offsets)
    if disorder:
        inputs.refuse(disorder, "raw_key", "does not come behind the key before it")
    overhead = inputs.rows * (LENGTHS_BYTES + CRC_BYTES)
    log = np.empty(overhead + int(keys.lengths.sum() + values.lengths.sum()), np.uint8)
    end = _write(keys.data, keys.offsets, values.data, values.offsets, log)
    assert end == log.size
    return log.data


@kernel
def _first_disorder(data: Bytes, offsets: Ints) -> int:
    """The first row whose key does not come behind the one before it; 0 if there is none."""
    for row in range(1, offsets.size - 1):
        before, at, end = offsets[row - 1], offsets[row], offsets[row + 1]
        same = 0
        while before + same < at and at + same < end and data[before + same] == data[at + same]:
            same += 1
        if at + same == end or (before + same < at and data[before + same] > data[at + same]):
            return row
    return 0


@kernel
def _write(keys: Bytes, key_offsets: Ints, values: Bytes, value_offsets: Ints, log: Bytes) -> int:
    at = 0
    for row in range(key_offsets.size - 1):
        start = at
        key_length = key_offsets[row + 1] - key_offsets[row]
        value_length = value_offsets[row + 1] - value_offsets[row]
        at = put_big_32(log, at, key_length)
        at = put_big_32(log, at, value_length)
        at = copy_span(keys, key_offsets[row], key_length, log, at)
        at = copy_span(values, value_offsets[row], value_length, log, at)
        at = put_big_32(log, at, crc32c(log, start, at))
    return at
