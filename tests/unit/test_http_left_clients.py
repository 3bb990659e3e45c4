"""A client that leaves before its answer: what it asked for is done, and errors are no surprise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import to_the_end


def _left_alone(error: Exception) -> tuple[list[dict[str, Any]], bool]:
    """What the loop heard of, and whether the work was done, of a client that left."""
    heard: list[dict[str, Any]] = []
    is_done = False

    async def work(may_end: asyncio.Event) -> None:
        nonlocal is_done
        await may_end.wait()
        is_done = True
        raise error

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        may_end = asyncio.Event()
        asking = asyncio.create_task(to_the_end(work(may_end)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        may_end.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(leave())
    return heard, is_done


def test_an_answer_that_is_a_refusal_is_not_an_error_of_the_server():
    heard, is_done = _left_alone(ApiError(404, "there is no timetable 't'"))
    assert is_done
    assert heard == []


def test_a_mistake_of_the_server_is_still_heard_of():
    heard, is_done = _left_alone(ValueError("a mistake"))
    assert is_done
    assert [str(each["exception"]) for each in heard] == ["a mistake"]
