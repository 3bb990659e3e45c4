"""The process that reads the past: there is one, and its memory is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from journeyman.servers.http.past import machine as machines
from journeyman.servers.http.past.machine import TimeMachine
from journeyman.servers.http.problems import ApiError
from journeyman.units import MIB
from tests.support.cli_commands import run
from tests.support.token_calls import call_of

LIMIT_BYTES = 256 * MIB
WARNINGS: list[str] = []


async def end(machine: TimeMachine) -> None:
    child = machine._child
    machine.close()
    assert child is not None
    await child.wait()


async def count(machine: TimeMachine, directory: Path, at_ns: int = 2**60, who: str = "a") -> Any:
    return await machine.ask(call_of(who), "count_work", str(directory), "", at_ns, "")


async def refusal(machine: TimeMachine, directory: Path) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await count(machine, directory)
    return caught.value


def test_many_questions_share_one_process_and_the_rest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run("generate", "workq", tmp_path, "--records", 20)
    started: list[Any] = []
    start = asyncio.create_subprocess_exec

    async def counted(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return await start(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    monkeypatch.setattr(machines, "MOST_WAITING", 4)

    async def ask_all() -> list[Any]:
        machine = TimeMachine(LIMIT_BYTES, WARNINGS.append)
        moments = (count(machine, tmp_path, 2**60 + n) for n in range(8))
        answers = await asyncio.gather(*moments, return_exceptions=True)
        await end(machine)
        return answers

    answers = asyncio.run(ask_all())
    refused = [each.status for each in answers if isinstance(each, ApiError)]
    assert (len(started), len(answers) - len(refused), refused) == (1, 5, [503] * 3)


def test_a_client_that_leaves_does_not_end_the_process(tmp_path: Path):
    run("generate", "workq", tmp_path, "--records", 20)

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES, WARNINGS.append)
        counts = await count(machine, tmp_path)
        child = machine._child
        leaving = asyncio.ensure_future(count(machine, tmp_path, 2**61))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await count(machine, tmp_path) == counts
        assert machine._child is child
        await end(machine)

    asyncio.run(ask())


def test_a_client_that_is_cancelled_twice_gets_no_answer_mixed_up(tmp_path: Path):
    """It leaves, and its time is over: the next question still waits for the child."""
    run("generate", "workq", tmp_path, "--records", 20)

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES, WARNINGS.append)
        counts = await count(machine, tmp_path)
        leaving = asyncio.ensure_future(count(machine, tmp_path, 2**61))
        for _ in range(2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            leaving.cancel()
        assert await count(machine, tmp_path) == counts
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await end(machine)

    asyncio.run(ask())


def test_a_log_that_does_not_fit_is_refused_and_the_next_question_answered(tmp_path: Path):
    large, small = tmp_path / "large", tmp_path / "small"
    large.mkdir()
    with (large / "000000001.log").open("wb") as file:
        file.truncate(2 * LIMIT_BYTES)
    run("generate", "workq", small, "--records", 20)

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES, WARNINGS.append)
        error = await refusal(machine, large)
        assert (error.status, error.code) == (422, "past_too_large")
        assert "limits.past_bytes" in error.message
        counts = await count(machine, small, 2**60)
        assert machine._child is not None
        machine._child.kill()
        await machine._child.wait()
        assert await count(machine, small, 2**60) == counts
        await end(machine)

    asyncio.run(ask())


def test_a_token_that_asks_without_end_waits_for_itself(tmp_path: Path):
    run("generate", "workq", tmp_path, "--records", 20)

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES, WARNINGS.append)
        ended: list[str] = []

        async def note(who: str, number: int) -> None:
            try:
                await count(machine, tmp_path, 2**60 + number, who)
                ended.append(who)
            except ApiError as error:
                ended.append(f"{who} {error.status}")

        many = [asyncio.ensure_future(note("greedy", number)) for number in range(40)]
        await asyncio.sleep(0)
        await asyncio.gather(*(note("other", number) for number in range(3)))
        answered = [who for who in ended if who == "greedy"]
        assert len(answered) <= 5  # one before each of the other's, and the one at the machine
        await asyncio.gather(*many)
        assert ended.count("other") == 3
        assert ended.count("greedy 503") == 40 - machines.MOST_WAITING - 1
        await end(machine)

    asyncio.run(ask())


def test_why_the_past_cannot_be_read_is_not_for_every_token(tmp_path: Path):
    (tmp_path / "000000001.log").mkdir()  # in place of a file

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES, WARNINGS.append)
        error = await refusal(machine, tmp_path)
        assert (error.status, error.message) == (503, machines.UNREAD)
        assert str(tmp_path) in WARNINGS[-1]
        await end(machine)

    asyncio.run(ask())
