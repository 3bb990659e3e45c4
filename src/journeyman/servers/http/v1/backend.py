"""What the routes of version 1 work with: the services, asked through their own writers.

A reply that means "no" becomes an ApiError here, so that handlers only see what they asked for.
Whatever looks at many jobs does so a slice at a time, each in a turn of its own (``Slices``), and
gives up after BROWSE_TIMEOUT_S with what it found: a page that is not full, and a cursor. For a
token with a namespace it goes on, up to SEARCH_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from journeyman.clock import Clock
from journeyman.config import Settings
from journeyman.engines.workq.browsing import BrowseJobs, JobsFound, SortingJobs
from journeyman.engines.ztick.browsing import JobPage, PageJobs, StillSorting
from journeyman.engines.ztick.messages import JobNotFound, OutOfScope, Reserved, RuleNotFound
from journeyman.errors import StorageError
from journeyman.protocols.kestrel import replies as fan_out_replies
from journeyman.protocols.workq.commands import Complaint, RefusedLine
from journeyman.protocols.workq.replies import JobMissing
from journeyman.servers.core.access import Access
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.routes import RouteCall
from journeyman.servers.kestrel.session import in_scope as fan_out_in_scope
from journeyman.servers.kestrel.writer import NO_ROOM
from journeyman.servers.workq.store import completed_jobs, merged, shows_completed

if TYPE_CHECKING:
    from journeyman.servers.core.ledger import Ledger
    from journeyman.servers.kestrel.service import KestrelServer
    from journeyman.servers.telemetry.metrics import FiguredDisk
    from journeyman.servers.workq.service import WorkqServer
    from journeyman.servers.ztick.service import ZtickServer

BROWSE_TIMEOUT_S = 1.0
SEARCH_TIMEOUT_S = 20.0  # more, where that cannot be
_CODES = {
    Complaint.DUPLICATE_JOB: (409, "duplicate_job"),
    Complaint.DUPLICATE_RESULT: (409, "duplicate_result"),
    Complaint.NOT_DEAD: (409, "not_dead"),
    Complaint.NOT_LEASED: (409, "not_leased"),
    Complaint.LEASED_AGAIN: (409, "leased_again"),
    Complaint.NO_PARENT: (409, "unknown_parent"),
    Complaint.TOO_MANY_CHILDREN: (409, "too_many_children"),
    Complaint.NO_LEDGER: (409, "no_ledger"),
    Complaint.TOO_MANY_LIMITS: (409, "too_many_limits"),
    Complaint.SCOPE: (403, "outside_namespace"),
}


@dataclass(slots=True)
class HttpBackend:
    """See the module's docstring."""

    settings: Settings
    origins: Mapping[str, str]
    access: Access
    clock: Clock
    messages: ServerLog
    shared: Shared
    disk: FiguredDisk
    schedule: ZtickServer
    work: WorkqServer | None = None
    fan_out: KestrelServer | None = None
    started_ns: int = 0
    ledger: Ledger | None = None

    # -- asking --

    async def ask_schedule(self, call: RouteCall, command: Any) -> Any:
        reply = await self.schedule.writer.ask(command, namespace=call.namespace)
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

    async def ask_work(self, call: RouteCall, command: Any) -> Any:
        """Also commands that wait: the client leaves if the request is cancelled."""
        if self.work is None:
            raise ApiError(404, "the work queue is off", "service_off")
        reply = await self.work.writer.ask_and_wait(command, prefix=call.prefix)
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
        reply = await self.fan_out.writer.ask_and_wait(command, client=client)
        if isinstance(reply, NotDone):
            raise ApiError(503, reply.reason)
        if reply is NO_ROOM:
            raise ApiError(503, NO_ROOM.reason)
        if isinstance(reply, fan_out_replies.ServerError):
            raise ApiError(409, reply.reason, "refused_by_queue")
        if reply is fan_out_replies.FORBIDDEN:
            raise ApiError(503, "the status of the fan-out queues forbids this")
        return reply

    # -- lists --

    async def page_jobs(self, call: RouteCall, asked: PageJobs) -> JobPage:
        return JobPage(*await self._gather(self.ask_schedule, call, asked), True)

    async def browse_jobs(self, call: RouteCall, asked: BrowseJobs) -> JobsFound:
        return JobsFound(*await self._gather(self._ask_jobs, call, asked), True)

    async def _ask_jobs(self, call: RouteCall, asked: BrowseJobs) -> JobsFound | SortingJobs:
        """Of a work queue in the store the completed jobs are there alone."""
        found: JobsFound | SortingJobs = await self.ask_work(call, asked)
        store = None if self.work is None else self.work.store
        if store is None or isinstance(found, SortingJobs) or not shows_completed(asked):
            return found
        scoped, now_ns = replace(asked, prefix=call.prefix), self.clock.now_ns()
        try:
            more = await asyncio.to_thread(completed_jobs, store, scoped, now_ns)
        except StorageError as error:
            raise ApiError(503, f"the store: {error.reason}") from error
        return merged(found, more, asked.limit)

    async def _gather(
        self,
        ask: Callable[[RouteCall, Any], Awaitable[Any]],
        call: RouteCall,
        asked: PageJobs | BrowseJobs,
    ) -> tuple[tuple[Any, ...], bytes | None]:
        """Parts of a page, until it is full or the time is over; and the cursor after them."""
        found: list[Any] = []
        over = self._loop_time() + BROWSE_TIMEOUT_S
        after = asked.after
        while True:
            page = await ask(call, replace(asked, after=after, limit=asked.limit - len(found)))
            if not isinstance(page, StillSorting | SortingJobs):
                found += page.jobs
                after = page.after
                late_s = self._loop_time() - over
                # A token with a namespace gets no cursor in the middle: it may name another's job.
                if page.is_whole or (late_s > 0 and not call.prefix):
                    return tuple(found), after
                if late_s > SEARCH_TIMEOUT_S:
                    raise ApiError(503, "the search took too long; narrow it down, as by queue")
            await self.shared.slices.turn()

    def _loop_time(self) -> float:
        return self.clock.monotonic_ns() / 1e9


def _quoted(text: str) -> str:
    return json.dumps(text)
