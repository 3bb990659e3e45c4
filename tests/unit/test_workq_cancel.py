"""Cancelling in the engine: states, who is told, what stays after a restart or an undone batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from journeyman.engines.workq import worker_commands, workers
from journeyman.engines.workq.browsing import BrowseJobs, JobsFound
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqAnswer
from journeyman.engines.workq.workers import BrowseWorkers, WorkersFound
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.workq import Command, JobFinished, Record
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.replies import (
    CANCELLED,
    DONE,
    NOT_FOUND,
    TIMED_OUT,
    EndedJobs,
    Finished,
    JobList,
    JobView,
    Requeued,
    reply_bytes,
)
from journeyman.servers.workq.writer import in_scope
from tests.support.workq_extension_machine import load

NOW_NS = 1_700_000_000 * 10**9
DAY_MS = 86_400_000
IDS = [bytes.fromhex(f"0000000c00004000800000000000000{number}") for number in range(6)]
A, B, C, *_ = IDS
FACTS = ask.WorkerFacts()


class Story:
    """An engine, and all that it has written."""

    def __init__(self) -> None:
        self.engine = WorkqEngine()
        self.log: list[Record] = []
        self.ledger: list[LedgerRecord] = []
        self.now_ns = NOW_NS
        self.answers: list[WorkqAnswer] = []

    def do(self, command: Decidable, client: object = "client") -> object:
        self.now_ns += 1000
        outcome = self.engine.decide(command, self.now_ns, client)
        self.log += outcome.records
        self.ledger += self.engine.take_ledger()
        self.answers += outcome.effects
        return outcome.reply

    def restart(self) -> None:
        self.engine = load(self.log, self.ledger, self.now_ns)

    def job(self, job_id: bytes) -> JobView:
        reply = self.do(ask.InspectJob(job_id))
        assert isinstance(reply, JobList)
        return reply.jobs[0]

    def is_cancelled(self, job_id: bytes) -> bool:
        return self.job(job_id).state == CANCELLED

    def jobs(self, state: str) -> list[bytes]:
        reply = self.do(BrowseJobs(state=state))
        assert isinstance(reply, JobsFound)
        return [job.job_id for job in reply.jobs]


@pytest.fixture
def story() -> Story:
    return Story()


def add(job_id: bytes, queue: str = "q", options: ask.AddOptions | None = None) -> ask.Add:
    return ask.Add(job_id, queue, DAY_MS, DAY_MS, b"work", max_fails=3, options=options)


def test_a_waiting_job_ends_as_cancelled_and_never_runs(story):
    story.do(add(A))
    story.do(ask.ScheduleJob(B, "q", DAY_MS, DAY_MS, NOW_NS + 10**12, b"later"))
    assert story.do(ask.Cancel(A)) == DONE
    assert story.do(ask.Cancel(B)) == DONE
    assert story.do(ask.Lease(("q",), 0)) == TIMED_OUT
    assert story.is_cancelled(A)
    reply = story.do(ask.AwaitResult(A, 0))
    assert isinstance(reply, Finished)
    assert not reply.success
    assert json.loads(reply.result)["error"] == "Cancelled"


def test_the_log_has_a_failure_and_the_ledger_says_that_it_was_a_cancellation(story):
    story.do(add(A))
    story.do(ask.Cancel(A))
    failed = story.log[-1]
    assert isinstance(failed, JobFinished)
    assert (failed.command, failed.hidden) == (Command.FAIL, False)
    (said,) = [record.body for record in story.ledger]
    assert said == {"cancelled_ns": failed.logged.unix_ns}
    story.restart()
    assert story.is_cancelled(A)
    assert story.jobs("cancelled") == [A]
    assert story.engine.stats().cancelled == 1


def test_a_failure_after_a_cancellation_that_was_lost_is_a_failure(story):
    """The ledger was written, the log was not."""
    story.do(add(A))
    log = len(story.log)
    story.do(ask.Cancel(A))
    del story.log[log:]
    story.restart()
    assert not story.is_cancelled(A)
    story.do(ask.Fail(A, b"no", is_final=True))
    assert not story.is_cancelled(A)
    story.restart()
    assert story.jobs("dead") == [A]


def test_a_cancelled_job_is_not_dead_but_can_be_requeued(story):
    for job_id in (A, B):
        story.do(add(job_id))
    story.do(ask.Cancel(A))
    story.do(ask.Fail(B, b"no", is_final=True))
    assert (story.jobs("cancelled"), story.jobs("dead")) == ([A], [B])
    stats = story.engine.stats()
    assert (stats.cancelled, stats.failed, stats.completed) == (1, 1, 0)
    assert story.do(ask.RequeueAll("q", 10)) == Requeued("q", 1)
    assert story.do(ask.Requeue(A)) == DONE
    assert not story.is_cancelled(A)
    assert story.engine.stats().cancelled == 0
    story.restart()
    assert not story.is_cancelled(A)


def test_only_an_unfinished_job_can_be_cancelled(story):
    assert story.do(ask.Cancel(A)) == NOT_FOUND
    story.do(add(A))
    story.do(ask.Complete(A, b"done"))
    assert story.do(ask.Cancel(A)) == ask.RefusedLine(ask.Complaint.DUPLICATE_RESULT)
    assert story.jobs("completed") == [A]


def test_a_job_that_waits_for_others_can_be_cancelled(story):
    story.do(add(A))
    story.do(add(B, options=ask.AddOptions("key", after=(A,))))
    story.do(add(C, options=ask.AddOptions(after=(B,))))
    assert story.do(ask.Cancel(B)) == DONE
    assert (story.is_cancelled(B), story.job(B).key) == (True, "key")
    assert story.jobs("dead") == [C]  # what waits for it fails
    story.do(ask.Complete(A, b""))
    assert story.do(ask.Lease(("q",), 0)) == TIMED_OUT
    story.restart()
    assert story.jobs("cancelled") == [B]


def test_clients_that_wait_for_its_result_get_it(story):
    story.do(add(A))
    assert story.do(ask.AwaitResult(A, 1000), "waits") is None
    story.do(ask.Cancel(A))
    (answer,) = story.answers
    assert answer.client == "waits"
    assert isinstance(answer.reply, Finished)


def test_without_a_ledger_nothing_is_cancelled(story):
    story.engine.refuse_extensions()
    story.do(add(A))
    assert story.do(ask.Cancel(A)) == ask.RefusedLine(ask.Complaint.NO_LEDGER)
    assert story.jobs("ready") == [A]


def test_a_run_can_be_cancelled(story):
    assert story.do(ask.RunJob(A, "q", DAY_MS, 1000, b"x"), "runs") is None
    assert story.do(ask.Cancel(A)) == DONE
    (answer,) = story.answers
    assert answer.client == "runs"
    assert not story.log


def test_the_worker_of_a_cancelled_job_is_told_at_once_and_when_it_renews_the_lease(story):
    story.do(add(A))
    story.do(ask.Lease(("q",), 0, 1, "w"))
    assert story.do(ask.AwaitOrders("w", 1000, FACTS), "worker") is None
    story.do(ask.Cancel(A))
    (answer,) = story.answers
    assert answer.client == "worker"
    assert isinstance(answer.reply, EndedJobs)
    assert reply_bytes(answer.reply).startswith(b"+OK 1\r\n0000000c-0000-4000-8000-000000000000 0 ")
    assert story.do(ask.Touch(A)) == ask.RefusedLine(ask.Complaint.CANCELLED)


def test_a_worker_that_does_not_wait_is_told_when_it_asks_next(story):
    story.do(add(A))
    story.do(ask.Lease(("q",), 0, 1, "w"))
    assert story.do(ask.AwaitOrders("w", 0, FACTS)) == TIMED_OUT
    story.do(ask.Cancel(A))
    reply = story.do(ask.AwaitOrders("w", 0, FACTS))
    assert isinstance(reply, EndedJobs)
    assert [job.job_id for job in reply.jobs] == [A]
    assert story.do(ask.AwaitOrders("w", 0, FACTS)) == TIMED_OUT


def test_what_a_worker_was_told_in_a_batch_that_is_undone_it_is_told_again(story):
    story.do(add(A))
    story.do(ask.Lease(("q",), 0, 1, "w"))
    story.do(ask.AwaitOrders("w", 0, FACTS))
    story.engine.begin_batch()
    story.do(ask.Cancel(A))
    story.engine.undo_batch()
    assert story.do(ask.AwaitOrders("w", 0, FACTS)) == TIMED_OUT
    assert story.jobs("leased") == [A]
    story.do(ask.Cancel(A))
    story.engine.begin_batch()
    assert isinstance(story.do(ask.AwaitOrders("w", 0, FACTS)), EndedJobs)
    story.engine.undo_batch()
    assert isinstance(story.do(ask.AwaitOrders("w", 0, FACTS)), EndedJobs)


def test_a_worker_of_another_namespace_with_the_same_name_is_not_told(story):
    story.do(add(A, "team.q"))
    story.do(ask.Lease(("team.q",), 0, 1, "w"))
    asked = in_scope(story.engine, ask.AwaitOrders("w", 1000, FACTS), "other.")
    assert story.do(asked, "other") is None
    story.do(ask.Cancel(A))
    assert story.answers == []
    own = in_scope(story.engine, ask.AwaitOrders("w", 0, FACTS), "team.")
    assert story.do(own) == TIMED_OUT  # it was not known then


def test_no_job_follows_a_cancelled_one(story):
    story.do(add(A))
    story.do(ask.Cancel(A))
    follows = ask.AddOptions(follows=A)
    assert story.do(add(B, options=follows)) == ask.RefusedLine(ask.Complaint.CANCELLED)
    story.do(add(C))
    assert story.do(add(B, options=ask.AddOptions(follows=C))) == DONE


def seen(story: Story, prefix: str = "", **asked: Any) -> list[str]:
    found = story.do(BrowseWorkers(prefix=prefix, **asked))
    assert isinstance(found, WorkersFound)
    return [worker.name for worker in found.workers]


def test_workers_are_known_with_what_they_run(story):
    story.do(add(A))
    story.do(ask.Lease(("q",), 0, 1, "w"))
    story.do(ask.AwaitOrders("w", 1000, ask.WorkerFacts(slots=4)), "worker")
    found = story.do(BrowseWorkers())
    assert isinstance(found, WorkersFound)
    (worker,) = found.workers
    assert (worker.name, worker.facts.slots, worker.connected) == ("w", 4, True)
    assert [(job.job_id, job.queue) for job in worker.jobs] == [(A, "q")]
    story.do(ask.Complete(A, b""))
    story.now_ns += workers.FORGET_NS + 1
    assert seen(story) == []


def test_workers_are_listed_by_page_and_namespace(story):
    for name, prefix in (("a", "team."), ("b", "other."), ("c", "team.")):
        story.do(ask.AwaitOrders(name, 0, FACTS, prefix))
    assert seen(story) == ["a", "b", "c"]
    assert seen(story, "team.") == ["a", "c"]
    assert seen(story, limit=2) == ["a", "b"]
    assert seen(story, after="b") == ["c"]


def test_names_of_workers_are_bounded(story, monkeypatch):
    monkeypatch.setattr(workers, "MAX_WORKERS_OF_A_NAMESPACE", 2)
    monkeypatch.setattr(workers, "MAX_WORKERS", 3)
    refused = ask.RefusedLine(ask.Complaint.TOO_MANY_WORKERS)
    replies = [story.do(ask.AwaitOrders(f"w{n}", 0, FACTS, "team.")) for n in range(3)]
    assert replies == [TIMED_OUT, TIMED_OUT, refused]
    replies = [story.do(ask.AwaitOrders(f"w{n}", 0, FACTS, "other.")) for n in range(2)]
    assert replies == [TIMED_OUT, refused]
    assert story.do(ask.AwaitOrders("w1", 0, FACTS, "team.")) == TIMED_OUT
    story.now_ns += workers.FORGET_NS + 1
    assert story.do(ask.AwaitOrders("w9", 0, FACTS, "team.")) == TIMED_OUT


def test_orders_for_a_worker_are_bounded(story, monkeypatch):
    monkeypatch.setattr(worker_commands, "MAX_ORDERS", 2)
    story.do(ask.AwaitOrders("w", 0, FACTS))
    for job_id in IDS[:3]:
        story.do(add(job_id))
    story.do(ask.Lease(("q",), 0, 3, "w"))
    for job_id in IDS[:3]:
        story.do(ask.Cancel(job_id))
    reply = story.do(ask.AwaitOrders("w", 0, FACTS))
    assert isinstance(reply, EndedJobs)
    assert len(reply.jobs) == 2


def test_attempts_that_are_given_back_are_counted_apart(story):
    story.do(add(A))
    for number in range(3):
        leased = story.do(ask.Lease(("q",), 0, 1, "w"))
        (job,) = leased.jobs
        assert (job.attempt, job.fails, job.given_back) == (number + 1, 0, number)
        story.do(ask.Fail(A, b"", 0, is_release=True))
    story.restart()
    leased = story.do(ask.Lease(("q",), 0, 1, "w"))
    assert leased.jobs[0].given_back == 3
    assert reply_bytes(leased).startswith(
        b"+OK 1\r\n0000000c-0000-4000-8000-000000000000 q 86400000 4 4 0 3 3\r\n"
    )
    assert (story.job(A).attempts, story.job(A).given_back) == (4, 3)
