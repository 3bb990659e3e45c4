"""Apps without a server: the engine of the work queue, attempts of a worker, time on demand."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import journeyman as jm
from journeyman.client import NotFound
from journeyman.errors import TimetableError, UsageError
from journeyman.protocols.workq.commands import Complete
from journeyman.testing import InMemory


class World:
    """An app with one task that does what the test says, and a note of every attempt."""

    def __init__(self, **options) -> None:
        self.app = jm.App()
        self.calls: list[tuple[Any, ...]] = []
        self.failures: list[jm.FailedJob] = []
        self.app.on_failure(self.failures.append)
        self.raises: list[Exception] = []

        def work(*args, **kwargs):
            self.calls.append((args, kwargs, jm.job().attempt))
            if self.raises:
                raise self.raises.pop(0)
            return list(args)

        self.task = self.app.task(name="work", **options)(work)


def test_jobs_are_sent_seen_and_run():
    world = World()
    with InMemory(world.app) as queue:
        job = world.task.send(1, two=2)
        assert queue.assert_sent(world.task, 1, two=2).state == "ready"
        assert queue.run_all() == 1
        assert (queue.jobs[0].state, queue.jobs[0].result) == ("done", [1])
        assert job.result(timeout=60) == [1]
        assert world.calls == [((1,), {"two": 2}, 1)]


def test_what_was_not_sent_is_told_with_what_was():
    world = World()
    with InMemory(world.app) as queue:
        queue.assert_nothing_sent()
        world.task.send("a")
        with pytest.raises(
            AssertionError, match=r"work was not sent with 'b'; sent:\n  work\('a'\)"
        ):
            queue.assert_sent(world.task, "b")
        with pytest.raises(AssertionError, match="1 jobs were sent"):
            queue.assert_nothing_sent()


def test_arguments_go_through_json_as_in_production():
    world = World()
    with InMemory(world.app) as queue:
        world.task.send((1, 2))
        queue.run_all()
    assert world.calls == [(([1, 2],), {}, 1)]


def test_the_app_has_its_own_broker_again_afterwards():
    app = jm.App("journeyman://127.0.0.1:1")
    before = app.broker
    with InMemory(app):
        assert app.broker is not before
    assert app.broker is before


@pytest.mark.parametrize(
    ("retry_on", "raised", "attempts"),
    [
        (None, jm.GiveUp("no such user"), 1),
        (ConnectionError, ValueError("7"), 1),
        ((ConnectionError, TimeoutError), ConnectionResetError("busy"), 2),
        (ConnectionError, jm.Retry("later"), 2),
        (None, ValueError("7"), 2),
    ],
)
def test_what_a_retry_cannot_help_is_not_tried_again(retry_on, raised, attempts):
    world = World(retries=3, retry_on=retry_on, backoff=1)
    world.raises = [raised]
    with InMemory(world.app) as queue:
        job = world.task.send()
        if attempts == 2:
            queue.run_all()
            queue.advance(seconds=2)
            assert job.result(timeout=60) == []
        else:
            with pytest.raises(jm.JobFailed, match=str(raised)):
                queue.run_all()
            queue.advance(hours=1)
            assert [failed.attempt for failed in world.failures] == [1]
            assert queue.jobs[0].state == "dead"
    assert len(world.calls) == attempts


def test_a_job_says_its_state():
    world = World(retries=1, backoff=5)
    with InMemory(world.app) as queue:
        later = world.task.at(timedelta(seconds=9)).send()
        assert later.state() == "scheduled"
        chain = world.task.call(1).then(world.task).send()
        group = jm.group([world.task.call(2)]).then(world.task).send()
        world.raises = [ValueError("7"), ValueError("7")]
        job = world.task.options(priority=9).send()
        states = [(job.state(), chain.state(), group.state())]
        queue.run_all()
        states.append((job.state(), chain.state(), group.state()))
        queue.advance(seconds=6, check=False)
        states.append((job.state(), chain.state(), group.state()))
        assert states == [
            ("ready", "ready", "waiting"),
            ("retrying", "retrying", "done"),
            ("done", "done", "done"),
        ]
        assert asyncio.run(job.astate()) == "done"
        assert job.delete()
        assert job.state() == "gone"


def test_a_failure_shows_the_lines_of_the_task_and_not_those_of_the_worker():
    world = World()
    world.raises = [ValueError("7")]
    with InMemory(world.app) as queue:
        world.task.send()
        with pytest.raises(jm.JobFailed) as failed:
            queue.run_all()
    trace = failed.value.failure.traceback
    assert "in work" in trace
    assert "running.py" not in trace
    assert trace.rstrip() in failed.value.__notes__[0]


def test_what_is_due_at_the_end_of_an_advance_runs():
    app = jm.App()

    @app.task
    def nap() -> str:
        jm.sleep(days=7)
        return "rested"

    with InMemory(app) as queue:
        jobs = [nap.send() for _ in range(20)]  # each is added, and parked, a moment later
        queue.run_all()
        queue.advance(days=7, seconds=-1)
        assert {job.state for job in queue.jobs} == {"waiting"}
        queue.advance(seconds=1)
        assert [job.result(timeout=1) for job in jobs] == ["rested"] * 20


def test_a_failing_job_is_tried_again_with_growing_delays_and_then_dead():
    world = World(retries=2, backoff=jm.Backoff(10, factor=3, jitter=0))
    world.raises = [ValueError(n) for n in range(3)]
    with InMemory(world.app) as queue:
        job = world.task.send()
        assert queue.run_all() == 1
        assert (queue.jobs[0].state, queue.jobs[0].attempts) == ("retrying", 1)
        assert queue.advance(seconds=9.9) == 0
        assert queue.advance(seconds=0.2) == 1
        assert queue.advance(seconds=29) == 0
        with pytest.raises(jm.JobFailed, match="ValueError: 2") as raised:
            queue.advance(seconds=2)
        assert isinstance(raised.value.__cause__, ValueError)
        assert queue.jobs[0].state == "dead"
        with pytest.raises(jm.JobFailed):
            job.result(timeout=60)
    assert [attempt for _, _, attempt in world.calls] == [1, 2, 3]
    assert [(f.task, f.attempt, str(f.failure)) for f in world.failures] == [
        ("work", 3, "ValueError: 2")
    ]


def test_a_task_chooses_its_own_delay():
    world = World(retries=1)
    world.raises = [jm.Retry("busy", after=timedelta(hours=1))]
    with InMemory(world.app) as queue:
        world.task.send()
        queue.run_all()
        assert queue.advance(minutes=59) == 0
        assert queue.advance(minutes=2) == 1
        assert queue.jobs[0].state == "done"


def test_a_failure_hook_that_raises_stops_nothing():
    world = World()
    world.app.on_failure(lambda failed: 1 / 0)
    world.raises = [ValueError()]
    with InMemory(world.app) as queue:
        world.task.send()
        queue.run_all(check=False)
    assert len(world.failures) == 1


def test_a_unique_job_is_there_once_until_it_is_finished():
    world = World(unique="{args[0]}")
    with InMemory(world.app) as queue:
        first, second = world.task.send("a", 1), world.task.send("a", 2)
        assert (first.id, first.is_new, second.is_new) == (second.id, True, False)
        assert world.task.send("b").is_new
        queue.run_all()
        assert world.task.send("a", 3).is_new
        queue.run_all()
    assert [args for args, _, _ in world.calls] == [("a", 1), ("b",), ("a", 3)]


def test_a_job_that_is_unique_for_a_time_is_not_sent_twice_within_it():
    world = World(unique_for=3600, ttl=7200)
    with InMemory(world.app) as queue:
        assert [world.task.send("a").is_new, world.task.send("b").is_new] == [True, True]
        queue.advance(minutes=59)
        again = world.task.send("a")
        assert (again.is_new, again.result(timeout=60)) == (False, ["a"])
        queue.advance(minutes=2)
        assert world.task.send("a").is_new
        queue.run_all()
    assert [args for args, _, _ in world.calls] == [("a",), ("b",), ("a",)]


def test_a_failed_job_makes_room_for_one_that_is_unique_for_a_time():
    world = World(unique="{args[0]}", unique_for=timedelta(days=1))
    world.raises = [ValueError()]
    with InMemory(world.app) as queue:
        world.task.send("a")
        queue.run_all(check=False)
        assert [world.task.send("a", 2).is_new, world.task.send("a", 3).is_new] == [True, False]
        queue.run_all()
        assert not world.task.send("a", 4).is_new


def test_a_rate_holds_jobs_back():
    world = World(rate="2/m")
    with InMemory(world.app) as queue:
        for number in range(5):
            world.task.send(number)
        assert queue.run_all() == 2
        assert queue.advance(seconds=59) == 0
        assert queue.advance(seconds=2) == 2
        assert queue.advance(minutes=1) == 1


def test_a_rate_of_each_key_holds_back_jobs_of_that_key_alone():
    world = World(key="{args[0]}", key_rate="1/m")
    with InMemory(world.app) as queue:
        for key in "aab":
            world.task.send(key)
        assert queue.run_all() == 2
        assert queue.advance(seconds=59) == 0
        assert queue.advance(seconds=2) == 1
    assert [args for args, _, _ in world.calls] == [("a",), ("b",), ("a",)]


def test_keys_of_a_fair_queue_take_turns_by_their_weights():
    world = World(fair="{args[0]}", weights={"gold": 2})
    with InMemory(world.app) as queue:
        for key in ("a", "a", "a", "gold", "gold", "gold", "b"):
            world.task.send(key)
        queue.run_all()
    names = [args[0] for args, _, _ in world.calls]
    assert names == ["a", "gold", "gold", "b", "a", "gold", "a"]


def test_a_debounced_job_starts_after_the_last_send_with_its_arguments():
    world = World(debounce=10, unique="{args[0]}")
    with InMemory(world.app) as queue:
        first = world.task.send("page", "old")
        other = world.task.send("other", "old")
        queue.advance(seconds=9)
        last = world.task.send("page", "new")
        assert first.id == last.id != other.id
        assert queue.advance(seconds=9) == 1
        assert queue.advance(seconds=2) == 1
        assert first.result(timeout=1) == last.result(timeout=1)
        assert len(queue.jobs) == 2
    assert [args for args, _, _ in world.calls] == [("other", "old"), ("page", "new")]


def test_a_send_while_a_debounced_job_runs_is_not_lost():
    app, seen = jm.App(), list[str]()

    @app.task(name="index", debounce=10, unique="{page}")
    def index(page: str, text: str) -> None:
        seen.append(text)
        if text in ("one", "two"):  # sent while it runs, twice
            ids = {index.send(page, "lost").id for _ in range(2)}
            ids.add(index.send(page, {"one": "two", "two": "three"}[text]).id)
            assert len(ids) == 1

    with InMemory(app) as queue:
        index.send("page", "one")
        for _ in range(4):
            queue.advance(seconds=10)
    assert seen == ["one", "two", "three"]


def test_a_debounced_chain_is_moved_as_a_whole():
    app, seen = jm.App(), list[str]()

    @app.task(name="index", debounce=10, unique="args")
    def index(page: str) -> str:
        return page

    @app.task(name="note")
    def note(page: str) -> str:
        seen.append(page)
        return page

    with InMemory(app) as queue:
        jobs = [index.call("page").then(note).send() for _ in range(2)]
        queue.advance(seconds=10)
        assert [job.result(timeout=1) for job in jobs] == ["page", "page"]
    assert seen == ["page"]


def test_what_is_not_sent_alone_cannot_be_debounced():
    app = jm.App()

    @app.task(name="index", debounce=10)
    def index(page: str) -> None: ...

    with InMemory(app):
        with pytest.raises(jm.UsageError, match="index has debounce, which is for send alone"):
            jm.group([index.call("page")]).send()
        with pytest.raises(jm.UsageError, match="debounce, which says when the job starts"):
            index.at(timedelta(seconds=5)).send("page")


def test_a_cancelled_job_is_called_cancelled():
    world = World()
    with InMemory(world.app):
        job = world.task.send("a")
        assert job.cancel()
        with pytest.raises(jm.JobCancelled, match=f"^job {job.id} was cancelled$"):
            job.result(timeout=1)


def test_results_of_a_large_group_are_in_the_order_of_the_calls():
    world = World()
    with InMemory(world.app) as queue:
        jobs = jm.group(world.task.call(number) for number in range(250)).send()
        assert jobs.results(timeout=60) == [[number] for number in range(250)]
        assert asyncio.run(jobs.aresults()) == [[number] for number in range(250)]
        world.raises = [ValueError("no")]
        failing = jm.group(world.task.call(number) for number in range(9)).send()
        queue.run_all(check=False)
        with pytest.raises(jm.JobFailed, match=f"job {failing.jobs[0].id} failed"):
            failing.results(timeout=60)


def test_priority_and_time_decide_what_runs_first():
    world = World()
    with InMemory(world.app) as queue:
        world.task.at(timedelta(hours=1)).send("later")
        world.task.send("low")
        world.task.options(priority=5).send("high")
        assert queue.jobs[0].state == "scheduled"
        queue.run_all()
        assert queue.advance(hours=1) == 1
    assert [args for args, _, _ in world.calls] == [("high",), ("low",), ("later",)]


def test_a_job_ends_with_its_ttl():
    world = World(ttl=60)
    with InMemory(world.app) as queue:
        job = world.task.send()
        queue.run_all()
        queue.advance(minutes=2)
        assert queue.jobs[0].state == "gone"
        with pytest.raises(NotFound):
            job.result(timeout=60)


def test_waiting_for_a_result_runs_what_is_ready():
    world = World()
    with InMemory(world.app):
        assert world.task.send(5).result(timeout=60) == [5]

        async def endpoint() -> tuple[Any, Any]:
            return await (await world.task.asend(6)), world.task.send(7).result(timeout=60)

        assert asyncio.run(endpoint()) == ([6], [7])


def test_async_functions_and_their_time_limits():
    app = jm.App()

    @app.task(name="hurry", timeout=60)
    async def hurry() -> str:
        await asyncio.sleep(0)
        return "done"

    @app.task(name="wait", timeout=0.01)
    async def wait() -> None:
        await asyncio.sleep(60)

    with InMemory(app) as queue:
        assert hurry.send().result(timeout=60) == "done"
        wait.send()
        with pytest.raises(jm.JobFailed, match=r"JobTimeout: took longer than 0.01 s"):
            queue.run_all()


def test_middleware_runs_around_every_job_outermost_first():
    world = World()
    seen = []

    class Note:
        def __init__(self, name: str) -> None:
            self.name = name

        async def around(self, job, call):
            seen.append((self.name, job.task, job.args))
            return ["noted", *(await call())]

    world.app.use(Note("outer"))
    world.app.use(Note("inner"))
    with InMemory(world.app):
        assert world.task.send(1).result(timeout=60) == ["noted", "noted", 1]
    assert seen == [("outer", "work", (1,)), ("inner", "work", (1,))]


def test_what_middleware_raises_is_the_outcome():
    world = World()

    class Refuse:
        async def around(self, job, call):
            raise PermissionError("not today")

    world.app.use(Refuse())
    with InMemory(world.app) as queue:
        world.task.send()
        with pytest.raises(jm.JobFailed, match="PermissionError: not today"):
            queue.run_all()
    assert world.calls == []


# -- chains and groups ---------------------------------------------------------------------------


def test_a_chain_passes_results_on_and_gives_the_last():
    app = jm.App()
    add = app.task(name="add")(lambda a, b: a + b)
    text = app.task(name="text")(lambda number, *, unit: f"{number} {unit}")
    with InMemory(app) as queue:
        job = add.call(1, 2).then(add, 10).then(text, unit="kg").send()
        assert job.result(timeout=60) == "13 kg"
        assert [sent.args for sent in queue.jobs] == [(1, 2), (3, 10), (13,)]
        assert job.is_done()


def test_a_chain_ends_where_a_job_fails():
    world = World()
    world.raises = [ValueError("first")]
    with InMemory(world.app) as queue:
        job = world.task.call().then(world.task).send()
        with pytest.raises(jm.JobFailed, match="ValueError: first"):
            job.result(timeout=60)
        assert job.is_done()
        assert len(queue.jobs) == 1


def test_a_job_that_is_repeated_adds_its_follower_once():
    world = World()
    with InMemory(world.app) as queue:
        call = world.task.call(1).then(world.task)
        order = call.order()
        call.app.broker.add(order)
        delivery = queue.lease_or_none()
        assert delivery is not None
        queue.advance(minutes=1)
        assert delivery.job_id == str(order.job_id)
        assert len(world.calls) == 2  # the repeated job and its follower
        assert [job.state for job in queue.jobs] == ["done", "done"]


def test_a_group_is_followed_by_one_job_with_all_results():
    app = jm.App()
    square = app.task(name="square")(lambda n: n * n)
    total = app.task(name="total")(lambda numbers, start: start + sum(numbers))
    with InMemory(app) as queue:
        group = jm.group(square.call(n) for n in range(4))
        assert group.send().results(timeout=60) == [0, 1, 4, 9]

        async def send_and_wait() -> list[int]:
            return await (await group.asend()).aresults()

        assert asyncio.run(send_and_wait()) == [0, 1, 4, 9]
        job = jm.group(square.call(n) for n in range(4)).then(total, 100).send()
        assert [sent.state for sent in queue.sent(total)] == ["waiting"]
        assert job.result(timeout=60) == 114


def test_if_a_member_fails_so_does_what_follows_the_group():
    world = World()
    world.raises = [ValueError("one")]
    with InMemory(world.app) as queue:
        after = world.app.task(name="after")(lambda numbers: numbers)
        job = jm.group([world.task.call(), world.task.call()]).then(after).send()
        queue.run_all(check=False)
        with pytest.raises(jm.JobFailed):
            job.result(timeout=60)


def test_what_always_follows_a_group_runs_however_its_members_end():
    world = World()
    world.raises = [ValueError("one")]
    seen: list[list[jm.Ended[Any]]] = []
    with InMemory(world.app) as queue:

        @world.app.task(name="after")
        def after(ended: list[jm.Ended[list[Any]]], album: int) -> int:
            seen.append(ended)
            return album

        calls = [world.task.call(1), world.task.call(2), world.task.call(3)]
        job = jm.group(calls).always(after, album=7).send()
        gone = next(job for job in queue.jobs if job.args == (3,))
        assert world.app.job(gone.id).delete()
        assert job.result(timeout=60) == 7
    ((failed, done, missing),) = seen
    assert failed.failure is not None
    assert (failed.succeeded, str(failed.failure)) == (False, "ValueError: one")
    assert done == jm.Ended([2])
    assert missing.failure is not None
    assert missing.failure.error == "NotFound"


def test_failure_hooks_are_called_when_workers_keep_dying():
    world = World(retries=2, lease=10)
    with InMemory(world.app) as queue:
        job = world.task.send("deadly")
        for _ in range(22):
            assert queue.lease_or_none() is not None
            queue._now += timedelta(seconds=11)
        queue.run_all(check=False)
        with pytest.raises(jm.JobFailed, match="WorkerLost: 22 workers died or hung"):
            job.result(timeout=60)
    assert world.calls == []
    (failed,) = world.failures
    assert (failed.args, failed.attempt, failed.failure.error) == (("deadly",), 23, "WorkerLost")


def test_a_group_of_unique_calls_adds_each_key_once():
    world = World(unique="{args[0]}")
    with InMemory(world.app) as queue:
        sent = jm.group(world.task.call(key) for key in "aba").send()
        assert sent.results(timeout=60) == [["a"], ["b"], ["a"]]
        assert len(queue.jobs) == 2


def test_an_empty_group_is_refused():
    with pytest.raises(UsageError, match="a group needs at least one call"):
        jm.group([])


# -- timetables ----------------------------------------------------------------------------------


def test_cron_and_every_fire_as_time_passes():
    app = jm.App()
    seen = []

    @app.cron("0 2 * * *", tz="Europe/Berlin")
    def nightly() -> None:
        seen.append(("nightly", queue.now()))

    @app.every(timedelta(hours=6))
    async def often() -> None:
        seen.append(("often", queue.now()))

    with InMemory(app, now=datetime(2026, 3, 28, 12, tzinfo=UTC)) as queue:
        queue.advance(hours=18)  # over the night in which the clocks are set forward
    hours = [(name, at.day, at.hour) for name, at in seen]
    assert hours == [("often", 28, 18), ("often", 29, 0), ("nightly", 29, 1), ("often", 29, 6)]


def needs_something(needed: int) -> None:
    """Cannot be called by a timetable."""


def test_a_wrong_expression_is_refused_where_it_is_written():
    with pytest.raises(TimetableError, match=r"timetable of .*<lambda>: cron: field 1"):
        jm.App().cron("61 * * * *")(lambda: None)
    with pytest.raises(TypeError, match="missing a required argument"):
        jm.App().cron("* * * * *")(needs_something)  # type: ignore[arg-type]


def test_two_tasks_of_a_queue_agree_on_its_limits():
    app = jm.App(queue="shared")
    app.task(name="one", rate="1/s")(lambda: None)
    app.task(name="two", rate="2/s")(lambda: None)
    with pytest.raises(UsageError, match="one and two ask for different limits of the queue"):
        InMemory(app)


def test_the_fixture_of_the_package_does_the_same(journeyman_in_memory):
    world = World()
    queue = journeyman_in_memory(world.app)
    world.task.send(1)
    assert queue.run_all() == 1


# -- what must not break a worker ------------------------------------------------------------------


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("result", [b"[" * 200_000, b"\xff", b"{"])
def test_group_with_a_result_that_is_not_a_value_fails_in_words(result: bytes):
    """A worker of another kind may have completed the job."""
    world = World()
    with InMemory(world.app) as queue:
        job = jm.group([world.task.call()]).then(world.task).send()
        delivery = queue.lease_or_none()
        assert delivery is not None
        queue._decide(Complete(UUID(delivery.job_id).bytes, result))
        assert queue.run_all(check=False) == 1
        with pytest.raises(jm.JobFailed, match=r"result of job .* cannot be read"):
            job.result(timeout=1)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not a task envelope: ''"),
        (b"\xff\xfe\x00", "not a task envelope"),
        (b"[" * 200_000, "not a task envelope: '\\[\\["),
        (b'{"v":1,"task":"work","args":3,"kwargs":{}}', "not a task envelope"),
        (b'{"v":1,"task":"work","args":"ab","kwargs":{}}', "there must be a list, not 'ab'"),
        (b'{"v":1,"task":"work","args":[],"kwargs":[]}', "there must be a dict"),
        (b'{"v":1,"task":"work","args":[],"kwargs":{},"trace":5}', "there must be a dict, not 5"),
        (b'{"v":1,"task":"work","args":[],"kwargs":{},"gather":[1]}', "AttributeError"),
        (b'{"v":1,"task":"work","args":[],"kwargs":{},"gather":["1"]}', "badly formed"),
        (b'{"v":1,"task":"work","args":[],"kwargs":{},"then":[{}]}', "KeyError: 'task'"),
        (
            b'{"v":1,"task":"' + b"n" * 900_000 + b'","args":[],"kwargs":{}}',
            "unknown task 'n{100}'",
        ),
        (b'{"v":2,"task":"work","args":[],"kwargs":{}}', "envelope version 2"),
        (b'{"v":1,"task":"a\\"\\r\\nb","args":[],"kwargs":{}}', r"unknown task 'a\"\\r\\nb'"),
        (b'{"v":1,"task":["work"],"args":[],"kwargs":{}}', "there must be a str"),
        (b'{"v":1,"task":"work","args":[],"kwargs":{},"then":[1]}', "there must be a dict, not 1"),
    ],
)
def test_payloads_of_others_fail_in_words(payload: bytes, said: str):
    world = World()
    with InMemory(world.app) as queue:
        order = world.task.call().order()
        order.payload = payload
        assert queue.add(order)
        assert queue.run_all(check=False) == 1
        with pytest.raises(jm.JobFailed, match=said):
            world.app.job(order.job_id).result(timeout=1)
    assert len(world.failures) == 1
    assert not world.calls


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x" * 2_000_000, "takes 2000002 bytes, at most 1048576 fit"),
        (deep(100_000), "cannot encode the result"),
        (float("nan"), "cannot encode the result"),
        ({1, 2}, "cannot encode the result"),
        ("\ud800", "cannot encode the result"),
    ],
)
def test_results_that_do_not_fit_fail_in_words(value: object, said: str):
    app = jm.App()
    with InMemory(app) as queue:
        job = app.task(name="big")(lambda: value).send()
        queue.run_all(check=False)
        with pytest.raises(jm.JobFailed, match=said):
            job.result(timeout=1)


def test_a_result_that_needs_time_to_pass_is_not_waited_for():
    """No time passes by itself: it would be waited for without end."""
    world = World(retries=1)
    world.raises = [ValueError("once")]
    with InMemory(world.app) as queue:
        job = world.task.send(1)
        with pytest.raises(TimeoutError, match="call advance"):
            job.result(timeout=1)
        queue.advance(hours=1)
        assert job.result() == [1]


def test_arguments_that_do_not_fit_are_refused_where_they_are_sent():
    world = World()
    for value in (deep(100_000), "\ud800", {1, 2}, "x" * 11_000_000):
        with pytest.raises(UsageError, match="arguments of work"):
            world.task.call(value).order()


# -- where functions run --


@pytest.mark.parametrize("has_middleware", [False, True])
def test_sync_functions_run_in_the_thread_of_the_caller_outside_of_any_loop(has_middleware):
    app = jm.App()
    threads: list[int] = []

    async def value() -> int:
        return 5

    @app.task(name="blocking")
    def blocking() -> int:
        threads.append(threading.get_ident())
        return asyncio.run(value())

    @app.task(name="nested")
    def nested() -> Any:
        return blocking.send().result(timeout=1)

    if has_middleware:
        app.use(Passing())
    with InMemory(app) as queue:
        blocking.send()
        job = nested.send()
        queue.run_all()
        assert job.result() == 5
        queue.advance(hours=1)
    assert set(threads) == {threading.get_ident()}


class Passing:
    async def around(self, job: jm.CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()


def test_sync_functions_of_asyncio_tests_run_outside_of_the_loop():
    app = jm.App()

    @app.task(name="blocking")
    def blocking() -> str:
        asyncio.run(asyncio.sleep(0))
        return "done"

    async def test() -> None:
        job = await blocking.asend()
        assert await queue.arun_all() == 1
        assert await job.aresult() == "done"
        blocking.send()
        assert queue.run_all() == 1

    with InMemory(app) as queue:
        asyncio.run(test())


def test_what_a_function_sees_of_its_caller_is_what_middleware_set():
    app = jm.App()
    seen: list[str] = []
    variable: ContextVar[str] = ContextVar("variable", default="none")

    class Setting:
        async def around(self, job: jm.CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
            seen.append(variable.get())
            variable.set("middleware")
            return await call()

    app.use(Setting())
    app.task(name="look")(lambda: seen.append(variable.get()))
    variable.set("caller")
    with InMemory(app) as queue:
        app.tasks["look"].send()
        queue.run_all()
    assert seen == ["caller", "middleware"]
    assert variable.get() == "caller"


@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_is_no_exception_of_a_task_ends_run_all(error: type[BaseException]):
    app = jm.App()

    @app.task(name="stop")
    def stop() -> None:
        raise error("now")

    with InMemory(app) as queue:
        stop.send()
        with pytest.raises(error, match="now"):
            queue.run_all()


def test_system_exit_fails_its_job_as_in_a_worker():
    app = jm.App()
    app.task(name="leave")(lambda: sys.exit(3))
    with InMemory(app) as queue:
        app.tasks["leave"].send()
        queue.run_all(check=False)
        assert str(queue.jobs[0].failure) == "SystemExit: 3"


def test_the_last_failure_of_a_job_that_waits_for_a_retry_can_be_read():
    world = World(retries=1, backoff=60)
    world.raises = [ValueError("the first")]
    with InMemory(world.app) as queue:
        job = world.task.send()
        queue.run_all()
        assert str(queue.jobs[0].failure) == "ValueError: the first"
        with pytest.raises(
            TimeoutError, match=r"call advance\(\) first; its last attempt failed: V"
        ):
            job.result(timeout=1)
        queue.advance(minutes=2)
        assert queue.jobs[0].failure is None


def test_hooks_of_a_task_are_called_with_its_jobs():
    app, heard = jm.App(), list[tuple[str, object]]()

    @app.task(retries=1, backoff=1)
    def flaky(name: str) -> str:
        if name == "never" or jm.job().attempt == 1:
            raise ValueError(name)
        return name.upper()

    @flaky.on_success
    def succeeded(job: jm.DoneJob) -> None:
        heard.append(("done", job.value))
        raise RuntimeError("a hook that raises stops nothing")

    @flaky.on_retry
    def tried_again(job: jm.FailedJob) -> None:
        heard.append(("again", job.failure.message))

    @flaky.on_failure
    def gave_up(job: jm.FailedJob) -> None:
        heard.append(("dead", job.args))

    @app.on_failure
    def of_all(job: jm.FailedJob) -> None:
        heard.append(("dead, of any task", job.task))

    with InMemory(app) as queue:
        flaky.send("once")
        flaky.send("never")
        queue.advance(hours=1, check=False)
    assert sorted(heard, key=str) == sorted(
        [
            ("again", "once"), ("again", "never"), ("done", "ONCE"), ("dead", ("never",)),
            ("dead, of any task", flaky.name),
        ], key=str,
    )  # fmt: skip
