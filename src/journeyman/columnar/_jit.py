"""The one place where numba's decorator is used: typed, cached, free of the interpreter lock.

A kernel is a function over numpy arrays and integers that numba turns into machine code at its
first call. The code is kept on disk, so only the first process that ever calls it pays for the
compilation. numba looks for a place by itself: ``NUMBA_CACHE_DIR`` if set, else ``__pycache__``
beside the source, else the user's cache directory. Where none of them can be written (a read-only
image without a home) the kernels still work; then every process compiles for itself.

numba notices a change of the kernel's own file, not of files it calls into. So kernels call only
functions of their own module and of ``loads``, ``hashing``, ``ztick_plain``, ``seal_marks`` and
``crc32c``, which have no reason to change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile ``function`` with numba at its first call."""
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no directory that it may write
        return cast("F", numba.njit(nogil=True)(function))
