"""What the routes of version 1 work with: the services, asked through their own writers; audits.

A reply that means "no" becomes an ApiError here, so that handlers only see what they asked for.
Whatever looks at many jobs does so a slice at a time, each in a turn of its own (``Slices``), and
gives up after BROWSE_TIMEOUT_S with what it found: a page that is not full, and a cursor. For a
token with a namespace it goes on, up to SEARCH_TIMEOUT_S.

Who changed what over HTTP is in the ledger (Audits): actions of the console and requests of the
API. What programs do all day is not: adding, leasing and finishing jobs, putting and reading items,
planning jobs. The logs hold that, and a ledger that kept it again would outgrow them. A change that
cannot be audited stays done; the server's log says so.
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
from journeyman.protocols.kestrel import replies as fan_out_replies
from journeyman.protocols.workq.commands import Complaint, RefusedLine
from journeyman.protocols.workq.replies import JobMissing
from journeyman.servers.core.access import Access
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.writes import WriteWatch
from journeyman.servers.http.routes import ApiError, RouteCall
from journeyman.servers.kestrel.session import in_scope as fan_out_in_scope
from journeyman.servers.kestrel.writer import NO_ROOM

if TYPE_CHECKING:
    from journeyman.servers.core.ledger import Ledger
    from journeyman.servers.core.metrics import FiguredDisk
    from journeyman.servers.kestrel.service import KestrelServer
    from journeyman.servers.workq.service import WorkqServer
    from journeyman.servers.ztick.service import ZtickServer
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import CODEC, ActionAudited
from journeyman.formats.timed_frame import Instant
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.http import records

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
    Complaint.ID_TAKEN: (409, "id_taken"),
}

MAX_CHARS = 500  # of a target, and of an outcome


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
    work: WorkqServer | None
    fan_out: KestrelServer | None
    started_ns: int
    writes: WriteWatch
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
        return JobsFound(*await self._gather(self.ask_work, call, asked), True)

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


class Audits:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self._waiting: list[tuple[ActionAudited, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def note(self, who: str, via: str, what: str, target: str, outcome: str) -> None:
        """Returns when it is durable, or has failed."""
        backend = self._backend
        backend.messages.info(f"{via}: {what}", who=who, target=target[:200], outcome=outcome[:200])
        if backend.ledger is None:
            return
        now = Instant(backend.clock.now_ns())
        record = ActionAudited(now, who, via, what, target[:MAX_CHARS], outcome[:MAX_CHARS])
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(backend.ledger))
        await written

    async def _write(self, to: Ledger) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await to.note([record for record, _ in batch])
                except JourneymanError as error:
                    count = len(batch)
                    self._backend.messages.warn("audits are lost", count=count, reason=error)
                for _, written in batch:
                    if not written.done():
                        written.set_result(None)
        finally:
            self._writing = None

    async def last(self, limit: int, until_ns: int | None = None) -> list[ActionAudited]:
        """Newest first, by a moment if one is given; of each file of the ledger the last ones."""
        ledger = self._backend.ledger
        if ledger is None:
            return []
        place = self._backend.settings.ledger.path
        return await asyncio.to_thread(self._read, place, limit, until_ns)

    def _read(self, directory: str, limit: int, until_ns: int | None) -> list[ActionAudited]:
        disk, found = self._backend.disk, []
        for path in reversed(records.ledger_files(disk, directory)):
            last = records.last_records(disk, CODEC, path, 10_000)
            audits = [r for each in last if isinstance(r := each.entry.record, ActionAudited)]
            found += [r for r in audits if until_ns is None or r.logged.unix_ns <= until_ns]
            if len(found) >= limit:
                break
        return found[:limit]
