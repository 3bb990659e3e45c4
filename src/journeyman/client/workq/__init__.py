"""Clients of the work queue, over the workq protocol: ``WorkQueue`` and ``AsyncWorkQueue``.

    with WorkQueue("queue.internal") as queue:
        job_id = queue.add("mail", b"to: ...", ttl_ms=3_600_000)
        queue.result(job_id, wait_ms=60_000)          Result(...), or None if it takes longer

    with WorkQueue("queue.internal") as worker:
        while (job := worker.lease("mail", wait_ms=30_000)) is not None:
            worker.complete(job.job_id, do(job.payload))

``calls.py`` says what every call does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from journeyman.client.awaiting import AsyncClient, awaited
from journeyman.client.blocking import BlockingClient, blocking
from journeyman.client.errors import Refused
from journeyman.client.workq import calls
from journeyman.client.workq.calls import (
    DEFAULT_BATCH,
    DEFAULT_PORT,
    DEFAULT_TTL_MS,
    DEFAULT_TTR_MS,
    SERVICE,
    NewJob,
)
from journeyman.client.workq.lines import JobInfo, LeasedJob, QueueInfo, Result, WorkJobState

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_TTL_MS",
    "DEFAULT_TTR_MS",
    "AsyncWorkQueue",
    "JobInfo",
    "LeasedJob",
    "NewJob",
    "QueueInfo",
    "Result",
    "WorkJobState",
    "WorkQueue",
]


class WorkQueue(BlockingClient):
    """A blocking client of the work queue, for any number of threads."""

    service = SERVICE

    add = blocking(calls.add)
    schedule = blocking(calls.schedule)
    run = blocking(calls.run)
    result = blocking(calls.result)
    results = blocking(calls.results)
    delete = blocking(calls.delete)
    lease = blocking(calls.lease)
    lease_many = blocking(calls.lease_many)
    touch = blocking(calls.touch)
    complete = blocking(calls.complete)
    fail = blocking(calls.fail)
    cancel = blocking(calls.cancel)
    note_progress = blocking(calls.note_progress)
    progress = blocking(calls.progress)
    requeue = blocking(calls.requeue)
    requeue_all = blocking(calls.requeue_all)
    limit = blocking(calls.limit)
    pause = blocking(calls.pause)
    resume = blocking(calls.resume)
    inspect_job = blocking(calls.inspect_job)
    inspect_jobs = blocking(calls.inspect_jobs)
    inspect_scheduled_jobs = blocking(calls.inspect_scheduled_jobs)
    inspect_dead_jobs = blocking(calls.inspect_dead_jobs)
    inspect_queue = blocking(calls.inspect_queue)
    inspect_queues = blocking(calls.inspect_queues)
    inspect_paused_queues = blocking(calls.inspect_paused_queues)
    inspect_server = blocking(calls.inspect_server)
    salt = blocking(calls.salt)

    def add_many(
        self, jobs: Iterable[NewJob], *, batch: int = DEFAULT_BATCH
    ) -> Iterator[tuple[NewJob, Refused | None]]:
        """Add many jobs, ``batch`` on the way at a time: each with its refusal, or None.

        Jobs whose replies a broken connection took are sent again, fewer at a time, and added once.
        An invalid job is a refusal like any other.
        """
        batches = calls.batches_of(jobs, batch)
        return (outcome for some in batches for outcome in self.hold(calls.add_all(some)))


class AsyncWorkQueue(AsyncClient):
    """An asyncio client of the work queue, for any number of tasks."""

    service = SERVICE

    add = awaited(calls.add)
    schedule = awaited(calls.schedule)
    run = awaited(calls.run)
    result = awaited(calls.result)
    results = awaited(calls.results)
    delete = awaited(calls.delete)
    lease = awaited(calls.lease)
    lease_many = awaited(calls.lease_many)
    touch = awaited(calls.touch)
    complete = awaited(calls.complete)
    fail = awaited(calls.fail)
    cancel = awaited(calls.cancel)
    note_progress = awaited(calls.note_progress)
    progress = awaited(calls.progress)
    requeue = awaited(calls.requeue)
    requeue_all = awaited(calls.requeue_all)
    limit = awaited(calls.limit)
    pause = awaited(calls.pause)
    resume = awaited(calls.resume)
    inspect_job = awaited(calls.inspect_job)
    inspect_jobs = awaited(calls.inspect_jobs)
    inspect_scheduled_jobs = awaited(calls.inspect_scheduled_jobs)
    inspect_dead_jobs = awaited(calls.inspect_dead_jobs)
    inspect_queue = awaited(calls.inspect_queue)
    inspect_queues = awaited(calls.inspect_queues)
    inspect_paused_queues = awaited(calls.inspect_paused_queues)
    inspect_server = awaited(calls.inspect_server)
    salt = awaited(calls.salt)

    def add_many(
        self, jobs: Iterable[NewJob], *, batch: int = DEFAULT_BATCH
    ) -> AsyncIterator[tuple[NewJob, Refused | None]]:
        """Add many jobs; as ``WorkQueue.add_many``."""
        return self._add_many(calls.batches_of(jobs, batch))

    async def _add_many(
        self, batches: Iterator[list[NewJob]]
    ) -> AsyncIterator[tuple[NewJob, Refused | None]]:
        for some in batches:
            for outcome in await self.hold(calls.add_all(some)):
                yield outcome
