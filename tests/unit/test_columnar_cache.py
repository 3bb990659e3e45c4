"""Machine code on disk never outlives the source it was made from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import journeyman

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
