"""When due jobs are looked for; time is moved by hand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from journeyman.servers.core.service import RECHECK_S, SPARE_PART, Ticker
from journeyman.servers.core.shared import delay_to_second
from journeyman.testing import ManualClock

S = 1_000_000_000


class Timer:
    def __init__(self, at_ns: int, call: Any) -> None:
        self.at_ns, self.call, self.cancelled = at_ns, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Table:
    """A loop that has only timers, a clock, and the next due time."""

    def __init__(self, framerate: int = 512, rounding_s: float = 1 / S) -> None:
        self.clock = ManualClock()
        self.due_ns: int | None = None
        self.fired_ns: list[int] = []
        self.timers: list[Timer] = []
        self.made = 0
        self.rounding_s = rounding_s
        loop = cast(asyncio.AbstractEventLoop, self)
        self.ticker = Ticker(loop, self.clock, lambda: self.due_ns, self.fire, framerate=framerate)

    def call_later(self, seconds: float, call: Any) -> Timer:
        self.made += 1
        rounded_s = round(seconds / self.rounding_s) * self.rounding_s
        timer = Timer(self.clock.monotonic_ns() + round(rounded_s * S), call)
        self.timers.append(timer)
        return timer

    def time(self) -> float:
        return self.clock.monotonic_ns() / S

    def fire(self) -> None:
        self.fired_ns.append(self.clock.now_ns())
        self.due_ns = None

    def run(self, seconds: float, *, step_s: float = 0.001) -> None:
        end_ns = self.clock.monotonic_ns() + round(seconds * S)
        while self.clock.monotonic_ns() < end_ns:
            self.clock.advance(step_s)
            due = [t for t in self.timers if t.at_ns <= self.clock.monotonic_ns()]
            self.timers = [t for t in self.timers if t not in due]
            for timer in due:
                if not timer.cancelled:
                    timer.call()


def test_it_fires_at_the_due_time():
    table = Table()
    table.due_ns = table.clock.now_ns() + 5 * S
    table.ticker.set_timer()
    due_ns = table.due_ns
    table.run(10)
    assert len(table.fired_ns) == 1
    assert 0 <= table.fired_ns[0] - due_ns <= 2_000_000


@pytest.mark.parametrize("after_us", [300, 700, 2_400, 2_500, 2_600, 9_500])
def test_a_loop_that_rounds_to_milliseconds_makes_nothing_late(after_us: int):
    table = Table(rounding_s=0.001)
    due_ns = table.due_ns = table.clock.now_ns() + after_us * 1_000
    table.ticker.set_timer()
    table.run(0.02, step_s=0.000_05)
    assert len(table.fired_ns) == 1
    assert 0 <= table.fired_ns[0] - due_ns <= 50_000


def test_nothing_due_sets_no_timer():
    table = Table()
    table.ticker.set_timer()
    assert not table.timers


def test_an_earlier_job_moves_the_timer():
    table = Table()
    table.due_ns = table.clock.now_ns() + 100 * S
    table.ticker.set_timer()
    table.due_ns = due_ns = table.clock.now_ns() + S // 2
    table.ticker.set_timer()
    table.run(1)
    assert [ns - due_ns <= 2_000_000 for ns in table.fired_ns] == [True]


def test_looking_again_costs_no_timer():
    table = Table()
    table.due_ns = table.clock.now_ns() + S // 2
    for _ in range(1000):
        table.ticker.set_timer()
    assert table.made == 1


def test_framerate_is_an_upper_limit():
    table = Table(framerate=10)

    def fire_again() -> None:
        table.fired_ns.append(table.clock.now_ns())
        table.ticker.set_timer()

    table.due_ns = table.clock.now_ns()
    table.ticker._fire = fire_again  # always something due
    table.ticker.set_timer()
    table.run(5)
    assert 45 <= len(table.fired_ns) <= 51


def test_what_is_due_shortly_after_waits_for_no_frame():
    table = Table(framerate=64)
    begin_ns = table.clock.now_ns() + S // 2
    due_ns = [begin_ns + number * S // 1000 for number in range(5)]

    def fire() -> None:
        table.fired_ns.append(table.clock.now_ns())
        table.due_ns = due_ns[len(table.fired_ns)] if len(table.fired_ns) < len(due_ns) else None
        table.ticker.set_timer()

    table.due_ns = begin_ns
    table.ticker._fire = fire
    table.ticker.set_timer()
    table.run(1)
    late_ns = [fired - due for fired, due in zip(table.fired_ns, due_ns, strict=True)]
    spare = 64 // SPARE_PART
    assert max(late_ns[: spare + 1]) <= 2_000_000
    assert min(late_ns[spare + 1 :]) > 5_000_000  # then it is as often as it may be


def test_a_clock_set_forward_is_seen_within_a_second():
    table = Table()
    table.due_ns = table.clock.now_ns() + 3600 * S
    table.ticker.set_timer()
    table.run(0.5)
    table.clock.step_wall(3600 * S)
    table.run(RECHECK_S + 0.01)
    assert len(table.fired_ns) == 1


def test_a_clock_set_back_makes_jobs_wait_for_their_time():
    table = Table()
    table.due_ns = due_ns = table.clock.now_ns() + S // 2
    table.ticker.set_timer()
    table.clock.step_wall(-3 * S)
    table.run(3)
    assert not table.fired_ns
    table.run(1)
    assert [ns - due_ns <= 2_000_000 for ns in table.fired_ns] == [True]


def test_holding_off_delays_what_is_due():
    table = Table()
    table.due_ns = table.clock.now_ns()
    table.ticker.hold_off(1.0)
    table.run(0.9)
    assert not table.fired_ns
    table.run(0.2)
    assert len(table.fired_ns) == 1


def test_a_stopped_ticker_is_silent():
    table = Table()
    table.due_ns = table.clock.now_ns() + S // 10
    table.ticker.set_timer()
    table.ticker.stop()
    table.ticker.set_timer()
    table.run(1)
    assert not table.fired_ns


def test_a_clock_that_is_set_back_far_is_noticed():
    table = Table()
    table.due_ns = table.clock.now_ns() + 3600 * S
    table.ticker.set_timer()
    table.run(2, step_s=0.1)
    table.clock.step_wall(-30 * S)
    table.run(2, step_s=0.1)
    assert table.fired_ns == []
    table.clock.step_wall(-600 * S)
    table.run(2, step_s=0.1)
    assert len(table.fired_ns) == 1


def test_upkeep_rings_on_whole_seconds_and_not_late():
    table = Table()
    loop = cast(asyncio.AbstractEventLoop, table)
    table.clock.advance(0.3)
    now_s = table.time()
    for delay_s in (1.0, 1.7):
        delay = delay_to_second(loop, delay_s)
        assert (now_s + delay) == pytest.approx(round(now_s + delay), abs=1e-6)
        assert delay_s - 1 < delay <= delay_s
    for delay_s in (2.0, 3.5, 5.0):
        delay = delay_to_second(loop, delay_s)
        assert (now_s + delay) / 2 == pytest.approx(round((now_s + delay) / 2), abs=1e-6)
        assert delay_s - 2 < delay <= delay_s
    assert delay_to_second(loop, 0.25) == 0.25
