"""The kernel of the workq command log: walks the records, checks each CRC, takes them apart.

    TIME (15)  SIZE (uvarint)  PAYLOAD: command (1)  job id (16)  fields  CRC-32C (4, big endian)

Everything is checked in front of its use against the end of the frame, and the frame against the
end of the data; a record that fails any check is left to the codec to judge.

What does not fit a signed 64-bit column is clamped to its nearest value: numbers of 2^63 and more,
and moments before 1677-09-21 or after 2262-04-11. Both are readable, if odd; neither is a fault.
"""

from __future__ import annotations

import numpy as np

from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints, big_i64, big_u32, u8
from journeyman.columnar.kernels.key_table import crc32c
from journeyman.formats import workq
from journeyman.formats.timed_frame import MAX_RECORD_BYTES
from journeyman.units import NS_PER_S

# The fields that the kernel writes for each record. A block is a job's payload or a worker's
# result.
KIND, OFFSET, LENGTH, LOGGED_NS, ID_START, BLOCK_START, BLOCK_SIZE = range(7)
NAME_START, NAME_LENGTH, TTR_MS, TTL_MS, PRIORITY, ATTEMPTS, FAILS = range(7, 14)
HAS_TIME, TIME_NS, CREATED_NS, HIDDEN = range(14, 18)
FIELDS = 18

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
SMALLEST_RECORD_BYTES = 21  # the type of a newer writer's record alone: 15 + 1 + 1 + 4

_MAX_PAYLOAD_BYTES = workq.MAX_PAYLOAD_BYTES
_ID_BYTES = 16
_CRC_BYTES = 4
_TIME_BYTES = 15
_TIME_VERSION = 1
_UNIX_EPOCH_S = 62_135_596_800  # 1970-01-01 in seconds since 0001-01-01
# The first and the last moment that nanoseconds since 1970 reach in 64 bits.
_FIRST_S, _FIRST_NANOS = divmod(INT64_MIN, NS_PER_S)
_LAST_S, _LAST_NANOS = divmod(INT64_MAX, NS_PER_S)
_FIRST_S += _UNIX_EPOCH_S
_LAST_S += _UNIX_EPOCH_S
_LOWEST_PRIORITY, _HIGHEST_PRIORITY = -(2**31), 2**31 - 1
_TENTH_GROUP = 63  # the shift of a varint's last possible group, which may hold one bit

_ADD, _SCHEDULE, _COMPLETE, _FAIL = 1, 2, 3, 4
_LAST_COMMAND = 8
UNKNOWN_KIND = 9  # stands for all commands of newer writers
_START, _TIMEOUT, _PARK, _WAKE = 7, 8, 10, 11
_FAIL_HEAD = np.frombuffer(workq.HIDDEN_FAIL, np.uint8)
_TIMEOUT_HEAD = np.frombuffer(workq.HIDDEN_TIMEOUT, np.uint8)
_START_HEAD = np.frombuffer(workq.HIDDEN_START, np.uint8)
_PARK_HEAD = np.frombuffer(workq.HIDDEN_PARK, np.uint8)
_WAKE_HEAD = np.frombuffer(workq.HIDDEN_WAKE, np.uint8)
_TAIL = np.frombuffer(workq.HIDDEN_TAIL, np.uint8)


