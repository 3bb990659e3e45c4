"""Arrow -> the workq command log in bulk: the way back of columnar.workq; agrees with its codec.

    TIME (15)  SIZE (uvarint)  PAYLOAD: command (1)  job id (16)  fields  CRC-32C (4, big endian)

One row is one record; the header of a segment is not written here. Columns are found by name;
others are left alone. ``kind`` is a word, as the Spark source has it, or a number, as
columnar.workq has it. All that a command needs must be there; what it does not have is not looked
at.

What decoding leaves out cannot come back: zone offsets become UTC, which the log writes as -1, and
numbers are written in their shortest form. So ``encode(decode(log)) == log`` for every log of
ours, and for those of the original that were written under UTC; of others the moments are the same
and the bytes are not. A payload or result of null is written as empty if its size says so too, and
refused otherwise: it was not read.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import NO_CODE, Bools, Inputs, Spans
from journeyman.columnar.kernels import byte_access, kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.columnar.kernels.key_table import crc32c
from journeyman.formats import workq
from journeyman.formats.timed_frame import MAX_RECORD_BYTES
from journeyman.units import NS_PER_S

_UNKNOWN = 9  # stands for all commands that are not known
KINDS = {**{command.word: int(command) for command in workq.Command}, "unknown": _UNKNOWN}

_ADD, _SCHEDULE, _COMPLETE, _FAIL = 1, 2, 3, 4
_START, _TIMEOUT, _PARK, _WAKE = 7, 8, 10, 11
_MAX_PAYLOAD_BYTES = workq.MAX_PAYLOAD_BYTES
_ID_BYTES = 16
_CRC_BYTES = 4
_TIME_BYTES = 15
_TIME_VERSION = 1
_UTC_OFFSET_MIN = -1  # how the original writes UTC
_UNIX_EPOCH_S = 62_135_596_800  # 1970-01-01 in seconds since 0001-01-01
_LOWEST_PRIORITY, _HIGHEST_PRIORITY = -(2**31), 2**31 - 1
_FAIL_HEAD = np.frombuffer(workq.HIDDEN_FAIL, np.uint8)
_TIMEOUT_HEAD = np.frombuffer(workq.HIDDEN_TIMEOUT + b"\0", np.uint8)  # empty result
_START_HEAD = np.frombuffer(workq.HIDDEN_START + b"\0", np.uint8)
_WAKE_HEAD = np.frombuffer(workq.HIDDEN_WAKE + b"\0", np.uint8)
_PARK_HEAD = np.frombuffer(workq.HIDDEN_PARK, np.uint8)
_TAIL = np.frombuffer(workq.HIDDEN_TAIL, np.uint8)

# The numbers of a job, one row of the kernel's table each.
_LOGGED_NS, _TTR_MS, _TTL_MS, _PRIORITY, _ATTEMPTS, _FAILS, _TIME_NS, _CREATED_NS = range(8)
_NUMBERS = ("ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "time_ns", "created_ns")


def encode(batch: pa.RecordBatch, first_row: int = 0) -> memoryview:
    """The records of all rows, end to end. Raises EncodeError naming row and column."""
    inputs = Inputs(batch, first_row)
    kinds = inputs.codes("kind", KINDS)
    inputs.refuse_where(kinds == NO_CODE, "kind", "null")
    inputs.refuse_where(kinds == _UNKNOWN, "kind", "an unknown command cannot be written")
    is_add = (kinds == _ADD) | (kinds == _SCHEDULE)
    is_park = (kinds == _PARK) | (kinds == _WAKE)
    is_finish = (kinds == _COMPLETE) | (kinds == _FAIL) | (kinds == _PARK)
    hidden = inputs.numbers("hidden")
    is_hidden = is_park | (hidden.valid & (hidden.values == 1))
    can_hide = is_park | (kinds == _FAIL) | (kinds == _START) | (kinds == _TIMEOUT)
    inputs.refuse_where(is_hidden & ~can_hide, "hidden", "a record that cannot be hidden")
    ids = inputs.blobs("job_id")
    inputs.refuse_where(ids.lengths != _ID_BYTES, "job_id", f"not {_ID_BYTES} bytes")
    fields, has_time = _fields(inputs, is_add)
    names = inputs.strings("name")
    inputs.refuse_where(is_add & ~names.valid, "name", "null in a job")
    payloads = _blocks(inputs, "payload", is_add)
    results = _blocks(inputs, "result", is_finish)
    block_lengths = np.where(is_add, payloads.lengths, np.where(is_finish, results.lengths, 0))
    sizes = np.empty(inputs.rows, np.int64)
    _measure(kinds, is_hidden, fields, names.lengths, block_lengths, sizes)
    inputs.refuse_where(sizes > MAX_RECORD_BYTES, "name", f"a record over {MAX_RECORD_BYTES} bytes")
    log = np.empty(_framed(sizes), np.uint8)
    end = _write(
        kinds,
        is_hidden,
        sizes,
        fields,
        has_time,
        (ids.data, ids.offsets),
        (names.data, names.offsets),
        (payloads.data, payloads.offsets, payloads.lengths),
        (results.data, results.offsets, results.lengths),
        log,
    )
    assert end == log.size
    return log.data


def _fields(inputs: Inputs, is_add: Bools) -> tuple[Ints, Bools]:
    """All numbers, those of a job 0 where there is none, and which jobs have a time."""
    fields = np.zeros((1 + len(_NUMBERS), inputs.rows), np.int64)
    logged = inputs.numbers("logged_ns")
    inputs.refuse_where(~logged.valid, "logged_ns", "null")
    fields[_LOGGED_NS] = logged.values
    has_time = np.zeros(inputs.rows, np.bool_)
    if not is_add.any():
        return fields, has_time
    for place, name in enumerate(_NUMBERS, 1):
        column = inputs.numbers(name)
        if place == _TIME_NS:
            has_time = is_add & column.valid
        else:
            inputs.refuse_where(is_add & ~column.valid, name, "null in a job")
        fields[place] = np.where(is_add & column.valid, column.values, 0)
        if place in (_TTR_MS, _TTL_MS, _ATTEMPTS, _FAILS):
            inputs.refuse_where(fields[place] < 0, name, "below zero")
    priorities = fields[_PRIORITY]
    is_wide = (priorities < _LOWEST_PRIORITY) | (priorities > _HIGHEST_PRIORITY)
    inputs.refuse_where(is_wide, "priority", "no 32-bit number")
    return fields, has_time


def _blocks(inputs: Inputs, name: str, wanted: Bools) -> Spans:
    """Payloads or results; null is empty, unless its size says that it was left unread."""
    blocks = inputs.blobs(name)
    if not blocks.valid.all():
        size = inputs.numbers(f"{name}_size")
        unread = wanted & ~blocks.valid & size.valid & (size.values != 0)
        reason = f"null, but {name}_size is not 0: was the log read without its payloads?"
        inputs.refuse_where(unread, name, reason)
    too_long = wanted & (blocks.lengths > _MAX_PAYLOAD_BYTES)
    inputs.refuse_where(too_long, name, f"over {_MAX_PAYLOAD_BYTES} bytes")
    return blocks


@kernel
def _folded(priority: int) -> int:
    """Zigzag: 0, -1, 1, -2 ... -> 0, 1, 2, 3 ..."""
    return priority << 1 ^ priority >> 63


@kernel
def _head_of(kind: int) -> Bytes:
    """How a hidden record of this kind begins; up to its block, if it has one."""
    if kind == _FAIL:
        return _FAIL_HEAD
    if kind == _START:
        return _START_HEAD
    if kind == _PARK:
        return _PARK_HEAD
    return _WAKE_HEAD if kind == _WAKE else _TIMEOUT_HEAD


@kernel
def _measure(
    kinds: Ints, is_hidden: Bools, fields: Ints, name_lengths: Ints, blocks: Ints, sizes: Ints
) -> None:
    """SIZE of every record."""
    for row in range(kinds.size):
        size = 1 + _ID_BYTES
        if kinds[row] <= _FAIL or kinds[row] == _PARK:
            size += byte_access.uvarint_bytes(blocks[row]) + blocks[row]
        if is_hidden[row]:
            size += _TAIL.size + _head_of(kinds[row]).size
        if kinds[row] <= _SCHEDULE:
            size += (
                byte_access.uvarint_bytes(name_lengths[row]) + name_lengths[row] + 2 * _TIME_BYTES
            )
            for field in (_TTR_MS, _TTL_MS, _ATTEMPTS, _FAILS):
                size += byte_access.uvarint_bytes(fields[field, row])
            size += byte_access.uvarint_bytes(_folded(fields[_PRIORITY, row]))
        sizes[row] = size


@kernel
def _framed(sizes: Ints) -> int:
    total = 0
    for size in sizes:
        total += _TIME_BYTES + byte_access.uvarint_bytes(size) + size + _CRC_BYTES
    return total


@kernel
def _put_time(log: Bytes, at: int, unix_ns: int) -> int:
    seconds = unix_ns // NS_PER_S
    nanos = unix_ns - seconds * NS_PER_S
    return _put_time_fields(log, at, seconds + _UNIX_EPOCH_S, nanos)


@kernel
def _put_time_fields(log: Bytes, at: int, seconds: int, nanos: int) -> int:
    at = byte_access.put_u8(log, at, _TIME_VERSION)
    at = byte_access.put_big_64(log, at, seconds)
    at = byte_access.put_big_32(log, at, nanos)
    return byte_access.put_big_16(log, at, _UTC_OFFSET_MIN)


@kernel
def _put_added(
    log: Bytes,
    at: int,
    fields: Ints,
    row: int,
    has_time: bool,
    name: tuple[Bytes, Ints],
    payload: tuple[Bytes, Ints, Ints],
) -> int:
    texts, text_offsets = name
    length = text_offsets[row + 1] - text_offsets[row]
    at = byte_access.put_uvarint(log, at, length)
    at = byte_access.copy_span(texts, text_offsets[row], length, log, at)
    at = byte_access.put_uvarint(log, at, fields[_TTR_MS, row])
    at = byte_access.put_uvarint(log, at, fields[_TTL_MS, row])
    at = byte_access.put_uvarint(log, at, _folded(fields[_PRIORITY, row]))
    at = byte_access.put_uvarint(log, at, fields[_ATTEMPTS, row])
    at = byte_access.put_uvarint(log, at, fields[_FAILS, row])
    at = _put_block(log, at, row, payload)
    due = at + _TIME_BYTES
    if has_time:
        _put_time(log, at, fields[_TIME_NS, row])
    else:
        _put_time_fields(log, at, 0, 0)
    return _put_time(log, due, fields[_CREATED_NS, row])


@kernel
def _put_block(log: Bytes, at: int, row: int, block: tuple[Bytes, Ints, Ints]) -> int:
    data, offsets, lengths = block
    at = byte_access.put_uvarint(log, at, lengths[row])
    return byte_access.copy_span(data, offsets[row], lengths[row], log, at)


@kernel
def _put_hidden(log: Bytes, at: int, kind: int, row: int, results: tuple[Bytes, Ints, Ints]) -> int:
    """The fields of an add that stands for a record of this kind."""
    head = _head_of(kind)
    at = byte_access.copy_span(head, 0, head.size, log, at)
    if kind in (_FAIL, _PARK):
        at = _put_block(log, at, row, results)
    return byte_access.copy_span(_TAIL, 0, _TAIL.size, log, at)


@kernel
def _write(
    kinds: Ints,
    is_hidden: Bools,
    sizes: Ints,
    fields: Ints,
    has_time: Bools,
    ids: tuple[Bytes, Ints],
    names: tuple[Bytes, Ints],
    payloads: tuple[Bytes, Ints, Ints],
    results: tuple[Bytes, Ints, Ints],
    log: Bytes,
) -> int:
    id_bytes, id_offsets = ids
    at = 0
    for row in range(kinds.size):
        start = at
        at = _put_time(log, at, fields[_LOGGED_NS, row])
        at = byte_access.put_uvarint(log, at, sizes[row])
        at = byte_access.put_u8(log, at, _ADD if is_hidden[row] else kinds[row])
        at = byte_access.copy_span(id_bytes, id_offsets[row], _ID_BYTES, log, at)
        if kinds[row] <= _SCHEDULE:
            at = _put_added(log, at, fields, row, has_time[row], names, payloads)
        elif is_hidden[row]:
            at = _put_hidden(log, at, kinds[row], row, results)
        elif kinds[row] <= _FAIL:
            at = _put_block(log, at, row, results)
        at = byte_access.put_big_32(log, at, crc32c(log, start, at))
    return at
