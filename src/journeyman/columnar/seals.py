"""The seals of a log checked in bulk: the fast twin of ``seal_after`` in journeyman.formats.seals.

    run          from the beginning of a sealed block over all blocks whose seals fit
    next_seal    from entry to entry, by sizes alone, to the next one that is marked as a seal
    is_proven    whether all that is sealed in a whole file fits

What a run stops at is judged by journeyman.logs.sealing; here nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from journeyman.columnar.arrays import as_bytes
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import (
    Bytes,
    big_u32,
    little_i32,
    little_i64,
    little_u32,
    u8,
)
from journeyman.columnar.kernels.key_table import crc32c
from journeyman.formats import kestrel as kestrel_codec
from journeyman.formats.framing import Buffer, Codec
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.formats.seals import MAX_BLOCK_BYTES, fits
from journeyman.formats.ztick import codec as ztick_codec
from journeyman.formats.ztick.layout import HEAD, LENGTH, MAX_ENTRY_BYTES

# ----------------------------------------
# Which entries of a log are seals, for kernels. See journeyman.formats.seals.

ZTICK_SEAL_BYTES = ztick_codec.SEAL_BYTES
KESTREL_SEAL_BYTES = kestrel_codec.SEAL_BYTES
_ZTICK_MARK = np.frombuffer(ztick_codec.SEAL_MARK, np.uint8)
_KESTREL_MARK = np.frombuffer(kestrel_codec.SEAL_MARK, np.uint8)
_HEAD_BYTES = HEAD.size


@kernel
def is_ztick_seal(data: Bytes, at: int) -> bool:
    """Whether a whole seal, or what is marked as one, stands at ``at``."""
    if data.size - at < ZTICK_SEAL_BYTES or data[at + 3] != _ZTICK_MARK[3]:
        return False
    same = 0
    while same < _ZTICK_MARK.size and data[at + same] == _ZTICK_MARK[same]:
        same += 1
    if same <= _HEAD_BYTES:
        return False
    if same < _ZTICK_MARK.size:
        return _is_zero(data, at + same, at + ZTICK_SEAL_BYTES)
    for i in range(same, ZTICK_SEAL_BYTES):  # noqa: SIM110 - a kernel
        if data[at + i] >= 0x80:
            return False
    return True


@kernel
def is_kestrel_seal(data: Bytes, at: int) -> bool:
    """The same for a kestrel file."""
    if data.size - at < KESTREL_SEAL_BYTES or data[at] != _KESTREL_MARK[0]:
        return False
    same = 1
    while same < _KESTREL_MARK.size and data[at + same] == _KESTREL_MARK[same]:
        same += 1
    return same == _KESTREL_MARK.size or _is_zero(data, at + same, at + KESTREL_SEAL_BYTES)


@kernel
def _is_zero(data: Bytes, at: int, end: int) -> bool:
    for i in range(at, end):  # noqa: SIM110 - a kernel
        if data[i] != 0:
            return False
    return True


_OPENING, _CLOSING = ord("o"), ord("c")
_ZTICK_FIELDS = len(ztick_codec.SEAL_MARK)
_KESTREL_FIELDS = len(kestrel_codec.SEAL_MARK)
_LENGTH_BYTES = LENGTH.size
_FIRST_DATA_COMMAND = 8
_NO_NUMBER = -1


class SealKernels(NamedTuple):
    """What one dialect has. Offsets count from the beginning of the data, ``base`` is that of the
    data in the file."""

    # data, offset, stop, stamp, base -> where the blocks end that begin before stop and fit, and
    # whether what follows is sealed as well
    run: Callable[[Buffer, int, int, int, int], tuple[int, bool]]
    # data, offset -> the first seal from there on; the place where sizes lead no further if none
    next_seal: Callable[[Buffer, int], int]


def _run_ztick(data: Buffer, offset: int, stop: int, stamp: int, base: int) -> tuple[int, bool]:
    return _ztick_run(as_bytes(data), offset, stop, stamp, base)


def _run_kestrel(data: Buffer, offset: int, stop: int, stamp: int, base: int) -> tuple[int, bool]:
    return _kestrel_run(as_bytes(data), offset, stop, stamp, base)


def _next_ztick(data: Buffer, offset: int) -> int:
    return _ztick_next(as_bytes(data), offset)


def _next_kestrel(data: Buffer, offset: int) -> int:
    return _kestrel_next(as_bytes(data), offset)


KERNELS: Final = {
    "ztick": SealKernels(_run_ztick, _next_ztick),
    "kestrel": SealKernels(_run_kestrel, _next_kestrel),
}


def is_proven(codec: Codec[Any], data: Buffer) -> bool:
    """Whether every sealed block of a whole file fits, and none is left without its seal."""
    kernels, format_ = KERNELS[codec.name], codec.seals
    assert format_ is not None
    offset, stamp = codec.check_header(data), None
    while offset < len(data):
        if stamp is not None:
            end, is_open = kernels.run(data, offset, len(data), stamp, 0)
            if end == offset or (is_open and end < len(data)):
                return False
            offset, stamp = end, stamp if is_open else None
            continue
        at = kernels.next_seal(data, offset)
        seal = format_.parse(data, at) if at < len(data) else None
        if seal is None:
            return True  # as far as seals go: what is wrong here the decoder says
        if seal.opens and fits(format_, seal, data, at):
            stamp = seal.stamp
        offset = at + format_.size
    return True


@kernel
def _ztick_frame_end(data: Bytes, at: int) -> int:
    if data.size - at < _LENGTH_BYTES:
        return 0
    length = big_u32(data, at)
    if length == 0 or length > MAX_ENTRY_BYTES or length > data.size - at - _LENGTH_BYTES:
        return 0
    return at + _LENGTH_BYTES + length


@kernel
def _hex_number(data: Bytes, at: int, digits: int) -> int:
    """The number that lower-case digits spell; -1 if they are none."""
    number = 0
    for i in range(digits):
        byte = u8(data, at + i)
        if 48 <= byte <= 57:
            number = number << 4 | (byte - 48)
        elif 97 <= byte <= 102:
            number = number << 4 | (byte - 87)
        else:
            return _NO_NUMBER
    return number


@kernel
def _is_kind(kind: int, block_bytes: int) -> bool:
    return kind == ord("b") or kind == _CLOSING or (kind == _OPENING and block_bytes == 0)


@kernel
def _ztick_fits(data: Bytes, begin: int, at: int, stamp: int, base: int) -> bool:
    fields = at + _ZTICK_FIELDS
    return (
        _is_kind(u8(data, fields), at - begin)
        and _hex_number(data, fields + 1, 8) == stamp
        and _hex_number(data, fields + 9, 12) == base + begin
        and _hex_number(data, fields + 21, 8) == crc32c(data, begin, fields + 21)
    )


@kernel
def _ztick_run(data: Bytes, begin: int, stop: int, stamp: int, base: int) -> tuple[int, bool]:
    while begin < stop:
        at = begin
        while not is_ztick_seal(data, at):
            at = _ztick_frame_end(data, at)
            if at == 0 or at - begin > MAX_BLOCK_BYTES:
                return begin, True
        if not _ztick_fits(data, begin, at, stamp, base):
            return begin, True
        begin = at + ZTICK_SEAL_BYTES
        if u8(data, at + _ZTICK_FIELDS) == _CLOSING:
            return begin, False
    return begin, True


@kernel
def _ztick_next(data: Bytes, at: int) -> int:
    while not is_ztick_seal(data, at):
        end = _ztick_frame_end(data, at)
        if end == 0:
            return at
        at = end
    return at


@kernel
def _kestrel_frame_end(data: Bytes, at: int) -> int:
    if at >= data.size:
        return 0
    byte = u8(data, at)
    words = byte & 0x0F
    end = at + 1 + 4 * words
    if byte == 0 or end > data.size:
        return 0
    if byte >> 4 >= _FIRST_DATA_COMMAND:
        if words == 0:
            return 0
        size = little_i32(data, at + 1)
        if size < 0 or size > MAX_DATA_BYTES or size > data.size - end:
            return 0
        end += size
    return end


@kernel
def _kestrel_fits(data: Bytes, begin: int, at: int, stamp: int, base: int) -> bool:
    fields = at + _KESTREL_FIELDS
    return (
        _is_kind(u8(data, fields), at - begin)
        and little_u32(data, fields + 1) == stamp
        and little_i64(data, fields + 5) == base + begin
        and little_u32(data, fields + 13) == crc32c(data, begin, fields + 13)
    )


@kernel
def _kestrel_run(data: Bytes, begin: int, stop: int, stamp: int, base: int) -> tuple[int, bool]:
    while begin < stop:
        at = begin
        while not is_kestrel_seal(data, at):
            at = _kestrel_frame_end(data, at)
            if at == 0 or at - begin > MAX_BLOCK_BYTES:
                return begin, True
        if not _kestrel_fits(data, begin, at, stamp, base):
            return begin, True
        begin = at + KESTREL_SEAL_BYTES
        if u8(data, at + _KESTREL_FIELDS) == _CLOSING:
            return begin, False
    return begin, True


@kernel
def _kestrel_next(data: Bytes, at: int) -> int:
    while not is_kestrel_seal(data, at):
        end = _kestrel_frame_end(data, at)
        if end == 0:
            return at
        at = end
    return at
