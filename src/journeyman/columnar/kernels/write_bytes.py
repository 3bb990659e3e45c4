"""Whole numbers into bytes, for the kernels that encode: the counterpart of ``loads``.

Each function writes at a place and answers with the place behind it. Nothing here looks at the end
of the buffer: every caller has counted the bytes before it made the buffer. The bytes are written
one by one, which asks nothing of their alignment and can be run under numba's bounds checks; the
compiler joins them into single stores by itself.
"""

from __future__ import annotations

import numpy as np

from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes


@kernel
def put_u8(data: Bytes, at: int, value: int) -> int:
    data[at] = np.uint8(value & 0xFF)
    return at + 1


@kernel
def put_big_16(data: Bytes, at: int, value: int) -> int:
    data[at] = np.uint8(value >> 8 & 0xFF)
    data[at + 1] = np.uint8(value & 0xFF)
    return at + 2


@kernel
def put_big_32(data: Bytes, at: int, value: int) -> int:
    put_big_16(data, at, value >> 16)
    return put_big_16(data, at + 2, value)


@kernel
def put_big_64(data: Bytes, at: int, value: int) -> int:
    put_big_32(data, at, value >> 32)
    return put_big_32(data, at + 4, value)


@kernel
def put_little_32(data: Bytes, at: int, value: int) -> int:
    data[at] = np.uint8(value & 0xFF)
    data[at + 1] = np.uint8(value >> 8 & 0xFF)
    data[at + 2] = np.uint8(value >> 16 & 0xFF)
    data[at + 3] = np.uint8(value >> 24 & 0xFF)
    return at + 4


@kernel
def put_little_64(data: Bytes, at: int, value: int) -> int:
    put_little_32(data, at, value)
    return put_little_32(data, at + 4, value >> 32)


@kernel
def uvarint_bytes(value: int) -> int:
    """How many bytes ``put_uvarint`` needs for a number that is not negative."""
    count = 1
    while value >= 0x80:
        value >>= 7
        count += 1
    return count


@kernel
def put_uvarint(data: Bytes, at: int, value: int) -> int:
    """The shortest form, as formats.varint writes it, of a number that is not negative."""
    while value >= 0x80:
        data[at] = np.uint8(value & 0x7F | 0x80)
        value >>= 7
        at += 1
    data[at] = np.uint8(value)
    return at + 1
