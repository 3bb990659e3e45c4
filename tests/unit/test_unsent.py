"""The budget for what clients have not fetched: counting, pausing, closing."""

from __future__ import annotations

from typing import Any, cast

from journeyman.clock import SystemClock
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import GRACE_S, LOOK_S, SLOW_S, UnsentBudget

LIMIT = 1600


class Loop:
    """A clock and one timer at a time, moved by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, after_s: float, call: Any) -> None:
        self.timers.append((self.now + after_s, call))

    def run_until(self, now: float) -> None:
        while due := [timer for timer in self.timers if timer[0] <= now]:
            timer = min(due, key=lambda each: each[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = now


class Client:
    def __init__(self, budget: UnsentBudget) -> None:
        self.budget = budget
        self.held = self.taken = self.rooms = 0
        self.is_closed = False
        budget.add(self)

    def send(self, size: int) -> None:
        self.held += size
        self.budget.wrote(size)

    def fetch(self, size: int) -> None:
        self.held -= size
        self.taken += size

    def unsent(self) -> int:
        return self.held

    def fetched(self) -> int:
        return self.taken

    def room_to_send(self) -> None:
        self.rooms += 1

    def close_unread(self) -> None:
        self.is_closed = True
        self.held = 0


def make() -> tuple[Loop, UnsentBudget, list[str]]:
    loop = Loop()
    lines: list[str] = []
    budget = UnsentBudget(cast(Any, loop), LIMIT, ServerLog(SystemClock(), lines.append))
    return loop, budget, lines


def test_what_is_fetched_does_not_count():
    loop, budget, _ = make()
    client = Client(budget)
    for _ in range(1000):
        client.send(100)
        client.fetch(100)
    assert not budget.is_tight
    assert loop.timers == []


def test_clients_together_make_it_tight_at_the_limit():
    _, budget, _ = make()
    clients = [Client(budget) for _ in range(16)]
    for client in clients[:15]:
        client.send(100)
    assert not budget.is_tight
    clients[15].send(100)
    assert (budget.is_tight, budget.held_bytes) == (True, LIMIT)


def test_those_that_read_nothing_are_closed_the_largest_first_until_a_quarter_is_free():
    loop, budget, lines = make()
    small, large, reads = Client(budget), Client(budget), Client(budget)
    small.send(400)
    large.send(700)
    reads.send(500)
    budget.wait(reads)
    while loop.now < GRACE_S + 2 * LOOK_S:
        loop.run_until(loop.now + LOOK_S)
        reads.fetch(10)
        reads.send(10)
    assert large.is_closed
    assert not small.is_closed
    assert not reads.is_closed
    assert not budget.is_tight
    assert reads.rooms == 1
    assert budget.closed == 1
    assert sum("do not read" in line for line in lines) == 1


def test_nobody_is_closed_while_the_limit_is_not_reached():
    loop, budget, _ = make()
    client = Client(budget)
    client.send(LIMIT - 100)
    loop.run_until(60)
    assert not client.is_closed


def test_one_that_reads_a_little_now_and_then_is_closed_at_last():
    loop, budget, _ = make()
    drips, reads = Client(budget), Client(budget)
    drips.send(1000)
    reads.send(700)
    while loop.now < SLOW_S + 2 * LOOK_S:
        loop.run_until(loop.now + LOOK_S)
        drips.fetch(1)
        drips.send(1)
        reads.fetch(100)
        reads.send(100)
    assert drips.is_closed
    assert not reads.is_closed


def test_those_that_wait_are_told_in_order_and_only_while_there_is_room():
    loop, budget, _ = make()
    stuck, first, second = Client(budget), Client(budget), Client(budget)
    stuck.send(LIMIT)
    budget.wait(first)
    budget.wait(second)
    first.room_to_send = lambda: first.send(LIMIT)  # type: ignore[method-assign]
    loop.run_until(GRACE_S + 2 * LOOK_S)
    assert stuck.is_closed
    assert first.held == LIMIT
    assert second.rooms == 0
    first.fetch(LIMIT)
    loop.run_until(loop.now + 2 * LOOK_S)
    assert second.rooms == 1


def test_one_that_went_away_no_longer_counts():
    loop, budget, _ = make()
    client, other = Client(budget), Client(budget)
    client.send(LIMIT)
    budget.wait(other)
    budget.remove(client)
    loop.run_until(2 * LOOK_S)
    assert not budget.is_tight
    assert other.rooms == 1
    assert len(budget) == 1
