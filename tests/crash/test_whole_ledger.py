"""A server with all its services is killed under load; every answer that it gave holds."""

from __future__ import annotations

from pathlib import Path

from tests.support.crash.whole_cycles import KILLS, WholeCycles


def test_kills_lose_nothing_of_any_service(tmp_path: Path):
    tally = WholeCycles(tmp_path, seed=1).run(len(KILLS) + 1)
    assert tally.kills.total() == len(KILLS) + 1
    assert tally.checked > 100
    assert tally.occurrences > 5
