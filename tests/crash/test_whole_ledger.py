"""A server with all its services is killed under load; every answer that it gave holds."""

from __future__ import annotations

from pathlib import Path

from tests.support.crash.whole_cycles import WholeCycles

KILLS = 8  # `make proof` has hundreds


def test_kills_lose_nothing_of_any_service(tmp_path: Path):
    tally = WholeCycles(tmp_path, seed=1, load_s=0.2, http_every=7).run(KILLS)
    assert tally.kills.total() == KILLS
    assert tally.checked > 100
    assert tally.over_http > 0
    assert tally.occurrences > 5
