"""Whole numbers out of bytes, for the kernels of the other modules.

Nothing here looks at the end of the buffer: every caller has checked that the bytes are there.
The bytes are read one by one, which asks nothing of their alignment and can be run under numba's
bounds checks; mostly the compiler joins them into single loads by itself. Where it does not and it
matters, there is ``any_i64``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from journeyman.columnar.kernels import kernel

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


def _emit_load(typing: Any, source: Any, at: Any) -> Any:  # noqa: ARG001
    """Eight bytes from ``source[at]`` on as one number, in the processor's order, unchecked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_struct, at = arguments
        data = context.make_array(signature.args[0])(context, builder, source_struct).data
        word = context.get_value_type(types.int64).as_pointer()
        return builder.load(builder.bitcast(builder.gep(data, [at]), word), align=1)

    return types.int64(source, types.intp), generate


# Called in kernels without its first argument, which numba fills in.
any_i64: Any = intrinsic(_emit_load)


# ----------------------------------------
# Whole numbers into bytes, for the kernels that encode: the counterpart of ``read_bytes``.
#
# Each function writes at a place and answers with the place behind it. Nothing here looks at the
# end of the buffer: every caller has counted the bytes before it made the buffer. The bytes are
# written one by one, which asks nothing of their alignment and can be run under numba's bounds
# checks; the compiler joins them into single stores by itself.
#
# Scattered spans of bytes -> one contiguous run, at the speed of memcpy.
#
# numba copies a slice byte by byte, with checks for overlap; the one intrinsic here lets the
# compiler emit memcpy, which is several times faster. It is also the only access to memory in
# these kernels that numba's bounds checks cannot see, so its two callers check every span
# themselves.

Ints = npt.NDArray[np.signedinteger[Any]]


def _emit_memcpy(typing: Any, target: Any, at: Any, source: Any, start: Any, count: Any) -> Any:  # noqa: ARG001
    """``target[at:at + count] = source[start:start + count]``, unchecked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_struct, at, source_struct, start, count = arguments
        target_type, _, source_type, _, _ = signature.args
        target_data = context.make_array(target_type)(context, builder, target_struct).data
        source_data = context.make_array(source_type)(context, builder, source_struct).data
        to, of = builder.gep(target_data, [at]), builder.gep(source_data, [start])
        cgutils.raw_memcpy(builder, to, of, count, 1)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), generate


# Called in kernels without its first argument, which numba fills in.
_memcpy: Any = intrinsic(_emit_memcpy)


@kernel
def copy_spans(data: Bytes, starts: Ints, lengths: Ints, offsets: Ints, values: Bytes) -> None:
    """Copy ``data[start:start + length]`` of each row into ``values``, one behind the other.

    ``offsets``, one longer than the rows, receives where each of them begins and the last ends.
    """
    at = 0
    offsets[0] = 0
    for row in range(starts.size):
        start, length = starts[row], lengths[row]
        if start < 0 or length < 0 or length > data.size - start or length > values.size - at:
            raise IndexError
        _memcpy(values, at, data, start, length)
        at += length
        offsets[row + 1] = at


@kernel
def copy_spans_behind(
    heads: Bytes,
    head_bytes: int,
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    offsets: Ints,
    values: Bytes,
) -> None:
    """Copy spans, and in front of each the next ``head_bytes`` of ``heads``."""
    at = 0
    offsets[0] = 0
    for row in range(starts.size):
        at = copy_span(heads, row * head_bytes, head_bytes, values, at)
        at = copy_span(data, starts[row], lengths[row], values, at)
        offsets[row + 1] = at


@kernel
def copy_span(data: Bytes, start: int, length: int, values: Bytes, at: int) -> int:
    """Copy ``data[start:start + length]`` to ``values`` from ``at`` on; the place behind it."""
    if start < 0 or at < 0 or length < 0 or length > data.size - start or length > values.size - at:
        raise IndexError
    _memcpy(values, at, data, start, length)
    return at + length


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
    """The shortest form, as formats.timed_frame writes it, of a number that is not negative."""
    while value >= 0x80:
        data[at] = np.uint8(value & 0x7F | 0x80)
        value >>= 7
        at += 1
    data[at] = np.uint8(value)
    return at + 1
