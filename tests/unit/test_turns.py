"""Work in small portions: so much of it, and no more, in one turn of the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import hypothesis.strategies as st
from hypothesis import given

from journeyman.clock import SystemClock
from journeyman.engines.ztick import engine
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.messages import DUE_LIMIT, StartRun, TriggerDue
from journeyman.engines.ztick.rules import PrefixTree
from journeyman.formats.ztick import Shell, Status
from journeyman.protocols.ztick.commands import Query, Set, SetRule
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.service import LOOKS, IdleWatch
from journeyman.servers.core.shared import Slices
from journeyman.servers.ztick.runs import STARTS_A_TURN, Runs


def test_one_slice_runs_in_a_turn_and_all_have_theirs_in_order():
    async def scenario() -> list[str]:
        slices, done = Slices(asyncio.get_running_loop()), []

        def work(name: str, left: int) -> None:
            done.append(name)
            if left:
                slices.ask(lambda: work(name, left - 1))

        for name in "abc":
            slices.ask(partial(work, name, 1))
        for turn in range(1, 7):
            await asyncio.sleep(0)
            assert len(done) == turn - 1 or len(done) == turn
        while len(done) < 6:
            await asyncio.sleep(0)
        await slices.turn()
        return done

    assert asyncio.run(scenario()) == ["a", "b", "c", "a", "b", "c"]


def test_runs_start_a_few_in_a_turn_and_not_after_a_stop():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        started: list[str] = []

        class Runner:
            async def run(self, request: RunRequest[Any]) -> RunResult:
                started.append(request.job_id)
                await asyncio.sleep(3600)
                return RunResult(True)

            async def close(self) -> None:
                pass

        log = ServerLog(SystemClock(), lambda _: None)
        runs = Runs(loop, SystemClock(), cast(Any, Runner()), log, Mock())
        many = [StartRun(n, f"job.{n}", 0, Shell("true"), "rule") for n in range(1, 1001)]
        runs.start(many)
        assert len(runs) == 1000
        before = 0
        for _ in range(20):
            await asyncio.sleep(0)
            assert len(started) - before <= STARTS_A_TURN
            before = len(started)
        assert 0 < before <= 20 * STARTS_A_TURN
        await runs.stop(0, asyncio.Event())
        seen = len(started)
        await asyncio.sleep(0)
        assert len(started) == seen
        assert len(runs) == 0

    asyncio.run(scenario())


def test_due_jobs_stop_when_the_search_for_rules_has_taken_enough_steps(monkeypatch):
    monkeypatch.setattr(engine, "MAX_STEPS", 300)
    schedule = ZtickEngine()
    for length in range(1, 101):
        schedule.decide(SetRule(b"r", f"r{length}", "a" * length, Shell("true")), 0)
    for number in range(10):
        schedule.decide(Set(b"s", f"{'a' * 100}.{number}", 0), 0)
    assert DUE_LIMIT > 10
    assert len(schedule.decide(TriggerDue(), 1).records) == 3  # of 100 steps each
    assert schedule.next_due_ns() == 0
    while schedule.stats().jobs_planned:
        assert len(schedule.decide(TriggerDue(), 1).records) <= 3


def test_many_rules_elsewhere_do_not_lengthen_the_search():
    tree = PrefixTree()
    for number in range(5000):
        tree.add(f"other.{number}.")
    for length in range(1, 1001):
        tree.add("a" * length + "z")
    before = tree.steps
    assert tree.longest_prefix_of("job.1") is None
    assert tree.longest_prefix_of("other.7.daily") == "other.7."
    assert tree.steps - before < 10


texts = st.text(alphabet="ab.", min_size=1, max_size=6)


@given(st.lists(st.tuples(st.booleans(), texts), max_size=40), st.lists(texts, max_size=10))
def test_tree_finds_the_longest_prefix_whatever_was_added_and_removed(changes, asked):
    tree, held = PrefixTree(), set()
    for is_add, text in changes:
        if is_add:
            tree.add(text)
            held.add(text)
        elif text in held:
            tree.remove(text)
            held.discard(text)
        for each in (*asked, text):
            fits = [other for other in held if each.startswith(other)]
            assert tree.longest_prefix_of(each) == max(fits, key=len, default=None)


def test_listings_share_one_copy_of_what_changes():
    schedule = ZtickEngine()
    for number in range(2000):
        schedule.decide(Set(b"s", f"job.{number}", 5), 0)
    listings = [cast(Any, schedule.decide(Query(b"q", ""), 0).reply) for _ in range(40)]
    schedule.decide(Set(b"s", "job.7", 6), 0)
    copies = [list(listing._shards.kept.values()) for listing in listings]
    assert all(len(each) == 1 and each[0] is copies[0][0] for each in copies)
    for listing in listings:
        rows = [row for slice_ in listing for row in slice_]
        assert len(rows) == 2000
        assert ("job.7", Status.PLANNED, 5) in rows


def test_idle_connections_are_closed_after_the_timeout_and_no_others():
    class Session:
        def __init__(self, is_idle: bool) -> None:
            self.is_idle, self.looks, self.is_closed = is_idle, 0, False

        def close_if_idle(self, looks: int) -> bool:
            self.looks = self.looks + 1 if self.is_idle else 0
            self.is_closed = self.looks >= looks
            return self.is_closed

    class Loop:
        def __init__(self) -> None:
            self.timer: Any = None

        def call_later(self, after_s: float, call: Any) -> Loop:
            self.after_s, self.timer = after_s, call
            return self

        def cancel(self) -> None:
            self.timer = None

    loop = Loop()
    idle, busy = Session(True), Session(False)
    watch = IdleWatch(cast(Any, loop), [idle, busy], 80.0)
    for _ in range(LOOKS):
        assert loop.after_s == 80.0 / LOOKS
        loop.timer()
    assert not idle.is_closed
    loop.timer()
    assert (idle.is_closed, busy.is_closed) == (True, False)
    watch.stop()
    never = Loop()
    IdleWatch(cast(Any, never), [idle], 0).stop()
    assert (loop.timer, never.timer) == (None, None)
