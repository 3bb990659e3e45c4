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
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from journeyman.columnar.kernels.jit import kernel

Bytes = npt.NDArray[np.uint8]

_get_or_insert_function: Any = cgutils.get_or_insert_function


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


def _emit_prefetch(typing: Any, source: Any, at: Any) -> Any:  # noqa: ARG001
    """Have the line of memory fetched that element ``at`` of a contiguous array is in."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_struct, at = arguments
        data = context.make_array(signature.args[0])(context, builder, source_struct).data
        byte_pointer = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        name = "llvm.prefetch.p0i8"
        shape = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = _get_or_insert_function(builder.module, shape, name)
        place = builder.bitcast(builder.gep(data, [at]), byte_pointer)
        read, keep, data_cache = number(0), number(3), number(1)
        builder.call(function, [place, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(source, types.intp), generate


# Called in kernels without their first argument, which numba fills in.
any_i64: Any = intrinsic(_emit_load)
prefetch: Any = intrinsic(_emit_prefetch)
