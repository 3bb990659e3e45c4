"""The programs in examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_shop_loses_nothing_when_worker_and_server_are_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shop" / "run.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") == 4
    assert (tmp_path / "outbox" / "ann@example.com").read_text() == "Welcome!"
