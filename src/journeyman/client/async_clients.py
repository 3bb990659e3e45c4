"""The asyncio clients, with the calls of the blocking ones: see <dialect>/calls.py.

They are a module of their own because asyncio takes as long to import as the blocking clients do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from journeyman.client.awaiting import AsyncClient, awaited
from journeyman.client.errors import Refused
from journeyman.client.kestrel import calls as kestrel_calls
from journeyman.client.workq import calls as workq_calls
from journeyman.client.ztick import calls as ztick_calls


class AsyncSchedule(AsyncClient):
    """An asyncio client of the schedule, for any number of tasks."""

    service = ztick_calls.SERVICE

    set = awaited(ztick_calls.set)
    get = awaited(ztick_calls.get)
    query = awaited(ztick_calls.query)
    remove = awaited(ztick_calls.remove)
    set_rule = awaited(ztick_calls.set_rule)
    rules = awaited(ztick_calls.rules)
    remove_rule = awaited(ztick_calls.remove_rule)
    stat = awaited(ztick_calls.stat)
    set_timetable = awaited(ztick_calls.set_timetable)
    timetable = awaited(ztick_calls.timetable)
    timetables = awaited(ztick_calls.timetables)
    pause_timetable = awaited(ztick_calls.pause_timetable)
    resume_timetable = awaited(ztick_calls.resume_timetable)
    remove_timetable = awaited(ztick_calls.remove_timetable)
    run_timetable = awaited(ztick_calls.run_timetable)
    next_firings = awaited(ztick_calls.next_firings)
    backfill = awaited(ztick_calls.backfill)

    def set_many(
        self, jobs: Iterable[ztick_calls.Planned], *, batch: int = ztick_calls.DEFAULT_BATCH
    ) -> AsyncIterator[tuple[str, Refused | None]]:
        """Plan many jobs; as ``Schedule.set_many``."""
        return self._set_many(ztick_calls.batches_of(jobs, batch))

    async def _set_many(
        self, batches: Iterator[list[ztick_calls.Planned]]
    ) -> AsyncIterator[tuple[str, Refused | None]]:
        for some in batches:
            for outcome in await self.hold(ztick_calls.set_all(some)):
                yield outcome


class AsyncWorkQueue(AsyncClient):
    """An asyncio client of the work queue, for any number of tasks."""

    service = workq_calls.SERVICE

    add = awaited(workq_calls.add)
    schedule = awaited(workq_calls.schedule)
    run = awaited(workq_calls.run)
    result = awaited(workq_calls.result)
    results = awaited(workq_calls.results)
    delete = awaited(workq_calls.delete)
    lease = awaited(workq_calls.lease)
    lease_many = awaited(workq_calls.lease_many)
    touch = awaited(workq_calls.touch)
    complete = awaited(workq_calls.complete)
    fail = awaited(workq_calls.fail)
    cancel = awaited(workq_calls.cancel)
    note_progress = awaited(workq_calls.note_progress)
    progress = awaited(workq_calls.progress)
    record_step = awaited(workq_calls.record_step)
    steps = awaited(workq_calls.steps)
    emit = awaited(workq_calls.emit)
    event = awaited(workq_calls.event)
    fork = awaited(workq_calls.fork)
    requeue = awaited(workq_calls.requeue)
    requeue_all = awaited(workq_calls.requeue_all)
    limit = awaited(workq_calls.limit)
    pause = awaited(workq_calls.pause)
    resume = awaited(workq_calls.resume)
    inspect_job = awaited(workq_calls.inspect_job)
    inspect_jobs = awaited(workq_calls.inspect_jobs)
    inspect_scheduled_jobs = awaited(workq_calls.inspect_scheduled_jobs)
    inspect_dead_jobs = awaited(workq_calls.inspect_dead_jobs)
    inspect_queue = awaited(workq_calls.inspect_queue)
    inspect_queues = awaited(workq_calls.inspect_queues)
    inspect_paused_queues = awaited(workq_calls.inspect_paused_queues)
    inspect_server = awaited(workq_calls.inspect_server)
    salt = awaited(workq_calls.salt)

    def add_many(
        self, jobs: Iterable[workq_calls.NewJob], *, batch: int = workq_calls.DEFAULT_BATCH
    ) -> AsyncIterator[tuple[workq_calls.NewJob, Refused | None]]:
        """Add many jobs; as ``WorkQueue.add_many``."""
        return self._add_many(workq_calls.batches_of(jobs, batch))

    async def _add_many(
        self, batches: Iterator[list[workq_calls.NewJob]]
    ) -> AsyncIterator[tuple[workq_calls.NewJob, Refused | None]]:
        for some in batches:
            for outcome in await self.hold(workq_calls.add_all(some)):
                yield outcome


class AsyncKestrelClient(AsyncClient):
    """An asyncio client of the fan-out queues."""

    service = kestrel_calls.SERVICE

    put = awaited(kestrel_calls.put)
    get = awaited(kestrel_calls.get)
    open = awaited(kestrel_calls.open, kept=True)
    confirm_and_open = awaited(kestrel_calls.confirm_and_open, kept=True)
    monitor = awaited(kestrel_calls.monitor, kept=True)
    confirm = awaited(kestrel_calls.confirm, kept=True)
    abort = awaited(kestrel_calls.abort, kept=True)
    peek = awaited(kestrel_calls.peek)
    flush = awaited(kestrel_calls.flush)
    flush_all = awaited(kestrel_calls.flush_all)
    flush_expired = awaited(kestrel_calls.flush_expired)
    flush_all_expired = awaited(kestrel_calls.flush_all_expired)
    delete = awaited(kestrel_calls.delete)
    stats = awaited(kestrel_calls.stats)
    dump_stats = awaited(kestrel_calls.dump_stats)
    version = awaited(kestrel_calls.version)
    status = awaited(kestrel_calls.status)
    set_status = awaited(kestrel_calls.set_status)
    shutdown = awaited(kestrel_calls.shutdown)
