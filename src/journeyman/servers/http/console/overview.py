"""Troubles that need a person, from the figures: tasks that fail or wait, queues that fall behind,
timetables whose last run failed, workers that are silent.

Each has a sentence, its evidence, and the page on which the cause is seen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp import web

from journeyman.servers.http import problems
from journeyman.servers.http.console import figures, shown
from journeyman.servers.http.console.charts import spark
from journeyman.servers.http.console.drawing import api_call, shown_moment
from journeyman.servers.http.console.queue_pages import QueuePages
from journeyman.servers.http.console.time_bar import TimeRange, moment_or_none, range_of
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.units import NS_PER_S

BEHIND_MS: Final = 60_000  # for how long the oldest job of a queue may wait
LOOKED_AT_S: Final = 3600  # a task that failed in this time needs a person
MOST_QUEUES: Final = 500
MOST_FAILED: Final = 20
MOST_FOUND: Final = 8


class Trouble(NamedTuple):
    """``kind`` task, queue, timetable or worker."""

    kind: str
    name: str
    address: str
    short: str  # a verb for the sentence
    text: str  # the same, with its figure
    evidence: str
    see: str
    points: str = ""


class Troubles:
    def __init__(
        self,
        backend: HttpBackend,
        version: VersionOne,
        charted: figures.FigurePages,
        queues: QueuePages,
    ) -> None:
        self._backend = backend
        self._v1 = version
        self._charted = charted
        self._queues = queues

    async def find(self, request: web.Request) -> list[Trouble]:
        """The worst first; at most MOST_FOUND of each kind."""
        found = await self._of_tasks(request)
        if self._backend.work is not None:
            found += await self._of_queues(request)
            if not shown_moment(request):
                found += await self._of_workers(request)
        return found + await self._of_timetables(request)

    async def _of_tasks(self, request: web.Request) -> list[Trouble]:
        until_ns = range_of(request, self._backend.clock.now_ns()).until_ns
        range_ = TimeRange("", until_ns - LOOKED_AT_S * NS_PER_S, until_ns, "last hour")
        rows = figures.worst_first(await self._charted.rows(request, "task", range_))
        found = []
        for row in [each for each in rows if figures.is_failing(each)][:MOST_FOUND]:
            address = shown.link(
                f"/console/tasks/{shown.in_path(row.name)}", at=shown_moment(request)
            )
            attempts = row.completed + row.failures
            evidence = (
                f"{figures.main_error(row)} · {shown.number(row.failures)} of "
                f"{shown.number(attempts)} attempts in the {range_.words}"
            )
            text = f"fails {shown.percent(row.failure_rate)} of the time"
            found.append(
                Trouble("task", row.name, address, "fails", text, evidence, "See why",
                        spark(row.trend))
            )  # fmt: skip
        return found

    async def _of_queues(self, request: web.Request) -> list[Trouble]:
        query = values.NamesAtQuery(limit=MOST_QUEUES, at=shown_moment(request))
        try:
            page = await self._v1.work.queues(api_call(request, query))
        except problems.ApiError:  # the page says why the past is not known
            return []
        behind = [each for each in page.queues if (each.oldest_ready_ms or 0) > BEHIND_MS]
        behind.sort(key=lambda each: -(each.oldest_ready_ms or 0))
        found = []
        for queue in behind[:MOST_FOUND]:
            address = shown.link(f"/console/queues/{queue.name}", at=shown_moment(request))
            oldest = shown.milliseconds(queue.oldest_ready_ms)
            short = "is paused" if queue.paused else "falls behind"
            idle = shown.plural(queue.waiting, "worker")
            workers = f"{shown.number(queue.leased)} running, {idle} waiting for jobs"
            found.append(
                Trouble("queue", queue.name, address, short,
                        f"{short}: {shown.number(queue.ready)} wait, the oldest for {oldest}",
                        workers, "Open queue")
            )  # fmt: skip
        return found

    async def _of_workers(self, request: web.Request) -> list[Trouble]:
        rows = [row for row in await self._queues.workers_of(request) if row.is_silent]
        now_ns = self._backend.clock.now_ns()
        return [
            Trouble("worker", row.worker.name, "/console/workers", "is silent",
                    f"is silent: it was seen {shown.away(row.worker.seen_ns, now_ns)}",
                    f"{len(row.worker.jobs)} jobs are leased to it", "See workers")
            for row in rows[:MOST_FOUND]
        ]  # fmt: skip

    async def _of_timetables(self, request: web.Request) -> list[Trouble]:
        """Return the timetables whose last run failed, of the runs that failed lately."""
        at = shown_moment(request)
        now_ns = moment_or_none(at) or self._backend.clock.now_ns()
        query = values.RunsQuery(success=False, limit=MOST_FAILED, at=at)
        failed = (await self._v1.schedule.runs(api_call(request, query))).runs
        names = dict.fromkeys(run.id.partition("@")[0] for run in failed if "@" in run.id)
        found = []
        for name in list(names)[:MOST_FOUND]:
            latest = values.RunsQuery(prefix=f"{name}@", limit=MOST_FAILED, at=at)
            runs = (await self._v1.schedule.runs(api_call(request, latest))).runs
            count = next((index for index, run in enumerate(runs) if run.success), len(runs))
            if not count:
                continue
            address = shown.link(f"/console/timetables/{shown.in_path(name)}", at=at)
            times = {1: "", 2: " twice"}.get(count, f" {count} times")
            when = shown.away(runs[0].started_ns, now_ns)
            output = runs[0].output.strip().splitlines()
            evidence = ": ".join([runs[0].reason, *output[-1:]])
            found.append(
                Trouble("timetable", name, address, f"failed{times}",
                        f"failed{times}, the last time {when}", evidence[:160], "See the runs")
            )  # fmt: skip
        return found
