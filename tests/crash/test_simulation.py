"""Whole servers in virtual time: what goes wrong is chosen by a seed, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict

import pytest
from msgspec.structs import replace

from journeyman.engines.workq import adding, engine, ledger_entries, lifecycle, packed, steps
from journeyman.engines.workq.fairness import FairSet
from journeyman.engines.workq.state import WorkqState
from journeyman.engines.workq.step_table import StepValue
from journeyman.protocols.workq.commands import Fail, Park
from journeyman.protocols.workq.replies import Reply
from journeyman.servers.core.contract import Batch
from journeyman.servers.core.group_commit import GroupCommit
from journeyman.servers.core.writes import WriteInFlight
from journeyman.storage.index import IndexChanges, JobLife
from journeyman.units import NS_PER_S
from tests.simulation import SimulationFailed, SimulationPlan, simulate
from tests.simulation.clients import ClientPace
from tests.simulation.scenario import Story
from tests.simulation.world import Loop, World
from tests.support.simulated_files import FileNode

SHORT = SimulationPlan(operations=1_500, lives=6)
BURSTS = SimulationPlan(operations=85_000, lives=6, pace=ClientPace(burst=500))
STALLED = SimulationPlan(operations=1_000, lives=6, troubles=("stall",))
SEEDS = range(10, 18)
STORIES = [*((seed, SHORT) for seed in SEEDS), *((seed, BURSTS) for seed in range(6))]


def simulate_some(plan: SimulationPlan = SHORT) -> None:
    for seed in SEEDS:
        simulate(seed, plan)


@pytest.mark.parametrize(("seed", "plan"), STORIES)
def test_nothing_is_lost_or_invented_whatever_happens(seed: int, plan: SimulationPlan):
    report = simulate(seed, plan)
    assert report.operations >= plan.operations
    assert report.checked > 0
    assert report.occurrences > 0 or report.rotten_bits > 0
    assert report.ends.total() > 0


def test_disks_stall_for_longer_than_the_deadline():
    assert sum(simulate(seed, STALLED).times_stuck for seed in SEEDS) > 10


@pytest.mark.parametrize("on_loop", [True, False])
def test_server_that_calls_itself_ready_while_it_is_stuck_is_found_out(
    on_loop: bool, monkeypatch: pytest.MonkeyPatch
):
    begin = WriteInFlight.begin

    def forget_some(write: WriteInFlight, *, holds_loop: bool = False) -> None:
        if holds_loop is not on_loop:
            begin(write, holds_loop=holds_loop)

    monkeypatch.setattr(WriteInFlight, "begin", forget_some)
    with pytest.raises(SimulationFailed, match=r"ready while stuck|no stand-in for a loop"):
        simulate_some(STALLED)


def test_server_that_stays_not_ready_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WriteInFlight, "end", lambda _: None)
    with pytest.raises(SimulationFailed, match="not ready, although nothing is stuck"):
        simulate_some()


def test_start_that_forgets_steps_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "load", lambda state, loaded: None)
    with pytest.raises(SimulationFailed, match="steps/"):
        simulate_some()


def test_start_that_changes_events_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger_entries, "read_event", lambda _: StepValue(b"?", 0))
    with pytest.raises(SimulationFailed, match="event/"):
        simulate_some()


def test_park_that_is_forgotten_is_found_out(monkeypatch: pytest.MonkeyPatch):
    """The job is leased again at once, and its wait has no step."""
    monkeypatch.setitem(engine._DECISIONS, Park, give_back)
    with pytest.raises(SimulationFailed, match="park"):
        simulate_some()


def give_back(state: WorkqState, command: Park, _client: object) -> Reply:
    job_id, attempt = command.job_id, command.attempt
    refused = steps.refusal(state, job_id, attempt)
    return refused or lifecycle.fail(state, Fail(job_id, b"", None, attempt, is_release=True), None)


def test_give_back_that_counts_as_a_failure_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        lifecycle, "_release", lambda state, command, _: fail_instead(state, command)
    )
    with pytest.raises(SimulationFailed, match="nothing explains"):
        simulate_some()


def is_unfinished(entry: packed.Entry | None) -> bool:
    return entry is not None and packed.opened(entry)[1] in packed.UNFINISHED


def leave_deleted(index: IndexChanges, job_id: bytes, life: JobLife, as_of_ns: int) -> None:
    if not life.is_deleted:
        PUT(index, job_id, life, as_of_ns)


PUT = IndexChanges.put
MISTAKES = {
    "turns never end": (FairSet, "take_turn", lambda *_: None, "turns of"),
    "a job that was begun is replaced": (
        *(adding, "_is_unstarted", is_unfinished),
        "nothing explains .*move",
    ),
    "deleted jobs stay in the index": (IndexChanges, "put", leave_deleted, "the index has"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_the_work_queue_are_found_out(mistake: str, monkeypatch: pytest.MonkeyPatch):
    where, name, wrong, words = MISTAKES[mistake]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(SimulationFailed, match=words):
        simulate_some()


def fail_instead(state: WorkqState, command: Fail) -> Reply:
    return lifecycle.fail(state, replace(command, is_release=False), None)


def test_frozen_process_does_nothing_and_goes_on_afterwards():
    world, steps = World(1), list[tuple[str, float]]()
    frozen, free = world.loop(), world.loop()

    def step(loop: Loop, name: str) -> None:
        steps.append((name, loop.time()))

    for loop, name in ((frozen, "frozen"), (free, "free")):
        for after_s in (1, 2, 9):
            loop.call_later(after_s, step, loop, name)
    frozen.frozen_until_ns = 5 * NS_PER_S
    world.run(world.loop(), asyncio.sleep(10))
    assert [at for name, at in steps if name == "free"] == [1, 2, 9]
    assert [at for name, at in steps if name == "frozen"] == [5, 5, 9]


def test_a_seed_tells_the_same_story_again():
    plan = SimulationPlan(operations=500, lives=3)
    first, again = simulate(3, plan), simulate(3, plan)
    assert (first.trace, first.operations) == (again.trace, again.operations)
    assert first.trace != simulate(4, plan).trace


def test_what_a_dead_process_would_do_in_the_end_is_not_done():
    """Nor is it left to the garbage collector, which would complain (an error in these tests)."""
    world, steps = World(1), []
    loop = world.loop()

    async def begin() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            try:
                steps.append("one service ends")
                await asyncio.sleep(10)
                steps.append("it has ended")
            finally:
                steps.append("another one ends")
                await asyncio.sleep(10)
                steps.append("all have ended")

    async def serve() -> None:
        await begin()

    loop.create_task(serve())
    loop.call_later(1, loop.die)
    world.run(world.loop(), asyncio.sleep(5))
    gc.collect()
    assert steps == ["one service ends", "another one ends"]


def test_no_timer_rings_early():
    world, rung = World(1), list[float]()
    loop, when = world.loop(), 69.67050618100001  # as nanoseconds, this float is rounded down
    loop.call_at(when, lambda: rung.append(loop.time()))
    world.run_until(lambda: bool(rung))
    assert rung[0] >= when


def test_hours_pass_in_seconds():
    report = simulate(5, SimulationPlan(operations=400, lives=3, pace=ClientPace(5.0, 1800.0, 0.2)))
    assert report.simulated_s > 600
    assert report.occurrences >= 2 * report.simulated_s // 60


def test_stories_differ_in_their_settings():
    stories = [Story(seed, SHORT) for seed in range(40)]
    settings = [story.machine.configuration.settings for story in stories]
    assert {each.http.enabled for each in settings} == {True, False}


def test_bits_that_rot_are_found_out_if_they_are_taken_for_data(monkeypatch: pytest.MonkeyPatch):
    """The same stories, but a register shows what was never set: rot excuses no invention."""
    story = Story(3, SimulationPlan(operations=200, lives=2))
    story.run()
    story._rotten = frozenset({"schedule"})
    (shown, *_) = [
        each
        for each in story._history.operations
        if each.key.startswith("schedule/") and isinstance(each.answer, int)
    ]
    story._check()
    monkeypatch.setattr(shown, "answer", 1)
    with pytest.raises(AssertionError, match="never set so"):
        story._check()


def test_a_disk_that_syncs_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FileNode, "sync", lambda _: None)
    with pytest.raises(SimulationFailed):
        simulate_some()


@pytest.mark.parametrize("where", ["_write_here", "_write_timed"])
def test_answers_before_they_are_durable_are_found_out(where: str, monkeypatch: pytest.MonkeyPatch):
    write = getattr(GroupCommit, where)

    def answer_early(self: GroupCommit, batch: Batch) -> None:
        answers, batch.answers = batch.answers, defaultdict(list)
        for client, its_answers in answers.items():
            client.answered(its_answers)
        write(self, batch)

    monkeypatch.setattr(GroupCommit, where, answer_early)
    # Only a power cut between an answer and its sync tells: a few stories have one.
    with pytest.raises(SimulationFailed):
        simulate_some()
