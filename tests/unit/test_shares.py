"""Turns over tokens: no token is refused for another, and turns that are given up go on."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.shares import Shares, WaitingRequests
from journeyman.servers.http.v1.backend import HttpBackend
from tests.support.token_calls import call_of


@pytest.mark.parametrize("tokens", range(1, 8))
def test_however_many_tokens_wait_another_one_finds_connections(tokens: int):
    waits = WaitingRequests(512)
    with ExitStack() as waiting:

        def may_wait(who: str) -> bool:
            """The request keeps its connection, and is never answered, if it is not refused."""
            try:
                waiting.enter_context(waits.share_of(call_of(who).request))
            except ApiError:
                return False
            waits.answering += 1
            return True

        for who in map(str, range(tokens)):
            assert not all(may_wait(who) for _ in range(512))
        assert 512 - waits.answering >= 512 // 2**tokens
        assert may_wait("another one")


def test_a_token_may_wait_again_when_connections_are_free_again():
    waits, request = WaitingRequests(4), call_of("a").request

    def wait() -> None:
        with waits.share_of(request):
            pass

    with waits.share_of(request):
        waits.answering = 3
        with pytest.raises(ApiError, match="of this token are waiting"):
            wait()
        waits.answering = 2
        wait()
    waits.answering = 4
    wait()


def test_tokens_take_turns_whatever_the_length_of_their_lines():
    async def test() -> None:
        shares, order = Shares(1, 10, "full"), list[str]()
        free = asyncio.Event()

        async def work(who: str) -> None:
            async with shares.turn(call_of(who)):
                order.append(who)
                await free.wait()

        tasks = [asyncio.ensure_future(work(who)) for who in ("a", "a", "a", "a", "b", "c", "b")]
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "a", "b", "c", "a", "b", "a"]

    asyncio.run(test())


def test_a_full_line_refuses_its_own_token_alone():
    async def test() -> None:
        shares, free = Shares(1, 2, "full"), asyncio.Event()

        async def work(who: str) -> None:
            async with shares.turn(call_of(who)):
                await free.wait()

        tasks = [asyncio.ensure_future(work(who)) for who in ("a", "a", "a")]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="full"):
            await work("a")
        other = asyncio.ensure_future(work("b"))
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*tasks, other)
        await work("a")

    asyncio.run(test())


def test_clients_that_leave_take_no_turn_with_them():
    async def test() -> None:
        shares, free = Shares(2, 5, "full"), asyncio.Event()
        done: list[int] = []

        async def work(number: int) -> None:
            async with shares.turn(call_of(str(number % 2))):
                await free.wait()
                done.append(number)

        tasks = [asyncio.ensure_future(work(number)) for number in range(8)]
        await asyncio.sleep(0)
        for number in (0, 3, 4, 7):  # one that works, and three that wait
            tasks[number].cancel()
        free.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(done) == [1, 2, 5, 6]
        await asyncio.gather(*(work(number) for number in range(4)))
        assert len(done) == 8

    asyncio.run(test())


def test_a_token_that_asks_for_figures_without_end_keeps_them_from_no_other():
    """Their helper answers one question at a time, and each of a large token takes seconds."""
    asked: list[str] = []

    class Helper:
        async def ask(self, function: str, who: str) -> str:
            asked.append(who)
            await asyncio.sleep(0)
            return function

    async def ask_all() -> list[str]:
        backend: Any = SimpleNamespace(series=Helper(), figures=Shares(1, 20, "too many"))
        asking = [
            asyncio.ensure_future(HttpBackend.ask_series(backend, call_of(who), "f", who))
            for who in ("a", "a", "a", "a", "b")
        ]
        answers: list[str] = await asyncio.gather(*asking)
        return answers

    assert asyncio.run(ask_all()) == ["f"] * 5
    assert asked.index("b") <= 2
