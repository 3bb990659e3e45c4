"""Tasks that take many jobs at once, in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

import journeyman as jm
from journeyman.errors import UsageError
from journeyman.tasks.batches import check_queues
from journeyman.testing import InMemory


@dataclass
class Page:
    number: int


@dataclass
class Entry:
    text: str


def test_jobs_that_are_ready_run_in_batches_of_the_size():
    app, calls = jm.App(), list[list[int]]()

    @app.batch(3)
    def index(pages: list[int]) -> None:
        calls.append(pages)

    with InMemory(app) as queue:
        jobs = [index.send(number) for number in range(7)]
        assert queue.run_all() == 7
        assert calls == [[0, 1, 2], [3, 4, 5], [6]]
        assert [job.result(timeout=1) for job in jobs] == [None] * 7
        assert {job.queue for job in queue.jobs} == {index.name.replace("<locals>", "")}


def test_each_job_has_its_own_argument_and_result_by_the_annotations():
    app, calls = jm.App(), list[list[Page]]()

    @app.batch(10, within=timedelta(seconds=2), queue="search")
    async def index(pages: list[Page]) -> list[Entry]:
        calls.append(pages)
        return [Entry(f"page {page.number}") for page in pages]

    with InMemory(app) as queue:
        first, second = index.send(Page(1)), index.send(Page(2))
        with pytest.raises(TypeError):
            index.send([Page(1)])  # type: ignore[arg-type]
        queue.run_all()
        assert calls == [[Page(1), Page(2)]]
        assert (first.result(timeout=1), second.result(timeout=1)) == (
            Entry("page 1"),
            Entry("page 2"),
        )
    assert asyncio.run(index([Page(3)])) == [Entry("page 3")]


def test_a_job_that_failed_runs_alone_and_takes_no_other_with_it():
    app, calls = jm.App(), list[list[int]]()

    @app.batch(10, retries=1, backoff=0)
    def index(pages: list[int]) -> None:
        calls.append(pages)
        if 2 in pages:
            raise ValueError("a bad page")

    with InMemory(app) as queue:
        for number in range(4):
            index.send(number)
        queue.run_all(check=False)
        assert calls[0] == [0, 1, 2, 3]
        assert sorted(calls[1:]) == [[0], [1], [2], [3]]
        assert [job.state for job in queue.jobs] == ["done", "done", "dead", "done"]
        assert queue.jobs[2].failure is not None
        assert queue.jobs[2].failure.message == "a bad page"


@pytest.mark.parametrize("returned", [[1], "ab", {1: 2, 2: 3}])
def test_a_function_that_returns_something_else_fails_its_jobs(returned: Any):
    app = jm.App()

    @app.batch(10, retries=3)
    def index(pages: list[int]) -> list[int]:
        found: list[int] = returned
        return found

    with InMemory(app) as queue:
        index.send(1)
        index.send(2)
        queue.run_all(check=False)
        assert [job.state for job in queue.jobs] == ["dead", "dead"]
        assert "one for each job" in str(queue.jobs[0].failure)


def test_chains_and_groups_lead_through_batches():
    app = jm.App()

    @app.batch(10)
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    @app.task
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task
    def one() -> int:
        return 1

    with InMemory(app):
        flow = jm.group(double.call(n) for n in (1, 2, 3)).then(add).send()
        assert flow.result(timeout=1) == 12
        assert one.call().then(double).send().result(timeout=1) == 2
        assert jm.group([one.call()]).then(add).then(double).send().result(timeout=1) == 2


def test_notes_and_middleware_know_the_batch():
    app, seen = jm.App(), list[tuple[Any, ...]]()

    class Note:
        async def around(self, job: jm.CurrentJob, call: Any) -> Any:
            seen.append((job.task, job.args))
            return await call()

    app.use(Note())

    @app.batch(10, name="index")
    def index(pages: list[int]) -> None:
        jm.job().progress(len(pages), 2)
        jm.job().log("halfway")
        jm.job().heartbeat()

    done = list[str]()
    index.on_success(lambda job: done.append(job.id))
    with InMemory(app) as queue:
        jobs = [index.send(1), index.send(2)]
        queue.run_all()
        assert seen == [("index", ([1, 2],))]
        assert [job.progress().done for job in jobs] == [2, 2]
        assert [len(job.progress().log) for job in jobs] == [1, 1]
        assert done == [job.id for job in jobs]


def test_what_cannot_be_a_batch_is_refused():
    app = jm.App()
    for size in (0, 1001, True, 2.5, "10"):
        with pytest.raises(UsageError, match="size of a batch"):
            app.batch(size, name="a")(lambda items: None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes one argument"):
        app.batch(2, name="b")(cast(Any, lambda one, two: None))
    with pytest.raises(UsageError, match="within"):
        app.batch(2, within=-1, name="c")(lambda items: None)
    app.batch(2, name="index", queue="shared")(lambda items: None)
    app.task(name="other", queue="shared")(lambda: None)
    with pytest.raises(UsageError, match="takes its jobs in batches"):
        check_queues(list(app.tasks.values()))
