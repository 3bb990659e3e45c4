"""Completed jobs of a work queue in the store, and the commands that name them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from journeyman.engines.workq.browsing import BrowseJobs
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.errors import StorageUnavailable
from journeyman.folds.keyspace import record_of_workq
from journeyman.folds.workq import FoldedJob, JobState
from journeyman.formats.ledger import LeaseCounted
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import JobAdded
from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    Add,
    AddOptions,
    AwaitResult,
    Complaint,
    Complete,
    Delete,
    InspectJob,
    InspectServer,
    Lease,
    Limits,
    RefusedLine,
    SetLimits,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    TIMED_OUT,
    Finished,
    LeasedJobs,
)
from journeyman.servers.workq import store as completed_jobs
from journeyman.storage import Storage
from journeyman.storage.folded import folded_ledger
from journeyman.storage.memory import MemoryBackend
from tests.support.workq_writer import FAILED, Bench, Caller, add, job_id, leased, run


class Unsteady(Storage):
    """Cannot be read as long as it has a failure."""

    failure: Exception | None = None

    def get_jobs(self, job_uuids: Sequence[UUID]) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().get_jobs(job_uuids)


async def with_completed(*numbers: int) -> tuple[Bench, Unsteady, Caller]:
    """These jobs have completed, and are not in memory any more."""
    store = Unsteady(MemoryBackend(), "memory")
    bench, client = Bench(store=store), Caller()
    for number in numbers:
        await bench.ask(client, add(number), Complete(job_id(number), b"done"))
    for _ in range(3):
        await bench.ask(client, InspectServer())
    assert not any(bench.queue.has(job_id(number)) for number in numbers)
    return bench, store, client


def test_completed_jobs_are_read_for_the_commands_that_name_them():
    async def test() -> None:
        bench, _, client = await with_completed(1, 2, 3)
        told = await bench.ask(
            client,
            AwaitResult(job_id(1), 0),
            add(1),
            Delete(job_id(2)),
            add(2),
            Complete(job_id(3), b"again"),
            InspectJob(job_id(9)),
        )
        assert told == [
            Finished(job_id(1), True, b"done"),
            RefusedLine(Complaint.DUPLICATE_JOB),
            DONE,
            DONE,
            RefusedLine(Complaint.DUPLICATE_RESULT),
            NOT_FOUND,
        ]
        assert await bench.ask(client, Lease(("q",), 0)) == [leased(2)]

    run(test)


def test_commands_whose_jobs_are_too_large_together_are_decided_later(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(completed_jobs, "READ_FIRST", 1)
    monkeypatch.setattr(completed_jobs, "READ_BYTES", 1)

    async def test() -> None:
        bench, _, client = await with_completed(1, 2, 3, 4)
        other, asked = Caller(), [AwaitResult(job_id(number), 0) for number in (4, 1, 3, 2)]
        bench.writer.submit(other, asked[:1])
        told = await bench.ask(client, *asked, InspectJob(job_id(9)))
        assert told == [*(Finished(each.job_id, True, b"done") for each in asked), NOT_FOUND]
        assert other.told == told[:1]

    run(test)


def child(number: int, *parents: int, name: str = "q") -> Add:
    after = tuple(map(job_id, parents))
    return Add(job_id(number), name, 1000, 60_000, b"work", options=AddOptions(after=after))


def test_jobs_may_wait_for_what_has_completed_and_is_not_in_memory():
    async def test() -> None:
        bench, _, client = await with_completed(1, 2, 3)
        told = await bench.ask(
            client,
            child(4, 1, 2),
            Delete(job_id(3)),
            child(5, 3),
            child(6, 9),
            add(7),
            child(8, 7, 1),
            child(10, 8),
            Lease(("q",), 0),
        )
        unknown = RefusedLine(Complaint.NO_PARENT)
        assert told == [DONE, DONE, unknown, unknown, DONE, DONE, DONE, leased(4)]
        assert await bench.ask(client, Complete(job_id(7), b"")) == [DONE]
        assert await bench.ask(client, Lease(("q",), 0)) == [leased(8)]
        client.prefix = "shop."
        assert await bench.ask(client, child(11, 1, name="shop.q")) == [unknown]

    run(test)


def test_parents_that_are_too_large_together_are_read_bit_by_bit_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(completed_jobs, "READ_FIRST", 1)
    monkeypatch.setattr(completed_jobs, "LOOKUP_BYTES", 0)
    monkeypatch.setattr(completed_jobs, "READ_BYTES", 1)

    async def test() -> None:
        bench, _, client = await with_completed(1, 2, 3, 4)
        other, batches = Caller(), bench.writer.batches
        bench.writer.submit(client, [child(5, 1, 2, 3, 4), Lease(("q",), 0)])
        bench.writer.submit(other, [InspectServer()])
        while not other.told:
            await asyncio.sleep(0)
        assert client.told[-1] != leased(5)
        await bench.settle()
        assert client.told[-2:] == [DONE, leased(5)]
        assert bench.writer.batches == batches + 2
        await bench.ask(client, InspectServer())
        assert not bench.queue.elsewhere

    run(test)


def test_few_parents_are_looked_for_at_a_time_though_there_are_none():
    """Tens of thousands, in a large store, would take seconds, and all others would wait."""
    parents = completed_jobs.READ_BYTES // completed_jobs.LOOKUP_BYTES + 1000
    store = Storage(MemoryBackend(), "memory")
    completed = completed_jobs.CompletedJobs(store, WorkqEngine())
    asked = [child(number, *range(number, number + 1000)) for number in range(0, parents, 1000)]
    for has_more in (True, False):
        read = completed.prepare(asked)
        assert read is not None
        read()
        completed.bring(0)
        assert completed.has_unread is has_more


@pytest.mark.parametrize("crowd", [1, 500])
def test_pages_are_in_the_order_of_creation_however_many_jobs_a_millisecond_has(
    monkeypatch: pytest.MonkeyPatch, crowd: int
):
    """More than a crowd are not read together, but by the listings of their queues."""
    monkeypatch.setattr(completed_jobs, "CROWD", crowd)
    monkeypatch.setattr(completed_jobs, "READ_FIRST", 2)
    store, created, now_ns = Storage(MemoryBackend(), "memory"), [], 1_700_000_000 * 10**9
    for number in range(1, 31):  # three a millisecond, then ten, of three queues
        at = Instant(now_ns + (number * 333_333 if number < 15 else 10**7 - number * 7))
        spec = JobAdded(at, job_id(number), f"q{number % 3}", 1, 10**6, 0, 0, 0, b"", None, at)
        job = FoldedJob(spec, JobState.COMPLETED, 1, 0, b"", at, at)
        store.upsert_job_record(record_of_workq(job, at.unix_ns))
        created.append((at.unix_ns, job_id(number)))
    shown, after = list[bytes](), None
    for _ in range(30):
        asked = BrowseJobs(limit=4, after=after)
        page = completed_jobs.completed_jobs(store, asked, now_ns)
        shown += [job.job_id for job in page.jobs]
        after = page.after
        if after is None:
            break
    assert shown == [job for _, job in sorted(created, reverse=True)]


def test_leases_that_rates_count_are_in_the_store_until_they_count_no_more():
    async def test() -> None:
        store = Storage(MemoryBackend(), "memory")
        bench, client = Bench(store=store), Caller()

        def counted() -> int:
            records = folded_ledger(store).records()
            return sum(isinstance(each, LeaseCounted) for each in records)

        limits = SetLimits("q", Limits(rate=2, per_ms=1000))
        await bench.ask(client, limits, *map(add, range(1, 9)))
        for _ in range(3):
            told = await bench.ask(client, Lease(("q",), 0, 9), Lease(("q",), 0, 9))
            assert [type(each) for each in told] == [LeasedJobs, type(TIMED_OUT)]
            assert counted() == 2
            bench.clock.advance_ns(1001 * 10**6)
        await bench.ask(client, SetLimits("q", NO_LIMITS), WorkqDue())
        assert counted() == 0

    run(test)


def test_jobs_that_cannot_be_read_are_refused_and_all_others_served():
    async def test() -> None:
        bench, store, client = await with_completed(1)
        await bench.ask(client, add(2))
        store.failure = StorageUnavailable("memory", "away")
        told = await bench.ask(
            client, AwaitResult(job_id(1), 0), Complete(job_id(2), b""), AwaitResult(job_id(3), 0)
        )
        assert told == [FAILED, DONE, FAILED]
        store.failure = None
        asked = AwaitResult(job_id(1), 0), AwaitResult(job_id(3), 0)
        assert await bench.ask(client, *asked) == [Finished(job_id(1), True, b"done"), NOT_FOUND]
        assert bench.failures == []

    run(test)


def test_failure_while_jobs_are_read_drops_those_that_asked():
    async def test() -> None:
        bench, store, client = await with_completed(1)
        store.failure = RuntimeError("a bug")
        told = len(client.told)
        assert await bench.ask(client, InspectJob(job_id(1))) == []
        assert len(client.told) == told
        assert client.dropped
        assert bench.failures == [store.failure]

    run(test)


def test_failure_while_jobs_come_into_memory_drops_those_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug = RuntimeError("a bug")

    def bring(*_: object) -> None:
        raise bug

    async def test() -> None:
        bench, _, client = await with_completed(1)
        monkeypatch.setattr(WorkqEngine, "bring", bring)
        assert await bench.ask(client, InspectJob(job_id(1))) == []
        assert client.dropped
        assert bench.failures == [bug]

    run(test)
