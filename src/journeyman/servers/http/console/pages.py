"""The pages of the console. Each is a URL, works without JavaScript, and takes ``at``.

    request --session, token--> handler --handlers of /v1--> values --template--> HTML

A page asks the same handlers as a client of the API, with the token of its session, so it shows
what that token may see and nothing is counted twice. What changes something is confirmed on a page
of its own, comes as a signed form, and is written to the ledger (actions.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web
from multidict import MultiDict
from yarl import URL

from journeyman.config import Token
from journeyman.data_directory import CACHE_DIRECTORY
from journeyman.disk import absolute, is_database
from journeyman.servers.core.shared import delay_to_second
from journeyman.servers.http import routes
from journeyman.servers.http.console import drawing
from journeyman.servers.http.console.actions import Actions
from journeyman.servers.http.console.job_pages import PAGE, JobPages
from journeyman.servers.http.console.reports import ReportRuns, lakes_of
from journeyman.servers.http.sending import FIGURES_S, FLUSH_S, Channel, event_bytes, stream_events
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import ServerRoutes, VersionOne
from journeyman.servers.http.v1.backend import Audits, HttpBackend
from journeyman.servers.http.v1.log import RecordWatch
from journeyman.servers.http.v1.work import QueueRates
from journeyman.units import NS_PER_S

OVERVIEW_ROWS: Final = 8
NEXT_FIRINGS: Final = 5
SLIDER_STEPS: Final = 1000
MAX_FIELDS = 2_000  # of a form: an id for each job that was chosen, and a few more
MAX_SAID: Final = 500  # characters of what an action says on the next page
PUBLIC: Final = ("/console/login", drawing.PREFIX)

SAMPLE_S: Final = 6.0
MOST: Final = 600
WIDTH, HEIGHT = 240.0, 44.0


class Console:
    """All pages. Made once a server."""

    def __init__(
        self, backend: HttpBackend, version: VersionOne, sessions: drawing.Sessions, audits: Audits
    ) -> None:
        self._backend = backend
        self._v1 = version
        self._sessions = sessions
        self._audits = audits
        self._reports = ReportRuns(_cache_of(backend))
        self._actions = Actions(backend, version, audits, self._reports)
        self.history = FigureHistory(version.server, version.work.rates)
        self.drawing = drawing.Drawing(backend.clock, sessions)
        self._page = self.drawing.page
        self._jobs = JobPages(backend, version, self.drawing)
        self.figures_live = Channel(self._next_figures, FIGURES_S)
        self._watch = RecordWatch(backend)
        self.records_live = Channel(self._next_records, FLUSH_S, self._watch.switch)

    def add_to(self, app: web.Application) -> None:
        pages: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/": self.overview,
            "/console/jobs": self._jobs.jobs,
            "/console/work/{job}": self._jobs.work_job,
            "/console/schedule/{id:(?s:.+)}": self._jobs.scheduled_job,
            "/console/timetables": self.timetables,
            "/console/rules": self.rules,
            "/console/queues": self.queues,
            "/console/workers": self.workers,
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
        app.router.add_get(drawing.PREFIX + "{name}", drawing.serve_asset, allow_head=False)

    def close(self) -> None:
        self.history.stop()
        self.figures_live.close()
        self.records_live.close()
        self._reports.close()

    # -- pages --

    async def overview(self, request: web.Request) -> web.StreamResponse:
        if drawing.moment_of(request):
            return await self._overview_then(request)
        # Figures of the server count what belongs to others.
        sees_all = routes.covers_all(request["token"])
        figures = await self._v1.server.figures(drawing.asked(request)) if sees_all else None
        failed_runs = await self._v1.schedule.runs(
            drawing.asked(request, values.RunsQuery(success=False, limit=OVERVIEW_ROWS))
        )
        due = await self._v1.schedule.jobs(
            drawing.asked(request, values.ScheduledJobsQuery(status="planned", limit=OVERVIEW_ROWS))
        )
        dead = None
        if self._backend.work is not None:
            query = values.WorkJobsQuery(state="dead", limit=OVERVIEW_ROWS)
            dead = await self._v1.work.jobs(drawing.asked(request, query))
        return await self._page(
            request,
            "overview.html",
            "overview",
            figures=figures,
            history=self.history,
            failed_runs=failed_runs.runs,
            due=due.jobs,
            dead=dead.jobs if dead is not None else [],
            chart=self._chart() if sees_all else "",
        )

    async def _overview_then(self, request: web.Request) -> web.StreamResponse:
        """As the logs have it; what is not known is left out, and why is said."""
        at, problems = drawing.moment_of(request), []
        found: dict[str, Any] = {"counts": None, "schedule": None, "dead": (), "due": ()}
        failed = await self._v1.schedule.runs(
            drawing.asked(request, values.RunsQuery(success=False, limit=OVERVIEW_ROWS, at=at))
        )
        try:
            found["counts"] = await self._v1.past.counts(drawing.asked(request, values.AtQuery(at)))
            dead = values.WorkJobsQuery(state="dead", limit=OVERVIEW_ROWS, at=at)
            found["dead"] = (await self._v1.work.jobs(drawing.asked(request, dead))).jobs
        except routes.ApiError as error:
            problems.append(error.message)
        try:
            found["schedule"] = await self._v1.past.schedule(
                drawing.asked(request, values.AtQuery(at))
            )
            due = values.ScheduledJobsQuery(status="planned", limit=OVERVIEW_ROWS, at=at)
            found["due"] = (await self._v1.schedule.jobs(drawing.asked(request, due))).jobs
        except routes.ApiError as error:
            problems.append(error.message)
        return await self._page(
            request, "overview_then.html", "overview", failed_runs=failed.runs,
            problem="; ".join(dict.fromkeys(problems)), **found,
        )  # fmt: skip

    async def timetables(self, request: web.Request) -> web.StreamResponse:
        at = drawing.moment_of(request)
        query = values.NamesAtQuery("", 20, request.query.get("cursor", ""), at)
        page = await self._v1.timetables.timetables(drawing.asked(request, query))
        shown_ = []
        for each in page.timetables:
            runs = values.ScheduledJobsQuery(prefix=f"{each.id}@", order="-time", limit=60, at=at)
            past = (await self._v1.schedule.jobs(drawing.asked(request, runs))).jobs
            shown_.append((each, await self._firings(request, each, at), past[::-1]))
        return await self._page(
            request, "timetables.html", "timetables", timetables=shown_, next=page.next,
            backfill=await self._backfill(request),
        )  # fmt: skip

    async def _firings(self, request: web.Request, each: values.Timetable, at: str) -> Any:
        if at:
            found = self._v1.past.firings(each.fields, at, NEXT_FIRINGS)
            return [values.Firing(f.at_s * NS_PER_S, f.local, "") for f in found]
        call = drawing.asked(request, values.CountQuery(NEXT_FIRINGS), path={"timetable": each.id})
        return (await self._v1.timetables.next(call)).firings

    async def rules(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        query = values.NamesQuery(prefix=prefix, limit=PAGE, cursor=cursor)
        page = await self._v1.schedule.rules(drawing.asked(request, query))
        return await self._page(request, "rules.html", "rules", page=page, prefix=prefix)

    async def _backfill(self, request: web.Request) -> dict[str, Any] | None:
        """A preview, if one is asked for."""
        name, begin = request.query.get("backfill", ""), request.query.get("from", "")
        if not name or not begin:
            return None
        until = request.query.get("until", "") or str(self._backend.clock.now_ns())
        body = values.BackfillBody(begin=begin, until=until, preview=True)
        try:
            found = await self._v1.timetables.backfill(
                routes.RouteCall(request, {"timetable": name}, None, body)
            )
        except routes.ApiError as error:
            return {"name": name, "problem": error.message, "rows": [], "from": begin}
        return {"name": name, "problem": "", "rows": found.rows, "from": begin, "until": until}

    async def queues(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        page = None
        if self._backend.work is not None:
            query = values.NamesAtQuery(prefix, PAGE, cursor, drawing.moment_of(request))
            page = await self._v1.work.queues(drawing.asked(request, query))
        return await self._page(request, "queues.html", "queues", page=page, prefix=prefix)

    async def workers(self, request: web.Request) -> web.StreamResponse:
        page = None
        if self._backend.work is not None:
            query = values.CursorQuery(PAGE, request.query.get("cursor", ""))
            page = await self._v1.work.workers(drawing.asked(request, query))
        return await self._page(request, "workers.html", "workers", page=page)

    async def fan_out(self, request: web.Request) -> web.StreamResponse:
        prefix, cursor = request.query.get("prefix", ""), request.query.get("cursor", "")
        page = None
        if self._backend.fan_out is not None:
            query = values.NamesQuery(prefix=prefix, limit=PAGE, cursor=cursor)
            page = await self._v1.fan_out.queues(drawing.asked(request, query))
        return await self._page(request, "fan_out.html", "fan-out", page=page, prefix=prefix)

    async def log(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        service = request.query.get("service", "work")
        if service not in ("schedule", "work", "fan-out"):
            raise routes.ApiError(400, f"there is no log of {service[:40]!r}")
        query = values.RecordsQuery(service, PAGE, drawing.moment_of(request))
        problem, records = "", []
        try:
            records = (await self._v1.log.records(drawing.asked(request, query))).records
        except routes.ApiError as error:
            problem = error.message
        paged = values.NamesQuery(limit=PAGE, cursor=request.query.get("cursor", ""))
        page = await self._v1.log.files(drawing.asked(request, paged))
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
        found["slider"] = SLIDER_STEPS
        problem = ""
        at, since = request.query.get("at", ""), request.query.get("since", "")
        queue, error = request.query.get("queue", ""), request.query.get("error", "")
        try:
            first_ns, last_ns = await self._v1.past.span() or (0, 0)
            if last_ns and not routes.covers_all(
                request["token"]
            ):  # the last record may be of others
                last_ns = self._backend.clock.now_ns()
            if last_ns:
                found["span"] = (first_ns, last_ns)
            if at and last_ns > first_ns:
                part = (routes.read_moment(at, "at") - first_ns) / (last_ns - first_ns)
                found["slider"] = round(SLIDER_STEPS * min(max(part, 0.0), 1.0))
            if at:
                found["counts"] = await self._v1.past.counts(
                    drawing.asked(request, values.AtQuery(at))
                )
                query = values.WorkJobsQuery(
                    at=at, state="dead", queue=queue, error=error, limit=PAGE
                )
                found["dead"] = await self._v1.work.jobs(drawing.asked(request, query))
            if at and since:
                span = values.SpanQuery(begin=since, until=at)
                found["changes"] = await self._v1.past.changes(drawing.asked(request, span))
        except routes.ApiError as refused:
            problem = refused.message
        return await self._page(
            request, "time.html", "time", problem=problem, since=since, queue=queue, error=error,
            can_send=self._may_send(request), **found,
        )  # fmt: skip

    def _may_send(self, request: web.Request) -> bool:
        token: Token | None = request["token"]
        return token is None or token.may_write

    async def reports(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        places = self._v1.log.places()
        kept, at = await asyncio.to_thread(self._reports.kept), drawing.moment_of(request)
        kept = [each for each in kept if not at or each.made_ns <= routes.read_moment(at, "at")]
        lakes = await asyncio.to_thread(lakes_of, places)
        lake, days, problem = request.query.get("lake", ""), None, ""
        if lake in lakes:
            try:
                days = await self._v1.past.lake_days(drawing.asked(request), lake)
            except routes.ApiError as error:
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
        settings = (await self._v1.server.settings(drawing.asked(request))).settings
        tokens = await self._v1.server.tokens(drawing.asked(request))
        at = drawing.moment_of(request)
        audits = await self._audits.last(100, routes.read_moment(at, "at") if at else None)
        return await self._page(
            request, "settings.html", "settings", settings=settings, tokens=tokens, audits=audits
        )

    # -- live --

    async def events(self, request: web.Request) -> web.StreamResponse:
        routes.check_for_all(request["token"])
        is_of_records = request.query.get("of", "figures") == "records"
        return await stream_events(
            request, [self.records_live if is_of_records else self.figures_live]
        )

    async def _next_figures(self) -> bytes | None:
        try:
            figures = await self._v1.server.measure()
        except routes.ApiError:
            return None
        html = await self.drawing.render("tiles.html", figures=figures, series=series_of(figures))
        return event_bytes("figures", html)

    async def _next_records(self) -> bytes | None:
        sample, more = self._watch.take()
        if not sample:
            return None
        html = await self.drawing.render("live_rows.html", records=sample, more=more)
        return event_bytes("records", html)

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
        preview = await self._actions.preview(drawing.asked(request), action)
        back = drawing.local(request.query.get("back", "/"))
        return await self._page(
            request, "confirm.html", "", action=action, preview=preview, back=back
        )

    async def act(self, request: web.Request) -> web.StreamResponse:
        form = await self._signed(request)
        routes.check_may_write(request["token"])
        action = self._actions.read(form)
        # A client that leaves the page now has confirmed it all the same.
        said = await routes.to_the_end(self._actions.carry_out(drawing.asked(request), action))
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
            raise routes.ApiError(403, "this form has expired; open the page again", "csrf")
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
        raise routes.ApiError(
            400, f"the form has more than {MAX_FIELDS} fields", "invalid_body"
        ) from None


def _cache_of(backend: HttpBackend) -> str:
    """In the data directory, which is where the ledger or else the schedule's log is; if that is a
    database, in the user's directory of such things."""
    settings = backend.settings
    place = settings.database.logfile_path if backend.ledger is None else settings.ledger.path
    directory = os.path.join(os.path.dirname(absolute(place)), CACHE_DIRECTORY)
    if is_database(place):
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        key = hashlib.sha256(place.encode()).hexdigest()[:16]
        directory = os.path.join(caches, "journeyman", key)
    return os.path.join(directory, "reports")


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    values: dict[str, float]


