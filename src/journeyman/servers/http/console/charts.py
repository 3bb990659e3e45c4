"""Charts as SVG that needs no script: lines, areas, and the labels of their axes.

    values at equal steps --> LineChart --parts.html--> SVG; the drawing is stretched, not its text

The drawing has one unit of width per step; ``console.js`` reads the values from the element and
adds a cursor that all charts of a page share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

import msgspec

from journeyman.servers.http.console import shown
from journeyman.servers.http.console.moments import ChosenZone
from journeyman.units import DAY_S, MS_PER_S, NS_PER_S

HEIGHT: Final = 104
SPARK_WIDTH: Final = 240.0
SPARK_HEIGHT: Final = 44.0
MOST_TICKS: Final = 8
# Distances between labels of a time axis, and how these are written.
_TICKS: Final = (
    *((60, "%H:%M"), (300, "%H:%M"), (600, "%H:%M"), (1800, "%H:%M"), (3600, "%H:%M")),
    *((3 * 3600, "%H:%M"), (6 * 3600, "%H:%M"), (DAY_S, "%a %d"), (2 * DAY_S, "%d %b")),
    *((7 * DAY_S, "%d %b"), (14 * DAY_S, "%d %b"), (28 * DAY_S, "%d %b")),
)

LONGEST_PLAIN_MS: Final = 50_000
LOWER_LINE_PER_TOP: Final = 2.5  # the lower line of a grid is at two fifths of its height
_LOWER_LINES_S: Final = (
    *(30, 60, 120, 300, 600, 1200, 1800, 3600, 2 * 3600, 4 * 3600, 6 * 3600, 12 * 3600),
    *(DAY_S, 2 * DAY_S, 5 * DAY_S, 10 * DAY_S, 30 * DAY_S, 100 * DAY_S),
)

Values: TypeAlias = Sequence[float | None]  # None: not known


def round_above(value: float) -> float:
    """The first of 1, 2, 2.5, 5, 10 and so on that is not below it; 1 for nothing."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value * 0.999999)


def count_above(value: float) -> float:
    """Return the top of a chart of counts: the lines of the grid stand for whole numbers."""
    return max(5.0, round_above(value))


def length_above(ms: float) -> float:
    """Return the top of a chart of milliseconds: the lines of the grid stand for round times."""
    tops = (LOWER_LINE_PER_TOP * MS_PER_S * line_s for line_s in _LOWER_LINES_S)
    return round_above(ms) if ms <= LONGEST_PLAIN_MS else next((t for t in tops if t >= ms), ms)


# By the function that writes a value.
_ABOVE: Final[dict[Callable[[float | None], str], Callable[[float], float]]] = {
    shown.number: count_above,
    shown.milliseconds: length_above,
}


class Line(NamedTuple):
    """``look`` is a class of the style sheet: empty, second, usual, wrong."""

    label: str
    values: Values
    look: str = ""
    is_area: bool = False


class Tick(NamedTuple):
    percent: float
    text: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over the same steps, from zero to a round number above the highest value."""

    title: str
    lines: Sequence[Line]
    write: Callable[[float | None], str] = shown.number
    reading: str = ""  # the figure beside it, in words
    note: str = ""
    is_wrong: bool = False

    @property
    def steps(self) -> int:
        return max((len(line.values) for line in self.lines), default=0)

    @property
    def top(self) -> float:
        known = [value for line in self.lines for value in line.values if value is not None]
        return _ABOVE.get(self.write, round_above)(max(known, default=0.0))

    @property
    def grid(self) -> list[Tick]:
        """Two lines with what they stand for; the percentage is that from above."""
        return [Tick(100 * (1 - share), self.write(self.top * share)) for share in (0.4, 0.8)]

    def path(self, line: Line) -> str:
        """A path for each stretch whose values are known."""
        return "".join(
            "M" + "L".join(f"{x},{y:.1f}" for x, y in part) + ("h.4" if len(part) == 1 else "")
            for part in self._parts(line)
        )

    def area(self, line: Line) -> str:
        return "".join(
            f"M{part[0][0]},{HEIGHT}L"
            + "L".join(f"{x},{y:.1f}" for x, y in part)
            + f"L{part[-1][0]},{HEIGHT}z"
            for part in self._parts(line)
        )

    def _parts(self, line: Line) -> Iterator[list[tuple[int, float]]]:
        for is_known, points in groupby(enumerate(line.values), lambda at: at[1] is not None):
            if is_known:
                scale = (HEIGHT - 2) / self.top
                yield [(x, HEIGHT - scale * value) for x, value in points if value is not None]

    @property
    def data(self) -> str:
        """The written values of every line as JSON, for the cursor."""
        rows = [[line.label, *(self.write(value) for value in line.values)] for line in self.lines]
        return msgspec.json.encode(rows).decode()


def time_ticks(from_ns: int, until_ns: int, zone: ChosenZone, most: int = MOST_TICKS) -> list[Tick]:
    """Labels at round local times, none of which runs out of the drawing."""
    from_s, until_s = from_ns // NS_PER_S, until_ns // NS_PER_S
    whole_s = max(1, until_s - from_s)
    step_s, form = next((each for each in _TICKS if whole_s / each[0] <= most), _TICKS[-1])
    shift_s = zone.offset_min(until_ns) * 60
    ticks = []
    for time_s in range(-(-(from_s + shift_s) // step_s) * step_s - shift_s, until_s, step_s):
        percent = round(100 * (time_s - from_s) / whole_s, 2)
        if percent < 96:
            local = zone.local(time_s * NS_PER_S)
            is_new_day = step_s < DAY_S and local.hour == local.minute == 0
            ticks.append(Tick(percent, f"{local:%a %d}" if is_new_day else f"{local:{form}}"))
    return ticks


def spark(values: Values) -> str:
    """The points of a polyline in a box of SPARK_WIDTH x SPARK_HEIGHT; empty: fewer than two."""
    if len(values) < 2:
        return ""
    numbers = [value or 0.0 for value in values]
    most, step = max(*numbers, 1e-9), SPARK_WIDTH / (len(numbers) - 1)
    return " ".join(
        f"{index * step:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * number / most:.1f}"
        for index, number in enumerate(numbers)
    )
