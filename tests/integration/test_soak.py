"""``journeyman soak`` kills its server, loses nothing, and says so when something is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from journeyman.cli import soak


def test_a_short_soak_with_kills_loses_nothing():
    options = ["--hours", "0.004", "--kill-every", "5", "--rate", "50"]
    done = CliRunner().invoke(soak.soak, options, standalone_mode=False)
    assert done.exception is None, done.output
    assert (done.return_value, "nothing lost, no drift" in done.output) == (0, True), done.output
    assert ", 0 kills" not in done.output


def test_numbers_know_what_another_set_lacks():
    here, there = soak.NumberSet(), soak.NumberSet()
    for number in (1, 8, 9, 100_000):
        here.add(number)
        here.add(number)
    there.add(8)
    assert here.count == 4
    assert here.missing_from(there) == [1, 9, 100_000]
    assert there.missing_from(here) == []


def test_lost_jobs_and_items_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class NoSchedule:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> NoSchedule:
            return self

        def __exit__(self, *_: object) -> None: ...
        def get(self, _identifier: str) -> None:
            return None

    monkeypatch.setattr("journeyman.cli.soak.client.Schedule", NoSchedule)
    record = soak.Record()
    record.added.add(3)
    record.put.add(5)
    record.scheduled[7] = (1007, 2007)
    record.scheduled[8] = (0, 8)  # never acknowledged: it need not be there
    site = soak.Site(str(tmp_path), tmp_path / "messages")
    assert soak._losses(site, record) == [
        "lost 1 jobs of the work queue, the first of them number 3",
        "lost 1 items of the fan-out queue, the first of them number 5",
        "job soak.7 of the schedule is at 0: not (1007, 2007)",
    ]


def test_figures_that_grow_are_a_drift():
    steady = [soak.ServerSample(50.0, 40, 0.001)] * 8
    assert soak._drifts(steady) == []
    assert soak._drifts(steady[:3]) == []
    leaking = [soak.ServerSample(50.0 + 20 * n, 40 + 10 * n, 0.001) for n in range(8)]
    assert soak._drifts(leaking) == [
        "memory_mb grew from 60 to 180",
        "open_files grew from 45 to 105",
    ]
