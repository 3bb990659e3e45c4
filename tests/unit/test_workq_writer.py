"""The work queue's writer: waits, those who leave, full disks, and what leaves when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from journeyman.errors import LogFull, LogPoisoned
from journeyman.formats.workq import Command
from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    AwaitResult,
    Complaint,
    Complete,
    Delete,
    Fail,
    InspectJob,
    InspectQueue,
    InspectServer,
    Lease,
    PauseQueue,
    RefusedLine,
    Requeue,
    RequeueAll,
    ResumeQueue,
    RunJob,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    TIMED_OUT,
    Finished,
    JobList,
    Leased,
    QueueList,
)
from journeyman.servers.core import group_commit
from journeyman.servers.core.contract import WriteWait
from journeyman.servers.core.group_commit import QUICK_BYTES, QUICK_IN_A_ROW, QUICK_NS
from journeyman.servers.workq import writer
from journeyman.servers.workq.writer import WorkqDialect
from tests.support.workq_writer import FAILED, Bench, Caller, add, job_id, leased, run

# -- order and durability -------------------------------------------------------------------------


def test_nobody_is_told_before_the_record_is_written():
    async def test() -> None:
        bench, worker, client = Bench(), Caller(), Caller()
        await bench.ask(worker, Lease(("q",), 1000))
        bench.journal.gate.clear()
        bench.writer.submit(client, [add(1)])
        await asyncio.sleep(0.02)
        assert client.told == worker.told == []
        bench.journal.gate.set()
        await bench.settle()
        assert client.told == [DONE]
        assert worker.told == [leased(1)]
        assert bench.journal.commands == [Command.ADD, Command.START_ATTEMPT]

    run(test)


def test_replies_of_one_client_come_in_its_order():
    async def test() -> None:
        bench, client = Bench(), Caller()
        refused = RefusedLine(Complaint.ARGS)
        told = await bench.ask(client, add(1), refused, add(1), InspectJob(job_id(2)), add(2))
        duplicate = RefusedLine(Complaint.DUPLICATE_JOB)
        assert told == [DONE, refused, duplicate, NOT_FOUND, DONE]
        assert bench.outcomes == told

    run(test)


def test_many_children_are_told_in_several_batches(monkeypatch: pytest.MonkeyPatch):
    """Others get their turn in between, and all replies still come in order."""
    monkeypatch.setattr(writer, "MAX_EFFORT", 20)
    parents, children = [*map(job_id, range(1, 9))], [*map(job_id, range(101, 111))]

    async def test() -> None:
        bench, client, other = Bench(), Caller(), Caller()
        await bench.ask(client, *(Add(each, "q", 1000, 60_000, b"") for each in parents))
        options = AddOptions(after=tuple(parents))
        for each in children:
            await bench.ask(client, Add(each, "r", 1000, 60_000, b"", options=options))
        before = bench.writer.batches
        bench.writer.submit(client, [Complete(each, each) for each in parents])
        bench.writer.submit(other, [Complete(parents[0], b"twice")])
        told = len(client.told)
        seen: list[int] = []
        monkeypatch.setattr(other, "answered", lambda _: seen.append(len(client.told) - told))
        await bench.settle()
        assert client.told[told:] == [DONE] * len(parents)
        (before_other,) = seen
        assert before_other < len(parents) // 2  # it did not wait for all of them
        assert bench.writer.batches - before >= 3
        assert bench.writer.commands == 2 * len(parents) + len(children) + 1
        assert await bench.ask(client, InspectJob(children[-1])) != [NOT_FOUND]

    run(test)


def test_in_memory_nothing_is_written():
    async def test() -> None:
        bench, client = Bench(memory=True), Caller()
        assert await bench.ask(client, add(1), Lease(("q",), 0)) == [DONE, leased(1)]
        assert bench.journal.records == []

    run(test)


def test_quick_journal_is_written_without_a_thread():
    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.wait = WriteWait.NOTHING
        assert await bench.ask(client, add(1)) == [DONE]
        bench.journal.wait = WriteWait.MORE
        assert await bench.ask(client, add(2)) == [DONE]
        here, there = bench.journal.threads
        assert here == threading.current_thread().name
        assert there.startswith("journeyman-writer")

    run(test)


def test_a_sync_is_waited_for_on_the_loop_after_many_that_were_quick():
    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.wait = WriteWait.SYNC

        async def add_some(first: int, count: int) -> list[bool]:
            """Whether each was written on the loop."""
            here, before = threading.current_thread().name, len(bench.journal.threads)
            for number in range(first, first + count):
                assert await bench.ask(client, add(number)) == [DONE]
            return [thread == here for thread in bench.journal.threads[before:]]

        assert await add_some(0, QUICK_IN_A_ROW + 2) == [*[False] * QUICK_IN_A_ROW, True, True]
        bench.journal.take_time = lambda: bench.clock.advance_ns(QUICK_NS)
        assert await add_some(100, 3) == [True, False, False]  # it stops the loop once
        bench.journal.take_time = lambda: None
        assert await add_some(200, QUICK_IN_A_ROW + 1) == [*[False] * QUICK_IN_A_ROW, True]
        bench.journal.errors = [full()]
        assert await bench.ask(client, add(300)) == [FAILED]
        assert await add_some(400, 2) == [False, False]
        bench.journal.wait = WriteWait.MORE
        assert await add_some(500, QUICK_IN_A_ROW + 1) == [False] * (QUICK_IN_A_ROW + 1)

    run(test)


def test_loop_does_not_wait_for_the_sync_of_a_large_batch():
    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.wait = WriteWait.SYNC
        for number in range(QUICK_IN_A_ROW):
            assert await bench.ask(client, add(number)) == [DONE]
        for number, size in enumerate((QUICK_BYTES - 200, QUICK_BYTES), QUICK_IN_A_ROW):
            assert await bench.ask(client, add(number, payload=bytes(size))) == [DONE]
        here, there = bench.journal.threads[-2:]
        assert here == threading.current_thread().name
        assert there != here

    run(test)


def with_options(number: int, options: AddOptions, payload: bytes = b"") -> Add:
    return add(number, payload=payload)._replace(options=options)


def test_loop_does_not_wait_for_the_sync_of_a_large_job_that_a_short_command_adds():
    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.wait = WriteWait.SYNC
        large = with_options(1, AddOptions(after=(job_id(0),)), bytes(QUICK_BYTES + 1024))
        assert await bench.ask(client, add(0), large) == [DONE, DONE]
        for number in range(2, QUICK_IN_A_ROW + 3):
            assert await bench.ask(client, add(number)) == [DONE]
        assert await bench.ask(client, Complete(job_id(0), b"")) == [DONE]
        before, last = bench.journal.threads[-2:]
        assert before == threading.current_thread().name
        assert last != before

    run(test)


@pytest.mark.parametrize("requeue", [Requeue(job_id(0)), RequeueAll("q", 10)])
def test_loop_does_not_wait_for_the_sync_of_what_is_requeued(requeue: Requeue | RequeueAll):
    """It is written again, and may be large."""

    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.wait = WriteWait.SYNC
        assert await bench.ask(client, add(0, payload=bytes(QUICK_BYTES + 1))) == [DONE]
        assert await bench.ask(client, Fail(job_id(0), b"")) == [DONE]
        for number in range(1, QUICK_IN_A_ROW + 1):
            assert await bench.ask(client, add(number, "p")) == [DONE]
        await bench.ask(client, requeue)
        before, last = bench.journal.threads[-2:]
        assert before == threading.current_thread().name
        assert last != before

    run(test)


def test_everyone_who_waits_for_a_result_is_answered():
    async def test() -> None:
        bench, client, others = Bench(), Caller(), [Caller(), Caller(), Caller()]
        await bench.ask(client, add(1))
        for other in others:
            await bench.ask(other, AwaitResult(job_id(1), 5000))
        await bench.ask(client, Complete(job_id(1), b"done"))
        assert all(other.told == [Finished(job_id(1), True, b"done")] for other in others)

    run(test)


def test_waits_end_with_their_time():
    async def test() -> None:
        bench, worker = Bench(), Caller()
        await bench.ask(worker, Lease(("q",), 1000))
        bench.clock.advance(1.0)
        bench.writer.submit_due()
        bench.writer.submit_due()
        await bench.settle()
        assert worker.told == [TIMED_OUT]

    run(test)


# -- who leaves -----------------------------------------------------------------------------------


def test_worker_that_left_while_it_waited_gets_no_job():
    async def test() -> None:
        bench, gone, stays, client = Bench(), Caller(), Caller(), Caller()
        await bench.ask(gone, Lease(("q",), 1000))
        await bench.ask(stays, Lease(("q",), 1000))
        bench.writer.submit(client, [add(1)])
        gone.is_leaving = gone.is_lost = True
        bench.writer.leave(gone)
        await bench.settle()
        assert gone.told == []
        assert stays.told == [leased(1)]

    run(test)


def test_leaving_client_gets_what_is_there_and_waits_for_nothing():
    async def test() -> None:
        bench, leaving, client = Bench(), Caller(), Caller()
        leaving.is_leaving = True
        await bench.ask(client, add(1))
        assert await bench.ask(leaving, Lease(("q",), 1000)) == [leased(1)]
        assert await bench.ask(leaving, Lease(("q",), 1000)) == [TIMED_OUT]
        await bench.ask(client, add(2))
        assert await bench.ask(client, Lease(("q",), 0)) == [leased(2)]

    run(test)


def test_lost_client_changes_what_it_asked_for_but_is_given_nothing():
    async def test() -> None:
        bench, lost, client = Bench(), Caller(), Caller()
        lost.is_leaving = lost.is_lost = True
        await bench.ask(lost, add(1), Lease(("q",), 1000))
        assert await bench.ask(client, Lease(("q",), 0)) == [leased(1)]

    run(test)


def test_client_that_left_and_did_not_wait_is_told_nothing():
    async def test() -> None:
        bench, client = Bench(), Caller()
        client.is_leaving = True
        bench.writer.leave(client)
        await bench.settle()
        assert client.told == []

    run(test)


# -- a full disk ----------------------------------------------------------------------------------


def full() -> LogFull:
    return LogFull("cmdlog", "no room")


@pytest.mark.parametrize("wait", [WriteWait.MORE, WriteWait.NOTHING])
def test_changes_are_refused_while_the_disk_is_full_and_reads_are_answered(wait: WriteWait):
    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.wait = wait
        await bench.ask(client, add(1))
        bench.journal.errors = [full()]
        told = await bench.ask(
            client, add(2), RefusedLine(Complaint.ARGS), InspectQueue("q"), Delete(job_id(1))
        )
        assert told[:2] == [FAILED, RefusedLine(Complaint.ARGS)]
        assert isinstance(told[2], QueueList)
        assert told[2].queues[0].ready == 1
        assert told[3] == FAILED
        assert await bench.ask(client, add(2)) == [DONE]
        assert [type(trouble) for trouble in bench.troubles] == [LogFull, type(None)]
        assert bench.journal.commands == [Command.ADD, Command.ADD]

    run(test)


@pytest.mark.parametrize("wait", [WriteWait.MORE, WriteWait.NOTHING])
def test_who_waits_goes_on_waiting_when_the_lease_cannot_be_recorded(wait: WriteWait):
    async def test() -> None:
        bench, worker, client = Bench(), Caller(), Caller()
        bench.journal.wait = wait
        await bench.ask(worker, Lease(("q",), 1000))
        bench.journal.errors = [full()]
        assert await bench.ask(client, add(1)) == [FAILED]
        assert worker.told == []
        assert await bench.ask(client, add(1)) == [DONE]
        assert worker.told == [leased(1)]

    run(test)


def test_lease_of_a_ready_job_is_refused_while_the_disk_is_full():
    async def test() -> None:
        bench, worker, other = Bench(), Caller(), Caller()
        await bench.ask(worker, add(1))
        bench.journal.errors = [full()]
        bench.writer.submit(worker, [Lease(("q",), 1000)])
        bench.writer.submit(other, [Lease(("empty",), 1000)])
        await bench.settle()
        assert worker.told[1:] == [FAILED]
        assert other.told == []
        assert await bench.ask(worker, Lease(("q",), 1000)) == [leased(1)]

    run(test)


def test_who_left_in_a_batch_that_was_taken_back_has_left():
    async def test() -> None:
        bench, gone, client = Bench(), Caller(), Caller()
        await bench.ask(gone, Lease(("q",), 1000))
        bench.journal.errors = [full()]
        gone.is_leaving = gone.is_lost = True
        bench.writer.leave(gone)
        assert await bench.ask(client, add(1, "other")) == [FAILED]
        assert await bench.ask(client, add(1), Lease(("q",), 0)) == [DONE, leased(1)]
        assert Leased not in map(type, gone.told)

    run(test)


def test_run_needs_no_record_and_goes_on_while_the_disk_is_full():
    async def test() -> None:
        bench, worker, client = Bench(), Caller(), Caller()
        bench.journal.errors = [full(), full()]
        bench.writer.submit(worker, [Lease(("q",), 1000)])
        bench.writer.submit(client, [RunJob(job_id(1), "q", 1000, 1000, b"work")])
        await bench.settle()
        assert worker.told == [leased(1)]
        await bench.ask(worker, Complete(job_id(1), b"done"))
        assert client.told == [Finished(job_id(1), True, b"done")]

    run(test)


# -- pauses ---------------------------------------------------------------------------------------


def test_a_paused_queue_gives_out_nothing_until_it_is_resumed():
    async def test() -> None:
        bench, client, worker = Bench(), Caller(), Caller()
        told = await bench.ask(client, PauseQueue("q"), PauseQueue("r"), add(1), PauseQueue("q"))
        assert told == [DONE, DONE, DONE, DONE]
        assert bench.queue.paused == frozenset({"q", "r"})
        assert await bench.ask(worker, Lease(("q",), 1000)) == []
        assert await bench.ask(client, ResumeQueue("q")) == [DONE]
        assert bench.queue.paused == frozenset({"r"})
        assert worker.told == [leased(1)]

    run(test)


# -- bounds, errands, failure ---------------------------------------------------------------------


def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WorkqDialect, "max_waiting_bytes", 1000)
    monkeypatch.setattr(group_commit, "MAX_BATCH_BYTES", 300)

    async def test() -> None:
        bench, client, other = Bench(), Caller(), Caller()
        bench.writer.submit(client, [add(number, payload=b"x" * 100) for number in range(10)])
        room = [bench.writer.has_room]
        bench.writer.notify_when_room(other)
        await bench.settle()
        assert client.told == [DONE] * 10
        assert bench.writer.batches == 4
        assert [*room, bench.writer.has_room] == [False, True]
        assert other.rooms == 1

    run(test)


def test_commands_that_wait_are_bounded():
    async def test() -> None:
        bench, client = Bench(max_waiting=3), Caller()
        bench.writer.submit(client, [InspectServer()] * 3)
        room = [bench.writer.has_room]
        await bench.settle()
        assert [*room, bench.writer.has_room] == [False, True]

    run(test)


def test_errand_is_run_between_two_batches():
    async def test() -> None:
        bench, client = Bench(), Caller()
        seen: list[int] = []
        bench.writer.submit(client, [add(1)])
        bench.writer.run_between(lambda: seen.append(len(bench.journal.records)))
        bench.writer.submit(client, [add(2)])
        await bench.settle()
        assert client.told == [DONE, DONE]
        assert len(seen) == 1

    run(test)


def test_an_errand_is_waited_for():
    async def test() -> None:
        bench, done = Bench(), []
        bench.writer.run_between(lambda: done.append(True))
        await bench.writer.idle()
        assert done == [True]

    run(test)


def test_failed_errand_is_final():
    async def test() -> None:
        bench, client = Bench(), Caller()

        bench.journal.errors = [LogPoisoned("cmdlog", "a sync failed")]
        bench.writer.run_between(lambda: bench.journal.write(()))
        bench.writer.submit(client, [add(1)])
        await bench.settle()
        assert client.told == []
        assert client.dropped
        assert [type(failure) for failure in bench.failures] == [LogPoisoned]

    run(test)


@pytest.mark.parametrize("wait", [WriteWait.MORE, WriteWait.NOTHING])
@pytest.mark.parametrize("error", [LogPoisoned("cmdlog", "a sync failed"), RuntimeError("a bug")])
def test_failed_sync_drops_everyone_and_is_final(wait: WriteWait, error: Exception):
    async def test() -> None:
        bench, client, late = Bench(), Caller(), Caller()
        bench.journal.wait = wait
        bench.journal.errors = [error]
        bench.writer.submit(client, [add(1)])
        await bench.settle()
        assert client.told == []
        assert client.dropped
        assert bench.failures == [error]
        bench.writer.submit(late, [InspectServer()])
        assert late.dropped

    run(test)


def test_jobs_of_a_batch_that_was_taken_back_are_not_there():
    async def test() -> None:
        bench, client = Bench(), Caller()
        bench.journal.errors = [full()]
        await bench.ask(client, add(1), add(2))
        assert await bench.ask(client, InspectJob(job_id(1))) == [NOT_FOUND]
        await bench.ask(client, add(1))
        (found,) = await bench.ask(client, InspectJob(job_id(1)))
        assert isinstance(found, JobList)

    run(test)
