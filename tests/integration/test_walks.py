"""A command passes few modules from socket to reply, and a start from main to the first reply: as
many as docs/architecture.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALKS = {"set": 16, "add": 18, "put": 18, "start": 101}
TRIES = 3  # a timer of the server that fires meanwhile is recorded too


def modules_of_walks() -> dict[str, int]:
    command = [sys.executable, str(ROOT / "scripts" / "walk.py"), *WALKS]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    return {
        name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) +\d+$", said, re.MULTILINE)
    }


def test_walks_are_no_longer_than_they_were():
    longer: dict[str, int] = {}
    for _ in range(TRIES):
        found = modules_of_walks()
        assert found.keys() == WALKS.keys()
        longer = {name: count for name, count in found.items() if count > WALKS[name]}
        if not longer:
            break
    assert longer == {}


def test_the_page_on_architecture_says_as_much():
    page = (ROOT / "docs" / "architecture.md").read_text()
    said = re.findall(r"^    (set|add|put|start) +(\d+) +\d+$", page, re.MULTILINE)
    assert {name: int(count) for name, count in said} == WALKS
