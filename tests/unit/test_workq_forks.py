"""Forks: a new job that goes on from a step of another one, with what was recorded before it."""

from __future__ import annotations

from typing import Any

import pytest

import journeyman as jm
from journeyman.client import NotFound
from journeyman.engines.workq import step_table
from journeyman.errors import UsageError
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, JobView, LeasedJobs, id_text
from journeyman.servers.workq.writer import in_scope, scoped_reply
from journeyman.testing import InMemory
from tests.support.workq_story import DAY_MS, A, B, Story

C, D = (bytes.fromhex(f"0000000d00004000800000000000000{number}") for number in (2, 3))
UNKNOWN_STEP = ask.RefusedLine(ask.Complaint.UNKNOWN_STEP)
DUPLICATE = ask.RefusedLine(ask.Complaint.DUPLICATE_JOB)


@pytest.fixture
def story() -> Story:
    """A job that has recorded three steps."""
    story = Story()
    story.decide(ask.Add(A, "q", DAY_MS, DAY_MS, b"order 7", priority=3, max_fails=3))
    story.decide(ask.Lease(("q",), 0, 1, "w"))
    for number, name in enumerate(("charge", "wait", "ship")):
        assert story.step(name, b"%d" % number) == DONE
    return story


def fork(story: Story, name: str, number: int = 1, *, of: bytes = A, new_id: bytes = B) -> Any:
    return story.decide(ask.Fork(of, new_id, name, number))


def view(story: Story, job_id: bytes) -> JobView:
    job: JobView = story.decide(ask.InspectJob(job_id)).jobs[0]
    return job


def given(story: Story, job_id: bytes = B) -> dict[tuple[str, int], bytes]:
    """The steps that the task of a job finds recorded."""
    return {key: value for key, value in story.steps(job_id).items() if key[0][0] != "!"}


