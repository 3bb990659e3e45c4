"""What a worker reports when the server refuses the next job of a chain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import journeyman as jm
from journeyman.protocols.workq.salts import stable_id
from journeyman.tasks.outcomes import GivenBack, TaskDone
from journeyman.tasks.running import Delivery, UnknownTask, failed, given_back, prepare
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


def reported_failure(error: Exception, answer: str = "", *, attempt: int = 1) -> list[str]:
    """The requests of a job that fails, with two of three fails left."""
    payload = b'{"v":1,"task":"known","args":[],"kwargs":{}}'
    app = jm.App()
    app.task(name="known", retries=2)(lambda: None)
    prepared = prepare(app, Delivery(JOB, "q", payload, 1000, attempt, 0, 3))
    outcome = failed(prepared, prepared.problem or error, chance=0.5)

    async def scenario() -> list[str]:
        link: Any = FakeLink({"fail": [answer]})

        async def connect() -> Any:
            return link

        reports = Reports(connect)
        reports.send(JOB, attempt, outcome)
        async with asyncio.timeout(60):
            while reports.is_busy:
                await asyncio.sleep(0)
        requests: list[str] = link.requests
        return requests

    return asyncio.run(scenario())


def test_a_failure_that_the_server_has_already_is_reported(caplog):
    (request,) = reported_failure(ValueError("no"), "CLIENT-ERROR Job is not leased")
    assert " -attempt=1 -delay=" in request
    assert not caplog.records


@pytest.mark.parametrize(("error", "attempt"), [(jm.GiveUp("no"), 1), (ValueError("no"), 23)])
def test_a_job_that_has_failed_for_good_is_not_tried_again(error, attempt):
    """Whatever fails are left: its hooks were told so. Attempt 23 reports workers that died."""
    (request,) = reported_failure(error, attempt=attempt)
    assert f" -attempt={attempt} -final=1\r\n" in request


def test_a_job_of_an_unknown_task_is_given_back_however_often():
    payload = b'{"v":1,"task":"elsewhere","args":[],"kwargs":{}}'

    def delay_s(times: int) -> float:
        delivery = Delivery(JOB, "q", payload, 1000, times + 1, 0, 2, given_back=times)
        prepared = prepare(jm.App(), delivery)
        assert isinstance(prepared.problem, UnknownTask)
        assert prepared.current.attempt == 1
        outcome = given_back(prepared, prepared.problem, chance=0.5)
        assert isinstance(outcome, GivenBack)
        return outcome.delay_ms / 1000

    delays = [delay_s(times) for times in range(4)]
    assert delays == pytest.approx([0.05, 0.075, 0.1125, 0.169], abs=0.001)
    assert delay_s(2000) == 300
    # One of two apps that share a queue gives a job back fifteen times in 30,000 jobs.
    assert sum(delay_s(times) for times in range(15)) < 60


def test_attempts_that_were_given_back_are_not_taken_for_workers_that_died():
    payload = b'{"v":1,"task":"known","args":[],"kwargs":{}}'
    app = jm.App()
    app.task(name="known")(lambda: None)

    def problem(attempt: int, times: int) -> object:
        delivery = Delivery(JOB, "q", payload, 1000, attempt, 0, 1, given_back=times)
        return prepare(app, delivery).problem

    assert problem(21, 0) is not None
    assert "20 workers died or hung" in str(problem(41, 20))
    assert problem(41, 30) is None


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


def test_without_a_token_the_server_is_not_asked_to_remember_the_sender():
    add, _ = reported("", has_token=False)
    assert f" -follows={JOB}\r\n" in add
    assert "-then" not in add


def test_nothing_follows_a_job_that_was_cancelled_meanwhile():
    requests = reported("CLIENT-ERROR Job was cancelled")
    assert [request.split(" ")[0] for request in requests] == ["add"]
