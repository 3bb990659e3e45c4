"""State at a moment, version 1: what the log says of then, and what changed between two moments.

The work queue's records have times, so every moment that the log still holds can be asked for:
since the last cleaning, as far as jobs are concerned that were removed then. The schedule's log has
its times from marks in the ledger, about one a second; its past begins with the last compaction.
The log of the fan-out queues does not say when an item was read: their past cannot be told.
"""

from __future__ import annotations

import os
from typing import Any

from journeyman.config import Persistence, WorkqPersistence
from journeyman.formats.workq import JobAdded
from journeyman.formats.workq.retry import delay_ms_of, max_fails_of
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.http.conversions import (
    cursor_of,
    read_cursor,
    read_moment,
    text_or_base64,
    time_text,
)
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.past.moments import PastJob
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.time_machine import TimeMachine
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import NS_PER_MS

SHOWN_CHANGES = 100
STATES = ("ready", "scheduled", "leased", "completed", "dead")
NO_TIMES = "the schedule's log has no times without a ledger: its past cannot be told"


class PastRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self._machine = TimeMachine()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/past/work", self.counts, "Jobs by queue and state at a moment",
                  values.PastCounts, query=values.AtQuery, for_all=True, tag="past",
                  errors=(404,)),
            Route("GET", "/v1/past/work/changes", self.changes, "What changed between two moments",
                  values.PastChanges, query=values.SpanQuery, for_all=True, tag="past",
                  errors=(404,)),
        ]  # fmt: skip

    def close(self) -> None:
        self._machine.close()

    async def span(self) -> tuple[int, int]:
        """The times of the first and the last record of the work queue."""
        found: tuple[int, int] = await self._ask("span")
        return found

    async def counts(self, call: RouteCall) -> values.PastCounts:
        at_ns = read_moment(call.query.at, "at")
        return values.PastCounts(
            time_text(at_ns), str(at_ns), _queues(await self._ask("counts", at_ns))
        )

    async def changes(self, call: RouteCall) -> values.PastChanges:
        from_ns = read_moment(call.query.begin, "from")
        until_ns = read_moment(call.query.until, "until")
        found = await self._ask("change", from_ns, until_ns, SHOWN_CHANGES)
        jobs = [
            values.ChangedJob(id_text(job_id), queue, before, after)
            for _, job_id, queue, before, after in found["jobs"]
        ]
        return values.PastChanges(
            _queues(found["before"]), _queues(found["after"]), found["changed"], jobs
        )

    async def jobs(self, call: RouteCall, query: values.WorkJobsQuery) -> values.WorkJobs:
        """A page of ``GET /v1/work/jobs?at=``."""
        if call.prefix:
            raise ApiError(403, "the past is for tokens of all namespaces", "outside_namespace")
        at_ns = read_moment(query.at, "at")
        begin = int.from_bytes((read_cursor(query.cursor) or b"")[:6])
        found, after = await self._ask(
            "page", at_ns, query.queue, query.state or "", query.text, query.error,
            begin, query.limit,
        )  # fmt: skip
        jobs = [_job(*row) for row in found]
        return values.WorkJobs(jobs, None if after is None else cursor_of(after.to_bytes(6)))

    async def scheduled(
        self, call: RouteCall, query: values.ScheduledJobsQuery
    ) -> values.ScheduledJobs:
        """A page of ``GET /v1/schedule/jobs?at=``."""
        backend = self._backend
        if backend.ledger is None or backend.settings.database.persistence is Persistence.MEMORY:
            raise ApiError(422, NO_TIMES, "no_times")
        prefix = call.narrowed(query.prefix)
        if prefix is None:
            return values.ScheduledJobs([], None)
        begin = int.from_bytes((read_cursor(query.cursor) or b"")[:6])
        found, after = await self._machine.ask(
            backend.settings.database.logfile_path, "schedule_page",
            os.path.abspath(backend.settings.ledger.path), read_moment(query.at, "at"), prefix,
            query.status or "", query.text, query.order.startswith("-"), begin, query.limit,
        )  # fmt: skip
        jobs = [
            values.ScheduledJob(identifier, status, time_text(time_ns), str(time_ns))
            for identifier, status, time_ns in found
        ]
        return values.ScheduledJobs(jobs, None if after is None else cursor_of(after.to_bytes(6)))

    async def _ask(self, kind: str, *arguments: Any) -> Any:
        settings = self._backend.settings.workq
        has_log = settings.enabled and settings.persistence is WorkqPersistence.LOG
        if not has_log or not os.path.isdir(settings.cmdlog_path):
            raise ApiError(404, "the work queue has no log on the disk", "service_off")
        return await self._machine.ask(settings.cmdlog_path, kind, *arguments)


def _queues(counts: dict[str, dict[str, int]]) -> list[values.PastQueue]:
    return [
        values.PastQueue(name, *(states.get(state, 0) for state in STATES))
        for name, states in counts.items()
    ]


def _job(job: PastJob, added: JobAdded, result: bytes | None) -> values.WorkJob:
    begins_ns = added.created.unix_ns if added.time is None else added.time.unix_ns
    expires_ns = begins_ns + added.ttl_ms * NS_PER_MS
    scheduled = {}
    if added.time is not None:
        scheduled = {"scheduled": time_text(begins_ns), "scheduled_ns": str(begins_ns)}
    return values.WorkJob(
        id_text(job.job_id), job.queue, job.state, job.attempts, added.max_attempts,
        job.fails, max_fails_of(added.max_fails), added.priority, added.ttr_ms, added.ttl_ms,
        delay_ms_of(added.max_fails), time_text(job.created_ns), str(job.created_ns),
        time_text(expires_ns), str(expires_ns), **scheduled,
        **text_or_base64("payload", added.payload), **text_or_base64("result", result),
    )  # fmt: skip
