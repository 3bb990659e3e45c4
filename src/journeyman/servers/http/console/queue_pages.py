"""Pages about queues and who works on them: queues, one queue, workers, fan-out queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiohttp import web

from journeyman.protocols.workq.replies import JobView, WorkerView, id_text
from journeyman.servers.http import problems, routes
from journeyman.servers.http.console import figures, shown
from journeyman.servers.http.console.charts import spark
from journeyman.servers.http.console.drawing import Drawing, api_call, shown_moment
from journeyman.servers.http.console.job_pages import PAGE
from journeyman.servers.http.console.time_bar import range_of
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.fan_out import FanOutSeen, ReadBody
from journeyman.units import NS_PER_S

MOST_WORKERS: Final = 200
SHOWN_FAILED: Final = 8
SLOTS_DRAWN: Final = 16
SILENT_AFTER_NS: Final = 45 * NS_PER_S  # a worker says that it is there every few seconds
PEEKED_BYTES: Final = 4096


class WorkerRow(NamedTuple):
    """``job`` is the one that it has had longest; None: it has none, or it is gone."""

    worker: WorkerView
    is_silent: bool
    job: JobView | None
    oldest_ns: int | None
    slots: list[str]  # a class for each


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    rows: list[WorkerRow]

    @property
    def load(self) -> float | None:
        known = [row.worker.facts.load for row in self.rows if row.worker.facts.load is not None]
        return known[-1] if known else None

    @property
    def silent(self) -> int:
        return sum(row.is_silent for row in self.rows)


class QueuePages:
    def __init__(
        self,
        backend: HttpBackend,
        version: VersionOne,
        drawing: Drawing,
        charted: figures.FigurePages,
    ) -> None:
        self._backend = backend
        self._v1 = version
        self._drawing = drawing
        self._charted = charted

    async def queues(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        page: values.WorkQueues | None = None
        trends: dict[str, str] = {}
        if self._backend.work is not None:
            query = values.NamesAtQuery(prefix, PAGE, cursor, shown_moment(request))
            page = await self._v1.work.queues(api_call(request, query))
            range_ = range_of(request, self._backend.clock.now_ns())
            rows = await self._charted.rows(request, "queue", range_, prefix)
            trends = {row.name: spark(row.trend) for row in rows}
        return await self._drawing.page(
            request, "queues.html", "queues", page=page, prefix=prefix, trends=trends
        )

    async def queue(self, request: web.Request) -> web.StreamResponse:
        name, at = request.match_info["queue"], shown_moment(request)
        call = api_call(request, values.MomentQuery(at), path={"queue": name})
        queue = await self._v1.work.queue(call)
        failed = values.WorkJobsQuery(queue=name, state="dead", limit=SHOWN_FAILED, at=at)
        workers = [] if at else await self.workers_of(request)
        range_ = range_of(request, self._backend.clock.now_ns())
        return await self._drawing.page(
            request, "queue.html", "queues", queue=queue,
            failed=(await self._v1.work.jobs(api_call(request, failed))).jobs,
            workers=[row for row in workers if name in row.worker.facts.queues],
            shown=await self._charted.charts_for(request, f"queue:{name}", range_),
        )  # fmt: skip

    async def workers(self, request: web.Request) -> web.StreamResponse:
        rows = None
        if self._backend.work is not None:
            rows = await self.workers_of(request, request.query.get("cursor", ""))
        hosts = {row.worker.facts.host: Host(row.worker.facts.host, []) for row in rows or ()}
        for row in rows or ():
            hosts[row.worker.facts.host].rows.append(row)
        return await self._drawing.page(
            request, "workers.html", "workers", rows=rows,
            hosts=sorted(hosts.values(), key=lambda host: (-host.silent, host.name)),
            slots=sum(row.worker.facts.slots for row in rows or ()),
            busy=sum(len(row.worker.jobs) for row in rows or ()),
        )  # fmt: skip

    async def workers_of(self, request: web.Request, cursor: str = "") -> list[WorkerRow]:
        query = values.CursorQuery(MOST_WORKERS, cursor)
        found = (await self._v1.work.workers(api_call(request, query))).workers
        now_ns = self._backend.clock.now_ns()
        return [await self._row_of(request, worker, now_ns) for worker in found]

    async def _row_of(self, request: web.Request, worker: WorkerView, now_ns: int) -> WorkerRow:
        oldest = min(worker.jobs, key=lambda job: job.started_ns, default=None)
        is_silent = not worker.connected and now_ns - worker.seen_ns > SILENT_AFTER_NS
        job = None
        if oldest is not None:
            path = {"job": id_text(oldest.job_id)}
            try:
                job = await self._v1.work.job(api_call(request, values.MomentQuery(), path=path))
            except problems.ApiError as error:
                if error.status != 404:
                    raise
        busy = ["lost" if is_silent else "busy"] * len(worker.jobs)
        free = [""] * max(0, worker.facts.slots - len(busy))
        started_ns = None if oldest is None else oldest.started_ns
        return WorkerRow(worker, is_silent, job, started_ns, (busy + free)[:SLOTS_DRAWN])

    async def fan_out(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        page, peeked = None, None
        if self._backend.fan_out is not None:
            query = values.NamesQuery(prefix=prefix, limit=PAGE, cursor=cursor)
            page = await self._v1.fan_out.queues(api_call(request, query))
            peeked = await self._peek(request, page.queues)
        return await self._drawing.page(
            request, "fan_out.html", "fan-out", page=page, prefix=prefix, peeked=peeked
        )

    async def _peek(
        self, request: web.Request, queues: Sequence[FanOutSeen]
    ) -> dict[str, Any] | None:
        """The oldest unread item of the reader that ``peek=QUEUE+READER`` names."""
        place = request.query.get("peek", "")
        queue, _, reader = place.partition("+")
        if not any(queue == each.name for each in queues):
            return None
        body = ReadBody(reader=reader, peek=True)
        answer = await self._v1.fan_out.read(
            routes.RouteCall(request, {"queue": queue}, None, body)
        )
        data = answer.data
        text = None if data is None else shown.readable(data[:PEEKED_BYTES])
        return {"place": place, "queue": queue, "reader": reader, "text": text,
                "size": 0 if data is None else len(data)}  # fmt: skip