class FigureHistory:
    """The last hour of the server's figures, for the lines of the overview.

    A sample every SAMPLE_S, also without viewers: a few numbers, of which MOST are kept. Rates
    are what the counters gained between two samples.
    """

    def __init__(self, server: ServerRoutes, rates: QueueRates) -> None:
        self._server = server
        self._rates = rates
        self.samples: deque[Sample] = deque(maxlen=MOST)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.note(await self._server.measure())
                self._rates.sample(asyncio.get_running_loop().time())
            except routes.ApiError:
                return  # the server is stopping
            await asyncio.sleep(delay_to_second(loop, SAMPLE_S))

    def note(self, figures: values.Figures) -> None:
        noted = series_of(figures)
        self.samples.append(Sample(asyncio.get_running_loop().time(), noted))

    def series(self, name: str) -> list[float]:
        return [sample.values.get(name, 0.0) for sample in self.samples]

    def line(self, name: str) -> str:
        """The points of a polyline in a box of WIDTH x HEIGHT; empty with fewer than two."""
        numbers = self.series(name)
        if len(numbers) < 2:
            return ""
        most, step = max(*numbers, 1e-9), WIDTH / (len(numbers) - 1)
        points = (
            f"{index * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * number / most:.1f}"
            for index, number in enumerate(numbers)
        )
        return " ".join(points)


def series_of(figures: values.Figures) -> dict[str, float]:
    """The numbers that lines are drawn of."""
    work, fan_out = figures.work or {}, figures.fan_out or {}
    return {
        "schedule_rate": figures.rates.get("schedule", 0.0),
        "run_rate": figures.rates.get("runs", 0.0),
        "work_rate": figures.rates.get("work", 0.0),
        "fan_out_rate": figures.rates.get("fan_out", 0.0),
        "planned": figures.schedule["jobs_planned"],
        "failed": figures.schedule["jobs_failed"],
        "ready": work.get("ready", 0),
        "leased": work.get("leased", 0),
        "dead": work.get("failed", 0),
        "lag": fan_out.get("items", 0),
        "log_bytes": sum(each["log_bytes"] for each in figures.disk.values()),
    }
