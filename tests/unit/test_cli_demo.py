"""The demo tells the truth, begins anew, and touches nothing that is not its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


def run_demo(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DEMO, directory], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_every_claim_of_the_demo_holds(tmp_path):
    earlier = tmp_path / "demo"
    earlier.mkdir()
    (earlier / ".made-by-the-demo").touch()
    (earlier / "stale").touch()

    done = run_demo(earlier)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "NOT TRUE" not in done.stdout
    assert done.stdout.count("[ok]") >= 28
    for command in ("serve", "generate", "dump", "verify", "repair", "compact", "clean"):
        assert f"\n$ journeyman {command} " in done.stdout
    assert not (earlier / "stale").exists()


def test_the_demo_leaves_a_directory_alone_that_it_has_not_made(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")

    done = run_demo(tmp_path)

    assert done.returncode == 2
    assert (tmp_path / "thesis.txt").exists()
