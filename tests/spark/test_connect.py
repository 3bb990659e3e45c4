"""The pipeline over Spark Connect: sources, a replay, files, a sink, a compaction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from journeyman.folds import ztick as fold
from journeyman.formats import ztick
from journeyman.formats.framing import iter_entries
from tests.support.cli_commands import run

ROOT = Path(__file__).parents[2]
LIBRARIES = Path(sys.prefix) / "connect"  # the dependency group of this name; see the Makefile


def test_all_of_it_works_for_a_client_without_java(tmp_path):
    log = tmp_path / "logfile"
    made = run("generate", "ztick", log, "--records", "2000", "--ids", "100", "--quiet")
    assert made.exit_code == 0, made.output
    records = [entry.record for entry in iter_entries(ztick.CODEC, log.read_bytes())]
    state = fold.schedule(fold.replay(records))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.connect_program", log, tmp_path / "out"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(LIBRARIES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {
        "jobs": sorted(state.jobs),
        "rows": {"jobs": len(state.jobs), "rules": len(state.rules)},
        "written": len(state.jobs),
        "compacted": len(state.jobs) + len(state.rules),
        "error": None,
    }
