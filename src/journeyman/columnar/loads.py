"""Whole numbers out of bytes, for the kernels of the other modules.

Nothing here looks at the end of the buffer: every caller has checked that the bytes are there.
The bytes are read one by one, which asks nothing of their alignment and can be run under numba's
bounds checks; the compiler joins them into single loads by itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journeyman.columnar._jit import kernel

__all__ = [
    "Bytes",
    "big_i64",
    "big_u16",
    "big_u32",
    "little_i32",
    "little_i64",
    "little_u32",
    "u8",
]

Bytes = npt.NDArray[np.uint8]


@kernel
def u8(data: Bytes, at: int) -> int:
    return int(np.int64(data[at]))


@kernel
def big_u16(data: Bytes, at: int) -> int:
    return u8(data, at) << 8 | u8(data, at + 1)


@kernel
def big_u32(data: Bytes, at: int) -> int:
    return big_u16(data, at) << 16 | big_u16(data, at + 2)


@kernel
def big_i64(data: Bytes, at: int) -> int:
    return big_u32(data, at) << 32 | big_u32(data, at + 4)


@kernel
def little_u32(data: Bytes, at: int) -> int:
    low = u8(data, at) | u8(data, at + 1) << 8
    return low | u8(data, at + 2) << 16 | u8(data, at + 3) << 24


@kernel
def little_i32(data: Bytes, at: int) -> int:
    value = little_u32(data, at)
    return value - (value >> 31 << 32)


@kernel
def little_i64(data: Bytes, at: int) -> int:
    return little_u32(data, at + 4) << 32 | little_u32(data, at)
