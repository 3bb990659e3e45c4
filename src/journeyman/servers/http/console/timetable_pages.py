"""Pages about what runs when: timetables, one timetable with its runs, rules, one rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from aiohttp import web

from journeyman.servers.http import problems, routes
from journeyman.servers.http.console import figures
from journeyman.servers.http.console.drawing import Drawing, api_call, chosen_zone, shown_moment
from journeyman.servers.http.console.job_pages import PAGE
from journeyman.servers.http.console.moments import ChosenZone
from journeyman.servers.http.console.time_bar import TimeRange, range_of
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import NS_PER_S

LISTED: Final = 20
NEXT_FIRINGS: Final = 5
SHOWN_RUNS: Final = 40  # dots of one timetable in the list
GRID_RUNS: Final = 500
GRID_WEEKS: Final = 52
LAST_RUNS: Final = 10
RULE_RUNS: Final = 30
_CELL: Final = 20  # side of a cell, in units of the drawing
_LOOKS: Final = {"executed": "r-ok", "failed": "r-bad", "triggered": "r-run", "planned": "r-soon"}


class GridCell(NamedTuple):
    """One run of the grid, or the worst and latest of a day."""

    x: int
    y: int
    look: str
    job: values.ScheduledJob
    runs: int


class RunGrid(NamedTuple):
    """A column a week, a row a day; or for timetables that run often, the runs in their order."""

    cells: list[GridCell]
    labels: list[tuple[int, int, str]]
    width: int
    height: int
    by_day: bool


class TimetablePages:
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

    async def timetables(self, request: web.Request) -> web.StreamResponse:
        at = shown_moment(request)
        query = values.NamesAtQuery("", LISTED, request.query.get("cursor", ""), at)
        page = await self._v1.timetables.timetables(api_call(request, query))
        listed = [
            (each, (await self._runs_of(request, each.id, SHOWN_RUNS))[::-1])
            for each in page.timetables
        ]
        return await self._drawing.page(
            request, "timetables.html", "timetables", timetables=listed, next=page.next
        )

    async def timetable(self, request: web.Request) -> web.StreamResponse:
        name, at = request.match_info["timetable"], shown_moment(request)
        path = {"timetable": name}
        timetable = await self._v1.timetables.timetable(
            api_call(request, values.MomentQuery(at), path=path)
        )
        past = await self._runs_of(request, name, GRID_RUNS)
        query = values.RunsQuery(prefix=f"{name}@", limit=LAST_RUNS, at=at)
        runs = (await self._v1.schedule.runs(api_call(request, query))).runs
        failed = 0
        for job in (job for job in past if job.status in ("executed", "failed")):
            if job.status != "failed":
                break
            failed += 1
        return await self._drawing.page(
            request, "timetable.html", "timetables", timetable=timetable, runs=runs, failed=failed,
            firings=await self._firings(request, timetable),
            fields=defaultdict(str, timetable.fields), grid=grid_of(past, chosen_zone(request)),
            backfill=await self._backfill(request, name),
            shown=await self._charted.charts_for(
                request, f"timetable:{name}", self._range_of(request)
            ),
        )  # fmt: skip

    def _range_of(self, request: web.Request) -> TimeRange:
        return range_of(request, self._backend.clock.now_ns())

    async def _runs_of(
        self, request: web.Request, name: str, limit: int
    ) -> list[values.ScheduledJob]:
        """Occurrences that are not in the future, the latest first."""
        query = values.ScheduledJobsQuery(
            prefix=f"{name}@", order="-time", limit=limit, at=shown_moment(request)
        )
        jobs = (await self._v1.schedule.jobs(api_call(request, query))).jobs
        return [job for job in jobs if job.status != "planned"]

    async def _firings(
        self, request: web.Request, timetable: values.Timetable
    ) -> list[values.Firing]:
        if at := shown_moment(request):
            found = self._v1.past.firings(timetable.fields, at, NEXT_FIRINGS)
            return [values.Firing(f.at_s * NS_PER_S, f.local, "") for f in found]
        call = api_call(request, values.CountQuery(NEXT_FIRINGS), path={"timetable": timetable.id})
        return (await self._v1.timetables.next(call)).firings

    async def _backfill(self, request: web.Request, name: str) -> dict[str, Any] | None:
        """A preview, if one is asked for."""
        begin = request.query.get("from", "")
        if not begin:
            return None
        until = request.query.get("until", "") or str(self._backend.clock.now_ns())
        body = values.BackfillBody(begin=begin, until=until, preview=True)
        try:
            found = await self._v1.timetables.backfill(
                routes.RouteCall(request, {"timetable": name}, None, body)
            )
        except problems.ApiError as error:
            return {"problem": error.message, "rows": [], "from": begin}
        return {"problem": "", "rows": found.rows, "from": begin, "until": until}

    async def rules(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        query = values.NamesAtQuery(prefix, PAGE, cursor, shown_moment(request))
        page = await self._v1.schedule.rules(api_call(request, query))
        return await self._drawing.page(request, "rules.html", "rules", page=page, prefix=prefix)

    async def rule(self, request: web.Request) -> web.StreamResponse:
        name, at = request.match_info["rule"], shown_moment(request)
        path = {"id": name}
        rule = await self._v1.schedule.rule(api_call(request, values.MomentQuery(at), path=path))
        query = values.RunsQuery(prefix=rule.pattern, limit=RULE_RUNS, at=at)
        runs = (await self._v1.schedule.runs(api_call(request, query))).runs
        due = values.ScheduledJobsQuery(
            prefix=rule.pattern, status="planned", limit=NEXT_FIRINGS, at=at
        )
        return await self._drawing.page(
            request, "rule.html", "rules", rule=rule, runs=runs,
            due=(await self._v1.schedule.jobs(api_call(request, due))).jobs,
            shown=await self._charted.charts_for(request, f"rule:{name}", self._range_of(request)),
        )  # fmt: skip


def grid_of(past: Sequence[values.ScheduledJob], zone: ChosenZone) -> RunGrid | None:
    """``past`` is the latest first."""
    if not past:
        return None
    days: dict[datetime, list[values.ScheduledJob]] = {}
    for job in past:
        local = zone.local(job.execution_ns)
        day = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        days.setdefault(day, []).append(job)
    if len(past) > 2 * len(days):
        return _in_order(past[: 7 * GRID_WEEKS][::-1], zone)
    last = max(days)
    first = max(min(days), last - timedelta(weeks=GRID_WEEKS - 1))
    monday = first - timedelta(days=first.weekday())
    cells, labels, month = [], [(0, 22 + _CELL * row, name) for row, name in _WEEKDAYS], 0
    weeks = (last - monday).days // 7 + 1
    for week in range(weeks):
        begin = monday + timedelta(weeks=week)
        if begin.month != month and week < weeks - 1:
            month = begin.month
            labels.append((40 + _CELL * week, 9, f"{begin:%b}"))
    for day, jobs in days.items():
        if day >= monday:
            worst = next((job for job in jobs if job.status == "failed"), jobs[0])
            week, row = (day - monday).days // 7, (day - monday).days % 7
            cells.append(_cell(40 + _CELL * week, 12 + _CELL * row, worst, len(jobs)))
    return RunGrid(cells, labels, 40 + _CELL * weeks, 12 + 7 * _CELL, True)


_WEEKDAYS: Final = ((0, "Mon"), (2, "Wed"), (4, "Fri"), (6, "Sun"))


def _in_order(past: Sequence[values.ScheduledJob], zone: ChosenZone) -> RunGrid:
    columns = 40
    cells = [
        _cell(40 + _CELL * (index % columns), 12 + _CELL * (index // columns), job, 1)
        for index, job in enumerate(past)
    ]
    rows = -(-len(past) // columns)
    labels = [
        (0, 22 + _CELL * row, f"{zone.local(past[row * columns].execution_ns):%H:%M}")
        for row in range(rows)
    ]
    return RunGrid(cells, labels, 40 + _CELL * columns, 12 + _CELL * rows, False)


def _cell(x: int, y: int, job: values.ScheduledJob, runs: int) -> GridCell:
    return GridCell(x, y, _LOOKS.get(job.status, "r-soon"), job, runs)
