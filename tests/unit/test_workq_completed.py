"""Completed jobs of a work queue in the store, and the commands that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.errors import StorageUnavailable
from journeyman.protocols.workq.commands import (
    AwaitResult,
    Complaint,
    Complete,
    Delete,
    InspectJob,
    InspectServer,
    Lease,
    RefusedLine,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    Finished,
)
from journeyman.servers.workq import completed as completed_jobs
from journeyman.storage import Storage
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
