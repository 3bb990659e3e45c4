"""The pages of the console. Each is a URL, works without JavaScript, and takes ``at``.

    request --session, token--> handler --handlers of /v1--> values --template--> HTML

A page asks the same handlers as a client of the API, with the token of its session, so it shows
what that token may see and nothing is counted twice. What changes something is confirmed on a page
of its own, comes as a signed form, and is written to the ledger (actions.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from aiohttp import web
from multidict import MultiDict
from yarl import URL

from journeyman.config import Token
from journeyman.data_directory import CACHE_DIRECTORY
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.core.own_files import own_directory
from journeyman.servers.http import fields, problems, routes
from journeyman.servers.http.console import comparing, drawing, shown
from journeyman.servers.http.console.actions import Actions
from journeyman.servers.http.console.figures import FigurePages, Shown
from journeyman.servers.http.console.job_pages import PAGE, JobPages
from journeyman.servers.http.console.moments import resolve_moment
from journeyman.servers.http.console.overview import Troubles
from journeyman.servers.http.console.queue_pages import QueuePages
from journeyman.servers.http.console.reference import PATH as REFERENCE
from journeyman.servers.http.console.reference import Reference
from journeyman.servers.http.console.reports import ReportRuns, lakes_of
from journeyman.servers.http.console.task_pages import TaskPages
from journeyman.servers.http.console.time_bar import FigureHistory, TimeRange, range_of
from journeyman.servers.http.console.timetable_pages import TimetablePages
from journeyman.servers.http.sending import FIGURES_S, FLUSH_S, Channel, event_bytes, stream_events
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.audits import Audits
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.log import RecordWatch
from journeyman.servers.http.v1.past import PastCounts, PastSchedule
from journeyman.servers.http.wire import time_text

OVERVIEW_ROWS: Final = 8
SHOWN_CHANGES: Final = 20
MAX_FIELDS = 2_000  # fields of a form: an id for each chosen job, and a few more
MAX_SAID: Final = 500  # characters of what an action says on the next page
PUBLIC: Final = ("/console/login", REFERENCE, drawing.PREFIX)

TICK: Final = event_bytes("tick", b"")


class Console:
    """All pages. Made once a server."""

    def __init__(
        self, backend: HttpBackend, version: VersionOne, sessions: drawing.Sessions, audits: Audits
    ) -> None:
        self._backend = backend
        self._v1 = version
        self._sessions = sessions
        self._audits = audits
        self._reports = ReportRuns(own_directory(backend.settings, CACHE_DIRECTORY, "reports"))
        self._actions = Actions(backend, version, audits, self._reports)
        self.history = FigureHistory(version.server, version.work.rates, version.series)
        self.drawing = drawing.Drawing(backend.clock, sessions, self.history)
        self._page = self.drawing.page
        charted = FigurePages(version)
        self._jobs = JobPages(backend, version, self.drawing, charted)
        self._charted = charted
        self._tasks = TaskPages(backend, version, self.drawing, charted)
        self._queues = QueuePages(backend, version, self.drawing, charted)
        self._troubles = Troubles(backend, version, charted, self._queues)
        self._timetables = TimetablePages(backend, version, self.drawing, charted)
        self._reference = Reference(version, self.drawing)
        self.ticks_live = Channel(self._next_tick, FIGURES_S)
        self._watch = RecordWatch(backend)
        self.records_live = Channel(self._next_records, FLUSH_S, self._watch.switch)

    def add_to(self, app: web.Application) -> None:
        pages: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/": self.overview,
            "/console/jobs": self._jobs.jobs,
            "/console/tasks": self._tasks.tasks,
            "/console/tasks/{task:(?s:.+)}": self._tasks.task,
            "/console/work/{job}": self._jobs.work_job,
            "/console/schedule/{id:(?s:.+)}": self._jobs.scheduled_job,
            "/console/timetables": self._timetables.timetables,
            "/console/timetables/{timetable:(?s:.+)}": self._timetables.timetable,
            "/console/rules": self._timetables.rules,
            "/console/rules/{rule:(?s:.+)}": self._timetables.rule,
            "/console/queues": self._queues.queues,
            "/console/queues/{queue}": self._queues.queue,
            "/console/workers": self._queues.workers,
            "/console/fan-out": self._queues.fan_out,
            "/console/log": self.log,
            "/console/time": self.time_machine,
            "/console/reports": self.reports,
            "/console/reports/{name}": self.report,
            "/console/settings": self.settings,
            "/console/confirm": self.confirm,
            "/console/events": self.events,
            "/console/login": self.login_form,
            REFERENCE: self._reference.page,
        }
        for path, handler in pages.items():
            app.router.add_get(path, self._at_moment(handler), allow_head=False)
        app.router.add_get("/console/choose", self.choose, allow_head=False)
        app.router.add_post("/console/act", self.act)
        app.router.add_post("/console/login", self.login)
        app.router.add_post("/console/logout", self.logout)
        app.router.add_get(drawing.PREFIX + "{name}", drawing.serve_asset, allow_head=False)

    def close(self) -> None:
        self.history.stop()
        self.ticks_live.close()
        self.records_live.close()
        self._reports.close()

    def _at_moment(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Show a moment that is given in words under the address of the time that they mean."""

        async def handle(request: web.Request) -> web.StreamResponse:
            at = drawing.shown_moment(request)
            if at == "now":
                raise web.HTTPSeeOther(request.rel_url.without_query_params("at"))
            zone = drawing.chosen_zone(request)
            moment = resolve_moment(at, self._backend.clock.now_ns(), zone)
            if moment != at:
                raise web.HTTPSeeOther(request.rel_url.update_query(at=moment))
            return await handler(request)

        return handle

    # -- pages --

    async def overview(self, request: web.Request) -> web.StreamResponse:
        if drawing.shown_moment(request):
            return await self._overview_then(request)
        # Figures of the server count what belongs to others.
        sees_all = routes.covers_all(request["token"])
        figures = await self._v1.server.figures(drawing.api_call(request)) if sees_all else None
        failed_runs = await self._v1.schedule.runs(
            drawing.api_call(request, values.RunsQuery(success=False, limit=OVERVIEW_ROWS))
        )
        due = await self._v1.schedule.jobs(
            drawing.api_call(
                request, values.ScheduledJobsQuery(status="planned", limit=OVERVIEW_ROWS)
            )
        )
        dead: Sequence[Any] = ()
        if self._backend.work is not None:
            query = values.WorkJobsQuery(state="dead", limit=OVERVIEW_ROWS)
            dead = (await self._v1.work.jobs(drawing.api_call(request, query))).jobs
        if figures is None:
            counted = len(dead), len(failed_runs.runs)
            causes = causes_of(*counted, is_whole=max(counted) < OVERVIEW_ROWS)
        else:
            counts = figures.work or {}
            causes = causes_of(counts.get("failed", 0), figures.schedule["jobs_failed"])
        return await self._page(
            request, "overview.html", "overview", figures=figures, causes=causes, problem="",
            tiles=tiles_now(figures, self.history) if figures is not None else [],
            troubles=await self._troubles.find(request), activity=await self._activity(request),
            failed_runs=failed_runs.runs, due=due.jobs, dead=dead,
        )  # fmt: skip

    async def _overview_then(self, request: web.Request) -> web.StreamResponse:
        """Show the overview as the logs have it; what is not known is left out, and the page says
        why."""
        at, reasons = drawing.shown_moment(request), list[str]()
        counts = schedule = None
        rows: dict[str, Any] = {"dead": (), "due": ()}
        failed = await self._v1.schedule.runs(
            drawing.api_call(request, values.RunsQuery(success=False, limit=OVERVIEW_ROWS, at=at))
        )
        try:
            counts = await self._v1.past.counts(drawing.api_call(request, values.AtQuery(at)))
            dead = values.WorkJobsQuery(state="dead", limit=OVERVIEW_ROWS, at=at)
            rows["dead"] = (await self._v1.work.jobs(drawing.api_call(request, dead))).jobs
        except problems.ApiError as error:
            reasons.append(error.message)
        try:
            schedule = await self._v1.past.schedule(drawing.api_call(request, values.AtQuery(at)))
            due = values.ScheduledJobsQuery(status="planned", limit=OVERVIEW_ROWS, at=at)
            rows["due"] = (await self._v1.schedule.jobs(drawing.api_call(request, due))).jobs
        except problems.ApiError as error:
            reasons.append(error.message)
        tiles = tiles_then(counts, schedule, at)
        dead_count = sum(each.dead for each in counts.queues) if counts is not None else 0
        return await self._page(
            request, "overview.html", "overview", figures=None, tiles=tiles,
            causes=causes_of(dead_count, schedule.failed if schedule is not None else 0),
            problem="; ".join(dict.fromkeys(reasons)), failed_runs=failed.runs,
            troubles=await self._troubles.find(request), activity=await self._activity(request),
            **rows,
        )  # fmt: skip

    async def _activity(self, request: web.Request) -> Shown | None:
        return await self._charted.charts_for(
            request, "work", range_of(request, self._backend.clock.now_ns())
        )

    async def log(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        service = request.query.get("service", "work")
        if service not in ("schedule", "work", "fan-out"):
            raise problems.ApiError(400, f"there is no log of {service[:40]!r}")
        query = values.RecordsQuery(service, PAGE, drawing.shown_moment(request))
        problem, records = "", []
        try:
            records = (await self._v1.log.records(drawing.api_call(request, query))).records
        except problems.ApiError as error:
            problem = error.message
        paged = values.NamesQuery(limit=PAGE, cursor=request.query.get("cursor", ""))
        page = await self._v1.log.files(drawing.api_call(request, paged))
        return await self._page(
            request,
            "log.html",
            "log",
            service=service,
            records=records,
            problem=problem,
            page=page,
        )

    async def time_machine(self, request: web.Request) -> web.StreamResponse:
        found: dict[str, Any] = dict.fromkeys(("span", "counts", "changes", "dead"))
        found |= {"calls": {}, "totals": [], "rows": [], "errors": [], "at_ns": 0, "since_ns": 0}
        problem = ""
        at, now_ns = request.query.get("at", ""), self._backend.clock.now_ns()
        zone = drawing.chosen_zone(request)
        since = resolve_moment(request.query.get("since", ""), now_ns, zone)
        queue, error = request.query.get("queue", ""), request.query.get("error", "")
        try:
            first_ns, last_ns = await self._v1.past.span() or (0, 0)
            if last_ns and not routes.covers_all(
                request["token"]
            ):  # the last record may be of others
                last_ns = now_ns
            if last_ns:
                found["span"] = (first_ns, last_ns)
            if at:
                found["counts"] = await self._v1.past.counts(
                    drawing.api_call(request, values.AtQuery(at))
                )
                query = values.WorkJobsQuery(
                    at=at, state="dead", queue=queue, error=error, limit=PAGE
                )
                found["dead"] = await self._v1.work.jobs(drawing.api_call(request, query))
            if since:
                found |= await self._compare(request, since, at or time_text(now_ns), queue)
        except problems.ApiError as refused:
            problem = refused.message
        return await self._page(
            request, "time.html", "time", problem=problem, since=since, queue=queue, error=error,
            can_send=self._may_send(request), states=comparing.STATES,
            shown_changes=SHOWN_CHANGES, **found,
        )  # fmt: skip

    async def _compare(
        self, request: web.Request, since: str, until: str, queue: str
    ) -> dict[str, Any]:
        since_ns, at_ns = fields.read_moment(since, "since"), fields.read_moment(until, "at")
        if since_ns >= at_ns:
            raise problems.ApiError(400, "since: a moment before the other one", "invalid_time")
        span = values.SpanQuery(begin=since, until=until)
        changes = await self._v1.past.changes(drawing.api_call(request, span))
        rows = comparing.rows_of(changes, queue)
        range_ = TimeRange("", since_ns, at_ns, "in between")
        calls = {}
        for each in changes.jobs[:SHOWN_CHANGES]:
            asked = values.MomentQuery(until if each.after else since)
            path = {"job": id_text(each.job_id)}
            with suppress(problems.ApiError):  # a job whose TTL ended in between
                job = await self._v1.work.job(drawing.api_call(request, asked, path=path))
                calls[each.job_id] = shown.payload_line(job.payload)[:120]
        tasks = await self._charted.charts_for(
            request, f"queue:{queue}" if queue else "work", range_
        )
        return {
            "changes": changes,
            "calls": calls,
            "rows": rows,
            "totals": comparing.totals_of(rows),
            "errors": tasks.errors if tasks is not None else [],
            "since_ns": since_ns,
            "at_ns": at_ns,
        }

    def _may_send(self, request: web.Request) -> bool:
        token: Token | None = request["token"]
        return token is None or token.may_write

    async def reports(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        places = self._v1.log.places()
        kept, at = await asyncio.to_thread(self._reports.kept), drawing.shown_moment(request)
        kept = [each for each in kept if not at or each.made_ns <= fields.read_moment(at, "at")]
        lakes = await asyncio.to_thread(lakes_of, places)
        lake, days, problem = request.query.get("lake", ""), None, ""
        if lake in lakes:
            try:
                days = await self._v1.past.lake_days(drawing.api_call(request), lake)
            except problems.ApiError as error:
                problem = error.message
        return await self._page(
            request, "reports.html", "reports", places=places, reports=self._reports, kept=kept,
            lakes=lakes, lake=lake, days=days, problem=problem,
        )  # fmt: skip

    async def report(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        name = request.match_info["name"]
        text, policy = await asyncio.to_thread(self._reports.read, name)
        return web.Response(
            text=text, headers=drawing.HEADERS | {"Content-Security-Policy": policy}
        )

    async def settings(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        settings = (await self._v1.server.settings(drawing.api_call(request))).settings
        tokens = await self._v1.server.tokens(drawing.api_call(request))
        at = drawing.shown_moment(request)
        audits = await self._audits.last(100, fields.read_moment(at, "at") if at else None)
        return await self._page(
            request, "settings.html", "settings", settings=settings, tokens=tokens, audits=audits
        )

    # -- live --

    async def events(self, request: web.Request) -> web.StreamResponse:
        """A tick each second, which says nothing but that the server is there."""
        channels = [self.ticks_live]
        if request.query.get("of") == "records":
            routes.check_for_all(request["token"])
            channels.append(self.records_live)
        return await stream_events(request, channels)

    async def _next_tick(self) -> bytes:
        return TICK

    async def _next_records(self) -> bytes | None:
        sample, more = self._watch.take()
        if not sample:
            return None
        html = await self.drawing.render("live_rows.html", records=sample, more=more)
        return event_bytes("records", html)

    # -- actions --

    async def choose(self, request: web.Request) -> web.StreamResponse:
        return drawing.keep_choices(request)

    async def confirm(self, request: web.Request) -> web.StreamResponse:
        action = self._actions.read(request.query)
        preview = await self._actions.preview(drawing.api_call(request), action)
        back = drawing.local(request.query.get("back", "/"))
        return await self._page(
            request, "confirm.html", "", action=action, preview=preview, back=back
        )

    async def act(self, request: web.Request) -> web.StreamResponse:
        form = await self._signed(request)
        routes.check_may_write(request["token"])
        action = self._actions.read(form)
        # A client that leaves the page now has confirmed it all the same.
        said = await routes.to_the_end(self._actions.carry_out(drawing.api_call(request), action))
        session: drawing.Session = request["session"]
        session.said = said[:MAX_SAID]
        raise web.HTTPSeeOther(drawing.local(form.get("back", "/")))

    async def login_form(self, request: web.Request) -> web.StreamResponse:
        back = drawing.local(request.query.get("back", "/"))
        return await self._page(request, "login.html", "", back=back, is_wrong=False)

    async def login(self, request: web.Request) -> web.StreamResponse:
        form = await _form(request)
        back = drawing.local(form.get("back", "/"))
        token = await request["find_token"](form.get("secret", "").strip())
        if token is None:
            response = await self._page(request, "login.html", "", back=back, is_wrong=True)
            response.set_status(401)
            return response
        answer = web.Response(status=303, headers={"Location": str(URL(back))})
        self._sessions.give(answer, self._sessions.begin(token))
        return answer

    async def logout(self, request: web.Request) -> web.StreamResponse:
        await self._signed(request)
        session: drawing.Session = request["session"]
        self._sessions.end(session)
        raise web.HTTPSeeOther("/console/login")

    async def _signed(self, request: web.Request) -> dict[str, Any]:
        form = await _form(request)
        session: drawing.Session | None = request.get("session")
        if session is None or not self._sessions.is_signed(session, form.get("code", "")):
            raise problems.ApiError(403, "this form has expired; open the page again", "csrf")
        return {name: form.getall(name) if name == "id" else form[name] for name in set(form)}


async def _form(request: web.Request) -> MultiDict[str]:
    """The fields of a form. They are UTF-8, as our pages are: aiohttp would decode them with the
    codec that the client names, some of which fail or take very long."""
    data = await request.read()
    request["body_is_in"]()
    try:
        text = data.decode(errors="replace")
        return MultiDict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise problems.ApiError(
            400, f"the form has more than {MAX_FIELDS} fields", "invalid_body"
        ) from None


class OverviewTile(NamedTuple):
    """A figure of the overview, with the page that it leads to."""

    label: str
    value: float | None
    note: str
    address: str
    line: str = ""  # the points of its last hour
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that needs a person."""

    count: int
    text: str
    search: str


def causes_of(dead: int, failed: int, *, is_whole: bool = True) -> list[Cause]:
    """``is_whole``: these are all, not only those of the first page."""
    kinds = ((dead, "dead job", "state:dead"), (failed, "failed run", "in:schedule state:failed"))
    return [
        Cause(
            count,
            f"{shown.number(count)}{'' if is_whole else ' or more'} {noun}{'s' * (count != 1)}",
            search,
        )
        for count, noun, search in kinds
        if count
    ]


def tiles_now(figures: values.Figures, history: FigureHistory) -> list[OverviewTile]:
    work, schedule, fan_out = figures.work, figures.schedule, figures.fan_out
    dead, ready, leased, scheduled = (
        None if work is None else work[name] for name in ("failed", "ready", "leased", "scheduled")
    )
    off = "off" if work is None else ""
    lag = "off"
    if fan_out is not None:
        readers, open_reads = shown.number(fan_out["readers"]), shown.number(fan_out["open_reads"])
        lag = f"{readers} readers, {open_reads} open"
    running = f"{shown.number(schedule['executions_inflight'])} running"
    jobs = "/console/jobs"
    return [
        OverviewTile(
            "Dead jobs",
            dead,
            off or "in the work queue",
            shown.link(jobs, q="state:dead"),
            history.line("dead"),
            bool(dead),
        ),
        OverviewTile(
            "Failed runs",
            schedule["jobs_failed"],
            "scheduled jobs",
            shown.link(jobs, q="in:schedule state:failed"),
            history.line("failed"),
            bool(schedule["jobs_failed"]),
        ),
        OverviewTile(
            "Ready",
            ready,
            off or f"{shown.number(scheduled)} scheduled",
            "/console/queues",
            history.line("ready"),
        ),
        OverviewTile(
            "Running",
            leased,
            off or "jobs of the work queue",
            shown.link(jobs, q="in:work state:running"),
            history.line("leased"),
        ),
        OverviewTile(
            "Planned",
            schedule["jobs_planned"],
            running,
            shown.link(jobs, q="in:schedule state:planned"),
            history.line("planned"),
        ),
        OverviewTile(
            "Fan-out lag",
            fan_out["items"] if fan_out is not None else None,
            lag,
            "/console/fan-out",
            history.line("lag"),
        ),
    ]


def tiles_then(
    counts: PastCounts | None, schedule: PastSchedule | None, at: str
) -> list[OverviewTile]:
    """Return what the logs tell of a moment."""
    found = []
    if counts is not None:
        states = (("Dead jobs", "dead"), ("Ready", "ready"), ("Running", "leased"),
                  ("Scheduled", "scheduled"))  # fmt: skip
        for label, state in states:
            number = sum(getattr(each, state) for each in counts.queues)
            address = shown.link("/console/jobs", q=f"in:work state:{state}", at=at)
            is_wrong = state == "dead" and number > 0
            found.append(
                OverviewTile(label, number, "in the work queue", address, is_wrong=is_wrong)
            )
    if schedule is not None:
        running = f"{shown.number(schedule.triggered)} running"
        for label, state, note in (("Failed runs", "failed", "scheduled jobs"),
                                   ("Planned", "planned", running)):  # fmt: skip
            number = getattr(schedule, state)
            address = shown.link("/console/jobs", q=f"in:schedule state:{state}", at=at)
            is_wrong = state == "failed" and number > 0
            found.append(OverviewTile(label, number, note, address, is_wrong=is_wrong))
    return found
