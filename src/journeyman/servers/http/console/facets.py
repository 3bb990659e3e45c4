"""Counts beside a search: how many jobs there are of each state, queue, task, error and worker.

States and queues are counted by the engine, so they are exact. Tasks and errors are those of the
attempts in the range of the time bar; workers are those of now, with the jobs that they run.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from aiohttp import web

from journeyman.engines.workq.browsing import CountFacets
from journeyman.servers.http import problems
from journeyman.servers.http.console import figures
from journeyman.servers.http.console.drawing import api_call, shown_moment
from journeyman.servers.http.console.search import Search
from journeyman.servers.http.console.time_bar import range_of
from journeyman.servers.http.fields import moment_of_query
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import HttpBackend

FIRST_VALUES: Final = 8
# Words of a search, and those of the API.
STATES: Final = (("ready", "ready"), ("scheduled", "scheduled"), ("waiting", "waiting"),
                 ("running", "leased"), ("dead", "dead"), ("done", "completed"),
                 ("cancelled", "cancelled"))  # fmt: skip


class Choice(NamedTuple):
    name: str
    jobs: int
    search: str
    is_chosen: bool


class Facet(NamedTuple):
    title: str
    words: str
    choices: list[Choice]


class Facets:
    def __init__(
        self, backend: HttpBackend, version: VersionOne, charted: figures.FigurePages
    ) -> None:
        self._backend = backend
        self._v1 = version
        self._charted = charted

    async def facets_of(self, request: web.Request, search: Search) -> list[Facet]:
        if self._backend.work is None:
            return []
        call, state = api_call(request), search.work_state or ""
        try:
            at_ns = moment_of_query(shown_moment(request))
            counted = await self._backend.count_facets(
                call, CountFacets(search.queue, state), at_ns
            )
            everywhere = counted
            if search.queue:  # the other queues are there to be chosen too
                everywhere = await self._backend.count_facets(call, CountFacets("", state), at_ns)
        except problems.ApiError:  # the page says why the past is not known
            return []
        states = [
            Choice(
                word,
                counted.states[field],
                search.with_word("state", word),
                search.shown_state == word,
            )
            for word, field in STATES
        ]
        queues, workers = Counter(everywhere.queues), Counter[str]()
        if at_ns is None:
            listed = await self._v1.work.workers(
                api_call(request, values.CursorQuery(FIRST_VALUES))
            )
            workers.update({each.name: len(each.jobs) for each in listed.workers})
        range_ = range_of(request, self._backend.clock.now_ns())
        rows = await self._charted.rows(request, "task", range_)
        tasks = Counter(
            {
                row.name: row.completed + row.failures
                for row in rows
                if not search.queue or search.queue in row.others
            }
        )
        errors: Counter[str] = Counter()
        for row in rows:
            if row.name in tasks and search.task in ("", row.name):
                errors.update(row.errors)
        return [
            Facet("State", "", states),
            _facet("Queue", "", "queue", queues, search, search.queue),
            _facet("Task", range_.words, "task", tasks, search, search.task),
            _facet("Error", range_.words, "error", errors, search, search.error),
            _facet("Worker", "running now", "worker", workers, search, search.worker),
        ]


def _facet(
    title: str, states: str, name: str, counts: Counter[str], search: Search, chosen: str
) -> Facet:
    shown = dict(counts.most_common(FIRST_VALUES))
    if chosen and chosen not in shown:
        shown[chosen] = counts.get(chosen, 0)
    choices = [
        Choice(each, count, search.with_word(name, each), each == chosen)
        for each, count in shown.items()
    ]
    return Facet(title, states, choices)
