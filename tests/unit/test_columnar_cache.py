"""Machine code on disk never outlives the source it was made from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import journeyman

READ_ONE_RECORD = """
from journeyman.columnar.workq import decode
from journeyman.formats.workq import CODEC, Command, JobEvent
from journeyman.formats.workq.records import Instant
log = CODEC.header + CODEC.encode(JobEvent(Instant(1, 0), bytes(16), Command.DELETE))
try:
    print(decode.decode(log).batch.num_rows)
except AssertionError as error:  # the kernel refused what the codec takes
    print(error)
"""


def what_the_scan_says(package: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONE_RECORD],
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
    assert what_the_scan_says(package) == "1"

    # With another polynomial no checksum fits any more: the scan, in another module, must see it.
    called = package / "columnar" / "kernels" / "hashing.py"
    called.write_text(called.read_text().replace("0x82F63B78", "0xEDB88320"))
    assert "kernel and codec disagree" in what_the_scan_says(package)
