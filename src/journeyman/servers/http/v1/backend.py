"""The services behind the routes of version 1, asked through their own writers.

A reply that means "no" becomes an ApiError here, so that handlers only see what they asked for.
Whatever looks at many jobs does so a slice at a time, each in a turn of its own (``Slices``), and
gives up after BROWSE_TIMEOUT_S with what it found: a page that is not full, and a cursor. For a
token with a namespace it goes on, up to SEARCH_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from journeyman.clock import Clock
from journeyman.config import Settings, WorkqPersistence
from journeyman.disk import absolute
from journeyman.engines.sorted_set import StillSorting
from journeyman.engines.workq.browsing import (
    BrowseJobs,
    CountFacets,
    FacetCounts,
    JobsFound,
)
from journeyman.engines.ztick.browsing import JobPage, PageJobs
from journeyman.engines.ztick.messages import JobNotFound, OutOfScope, Reserved, RuleNotFound
from journeyman.protocols.kestrel import replies as fan_out_replies
from journeyman.protocols.workq.commands import Complaint, InspectJob, RefusedLine
from journeyman.protocols.workq.replies import JobList, JobMissing, JobView
from journeyman.servers.core.access import Access
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.writes import WriteWatch
from journeyman.servers.http.past.machine import TimeMachine
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import RouteCall
from journeyman.servers.http.shares import Shares
from journeyman.servers.kestrel.session import queue_in_scope as fan_out_in_scope
from journeyman.servers.kestrel.writer import NO_ROOM

if TYPE_CHECKING:
    from journeyman.servers.core.follower_process import FollowerProcess
    from journeyman.servers.core.ledger import Ledger
    from journeyman.servers.core.metrics import MeasuredDisk
    from journeyman.servers.kestrel.service import KestrelServer
    from journeyman.servers.series.process import SeriesProcess
    from journeyman.servers.workq.service import WorkqServer
    from journeyman.servers.ztick.service import ZtickServer

SEARCHES, SEARCHES_WAITING = 8, 40  # at a time, and in line per token
HISTORIES, HISTORIES_WAITING = 2, 20  # reading records takes a thread
FIGURES_WAITING = 20  # their helper answers one question at a time
NO_TIMES = "the schedule's log has no times without a ledger: its past is not known"
BROWSE_TIMEOUT_S = 1.0
SEARCH_TIMEOUT_S = 20.0  # more, where that cannot be
SEARCHED_JOBS = 100_000  # are looked at for a page; then a cursor leads on
TOO_LONG = "the search took too long; narrow it down, as by queue"
_CODES = {
    Complaint.DUPLICATE_JOB: (409, "duplicate_job"),
    Complaint.DUPLICATE_RESULT: (409, "duplicate_result"),
    Complaint.NOT_DEAD: (409, "not_dead"),
    Complaint.NOT_LEASED: (409, "not_leased"),
    Complaint.LEASED_AGAIN: (409, "leased_again"),
    Complaint.CANCELLED: (409, "cancelled"),
    Complaint.NO_PARENT: (409, "unknown_parent"),
    Complaint.TOO_MANY_CHILDREN: (409, "too_many_children"),
    Complaint.NO_LEDGER: (409, "no_ledger"),
    Complaint.UNKNOWN_STEP: (404, "step_not_found"),
    Complaint.TOO_MANY_STEPS: (409, "too_many_steps"),
    Complaint.HAS_MAX_ATTEMPTS: (409, "has_max_attempts"),
    Complaint.EVENT_DIFFERS: (409, "event_differs"),
    Complaint.TOO_MANY_EVENTS: (409, "too_many_events"),
    Complaint.TOO_MANY_LIMITS: (409, "too_many_limits"),
    Complaint.SCOPE: (403, "outside_namespace"),
    Complaint.TIME: (422, "invalid_time"),  # its TTL would be over
    Complaint.ID_TAKEN: (409, "id_taken"),
}


@dataclass
class HttpBackend:
    """See the module's docstring."""

    settings: Settings
    origins: Mapping[str, str]
    access: Access
    clock: Clock
    messages: ServerLog
    shared: Shared
    disk: MeasuredDisk
    schedule: ZtickServer
    work: WorkqServer | None
    fan_out: KestrelServer | None
    started_ns: int
    writes: WriteWatch
    ledger: Ledger | None = None
    index: FollowerProcess | None = None
    series: SeriesProcess | None = None
    searches: Shares = field(
        default_factory=lambda: Shares(SEARCHES, SEARCHES_WAITING, "too many searches; try again")
    )
    histories: Shares = field(
        default_factory=lambda: Shares(
            HISTORIES, HISTORIES_WAITING, "too many requests for records; try again"
        )
    )
    figures: Shares = field(
        default_factory=lambda: Shares(
            1, FIGURES_WAITING, "too many requests for figures over time; try again"
        )
    )

    @cached_property
    def machine(self) -> TimeMachine:
        return TimeMachine(self.settings.limits.past_bytes, self.messages.warn)

    # -- asking --

    async def ask_schedule(self, call: RouteCall, command: Any, at_ns: int | None = None) -> Any:
        """``at_ns``: ask the schedule as it was then, with a command that only looks."""
        if at_ns is None:
            reply = await self.schedule.writer.ask(command, namespace=call.namespace)
        else:
            reply = await self.ask_past(
                call, "ask_schedule", *self.schedule_log(), at_ns, command, call.namespace
            )
        if isinstance(reply, NotDone):
            raise ApiError(503, reply.reason)
        if isinstance(reply, OutOfScope):
            raise ApiError(403, "outside the namespace of the token", "outside_namespace")
        if isinstance(reply, Reserved):
            raise ApiError(400, f"job {_quoted(reply.identifier)}: the id is reserved", "reserved")
        if isinstance(reply, JobNotFound):
            raise ApiError(404, f"there is no job {_quoted(reply.identifier)}", "job_not_found")
        if isinstance(reply, RuleNotFound):
            raise ApiError(404, f"there is no rule {_quoted(reply.identifier)}", "rule_not_found")
        return reply

    async def ask_work(self, call: RouteCall, command: Any, at_ns: int | None = None) -> Any:
        """Ask the work queue, also with commands that wait: the client leaves if the request is
        cancelled.

        ``at_ns``: ask the work queue as it was then, with a command that only looks.
        """
        if self.work is None:
            raise ApiError(404, "the work queue is off", "service_off")
        if at_ns is None:
            reply = await self.work.writer.ask(command, namespace=call.prefix)
        else:
            reply = await self.ask_past(
                call, "ask_work", *self.work_log(), at_ns, command, call.prefix
            )
        if isinstance(reply, NotDone):
            raise ApiError(503, reply.reason)
        if isinstance(reply, JobMissing):
            raise ApiError(404, "there is no such job or queue", "not_found")
        if isinstance(reply, RefusedLine):
            status, code = _CODES.get(reply.complaint, (400, "refused"))
            raise ApiError(status, str(reply.complaint), code)
        return reply

    async def ask_fan_out(self, call: RouteCall, command: Any, client: Any = None) -> Any:
        if self.fan_out is None:
            raise ApiError(404, "the fan-out queues are off", "service_off")
        if call.prefix and fan_out_in_scope(command, call.prefix) != command:
            raise ApiError(403, "outside the namespace of the token", "outside_namespace")
        reply = await self.fan_out.writer.ask(command, client=client)
        if isinstance(reply, NotDone):
            raise ApiError(503, reply.reason)
        if reply is NO_ROOM:
            raise ApiError(503, NO_ROOM.reason)
        if isinstance(reply, fan_out_replies.ServerError):
            raise ApiError(409, reply.reason, "refused_by_queue")
        if reply is fan_out_replies.FORBIDDEN:
            raise ApiError(503, "the status of the fan-out queues forbids this")
        return reply

    # -- the past --

    async def ask_past(self, call: RouteCall, function: str, *arguments: Any) -> Any:
        """The value of this function of http/past/child.py."""
        await asyncio.to_thread(self.disk.flush)  # for a process that reads what others see
        return await self.machine.ask(call, function, *arguments)

    def work_log(self) -> tuple[str, str]:
        """Where the work queue's log and the ledger are; ApiError: there is no log."""
        settings = self.settings.workq
        has_log = settings.enabled and settings.persistence is WorkqPersistence.LOG
        if not has_log or not self.disk.is_dir(settings.cmdlog_path):
            raise ApiError(404, "the work queue has no log on the disk", "service_off")
        return absolute(settings.cmdlog_path), self._ledger_path()

    def schedule_log(self) -> tuple[str, str]:
        """Return the paths of the log of the schedule and of the ledger, which has its times."""
        if self.ledger is None or not self.schedule.has_log:
            raise ApiError(422, NO_TIMES, "no_times")
        return absolute(self.settings.database.logfile_path), self._ledger_path()

    def _ledger_path(self) -> str:
        return "" if self.ledger is None else absolute(self.settings.ledger.path)

    # -- lists --

    async def page_jobs(
        self, call: RouteCall, query: PageJobs, at_ns: int | None = None
    ) -> JobPage:
        ask = partial(self.ask_schedule, call, at_ns=at_ns)
        async with self._searching(call, at_ns):
            return JobPage(*await self._gather(ask, call, query), True)

    async def browse_jobs(
        self, call: RouteCall, query: BrowseJobs, at_ns: int | None = None
    ) -> JobsFound:
        ask = partial(self.ask_work, call, at_ns=at_ns)
        async with self._searching(call, at_ns):
            return await self._search(ask, call, query)

    async def count_facets(
        self, call: RouteCall, query: CountFacets, at_ns: int | None
    ) -> FacetCounts:
        async with self._searching(call, at_ns):
            while isinstance(found := await self.ask_work(call, query, at_ns), StillSorting):
                await self.shared.slices.turn()
            counted: FacetCounts = found
            return counted

    async def ask_series(self, call: RouteCall, function: str, *arguments: Any) -> Any:
        """Ask for figures over time, when it is the turn of this token: one that asks without end
        would keep the helper from all others. HelperFailed if there is no answer."""
        assert self.series is not None
        async with self.figures.turn(call):
            return await self.series.ask(function, *arguments)

    async def see_job(self, call: RouteCall, job_id: bytes, at_ns: int | None) -> JobView:
        async with self._searching(call, at_ns):
            found: JobList = await self.ask_work(call, InspectJob(job_id), at_ns)
            return found.jobs[0]

    @asynccontextmanager
    async def _searching(self, call: RouteCall, at_ns: int | None) -> AsyncIterator[None]:
        """Jobs may be large: few answers are made at a time, and none while clients that do not
        read hold too many. The time machine has shares of its own."""
        if at_ns is not None:
            yield
            return
        async with self.searches.turn(call):
            await call.request["sender"].turn()
            yield

    async def _gather(
        self,
        ask: Callable[[Any], Awaitable[Any]],
        call: RouteCall,
        query: PageJobs,
    ) -> tuple[tuple[Any, ...], bytes | None]:
        """Parts of a page, until it is full or the time is over; and the cursor after them."""
        found: list[Any] = []
        over = self._loop_time() + BROWSE_TIMEOUT_S
        after = query.after
        while True:
            page = await ask(replace(query, after=after, limit=query.limit - len(found)))
            if not isinstance(page, StillSorting):
                found += page.jobs
                after = page.after
                late_s = self._loop_time() - over
                # A token with a namespace gets no cursor in the middle: it may name another's job.
                if page.is_whole or (late_s > 0 and not call.prefix):
                    return tuple(found), after
                if late_s > SEARCH_TIMEOUT_S:
                    raise ApiError(503, TOO_LONG)
            await self.shared.slices.turn()

    async def _search(
        self, ask: Callable[[Any], Awaitable[Any]], call: RouteCall, query: BrowseJobs
    ) -> JobsFound:
        """Parts of a page, until it is full, the time is over, or enough jobs were looked at."""
        found: list[JobView] = []
        looked, over = 0, self._loop_time() + BROWSE_TIMEOUT_S
        while True:
            # If jobs are ordered by length, every part has its longest.
            limit = query.limit if query.order else query.limit - len(found)
            page = await ask(structs.replace(query, limit=limit))
            if not isinstance(page, StillSorting):
                found += page.jobs
                looked += page.looked
                query = structs.replace(query, after=page.after)
                is_over = page.after is None or (page.is_whole and not query.order)
                late_s = self._loop_time() - over
                is_enough = looked >= SEARCHED_JOBS or late_s > 0
                # A token with a namespace gets no cursor in the middle: it may name another's job.
                if is_over or (is_enough and not call.prefix):
                    break
                if late_s > SEARCH_TIMEOUT_S:
                    raise ApiError(503, TOO_LONG)
            await self.shared.slices.turn()
        if query.order:
            found.sort(key=partial(view_length, order=query.order), reverse=True)
            del found[query.limit :]
        return JobsFound(tuple(found), query.after, is_over, looked)

    def _loop_time(self) -> float:
        return self.clock.monotonic_ns() / 1e9


def view_length(job: JobView, order: str) -> int:
    """The length by which engines/workq/browsing.py orders jobs."""
    started_ns = job.started_ns or 0
    if order == "run":
        return (job.finished_ns or 0) - started_ns
    return started_ns - max(job.created_ns or 0, job.scheduled_ns or 0)


def _quoted(text: str) -> str:
    return json.dumps(text)
