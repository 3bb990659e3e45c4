"""Scattered spans of bytes -> one contiguous run, at the speed of memcpy.

numba copies a slice byte by byte, with checks for overlap; the one intrinsic here lets the
compiler emit memcpy, which is several times faster. It is also the only access to memory in this
room that numba's bounds checks cannot see, so its two callers check every span themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes

Ints = npt.NDArray[np.signedinteger[Any]]


def _emit_memcpy(typing: Any, target: Any, at: Any, source: Any, start: Any, count: Any) -> Any:  # noqa: ARG001
    """``target[at:at + count] = source[start:start + count]``, unchecked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_struct, at, source_struct, start, count = arguments
        target_type, _, source_type, _, _ = signature.args
        target_data = context.make_array(target_type)(context, builder, target_struct).data
        source_data = context.make_array(source_type)(context, builder, source_struct).data
        to, of = builder.gep(target_data, [at]), builder.gep(source_data, [start])
        cgutils.raw_memcpy(builder, to, of, count, 1)  # type: ignore[no-untyped-call]
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
def copy_span(data: Bytes, start: int, length: int, values: Bytes, at: int) -> int:
    """Copy ``data[start:start + length]`` to ``values`` from ``at`` on; the place behind it."""
    if start < 0 or at < 0 or length < 0 or length > data.size - start or length > values.size - at:
        raise IndexError
    _memcpy(values, at, data, start, length)
    return at + length
