"""Cells of a range of time as the figures that were asked for.

    of        "work", "schedule", or a kind and a name: "task:shop.send_mail", "queue:mail",
              "rule:backup", "timetable:nightly"
    counts    added, started, completed, ..., in each step
    depths    scheduled, ready, running at the end of each step
    lengths   wait_p50, run_p99, ... in milliseconds, of the waits and runs that ended in the step
    shares    failure_rate: failures among the attempts that ended

Steps of less than an hour are made of minutes, which are known for two days; longer ones of hours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from journeyman.servers.series import cells as constants
from journeyman.servers.series.cells import Cell, CellBlock, key_parts
from journeyman.servers.series.figures import Value, figure
from journeyman.servers.series.files import KEPT_MINUTES_S
from journeyman.servers.series.follower import AnyLane
from journeyman.units import DAY_S, HOUR_S, MINUTE_S

KINDS: Final = ("queue", "task", "rule", "timetable")
SERVICES: Final = ("work", "schedule")  # all of one lane, without a name
STEPS_S: Final = (60, 300, 600, 1800, HOUR_S, 6 * HOUR_S, DAY_S)
USUAL_POINTS: Final = 300
MAX_POINTS: Final = 5_000
TREND_POINTS: Final = 30
MAX_OTHERS: Final = 100  # names of others in a row
MAX_FACETS: Final = 1_000  # names that a list of facets has


class Wanted(Struct):
    """``prefix``: names of queues, rules and timetables must begin with it."""

    kind: str
    name: str
    prefix: str
    from_s: int
    to_s: int
    step_s: int  # 0: one that gives a few hundred points
    within: str = ""  # this queue or rule alone


class FoundSeries(Struct):
    """``times_s`` are the beginnings of the steps; each list has a value for each."""

    step_s: int
    times_s: list[int]
    figures: dict[str, list[Value]]
    errors: dict[str, list[int]]
    known_from_s: int | None
    as_of_ns: int


class PageOfRows(Struct):
    """Rows whose name begins with ``prefix``, sorted by name or by the largest of a figure."""

    prefix: str
    sort: str
    skipped: int
    limit: int


class FoundSummary(Struct):
    """One thing in a range of time: all of it in one cell, and the ends of attempts over time."""

    name: str
    cell: Cell
    others: list[str]  # queues of a task, tasks of a queue, timetables of a rule; the first of them
    trend: list[int]


def usual_step_s(seconds: int) -> int:
    """The least step that gives no more than the usual number of points."""
    return next((step for step in STEPS_S if seconds <= step * USUAL_POINTS), STEPS_S[-1])


def read_series(lane: AnyLane, wanted: Wanted, figures: Sequence[str]) -> FoundSeries:
    step_s = wanted.step_s or usual_step_s(wanted.to_s - wanted.from_s)
    now_s = lane.now_s()
    uses_minutes = step_s % HOUR_S != 0 and wanted.from_s >= now_s - KEPT_MINUTES_S - HOUR_S
    if not uses_minutes:
        step_s = -(-step_s // HOUR_S) * HOUR_S
    begin_s = wanted.from_s // step_s * step_s
    times = list(range(begin_s, max(wanted.to_s, begin_s + 1), step_s))
    is_wanted = _filter_of(wanted)
    cells = [Cell() for _ in times]
    stood: list[tuple[int, ...] | None] = [None] * len(times)
    depths = _Depths(is_wanted)
    since_s = begin_s // HOUR_S * HOUR_S
    if (before := lane.hour_before(since_s)) is not None:
        depths.note(before)
        stood[0] = tuple(depths.total)
    for block in lane.blocks(since_s, wanted.to_s, uses_minutes=uses_minutes):
        depths.note(block)
        at = (block.begin_s - begin_s) // step_s
        if 0 <= at < len(times):
            for key, cell in block.cells.items():
                if is_wanted(key):
                    cells[at].add(cell)
        if at < len(times):
            stood[max(at, 0)] = tuple(depths.total)
    _carry_forward(stood, times, now_s)
    for cell, depth in zip(cells, stood, strict=True):
        cell.set_depth(depth or (0, 0, 0))
    return FoundSeries(
        step_s,
        times,
        {
            name: [
                None if name in constants.DEPTHS and depth is None else figure(cell, name)
                for cell, depth in zip(cells, stood, strict=True)
            ]
            for name in figures
        },
        _errors_of(cells),
        lane.known_from_s(),
        lane.read_to_end_ns,
    )


def _errors_of(cells: Sequence[Cell]) -> dict[str, list[int]]:
    """Failures in each step, of the classes with most of them; each cell may name others."""
    total = Counter[str]()
    for cell in cells:
        total.update(cell.errors)
    of_others = total.pop(constants.OTHERS, 0)
    shown = sorted(error for error, _ in total.most_common(constants.MAX_ERRORS))
    found = {error: [cell.errors.get(error, 0) for cell in cells] for error in shown}
    if of_others or len(total) > len(shown):
        named = [sum(counts) for counts in zip(*found.values(), strict=True)] or [0] * len(cells)
        whole = [sum(cell.errors.values()) for cell in cells]
        found[constants.OTHERS] = [all_ - part for all_, part in zip(whole, named, strict=True)]
    return found


def turn_to_page(rows: list[FoundSummary], page: PageOfRows) -> tuple[list[FoundSummary], int]:
    """Return the rows of a page, and how many there are in all pages."""
    rows = [row for row in rows if row.name.startswith(page.prefix)]
    if page.sort != "name":
        by = page.sort.removeprefix("-")
        rows.sort(key=lambda row: -(figure(row.cell, by) or 0))
    return rows[page.skipped : page.skipped + page.limit], len(rows)


def count_lately(
    of_queues: list[FoundSummary], of_tasks: list[FoundSummary]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return attempts by task, and failures by class of error: those with most."""
    tasks = Counter({row.name: row.cell.started for row in of_tasks})
    errors = Counter[str]()
    for row in of_queues:
        errors.update(row.cell.errors)
    return dict(tasks.most_common(MAX_FACETS)), dict(errors.most_common(MAX_FACETS))


