"""The process that reads the past: there is one, and its memory is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from journeyman.servers.http.routes import ApiError
from journeyman.servers.http.v1 import past
from journeyman.servers.http.v1.past import TimeMachine
from journeyman.units import MIB
from tests.support.cli_commands import run

LIMIT_BYTES = 256 * MIB


async def end(machine: TimeMachine) -> None:
    child = machine._child
    machine.close()
    assert child is not None
    await child.wait()


async def refusal(machine: TimeMachine, directory: Path) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await machine.ask(str(directory), "span")
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
    monkeypatch.setattr(past, "MOST_WAITING", 5)

    async def ask_all() -> list[Any]:
        machine = TimeMachine(LIMIT_BYTES)
        moments = (machine.ask(str(tmp_path), "counts", 2**60 + n, "") for n in range(8))
        answers = await asyncio.gather(*moments, return_exceptions=True)
        await end(machine)
        return answers

    answers = asyncio.run(ask_all())
    refused = [each.status for each in answers if isinstance(each, ApiError)]
    assert (len(started), len(answers) - len(refused), refused) == (1, 5, [503] * 3)


def test_a_client_that_leaves_does_not_end_the_process(tmp_path: Path):
    run("generate", "workq", tmp_path, "--records", 20)

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES)
        span = await machine.ask(str(tmp_path), "span")
        child = machine._child
        leaving = asyncio.ensure_future(machine.ask(str(tmp_path), "counts", 2**60, ""))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await machine.ask(str(tmp_path), "span") == span
        assert machine._child is child
        await end(machine)

    asyncio.run(ask())


def test_a_client_that_is_cancelled_twice_gets_no_answer_mixed_up(tmp_path: Path):
    """It leaves, and its time is over: the next question still waits for the child."""
    run("generate", "workq", tmp_path, "--records", 20)

    async def ask() -> None:
        machine = TimeMachine(LIMIT_BYTES)
        span = await machine.ask(str(tmp_path), "span")
        leaving = asyncio.ensure_future(machine.ask(str(tmp_path), "counts", 2**60, ""))
        for _ in range(2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            leaving.cancel()
        assert await machine.ask(str(tmp_path), "span") == span
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
        machine = TimeMachine(LIMIT_BYTES)
        error = await refusal(machine, large)
        assert (error.status, error.code) == (422, "past_too_large")
        assert "limits.past_bytes" in error.message
        first_ns, last_ns = await machine.ask(str(small), "span")
        assert 0 < first_ns < last_ns
        assert machine._child is not None
        machine._child.kill()
        await machine._child.wait()
        assert await machine.ask(str(small), "span") == (first_ns, last_ns)
        await end(machine)

    asyncio.run(ask())
