"""What a worker reports when the server refuses the next job of a chain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import journeyman as jm
from journeyman.tasks.running import (
    Dead,
    Delivery,
    GivenBack,
    Outcome,
    TaskDone,
    UnknownTask,
    given_back,
    prepare,
)
from journeyman.tasks.task import stable_id
from journeyman.tasks.worker.link import LinkRefused, Reports, Row

JOB = str(stable_id("job"))
BUSY = "SERVER-ERROR Read-only mode triggered by cmdlog circuit breaker"


class FakeLink:
    """Answers by the first word of a request; a list of answers is used up, its last one stays."""

    def __init__(self, answers: Mapping[str, list[str]]) -> None:
        self._answers = {word: list(texts) for word, texts in answers.items()}
        self.requests: list[str] = []

    def ask(self, request: bytes) -> asyncio.Future[list[Row]]:
        future: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()
        self.requests.append(request.decode())
        assert len(self.requests) < 10, "it is sent for ever"
        texts = self._answers.get(self.requests[-1].split(" ")[0], [""])
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        if text:
            future.set_exception(LinkRefused(text))
        else:
            future.set_result([])
        return future


def reported(answer: str | list[str], *, has_token: bool = True, **options: Any) -> list[str]:
    """The requests of a job that completes and is followed by another one."""
    task = jm.App().task(name="next", **options)(lambda value="": value)
    following = task.call("a").then(task).order()

    async def scenario() -> list[str]:
        link: Any = FakeLink({"add": [answer] if isinstance(answer, str) else answer})

        async def connect() -> Any:
            return link

        reports = Reports(connect, has_token=has_token)
        reports.send(JOB, 2, TaskDone(b"1", following))
        async with asyncio.timeout(60):
            while reports.is_busy:
                await asyncio.sleep(0)
        requests: list[str] = link.requests
        return requests

    return asyncio.run(scenario())


def test_a_job_of_an_unknown_task_is_given_back_while_attempts_are_left():
    payload = b'{"v":1,"task":"elsewhere","args":[],"kwargs":{}}'

    def outcome(attempt: int, fails: int) -> Outcome:
        delivery = Delivery(JOB, "q", payload, 1000, attempt, fails, max_fails=2)
        prepared = prepare(jm.App(), delivery)
        assert isinstance(prepared.problem, UnknownTask)
        return given_back(prepared, prepared.problem, chance=0.5)

    delays = [outcome(attempt, 0) for attempt in range(1, 21)]
    assert all(isinstance(each, GivenBack) for each in delays)
    seconds = [each.delay_ms / 1000 for each in delays if isinstance(each, GivenBack)]
    assert seconds[:3] == [1, 2, 4]
    assert max(seconds) == 3600
    assert sum(seconds) > 8 * 3600
    last = outcome(21, 1)
    assert isinstance(last, Dead)
    assert "unknown task 'elsewhere'" in str(last.failure)


@pytest.mark.parametrize("answer", ["", "CLIENT-ERROR Duplicate job"])
def test_a_job_completes_once_the_next_one_is_there(answer):
    add, complete = reported(answer)
    assert f" -follows={JOB} -then=1\r\n" in add
    assert complete == f"complete {JOB} 1 -attempt=2\r\n1\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        "CLIENT-ERROR Insufficient namespace scope",
        "CLIENT-ERROR ID is taken",
        "CLIENT-ERROR Not available without a ledger",
        "NOT-FOUND",
    ],
)
def test_a_job_whose_next_one_is_refused_fails(answer):
    _, fail = reported(answer, key="k")
    assert fail.startswith(f"fail {JOB} ")
    assert " -attempt=2 -final=1\r\n" in fail
    assert f"the server refused the next job of the chain: {answer}" in fail


def test_a_refusal_that_can_pass_is_tried_again(monkeypatch):
    monkeypatch.setattr("journeyman.tasks.worker.link.AGAIN_S", 0.0)
    words = [request.split(" ")[0] for request in reported([BUSY, BUSY, ""])]
    assert words == ["add", "add", "add", "complete"]


def test_without_a_token_a_next_job_is_added_as_the_original_takes_it():
    add, _ = reported("", has_token=False)
    assert "-follows" not in add
    assert "-then" not in add
