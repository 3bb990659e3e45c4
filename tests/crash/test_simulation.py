"""Whole servers in virtual time: what goes wrong is chosen by a seed, and nothing is lost by it."""

from __future__ import annotations

import pytest

from journeyman.servers.core.group_commit import Batch, GroupCommit
from journeyman.testing.simulated_files import FileNode
from journeyman.testing.simulation import SimulationFailed, SimulationPlan, simulate
from journeyman.testing.simulation.clients import ClientPace

SHORT = SimulationPlan(operations=1_500, lives=6)
SEEDS = range(1, 9)


def simulate_some() -> None:
    for seed in SEEDS:
        simulate(seed, SHORT)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_invented_whatever_happens(seed: int):
    report = simulate(seed, SHORT)
    assert report.operations >= SHORT.operations
    assert report.checked > 0
    assert report.occurrences > 0
    assert report.ends.total() > 0


def test_a_seed_tells_the_same_story_again():
    plan = SimulationPlan(operations=500, lives=3)
    first, again = simulate(3, plan), simulate(3, plan)
    assert (first.trace, first.operations) == (again.trace, again.operations)
    assert first.trace != simulate(4, plan).trace


def test_hours_pass_in_seconds():
    report = simulate(5, SimulationPlan(operations=400, lives=3, pace=ClientPace(5.0, 1800.0, 0.2)))
    assert report.simulated_s > 600
    assert report.occurrences >= 2 * report.simulated_s // 60


def test_a_disk_that_syncs_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FileNode, "sync", lambda _: None)
    with pytest.raises(SimulationFailed):
        simulate_some()


def test_answers_before_they_are_durable_are_found_out(monkeypatch: pytest.MonkeyPatch):
    decide = GroupCommit._decide_next

    def answer_early(self: GroupCommit) -> Batch | None:
        batch = decide(self)
        if batch is not None and self._writing is batch:
            answers, batch.answers = batch.answers, {}
            for client, its_answers in answers.items():
                client.answered(its_answers)
        return batch

    monkeypatch.setattr(GroupCommit, "_decide_next", answer_early)
    # Only a power cut between an answer and its sync tells: a few stories have one.
    with pytest.raises(SimulationFailed):
        simulate_some()
