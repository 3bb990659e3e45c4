"""Overhop keys in bulk: Arrow -> Arrow, the fast twin of formats.keyspace.keys.decode_key.

    v1:q:<queue>                                     QUEUE
    v1:j:<uuid>                                      JOB
    v1:j_qt:<ms decimal>:<queue>:<uuid>              QUEUE_TIME, version 1
    v2:j_qt:<ms 8 bytes>:<queue>:<uuid>              QUEUE_TIME, version 2
    v1:status:<uuid>                                 STATUS
    v1:status_fifo:<status>:<ms 8 bytes><16 bytes>   STATUS_FIFO
    v1:q_status:<queue>:<status>                     COUNTER

A keyspace is a map, not a log: there is no place where reading stops. One row comes out for each
key that went in. A key that decode_key refuses becomes a row of nulls, ``kind`` included.

Counts come from the values, if given: eight bytes, clamped to 2^63 - 1; null if not eight bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import Bools, Column, as_bytes, binary, gather, is_ascii, numbers
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints, big_i64, u8
from journeyman.formats.keyspace import keys

QUEUE, JOB, QUEUE_TIME, STATUS, STATUS_FIFO, COUNTER = range(6)

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("kind", pa.int8()),  # one of the six above
    ("version", pa.int8()),
    ("queue", pa.string()),  # QUEUE, QUEUE_TIME, COUNTER
    ("job_uuid", pa.string()),  # all but QUEUE and COUNTER; 36 characters
    ("status", pa.string()),  # STATUS_FIFO, COUNTER
    ("time_ms", pa.int64()),  # QUEUE_TIME: execution start, STATUS_FIFO: creation
    ("count", pa.int64()),  # COUNTER, when values are given
]
SCHEMA = pa.schema(_COLUMNS)

_PREFIXES = (  # prefix, kind, version
    (keys.QUEUES, QUEUE, 1),
    (keys.JOBS, JOB, 1),
    (keys.QUEUE_TIMES_V1, QUEUE_TIME, 1),
    (keys.QUEUE_TIMES, QUEUE_TIME, 2),
    (keys.STATUSES, STATUS, 1),
    (keys.STATUS_FIFO, STATUS_FIFO, 1),
    (keys.COUNTERS, COUNTER, 1),
)
# The same for the kernel, which knows no bytes objects.
_PREFIX_BYTES = np.frombuffer(b"".join(prefix for prefix, _, _ in _PREFIXES), np.uint8)
_PREFIX_ENDS = np.cumsum([len(prefix) for prefix, _, _ in _PREFIXES])
_PREFIX_MEANINGS = np.array([(kind, version) for _, kind, version in _PREFIXES])

# What the kernel writes down about a key.
_REFUSED = -1  # in place of the kind
_KIND, _VERSION, _QUEUE_START, _QUEUE_LENGTH, _STATUS_START, _STATUS_LENGTH, _TIME_MS = range(7)
_FIELDS = 7

_MAX_KEY_BYTES = keys.MAX_KEY_BYTES
_MAX_QUEUE_BYTES = keys.MAX_QUEUE_NAME_BYTES
_MAX_STATUS_BYTES = keys.MAX_STATUS_BYTES
_MS_BYTES = 8
_UUID_CHARS = 36
_UUID_BYTES = 16
_COUNT_BYTES = 8
_INT64_MAX, _INT64_MIN = 2**63 - 1, -(2**63)
_COLON, _DASH, _ZERO, _NINE, _LOWER_A = 0x3A, 0x2D, 0x30, 0x39, 0x61
_MAX_DECIMAL_DIGITS = 19
_LEAST_TENTH, _LEAST_DIGIT = -(2**63 // 10), 2**63 % 10  # -2^63 is ten times this, less that


def decode(data: pa.BinaryArray, values: pa.BinaryArray | None = None) -> pa.RecordBatch:
    """One row for each key; ``values``, one for each key, give the counts."""
    starts, ends, raw = _spans(data)
    fields = np.zeros((_FIELDS, len(data)), np.int64)
    uuids = np.zeros((len(data), _UUID_CHARS), np.uint8)
    _scan(raw, starts, ends, fields, uuids)
    queues = _queues(raw, fields)
    kinds = fields[_KIND]
    has_uuid = (kinds == JOB) | (kinds == QUEUE_TIME) | (kinds == STATUS) | (kinds == STATUS_FIFO)
    has_status = (kinds == STATUS_FIFO) | (kinds == COUNTER)
    has_time = (kinds == QUEUE_TIME) | (kinds == STATUS_FIFO)
    known = kinds != _REFUSED
    uuid_starts = np.arange(len(data)) * _UUID_CHARS
    uuid_spans = gather(as_bytes(uuids.data), uuid_starts, has_uuid * _UUID_CHARS)
    status_lengths = np.where(has_status, fields[_STATUS_LENGTH], 0)
    status_spans = gather(raw, fields[_STATUS_START], status_lengths)
    columns = [
        numbers(np.where(known, kinds, 0).astype(np.int8), known),
        numbers(np.where(known, fields[_VERSION], 0).astype(np.int8), known),
        queues,
        binary(pa.string(), *uuid_spans, has_uuid),
        binary(pa.string(), *status_spans, has_status),
        numbers(np.where(has_time, fields[_TIME_MS], 0), has_time),
        _counts(values, kinds == COUNTER),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _spans(array: pa.BinaryArray) -> tuple[Ints, Ints, Bytes]:
    """Where each value begins and ends, and the bytes they lie in."""
    if array.type != pa.binary() or array.null_count:
        raise ValueError("keys and values are binary arrays without nulls")
    array.validate(full=True)  # the kernel trusts the offsets
    _, offset_buffer, value_buffer = array.buffers()
    raw = as_bytes(b"" if value_buffer is None else memoryview(value_buffer))
    if offset_buffer is None or len(array) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), raw
    bounds = np.frombuffer(memoryview(offset_buffer), np.int32).astype(np.int64)
    bounds = bounds[array.offset : array.offset + len(array) + 1]
    return bounds[:-1], bounds[1:], raw


def _queues(raw: Bytes, fields: Ints) -> Column:
    """The queue names. A key whose name is not UTF-8 is refused here, and only here."""
    kinds = fields[_KIND]
    has_queue = (kinds == QUEUE) | (kinds == QUEUE_TIME) | (kinds == COUNTER)
    lengths = np.where(has_queue, fields[_QUEUE_LENGTH], 0)
    offsets, values = gather(raw, fields[_QUEUE_START], lengths)
    if is_ascii(values):
        return binary(pa.string(), offsets, values, has_queue)
    names = binary(pa.binary(), offsets, values, has_queue)
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        text = [_text_or_none(name) for name in names.to_pylist()]
        kinds[has_queue & np.array([name is None for name in text])] = _REFUSED
        return pa.array(text, pa.string())


def _text_or_none(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _counts(values: pa.BinaryArray | None, is_counter: Bools) -> Column:
    if values is None:
        return pa.nulls(len(is_counter), pa.int64())
    if len(values) != len(is_counter):
        raise ValueError(f"{len(values)} values for {len(is_counter)} keys")
    starts, ends, raw = _spans(values)
    valid = is_counter & (ends - starts == _COUNT_BYTES)
    counts = np.zeros(len(starts), np.int64)
    _read_counts(raw, starts, valid, counts)
    return numbers(counts, valid)


@kernel
def _read_counts(data: Bytes, starts: Ints, valid: Bools, counts: Ints) -> None:
    for row in range(starts.size):
        if valid[row]:
            count = big_i64(data, starts[row])
            counts[row] = count if count >= 0 else _INT64_MAX


@kernel
def _scan(data: Bytes, starts: Ints, ends: Ints, fields: Ints, uuids: Bytes) -> None:
    for row in range(starts.size):
        if not _parse(data, starts[row], ends[row], fields, uuids, row):
            fields[_KIND, row] = _REFUSED


@kernel
def _parse(data: Bytes, at: int, end: int, fields: Ints, uuids: Bytes, row: int) -> bool:
    prefix = _find_prefix(data, at, end) if end - at <= _MAX_KEY_BYTES else -1
    if prefix < 0:
        return False
    at += _PREFIX_ENDS[prefix] - (_PREFIX_ENDS[prefix - 1] if prefix > 0 else 0)
    kind, version = _PREFIX_MEANINGS[prefix]
    fields[_KIND, row], fields[_VERSION, row] = kind, version
    if kind == QUEUE:
        return _take_queue(at, end, fields, row)
    if kind in (JOB, STATUS):
        return _take_uuid_text(data, at, end, uuids, row)
    if kind == QUEUE_TIME:
        at = _take_time(data, at, end, version, fields, row)
        uuid_at = end - _UUID_CHARS
        if at == 0 or uuid_at - 1 < at or data[uuid_at - 1] != _COLON:
            return False
        has_uuid = _take_uuid_text(data, uuid_at, end, uuids, row)
        return has_uuid and _take_queue(at, uuid_at - 1, fields, row)
    if kind == STATUS_FIFO:
        colon = end - _UUID_BYTES - _MS_BYTES - 1
        if colon < at or data[colon] != _COLON:
            return False
        fields[_TIME_MS, row] = big_i64(data, colon + 1) ^ _INT64_MIN
        _take_uuid_bytes(data, colon + 1 + _MS_BYTES, uuids, row)
        return _take_status(data, at, colon, fields, row)
    colon = end - 1
    while colon >= at and data[colon] != _COLON:
        colon -= 1
    has_queue = _take_queue(at, colon, fields, row)
    return has_queue and _take_status(data, colon + 1, end, fields, row)


@kernel
def _find_prefix(data: Bytes, at: int, end: int) -> int:
    begin = 0
    for prefix in range(_PREFIX_ENDS.size):
        length = _PREFIX_ENDS[prefix] - begin
        same = 0
        while same < length and at + same < end and data[at + same] == _PREFIX_BYTES[begin + same]:
            same += 1
        if same == length:
            return prefix
        begin += length
    return -1


@kernel
def _take_queue(at: int, end: int, fields: Ints, row: int) -> bool:
    fields[_QUEUE_START, row], fields[_QUEUE_LENGTH, row] = at, end - at
    return 1 <= end - at <= _MAX_QUEUE_BYTES


@kernel
def _take_status(data: Bytes, at: int, end: int, fields: Ints, row: int) -> bool:
    """Printable ASCII without space and colon."""
    fields[_STATUS_START, row], fields[_STATUS_LENGTH, row] = at, end - at
    for i in range(at, end):
        if data[i] <= 0x20 or data[i] >= 0x7F or data[i] == _COLON:
            return False
    return 1 <= end - at <= _MAX_STATUS_BYTES


@kernel
def _take_time(data: Bytes, at: int, end: int, version: int, fields: Ints, row: int) -> int:
    """The position behind the time and its colon; 0 if there is none."""
    if version == 2:
        colon = at + _MS_BYTES
        if colon >= end or data[colon] != _COLON:
            return 0
        fields[_TIME_MS, row] = big_i64(data, at) ^ _INT64_MIN
        return colon + 1
    negative = at < end and data[at] == _DASH
    first = at + 1 if negative else at
    value = 0  # counted below zero, where there is room for one more
    for i in range(first, min(first + _MAX_DECIMAL_DIGITS + 1, end)):
        byte = u8(data, i)
        if byte == _COLON:
            digits = i - first
            if digits == 0 or (data[first] == _ZERO and (digits > 1 or negative)):
                return 0
            if not negative and value == _INT64_MIN:
                return 0
            fields[_TIME_MS, row] = value if negative else -value
            return i + 1
        digit = byte - _ZERO
        if digit < 0 or digit > 9 or value < _LEAST_TENTH:
            return 0
        if value == _LEAST_TENTH and digit > _LEAST_DIGIT:
            return 0
        value = value * 10 - digit
    return 0


@kernel
def _take_uuid_text(data: Bytes, at: int, end: int, uuids: Bytes, row: int) -> bool:
    if end - at != _UUID_CHARS:
        return False
    for i in range(_UUID_CHARS):
        byte = data[at + i]
        if i in (8, 13, 18, 23):
            good = byte == _DASH
        else:
            good = _ZERO <= byte <= _NINE or _LOWER_A <= byte < _LOWER_A + 6
        if not good:
            return False
        uuids[row, i] = byte
    return True


@kernel
def _take_uuid_bytes(data: Bytes, at: int, uuids: Bytes, row: int) -> None:
    to = 0
    for i in range(_UUID_BYTES):
        if to in (8, 13, 18, 23):
            uuids[row, to] = _DASH
            to += 1
        byte = u8(data, at + i)
        for nibble in (byte >> 4, byte & 0x0F):
            uuids[row, to] = _ZERO + nibble if nibble < 10 else _LOWER_A + nibble - 10
            to += 1
