"""Tasks that take many jobs at once, and turns of keys, on real workers and a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import journeyman as jm
from journeyman.tasks.worker import Worker
from tests.support.servers.workq_process import WorkqProcess


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with WorkqProcess(tmp_path_factory.mktemp("server"), memory=True) as server:
        yield f"journeyman://127.0.0.1:{server.workq_port}"


def run_burst(app: jm.App, **options: object) -> None:
    asyncio.run(asyncio.wait_for(Worker(app, burst=True, **options).run(), 60))  # type: ignore[arg-type]


def test_a_burst_runs_batches_beside_other_tasks(url):
    app, calls = jm.App(url), list[int]()

    @app.batch(150, name="burst.index")
    def index(pages: list[int]) -> list[int]:
        calls.append(len(pages))
        return [page + 1 for page in pages]

    @app.batch(5, name="burst.aindex")
    async def aindex(pages: list[int]) -> None:
        calls.append(-len(pages))

    @app.task(name="burst.add", queue="burst.other")
    def add(one: int, two: int) -> int:
        return one + two

    jobs = jm.group(index.call(number) for number in range(400)).send()
    jm.group(aindex.call(number) for number in range(5)).send()
    other = add.send(20, 22)
    run_burst(app, concurrency=1)
    assert jobs.results(timeout=30) == list(range(1, 401))
    assert other.result(timeout=30) == 42
    # A lease is also bounded by its bytes, so a batch may be smaller than its size.
    sizes = [size for size in calls if size > 0]
    assert sum(sizes) == 400
    assert max(sizes) == 150
    assert sum(size for size in calls if size < 0) == -5
    app.close()


def test_failed_jobs_are_retried_alone(url):
    app, calls = jm.App(url), list[list[int]]()

    @app.batch(10, name="failing.index", retries=1, backoff=0)
    def index(pages: list[int]) -> None:
        calls.append(pages)
        if 2 in pages:
            raise ValueError("a bad page")

    jobs = [index.send(number) for number in range(4)]
    run_burst(app)
    assert calls[0] == [0, 1, 2, 3]
    assert sorted(calls[1:]) == [[0], [1], [2], [3]]
    assert [job.state() for job in jobs] == ["done", "done", "dead", "done"]
    app.close()


def test_a_batch_waits_for_more_jobs_and_a_cancelled_one_is_left_out(url):
    app, calls, ran = jm.App(url), list[list[int]](), threading.Event()

    @app.batch(3, within=3600, name="waiting.index")
    def index(pages: list[int]) -> None:
        calls.append(pages)
        ran.set()

    async def main() -> None:
        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        first = await index.asend(1)
        while await first.astate() != "running":
            await asyncio.sleep(0.01)
        dropped = await index.asend(2)
        while await dropped.astate() != "running":
            await asyncio.sleep(0.01)
        assert calls == []
        await dropped.acancel()
        last = await index.asend(3)
        await asyncio.wait_for(asyncio.gather(first.aresult(), last.aresult()), 60)
        # The jobs in hand of a worker that stops are run, however long their batch could wait.
        rest = await index.asend(4)
        while await rest.astate() != "running":
            await asyncio.sleep(0.01)
        worker.stop()
        await asyncio.wait_for(running, 60)
        assert await rest.astate() == "done"
        assert await dropped.astate() == "cancelled"
        await app.aclose()

    asyncio.run(main())
    assert calls == [[1, 3], [4]]
    app.close()


def test_a_batch_that_takes_too_long_is_interrupted(url):
    app = jm.App(url)

    @app.batch(10, name="late.index", timeout=0.2)
    def index(pages: list[int]) -> None:
        threading.Event().wait(0.5)
        while True:
            pages.sort()

    jobs = [index.send(1), index.send(2)]
    run_burst(app)
    for job in jobs:
        with pytest.raises(jm.JobFailed, match="JobTimeout"):
            job.result(timeout=30)
    app.close()


def test_tenants_of_a_fair_task_take_turns(url):
    app, calls = jm.App(url), list[str]()

    @app.task(name="fair.export", queue="fair", fair="{tenant}", weights={"gold": 2})
    def export(tenant: str) -> None:
        calls.append(tenant)

    @app.task(name="fair.first", queue="fair", fair="{tenant}", weights={"gold": 2}, priority=9)
    def first(tenant: str) -> None:
        calls.append(tenant.upper())

    for tenant in ("a", "a", "a", "gold", "gold", "gold", "b c"):
        export.send(tenant)
    first.send("a")
    run_burst(app, concurrency=1)
    assert calls == ["A", "a", "gold", "gold", "b c", "a", "gold", "a"]
    app.close()


def test_a_debounced_task_runs_once_after_the_last_send(url):
    app, calls = jm.App(url), list[str]()

    @app.task(name="moved.index", queue="moved", debounce=1.5, unique="{page}")
    def index(page: str, text: str) -> str:
        calls.append(text)
        return text

    async def run() -> None:
        jobs = [
            await asyncio.to_thread(index.send, "page", "one"),
            await index.asend("page", "two"),
        ]
        assert jobs[0].id == jobs[1].id
        assert await jobs[0].astate() == "scheduled"
        worker = Worker(app, concurrency=1)
        running = asyncio.create_task(worker.run())
        assert await jobs[0].aresult(timeout=30) == "two"
        worker.stop()
        await running
        await app.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert calls == ["two"]
