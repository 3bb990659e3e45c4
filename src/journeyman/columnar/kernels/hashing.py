"""Keys, for the kernels that look them up: their hash, their first bytes, whether two are equal.

The hash is fixed, the same in every process: its upper bits also say which bucket a key belongs to.

CRC-32C (Castagnoli) for kernels, eight bytes a step.

``TABLES[k][b]`` is what byte ``b`` does to the CRC when ``k`` more bytes follow it within the
same step (slicing-by-8). The tables are made at import, from the polynomial, and are built into
the compiled code. The processor's own CRC instruction would be faster, but it is another one on
every architecture; the tables are the same everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes, any_i64, u8

POLYNOMIAL = 0x82F63B78  # reflected
_STEP = 8


def _make_tables() -> npt.NDArray[np.uint32]:
    tables = np.zeros((_STEP, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, _STEP):
        before = tables[k - 1]
        tables[k] = before >> 8 ^ tables[0][before & 0xFF]
    return tables


TABLES = _make_tables()


@kernel
def crc32c(data: Bytes, at: int, end: int) -> int:
    """The CRC of ``data[at:end]``, which must lie inside the data."""
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= _STEP:
        crc = (
            TABLES[7, data[at] ^ (crc & 0xFF)]
            ^ TABLES[6, data[at + 1] ^ (crc >> 8 & 0xFF)]
            ^ TABLES[5, data[at + 2] ^ (crc >> 16 & 0xFF)]
            ^ TABLES[4, data[at + 3] ^ (crc >> 24)]
            ^ TABLES[3, data[at + 4]]
            ^ TABLES[2, data[at + 5]]
            ^ TABLES[1, data[at + 6]]
            ^ TABLES[0, data[at + 7]]
        )
        at += _STEP
    for i in range(at, end):
        crc = TABLES[0, (data[i] ^ crc) & 0xFF] ^ np.uint32(crc >> 8)
    return int(np.int64(crc ^ np.uint32(0xFFFFFFFF)))


INLINE_BYTES = 16  # what tables keep of a key where it is looked for

_NONE = np.uint64(0)
_ONE = np.uint64(1)

# The constants of MurmurHash3 (x64), which is in the public domain.
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_FIVE, _MIX = np.uint64(5), np.uint64(0x52DCE729)
_R27, _R31, _R33, _R37 = np.uint64(27), np.uint64(31), np.uint64(33), np.uint64(37)


@kernel
def hash_of(data: Bytes, start: int, end: int) -> np.uint64:
    value = np.uint64(end - start)
    while start + 8 <= end:
        word = np.uint64(any_i64(data, start)) * _C1
        value ^= (word << _R31 | word >> _R33) * _C2
        value = (value << _R27 | value >> _R37) * _FIVE + _MIX
        start += 8
    word = _some_bytes(data, start, end - start) * _C1
    value ^= (word << _R31 | word >> _R33) * _C2
    value = (value ^ value >> _R33) * _F1
    value = (value ^ value >> _R33) * _F2
    return value ^ value >> _R33


@kernel
def first_bytes(data: Bytes, start: int, length: int) -> tuple[np.uint64, np.uint64]:
    """The first 16 bytes of a key as two words, zeros behind its end."""
    if length >= INLINE_BYTES:
        return np.uint64(any_i64(data, start)), np.uint64(any_i64(data, start + 8))
    if length >= 8:
        return np.uint64(any_i64(data, start)), _some_bytes(data, start + 8, length - 8)
    return _some_bytes(data, start, length), _NONE


@kernel
def is_same(left: Bytes, at: int, right: Bytes, start: int, length: int) -> bool:
    for i in range(length):  # noqa: SIM110 - numba has no generators here
        if left[at + i] != right[start + i]:
            return False
    return True


@kernel
def _some_bytes(data: Bytes, start: int, length: int) -> np.uint64:
    """Less than eight bytes as one word, the first the lowest; 0 where there are none."""
    if start + 8 <= data.size:
        # Read too far, which is faster than byte by byte, and cut off what was not asked for.
        return np.uint64(any_i64(data, start)) & ((_ONE << np.uint64(8 * length)) - _ONE)
    word = _NONE
    for i in range(length):
        word |= np.uint64(u8(data, start + i)) << np.uint64(8 * i)
    return word
