"""Guessing secrets: how long attempts wait, right or wrong, by a clock that the test turns."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from journeyman.config import Token
from journeyman.servers.core.access import (
    FORGET_AFTER_S,
    MAX_ADDRESSES,
    MAX_DELAY_S,
    Attempt,
    Attempts,
)

HOST = "10.0.0.1"
TOKEN = Token("a", "*")


class Clock:
    """An event loop whose time passes only when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> object:
        heapq.heappush(self._calls, (self.now_s + delay_s, len(self._calls), call, args))
        return call

    def pass_until(self, end_s: float) -> None:
        while self._calls and self._calls[0][0] <= end_s:
            self.now_s, _, call, args = heapq.heappop(self._calls)
            call(*args)
        self.now_s = end_s


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.attempts = Attempts()
        self.right = {"right"}
        self.checked: list[tuple[str, float]] = []
        self.told: list[tuple[str, float, bool]] = []

    def ask(self, secret: str = "wrong", host: str = HOST) -> Attempt:
        def check() -> Token | None:
            self.checked.append((secret, self.clock.now_s))
            return TOKEN if secret in self.right else None

        def tell(token: Token | None) -> None:
            self.told.append((secret, round(self.clock.now_s, 6), token is not None))

        loop = cast(Any, self.clock)
        return self.attempts.ask(loop, host, secret.encode(), check, tell)


@pytest.fixture
def world() -> World:
    return World()


def test_a_right_secret_of_an_address_that_never_failed_is_answered_at_once(world):
    for _ in range(1000):
        world.ask("right")
    assert world.told == [("right", 0.0, True)] * 1000
    assert len(world.attempts) == 0


def test_checks_get_rarer_with_each_failure(world):
    for _ in range(7):
        world.ask()
    world.clock.pass_until(60.0)
    moments = [moment for _, moment, _ in world.told]
    waits = [round(b - a, 6) for a, b in pairwise(moments)]
    assert waits == [0.1, 0.2, 0.4, 0.8, MAX_DELAY_S, MAX_DELAY_S]


def test_the_newest_attempt_is_checked_first(world):
    """However many connections hold a place, the next login is checked at the next turn."""
    for _ in range(200):
        world.ask()
    world.ask("right")
    world.clock.pass_until(0.1)
    assert world.told == [("wrong", 0.0, False), ("right", 0.1, True), ("wrong", 0.1, False)]


def test_silence_says_nothing_about_a_secret_that_is_not_known(world):
    """Guesses on many connections: the right one is checked when its turn comes, not before."""
    for secret in ["wrong"] * 6 + ["right"] + ["wrong"] * 4:
        world.ask(secret)
    world.clock.pass_until(1.4)
    assert [secret for secret, _, _ in world.told] == ["wrong"] * 4
    world.clock.pass_until(2.6)
    assert world.told[5] == ("right", 2.5, True)


def test_a_secret_that_was_right_passes_at_once_while_others_are_guessed(world):
    world.ask("right")
    for _ in range(160):
        world.ask()
    for _ in range(463):
        world.ask("right")
    assert world.told.count(("right", 0.0, True)) == 464


def test_it_passes_at_once_from_its_own_address_alone(world):
    """Or one who guesses elsewhere would see at once which secrets are in use."""
    world.ask("right", "10.0.0.2")
    world.ask()
    world.ask("right")
    assert world.told == [("right", 0.0, True), ("wrong", 0.0, False)]


def test_after_a_reload_every_secret_waits_for_its_turn(world):
    world.ask("right")
    world.ask()
    world.attempts.forget_known()
    world.ask("right")
    assert len(world.told) == 2
    world.clock.pass_until(0.1)
    assert world.told[-1] == ("right", 0.1, True)


def test_a_known_secret_whose_token_was_removed_is_refused(world):
    world.ask("right")
    world.right.clear()
    world.ask("right")
    assert world.told[-1] == ("right", 0.0, False)


def test_who_has_a_token_guesses_no_faster_with_it(world):
    world.ask("right")
    for _ in range(100):
        world.ask()
        world.ask("right")
        world.clock.pass_until(world.clock.now_s + 0.01)
    wrong = [moment for secret, moment in world.checked if secret == "wrong"]
    assert 9 <= len(wrong) <= 11


def test_an_answer_comes_as_soon_as_the_secret_was_checked(world):
    for secret in ("wrong", "wrong", "right", "wrong"):
        world.ask(secret)
    world.clock.pass_until(60.0)
    assert [moment for _, moment, _ in world.told] == [round(at, 6) for _, at in world.checked]


@pytest.mark.parametrize("with_a_token_of_its_own", [False, True])
def test_at_most_ten_secrets_a_second_can_be_tried(world, with_a_token_of_its_own):
    """Also by a client that shows a right secret in between to end the delays."""
    for second in range(30):
        for number in range(50):
            world.ask("right" if with_a_token_of_its_own and number % 2 else "wrong")
            world.clock.pass_until(second + number / 50)
    wrong = [moment for secret, moment in world.checked if secret == "wrong"]
    assert len(wrong) >= 25
    assert min(b - a for a, b in pairwise(wrong)) >= 0.1 - 1e-9


def test_a_right_secret_ends_the_delays_of_all_that_wait(world):
    for secret in ["wrong", *["right"] * 50]:
        world.ask(secret)
    world.clock.pass_until(0.2)
    assert len(world.told) == 51
    assert len(world.attempts) == 0


def test_attempts_that_are_given_up_are_neither_checked_nor_kept(world):
    world.ask()
    first = world.ask("right")
    for _ in range(50):
        world.ask().give_up()
    assert first.is_waiting
    world.clock.pass_until(0.1)
    assert world.told[-1] == ("right", 0.1, True)
    assert len(world.checked) == 2
    assert not first.is_waiting


def test_an_unchecked_secret_is_never_called_wrong(world):
    for _ in range(1000):
        world.ask()
    world.clock.pass_until(30.0)
    assert len(world.told) == len(world.checked) < 40


def test_other_addresses_are_not_delayed(world):
    for _ in range(10):
        world.ask()
    world.ask("right", "10.0.0.2")
    assert world.told[-1] == ("right", 0.0, True)


def test_failures_are_forgotten_after_a_while(world):
    for _ in range(5):
        world.ask()
    world.clock.pass_until(10.0 + FORGET_AFTER_S)
    world.ask()
    world.ask()
    begin = world.clock.now_s
    world.clock.pass_until(begin + 0.15)
    assert len(world.told) == 7


def test_the_table_is_bounded(world):
    for number in range(MAX_ADDRESSES + 100):
        world.ask(host=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(world.attempts) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
    ],
)
def test_an_ipv6_network_and_a_mapped_address_count_as_one(world, first, second, same):
    world.ask(host=first)
    world.ask(host=second)
    assert len(world.told) == (1 if same else 2)
