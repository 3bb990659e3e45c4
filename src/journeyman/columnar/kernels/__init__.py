"""The parts of compiled kernels: reading, writing, hashing, walking; and the compiler.

A kernel is a function over numpy arrays and integers that numba turns into machine code at its
first call, free of the interpreter lock. ``kernel`` is the one place where numba's decorator is
used. The code is kept on disk, so only the first process that ever calls it pays for the
compilation.

numba notices when the kernel's own file changes, but not when a file changes that the kernel calls
into, nor when a constant changes that comes from another module. So the cache directory is named
after a digest of all sources of journeyman.columnar and journeyman.formats: any change starts an
empty one. The directory is made below ``NUMBA_CACHE_DIR`` if that is set, else in
``__pycache__`` beside this file, else in the user's cache directory. Where none of them can be
written (a read-only image without a home) the kernels still work; every process then compiles for
itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

_place_lock = threading.Lock()


def kernel(function: F) -> F:
    """Compile ``function`` with numba at its first call."""
    directory = _cache_directory()
    if directory is not None:
        # While it decorates, numba reads the place from a global. Two threads that import kernels
        # at once take turns: else one empties the place of the other, whose code would then be
        # written to the current directory.
        with _place_lock:
            config = cast(Any, numba.config)
            before, config.CACHE_DIR = config.CACHE_DIR, directory
            try:
                return cast("F", numba.njit(cache=True, nogil=True)(function))
            except RuntimeError:  # the directory cannot be written after all
                pass
            finally:
                config.CACHE_DIR = before  # other users of numba keep their own
    return cast("F", numba.njit(nogil=True)(function))


@functools.cache
def _cache_directory() -> str | None:
    name = f"journeyman-{_digest_of_sources()}"
    for parent in _parents():
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return str(parent / name)
    return None


def _parents() -> Iterator[Path]:
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
    yield Path(__file__).parent / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "journeyman"


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    folders = [resources.files(f"journeyman.{package}") for package in ("columnar", "formats")]
    while folders:
        for entry in sorted(folders.pop().iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith(".py"):
                digest.update(entry.name.encode())
                digest.update(entry.read_bytes())
    return digest.hexdigest()[:16]
