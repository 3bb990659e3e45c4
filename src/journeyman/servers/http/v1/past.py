"""State at a moment, version 1: what the log says of then, and what changed between two moments.

The work queue's records have times, so every moment that the log still holds can be asked for:
since the last cleaning, as far as jobs are concerned that were removed then. The schedule's log has
its times from marks in the ledger, about one a second; its past begins with the last compaction.
Timetables, pauses and limits are in the ledger. The log of the fan-out queues does not say when an
item was read: their past is not known.

A child process reads the logs (http/past/child.py). It starts with the first question and ends when
it was not asked for IDLE_S. There is one, and it gets one question at a time; those that wait are
bounded, and so is its memory. A child that ends, takes too long or has too little memory is started
again with the next question.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from contextlib import suppress
from functools import cached_property
from typing import Any

from msgspec import Struct

from journeyman.config import WorkqPersistence
from journeyman.engines.workq.extensions import read_limits
from journeyman.engines.ztick.timetables import body_of, read_body
from journeyman.formats import workq, ztick
from journeyman.formats.workq import JobAdded, delay_ms_of, max_fails_of
from journeyman.logs.ledger import times_of
from journeyman.protocols.workq.commands import NO_LIMITS
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.http import records
from journeyman.servers.http.past import child
from journeyman.servers.http.past.child import FAILED, NO_MEMORY, Day
from journeyman.servers.http.past.moments import PastJob
from journeyman.servers.http.routes import (
    ApiError,
    Nanoseconds,
    Route,
    RouteCall,
    Time,
    cursor_of,
    read_cursor,
    read_moment,
    text_or_base64,
    time_text,
)
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import NS_PER_MS, NS_PER_S

SHOWN_CHANGES = 100
SHOWN_DAYS = 90
STATES = ("ready", "scheduled", "leased", "completed", "dead")
NO_TIMES = "the schedule's log has no times without a ledger: its past is not known"
NO_PAST = "the log of the fan-out queues does not say what was read when"

IDLE_S = 300.0
ANSWER_S = 120.0
MOST_WAITING = 20
_CHILD = f"import gc; gc.disable(); from {child.__name__} import main; main()"
# Else pools and threads that are not used take part of its memory.
_SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class PastQueue(Struct):
    queue: str
    ready: int
    scheduled: int
    leased: int
    completed: int
    dead: int


class PastSchedule(Struct):
    at: Time
    at_ns: Nanoseconds
    planned: int
    triggered: int
    executed: int
    failed: int


class PastCounts(Struct):
    at: Time
    at_ns: Nanoseconds
    queues: list[PastQueue]


class ChangedJob(Struct):
    """``before`` and ``after`` are states; null: the job did not exist."""

    id: str
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

    @cached_property
    def _machine(self) -> TimeMachine:
        return TimeMachine(self._backend.settings.limits.past_bytes)

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
        self._machine.close()

    async def span(self) -> tuple[int, int] | None:
        """The times of the first and the last record of the work queue, or else the schedule; None
        without any."""
        found: tuple[int, int]
        try:
            found = await self._ask("span")
        except ApiError as error:
            if error.status != 404:
                raise
            found = await self._ask_schedule("schedule_span")
        return found if any(found) else None

    async def counts(self, call: RouteCall) -> PastCounts:
        at_ns = read_moment(call.query.at, "at")
        return PastCounts(
            time_text(at_ns), str(at_ns), _queues(await self._ask("counts", at_ns, call.prefix))
        )

    async def schedule(self, call: RouteCall) -> PastSchedule:
        at_ns = read_moment(call.query.at, "at")
        found = await self._ask_schedule("schedule_counts", at_ns, call.prefix)
        counts = (found.get(word, 0) for word in ("planned", "triggered", "executed", "failed"))
        return PastSchedule(time_text(at_ns), str(at_ns), *counts)

    async def changes(self, call: RouteCall) -> PastChanges:
        from_ns = read_moment(call.query.begin, "from")
        until_ns = read_moment(call.query.until, "until")
        found = await self._ask("change", from_ns, until_ns, SHOWN_CHANGES, call.prefix)
        jobs = [
            ChangedJob(id_text(job_id), queue, before, after)
            for _, job_id, queue, before, after in found["jobs"]
        ]
        return PastChanges(
            _queues(found["before"]), _queues(found["after"]), found["changed"], jobs
        )

    async def jobs(self, call: RouteCall, query: values.WorkJobsQuery) -> values.WorkJobs:
        """A page of ``GET /v1/work/jobs?at=``."""
        at_ns = read_moment(query.at, "at")
        begin = int.from_bytes((read_cursor(query.cursor) or b"")[:6])
        found, after = await self._ask(
            "page", at_ns, query.queue, query.state or "", query.text, query.error,
            begin, query.limit, call.prefix,
        )  # fmt: skip
        jobs = [_job(*row) for row in found]
        return values.WorkJobs(jobs, None if after is None else cursor_of(after.to_bytes(6)))

    async def job(self, call: RouteCall, job_id: bytes, at: str) -> values.WorkJob:
        """``GET /v1/work/jobs/{job}?at=``."""
        row = await self._ask("job", read_moment(at, "at"), job_id, call.prefix)
        if row is None:
            raise ApiError(404, "there was no such job", "not_found")
        return _job(*row)

    async def queues(self, call: RouteCall, query: values.NamesAtQuery) -> values.WorkQueues:
        """``GET /v1/work/queues?at=``: with the pauses and limits that the ledger has of then."""
        at_ns, prefix = read_moment(query.at, "at"), call.narrowed(query.prefix)
        if prefix is None:
            return values.WorkQueues([], None)
        after = (read_cursor(query.cursor) or b"").decode(errors="surrogateescape")
        counts = await self._ask("counts", at_ns, prefix)
        names = [name for name in counts if name > after]
        shown = names[: query.limit]
        known = await self._ask_ledger("ledger_queues", at_ns, shown)
        queues = []
        for each in _queues({name: counts[name] for name in shown}):
            paused, body = (known or {}).get(each.queue, (False, {}))
            limits = values.QueueLimitsSeen(*(read_limits(body) or NO_LIMITS))
            states = (each.ready, each.scheduled, each.leased, each.dead)
            queues.append(values.WorkQueueSeen(each.queue, *states, None, paused, limits, 0))
        last = shown[-1].encode(errors="surrogateescape") if len(names) > len(shown) else None
        return values.WorkQueues(queues, cursor_of(last))

    async def timetables(self, call: RouteCall, query: values.NamesAtQuery) -> Any:
        """``GET /v1/timetables?at=``: name, fields, state, labels; and whether there are more."""
        prefix = call.narrowed(query.prefix)
        after = (read_cursor(query.cursor) or b"").decode(errors="replace")
        if prefix is None:
            return [], False
        asked = (read_moment(query.at, "at"), prefix, after, query.limit + 1)
        found = await self._ask_ledger("ledger_timetables", *asked)
        if found is None:
            raise ApiError(
                422,
                "past timetables need the ledger: set data.directory, or ledger.path",
                "no_times",
            )
        return found[: query.limit], len(found) > query.limit

    def firings(self, fields: dict[str, Any], at: str, count: int) -> list[Any]:
        """The next firings of a timetable after a moment."""
        read = read_body(body_of(fields))
        after_s = read_moment(at, "at") // NS_PER_S
        return [] if read is None else read.occurrences.firings(after_s, count)

    async def last_records(self, service: str, at: str, limit: int) -> list[records.PlacedRecord]:
        """Of ``GET /v1/log/records?at=``."""
        at_ns, disk = read_moment(at, "at"), self._backend.disk
        if service == "work":
            places = await self._ask("last", at_ns, limit)
            return await asyncio.to_thread(records.records_at, disk, workq.CODEC, places)
        if service == "schedule":
            self._check_schedule()
            return await asyncio.to_thread(self._last_of_schedule, at_ns, limit)
        raise ApiError(422, NO_PAST, "no_times")

    def _last_of_schedule(self, at_ns: int, limit: int) -> list[records.PlacedRecord]:
        """What stood before the last mark of then."""
        disk, settings = self._backend.disk, self._backend.settings
        files = records.schedule_files(disk, settings.database.logfile_path)
        times = times_of(disk, settings.ledger.path, files)
        found: list[records.PlacedRecord] = []
        for path in reversed(files):
            end = times[path].end_by(at_ns) if path in times else 0
            if end != 0:
                left = limit - len(found)
                found += records.last_records(disk, ztick.CODEC, path, left, end)
            if len(found) >= limit:
                break
        return found

    async def scheduled(
        self, call: RouteCall, query: values.ScheduledJobsQuery
    ) -> values.ScheduledJobs:
        """A page of ``GET /v1/schedule/jobs?at=``."""
        prefix = call.narrowed(query.prefix)
        if prefix is None:
            return values.ScheduledJobs([], None)
        begin = int.from_bytes((read_cursor(query.cursor) or b"")[:6])
        found, after = await self._ask_schedule(
            "schedule_page", read_moment(query.at, "at"), prefix, query.status or "", query.text,
            query.order.startswith("-"), begin, query.limit,
        )  # fmt: skip
        jobs = [
            values.ScheduledJob(identifier, status, time_text(time_ns), str(time_ns))
            for identifier, status, time_ns in found
        ]
        return values.ScheduledJobs(jobs, None if after is None else cursor_of(after.to_bytes(6)))

    async def scheduled_job(self, call: RouteCall, identifier: str, at: str) -> values.ScheduledJob:
        """``GET /v1/schedule/jobs/{id}?at=``."""
        if not identifier.startswith(call.prefix):
            raise ApiError(403, "outside the namespace of the token", "outside_namespace")
        row = await self._ask_schedule("schedule_job", read_moment(at, "at"), identifier)
        if row is None:
            raise ApiError(404, "there was no such job", "job_not_found")
        return values.ScheduledJob(identifier, row[1], time_text(row[2]), str(row[2]))

    async def lake_days(self, lake: str) -> list[Day]:
        """For the page of reports."""
        found: list[Day] = await self._machine.ask(lake, "lake_days", SHOWN_DAYS)
        return found

    def _check_schedule(self) -> None:
        backend = self._backend
        if backend.ledger is None or not backend.schedule.has_log:
            raise ApiError(422, NO_TIMES, "no_times")

    async def _ask_schedule(self, kind: str, *arguments: Any) -> Any:
        self._check_schedule()
        settings = self._backend.settings
        ledger = os.path.abspath(settings.ledger.path)
        return await self._machine.ask(settings.database.logfile_path, kind, ledger, *arguments)

    async def _ask_ledger(self, kind: str, *arguments: Any) -> Any:
        """None: there is no ledger."""
        if self._backend.ledger is None:
            return None
        return await self._machine.ask(self._backend.settings.ledger.path, kind, *arguments)

    async def _ask(self, kind: str, *arguments: Any) -> Any:
        settings = self._backend.settings.workq
        has_log = settings.enabled and settings.persistence is WorkqPersistence.LOG
        if not has_log or not os.path.isdir(settings.cmdlog_path):
            raise ApiError(404, "the work queue has no log on the disk", "service_off")
        return await self._machine.ask(settings.cmdlog_path, kind, *arguments)


def _queues(counts: dict[str, dict[str, int]]) -> list[PastQueue]:
    return [
        PastQueue(name, *(states.get(state, 0) for state in STATES))
        for name, states in counts.items()
    ]


def _job(job: PastJob, added: JobAdded, result: bytes | None) -> values.WorkJob:
    begins_ns = added.created.unix_ns if added.time is None else added.time.unix_ns
    expires_ns = begins_ns + added.ttl_ms * NS_PER_MS
    scheduled: dict[str, Any] = {}
    if added.time is not None:
        scheduled = {"scheduled": time_text(begins_ns), "scheduled_ns": str(begins_ns)}
    return values.WorkJob(
        id_text(job.job_id), job.queue, job.state, job.attempts, added.max_attempts,
        job.fails, max_fails_of(added.max_fails), added.priority, added.ttr_ms, added.ttl_ms,
        delay_ms_of(added.max_fails), time_text(job.created_ns), str(job.created_ns),
        time_text(expires_ns), str(expires_ns), **scheduled,
        **text_or_base64("payload", added.payload), **text_or_base64("result", result),
    )  # fmt: skip


class TimeMachine:
    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._child: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, directory: str, kind: str, *arguments: Any) -> Any:
        """What ``past.child.Past`` answers. ApiError if it cannot."""
        if self._waiting >= MOST_WAITING:
            raise ApiError(503, "too many requests for past states; try again")
        self._waiting += 1
        try:
            async with self._asking:
                asking = asyncio.ensure_future(self._ask_in_time(directory, kind, arguments))
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())
                try:
                    return await asyncio.shield(asking)
                except asyncio.CancelledError:
                    # The client has left. What the child has read so far is for the next one; its
                    # answer must not be taken for that of the next question, even if the request is
                    # cancelled once more meanwhile. ``close`` ends the wait.
                    while not asking.done():
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([asking])
                    raise
        finally:
            self._waiting -= 1

    async def _ask_in_time(self, directory: str, kind: str, arguments: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(directory, kind, arguments)
        except asyncio.IncompleteReadError as error:
            self.close()
            raise ApiError(503, "the process that reads the past ended; try again") from error
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise ApiError(503, f"the past could not be read: {error!r}") from error

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
        self._child = None

    async def _ask(self, directory: str, kind: str, arguments: tuple[Any, ...]) -> Any:
        child = await self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        asked = pickle.dumps((os.path.abspath(directory), kind, arguments))
        child.stdin.write(asked)
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(8))
        if size > MAX_ANSWER_BYTES:
            raise OSError("the answer is too large")
        outcome, answer = pickle.loads(await child.stdout.readexactly(size))
        if outcome == NO_MEMORY:
            self.close()
            said = f"the past does not fit into {self._memory_bytes} bytes: raise limits.past_bytes"
            raise ApiError(422, said, "past_too_large")
        if outcome == FAILED:
            raise ApiError(503, f"the past could not be read: {answer}")
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(IDLE_S, self.close)
        if self._child is None or self._child.returncode is not None:
            paths = os.pathsep.join(filter(None, sys.path))
            environment = os.environ | _SPARING | {"PYTHONPATH": paths}
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", _CHILD, str(self._memory_bytes),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, env=environment, limit=MAX_ANSWER_BYTES,
            )  # fmt: skip
        return self._child