@kernel
def _uvarint(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """The number at ``at``, at most INT64_MAX, and the position behind it, or 0 for a fault."""
    value, shift = 0, 0
    while at < stop:
        byte = u8(data, at)
        at += 1
        if shift == _TENTH_GROUP:
            if byte > 1:
                return 0, 0
            return (INT64_MAX if byte == 1 else value), at
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, 0


@kernel
def _has_good_time(data: Bytes, at: int) -> bool:
    return u8(data, at) == _TIME_VERSION and big_u32(data, at + 9) < NS_PER_S


@kernel
def _unix_ns(data: Bytes, at: int) -> int:
    """Nanoseconds since 1970 of the 15 bytes at ``at``, clamped to 64 bits."""
    seconds, nanos = big_i64(data, at + 1), big_u32(data, at + 9)
    if seconds < _FIRST_S or (seconds == _FIRST_S and nanos < _FIRST_NANOS):
        return INT64_MIN
    if seconds > _LAST_S or (seconds == _LAST_S and nanos > _LAST_NANOS):
        return INT64_MAX
    # One second up and down again: the very first second does not fit by itself.
    up = seconds + 1 - _UNIX_EPOCH_S
    if up <= 0:
        return up * NS_PER_S - (NS_PER_S - nanos)
    return (up - 1) * NS_PER_S + nanos


@kernel
def _frame(data: Bytes, position: int) -> tuple[int, int]:
    """Where the payload begins and ends; 0, 0 where SIZE cannot be followed."""
    if u8(data, position) != _TIME_VERSION:
        return 0, 0
    size, start = _uvarint(data, position + _TIME_BYTES, data.size)
    if start == 0 or size > MAX_RECORD_BYTES or size > data.size - start - _CRC_BYTES:
        return 0, 0
    return start, start + size


@kernel
def hop(data: Bytes, position: int, target: int) -> int:
    """The first record boundary at or after ``target``, by SIZE alone; see workq.hop."""
    while position < min(target, data.size):
        _, payload_end = _frame(data, position)
        if payload_end == 0:
            break
        position = payload_end + _CRC_BYTES
    return position


@kernel
def _read_added(data: Bytes, at: int, end: int, fields: Ints, row: int) -> bool:
    """The fields of an add or schedule between ``at`` and ``end``; whether they are good."""
    length, at = _uvarint(data, at, end)
    if at == 0 or length > end - at:
        return False
    fields[NAME_START, row], fields[NAME_LENGTH, row] = at, length
    at += length
    for field in range(TTR_MS, FAILS + 1):
        value, at = _uvarint(data, at, end)
        if at == 0:
            return False
        if field == PRIORITY:  # zigzag: 0, -1, 1, -2 ...
            value = (value >> 1) ^ -(value & 1)
            if value < _LOWEST_PRIORITY or value > _HIGHEST_PRIORITY:
                return False
        fields[field, row] = value
    size, at = _uvarint(data, at, end)
    if at == 0 or size > _MAX_PAYLOAD_BYTES or size != end - at - 2 * _TIME_BYTES:
        return False
    fields[BLOCK_START, row], fields[BLOCK_SIZE, row] = at, size
    at += size
    if not _has_good_time(data, at) or not _has_good_time(data, at + _TIME_BYTES):
        return False
    is_none = big_i64(data, at + 1) == 0 and big_u32(data, at + 9) == 0
    fields[HAS_TIME, row] = 0 if is_none else 1
    fields[TIME_NS, row] = 0 if is_none else _unix_ns(data, at)
    fields[CREATED_NS, row] = _unix_ns(data, at + _TIME_BYTES)
    return True


@kernel
def _holds(data: Bytes, at: int, end: int, part: Bytes) -> bool:
    """Return whether these bytes stand at ``at``, in front of ``end``."""
    if end - at < part.size:
        return False
    place = 0
    while place < part.size and u8(data, at + place) == part[place]:
        place += 1
    return place == part.size


@kernel
def _unhidden(data: Bytes, at: int, end: int, size: int) -> int:
    """Return what the fields of this good add, with a payload of ``size``, stand for."""
    if not _holds(data, end - _TAIL.size, end, _TAIL):
        return _ADD
    if _holds(data, at, end, _FAIL_HEAD):
        return _FAIL
    if _holds(data, at, end, _PARK_HEAD):
        return _PARK
    if size == 0 and _holds(data, at, end, _START_HEAD):
        return _START
    if size == 0 and _holds(data, at, end, _WAKE_HEAD):
        return _WAKE
    if size == 0 and _holds(data, at, end, _TIMEOUT_HEAD):
        return _TIMEOUT
    return _ADD


@kernel
def scan_records(
    data: Bytes, position: int, stop: int, fields: Ints, is_proven: bool
) -> tuple[int, int, bool]:
    """Fill ``fields``; (records, the offset behind them, whether a limit of the chunk was met).

    ``is_proven``: the CRCs of these records have been checked before.
    """
    rows = 0
    while position < data.size:
        if rows == fields.shape[1] or position >= stop:
            return rows, position, True
        payload, end = _frame(data, position)
        if end == 0:
            break
        if not is_proven and crc32c(data, position, end) != big_u32(data, end):
            break
        at = payload + 1 + _ID_BYTES
        if payload == end or not _has_good_time(data, position):
            break
        kind = u8(data, payload)
        if at > end and 0 < kind <= _LAST_COMMAND:
            break
        for field in range(ID_START, FIELDS):
            fields[field, rows] = 0
        if kind in (_ADD, _SCHEDULE):
            if not _read_added(data, at, end, fields, rows):
                break
            if kind == _ADD:
                kind = _unhidden(data, at, end, fields[BLOCK_SIZE, rows])
            if kind > _SCHEDULE:
                for field in range(NAME_START, FIELDS):
                    fields[field, rows] = 0
                fields[HIDDEN, rows] = 1
        elif kind in (_COMPLETE, _FAIL):
            size, at = _uvarint(data, at, end)
            if at == 0 or size > _MAX_PAYLOAD_BYTES or size != end - at:
                break
            fields[BLOCK_START, rows], fields[BLOCK_SIZE, rows] = at, size
        elif kind == 0 or kind > _LAST_COMMAND:
            kind = UNKNOWN_KIND
        elif at != end:
            break
        fields[KIND, rows] = kind
        fields[OFFSET, rows] = position
        fields[LENGTH, rows] = end + _CRC_BYTES - position
        fields[LOGGED_NS, rows] = _unix_ns(data, position)
        fields[ID_START, rows] = payload + 1
        rows += 1
        position = end + _CRC_BYTES
    return rows, position, False
