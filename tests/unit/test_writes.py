"""Ages of writes in flight: when a slow one is reported, and when the server is not ready."""

from __future__ import annotations

import threading

from journeyman.config import LogLevel
from journeyman.config.settings import LimitSettings
from journeyman.servers.core.server_log import ServerLog, ServiceManager
from journeyman.servers.core.writes import WatchThread, WriteInFlight, WriteWatch
from journeyman.testing import ManualClock

LIMITS = LimitSettings(write_warn_ms=1000, write_deadline_ms=10_000, watchdog_deadline_ms=60_000)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lines: list[str] = []
        messages = ServerLog(self.clock, self.lines.append, level=LogLevel.INFO)
        self.watch = WriteWatch(self.clock, messages, LIMITS)
        self.write = WriteInFlight(self.clock)
        self.watch.add("schedule", self.write)

    def said(self) -> list[str]:
        """The messages since the last call, without their times."""
        lines, self.lines[:] = self.lines.copy(), []
        return [line.split(" ", 1)[1].strip() for line in lines]

    def look_after(self, seconds: float) -> list[str]:
        self.clock.advance(seconds)
        self.watch.report()
        return self.said()

    def figures(self) -> dict[str, dict[str, object]]:
        return {
            family.name: {str(point.labels["log"]): point.value for point in family.points}
            for family in self.watch.families()
        }


def test_quick_write_is_not_mentioned():
    world = World()
    world.write.begin()
    assert world.look_after(0.999) == []
    world.write.end()
    assert world.look_after(100) == []
    assert world.figures() == {"write.age_seconds": {"schedule": 0}, "writes.slow": {"schedule": 0}}


def test_each_threshold_is_reported_once_and_the_end_says_how_long_it_took():
    world = World()
    watch = world.watch
    world.write.begin()
    (warned,) = world.look_after(1)
    assert warned.startswith("WARN a write has not ended for 1.0 s")
    assert world.look_after(8.9) == []
    assert watch.stuck() == {}
    (stuck,) = world.look_after(0.1)
    assert stuck == "ERROR not ready: a write has not ended for 10.0 s log=schedule"
    assert watch.stuck() == {"schedule": "a write has not ended for 10.0 s"}
    assert world.figures()["write.age_seconds"] == {"schedule": 10.0}
    assert world.look_after(49.9) == []
    assert watch.is_alive()
    (silent,) = world.look_after(0.1)
    assert "no more signs of life" in silent
    assert not watch.is_alive()
    world.clock.advance(1.5)
    world.write.end()
    assert world.said() == ["INFO the write has ended after 61.5 s log=schedule"]
    assert (watch.stuck(), watch.is_alive()) == ({}, True)
    assert world.figures()["writes.slow"] == {"schedule": 1}
    world.write.begin()
    assert len(world.look_after(1)) == 1


def test_slow_write_that_ended_between_two_looks_is_reported_once():
    world = World()
    world.write.begin()
    world.clock.advance(1.2)
    world.write.end()
    assert world.said() == ["WARN a write took 1.2 s: the disk is slow log=schedule"]
    assert world.look_after(1) == []
    assert world.figures()["writes.slow"] == {"schedule": 1}


def test_oldest_of_several_writes_of_a_log_counts():
    world = World()
    end_first = world.watch.begin("ledger")
    world.clock.advance(9)
    end_second = world.watch.begin("ledger")
    world.clock.advance(2)
    assert world.figures()["write.age_seconds"] == {"schedule": 0, "ledger": 11.0}
    assert list(world.watch.stuck()) == ["ledger"]
    end_first()
    assert world.watch.stuck() == {}
    end_second()
    assert world.figures()["write.age_seconds"] == {"schedule": 0}
    assert world.said() == [
        "WARN a write took 11.0 s: the disk is slow log=ledger",
        "WARN a write took 2.0 s: the disk is slow log=ledger",
    ]


def test_only_a_write_that_the_event_loop_waits_for_needs_a_stand_in():
    world = World()
    world.write.begin()
    world.clock.advance(2)
    assert not world.watch.is_loop_held()
    world.write.end()
    world.write.begin(holds_loop=True)
    world.clock.advance(0.5)
    assert not world.watch.is_loop_held()
    world.clock.advance(0.5)
    assert world.watch.is_loop_held()
    assert "schedule log has not ended for 1.0 s" in world.watch.reason_of_loop()
    world.write.end()
    assert not world.watch.is_loop_held()


def test_thread_sleeps_until_something_is_written():
    world, looks = World(), threading.Semaphore(0)
    world.watch.warn_ns = 1_000_000
    look = world.watch.report

    def counted() -> None:
        look()
        looks.release()

    world.watch.report = counted  # type: ignore[method-assign]
    thread = WatchThread(world.watch, ServiceManager(), lambda: None)
    try:
        while not world.watch.is_asleep:
            pass
        assert not looks.acquire(timeout=0.05)
        world.write.begin()
        assert looks.acquire(timeout=60)
        assert looks.acquire(timeout=60)  # as long as the write is in flight
        world.write.end()
    finally:
        thread.close()
