"""Machine code on disk never outlives the source it was made from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numba
import pytest

import journeyman
from journeyman.columnar import kernels

Function: TypeAlias = Callable[[], None]

HASH_ONE_KEY = """
import numpy as np
from journeyman.columnar.kernels import key_table
offsets, values, hashes = np.array([0, 3]), np.frombuffer(b"key", np.uint8), np.zeros(1, np.uint64)
key_table._hash_keys(offsets, values, hashes)
print(hashes[0])
"""


def hash_of_a_key(package: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", HASH_ONE_KEY],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_kernel_is_compiled_again_when_a_module_it_calls_changes(tmp_path):
    source = Path(journeyman.__file__).parent
    package = tmp_path / "journeyman"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__", "spark"))
    before = hash_of_a_key(package)
    assert hash_of_a_key(package) == before

    # The kernel that is called is in another module than the one that calls it.
    called = package / "columnar" / "kernels" / "byte_access.py"
    text = called.read_text()
    assert text.count("int(np.int64(data[at]))") == 1
    called.write_text(text.replace("int(np.int64(data[at]))", "int(np.int64(data[at])) + 1"))
    assert hash_of_a_key(package) != before


def test_threads_that_import_kernels_at_once_use_the_cache_directory(monkeypatch):
    """numba reads the place of its cache from a global while it decorates; an empty one would put
    the code into the current directory."""
    is_second_inside, is_first_done = threading.Event(), threading.Event()
    places: dict[str, str] = {}

    def decorator(**options: bool) -> Callable[[Function], Function]:
        def decorate(function: Function) -> Function:
            if function is first_kernel:
                second.start()
                # The second thread cannot come here until the first one is done.
                is_second_inside.wait(0.5)
            else:
                is_second_inside.set()
                assert is_first_done.wait(60)
            places[function.__name__] = numba.config.CACHE_DIR
            return function

        return decorate

    def first_kernel() -> None: ...

    def second_kernel() -> None: ...

    second = threading.Thread(target=kernels.kernel, args=(second_kernel,))
    monkeypatch.setattr(numba, "njit", decorator)
    before = numba.config.CACHE_DIR
    kernels.kernel(first_kernel)
    is_first_done.set()
    second.join()
    directory = kernels._cache_directory()
    assert places == {"first_kernel": directory, "second_kernel": directory}
    assert before == numba.config.CACHE_DIR
