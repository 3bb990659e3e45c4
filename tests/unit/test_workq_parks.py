"""Parked jobs: woken once for each wait, kept through restarts, and hidden from the original."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import journeyman as jm
from journeyman.engines.workq import parks
from journeyman.engines.workq.messages import WorkqDue
from journeyman.errors import UsageError
from journeyman.folds import workq as fold
from journeyman.formats import ledger, workq
from journeyman.logs.workq.cleaning import Trace
from journeyman.logs.workq.handover import OriginalReplay
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.workq.replies import DONE, JobList, LeasedJobs, StepList
from journeyman.tasks.steps import Parked, StepBook
from journeyman.testing import InMemory
from journeyman.units import NS_PER_S
from tests.support.workq_story import DAY_MS, LEASED_AGAIN, NOT_LEASED, A, B, Story
from tests.support.workq_views import folded, jobs_of

DAY_S = 86_400


@pytest.fixture
def story() -> Story:
    story = Story()
    story.start()
    return story


def park(story: Story, attempt: int = 1, **wait: Any) -> Any:
    return story.decide(ask.Park(A, ask.JobWait("wait", **wait), attempt))


def lease(story: Story) -> int:
    """The number of the attempt; 0: no job is ready."""
    reply = story.decide(ask.Lease(("q",), 0, 1, "w"))
    return reply.jobs[0].attempt if isinstance(reply, LeasedJobs) else 0


def state(story: Story) -> str:
    reply = story.decide(ask.InspectJob(A))
    return reply.jobs[0].state if isinstance(reply, JobList) else "gone"


def wakes(story: Story) -> int:
    return sum(record.command == workq.Command.WAKE for record in story.log)


def test_a_sleep_ends_once_with_restarts_at_any_time(story):
    assert park(story, within_ms=10_000) == DONE
    assert state(story) == "waiting"
    assert lease(story) == 0
    story.wait(5)
    story.restart()
    assert lease(story) == 0
    story.restart()
    story.wait(6)
    story.restart()
    assert story.steps() == {("wait", 1): b""}
    assert lease(story) == 2
    assert wakes(story) == 1
    assert jobs_of(story.engine) == folded(story.log, story.now_ns)


@pytest.mark.parametrize("is_before", [False, True])
def test_an_event_counts_before_and_after_the_wait(story, is_before):
    if is_before:
        assert story.decide(ask.Emit("x:1", b"7")) == DONE
        reply = park(story, event="x:1")
        assert isinstance(reply, StepList)  # the job stays leased
        assert reply.steps[0].value == b"7"
        assert wakes(story) == 0
        return
    assert park(story, event="x:1") == DONE
    story.restart()
    assert story.decide(ask.Emit("x:1", b"7")) == DONE
    assert story.steps() == {("wait", 1): b"7"}
    assert lease(story) == 2
    assert story.decide(ask.Emit("x:1", b"7")) == DONE
    refused = ask.RefusedLine(ask.Complaint.EVENT_DIFFERS)
    assert story.decide(ask.Emit("x:1", b"8")) == refused
    assert wakes(story) == 1


def test_one_event_wakes_all_that_wait_for_it(story):
    ids = [A]
    park(story, event="e")
    for number in range(250):
        job_id = bytes.fromhex(f"{number + 16:08x}00004000800000000000000a")
        ids.append(job_id)
        story.decide(ask.Add(job_id, "q", DAY_MS, DAY_MS, b""))
        story.decide(ask.Lease(("q",), 0, 1, "w"))
        story.decide(ask.Park(job_id, ask.JobWait("wait", event="e"), 1))
    story.decide(ask.Emit("e", b""))
    for _ in range(10):
        story.decide(WorkqDue())
    assert wakes(story) == len(ids)
    assert all(story.steps(each) == {("wait", 1): b""} for each in ids)


def park_many(story: Story, count: int) -> list[bytes]:
    """Jobs that wait for the event e."""
    ids = [bytes.fromhex(f"{number + 16:08x}00004000800000000000000a") for number in range(count)]
    for job_id in ids:
        story.decide(ask.Add(job_id, "q", DAY_MS, DAY_MS, b""))
        story.decide(ask.Lease(("q",), 0, 1, "w"))
        story.decide(ask.Park(job_id, ask.JobWait("wait", event="e"), 1))
    return ids


def test_a_large_value_of_an_event_wakes_few_jobs_at_a_time_and_is_in_memory_once(story):
    ids, value = park_many(story, 60), b"v" * ask.MAX_STEP_BYTES
    story.decide(ask.Emit("e", value))
    assert sum(isinstance(each, ledger.StepDone) for each in story.ledger) < 10
    for _ in range(60):
        story.decide(WorkqDue())
    assert wakes(story) == len(ids)
    for _ in range(2):
        steps = story.engine._state.extensions.steps
        assert len(value) < steps.size < 2 * len(value)
        assert len({id(story.steps(each)["wait", 1]) for each in ids}) == 1
        story.restart()
    for job_id in ids:
        story.decide(ask.Delete(job_id))
    assert story.engine._state.extensions.steps.size == 0


def test_an_event_is_not_forgotten_before_it_has_woken_all_that_wait(story):
    """The clock is set, or the server was down for long."""
    ids = park_many(story, 250)
    story.decide(ask.Emit("e", b"1"))
    for is_restarted in (False, True):
        story.now_ns += 40 * DAY_S * NS_PER_S
        if is_restarted:
            story.restart()
        story.decide(WorkqDue(limit=10))
    for _ in range(10):
        story.decide(WorkqDue())
    assert wakes(story) == len(ids)
    extensions = story.engine._state.extensions
    assert not extensions.ringing
    assert not extensions.events


def test_waking_many_jobs_is_effort_of_the_batch(story):
    park_many(story, 20)
    before = story.engine.effort
    story.decide(ask.Emit("e", b"1"))
    assert story.engine.effort > before + 20


def test_no_namespace_can_take_all_the_room_of_events_from_the_others(story, monkeypatch):
    monkeypatch.setattr(parks, "MAX_EVENT_BYTES", 10_000)
    refused = ask.RefusedLine(ask.Complaint.TOO_MANY_EVENTS)

    def emit(name: str, namespace: str) -> Any:
        return story.decide(ask.Emit(name, b"v" * 700, namespace))  # 1000 bytes with the rest

    assert [emit(f"a.{number}", "a.") for number in range(6)] == [DONE] * 5 + [refused]
    story.restart()
    assert emit("a.6", "a.") == refused
    assert [emit(f"b.{number}", "b.") for number in range(3)] == [DONE, DONE, refused]
    assert [emit(f"c.{number}", "") for number in range(4)] == [DONE] * 3 + [refused]
    story.wait(31 * DAY_S)
    assert emit("a.6", "a.") == DONE


def test_an_event_that_does_not_come_in_time_is_another_step(story):
    park(story, event="e", within_ms=1000)
    story.wait(2)
    story.decide(ask.Emit("e", b"late"))
    assert story.steps() == {("wait!timeout", 1): b""}
    assert wakes(story) == 1


def test_a_job_waits_until_all_others_have_ended(story):
    ids = []
    for number in range(3):
        job_id = bytes.fromhex(f"{number + 16:08x}00004000800000000000000a")
        ids.append(job_id)
        story.decide(ask.Add(job_id, "other", DAY_MS, DAY_MS, b""))
    texts = tuple(f"{number + 16:08x}-0000-4000-8000-00000000000a" for number in range(3))
    assert park(story, jobs=texts) == DONE
    story.decide(ask.Complete(ids[2], b""))
    story.decide(ask.Fail(ids[0], b"", is_final=True))
    story.restart()
    assert lease(story) == 0
    story.decide(ask.Delete(ids[1]))
    assert lease(story) == 2
    assert wakes(story) == 1


def test_only_the_attempt_with_the_lease_parks_and_a_lost_reply_does_no_harm(story):
    assert park(story, attempt=2, within_ms=1000) == LEASED_AGAIN
    assert park(story, within_ms=1000) == DONE
    assert park(story, within_ms=1000) == DONE  # sent again
    story.wait(2)
    assert park(story, within_ms=1000) == NOT_LEASED
    lease(story)
    assert park(story, within_ms=1000) == LEASED_AGAIN
    limited = ask.RefusedLine(ask.Complaint.HAS_MAX_ATTEMPTS)
    story.decide(ask.Add(B, "limited", DAY_MS, DAY_MS, b"", max_attempts=3))
    story.decide(ask.Lease(("limited",), 0, 1, "w"))
    assert story.decide(ask.Park(B, ask.JobWait("wait", within_ms=1), 1)) == limited


def test_the_ttl_does_not_run_while_a_job_is_parked_and_begins_again(story):
    park(story, within_ms=40 * DAY_MS)
    assert story.decide(ask.InspectJob(A)).jobs[0].expires_ns is None
    trace = Trace()
    for place, record in enumerate(story.log):
        trace.note(record, place)
    assert trace.over_ns() == fold.NEVER_NS
    story.wait(39 * DAY_S)
    story.restart()
    story.wait(2 * DAY_S)
    assert lease(story) == 2
    job = fold.replay(story.log)[A]
    assert isinstance(job, fold.FoldedJob)
    woken_ns = next(r.logged.unix_ns for r in story.log if r.command == workq.Command.WAKE)
    assert fold.expires_ns(job) == woken_ns + DAY_MS * 1_000_000
    story.decide(ask.Fail(A, b"", is_final=True))
    story.wait(DAY_S + 1)
    assert state(story) == "gone"


def test_the_original_sees_one_attempt_and_a_pending_job(story):
    for attempt in range(1, 301):  # more than the starts that it can count
        assert park(story, attempt=attempt, number=attempt, within_ms=1000) == DONE
        story.wait(2)
        assert lease(story) == attempt + 1
    replay = OriginalReplay(story.now_ns)
    for record in story.log:
        replay.take(record)
    assert not replay.refused
    assert (replay.jobs[A].state, replay.jobs[A].attempts) == (fold.JobState.PENDING, 1)
    encoded = b"".join(map(workq.CODEC.encode, story.log))
    assert encoded.count(b"journeyman:start") == 300
    park(story, attempt=301, number=301, event="e")
    replay.take(story.log[-1])
    assert replay.parked == {A}
    story.decide(ask.Cancel(A))
    story.decide(ask.Requeue(A))
    for record in story.log[-3:]:  # it has another life, and waits for nothing
        replay.take(record)
    assert not replay.parked


def test_a_power_cut_between_ledger_and_log_wakes_once(story):
    park(story, within_ms=1000)
    before = list(story.log)
    story.wait(2)
    assert wakes(story) == 1
    story.log = before  # the ledger has the step, the log no wake
    story.restart()
    story.decide(WorkqDue())
    assert wakes(story) == 1
    assert story.steps() == {("wait", 1): b""}
    done = [each for each in story.ledger if isinstance(each, ledger.StepDone)]
    assert len(done) == 1


def test_any_prefix_of_the_log_loads_and_wakes(story):
    park(story, within_ms=1000)
    story.wait(2)
    lease(story)
    park(story, attempt=2, number=2, event="e")
    story.decide(ask.Emit("e", b"1"))
    whole, now_ns = list(story.log), story.now_ns
    for count in range(1, len(whole) + 1):
        story.log, story.now_ns = whole[:count], now_ns
        story.restart()
        assert jobs_of(story.engine) == folded(story.log, story.now_ns)
        story.wait(2)
        story.wait(2)
        assert state(story) in {"ready", "leased"}


def test_a_job_that_was_woken_does_not_wait_for_its_retry_delay_after_a_restart(story):
    story.decide(ask.Add(B, "p", DAY_MS, DAY_MS, b"", max_fails=3, retry_delay_ms=60_000))
    story.decide(ask.Lease(("p",), 0, 1, "w"))
    story.decide(ask.Park(B, ask.JobWait("wait", within_ms=1000), 1))
    story.wait(2)
    story.restart()
    assert isinstance(story.decide(ask.Lease(("p",), 0, 1, "w")), LeasedJobs)


def test_a_batch_that_is_undone_leaves_a_job_as_it_was(story):
    engine = story.engine
    for wait in (ask.JobWait("wait", event="e"), ask.JobWait("wait", within_ms=5)):
        before = jobs_of(engine)
        engine.begin_batch()
        engine.decide(ask.Park(A, wait, 1), story.now_ns)
        engine.undo_batch()
        assert jobs_of(engine) == before
        assert not engine._state.jobs.waits
    park(story, event="e")
    for command in (ask.Emit("e", b"1"), ask.Cancel(A), ask.Delete(A)):
        before = jobs_of(engine)
        engine.begin_batch()
        engine.decide(command, story.now_ns)
        engine.take_ledger()
        engine.undo_batch()
        assert jobs_of(engine) == before
        assert len(engine._state.jobs.waits) == 1
        assert not engine._state.extensions.events


def test_a_parked_job_can_be_cancelled_and_its_order_is_empty_then(story):
    park(story, event="e", within_ms=1000)
    assert story.decide(ask.Cancel(A)) == DONE
    jobs = story.engine._state.jobs
    assert (len(jobs.waits), len(jobs.due), jobs.parked) == (0, 0, 0)
    assert wakes(story) == 0


@pytest.mark.parametrize("days", [None, 2])
def test_events_are_forgotten_after_their_retention(story, days):
    if days is not None:
        story.engine.keep_events(days)
    story.decide(ask.Emit("e", b"1"))
    story.wait(((days or 30) - 1) * DAY_S)
    assert story.engine._state.extensions.events
    story.wait(2 * DAY_S)
    assert not story.engine._state.extensions.events
    assert any(isinstance(each, ledger.EventForgotten) for each in story.ledger)
    story.restart()
    assert story.decide(ask.Emit("e", b"2")) == DONE


def test_a_reason_that_cannot_be_read_is_over(story):
    park(story, event="e")
    story.log = [
        workq.JobFinished(each.logged, each.job_id, each.command, b"\xff{", hidden=True)
        if isinstance(each, workq.JobFinished)
        else each
        for each in story.log
    ]
    story.restart()
    story.decide(WorkqDue())
    assert lease(story) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"step":"a"}',
        b'{"step":"a b","until_ns":1}',
        b'{"step":"a","until_ns":-1}',
        b'{"step":"a","event":"a b"}',
        b'{"step":"a","jobs":["x"]}',
        b'{"step":"a","until_ns":1,"within_ms":1}',
        b'{"step":"a","number":0,"until_ns":1}',
        b'{"step":1,"until_ns":1}',
    ],
)
def test_a_wait_that_makes_no_sense_is_refused(body):
    line = b"park %b %d -attempt=1\r\n%b\r\n" % (A.hex().encode(), len(body), body)
    assert WorkqParser().feed(line) == [ask.RefusedLine(ask.Complaint.PARK)]


# -- in tasks --------------------------------------------------------------------------------------


def test_an_order_waits_for_its_approval_without_a_worker():
    app, calls = jm.App(), list[str]()

    @app.task(name="pack")
    def pack(item: int) -> int:
        calls.append(f"pack {item}")
        return item * 10

    def charge(order: int) -> str:
        calls.append("charge")
        return f"receipt {order}"

    @app.task(name="fulfil")
    def fulfil(order: int) -> Any:
        receipt = jm.step(charge, order)
        jm.sleep(hours=24)
        event = f"approval:{order}"
        answer = jm.wait_for(event, timeout=timedelta(days=7), default=None)
        if answer is None:
            return "refunded"
        return [receipt, jm.gather(pack.send(item) for item in answer["items"])]

    with InMemory(app) as queue:
        approved, refused = fulfil.send(1), fulfil.send(2)
        queue.run_all()
        assert approved.state() == "waiting"
        queue.advance(hours=25)
        app.emit("approval:1", {"items": [1, 2]})
        queue.run_all()
        assert approved.result() == ["receipt 1", [10, 20]]
        assert refused.state() == "waiting"
        queue.advance(days=8)
        assert refused.result() == "refunded"
        with pytest.raises(UsageError, match="another value"):
            app.emit("approval:1", {})
    assert sorted(calls) == ["charge", "charge", "pack 1", "pack 2"]


def test_the_asyncio_forms_do_the_same():
    app = jm.App()

    @app.task(name="double")
    async def double(number: int) -> int:
        return number * 2

    @app.task(name="work")
    async def work() -> Any:
        before = await jm.anow()
        await jm.asleep(minutes=5)
        found = await jm.await_for("go")
        numbers = await jm.agather(double.asend(number) for number in found)
        return [numbers, before == await jm.anow(), await jm.arandom() < 1, str(await jm.auuid())]

    with InMemory(app) as queue:
        job = work.send()
        queue.advance(minutes=6)
        app.emit("go", [1, 2, 3])
        queue.run_all()
        assert job.result()[0] == [2, 4, 6]


def test_events_with_long_names_are_waited_for_and_others_are_no_names():
    app, names = jm.App(), ["e" * 250 + end for end in "ab"]

    @app.task(name="work", retries=0)
    def work() -> Any:
        return [jm.wait_for(name) for name in names]

    @app.task(name="wrong", retries=0)
    def wrong() -> Any:
        return jm.wait_for("an event")

    with InMemory(app) as queue:
        job = work.send()
        queue.run_all()
        for value, name in enumerate(names):
            app.emit(name, value)
            queue.run_all()
        assert job.result() == [0, 1]
        wrong.send()
        with pytest.raises(jm.JobFailed, match="not a name of an event: 'an event'"):
            queue.run_all()


def test_a_job_can_wait_for_several_events_in_a_group_of_asyncio_tasks():
    """A group raises what its tasks raise together, also the end of an attempt that parks."""
    app = jm.App()

    @app.task(name="work")
    async def work() -> Any:
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(jm.await_for(event)) for event in ("a", "b")]
        return [wait.result() for wait in waits]

    with InMemory(app) as queue:
        job = work.send()
        queue.run_all()
        app.emit("b", 2)
        queue.run_all()
        assert job.state() == "waiting"
        app.emit("a", 1)
        queue.run_all()
        assert job.result() == [1, 2]


@pytest.mark.parametrize("is_parked", [True, False])
def test_a_wait_goes_on_whose_end_is_durable_without_that_of_its_job(story, is_parked):
    """The ledger is written before the log, and the server is killed between the two."""
    story.decide(ask.Add(B, "other", DAY_MS, DAY_MS, b""))
    text = f"{B.hex()[:8]}-{B.hex()[8:12]}-{B.hex()[12:16]}-{B.hex()[16:20]}-{B.hex()[20:]}"
    if is_parked:
        assert park(story, jobs=(text,)) == DONE
    written = list(story.log)
    story.decide(ask.Complete(B, b""))
    if is_parked:
        story.decide(WorkqDue())
    else:
        assert isinstance(park(story, jobs=(text,)), StepList)
    assert story.steps() == {("wait", 1): b""}
    story.log = written
    story.restart()
    story.decide(WorkqDue())
    if not is_parked:
        assert park(story, jobs=(text,)) == DONE
    assert (state(story), wakes(story)) == ("waiting", 0)
    story.decide(ask.Complete(B, b""))
    assert lease(story) == 2
    assert wakes(story) == 1


class KeptWait:
    """A journal that has the end of a gather, but not that of the one job it waits for."""

    def __init__(self, *answers: dict[Any, bytes]) -> None:
        self.answers = list(answers)
        self.waits: list[ask.JobWait] = []

    def read(self) -> dict[Any, bytes]:
        jobs = b'[["child","0000000a-0000-4000-8000-000000000001"]]'
        return {("gather.jobs", 1): jobs, ("gather", 1): b""}

    def park(self, wait: ask.JobWait) -> dict[Any, bytes]:
        self.waits.append(wait)
        return self.answers.pop(0)

    def record(self, place: Any, value: bytes) -> None:
        assert place == ("gather.values", 1)


def test_a_gather_without_an_end_of_its_job_asks_whether_it_is_over():
    app = jm.App()
    journal: Any = KeptWait({}, {("gather", 1): b""})
    job_id = "0000000a-0000-4000-8000-000000000002"
    first, second = (StepBook(app, journal, job_id) for _ in range(2))
    with InMemory(app):
        with pytest.raises(Parked):
            first.perform(first.gather(list))
        with pytest.raises(jm.JobFailed, match="deleted, or its ttl"):  # now it is gone
            second.perform(second.gather(list))
    wait = ask.JobWait("gather", 1, jobs=("0000000a-0000-4000-8000-000000000001",))
    assert journal.waits == [wait, wait]


def test_a_failed_job_of_a_gather_fails_the_task_and_no_job_is_sent_twice():
    app, sent = jm.App(), list[int]()

    @app.task(name="pack")
    def pack(item: int) -> int:
        sent.append(item)
        if item == 2:
            raise ValueError("broken")
        return item

    @app.task(name="work", retries=2)
    def work() -> Any:
        return jm.gather(pack.send(item) for item in (1, 2))

    with InMemory(app) as queue:
        job = work.send()
        queue.advance(hours=1, check=False)
        with pytest.raises(jm.JobFailed, match="broken"):
            job.result()
    assert sent == [1, 2]


def test_a_step_has_retries_of_its_own_and_give_up_has_none():
    app, tries = jm.App(), list[str]()

    def fragile(error: str) -> str:
        tries.append(error)
        if len(tries) < 3:
            raise jm.GiveUp(error) if error == "give up" else ValueError(error)
        return "whole"

    @app.task(name="work")
    def work(error: str) -> str:
        return jm.step(fragile, error, retries=5, backoff=0.001)

    with InMemory(app) as queue:
        job = work.send("again")
        queue.run_all()
        assert job.result() == "whole"
        assert tries == ["again"] * 3
        tries.clear()
        work.send("give up")
        queue.run_all(check=False)
        assert tries == ["give up"]


def test_code_that_catches_every_exception_cannot_keep_a_parked_job():
    app, finals = jm.App(), list[str]()

    @app.task(name="work")
    def work() -> str:
        try:
            jm.sleep(hours=1)
        except Exception:  # noqa: BLE001 - what is shown here
            return "caught"
        except BaseException:  # noqa: BLE001
            finals.append("parked")
            return "swallowed"
        return "slept"

    with InMemory(app) as queue:
        job = work.send()
        queue.run_all()
        assert (job.state(), finals) == ("waiting", ["parked"])
        queue.advance(hours=2)
        assert job.result() == "slept"


@pytest.mark.parametrize("call", [jm.sleep, lambda: jm.wait_for("x"), lambda: jm.sleep(hours=1)])
def test_outside_of_a_worker_a_wait_says_why_it_cannot_be(call):
    with pytest.raises(UsageError, match="inside of a task"):
        call()
    assert jm.step(len, "abc") == 3
    assert 0 <= jm.random() < 1


def test_a_sleep_is_as_long_as_it_says(story):
    park(story, within_ms=1000)
    first_ns = story.now_ns
    story.now_ns += NS_PER_S - 10
    story.decide(WorkqDue())
    assert state(story) == "waiting"
    story.now_ns = first_ns + NS_PER_S
    story.decide(WorkqDue())
    assert state(story) == "ready"
