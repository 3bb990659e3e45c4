"""The time bar of every page: activity of a range of time, and the moment that the page shows.

Activity comes from /v1/series. The last hour of a few figures that no log has, such as the number
of dead jobs, is kept in memory for the tiles of the overview.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiohttp import web

from journeyman.servers.core.shared import delay_to_second
from journeyman.servers.http import fields, problems, routes
from journeyman.servers.http.console.charts import Tick, spark, time_ticks
from journeyman.servers.http.console.moments import ChosenZone, to_the_millisecond
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import ServerRoutes
from journeyman.servers.http.v1.series import SeriesQuery, SeriesRoutes
from journeyman.servers.http.v1.work import QueueRates
from journeyman.units import DAY_S, NS_PER_S

SAMPLE_S: Final = 6.0
MOST: Final = 600
SERVICES: Final = ("work", "schedule")
BAR_STEPS: Final = 1000
MOST_TICKS: Final = 9
KEPT: Final = ("q", "sort", "prefix", "service", "since", "queue", "error")  # parameters
BAR_AXIS, BAR_UP, BAR_DOWN = 30, 28, 10  # the height of the axis, of activity and of failures


class RangeKind(NamedTuple):
    """A range that can be chosen; ``step_s`` is that of a bar."""

    seconds: int
    step_s: int
    words: str


RANGES: Final = {
    "1 h": RangeKind(3600, 60, "last hour"),
    "24 h": RangeKind(DAY_S, 600, "last 24 hours"),
    "7 d": RangeKind(7 * DAY_S, 3600, "last 7 days"),
    "90 d": RangeKind(90 * DAY_S, DAY_S, "last 90 days"),
}
RANGE_COOKIE: Final = "journeyman_range"


class TimeRange(NamedTuple):
    """The range of all charts of a page: up to now, or to the moment of the page."""

    name: str
    from_ns: int
    until_ns: int
    words: str


def range_of(request: web.Request, now_ns: int) -> TimeRange:
    """The range that was chosen last; in the past, the same length up to that moment."""
    at_ns = moment_or_none(request.query.get("at", ""))
    name = request.query.get("range", "") or request.cookies.get(RANGE_COOKIE, "")
    name = name if name in RANGES else next(iter(RANGES))
    until_ns = now_ns if at_ns is None else at_ns
    kind = RANGES[name]
    words = kind.words if at_ns is None else f"{name} before that moment"
    return TimeRange(name, until_ns - kind.seconds * NS_PER_S, until_ns, words)


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    values: dict[str, float]


class FigureHistory:
    """A sample every SAMPLE_S, also without viewers: a few numbers, of which MOST are kept."""

    def __init__(self, server: ServerRoutes, rates: QueueRates, figures: SeriesRoutes) -> None:
        self._figures = figures
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
            except problems.ApiError:
                return  # the server is stopping
            await asyncio.sleep(delay_to_second(loop, SAMPLE_S))

    def note(self, figures: values.Figures) -> None:
        noted = series_of(figures)
        self.samples.append(Sample(asyncio.get_running_loop().time(), noted))

    def series(self, name: str) -> list[float]:
        return [sample.values.get(name, 0.0) for sample in self.samples]

    def line(self, name: str) -> str:
        """The points of a polyline."""
        return spark(self.series(name))

    async def bar(self, request: web.Request, at: str, now_ns: int, zone: ChosenZone) -> TimeBar:
        """The time bar of a page: it ends now, and is long enough for the moment of the page."""
        at_ns = moment_or_none(at)
        name = request.query.get("range", "") or request.cookies.get(RANGE_COOKIE, "")
        age_s = 0 if at_ns is None else (now_ns - at_ns) / NS_PER_S
        if name not in RANGES or age_s > RANGES[name].seconds:
            fitting = (name for name, each in RANGES.items() if age_s <= each.seconds)
            name = next(fitting, list(RANGES)[-1])
        kind = RANGES[name]
        from_ns = now_ns - kind.seconds * NS_PER_S
        part = 1.0 if at_ns is None else (at_ns - from_ns) / (now_ns - from_ns)
        bars = await self._activity(request, kind, from_ns, now_ns)
        return TimeBar(
            request=request,
            range=name,
            from_ns=from_ns,
            until_ns=now_ns,
            mark=round(BAR_STEPS * min(max(part, 0.0), 1.0)),
            moment="" if at_ns is None else to_the_millisecond(at_ns, zone),
            zone=zone,
            **bars,
        )

    async def _activity(
        self, request: web.Request, kind: RangeKind, from_ns: int, now_ns: int
    ) -> dict[str, Any]:
        """Attempts that ended, upwards, and those that failed, downwards."""
        up: dict[float, float] = {}
        down: dict[float, float] = {}
        known_ns = now_ns
        width = BAR_STEPS * kind.step_s / kind.seconds
        for of in SERVICES:
            query = SeriesQuery(of, "completed,failures", str(from_ns), str(now_ns), kind.step_s)
            try:
                found = await self._figures.series(routes.RouteCall(request, {}, query, None))
            except problems.ApiError:  # it is off, or starting
                continue
            known_ns = min(known_ns, found.known_from_ns or now_ns)
            rows = zip(found.times_s, *found.figures.values(), strict=True)
            for time_s, completed, failed in rows:
                x = BAR_STEPS * (time_s - from_ns / NS_PER_S) / kind.seconds
                up[x] = up.get(x, 0.0) + (completed or 0) + (failed or 0)
                down[x] = down.get(x, 0.0) + (failed or 0)
        unknown = BAR_STEPS * (known_ns - from_ns) / (now_ns - from_ns)
        return {
            "unknown": round(min(max(unknown, 0.0), BAR_STEPS)),
            "up": _path(up, width, -BAR_UP, max(up.values(), default=0.0)),
            "down": _path(down, width, BAR_DOWN, max(up.values(), default=0.0) / 4),
        }


@dataclass(frozen=True, slots=True)
class TimeBar:
    """The time in the frame: a range that ends now, and the moment of the page."""

    request: web.Request
    range: str
    from_ns: int
    until_ns: int
    mark: int  # a number of BAR_STEPS
    moment: str  # empty: the present
    zone: ChosenZone
    unknown: int  # how far from the left no activity is remembered
    up: str  # paths of SVG: activity
    down: str  # paths of SVG: failures

    @property
    def ranges(self) -> list[str]:
        return list(RANGES)

    @property
    def kept_query(self) -> list[tuple[str, str]]:
        """Return the parts of the address that a form for another moment keeps."""
        return [(name, value) for name, value in self.request.query.items() if name in KEPT]

    def address(self, name: str) -> str:
        return str(self.request.rel_url.update_query(range=name))

    def percent(self, unix_ns: int) -> float:
        """Where a moment is; one outside is at the end that is nearer."""
        part = (unix_ns - self.from_ns) / (self.until_ns - self.from_ns)
        return round(100 * min(max(part, 0.0), 1.0), 2)

    @property
    def ticks(self) -> list[Tick]:
        return time_ticks(self.from_ns, self.until_ns, self.zone, MOST_TICKS)


def moment_or_none(at: str) -> int | None:
    try:
        return fields.moment_of_query(at)
    except problems.ApiError:  # the page says what is wrong with it
        return None


def _path(heights: dict[float, float], width: float, most: int, highest: float) -> str:
    """Bars that stand on the axis; ``highest`` is ``most`` high, downwards if that is positive."""
    return "".join(
        f"M{max(x, 0):.1f},{BAR_AXIS}v{most * min(1.0, height / highest):.1f}"
        f"h{width * 0.86 + min(x, 0):.1f}V{BAR_AXIS}z"
        for x, height in heights.items()
        if height > 0 and x + width * 0.86 > 0
    )


def series_of(figures: values.Figures) -> dict[str, float]:
    """The numbers that lines are drawn of."""
    work, fan_out = figures.work or {}, figures.fan_out or {}
    return {
        "planned": figures.schedule["jobs_planned"],
        "failed": figures.schedule["jobs_failed"],
        "ready": work.get("ready", 0),
        "leased": work.get("leased", 0),
        "dead": work.get("failed", 0),
        "lag": fan_out.get("items", 0),
    }
