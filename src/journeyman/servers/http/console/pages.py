"""The pages of the console. Each is a URL, works without JavaScript, and takes ``at``.

    request --session, token--> handler --handlers of /v1--> values --template--> HTML

A page asks the same handlers as a client of the API, with the token of its session, so it shows
what that token may see and nothing is counted twice. What changes something is confirmed on a page
of its own, comes as a signed form, and is written to the ledger (actions.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from journeyman import __version__
from journeyman.config import Token
from journeyman.data_directory import CACHE_DIRECTORY
from journeyman.servers.http.audits import Audits
from journeyman.servers.http.console import shown
from journeyman.servers.http.console.actions import Actions
from journeyman.servers.http.console.assets import PREFIX, all_assets, serve_asset
from journeyman.servers.http.console.figures import FigureHistory, series_of
from journeyman.servers.http.console.reports import Reports
from journeyman.servers.http.console.search import read_search
from journeyman.servers.http.console.sessions import Session, Sessions
from journeyman.servers.http.conversions import time_text
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.live import FIGURES_S, FLUSH_S, Channel, event_bytes, stream_events
from journeyman.servers.http.routes import RouteCall, check_for_all, check_may_write
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.log import RecordWatch

PAGE: Final = 50
OVERVIEW_ROWS: Final = 8
PUBLIC: Final = ("/console/login", PREFIX)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NAVIGATION = (
    ("overview", "/", "Overview"),
    ("jobs", "/console/jobs", "Jobs"),
    ("timetables", "/console/timetables", "Timetables"),
    ("queues", "/console/queues", "Queues"),
    ("fan-out", "/console/fan-out", "Fan-out"),
    ("log", "/console/log", "Log"),
    ("time", "/console/time", "Time machine"),
    ("reports", "/console/reports", "Reports"),
    ("settings", "/console/settings", "Settings"),
)


SHOWS_THEN: Final = ("jobs", "queues", "time")  # the others show now, whatever ``at`` says


def is_console(path: str) -> bool:
    return path == "/" or path.startswith("/console/")


class Console:
    """All pages. Made once a server."""

    def __init__(
        self, backend: HttpBackend, version: VersionOne, sessions: Sessions, audits: Audits
    ) -> None:
        self._backend = backend
        self._v1 = version
        self._sessions = sessions
        self._audits = audits
        self._reports = Reports(_cache_of(backend))
        self._actions = Actions(backend, version, audits, self._reports)
        self.history = FigureHistory(version.server, version.work.rates)
        self._templates = _environment()
        self.figures_live = Channel(self._next_figures, FIGURES_S)
        self._watch = RecordWatch(backend)
        self.records_live = Channel(self._next_records, FLUSH_S, self._watch.switch)

    def add_to(self, app: web.Application) -> None:
        pages: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/": self.overview,
            "/console/jobs": self.jobs,
            "/console/work/{job}": self.work_job,
            "/console/schedule/{id:(?s:.+)}": self.scheduled_job,
            "/console/timetables": self.timetables,
            "/console/queues": self.queues,
            "/console/fan-out": self.fan_out,
            "/console/log": self.log,
            "/console/time": self.time_machine,
            "/console/reports": self.reports,
            "/console/reports/{name}": self.report,
            "/console/settings": self.settings,
            "/console/confirm": self.confirm,
            "/console/events": self.events,
            "/console/login": self.login_form,
        }
        for path, handler in pages.items():
            app.router.add_get(path, handler, allow_head=False)
        app.router.add_post("/console/act", self.act)
        app.router.add_post("/console/login", self.login)
        app.router.add_post("/console/logout", self.logout)
        app.router.add_get(PREFIX + "{name}", serve_asset, allow_head=False)

    def warm_up(self) -> None:
        """Read templates and assets before the first page is asked for. In a thread."""
        all_assets()
        for name in self._templates.list_templates():
            self._templates.get_template(name)

    def close(self) -> None:
        self.history.stop()
        self.figures_live.close()
        self.records_live.close()
        self._reports.close()

    # -- pages --

    async def overview(self, request: web.Request) -> web.StreamResponse:
        if at := request.query.get("at", ""):
            raise web.HTTPSeeOther(shown.link("/console/time", at=at))
        figures = await self._v1.server.figures(_call(request))
        failed_runs = await self._v1.schedule.runs(
            _call(request, values.RunsQuery(success=False, limit=OVERVIEW_ROWS))
        )
        due = await self._v1.schedule.jobs(
            _call(request, values.ScheduledJobsQuery(status="planned", limit=OVERVIEW_ROWS))
        )
        dead = None
        if self._backend.work is not None:
            asked = values.WorkJobsQuery(state="dead", limit=OVERVIEW_ROWS)
            dead = await self._v1.work.jobs(_call(request, asked))
        return self._page(
            request,
            "overview.html",
            "overview",
            figures=figures,
            history=self.history,
            failed_runs=failed_runs.runs,
            due=due.jobs,
            dead=dead.jobs if dead is not None else [],
            chart=self._chart(),
        )

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("q", "")
        search = read_search(text)
        cursors = {name: request.query.get(f"{name}_cursor", "") for name in ("schedule", "work")}
        is_paged = any(cursors.values())
        at = request.query.get("at", "")
        schedule = work = fan_out = None
        problem = ""
        try:
            if search.wants("schedule") and (not is_paged or cursors["schedule"]):
                schedule = await self._scheduled(request, search, cursors["schedule"], at)
            if (
                self._backend.work is not None
                and search.wants("work")
                and (not is_paged or cursors["work"])
            ):
                work = await self._v1.work.jobs(
                    _call(
                        request,
                        values.WorkJobsQuery(
                            queue=search.queue,
                            state=search.work_state,
                            text=search.text,
                            error=search.error,
                            since=search.since(self._backend.clock.now_ns()),
                            limit=PAGE,
                            cursor=cursors["work"],
                            at=at,
                        ),
                    )
                )
            wants_fan_out = search.wants("fan-out") and not is_paged and not at
            if self._backend.fan_out is not None and wants_fan_out:
                prefix = search.queue or search.text
                asked = values.NamesQuery(prefix=prefix, limit=10)
                fan_out = await self._v1.fan_out.queues(_call(request, asked))
        except ApiError as error:
            problem = error.message
        return self._page(
            request,
            "jobs.html",
            "jobs",
            q=text,
            search=search,
            schedule=schedule,
            work=work,
            fan_out=fan_out,
            problem=problem,
            errors=self._errors_of(schedule),
        )

    async def _scheduled(
        self, request: web.Request, search: Any, cursor: str, at: str
    ) -> values.ScheduledJobs | None:
        if search.error:  # the schedule's log has no errors: the runs that are remembered do
            runs = await self._v1.schedule.runs(
                _call(request, values.RunsQuery(success=False, limit=500))
            )
            wanted = search.error.lower()
            found = [run for run in runs.runs if wanted in (run.reason + run.output).lower()]
            jobs = [
                values.ScheduledJob(run.id, "failed", run.execution, run.execution_ns)
                for run in found[:PAGE]
            ]
            return values.ScheduledJobs(jobs, None)
        state = search.schedule_state
        order = "-time" if state in ("executed", "failed") else "time"
        asked = values.ScheduledJobsQuery(
            status=state, text=search.text, order=order, limit=PAGE, cursor=cursor, at=at
        )
        return await self._v1.schedule.jobs(_call(request, asked))

    def _errors_of(self, page: values.ScheduledJobs | None) -> dict[str, str]:
        """What is remembered of the last run of each failed job."""
        wanted = {job.id for job in page.jobs if job.status == "failed"} if page else set()
        found: dict[str, str] = {}
        for run in self._backend.schedule.runs.latest():
            if run.identifier in wanted and not run.success:
                found.setdefault(run.identifier, run.reason)
        return found

    async def work_job(self, request: web.Request) -> web.StreamResponse:
        job_id = request.match_info["job"]
        call = _call(request, path={"job": job_id})
        job = None
        try:
            job = await self._v1.work.job(call)
        except ApiError as error:
            if error.status != 404:
                raise
        records = (await self._v1.log.work_history(call)).records
        if job is None and not records:
            raise ApiError(404, f"there is no job {job_id}", "job_not_found")
        return self._page(
            request,
            "work_job.html",
            "jobs",
            job_id=job_id,
            job=job,
            records=records,
            spans=shown.spans_of(records),
        )

    async def scheduled_job(self, request: web.Request) -> web.StreamResponse:
        identifier = request.match_info["id"]
        call = _call(request, values.KeyQuery(identifier), path={"id": identifier})
        job = None
        try:
            job = await self._v1.schedule.job(call)
        except ApiError as error:
            if error.status != 404:
                raise
        records = (await self._v1.log.schedule_history(call)).records
        if job is None and not records:
            raise ApiError(404, "there is no such job", "job_not_found")
        query = values.RunsQuery(prefix=identifier, limit=100)
        runs = (await self._v1.schedule.runs(_call(request, query))).runs
        return self._page(
            request,
            "scheduled_job.html",
            "jobs",
            job_id=identifier,
            job=job,
            records=records,
            runs=[run for run in runs if run.id == identifier],
        )

    async def timetables(self, request: web.Request) -> web.StreamResponse:
        query = values.NamesQuery(cursor=request.query.get("cursor", ""), limit=20)
        page = await self._v1.timetables.timetables(_call(request, query))
        shown_ = []
        for each in page.timetables:
            path = {"timetable": each.id}
            asked = _call(request, values.CountQuery(5), path=path)
            firings = (await self._v1.timetables.next(asked)).firings
            runs = values.ScheduledJobsQuery(prefix=f"{each.id}@", order="-time", limit=60)
            past = (await self._v1.schedule.jobs(_call(request, runs))).jobs
            shown_.append((each, firings, past[::-1]))
        return self._page(
            request,
            "timetables.html",
            "timetables",
            timetables=shown_,
            next=page.next,
            backfill=await self._backfill(request),
        )

    async def _backfill(self, request: web.Request) -> dict[str, Any] | None:
        """A preview, if one is asked for."""
        name, begin = request.query.get("backfill", ""), request.query.get("from", "")
        if not name or not begin:
            return None
        until = request.query.get("until", "") or str(self._backend.clock.now_ns())
        body = values.BackfillBody(begin=begin, until=until, preview=True)
        try:
            found = await self._v1.timetables.backfill(
                RouteCall(request, {"timetable": name}, None, body)
            )
        except ApiError as error:
            return {"name": name, "problem": error.message, "rows": [], "from": begin}
        return {"name": name, "problem": "", "rows": found.rows, "from": begin, "until": until}

    async def queues(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        page, at = None, request.query.get("at", "")
        if self._backend.work is not None and at:
            page = await self._queues_then(request, at, prefix)
        elif self._backend.work is not None:
            asked = values.NamesQuery(prefix=prefix, limit=PAGE, cursor=cursor)
            page = await self._v1.work.queues(_call(request, asked))
        return self._page(request, "queues.html", "queues", page=page, prefix=prefix)

    async def _queues_then(self, request: web.Request, at: str, prefix: str) -> values.WorkQueues:
        check_for_all(request["token"])
        counts = await self._v1.past.counts(_call(request, values.AtQuery(at)))
        found = [each for each in counts.queues if each.queue.startswith(prefix)]
        seen = [
            values.WorkQueueSeen(
                each.queue,
                each.ready,
                each.scheduled,
                each.leased,
                each.dead,
                None,
                False,
                values.QueueLimitsSeen(),
                0,
            )
            for each in found[:500]
        ]
        return values.WorkQueues(seen, None)

    async def fan_out(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        page = None
        if self._backend.fan_out is not None:
            asked = values.NamesQuery(prefix=prefix, limit=PAGE, cursor=cursor)
            page = await self._v1.fan_out.queues(_call(request, asked))
        return self._page(request, "fan_out.html", "fan-out", page=page, prefix=prefix)

    async def log(self, request: web.Request) -> web.StreamResponse:
        check_for_all(request["token"])
        service = request.query.get("service", "work")
        if service not in ("schedule", "work", "fan-out"):
            raise ApiError(400, f"there is no log of {service[:40]!r}")
        asked = values.RecordsQuery(service=service, limit=PAGE)
        records = (await self._v1.log.records(_call(request, asked))).records
        files = (await self._v1.log.files(_call(request))).files
        return self._page(
            request,
            "log.html",
            "log",
            service=service,
            records=records,
            files=files[:500],
            all_files=len(files),
            told=request.query.get("told", "")[:500],
        )

    async def time_machine(self, request: web.Request) -> web.StreamResponse:
        check_for_all(request["token"])
        found: dict[str, Any] = {"span": None, "counts": None, "changes": None, "dead": None}
        problem = ""
        at, since = request.query.get("at", ""), request.query.get("since", "")
        queue, error = request.query.get("queue", ""), request.query.get("error", "")
        try:
            first_ns, last_ns = await self._v1.past.span()
            found["span"] = (first_ns, last_ns, time_text(first_ns), time_text(last_ns))
            if at:
                found["counts"] = await self._v1.past.counts(_call(request, values.AtQuery(at)))
                asked = values.WorkJobsQuery(
                    at=at, state="dead", queue=queue, error=error, limit=PAGE
                )
                found["dead"] = await self._v1.work.jobs(_call(request, asked))
            if at and since:
                span = values.SpanQuery(begin=since, until=at)
                found["changes"] = await self._v1.past.changes(_call(request, span))
        except ApiError as refused:
            problem = refused.message
        return self._page(
            request, "time.html", "time", problem=problem, since=since, queue=queue, error=error,
            can_send=self._may_send(request), **found,
        )  # fmt: skip

    def _may_send(self, request: web.Request) -> bool:
        token: Token | None = request["token"]
        return token is None or token.may_write

    async def reports(self, request: web.Request) -> web.StreamResponse:
        check_for_all(request["token"])
        kept = await asyncio.to_thread(self._reports.kept)
        return self._page(
            request, "reports.html", "reports",
            places=self._v1.log.places(), reports=self._reports, kept=kept,
        )  # fmt: skip

    async def report(self, request: web.Request) -> web.StreamResponse:
        check_for_all(request["token"])
        name = request.match_info["name"]
        text, policy = await asyncio.to_thread(self._reports.read, name)
        return web.Response(text=text, headers=_HEADERS | {"Content-Security-Policy": policy})

    async def settings(self, request: web.Request) -> web.StreamResponse:
        check_for_all(request["token"])
        settings = (await self._v1.server.settings(_call(request))).settings
        tokens = await self._v1.server.tokens(_call(request))
        audits = await self._audits.last(100)
        return self._page(
            request, "settings.html", "settings", settings=settings, tokens=tokens, audits=audits
        )

    # -- live --

    async def events(self, request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("of", "figures")
        if wanted != "records":
            return await stream_events(request, [self.figures_live])
        check_for_all(request["token"])
        return await stream_events(request, [self.records_live])

    async def _next_figures(self) -> bytes | None:
        try:
            figures = await self._v1.server.measure()
        except ApiError:
            return None
        html = self._templates.get_template("tiles.html").render(
            figures=figures, series=series_of(figures)
        )
        return event_bytes("figures", html.encode())

    async def _next_records(self) -> bytes | None:
        sample, more = self._watch.take()
        if not sample:
            return None
        html = self._templates.get_template("live_rows.html").render(records=sample, more=more)
        return event_bytes("records", html.encode())

    def _chart(self) -> str:
        """The last hour as JSON: the scripts draw it, and go on with what comes live."""
        names = ("schedule_rate", "work_rate", "fan_out_rate", "run_rate")
        now = asyncio.get_running_loop().time()
        times = [round(sample.time_s - now, 1) for sample in self.history.samples]
        found = {"times": times} | {name: self.history.series(name) for name in names}
        return msgspec.json.encode(found).decode()

    # -- actions --

    async def confirm(self, request: web.Request) -> web.StreamResponse:
        action = self._actions.read(request.query)
        preview = await self._actions.preview(_call(request), action)
        back = _local(request.query.get("back", "/"))
        return self._page(request, "confirm.html", "", action=action, preview=preview, back=back)

    async def act(self, request: web.Request) -> web.StreamResponse:
        form = await self._signed(request)
        check_may_write(request["token"])
        action = self._actions.read(form)
        # Whoever leaves the page now has confirmed it all the same.
        said = await asyncio.shield(self._actions.carry_out(_call(request), action))
        back = _local(form.get("back", "/"))
        joined = "&" if "?" in back else "?"
        raise web.HTTPSeeOther(back + joined + shown.link("", said=said)[1:])

    async def login_form(self, request: web.Request) -> web.StreamResponse:
        back = _local(request.query.get("back", "/"))
        return self._page(request, "login.html", "", back=back, is_wrong=False)

    async def login(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        request["body_is_in"]()
        back = _local(str(form.get("back", "/")))
        token = await request["find_token"](str(form.get("secret", "")).strip())
        if token is None:
            response = self._page(request, "login.html", "", back=back, is_wrong=True)
            response.set_status(401)
            return response
        answer = web.Response(status=303, headers={"Location": back})
        self._sessions.give(answer, self._sessions.begin(token))
        return answer

    async def logout(self, request: web.Request) -> web.StreamResponse:
        await self._signed(request)
        session: Session = request["session"]
        self._sessions.end(session)
        raise web.HTTPSeeOther("/console/login")

    async def _signed(self, request: web.Request) -> dict[str, Any]:
        form = await request.post()
        request["body_is_in"]()
        session: Session | None = request.get("session")
        code = str(form.get("code", ""))
        if session is None or not self._sessions.is_signed(session, code):
            raise ApiError(403, "this form is not from this console; open the page again", "csrf")
        return {name: form.getall(name) if name == "id" else str(form[name]) for name in set(form)}

    # -- drawing --

    def problem(self, request: web.Request, error: ApiError) -> web.Response:
        response = self._page(request, "problem.html", "", error=error)
        response.set_status(error.status)
        return response

    def _page(self, request: web.Request, template: str, here: str, **more: Any) -> web.Response:
        now_ns = self._backend.clock.now_ns()
        session: Session | None = request.get("session")
        token: Token | None = request.get("token")
        at = request.query.get("at", "") if here else ""
        html = self._templates.get_template(template).render(
            here=here,
            navigation=NAVIGATION,
            address=str(request.rel_url.without_query_params("said")),
            host=request.host,
            at=at,
            shows_then=here in SHOWS_THEN,
            said=request.query.get("said", "")[:500],
            now_ns=now_ns,
            now=time_text(now_ns),
            away=lambda ns: shown.away(ns, now_ns),
            token=token,
            may_write=(token is None or token.may_write) and not at,
            code=self._sessions.form_code(session) if session is not None else "",
            **more,
        )
        response = web.Response(text=html, headers=_HEADERS)
        if session is not None and request.get("session_is_new"):
            self._sessions.give(response, session)
        return response


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= shown.FILTERS
    environment.globals |= {
        "asset": lambda name: all_assets()[name].address,
        "link": shown.link,
        "version": __version__,
    }
    return environment


def _call(
    request: web.Request, query: Any = None, *, path: dict[str, str] | None = None
) -> RouteCall:
    return RouteCall(request, path or {}, query, None)


def _cache_of(backend: HttpBackend) -> str:
    """In the data directory, which is where the ledger or else the schedule's log is."""
    settings = backend.settings
    place = settings.database.logfile_path if backend.ledger is None else settings.ledger.path
    return os.path.join(os.path.dirname(os.path.abspath(place)), CACHE_DIRECTORY, "reports")


def _local(address: str) -> str:
    """A path of the console, whatever was asked for: no redirect leaves it."""
    parts = urlsplit(address)
    is_here = not parts.scheme and not parts.netloc and is_console(parts.path)
    return address if is_here and "\n" not in address and "\\" not in address else "/"
