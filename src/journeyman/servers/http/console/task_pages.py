"""Pages about tasks: which is slow, fails or waits, and what happens to one over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from journeyman.servers.http.console import figures
from journeyman.servers.http.console.charts import spark
from journeyman.servers.http.console.drawing import Drawing, api_call, shown_moment
from journeyman.servers.http.console.time_bar import range_of
from journeyman.servers.http.v1 import series, values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend

SORTS: Final[dict[str, Callable[[series.Summary], Any]]] = {
    "name": lambda row: row.name,
    "rate": lambda row: -row.per_s,
    "failed": lambda row: -(row.failure_rate or 0),
    "wait": lambda row: -(row.wait_p99 or 0),
    "run": lambda row: -(row.run_p99 or 0),
}


class TaskPages:
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

    async def tasks(self, request: web.Request) -> web.StreamResponse:
        range_ = range_of(request, self._backend.clock.now_ns())
        prefix, sort = request.query.get("prefix", ""), request.query.get("sort", "")
        rows = figures.worst_first(await self._charted.rows(request, "task", range_, prefix))
        if sort in SORTS:
            rows.sort(key=SORTS[sort])
        return await self._drawing.page(
            request, "tasks.html", "tasks", rows=rows, range=range_, prefix=prefix, sort=sort,
            failing=[row for row in rows if figures.is_failing(row)],
            waiting=[row for row in rows if figures.is_waiting(row)],
            trends={row.name: spark(row.trend) for row in rows}, is_off=self._is_off,
        )  # fmt: skip

    async def task(self, request: web.Request) -> web.StreamResponse:
        name, at = request.match_info["task"], shown_moment(request)
        range_ = range_of(request, self._backend.clock.now_ns())
        shown = await self._charted.charts_for(request, f"task:{name}", range_)
        summary = shown.summary if shown is not None else None
        latest = values.WorkJobsQuery(task=name, limit=8, at=at)
        latest_jobs = []
        if self._backend.work is not None:
            latest_jobs = list((await self._v1.work.jobs(api_call(request, latest))).jobs)
        return await self._drawing.page(
            request, "task.html", "tasks", name=name, shown=shown, summary=summary,
            latest=latest_jobs, range=range_,
            main_error=figures.main_error(summary) if summary is not None else "",
            failing=summary is not None and figures.is_failing(summary),
            waiting=summary is not None and figures.is_waiting(summary),
        )  # fmt: skip

    @property
    def _is_off(self) -> bool:
        return self._backend.series is None
