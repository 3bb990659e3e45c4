"""Figures over time on the pages of the console: charts of a queue, a task, a timetable, a rule.

    /v1/series, /v1/summaries, the range of the time bar --> Shown --figures.html--> charts, errors

Every chart of a page has the range that the time bar shows; at a moment of the past it ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from aiohttp import web

from journeyman.protocols.workq.replies import JobView
from journeyman.servers.http import problems
from journeyman.servers.http.console import shown
from journeyman.servers.http.console.charts import Line, LineChart, Tick, time_ticks
from journeyman.servers.http.console.drawing import api_call, chosen_zone
from journeyman.servers.http.console.time_bar import TimeRange
from journeyman.servers.http.v1 import series, values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.units import MS_PER_S, NS_PER_S

SHOWN_ERRORS: Final = 8
SHOWN_JOBS: Final = 6
MOST_LABEL: Final = 60
MOST_TASKS: Final = 500
Kind: TypeAlias = Literal["queue", "task", "rule", "timetable"]
FIGURES: Final = "completed,failures,ready,wait_p50,wait_p99,run_p50,run_p99"
# When a figure needs a person.
FAILING_RATE: Final = 0.05
FAILING_LEAST: Final = 3
WAITING_MS: Final = 60_000


class ErrorBar(NamedTuple):
    name: str
    number: int
    share: float  # percent of all


@dataclass(frozen=True, slots=True)
class Shown:
    """The figures of one thing in a range of time, as a page shows them."""

    words: str
    charts: Sequence[LineChart]
    ticks: Sequence[Tick]
    errors: list[ErrorBar]
    failures: int
    is_empty: bool
    note: str = ""
    summary: series.Summary | None = None
    slowest: list[JobView] = field(default_factory=list)
    latest_failed: list[JobView] = field(default_factory=list)


class FigurePages:
    def __init__(self, version: VersionOne) -> None:
        self._v1 = version

    async def charts_for(
        self, request: web.Request, subject: str, range_: TimeRange
    ) -> Shown | None:
        """Return the charts of a subject. None: this server counts no figures."""
        query = series.SeriesQuery(
            subject, f"{FIGURES},{series.ERRORS}", str(range_.from_ns), str(range_.until_ns)
        )
        try:
            found = await self._v1.series.series(api_call(request, query))
        except problems.ApiError:
            return None
        kind, _, name = subject.partition(":")
        detail = await self._detail(request, kind, name, range_)
        zone = chosen_zone(request)
        return Shown(
            range_.words,
            charts_of(found, None if detail is None else detail.summary),
            time_ticks(found.times_s[0] * NS_PER_S, range_.until_ns, zone),
            *_errors_of(found.errors or {}),
            is_empty=not any(any(row) for row in found.figures.values()),
            note=_note_of(found),
            summary=None if detail is None else detail.summary,
            slowest=await self._jobs(request, () if detail is None else detail.slowest),
            latest_failed=await self._jobs(request, () if detail is None else detail.latest_failed),
        )  # fmt: skip

    async def _detail(
        self, request: web.Request, kind: str, name: str, range_: TimeRange
    ) -> series.Detail | None:
        query = series.RangeQuery(str(range_.from_ns), str(range_.until_ns))
        call = api_call(request, query, path={"of": kind, "name": name})
        try:
            return await self._v1.series.detail(call)
        except problems.ApiError:  # nothing happened in that time
            return None

    async def _jobs(
        self, request: web.Request, examples: Iterable[series.ExampleJob]
    ) -> list[JobView]:
        """Return the examples that still exist; jobs of the schedule have pages of their own."""
        found = []
        query = values.MomentQuery(request.query.get("at", ""))
        for job_id in list(dict.fromkeys(example.id for example in examples))[:SHOWN_JOBS]:
            try:
                call = api_call(request, query, path={"job": job_id})
                found.append(await self._v1.work.job(call))
            except problems.ApiError:
                continue
        return found

    async def rows(
        self, request: web.Request, by: Kind, range_: TimeRange, prefix: str = ""
    ) -> list[series.Summary]:
        """All queues, tasks, rules or timetables with their figures; nothing if nobody counts."""
        query = series.FiguresQuery(
            by=by, begin=str(range_.from_ns), to=str(range_.until_ns), prefix=prefix,
            limit=MOST_TASKS,
        )  # fmt: skip
        try:
            return (await self._v1.series.summaries(api_call(request, query))).rows
        except problems.ApiError:
            return []


def is_failing(row: series.Summary) -> bool:
    return row.failures >= FAILING_LEAST and (row.failure_rate or 0) >= FAILING_RATE


def is_waiting(row: series.Summary) -> bool:
    return (row.wait_p50 or 0) >= WAITING_MS


def worst_first(rows: Sequence[series.Summary]) -> list[series.Summary]:
    """Failing ones by their rate, then waiting ones by their wait, then the others by name."""
    return sorted(
        rows,
        key=lambda row: (
            -(row.failure_rate or 0) if is_failing(row) else 0,
            -(row.wait_p50 or 0) if is_waiting(row) else 0,
            row.name,
        ),
    )


def main_error(row: series.Summary) -> str:
    return max(row.errors, key=lambda name: row.errors[name], default="")


def charts_of(answer: series.SeriesAnswer, summary: series.Summary | None) -> list[LineChart]:
    """Rate, failures, depth, wait and run time; the last three only if there is any."""
    completed, failures = (answer.figures[name] for name in ("completed", "failures"))
    minutes = answer.step_s / 60
    rate = [
        ((done or 0) + (failed or 0)) / minutes
        for done, failed in zip(completed, failures, strict=True)
    ]
    count = int(sum(each or 0 for each in failures))
    whole = int(sum(each or 0 for each in completed)) + count
    per_minute = whole / max(1.0, (answer.to_ns - answer.begin_ns) / NS_PER_S / 60)
    made = [
        LineChart("Rate", [Line("", rate, "", True)], shown.few_digits,
                  f"{shown.few_digits(per_minute)} a minute",
                  f"{shown.number(whole)} attempts"),
        LineChart("Failures", _lines_of_failures(failures, answer.errors or {}), shown.number,
                  shown.percent(count / whole if whole else None),
                  f"{shown.number(count)} of {shown.number(whole)} attempts", count > 0),
    ]  # fmt: skip
    ready = answer.figures["ready"]
    if any(ready):
        most = max(value or 0 for value in ready)
        made.append(
            LineChart("Ready", [Line("", ready, "", True)], shown.number,
                      f"{shown.number(_last(ready))} at the end", f"at most {shown.number(most)}")
        )  # fmt: skip
    for what in ("wait", "run"):
        middle, high = (answer.figures[f"{what}_{part}"] for part in ("p50", "p99"))
        if not any(high):
            continue
        lines = [Line("p99", high, "second"), Line("p50", middle)]
        median, slow = (
            getattr(summary, f"{what}_{part}") if summary is not None else _last(row)
            for part, row in (("p50", middle), ("p99", high))
        )
        made.append(
            LineChart(
                what.capitalize(), lines, shown.milliseconds, shown.milliseconds(median),
                f"p99 {shown.milliseconds(slow)}",
            )
        )  # fmt: skip
    return made


def _lines_of_failures(
    failures: Sequence[float | None], errors: dict[str, list[int]]
) -> list[Line]:
    """Return the failures of the most frequent class of error, and all others; without classes,
    all."""
    if not errors:
        return [Line("", failures, "wrong", True)]
    main = max(errors, key=lambda name: sum(errors[name]))
    others = [(all_ or 0) - of_main for all_, of_main in zip(failures, errors[main], strict=True)]
    lines = [Line(main[:MOST_LABEL], errors[main], "wrong", True)]
    return [*lines, Line("others", others, "wrong second")] if any(others) else lines


def _last(row: Sequence[float | None]) -> float | None:
    """The latest figure that is known."""
    return next((value for value in reversed(row) if value is not None), None)


def _errors_of(errors: dict[str, list[int]]) -> tuple[list[ErrorBar], int]:
    counts = {name: sum(row) for name, row in errors.items()}
    whole = sum(counts.values())
    largest = sorted(counts, key=lambda name: -counts[name])[:SHOWN_ERRORS]
    bars = [
        ErrorBar(name, counts[name], round(100 * counts[name] / max(1, whole), 1))
        for name in largest
    ]
    return bars, whole


def _note_of(answer: series.SeriesAnswer) -> str:
    known_ns = answer.known_from_ns
    if known_ns is None or known_ns <= answer.begin_ns + MS_PER_S * NS_PER_S:
        return ""
    return "What came before is not in the log any more."
