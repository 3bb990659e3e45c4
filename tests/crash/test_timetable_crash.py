"""Timetables whose process ends at every record and at every operation of the disk.

What is checked is the same everywhere: no occurrence since the timetable was acknowledged is lost,
and none is run again whose end was acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from journeyman.engines.ztick.messages import DONE, RunFinished
from journeyman.formats.ztick import Status
from journeyman.protocols.ztick.commands import PauseTimetable, RemoveTimetable, ResumeTimetable
from tests.support.crash.cuts import crashes
from tests.support.crash.timetable_cycles import TIMETABLES, TimetableCycles
from tests.support.simulated_disk import SimulatedDisk
from tests.support.timetable_world import Crash, DiskWorld, TimetableWorld

END = "2026-11-16T20:30:00+00:00"


class Story:
    """What the clients and the runners know when the process ends."""

    def __init__(self, world: TimetableWorld) -> None:
        self.world = world
        self.is_set = False
        self.ended: Counter[str] = Counter()  # acknowledged ends of runs, by job

    def tell(self) -> None:
        """Every hour, with a run that fails once, a pause that is over at once, and a change."""
        world = self.world
        fields = {"catch_up": "all", "overlap": "allow", "retries": 2, "backoff": "10m,1,10m"}
        assert world.set("n", every="1h", **fields) is DONE
        self.is_set = True
        self.pass_time("2026-11-16T13:30:00+00:00")
        self.pass_time("2026-11-16T14:05:00+00:00", fails=True)
        self.pass_time("2026-11-16T15:30:00+00:00")
        world.decide(PauseTimetable(b"", "n"))
        world.decide(ResumeTimetable(b"", "n"))
        world.set("n", every="1h", jitter="1s", **fields)
        self.pass_time("2026-11-16T17:30:00+00:00")

    def pass_time(self, moment: str, *, fails: bool = False) -> None:
        world = self.world
        world.to(moment)
        for run_id, run in list(world.running.items()):
            del world.running[run_id]
            world.decide(RunFinished(run_id, not fails))
            if not fails:
                self.ended[run.identifier] += 1

    def go_on(self) -> None:
        """After the crash, until the evening. Clients repeat what was not acknowledged."""
        self.world.decide(ResumeTimetable(b"", "n"))
        for hour in range(18, 21):
            self.pass_time(f"2026-11-16T{hour}:30:00+00:00")
        self.pass_time(END)

    def check(self) -> None:
        if self.is_set:
            hours = [f"n@2026-11-16T{hour}:00:00+00:00" for hour in range(13, 21)]
            statuses = self.world.statuses()
            lost = [job for job in hours if statuses.get(job) is not Status.EXECUTED]
            assert not lost, (lost, statuses)
        assert all(count == 1 for count in self.ended.values()), self.ended


def test_the_whole_story_without_a_crash():
    story = Story(TimetableWorld())
    story.tell()
    story.go_on()
    story.check()
    assert len(story.ended) == 8


def test_a_crash_at_every_record():
    at, happened = 0, True
    while happened:
        story = Story(TimetableWorld())
        story.world.cut = at
        try:
            story.tell()
            happened = False
        except Crash:
            story.world.crash()
        story.world.cut = None
        story.go_on()
        story.check()
        at += 1
    assert at > 50


@pytest.mark.usefixtures("kind_of_disk")
def test_a_power_cut_at_every_operation():
    seen = 0
    for crash in crashes(lambda: Story(DiskWorld(SimulatedDisk())), disk_of, Story.tell, seeds=3):
        now = datetime.fromtimestamp(crash.run.world.now_ns // 10**9, UTC).isoformat()
        after = Story(DiskWorld(crash.disk, now))
        after.is_set, after.ended = crash.run.is_set, crash.run.ended.copy()
        after.go_on()
        after.check()
        seen += 1
    assert seen > 30


def disk_of(story: Story) -> SimulatedDisk:
    assert isinstance(story.world, DiskWorld)
    return story.world.disk


@pytest.mark.parametrize("command", [PauseTimetable, RemoveTimetable])
def test_what_was_stopped_stays_stopped(command: Callable[..., PauseTimetable | RemoveTimetable]):
    """A crash inside the batch: it was not acknowledged, so both are right, but not half of it."""
    for at in range(10):
        world = TimetableWorld()
        world.set("n", every="1h")
        world.cut = at
        with suppress(Crash):
            world.decide(command(b"", "n"))
        world.crash()
        is_there = world.engine.timetables.has("n")
        is_active = is_there and world.view("n").state == "active"
        world.to("2026-11-16T15:30:00+00:00", succeed=True)
        assert len(world.started) == (3 if is_active else 0), at


def test_a_crash_while_several_missed_ones_are_caught_up():
    """The ledger may be written and the log not: no occurrence is known to the ledger alone."""
    missed = [f"n@2026-11-16T{hour}:00:00+00:00" for hour in range(13, 18)]
    at, happened = 0, True
    while happened:
        world = TimetableWorld()
        world.set("n", every="1h", catch_up="all", overlap="allow")
        world.cut = at
        try:
            world.jump("2026-11-16T17:30:00+00:00")
            happened = False
        except Crash:
            world.crash()
        world.cut = None
        world.tick()
        world.finish()
        world.to("2026-11-16T17:40:00+00:00", succeed=True)
        lost = [job for job in missed if world.statuses().get(job) is not Status.EXECUTED]
        assert not lost, (at, lost)
        at += 1
    assert at > 10


def test_kills_of_a_real_server(tmp_path):
    tally = TimetableCycles(tmp_path, seed=1).run(3)
    assert tally.occurrences >= 3 * TIMETABLES
