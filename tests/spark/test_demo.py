"""The demo tells the truth, begins again, and touches nothing that is not its own.

Its commands of the pipeline run in the session of this lane, not in a Java each: test_submit.py
runs them as processes. All others, the servers, and what is killed are processes as for a user.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.cli_commands import run

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


def demo_of(directory: Path) -> Any:
    """The module of the demo, as if it were started with this directory."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(DEMO), str(directory)])
        spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("planned_once")
def test_every_claim_of_the_demo_holds(tmp_path, monkeypatch, capfd):
    earlier = tmp_path / "demo"
    earlier.mkdir()
    (earlier / ".made-by-the-demo").touch()
    (earlier / "stale").touch()
    demo = demo_of(earlier)
    run_as_process = demo.run

    def run_here(words: list[str]) -> CompletedProcess[str]:
        if words[0] != "pipeline":
            done: CompletedProcess[str] = run_as_process(words)
            return done
        # The Java of this lane was started in another directory.
        result = run(*(tmp_path / word if word.startswith("demo/") else word for word in words))
        return CompletedProcess(words, result.exit_code, result.stdout, result.stderr)

    monkeypatch.setattr(demo, "run", run_here)

    assert demo.main() == 0

    said = capfd.readouterr()
    assert said.err == ""
    assert "NOT TRUE" not in said.out
    assert said.out.count("[ok]") >= 28
    for command in ("serve", "generate", "dump", "verify", "repair", "compact", "clean"):
        assert f"\n$ journeyman {command} " in said.out
    assert "\n$ journeyman pipeline report " in said.out
    assert not (earlier / "stale").exists()


def test_the_demo_leaves_a_directory_alone_that_it_has_not_made(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")

    done = subprocess.run([sys.executable, DEMO, tmp_path], capture_output=True, check=False)

    assert done.returncode == 2
    assert (tmp_path / "thesis.txt").exists()
