"""Two servers on one simulated PostgreSQL: one of them answers, and nothing is lost by a change."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from journeyman.disk import guard
from tests.simulation import SimulationFailed, SimulationPlan, SimulationReport
from tests.simulation.pair import TROUBLES, plan_of_pair, simulate_pair

SHORT = plan_of_pair(1_000)
SEEDS = range(10)


def simulate_all(plan: SimulationPlan = SHORT) -> None:
    for seed in SEEDS:
        simulate_pair(seed, plan)


@cache
def short_story(seed: int) -> SimulationReport:
    return simulate_pair(seed, SHORT)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_invented_whoever_is_active(seed: int):
    report = short_story(seed)
    assert report.operations >= SHORT.operations
    assert report.takeovers >= 2
    assert report.checked > 0 or report.troubles["failover"]


def test_a_seed_tells_the_same_story_again():
    plan = plan_of_pair(300, 4)
    first, again = simulate_pair(3, plan), simulate_pair(3, plan)
    assert (first.trace, first.operations) == (again.trace, again.operations)
    assert first.trace != simulate_pair(4, plan).trace


def test_a_full_database_ends_no_server():
    plan = plan_of_pair(500, 8, ("full",))
    takeovers = {simulate_pair(seed, plan).takeovers for seed in range(3)}
    assert takeovers == {2}  # at the start, and after the kill in the end


def test_a_lease_that_is_too_long_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "LEASE_S", 30.0)
    with pytest.raises(SimulationFailed, match=r"at once|not confirmed"):
        simulate_all()


def test_a_server_that_does_not_wait_for_the_last_lease_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(guard.Guard, "may_open", True)
    with pytest.raises(SimulationFailed):
        simulate_all(plan_of_pair(1_000, 8, ("cut", "cut", "stop")))


def test_every_trouble_comes():
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += short_story(seed).troubles
    assert len(set(seen) & set(TROUBLES)) >= len(set(TROUBLES)) - 2
