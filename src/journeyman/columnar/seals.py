"""The seals of a log checked in bulk: the fast twin of ``block_at`` in journeyman.formats.seals.

    run          from a seal over all blocks that fit
    next_seal    from entry to entry, by sizes alone, to the next boundary at which a seal stands
    is_proven    whether all that is sealed in a whole file fits

What a run stops at is judged by journeyman.logs.sealing; here nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from journeyman.columnar.arrays import as_bytes
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, big_u32, little_i32, little_u32, u8
from journeyman.columnar.kernels.key_table import crc32c, crc32c_after
from journeyman.formats import kestrel as kestrel_codec
from journeyman.formats.framing import Buffer, Codec
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.formats.seals import is_seal_here
from journeyman.formats.ztick import codec as ztick_codec
from journeyman.formats.ztick.layout import LENGTH, MAX_ENTRY_BYTES

# ----------------------------------------
# Which entries of a log are seals, for kernels. See journeyman.formats.seals.

ZTICK_SEAL_BYTES = ztick_codec.SEAL_BYTES
KESTREL_SEAL_BYTES = kestrel_codec.SEAL_BYTES
_ZTICK_MARK = np.frombuffer(ztick_codec.SEAL_MARK, np.uint8)
_KESTREL_MARK = np.frombuffer(kestrel_codec.SEAL_MARK, np.uint8)
_ZTICK_FIELDS = _ZTICK_MARK.size
_KESTREL_FIELDS = _KESTREL_MARK.size
_ZTICK_LEAST = ztick_codec.SEALS.least_bytes
_KESTREL_LEAST = kestrel_codec.SEALS.least_bytes
_OPENING, _BLOCK, _CLOSING = ord("o"), ord("b"), ord("c")
_LENGTH_BYTES = LENGTH.size
_FIRST_DATA_COMMAND = 8
_NO_NUMBER = -1


@kernel
def is_ztick_seal(data: Bytes, at: int) -> bool:
    """True if what is marked as a seal stands at ``at``."""
    return data[at + 3] == _ZTICK_MARK[3] and _is_marked(data, at, _ZTICK_MARK, ZTICK_SEAL_BYTES)


@kernel
def is_kestrel_seal(data: Bytes, at: int) -> bool:
    """Return whether a seal of a kestrel file begins here."""
    return _is_marked(data, at, _KESTREL_MARK, KESTREL_SEAL_BYTES)


@kernel
def _is_marked(data: Bytes, at: int, mark: Bytes, seal_bytes: int) -> bool:
    if data.size - at < seal_bytes:
        return False
    for i in range(mark.size):  # noqa: SIM110 - a kernel
        if data[at + i] != mark[i]:
            return False
    return True


@kernel
def _is_cut(
    data: Bytes, at: int, is_end: bool, mark: Bytes, seal_bytes: int, crc_bytes: int, least: int
) -> bool:
    """See ``is_cut_seal`` in journeyman.formats.seals."""
    if data.size - at < seal_bytes:
        if not is_end:
            return False
        least = 1
        crc_bytes = 0
    end = min(data.size, at + seal_bytes)
    for i in range(min(least, end - at)):
        if data[at + i] != mark[i]:
            return False
    while end > at and data[end - 1] == 0:
        end -= 1
    if not least <= end - at <= seal_bytes - crc_bytes:
        return False
    for i in range(least, min(mark.size, end - at)):  # noqa: SIM110 - a kernel
        if data[at + i] != mark[i]:
            return False
    return True


class SealKernels(NamedTuple):
    """The kernels of one dialect. Offsets count from the beginning of the data; ``base`` is that of
    the data in the file."""

    # Takes data, offset, stop, base; returns where the blocks end that begin before stop and
    # fit, and the stamp of the last one; a negative one if it closes.
    run: Callable[[Buffer, int, int, int], tuple[int, int]]
    # Takes data, offset, base, whether the file ends with the data; returns the first seal from
    # there on, or the place where sizes lead no further.
    next_seal: Callable[[Buffer, int, int, bool], int]


def _run_ztick(data: Buffer, offset: int, stop: int, base: int) -> tuple[int, int]:
    return _ztick_run(as_bytes(data), offset, stop, base)


def _run_kestrel(data: Buffer, offset: int, stop: int, base: int) -> tuple[int, int]:
    return _kestrel_run(as_bytes(data), offset, stop, base)


def _next_ztick(data: Buffer, offset: int, base: int, is_end: bool) -> int:
    return _ztick_next(as_bytes(data), offset, base, is_end)


def _next_kestrel(data: Buffer, offset: int, base: int, is_end: bool) -> int:
    return _kestrel_next(as_bytes(data), offset, base, is_end)


KERNELS: Final = {
    "ztick": SealKernels(_run_ztick, _next_ztick),
    "kestrel": SealKernels(_run_kestrel, _next_kestrel),
}


def is_proven(codec: Codec[Any], data: Buffer) -> bool:
    """True if every announced block of a whole file fits, and nothing of an open stretch is left
    without an announcement."""
    kernels, format_ = KERNELS[codec.name], codec.seals
    assert format_ is not None
    offset, stamp = codec.check_header(data), _NO_NUMBER
    while offset < len(data):
        end, last = kernels.run(data, offset, len(data), 0)
        if end > offset:
            offset, stamp = end, last
            continue
        if stamp >= 0 or is_seal_here(format_, data, offset):
            return False
        at = kernels.next_seal(data, offset, 0, True)
        if at == offset:
            return True  # as far as seals go: what is wrong here the decoder says
        offset = at
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
def _is_kind(kind: int) -> bool:
    return kind in (_BLOCK, _CLOSING, _OPENING)


@kernel
def _ztick_fits(data: Bytes, at: int, base: int) -> bool:
    """True if a seal stands at ``at`` whose fields fit its place; its mark may be damaged."""
    fields = at + _ZTICK_FIELDS
    if data.size - at < ZTICK_SEAL_BYTES or not _is_kind(u8(data, fields)):
        return False
    crc = _hex_number(data, fields + 25, 8)
    return crc != _NO_NUMBER and crc == crc32c_after(crc32c(data, fields, fields + 25), base + at)


@kernel
def _ztick_run(data: Bytes, begin: int, stop: int, base: int) -> tuple[int, int]:
    stamp = _NO_NUMBER
    while begin < stop and is_ztick_seal(data, begin) and _ztick_fits(data, begin, base):
        fields = begin + _ZTICK_FIELDS
        block = begin + ZTICK_SEAL_BYTES
        length = _hex_number(data, fields + 9, 8)
        if length > data.size - block:
            break
        if _hex_number(data, fields + 17, 8) != crc32c(data, block, block + length):
            break
        closes = u8(data, fields) == _CLOSING
        stamp = _NO_NUMBER if closes else _hex_number(data, fields + 1, 8)
        begin = block + length
    return begin, stamp


@kernel
def _ztick_next(data: Bytes, at: int, base: int, is_end: bool) -> int:
    while at < data.size:
        if data.size - at >= ZTICK_SEAL_BYTES and (
            is_ztick_seal(data, at) or _ztick_fits(data, at, base)
        ):
            return at
        if _is_cut(data, at, is_end, _ZTICK_MARK, ZTICK_SEAL_BYTES, 8, _ZTICK_LEAST):
            return at
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
def _kestrel_fits(data: Bytes, at: int, base: int) -> bool:
    """True if a seal stands at ``at`` whose fields fit its place; its mark may be damaged."""
    fields = at + _KESTREL_FIELDS
    if data.size - at < KESTREL_SEAL_BYTES or not _is_kind(u8(data, fields)):
        return False
    crc = crc32c_after(crc32c(data, fields, fields + 13), base + at)
    return little_u32(data, fields + 13) == crc


@kernel
def _kestrel_run(data: Bytes, begin: int, stop: int, base: int) -> tuple[int, int]:
    stamp = _NO_NUMBER
    while begin < stop and is_kestrel_seal(data, begin) and _kestrel_fits(data, begin, base):
        fields = begin + _KESTREL_FIELDS
        block = begin + KESTREL_SEAL_BYTES
        length = little_u32(data, fields + 5)
        if length > data.size - block:
            break
        if little_u32(data, fields + 9) != crc32c(data, block, block + length):
            break
        stamp = _NO_NUMBER if u8(data, fields) == _CLOSING else little_u32(data, fields + 1)
        begin = block + length
    return begin, stamp


@kernel
def _kestrel_next(data: Bytes, at: int, base: int, is_end: bool) -> int:
    while at < data.size:
        if is_kestrel_seal(data, at) or _kestrel_fits(data, at, base):
            return at
        if _is_cut(data, at, is_end, _KESTREL_MARK, KESTREL_SEAL_BYTES, 4, _KESTREL_LEAST):
            return at
        end = _kestrel_frame_end(data, at)
        if end == 0:
            return at
        at = end
    return at
