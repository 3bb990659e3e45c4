"""Steps of jobs: recorded once, by the attempt that has the lease, while they are needed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import journeyman as jm
from journeyman.engines.workq import step_table
from journeyman.engines.workq.ledger_entries import LoadedExtensions
from journeyman.engines.workq.messages import WorkqDue
from journeyman.errors import JourneymanError, UsageError
from journeyman.formats import ledger
from journeyman.formats.timed_frame import Instant
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, RecordedStep, StepList, reply_bytes
from journeyman.tasks.durations import Backoff
from journeyman.tasks.steps import StepBook
from journeyman.testing import InMemory
from journeyman.units import NS_PER_S
from tests.support.workq_story import DAY_MS, LEASED_AGAIN, NOT_LEASED, A, B, Story


@pytest.fixture
def story() -> Story:
    story = Story()
    story.start()
    return story


def test_a_step_is_recorded_once_and_the_first_value_stays(story):
    assert story.step("charge", b"1") == DONE
    assert story.step("charge", b"2") == DONE  # sent again
    assert story.step("charge", b"3", number=2) == DONE
    assert story.steps() == {("charge", 1): b"1", ("charge", 2): b"3"}
    assert sum(isinstance(record, ledger.StepDone) for record in story.ledger) == 2


def test_only_the_attempt_with_the_lease_records(story):
    assert story.decide(ask.RecordStep(B, "x", 1, b"", 1)) == NOT_FOUND
    story.decide(ask.Fail(A, b"", attempt=1))
    assert story.step("x", b"") == NOT_LEASED
    story.decide(ask.Lease(("q",), 0, 1, "w"))
    assert story.step("x", b"", attempt=1) == LEASED_AGAIN
    assert story.step("x", b"", attempt=2) == DONE
    story.decide(ask.Cancel(A))
    assert story.step("y", b"", attempt=2) == ask.RefusedLine(ask.Complaint.CANCELLED)


def test_an_attempt_without_the_lease_does_not_read_steps(story):
    """It would find none after the end of the job, and repeat them all."""
    story.step("charge", b"1")
    assert isinstance(story.decide(ask.InspectSteps(A, 1)), StepList)
    assert story.decide(ask.InspectSteps(A, 2)) == LEASED_AGAIN
    story.decide(ask.Complete(A, b""))
    assert story.decide(ask.InspectSteps(A, 1)) == NOT_LEASED
    line = b"inspect steps %b -attempt=3\r\n" % A.hex().encode()
    assert WorkqParser().feed(line) == [ask.InspectSteps(A, 3)]


def test_steps_survive_a_restart_a_failure_and_a_requeue(story):
    story.step("text", '{"a": "ä"}'.encode())
    story.step("bytes", b"\xff\x00" * 400)
    story.step("empty", b"")
    recorded = story.steps()
    story.decide(ask.Fail(A, b"", attempt=1, is_final=True))
    for _ in range(2):
        story.restart()
        assert story.steps() == recorded
        assert story.decide(ask.Requeue(A)) == DONE
        story.restart()
        assert story.steps() == recorded
        story.decide(ask.Lease(("q",), 0, 1, "w"))
        story.decide(ask.Fail(A, b"", is_final=True))


def test_a_power_cut_within_a_requeue_leaves_the_steps(story):
    story.step("charge", b"1")
    story.decide(ask.Fail(A, b"", is_final=True))
    before = list(story.log)
    story.decide(ask.Requeue(A))
    after = story.log[len(before) :]
    for count in range(len(after) + 1):  # nothing, the delete, the delete and the add
        story.restart(before + after[:count])
        story.decide(WorkqDue())
        assert story.steps() == {("charge", 1): b"1"}


def test_steps_are_forgotten_after_the_end_and_not_in_the_same_batch(story):
    story.step("charge", b"1")
    story.decide(ask.Delete(A))
    assert story.decide(ask.InspectSteps(A)) == NOT_FOUND
    assert len(story.kept()) == 1
    story.restart()
    assert story.decide(ask.InspectSteps(A)) == NOT_FOUND
    story.wait(2)
    assert story.kept() == []

    engine = story.engine
    story.start(B)
    story.decide(ask.RecordStep(B, "x", 1, b"", 1))
    story.now_ns += 5 * NS_PER_S
    engine.begin_batch()
    engine.decide(ask.Delete(B), story.now_ns)
    engine.decide(WorkqDue(), story.now_ns + 5 * NS_PER_S)
    assert not any(isinstance(each, ledger.StepForgotten) for each in engine.take_ledger())
    engine.commit_batch()


def test_a_job_that_takes_the_id_has_none_of_the_steps(story):
    story.step("charge", b"1")
    story.decide(ask.Fail(A, b"", is_final=True))
    options = ask.AddOptions(replaces_finished=True)
    story.decide(ask.Add(A, "q", DAY_MS, DAY_MS, b"", options=options))
    assert story.steps() == {}
    story.restart()
    assert story.steps() == {}
    story.decide(ask.Lease(("q",), 0, 1, "w"))
    assert story.step("charge", b"2") == DONE
    story.wait(3)
    assert len(story.kept()) == 1  # that of the new job
    story.restart()
    assert story.steps() == {("charge", 1): b"2"}


def test_a_job_that_takes_the_id_in_the_batch_of_a_requeue_has_none_either(story):
    story.step("charge", b"1")
    story.decide(ask.Fail(A, b"", is_final=True))
    story.engine.begin_batch()
    options = ask.AddOptions("key", replaces_finished=True)
    for command in (
        *(ask.Requeue(A), ask.Complete(A, b"")),
        ask.Add(A, "q", DAY_MS, DAY_MS, b"", options=options),
    ):
        outcome = story.engine.decide(command, story.now_ns)
        assert outcome.reply == DONE
        story.log += outcome.records
    story.ledger += story.engine.take_ledger()
    story.engine.commit_batch()
    for seconds in (0, 5):
        story.now_ns += seconds * NS_PER_S
        story.restart()
        story.decide(WorkqDue())
        assert story.steps() == {}
        assert story.decide(ask.InspectJob(A)).jobs[0].key == "key"


def test_a_batch_that_is_undone_leaves_the_steps_as_they_were(story):
    story.step("charge", b"1")
    size = story.engine._state.extensions.steps.size
    for command in (ask.RecordStep(A, "x", 1, b"12", 1), ask.Complete(A, b""), ask.Delete(A)):
        story.engine.begin_batch()
        story.engine.decide(command, story.now_ns)
        story.engine.undo_batch()
        assert story.steps() == {("charge", 1): b"1"}
        assert story.engine._state.extensions.steps.size == size


def test_steps_are_bounded(story, monkeypatch):
    too_many = ask.RefusedLine(ask.Complaint.TOO_MANY_STEPS)
    monkeypatch.setattr(step_table, "MAX_STEPS_OF_ONE", 2)
    assert story.step("a", b"") == story.step("b", b"") == DONE
    assert story.step("c", b"") == too_many
    monkeypatch.setattr(step_table, "MAX_STEPS_OF_ONE", 10)
    monkeypatch.setattr(step_table, "MAX_BYTES_OF_ONE", 1000)
    assert story.step("c", b"x" * 1000) == too_many
    monkeypatch.setattr(step_table, "MAX_BYTES", 500)
    assert story.step("c", b"x" * 300) == too_many


def test_no_namespace_can_take_all_the_room_of_steps_from_the_others(story, monkeypatch):
    too_many = ask.RefusedLine(ask.Complaint.TOO_MANY_STEPS)
    monkeypatch.setattr(step_table, "MAX_BYTES", 10 * step_table.STEP_BYTES)

    def record(number: int, namespace: str) -> Any:
        return story.decide(ask.RecordStep(A, "x", number, b"", 1, namespace))

    assert [record(number, "q") for number in range(1, 7)] == [DONE] * 5 + [too_many]
    story.restart()
    assert record(7, "q") == too_many
    assert record(8, "r") == DONE  # nothing in that namespace
    story.engine.begin_batch()
    story.engine.decide(ask.Delete(A), story.now_ns)
    story.engine.undo_batch()
    assert record(9, "q") == too_many
    assert [record(number, "") for number in range(10, 15)] == [DONE] * 4 + [too_many]


def test_without_a_ledger_steps_are_refused(story):
    story.engine.refuse_extensions()
    assert story.step("a", b"") == ask.RefusedLine(ask.Complaint.NO_LEDGER)


def test_the_largest_value_fits_into_a_record_whatever_it_holds(story):
    for number, byte in enumerate((b"a", b"\x00", b"\xff", b'"'), 1):
        value = byte * ask.MAX_STEP_BYTES
        assert story.step("x", value, number=number) == DONE
        record = story.ledger[-1]
        entry = ledger.CODEC.decode(ledger.CODEC.encode(record), 0)
        assert entry is not None
        assert isinstance(entry.record, ledger.StepDone)
        loaded = step_table.read_record(entry.record)
        assert loaded is not None
        assert loaded.value.value == value


@pytest.mark.parametrize("subject", ["", "x/y#1", "0/y#1", f"{'0' * 32}/#1", f"{'0' * 32}/y#z"])
def test_a_record_that_makes_no_sense_is_not_loaded(subject):
    record = ledger.StepDone(Instant(1), subject, 1, "", 0)
    assert not LoadedExtensions().add(record)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"step X charge 1 0 -attempt=1", ask.Complaint.ID),
        (b"step %b a!b 1 0 -attempt=1", ask.Complaint.NAME),
        (b"step %b charge 0 0 -attempt=1", ask.Complaint.STEP_NUMBER),
        (b"step %b charge 1 0 -attempt=0", ask.Complaint.ATTEMPT),
        (b"step %b charge 1 0", ask.Complaint.ARGS),
    ],
)
def test_a_line_that_is_no_step_is_refused(line, complaint):
    data = line.replace(b"%b", A.hex().encode()) + b"\r\n\r\n"
    assert WorkqParser().feed(data) == [ask.RefusedLine(complaint)]


def test_a_step_over_the_wire():
    data = b"step %b charge 2 3 -attempt=4\r\nabc\r\ninspect steps %b\r\n"
    found = WorkqParser().feed(data % (A.hex().encode(), A.hex().encode()))
    assert found == [ask.RecordStep(A, "charge", 2, b"abc", 4), ask.InspectSteps(A)]
    reply = StepList((RecordedStep("charge", 2, b"abc", 5),))
    assert reply_bytes(reply) == b"+OK 1\r\ncharge 2 3 5\r\nabc\r\n"


# -- in tasks --------------------------------------------------------------------------------------


def test_a_later_attempt_gets_what_was_recorded():
    app, calls = jm.App(), list[str]()

    def charge(order: int) -> tuple[int, str]:
        calls.append("charge")
        return order, "paid"

    @app.task(retries=2)
    def fulfil(order: int) -> Any:
        receipt = jm.step(charge, order)
        times = [jm.step(calls.append, "tick", key="tick") for _ in range(2)]
        if jm.job().attempt < 3:
            raise ValueError("later")
        return [receipt, times]

    with InMemory(app) as queue:
        job = fulfil.send(7)
        queue.advance(hours=1)
        assert job.result() == [[7, "paid"], [None, None]]
    assert calls == ["charge", "tick", "tick"]


def test_a_step_that_raises_is_not_recorded():
    app, calls = jm.App(), list[int]()

    def fragile() -> str:
        calls.append(1)
        if len(calls) < 2:
            raise ValueError("once")
        return "whole"

    @app.task(retries=1)
    def work() -> str:
        return jm.step(fragile)

    with InMemory(app) as queue:
        job = work.send()
        queue.advance(hours=1)
        assert job.result() == "whole"
    assert len(calls) == 2


class SlowJournal:
    """A journal that answers later, as the server does."""

    def __init__(self) -> None:
        self.recorded: dict[Any, bytes] = {}

    async def aread(self) -> dict[Any, bytes]:
        recorded = dict(self.recorded)
        await asyncio.sleep(0)
        return recorded

    async def arecord(self, place: Any, value: bytes) -> None:
        await asyncio.sleep(0)
        self.recorded[place] = value


def test_async_steps_may_be_done_at_the_same_time():
    journal: Any = SlowJournal()
    calls = list[int]()

    async def fetch(number: int) -> int:
        calls.append(number)
        for _ in range(number):
            await asyncio.sleep(0)
        return number

    async def crawl() -> list[Any]:
        book = StepBook(jm.App(), journal, "")
        plans = [book.step("fetch", partial(fetch, number), 0, Backoff(1)) for number in (0, 5, 2)]
        return await asyncio.gather(*map(book.aperform, plans))

    assert asyncio.run(crawl()) == [0, 5, 2]
    assert asyncio.run(crawl()) == [0, 5, 2]
    assert calls == [0, 5, 2]


def test_steps_of_async_tasks():
    app, calls = jm.App(), list[str]()

    async def fetch(url: str) -> str:
        calls.append(url)
        return url.upper()

    @app.task(retries=1)
    async def crawl() -> list[Any]:
        found = [await jm.astep(fetch, "a"), await jm.astep(len, "abc")]
        if jm.job().attempt == 1:
            raise ValueError("later")
        return found

    @app.task
    async def blocks() -> None:
        jm.step(len, "")

    with InMemory(app) as queue:
        job = crawl.send()
        queue.advance(hours=1)
        assert job.result() == ["A", 3]
        assert calls == ["a"]
        blocks.send()
        with pytest.raises(jm.JobFailed, match="astep"):
            queue.run_all()


def test_outside_a_worker_a_step_is_a_call():
    assert jm.step(len, "abc") == 3
    assert asyncio.run(jm.astep(len, "abc")) == 3


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("a b", 1, UsageError), ("big", "x" * 800_000, JourneymanError)],
)
def test_a_step_that_cannot_be_recorded_says_why(name, value, error):
    app = jm.App()

    @app.task
    def work() -> None:
        jm.step(lambda: value, key=name)

    with InMemory(app) as queue:
        work.send()
        with pytest.raises(
            jm.JobFailed, match=r"not a name of a step|at most 768000 fit"
        ) as raised:
            queue.run_all()
    assert isinstance(raised.value.__cause__, error)