def summarize(lane: AnyLane, wanted: Wanted) -> list[FoundSummary]:
    """Everything of this kind that something happened to, or that has jobs, by name."""
    span_s = max(wanted.to_s - wanted.from_s, MINUTE_S)
    uses_minutes = span_s <= KEPT_MINUTES_S and wanted.from_s >= lane.now_s() - KEPT_MINUTES_S
    if wanted.kind in ("task", "timetable"):
        own, other = 2, 1
    else:
        own, other = 1, 2
    unit_s = MINUTE_S if uses_minutes else HOUR_S
    begin_s = wanted.from_s // unit_s * unit_s
    found: dict[str, FoundSummary] = {}
    others: dict[str, dict[str, None]] = {}
    is_wanted = _filter_of(wanted)
    for block in lane.blocks(begin_s, wanted.to_s, uses_minutes=uses_minutes):
        at = min((block.begin_s - wanted.from_s) * TREND_POINTS // span_s, TREND_POINTS - 1)
        for key, cell in block.cells.items():
            parts = key_parts(key)
            name = parts[own]
            if not name or not is_wanted(key):
                continue
            row = found.get(name)
            if row is None:
                row = found[name] = FoundSummary(name, Cell(), [], [0] * TREND_POINTS)
                others[name] = {}
            row.cell.add(cell)
            row.trend[max(at, 0)] += cell.completed + cell.failed + cell.timed_out + cell.cut_off
            others[name][parts[other]] = None
    for name, row in found.items():
        row.others = sorted(other for other in others[name] if other)[:MAX_OTHERS]
    for key, depth in lane.counts.depths.items():  # as they are now
        row = found.get(key_parts(key)[own])
        if row is not None and is_wanted(key):
            row.cell.scheduled += depth[0]
            row.cell.ready += depth[1]
            row.cell.running += depth[2]
    return [found[name] for name in sorted(found)]


def _filter_of(wanted: Wanted) -> Callable[[str], bool]:
    """A test whether a key is asked for, and visible."""
    kind, name, prefix = wanted.kind, wanted.name, wanted.prefix
    of_first = kind in ("queue", "rule")
    known: dict[str, bool] = {}

    def is_wanted(key: str) -> bool:
        answer = known.get(key)
        if answer is None:
            _, first, second = key_parts(key)
            visible = first.startswith(prefix) if kind != "timetable" else second.startswith(prefix)
            if first == "" and kind in ("schedule", "rule"):
                visible = second.startswith(prefix)
            visible = visible and wanted.within in ("", first)
            fits = not name or (first if of_first else second) == name
            answer = known[key] = visible and fits
        return answer

    return is_wanted


class _Depths:
    """How many jobs are scheduled, ready and running, of all wanted keys together."""

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted
        self._of_keys: dict[str, tuple[int, int, int]] = {}
        self.total = [0, 0, 0]

    def note(self, block: CellBlock) -> None:
        if block.is_whole:
            for key in self._of_keys.keys() - block.cells.keys():
                self._set(key, (0, 0, 0))
        for key, cell in block.cells.items():
            if self._is_wanted(key):
                self._set(key, (cell.scheduled, cell.ready, cell.running))

    def _set(self, key: str, depth: tuple[int, int, int]) -> None:
        before = self._of_keys.get(key, (0, 0, 0))
        for place in range(3):
            self.total[place] += depth[place] - before[place]
        self._of_keys[key] = depth


def _carry_forward(stood: list[tuple[int, ...] | None], times: Sequence[int], now_s: int) -> None:
    """Where nothing happened, depths are as they were; what is to come is not known."""
    last: tuple[int, ...] | None = None
    for at, begin_s in enumerate(times):
        if begin_s > now_s:
            return
        last = stood[at] = stood[at] or last
