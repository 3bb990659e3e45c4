"""State at a moment, version 1: jobs by queue and state, and what changed between two moments.

The work queue's records have times, so every moment that the log still holds can be asked for:
since the last cleaning, as far as jobs are concerned that were removed then. The schedule's log has
its times from marks in the ledger, about one a second; its past begins with the last compaction.
Timetables, pauses and limits are in the ledger. The log of the fan-out queues does not say when an
item was read: their past is not known.

`?at=` of other routes needs nothing of this: they ask an engine of that moment what they ask the
live one (backend.py, http/past/engines.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from journeyman.engines.ztick.timetables import body_of, read_body
from journeyman.formats import workq, ztick
from journeyman.logs.ledger import times_of
from journeyman.logs.segments import workq_files, ztick_files
from journeyman.protocols.workq.replies import STATES
from journeyman.servers.http import records
from journeyman.servers.http.fields import read_moment
from journeyman.servers.http.past.child import LakeDay
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import NS_PER_S

SHOWN_CHANGES = 100
SHOWN_DAYS = 90
NO_PAST = "the log of the fan-out queues does not say what was read when"


class PastQueue(Struct):
    """The jobs of a queue at a moment, by state."""

    queue: str
    ready: int
    scheduled: int
    leased: int
    completed: int
    dead: int
    cancelled: int


class PastSchedule(Struct):
    """The jobs of the schedule at a moment, by status."""

    at_ns: int
    planned: int
    triggered: int
    executed: int
    failed: int


class PastCounts(Struct):
    """The jobs of the work queue at a moment, by queue and state."""

    at_ns: int
    queues: list[PastQueue]


class ChangedJob(Struct):
    """``before`` and ``after`` are states; null: the job did not exist."""

    job_id: bytes
    queue: str
    before: str | None
    after: str | None


class PastChanges(Struct):
    """``changed`` jobs have another state; the newest of them are listed."""

    before: list[PastQueue]
    after: list[PastQueue]
    changed: int
    jobs: list[ChangedJob]


class PastRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/past/work", self.counts, "Jobs by queue and state at a moment",
                  PastCounts, query=values.AtQuery, tag="past", errors=(404, 422)),
            Route("GET", "/v1/past/work/changes", self.changes, "What changed between two moments",
                  PastChanges, query=values.SpanQuery, tag="past", errors=(404, 422)),
            Route("GET", "/v1/past/schedule", self.schedule, "Jobs by status at a moment",
                  PastSchedule, query=values.AtQuery, tag="past", errors=(422,)),
        ]  # fmt: skip

    def close(self) -> None:
        self._backend.machine.close()

    async def counts(self, call: RouteCall) -> PastCounts:
        at_ns = read_moment(call.query.at, "at")
        found = await self._backend.ask_past(
            call, "count_work", *self._backend.work_log(), at_ns, call.prefix
        )
        return PastCounts(at_ns, _queues(found))

    async def schedule(self, call: RouteCall) -> PastSchedule:
        at_ns = read_moment(call.query.at, "at")
        found = await self._backend.ask_past(
            call, "count_schedule", *self._backend.schedule_log(), at_ns, call.prefix
        )
        counts = (found.get(word, 0) for word in ("planned", "triggered", "executed", "failed"))
        return PastSchedule(at_ns, *counts)

    async def changes(self, call: RouteCall) -> PastChanges:
        from_ns = read_moment(call.query.begin, "from")
        until_ns = read_moment(call.query.until, "until")
        span = (from_ns, until_ns, SHOWN_CHANGES, call.prefix)
        found = await self._backend.ask_past(call, "compare_work", *self._backend.work_log(), *span)
        jobs = [ChangedJob(*row) for row in found["jobs"]]
        before, after = _queues(found["before"]), _queues(found["after"])
        return PastChanges(before, after, found["changed"], jobs)

    async def span(self) -> tuple[int, int] | None:
        """The times of the first and the last record of the work queue, or else the schedule; None
        without any."""
        return await asyncio.to_thread(self._span)

    def _span(self) -> tuple[int, int] | None:
        backend = self._backend
        try:
            log, _ = backend.work_log()
        except ApiError:
            log, ledger = backend.schedule_log()
            times = times_of(backend.disk, ledger, ztick_files(backend.disk, log))
            known = [each for file in times.values() for each in file.times_ns]
            return (min(known), max(known)) if known else None
        files = workq_files(backend.disk, log)
        first = next(filter(None, (records.first_time_ns(backend.disk, f) for f in files)), None)
        last = [record for file in files[::-1] for record in _newest(backend, file)][:1]
        if first is None or not last:
            return None
        return first, last[0].entry.record.logged.unix_ns

    def firings(self, fields: dict[str, Any], at: str, count: int) -> list[Any]:
        """The next firings of a timetable after a moment."""
        read = read_body(body_of(fields))
        after_s = read_moment(at, "at") // NS_PER_S
        return [] if read is None else read.occurrences.firings(after_s, count)

    async def last_records(
        self, call: RouteCall, service: str, at_ns: int, limit: int
    ) -> list[records.PlacedRecord]:
        """Return the records for ``GET /v1/log/records?at=``."""
        backend = self._backend
        if service == "work":
            log = backend.work_log()
            places = await backend.ask_past(call, "last_of_work", *log, at_ns, limit)
            return await asyncio.to_thread(records.records_at, backend.disk, workq.CODEC, places)
        if service == "schedule":
            log = backend.schedule_log()
            async with backend.histories.turn(call):
                return await asyncio.to_thread(self._last_of_schedule, *log, at_ns, limit)
        raise ApiError(422, NO_PAST, "no_times")

    def _last_of_schedule(
        self, log: str, ledger: str, at_ns: int, limit: int
    ) -> list[records.PlacedRecord]:
        """Return what stood before the last mark of then."""
        disk = self._backend.disk
        files = ztick_files(disk, log)
        times = times_of(disk, ledger, files)
        found: list[records.PlacedRecord] = []
        for path in reversed(files):
            end = times[path].end_by(at_ns) if path in times else 0
            if end != 0:
                found += records.last_records(disk, ztick.CODEC, path, limit - len(found), end)
            if len(found) >= limit:
                break
        return found

    async def lake_days(self, call: RouteCall, lake: str) -> list[LakeDay]:
        """Return the days of a lake, for the page of reports."""
        days: list[LakeDay] = await self._backend.ask_past(call, "lake_days", lake, SHOWN_DAYS)
        return days


def _newest(backend: HttpBackend, file: str) -> list[records.PlacedRecord]:
    return records.last_records(backend.disk, workq.CODEC, file, 1)


def _queues(counts: dict[str, dict[str, int]]) -> list[PastQueue]:
    return [
        PastQueue(name, *(states.get(state, 0) for state in STATES))
        for name, states in counts.items()
    ]
