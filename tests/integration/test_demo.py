"""``journeyman demo``: a history that verifies clean, the same for the same seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from journeyman.cli.demo.workloads import WORKLOADS
from journeyman.formats.workq import CODEC, JobAdded


def journeyman(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "journeyman", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def payloads(directory: Path, queue: str) -> list[bytes]:
    """Those of the jobs of a queue, oldest first."""
    [segment] = (directory / "workq").glob("*.log")
    data, found = segment.read_bytes(), []
    offset = CODEC.check_header(data)
    while (entry := CODEC.decode(data, offset)) is not None:
        if isinstance(entry.record, JobAdded) and entry.record.name == queue:
            found.append(entry.record.payload)
        offset = entry.end
    return found


def test_the_history_is_whole_and_the_same_for_the_same_seed(tmp_path):
    for name, seed in (("one", "7"), ("same", "7"), ("other", "8")):
        words = ("demo", str(tmp_path / name), "--hours", "2", "--seed", seed, "--no-serve")
        made = journeyman(*words)
        assert made.returncode == 0, made.stderr
    verified = journeyman("verify", str(tmp_path / "one"))
    assert verified.returncode == 0, verified.stdout
    # The last jobs differ, because the hour of the day says how many there are.
    one, same, other = (payloads(tmp_path / name, "mail")[:20] for name in ("one", "same", "other"))
    assert one == same
    assert one != other
    for each in WORKLOADS:
        calls = map(json.loads, payloads(tmp_path / "one", each.queue))
        assert {call["task"] for call in calls} == {each.task}


def test_a_directory_of_others_is_left_alone(tmp_path):
    (tmp_path / "schedule.log").write_bytes(b"mine")
    refused = journeyman("demo", str(tmp_path), "--no-serve")
    assert refused.returncode == 2
    assert "was not made by the demo" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["schedule.log"]