ENDS = {
    "running": None,
    "completed": ask.Complete(A, b"done"),
    "failed": ask.Fail(A, b"", is_final=True),
    "cancelled": ask.Cancel(A),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_fork_has_the_steps_before_its_own_whatever_became_of_the_job(story, end):
    if end is not None:
        assert story.decide(end) == DONE
    assert fork(story, "ship") == DONE
    for _ in range(2):
        assert given(story) == {("charge", 1): b"0", ("wait", 1): b"1"}
        forked, origin = view(story, B), view(story, A)
        assert (forked.queue, forked.payload, forked.priority, forked.max_fails) == (
            *("q", b"order 7", 3, 3),
        )
        assert (forked.forked_from, forked.forked_at) == (id_text(A), "ship#1")
        assert origin.forks == (id_text(B),)
        assert given(story, A).keys() == {("charge", 1), ("wait", 1), ("ship", 1)}
        story.restart()
    leased = story.decide(ask.Lease(("q",), 0, 9, "w"))
    assert isinstance(leased, LeasedJobs)
    assert B in [job.job_id for job in leased.jobs]


def test_a_fork_from_the_first_step_has_none_and_a_fork_of_a_fork_goes_on(story):
    assert fork(story, "charge") == DONE
    assert given(story) == {}
    assert fork(story, "wait", new_id=C) == DONE
    story.decide(ask.Lease(("q",), 0, 9, "w"))
    assert story.decide(ask.RecordStep(C, "wait", 1, b"again", 1)) == DONE
    assert fork(story, "wait", of=C, new_id=D) == DONE
    assert given(story, D) == {("charge", 1): b"0"}
    assert view(story, D).forked_from == id_text(C)
    assert view(story, A).forks == (id_text(B), id_text(C))


def test_a_fork_that_is_sent_again_is_made_once(story):
    assert fork(story, "ship") == DONE
    records = len(story.log)
    assert fork(story, "ship") == DONE
    assert fork(story, "wait") == DUPLICATE
    assert len(story.log) == records


def test_a_wait_in_vain_is_a_step_by_its_name(story):
    story.decide(ask.Park(A, ask.JobWait("later", event="never", within_ms=1), 1))
    story.wait(1)
    assert fork(story, "later") == DONE
    assert given(story).keys() == {("charge", 1), ("wait", 1), ("ship", 1)}


def test_what_cannot_be_forked_is_refused(story):
    assert fork(story, "nothing") == UNKNOWN_STEP
    assert fork(story, "ship", 2) == UNKNOWN_STEP
    assert fork(story, "ship", of=C) == NOT_FOUND
    assert fork(story, "ship", new_id=A) == DUPLICATE
    story.decide(ask.RunJob(C, "r", DAY_MS, 0, b""))
    assert fork(story, "ship", of=C) == NOT_FOUND
    assert story.engine.stats().ready == 0
    line = f"fork {id_text(A)} {id_text(B)} ship 2\r\n".encode()
    assert WorkqParser().feed(line) == [ask.Fork(A, B, "ship", 2)]
    for wrong in (b" 0", b" x", b"", b" 1 1"):
        (refused,) = WorkqParser().feed(line.replace(b" 2", wrong))
        assert isinstance(refused, ask.RefusedLine)
    (refused,) = WorkqParser().feed(line.replace(b"ship", b"!fork"))
    assert refused == ask.RefusedLine(ask.Complaint.NAME)


def test_many_forks_of_a_large_job_reach_a_bound_and_change_nothing_beyond_it(monkeypatch, story):
    monkeypatch.setattr(step_table, "MAX_BYTES", 6 * step_table.STEP_BYTES + 200)
    assert fork(story, "charge") == DONE
    assert fork(story, "ship", new_id=C) == ask.RefusedLine(ask.Complaint.TOO_MANY_STEPS)
    assert story.decide(ask.InspectJob(C)) == NOT_FOUND
    assert view(story, A).forks == (id_text(B),)


def test_a_batch_with_a_fork_can_be_taken_back(story):
    engine = story.engine
    engine.begin_batch()
    engine.decide(ask.Fork(A, B, "ship"), story.now_ns)
    engine.decide(ask.Complete(A, b""), story.now_ns)
    engine.undo_batch()
    assert story.decide(ask.InspectJob(B)) == NOT_FOUND
    assert view(story, A).forks == ()
    assert view(story, A).state == "leased"
    assert fork(story, "ship") == DONE


def test_a_token_forks_only_jobs_of_its_namespace_and_learns_of_no_other(story):
    """``q`` stands for another namespace here."""
    engine = story.engine
    assert in_scope(engine, ask.Fork(A, B, "ship"), "mine-") is NOT_FOUND
    story.decide(ask.Add(C, "mine-q", DAY_MS, DAY_MS, b""))
    story.decide(ask.Lease(("mine-q",), 0, 1, "w"))
    story.decide(ask.RecordStep(C, "ship", 1, b"", 1))
    asked = in_scope(engine, ask.Fork(C, A, "ship"), "mine-")
    assert asked.namespace == "mine-"
    reply = scoped_reply(engine, asked, story.decide(asked), "mine-")
    assert reply == ask.RefusedLine(ask.Complaint.ID_TAKEN)
    assert story.decide(ask.Fork(C, D, "ship", namespace="mine-")) == DONE


@pytest.mark.parametrize(
    ("sender", "forker", "kept"),
    [("*", "a-", "a-"), ("a-b-", "a-", "a-b-"), ("a-", "a-b-", "a-b-"), ("a-", "", "a-")],
)
def test_jobs_that_follow_a_fork_may_go_where_both_senders_may_send(sender, forker, kept):
    story = Story()
    options = ask.AddOptions(namespace=sender)
    story.decide(ask.Add(A, "a-b-q", DAY_MS, DAY_MS, b"", options=options))
    story.decide(ask.Lease(("a-b-q",), 0, 1, "w"))
    story.step("ship", b"")
    assert story.decide(ask.Fork(A, B, "ship", namespace=forker)) == DONE
    assert story.engine.namespace_of(B) == kept


# -- steps of completed jobs -----------------------------------------------------------------------


def test_steps_of_completed_jobs_are_kept_while_there_is_room(monkeypatch):
    monkeypatch.setattr(step_table, "MAX_COMPLETED_BYTES", 2 * step_table.STEP_BYTES + 10)
    story = Story()
    for job_id in (A, B, C):
        story.decide(ask.Add(job_id, "q", DAY_MS, DAY_MS, b""))
        story.decide(ask.Lease(("q",), 0, 1, "w"))
        story.decide(ask.RecordStep(job_id, "one", 1, b"1", 1))
        story.decide(ask.Complete(job_id, b""))
    story.wait(2)
    for _ in range(2):
        assert [len(story.steps(job_id)) for job_id in (A, B, C)] == [0, 1, 1]
        assert len(story.kept()) == 2
        story.restart()
    story.wait(2 * DAY_MS / 1000)  # their TTL is over
    story.wait(2)
    assert story.kept() == []


# -- in applications -------------------------------------------------------------------------------


def test_an_application_forks_a_job_from_a_step():
    calls: list[str] = []
    app = jm.App()

    def charge() -> str:
        calls.append("charge")
        return "receipt"

    def ship(receipt: str) -> str:
        calls.append(f"ship {receipt}")
        return "parcel"

    @app.task
    def fulfil() -> str:
        receipt = jm.step(charge)
        jm.sleep(hours=1)
        return jm.step(ship, receipt)

    with InMemory(app) as queue:
        job = fulfil.send()
        queue.advance(hours=2)
        assert calls == ["charge", "ship receipt"]
        again = job.fork("ship")
        assert again.result(timeout=1) == "parcel"
        assert calls == ["charge", "ship receipt", "ship receipt"]
        assert again.id != job.id
        assert [sent.state for sent in queue.jobs] == ["done", "done"]
        with pytest.raises(UsageError, match="recorded no step 'pack'"):
            job.fork("pack")
        with pytest.raises(NotFound):
            app.job(id_text(A)).fork("ship")


@pytest.mark.parametrize(
    ("version", "told"),
    [(2, "1 recorded steps were not asked for, the code has changed: dropped#2"),
     (3, "2 recorded steps were not asked for, the code has changed: dropped, dropped#2")],
)  # fmt: skip
def test_recorded_steps_that_changed_code_does_not_ask_for_are_told(caplog, version, told):
    app = jm.App()
    present = [1]

    @app.task
    def child(number: int) -> int:
        return number

    @app.task(retries=1)
    def order() -> None:
        jm.step(str, key="kept")
        assert jm.gather(child.send(number) for number in range(2)) == [0, 1]
        jm.wait_for("never", timeout=1, default=None)
        for _ in range(3 - present[0]):
            jm.step(str, key="dropped")
        if present[0] == 1:
            raise RuntimeError("after the steps")

    with InMemory(app) as queue:
        job = order.send()
        queue.advance(seconds=1)
        present[0] = version
        queue.advance(hours=1)
        assert job.state() == "done"
        assert [line.text for line in job.progress().log] == [told]
        assert told in caplog.text


def test_a_completed_job_that_was_requeued_can_be_forked_after_a_restart(story):
    options = ask.AddOptions("key")
    story.decide(ask.Add(C, "p", DAY_MS, DAY_MS, b"", options=options))
    story.decide(ask.Lease(("p",), 0, 1, "w"))
    story.decide(ask.RecordStep(C, "charge", 1, b"1", 1))
    story.decide(ask.Fail(C, b"", is_final=True))
    story.decide(ask.Requeue(C))
    story.decide(ask.Lease(("p",), 0, 1, "w"))
    story.decide(ask.RecordStep(C, "ship", 1, b"2", 1))
    story.decide(ask.Complete(C, b""))
    story.wait(5)  # what a start need not know is forgotten
    story.restart()
    assert fork(story, "ship", of=C, new_id=D) == DONE
    assert given(story, D) == {("charge", 1): b"1"}
    assert view(story, D).key == "key"
