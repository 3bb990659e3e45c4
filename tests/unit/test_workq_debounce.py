"""Adds that replace a job which no worker has begun, and the creation time of requeued jobs."""

from __future__ import annotations

from uuid import UUID

from journeyman.engines.workq.browsing import BrowseJobs, JobsFound
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.workq import Record
from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    AwaitResult,
    Cancel,
    Complaint,
    Complete,
    Fail,
    InspectJob,
    Lease,
    RefusedLine,
    Requeue,
    ScheduleJob,
)
from journeyman.protocols.workq.replies import (
    DONE,
    TIMED_OUT,
    Finished,
    JobList,
    JobView,
    Leased,
    Reply,
)
from tests.support.workq_extension_machine import load

NOW_NS = 1_700_000_000 * 10**9
SECOND_NS = 10**9
JOB, OTHER, CHILD = (UUID(int=number, version=4).bytes for number in (1, 2, 3))
DUPLICATE = RefusedLine(Complaint.DUPLICATE_JOB)
MOVES = AddOptions(replaces_finished=True, replaces_unstarted=True)


class World:
    """An engine, its log and its ledger."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS
        self.engine = WorkqEngine(seed=1)
        self.log: list[Record] = []
        self.ledger: list[LedgerRecord] = []
        self.answers: list[Reply] = []

    def ask(self, command: object, client: int = 0) -> Reply | None:
        outcome = self.engine.decide(command, self.now_ns, client)  # type: ignore[arg-type]
        self.log += outcome.records
        self.ledger += self.engine.take_ledger()
        self.answers += [each.reply for each in outcome.effects]
        return outcome.reply

    def send(
        self, payload: bytes, options: AddOptions = MOVES, job_id: bytes = JOB
    ) -> Reply | None:
        """To start in ten seconds."""
        begins_ns = self.now_ns + 10 * SECOND_NS
        more = {"payload": payload, "options": options}
        return self.ask(ScheduleJob(job_id, "q", 10**6, 10**8, begins_ns, **more))  # type: ignore[arg-type]

    def after(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)
        self.ask(WorkqDue())

    def lease(self) -> bytes:
        reply = self.ask(Lease(("q",), 0))
        if reply == TIMED_OUT:
            return b""
        assert isinstance(reply, Leased)
        return bytes(reply.payload)

    def view(self, job_id: bytes = JOB) -> JobView:
        reply = self.ask(InspectJob(job_id))
        assert isinstance(reply, JobList)
        (view,) = reply.jobs
        return view

    def restart(self) -> None:
        self.engine = load(self.log, self.ledger, self.now_ns)
        self.ask(WorkqDue())


def test_a_send_moves_the_wait_and_brings_new_arguments() -> None:
    world = World()
    assert world.send(b"one") == DONE
    world.after(9)
    assert world.send(b"two") == DONE
    world.after(9)
    assert world.lease() == b""
    world.after(1)
    assert world.lease() == b"two"
    assert world.lease() == b""


def test_a_job_that_runs_is_not_replaced() -> None:
    world = World()
    world.send(b"one")
    world.after(10)
    assert world.lease() == b"one"
    assert world.send(b"two") == DUPLICATE
    assert world.ask(Complete(JOB, b"")) == DONE
    assert world.send(b"two") == DONE


def test_a_job_that_is_retried_is_not_replaced() -> None:
    world = World()
    world.send(b"one")
    world.after(10)
    world.lease()
    world.ask(Fail(JOB, b"", is_release=True))
    assert world.send(b"two") == DUPLICATE


def test_a_job_is_not_added_beside_one_that_has_not_begun() -> None:
    world = World()
    unless = MOVES._replace(unless=OTHER)
    assert world.send(b"one", unless) == DONE
    world.after(10)
    assert world.lease() == b"one"
    assert world.send(b"two", unless) == DUPLICATE
    assert world.send(b"two", job_id=OTHER) == DONE
    world.ask(Complete(JOB, b""))
    assert world.send(b"three", unless) == DUPLICATE
    assert world.send(b"three", job_id=OTHER) == DONE
    world.after(10)
    assert world.lease() == b"three"
    assert world.send(b"four", unless) == DONE


def test_other_jobs_and_clients_go_on_waiting_for_a_moved_job() -> None:
    world = World()
    world.send(b"one")
    assert world.ask(Add(CHILD, "q", 10**6, 10**8, b"child", options=AddOptions(after=(JOB,))))
    assert world.ask(AwaitResult(JOB, 10**6), client=7) is None
    world.send(b"two")
    assert world.answers == []
    assert world.view(CHILD).waits_for == 1
    world.after(10)
    assert world.lease() == b"two"
    world.ask(Complete(JOB, b"result"))
    assert world.answers == [Finished(JOB, True, b"result")]
    assert world.lease() == b"child"


def test_a_moved_job_survives_a_restart_with_its_time_and_key() -> None:
    world = World()
    world.send(b"one", MOVES._replace(key="a"))
    world.after(5)
    world.send(b"two", MOVES._replace(key="b"))
    world.restart()
    assert (world.view().key, world.view().payload) == ("b", b"two")
    world.after(9)
    assert world.lease() == b""
    world.after(1)
    assert world.lease() == b"two"


def test_a_power_cut_between_the_delete_and_the_add_leaves_the_job() -> None:
    for key in ("", "k"):
        world = World()
        world.send(b"one", MOVES._replace(key=key))
        world.send(b"two", MOVES._replace(key=key))
        assert world.log.pop().__class__.__name__ == "JobAdded"
        world.restart()
        assert (world.view().payload, world.view().key) == (b"two", key)


def test_a_power_cut_between_ledger_and_log_leaves_the_former_job() -> None:
    world = World()
    world.send(b"one")
    written = len(world.log)
    world.send(b"two")
    del world.log[written:]
    world.restart()
    assert world.view().payload == b"one"
    world.after(2)
    assert world.view().payload == b"one"
    world.after(8)
    assert world.lease() == b"one"
    assert world.lease() == b""


def test_an_undone_move_leaves_the_former_job() -> None:
    world = World()
    world.send(b"one", MOVES._replace(key="a"))
    world.engine.begin_batch()
    world.send(b"two")
    world.engine.undo_batch()
    assert (world.view().payload, world.view().key) == (b"one", "a")


def test_without_a_ledger_nothing_is_moved() -> None:
    world = World()
    world.engine.refuse_extensions()
    assert world.send(b"one") == RefusedLine(Complaint.NO_LEDGER)


# -- requeued jobs ---------------------------------------------------------------------------------


def test_a_requeued_job_keeps_its_time_of_creation() -> None:
    world = World()
    world.ask(Add(JOB, "q", 10**6, 10**8, b"one", options=AddOptions("k")))
    created_ns = world.view().created_ns
    for _ in range(2):
        world.after(60)
        world.lease()
        world.ask(Fail(JOB, b"", is_final=True))
        assert world.ask(Requeue(JOB)) == DONE
        assert world.view().created_ns == created_ns
        assert world.view().expires_ns == world.now_ns + 1 + 10**8 * 10**6
        world.restart()
        assert (world.view().created_ns, world.view().key) == (created_ns, "k")
    found: object = None
    while not isinstance(found, JobsFound):
        found = world.ask(BrowseJobs(limit=10))
    assert [job.created_ns for job in found.jobs] == [created_ns]
    world.lease()
    world.ask(Complete(JOB, b""))
    world.ask(Add(JOB, "q", 10**6, 10**8, b"", options=AddOptions(replaces_finished=True)))
    assert created_ns is not None
    assert created_ns < world.now_ns <= (world.view().created_ns or 0)


def test_a_requeued_job_has_no_attempts_that_were_given_back() -> None:
    world = World()
    world.ask(Add(JOB, "q", 10**6, 10**8, b"one"))
    world.lease()
    world.ask(Fail(JOB, b"", is_release=True))
    assert world.view().given_back == 1
    world.ask(Cancel(JOB))
    world.ask(Requeue(JOB))
    assert (world.view().given_back, world.view().attempts) == (0, 0)
