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

from collections.abc import Iterable, Iterator

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
    record_step = blocking(calls.record_step)
    steps = blocking(calls.steps)
    emit = blocking(calls.emit)
    event = blocking(calls.event)
    fork = blocking(calls.fork)
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
