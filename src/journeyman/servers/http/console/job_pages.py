"""Pages about jobs: one search over all services, and one job of the work queue or the schedule."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from journeyman.engines.workq.forks import is_note
from journeyman.formats.task_names import call_of
from journeyman.protocols.workq.replies import LEASED, JobView, WorkerView, id_text
from journeyman.protocols.workq.salts import next_id
from journeyman.servers.http.console import shown, trace
from journeyman.servers.http.console.drawing import Drawing, api_call, chosen_zone, shown_moment
from journeyman.servers.http.console.facets import Facets
from journeyman.servers.http.console.figures import FigurePages
from journeyman.servers.http.console.search import Search, read_search
from journeyman.servers.http.fields import read_moment
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import NS_PER_S

PAGE: Final = 50
MOST_SHOWN_PARENTS: Final = 12
MOST_WORKERS: Final = 500
SORTS: Final = {"run": "-run", "wait": "-wait"}  # those of the API


class JobPages:
    def __init__(
        self, backend: HttpBackend, version: VersionOne, drawing: Drawing, charted: FigurePages
    ) -> None:
        self._backend = backend
        self._facets = Facets(backend, version, charted)
        self._v1 = version
        self._drawing = drawing

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("q", "")
        search = read_search(text)
        cursors = {name: request.query.get(f"{name}_cursor", "") for name in ("schedule", "work")}
        is_paged = any(cursors.values())
        schedule = work = fan_out = None
        problems = search.problems
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
        wants_fan_out = search.wants("fan-out") and not is_paged and not shown_moment(request)
        if self._backend.fan_out is not None and wants_fan_out:
            prefix = search.queue or search.text
            names = values.NamesQuery(prefix=prefix, limit=10)
            fan_out = await self._v1.fan_out.queues(api_call(request, names))
        facets = await self._facets.facets_of(request, search)
        chosen = [each for facet in facets[:1] for each in facet.choices if each.is_chosen]
        return await self._drawing.page(
            request, "jobs.html", "jobs", q=text, search=search, schedule=schedule, work=work,
            facets=facets, sort=_sort_of(request),
            chosen_count=chosen[0].jobs if chosen and not search.narrows else None,
            fan_out=fan_out, problem="; ".join(dict.fromkeys(problems)),
            errors=self._errors_of(schedule), running_on=await self._running_on(request, work),
        )  # fmt: skip

    async def _work(self, request: web.Request, search: Search, cursor: str) -> values.WorkJobs:
        sort = _sort_of(request)
        if search.worker:
            return await self._jobs_of_worker(request, search)
        since = search.since(self._backend.clock.now_ns(), chosen_zone(request))
        query = values.WorkJobsQuery(
            queue=search.queue, state=search.work_state, text=search.looked_for,
            error=search.error, task=search.task, sort=SORTS.get(sort, "-created"), since=since,
            limit=PAGE, cursor=cursor, at=shown_moment(request),
        )  # fmt: skip
        return await self._v1.work.jobs(api_call(request, query))

    async def _running_on(
        self, request: web.Request, page: values.WorkJobs | None
    ) -> dict[str, str]:
        """The workers of the jobs of a page that run now, by the ids of the jobs."""
        is_present = not shown_moment(request)
        if page is None or not is_present or all(job.state != LEASED for job in page.jobs):
            return {}
        workers = await self._workers(request)
        return {id_text(job.job_id): each.name for each in workers for job in each.jobs}

    async def _workers(self, request: web.Request) -> Sequence[WorkerView]:
        call = api_call(request, values.CursorQuery(MOST_WORKERS))
        return (await self._v1.work.workers(call)).workers

    async def _jobs_of_worker(self, request: web.Request, search: Search) -> values.WorkJobs:
        """Return the jobs that a worker runs now; the page of a job names the worker of one that
        has ended."""
        workers = await self._workers(request)
        running = [job for each in workers if each.name == search.worker for job in each.jobs]
        found = []
        for each in running:
            path = {"job": id_text(each.job_id)}
            job = await _or_none(
                self._v1.work.job(api_call(request, values.MomentQuery(), path=path))
            )
            if job is not None and search.queue in ("", job.queue):
                found.append(job)
        return values.WorkJobs(found, None, len(running), None)

    async def _scheduled(
        self, request: web.Request, search: Search, cursor: str
    ) -> values.ScheduledJobs | None:
        at = shown_moment(request)
        if search.error:  # the schedule's log has no errors: the runs that are remembered do
            runs = await self._v1.schedule.runs(
                api_call(request, values.RunsQuery(success=False, limit=500, at=at))
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
        return await self._v1.schedule.jobs(api_call(request, query))

    def _errors_of(self, page: values.ScheduledJobs | None) -> dict[str, str]:
        """Return what is remembered of the last run of each failed job."""
        wanted = {job.id for job in page.jobs if job.status == "failed"} if page else set()
        found: dict[str, str] = {}
        for run in self._backend.schedule.runs.latest():
            if run.identifier in wanted and not run.success:
                found.setdefault(run.identifier, run.reason)
        return found

    async def work_job(self, request: web.Request) -> web.StreamResponse:
        job_id, at = request.match_info["job"], shown_moment(request)
        call = api_call(request, values.MomentQuery(at), path={"job": job_id})
        job = await _or_none(self._v1.work.job(call))
        records = _by_then((await self._v1.log.work_history(call)).records, at)
        if job is None and not records:
            raise ApiError(404, f"no job has the id {job_id}", "job_not_found")
        asked = api_call(request, values.StepsQuery(at), path={"job": job_id})
        found = await _or_none(self._v1.work.steps(asked)) if job is not None else None
        steps = [] if found is None else [s for s in found.steps if not is_note(s.name)]
        now_ns = read_moment(at, "at") if at else self._backend.clock.now_ns()
        drawn = trace.trace_of(records, steps, job, now_ns)
        if drawn is not None and drawn.failed and job is not None and job.state == "dead":
            drawn.failed[-1].result = job.result or b""  # the whole of it
        return await self._drawing.page(
            request, "work_job.html", "jobs", job_id=job_id, job=job, records=records,
            lives=sum(each.kind in ("add", "schedule") for each in records),
            steps=steps, has_more_steps=found is not None and found.next is not None,
            trace=drawn, failures=_failures_of(drawn), togo=_time_to_go(job, now_ns),
            flow=await self._flow_of(request, job) if job is not None else [],
        )  # fmt: skip

    async def _flow_of(self, request: web.Request, job: JobView) -> list[FlowNode]:
        """The jobs before and after this one, as far as its payload names them."""
        call = call_of(job.payload)
        if call is None or not (call.then or call.gather or call.follows):
            return []
        nodes = [
            await self._node(request, each, 0)
            for each in ([call.follows] if call.follows else call.gather[:MOST_SHOWN_PARENTS])
        ]
        if len(call.gather) > MOST_SHOWN_PARENTS:
            nodes.append(FlowNode("", f"and {len(call.gather) - MOST_SHOWN_PARENTS} more", place=0))
        nodes.append(FlowNode(job.id, shown.payload_line(job.payload), job.state, 1))
        next_job = uuid.UUID(job.id)
        for place, each in enumerate(call.then, start=2):
            next_job = next_id(next_job)
            node = await self._node(request, each.id or str(next_job), place)
            if not node.state:
                waits = place == 2 and job.finished_ns is None
                note = "waits for this job" if waits else "not there yet"
                node = FlowNode("", f"{each.task}(…)", "", place, note)
            nodes.append(node)
        return nodes

    async def _node(self, request: web.Request, job_id: str, place: int) -> FlowNode:
        query = values.MomentQuery(shown_moment(request))
        call = api_call(request, query, path={"job": job_id})
        found = await _or_none(self._v1.work.job(call))
        if found is None:
            return FlowNode("", job_id[:8], "", place, "no longer there")
        return FlowNode(job_id, shown.payload_line(found.payload), found.state, place)

    async def scheduled_job(self, request: web.Request) -> web.StreamResponse:
        identifier, at = request.match_info["id"], shown_moment(request)
        path = {"id": identifier}
        job = await _or_none(
            self._v1.schedule.job(api_call(request, values.MomentQuery(at), path=path))
        )
        history = api_call(request, values.KeyQuery(identifier), path=path)
        records = _by_then((await self._v1.log.schedule_history(history)).records, at)
        if job is None and not records:
            raise ApiError(404, "there is no such job", "job_not_found")
        query = values.RunsQuery(prefix=identifier, limit=100, at=at)
        runs = (await self._v1.schedule.runs(api_call(request, query))).runs
        return await self._drawing.page(
            request, "scheduled_job.html", "jobs", job_id=identifier, job=job, records=records,
            runs=[run for run in runs if run.id == identifier],
        )  # fmt: skip


def _sort_of(request: web.Request) -> str:
    sort = request.query.get("sort", "")
    return sort if sort in SORTS else ""


class FlowNode(NamedTuple):
    """A job before or after another one; those of the same place run side by side."""

    id: str  # empty: it is not there
    text: str
    state: str = ""
    place: int = 0
    note: str = ""


def _failures_of(drawn: trace.JobTrace | None) -> list[trace.TraceSpan]:
    """The errors of failed attempts, the latest first, each text once."""
    found: dict[str, trace.TraceSpan] = {}
    for span in reversed(drawn.failed if drawn is not None else []):
        if span.result:
            found.setdefault(shown.error_line(span.result), span)
    return list(found.values())


def _time_to_go(job: JobView | None, now_ns: int) -> float | None:
    """Return the seconds that are left if the job goes on as fast as it did so far."""
    if job is None or job.progress is None or job.state != "leased" or not job.started_ns:
        return None
    done, total, said_ns = job.progress.done, job.progress.total, job.progress.said_ns
    if not done or not total or said_ns is None or done >= total or said_ns <= job.started_ns:
        return None
    whole_s = (said_ns - job.started_ns) / NS_PER_S * total / done
    return max(0.0, whole_s - (now_ns - job.started_ns) / NS_PER_S)


async def _or_none(answer: Any) -> Any:
    """None instead of a 404."""
    try:
        return await answer
    except ApiError as error:
        if error.status != 404:
            raise
    return None


def _by_then(records: list[values.LogRecord], at: str) -> list[values.LogRecord]:
    """Return the records that had been written by a moment, if one is given."""
    if not at:
        return records
    at_ns = read_moment(at, "at")
    return [each for each in records if each.time_ns is not None and each.time_ns <= at_ns]
