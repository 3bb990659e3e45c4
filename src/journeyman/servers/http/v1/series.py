"""Figures over time, version 1: series of one queue, task, rule or timetable, and rows of all.

The helper process that counts answers (servers/series). A token sees figures of its own queues: a
task that runs in queues of several namespaces has, for each token, those of its own.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from journeyman.protocols.workq.replies import id_text
from journeyman.servers.core.helper_process import HelperFailed
from journeyman.servers.http import fields
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.values import Limit, Prefix
from journeyman.servers.series import answers
from journeyman.servers.series.answers import FoundSeries, FoundSummary, PageOfRows, Wanted
from journeyman.servers.series.cells import WORK, Example, family_of
from journeyman.servers.series.figures import FIGURES, figure
from journeyman.units import DAY_S, MS_PER_S, NS_PER_S, US_PER_S

USUAL_RANGE_S: Final = 3600
MAX_RANGE_S: Final = 91 * DAY_S
ERRORS: Final = "errors"
_SUBJECT: Final = rf"(?:({'|'.join(answers.SERVICES)})|({'|'.join(answers.KINDS)}):([\s\S]+))"
_FIGURE: Final = f" *(?:{'|'.join((*FIGURES, ERRORS))}) *"
_KINDED_NAME: Final = re.compile(_SUBJECT)
_route = partial(Route, tag="figures over time", names={"of": "|".join(answers.KINDS)})
Step = Annotated[int, Meta(ge=0, le=90 * DAY_S)]


class SeriesQuery(Struct, rename={"begin": "from"}):
    of: Annotated[
        fields.Text,
        fields.documented(_SUBJECT),
        Meta(
            description="`work`, `schedule`, `queue:NAME`, `task:NAME`, `rule:ID`, `timetable:ID`",
            examples=["task:shop.send_mail"],
        ),
    ]
    figure: Annotated[
        fields.Text,
        fields.documented(f"{_FIGURE}(?:,{_FIGURE})*"),
        Meta(
            description="figures, with commas between them: " + ", ".join((*FIGURES, ERRORS)),
            examples=["run_p50,run_p99"],
        ),
    ] = "completed,failures"
    begin: Annotated[
        fields.MomentOrNone, Meta(description="a time; an hour before `to` if it is left out")
    ] = ""
    to: Annotated[fields.MomentOrNone, Meta(description="a time; now if it is left out")] = ""
    step: Annotated[
        Step,
        Meta(
            description="seconds between points; 0: a few hundred points. Steps of less than an "
            "hour are known for two days, others are rounded up to hours"
        ),
    ] = 0


class SeriesAnswer(Struct, rename={"begin_ns": "from_ns"}):
    """``times_s`` are the beginnings of the steps, in seconds since 1970, and each list has a value
    for each step: a count, a depth at its end, milliseconds, a share of 1; null where there is
    none. ``errors`` are failures by class of error. Nothing is known before ``known_from_ns``,
    and all that was written by ``as_of_ns`` is counted."""

    of: str
    begin_ns: int
    to_ns: int
    step_s: int
    times_s: list[int]
    figures: dict[str, list[float | None]]
    errors: dict[str, list[int]] | None
    known_from_ns: int | None
    as_of_ns: int


class RangeQuery(Struct, rename={"begin": "from"}):
    begin: Annotated[
        fields.MomentOrNone, Meta(description="a time; an hour before `to` if it is left out")
    ] = ""
    to: Annotated[fields.MomentOrNone, Meta(description="a time; now if it is left out")] = ""


SORTS: Final = (
    *("name", "-failure_rate", "-failures", "-completed", "-added"),
    *("-wait_p99", "-run_p99", "-ready"),
)


class SummariesQuery(RangeQuery, rename={"begin": "from"}, kw_only=True):
    prefix: Prefix = ""
    sort: Annotated[
        str, fields.word_of(*SORTS), Meta(description="by name, or the largest first")
    ] = "name"
    limit: Limit = 50
    cursor: fields.Cursor = ""


class FiguresQuery(SummariesQuery, rename={"begin": "from"}, kw_only=True):
    by: Annotated[str, fields.word_of(*answers.KINDS), Meta(description="what has a row")]


class Summary(Struct):
    """The work of a queue, task, rule or timetable in a range of time, in milliseconds;
    ``per_s`` are attempts that ended per second, ``trend`` how many ended in each thirtieth of the
    range; depths are those of now. ``others`` are the queues of a task, the tasks of a queue, the
    timetables of a rule, the rules of a timetable: the first hundred of them."""

    name: str
    others: list[str]
    added: int
    started: int
    completed: int
    failures: int
    failed: int
    timed_out: int
    cancelled: int
    expired: int
    deleted: int
    failure_rate: float | None
    per_s: float
    wait_p50: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p99: float | None
    scheduled: int
    ready: int
    running: int
    errors: dict[str, int]
    trend: list[int]


class Summaries(Struct, rename={"begin_ns": "from_ns"}):
    """A page of rows."""

    by: str
    begin_ns: int
    to_ns: int
    rows: list[Summary]
    total: int
    next: str | None


class ExampleJob(Struct):
    """A job that stands out; it may be gone by now. ``id`` of a job of the schedule is its name."""

    id: str
    ended_ns: int
    run_ms: float
    error: str


class Detail(Struct):
    """A row, with the slowest of its jobs that completed and the last that failed."""

    summary: Summary
    slowest: list[ExampleJob]
    latest_failed: list[ExampleJob]


class SeriesRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        return [
            _route("GET", "/v1/series", self.series, "Figures of one thing over time",
                   SeriesAnswer, query=SeriesQuery, errors=(404, 422)),
            _route("GET", "/v1/summaries", self.summaries,
                   "Figures of all queues, tasks, rules or timetables", Summaries,
                   query=FiguresQuery, errors=(404, 422)),
            _route("GET", "/v1/tasks", self.tasks, "Tasks with their figures", Summaries,
                   query=SummariesQuery, errors=(404, 422)),
            _route("GET", "/v1/tasks/{name}", self.task,
                   "A task: its figures, slowest and last failed jobs", Detail,
                   query=RangeQuery, errors=(404, 422)),
            _route("GET", "/v1/summaries/{of}/{name}", self.detail,
                   "A queue, task, rule or timetable: its figures and jobs that stand out", Detail,
                   query=RangeQuery, errors=(404, 422)),
        ]  # fmt: skip

    async def series(self, call: RouteCall) -> SeriesAnswer:
        query: SeriesQuery = call.query
        wanted = self._wanted(call, *_read_of(query.of), query.begin, query.to)
        wanted.step_s = query.step
        figures = list(dict.fromkeys(each.strip() for each in query.figure.split(",")))
        for name in figures:
            if name not in (*FIGURES, ERRORS):
                known = ", ".join((*FIGURES, ERRORS))
                raise ApiError(
                    400, f"figure: {name[:60]!r} is not known; these are: {known}", "invalid_query"
                )
        if query.step and (wanted.to_s - wanted.from_s) > query.step * answers.MAX_POINTS:
            raise ApiError(
                422, f"step: more than {answers.MAX_POINTS} points; make it longer", "invalid_query"
            )
        numbers = [name for name in figures if name != ERRORS]
        found: FoundSeries | None = await self._ask(call, "get_series", wanted, numbers)
        if found is None:
            raise ApiError(404, "nothing is counted of this: its service has no log", "service_off")
        return SeriesAnswer(
            query.of,
            wanted.from_s * NS_PER_S,
            wanted.to_s * NS_PER_S,
            found.step_s,
            found.times_s,
            found.figures,
            found.errors if ERRORS in figures else None,
            None if found.known_from_s is None else found.known_from_s * NS_PER_S,
            found.as_of_ns,
        )

    async def tasks(self, call: RouteCall) -> Summaries:
        return await self._summaries(call, "task", call.query)

    async def summaries(self, call: RouteCall) -> Summaries:
        return await self._summaries(call, call.query.by, call.query)

    async def task(self, call: RouteCall) -> Detail:
        return await self._detail(call, "task", call.path["name"])

    async def detail(self, call: RouteCall) -> Detail:
        return await self._detail(call, call.path["of"], call.path["name"])

    async def _summaries(self, call: RouteCall, kind: str, query: SummariesQuery) -> Summaries:
        wanted = self._wanted(call, kind, "", query.begin, query.to)
        skipped = _read_offset(query.cursor)
        asked = PageOfRows(query.prefix, query.sort, skipped, query.limit)
        found, total = await self._summaries_of(call, wanted, asked)
        page = [_summary(row, wanted.to_s - wanted.from_s) for row in found]
        end = skipped + len(page)
        following = fields.cursor_of(end.to_bytes(4)) if page and end < total else None
        return Summaries(
            kind, wanted.from_s * NS_PER_S, wanted.to_s * NS_PER_S, page, total, following
        )

    async def _summaries_of(
        self, call: RouteCall, wanted: Wanted, page: PageOfRows
    ) -> tuple[list[FoundSummary], int]:
        found: tuple[list[FoundSummary], int] = await self._ask(call, "get_summaries", wanted, page)
        return found

    async def _detail(self, call: RouteCall, kind: str, name: str) -> Detail:
        if kind not in answers.KINDS:
            raise ApiError(404, f"there are figures of {', '.join(answers.KINDS)}", "not_found")
        wanted = self._wanted(call, kind, name, call.query.begin, call.query.to)
        found, _ = await self._summaries_of(call, wanted, PageOfRows("", "name", 0, 1))
        if not found:
            raise ApiError(404, f"nothing happened to this {kind} in that time", "not_found")
        cell, family = found[0].cell, family_of(kind)
        return Detail(
            _summary(found[0], wanted.to_s - wanted.from_s),
            [_example(each, family) for each in cell.slowest],
            [_example(each, family) for each in reversed(cell.latest_failed)],
        )

    def _wanted(self, call: RouteCall, kind: str, name: str, begin: str, to: str) -> Wanted:
        """Return what a token may see of this; ApiError: no time that can be asked for."""
        now_ns = self._backend.clock.now_ns()
        to_s = -(-(fields.read_moment(to, "to") if to else now_ns) // NS_PER_S)
        from_s = fields.read_moment(begin, "from") // NS_PER_S if begin else to_s - USUAL_RANGE_S
        if not 0 <= from_s <= to_s or to_s - from_s > MAX_RANGE_S:
            raise ApiError(
                422, "from: give a time before `to`, at most 91 days before it", "invalid_time"
            )
        return Wanted(kind, name, call.prefix, from_s, to_s, 0)

    async def _ask(self, call: RouteCall, function: str, *arguments: Any) -> Any:
        if self._backend.series is None:
            raise ApiError(404, "figures over time are off: see series.enabled", "service_off")
        try:
            return await self._backend.ask_series(call, function, *arguments)
        except HelperFailed as error:
            raise ApiError(503, f"figures over time: {error}") from None


def _read_of(text: str) -> tuple[str, str]:
    """Kind and name; the name is empty for all of a service."""
    found = _KINDED_NAME.fullmatch(text)
    if found is None:
        kinds = ", ".join((*answers.SERVICES, *(f"{kind}:NAME" for kind in answers.KINDS)))
        raise ApiError(400, f"of: {text[:60]!r} is not one of {kinds}", "invalid_query")
    return (found[1], "") if found[1] else (found[2], found[3])


def _read_offset(cursor: str) -> int:
    return int.from_bytes((fields.read_cursor(cursor) or b"")[:4])


def _summary(row: FoundSummary, seconds: int) -> Summary:
    cell = row.cell
    ended = cell.completed + cell.failed + cell.timed_out + cell.cut_off
    return Summary(
        row.name,
        row.others,
        cell.added,
        cell.started,
        cell.completed,
        ended - cell.completed,
        cell.failed,
        cell.timed_out,
        cell.cancelled,
        cell.expired,
        cell.deleted,
        figure(cell, "failure_rate"),
        round(ended / max(seconds, 1), 6),
        figure(cell, "wait_p50"),
        figure(cell, "wait_p99"),
        figure(cell, "run_p50"),
        figure(cell, "run_p99"),
        cell.scheduled,
        cell.ready,
        cell.running,
        dict(sorted(cell.errors.items(), key=lambda item: -item[1])),
        row.trend,
    )


def _example(example: Example, family: str) -> ExampleJob:
    name = id_text(example.key) if family == WORK else example.key.decode()
    return ExampleJob(name, example.ended_ns, example.run_us * MS_PER_S / US_PER_S, example.error)
