"""Pages about jobs: one search over all services, and one job of the work queue or the schedule."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from journeyman.protocols.workq.replies import STATES
from journeyman.servers.http.console import shown
from journeyman.servers.http.console.drawing import Drawing, asked, moment_of
from journeyman.servers.http.routes import ApiError, read_moment
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import DAY_S, NS_PER_S

PAGE: Final = 50

_BACK = re.compile(r"-(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY_S}
NAMES = ("queue", "state", "error", "after", "in")
SERVICES = ("schedule", "work", "fan-out")
SCHEDULE_STATES = ("planned", "triggered", "executed", "failed")
_MEANT = {"dead": "failed", "completed": "executed", "leased": "triggered"}  # in the schedule


class JobPages:
    def __init__(self, backend: HttpBackend, version: VersionOne, drawing: Drawing) -> None:
        self._backend = backend
        self._v1 = version
        self._drawing = drawing

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("q", "")
        search = read_search(text)
        cursors = {name: request.query.get(f"{name}_cursor", "") for name in ("schedule", "work")}
        is_paged = any(cursors.values())
        schedule = work = fan_out = None
        problems = []
        if search.wants("schedule") and (not is_paged or cursors["schedule"]):
            try:
                schedule = await self._scheduled(request, search, cursors["schedule"])
            except ApiError as error:
                problems.append(error.message)
        has_work = self._backend.work is not None
        if has_work and search.wants("work") and (not is_paged or cursors["work"]):
            try:
                work = await self._work(request, search, cursors["work"])
            except ApiError as error:
                problems.append(error.message)
        wants_fan_out = search.wants("fan-out") and not is_paged and not moment_of(request)
        if self._backend.fan_out is not None and wants_fan_out:
            prefix = search.queue or search.text
            names = values.NamesQuery(prefix=prefix, limit=10)
            fan_out = await self._v1.fan_out.queues(asked(request, names))
        return await self._drawing.page(
            request, "jobs.html", "jobs", q=text, search=search, schedule=schedule, work=work,
            fan_out=fan_out, problem="; ".join(dict.fromkeys(problems)),
            errors=self._errors_of(schedule),
        )  # fmt: skip

    async def _work(self, request: web.Request, search: Search, cursor: str) -> values.WorkJobs:
        query = values.WorkJobsQuery(
            queue=search.queue, state=search.work_state, text=search.text, error=search.error,
            since=search.since(self._backend.clock.now_ns()), limit=PAGE, cursor=cursor,
            at=moment_of(request),
        )  # fmt: skip
        return await self._v1.work.jobs(asked(request, query))

    async def _scheduled(
        self, request: web.Request, search: Search, cursor: str
    ) -> values.ScheduledJobs | None:
        at = moment_of(request)
        if search.error:  # the schedule's log has no errors: the runs that are remembered do
            runs = await self._v1.schedule.runs(
                asked(request, values.RunsQuery(success=False, limit=500, at=at))
            )
            wanted = search.error.lower()
            found = [run for run in runs.runs if wanted in (run.reason + run.output).lower()]
            jobs = [values.ScheduledJob(run.id, "failed", run.execution_ns) for run in found[:PAGE]]
            return values.ScheduledJobs(jobs, None)
        state = search.schedule_state
        order = "-time" if state in ("executed", "failed") else "time"
        query = values.ScheduledJobsQuery(
            status=state, text=search.text, order=order, limit=PAGE, cursor=cursor, at=at
        )
        return await self._v1.schedule.jobs(asked(request, query))

    def _errors_of(self, page: values.ScheduledJobs | None) -> dict[str, str]:
        """Return what is remembered of the last run of each failed job."""
        wanted = {job.id for job in page.jobs if job.status == "failed"} if page else set()
        found: dict[str, str] = {}
        for run in self._backend.schedule.runs.latest():
            if run.identifier in wanted and not run.success:
                found.setdefault(run.identifier, run.reason)
        return found

    async def work_job(self, request: web.Request) -> web.StreamResponse:
        job_id, at = request.match_info["job"], moment_of(request)
        call = asked(request, values.MomentQuery(at), path={"job": job_id})
        job = await _or_none(self._v1.work.job(call))
        records = _by_then((await self._v1.log.work_history(call)).records, at)
        if job is None and not records:
            raise ApiError(404, f"no job has the id {job_id}", "job_not_found")
        return await self._drawing.page(
            request, "work_job.html", "jobs", job_id=job_id, job=job, records=records,
            lives=sum(each.kind in ("add", "schedule") for each in records),
            spans=shown.spans_of(records),
        )  # fmt: skip

    async def scheduled_job(self, request: web.Request) -> web.StreamResponse:
        identifier, at = request.match_info["id"], moment_of(request)
        path = {"id": identifier}
        job = await _or_none(
            self._v1.schedule.job(asked(request, values.MomentQuery(at), path=path))
        )
        history = asked(request, values.KeyQuery(identifier), path=path)
        records = _by_then((await self._v1.log.schedule_history(history)).records, at)
        if job is None and not records:
            raise ApiError(404, "there is no such job", "job_not_found")
        query = values.RunsQuery(prefix=identifier, limit=100, at=at)
        runs = (await self._v1.schedule.runs(asked(request, query))).runs
        return await self._drawing.page(
            request, "scheduled_job.html", "jobs", job_id=identifier, job=job, records=records,
            runs=[run for run in runs if run.id == identifier],
        )  # fmt: skip


async def _or_none(answer: Any) -> Any:
    """None instead of a 404."""
    try:
        return await answer
    except ApiError as error:
        if error.status != 404:
            raise
    return None


def _by_then(records: list[values.LogRecord], at: str) -> list[values.LogRecord]:
    """Those that had been written by a moment, if one is given."""
    if not at:
        return records
    at_ns = read_moment(at, "at")
    return [each for each in records if each.time_ns is not None and each.time_ns <= at_ns]


@dataclass(frozen=True, slots=True)
class Search:
    """What is typed into the search field: words, some with a name in front of them.

    queue:mail state:dead error:timeout after:-1h in:work anything else

    A word without a known name is looked for in ids and payloads. ``after:`` is a moment, or a time
    back from now: -30s, -15m, -1h, -7d.
    """

    queue: str = ""
    state: str = ""
    error: str = ""
    after: str = ""
    service: str = ""
    text: str = ""

    @property
    def work_state(self) -> str | None:
        if self.state in STATES:
            return self.state
        meant = {word: state for state, word in _MEANT.items()}
        return meant.get(self.state)

    @property
    def schedule_state(self) -> str | None:
        return self.state if self.state in SCHEDULE_STATES else _MEANT.get(self.state)

    def wants(self, service: str) -> bool:
        if self.service:
            return service == self.service
        if service == "schedule":
            asks_for_work = self.queue or (self.state and self.schedule_state is None)
            return not asks_for_work
        if service == "fan-out":
            return not (self.state or self.error or self.after)
        return not (self.state and self.work_state is None)

    def since(self, now_ns: int) -> str:
        """``after`` as a moment."""
        back = _BACK.fullmatch(self.after)
        if back is None:
            return self.after
        return str(now_ns - int(back[1]) * _SECONDS[back[2]] * NS_PER_S)


def read_search(text: str) -> Search:
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is never closed
        words = text.split()
    found: dict[str, str] = {}
    rest = []
    for word in words:
        name, colon, value = word.partition(":")
        if colon and value and name in NAMES:
            found["service" if name == "in" else name] = value
        else:
            rest.append(word)
    state = found.pop("state", "")
    return Search(**found, state=values.STATE_WORDS.get(state, state), text=" ".join(rest))
