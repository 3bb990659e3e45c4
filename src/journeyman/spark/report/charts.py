r"""Charts as inline SVG: one picture of 640 by 240 units that fits any width.

    +--------------------------------------+
    | -------------------------------  400 |   horizontal lines, each with its value
    | ----------/\-------------------  200 |   series: lines, or stacked bars
    | -------------------------------    0 |
    |   12:00      12:30      13:00        |   times
    +--------------------------------------+

Invisible strips lie over the series, one per bucket: they carry the values as text, which browsers
show as a tooltip; the script of the page makes a better one of it. Colours and text sizes are up to
the style of the page. All texts are escaped here.

Lines that coincide stay visible: the first series is the thinnest and lies on top, and each further
one is a little wider than the one above it. Buckets that the logs cover only in part are shaded,
and lines into them are dashed. A logarithmic axis has a place for 0 below its lowest tick.

Numbers, durations, sizes and times are written as people read them:

    count    7   1,204   2,400,000
    ns       350 µs   12 ms   1.3 s   4.5 min   2.1 h   3 d
    bytes    512 B   1.8 KiB   73 MiB

A value that stands alone has the unit that suits it (``shown``). Values that are compared with each
other, the ticks of an axis or a column of a table, all have the same (``axis_unit``,
``column_unit``, ``shown_in``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from journeyman.spark.report.page import Bars, Chart, Series

Unit: TypeAlias = tuple[int, str]  # what one of it is, and its name
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_NS = 60 * 10**9
_DAY_NS = 24 * 60 * _MINUTE_NS
_MOST_EXACT = 10**9  # counts below this are shown digit by digit
_MOST_EXACT_TICK = 100_000
_LEAST_IN_COLUMN = 0.001  # digits of a column after the point: three
_NS_UNITS = (
    (1, "ns"),
    (10**3, "µs"),
    (10**6, "ms"),
    (10**9, "s"),
    (_MINUTE_NS, "min"),
    (60 * _MINUTE_NS, "h"),
    (_DAY_NS, "d"),
)
_LOG_NS = (
    *(10.0**power for power in range(11)),
    *(_MINUTE_NS * 1.0, _MINUTE_NS * 10.0, _MINUTE_NS * 60.0, _MINUTE_NS * 600.0),
    *(_DAY_NS * 10.0**power for power in range(5)),
)
_BYTE_UNITS = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
_COUNT_UNITS = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"))
_STEPS_NS = (
    *(step * 10**6 for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(step * 10**9 for step in (1, 2, 5, 10, 15, 30)),
    *(step * _MINUTE_NS for step in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *(step * _DAY_NS for step in (1, 2, 7, 14, 28, 61, 91, 182, 365, 730, 3650)),
)
WIDTH, HEIGHT = 640, 240
_TOP, _BOTTOM, _LEFT, _RIGHT = 10, 208, 0, 566
_ROW = 34  # of Bars
_DOT = 3


def shown(value: float | None, unit: str) -> str:
    """A value that stands alone. ``unit``: count, ns or bytes."""
    if value is None:
        return "-"
    if unit == "count" and abs(value) < _MOST_EXACT:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    size, name = _fitting(value, _units(unit))
    number = value / size
    digits = 0 if abs(number) >= 100 or size == 1 else 1
    return _with_unit(f"{number:,.{digits}f}".removesuffix(".0"), name)


def axis_unit(highest: float, unit: str) -> Unit:
    """The one unit of all ticks of a linear axis: that of its highest value."""
    if unit == "count" and highest < _MOST_EXACT_TICK:
        return (1, "")
    return _fitting(highest, _units(unit))


def column_unit(values: Iterable[float | None], unit: str) -> Unit:
    """The one unit of a column: the largest in which no value vanishes. Seconds at most."""
    if unit == "count":
        return (1, "")
    least = min((abs(value) for value in values if value), default=0)
    units = [each for each in _units(unit) if each[0] <= 10**9 or unit == "bytes"]
    fitting = [each for each in units if least / each[0] >= _LEAST_IN_COLUMN]
    return fitting[-1] if fitting else units[0]


def shown_in(value: float | None, unit: Unit, *, named: bool = False) -> str:
    """A value in a given unit; with its name unless the heading has it."""
    if value is None:
        return "-"
    text = f"{value / unit[0]:,.3f}".rstrip("0").rstrip(".")
    return _with_unit(text, unit[1]) if named else text


def _units(unit: str) -> tuple[Unit, ...]:
    return {"ns": _NS_UNITS, "bytes": _BYTE_UNITS}.get(unit, _COUNT_UNITS)


def _fitting(value: float, units: Sequence[Unit]) -> Unit:
    return next((each for each in reversed(units) if abs(value) >= each[0]), units[0])


def _with_unit(text: str, name: str) -> str:
    """Nothing has no unit."""
    return text if text == "0" else f"{text} {name}".rstrip()


def length(ns: int) -> str:
    """A round duration in words: 5 minutes, hour."""
    words = ("nanosecond", "microsecond", "millisecond", "second", "minute", "hour", "day")
    at = max(place for place, (size, _) in enumerate(_NS_UNITS) if ns % size == 0)
    number = ns // _NS_UNITS[at][0]
    return words[at] if number == 1 else f"{number} {words[at]}s"


def moment(ns: int) -> str:
    """To the second, or finer if it is finer, in UTC."""
    text = _datetime(ns)
    if text is None:
        return f"{ns} ns"
    rest = ns % 10**9
    fraction = f".{rest // 10**6:03d}" if rest else ""
    return f"{text:%Y-%m-%d %H:%M:%S}{fraction}"


def tick_moment(ns: int, step_ns: int) -> str:
    """A time on an axis whose ticks are ``step_ns`` apart."""
    when = _datetime(ns)
    if when is None:
        return ""
    if step_ns >= 28 * _DAY_NS:
        return f"{when:%b %Y}"
    if step_ns >= _DAY_NS:
        return f"{when.day} {when:%b}"
    if step_ns >= _MINUTE_NS:
        return f"{when:%H:%M}"
    if step_ns >= 10**9:
        return f"{when:%H:%M:%S}"
    return f"{when:%S}.{ns % 10**9 // 10**6:03d}"


def time_ticks(first_ns: int, last_ns: int, most: int = 6) -> tuple[list[int], int]:
    """Round times between the two, and how far apart they are."""
    span = max(last_ns - first_ns, 1)
    step = next((each for each in _STEPS_NS if span // each < most), span)
    first = -(-first_ns // step) * step
    return list(range(first, last_ns + 1, step)), step


def value_ticks(highest: float, unit: str, most: int = 5) -> list[float]:
    """0 and values that are round in the unit of the axis, up to or beyond ``highest``."""
    if highest <= 0:
        return [0.0, 1.0]
    scale = axis_unit(highest, unit)[0] if unit != "count" else 1
    step = _round_step(highest / (most - 1) / scale) * scale
    if unit == "count":
        step = max(step, 1.0)
    return [number * step for number in range(math.ceil(highest / step) + 1)]


def log_ticks(lowest: float, highest: float, unit: str) -> list[float]:
    """Powers of ten around the values; of durations, round ones in their units."""
    if unit == "ns":
        below = max((tick for tick in _LOG_NS if tick <= lowest), default=_LOG_NS[0])
        above = min((tick for tick in _LOG_NS if tick >= highest), default=_LOG_NS[-1])
        return [tick for tick in _LOG_NS if below <= tick <= max(above, below * 10)]
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _round_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, not less than ``step``."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _datetime(ns: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError:
        return None


_Scale = Callable[[float], float]
_numbers = count(1)


def chart_svg(chart: Chart) -> str:
    """The picture of a chart that is not empty."""
    name = f"chart{next(_numbers)}"
    ticks, y = _vertical(chart)
    step = (_RIGHT - _LEFT) / len(chart.times_ns)
    draw = _bars if chart.kind == "bars" else _lines
    body = [*_shades(chart, step), *_grid(ticks, y), *_moments(chart)]
    body += [*draw(chart, y, step), *_strips(chart, step)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}t {name}d">'
        f'<title id="{name}t">{escape(chart.title)}</title>'
        f'<desc id="{name}d">{escape(_description(chart))}</desc>{"".join(body)}</svg>'
    )


def _description(chart: Chart) -> str:
    ranges = []
    for series in chart.series:
        values = [value for value in series.values if value is not None]
        if values:
            least, most = (shown(edge, chart.unit) for edge in (min(values), max(values)))
            ranges.append(f"{series.name} from {least} to {most}")
    last = chart.times_ns[-1] + chart.bucket_ns
    return f"{moment(chart.times_ns[0])} to {moment(last)} UTC: {'; '.join(ranges)}."


def _vertical(chart: Chart) -> tuple[dict[float, str], _Scale]:
    """The ticks with their texts, and where a value is drawn."""
    values = [value for series in chart.series for value in series.values if value is not None]
    if chart.kind == "bars":
        values = [sum(s.values[at] or 0 for s in chart.series) for at in range(len(chart.times_ns))]
    if chart.logarithmic and max(values) > 0:
        lowest = min((value for value in values if value > 0), default=1)
        ticks = log_ticks(lowest, max(values), chart.unit)
        texts = {tick: shown(tick, chart.unit) for tick in ticks}
        low, high = math.log10(ticks[0]), math.log10(ticks[-1])
        if min(values) > 0:
            return texts, lambda value: _between(math.log10(value), low, high)
        zero = low - (high - low) / len(ticks)  # as far below the lowest tick as ticks are apart
        return {0.0: "0", **texts}, lambda value: _between(
            math.log10(value) if value > 0 else zero, zero, high
        )
    ticks = value_ticks(max(values), chart.unit)
    unit = axis_unit(max(values), chart.unit)
    texts = {tick: shown_in(tick, unit, named=True) for tick in ticks}
    return texts, lambda value: _between(value, 0, ticks[-1])


def _between(value: float, low: float, high: float) -> float:
    return _BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP)


def _shades(chart: Chart, step: float) -> Iterator[str]:
    for at in sorted(chart.partial):
        place = f'x="{_LEFT + at * step:.2f}" y="{_TOP}" width="{step:.2f}"'
        yield f'<rect class="partial" {place} height="{_BOTTOM - _TOP}"/>'


def _grid(ticks: Mapping[float, str], y: _Scale) -> Iterator[str]:
    for tick, text in ticks.items():
        at = f"{y(tick):.1f}"
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{at}" y2="{at}"/>'
        place = f'x="{_RIGHT + 8}" y="{y(tick) + 4:.1f}"'
        yield f'<text class="tick" {place}>{text}</text>'


def _moments(chart: Chart) -> Iterator[str]:
    first, last = chart.times_ns[0], chart.times_ns[-1] + chart.bucket_ns
    ticks, step_ns = time_ticks(first, last)
    for tick in ticks:
        x = _LEFT + (tick - first) / (last - first) * (_RIGHT - _LEFT)
        anchor = "start" if x < 40 else "end" if x > _RIGHT - 20 else "middle"
        text = escape(tick_moment(tick, step_ns))
        place = f'x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}"'
        yield f'<text class="tick" {place}>{text}</text>'


def _lines(chart: Chart, y: _Scale, step: float) -> Iterator[str]:
    for number, series in reversed(list(enumerate(chart.series))):
        for run in _runs(series):
            points = [(_LEFT + (at + 0.5) * step, y(value)) for at, value in run]
            if len(points) == 1:
                place = f'cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}"'
                yield f'<circle class="dot {series.tone}" {place} r="{_DOT + number}"/>'
                continue
            if len(chart.series) == 1:
                first, last = (f"{points[end][0]:.1f} {_BOTTOM}" for end in (0, -1))
                yield f'<path class="area {series.tone}" d="M{first}L{_path(points)}L{last}Z"/>'
            tone = f"line width{number} {series.tone}"
            whole = [at not in chart.partial for at, _ in run]
            begin = 0 if whole[0] else 1
            end = len(points) if whole[-1] else len(points) - 1
            if begin:
                yield f'<path class="{tone} dashed" d="M{_path(points[:2])}"/>'
            if end - begin > 1:
                yield f'<path class="{tone}" d="M{_path(points[begin:end])}"/>'
            if end < len(points) and len(points) > begin + 1:
                yield f'<path class="{tone} dashed" d="M{_path(points[-2:])}"/>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {height:.1f}" for x, height in points)


def _runs(series: Series) -> Iterator[list[tuple[int, float]]]:
    """Stretches of values without a gap; lines do not bridge gaps."""
    run: list[tuple[int, float]] = []
    for at, value in enumerate(series.values):
        if value is None:
            if run:
                yield run
            run = []
        else:
            run.append((at, value))
    if run:
        yield run


def _bars(chart: Chart, y: _Scale, step: float) -> Iterator[str]:
    gap = min(step * 0.2, 2)
    for at in range(len(chart.times_ns)):
        below = 0.0
        for series in chart.series:
            value = series.values[at] or 0
            if value > 0:
                top, bottom = y(below + value), y(below)
                pale = " pale" if at in chart.partial else ""
                yield (
                    f'<rect class="bar {series.tone}{pale}" x="{_LEFT + at * step + gap / 2:.1f}" '
                    f'y="{top:.1f}" width="{step - gap:.1f}" height="{bottom - top:.1f}"/>'
                )
            below += value


def bucket_name(chart: Chart, at: int) -> str:
    """When it begins, and whether it is not a whole one."""
    return moment(chart.times_ns[at]) + (" (partial)" if at in chart.partial else "")


def _strips(chart: Chart, step: float) -> Iterator[str]:
    for at in range(len(chart.times_ns)):
        values = "\n".join(
            f"{series.name}: {shown(series.values[at], chart.unit)}" for series in chart.series
        )
        yield (
            f'<rect class="hit" x="{_LEFT + at * step:.2f}" y="0" width="{step:.2f}" '
            f'height="{_BOTTOM}"><title>{escape(bucket_name(chart, at))}\n{escape(values)}'
            "</title></rect>"
        )


def bars_svg(bars: Bars) -> str:
    """One bar per row, its label above it."""
    name = f"bars{next(_numbers)}"
    most = max((sum(values) for _, values in bars.rows), default=0) or 1
    body: list[str] = []
    for at, (label, values) in enumerate(bars.rows):
        body += _row(bars, label, values, at * _ROW, most)
    height = max(len(bars.rows) * _ROW, _ROW)
    text = "; ".join(f"{label}: {_parts(bars, values)}" for label, values in bars.rows)
    return (
        f'<svg class="rows" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{name}t {name}d"><title id="{name}t">{escape(bars.title)}</title>'
        f'<desc id="{name}d">{escape(text)}</desc>{"".join(body)}</svg>'
    )


def _row(bars: Bars, label: str, values: Sequence[float], top: int, most: float) -> Iterator[str]:
    total = shown(sum(values), bars.unit)
    yield f'<text class="label" x="0" y="{top + 14}">{escape(_short(label))}</text>'
    yield f'<text class="value" x="{WIDTH}" y="{top + 14}" text-anchor="end">{total}</text>'
    yield f'<rect class="track" x="0" y="{top + 20}" width="{WIDTH}" height="6" rx="3"/>'
    x = 0.0
    for (_, tone), value in zip(bars.parts, values, strict=True):
        width = value / most * WIDTH
        if width > 0:
            yield (
                f'<rect class="bar {tone}" x="{x:.1f}" y="{top + 20}" '
                f'width="{max(width, 1):.1f}" height="6"/>'
            )
        x += width
    yield (
        f'<rect class="hit" x="0" y="{top}" width="{WIDTH}" height="{_ROW}">'
        f"<title>{escape(label)}\n{escape(_parts(bars, values))}</title></rect>"
    )


def _parts(bars: Bars, values: Sequence[float]) -> str:
    named = zip(bars.parts, values, strict=True)
    return "\n".join(f"{name}: {shown(value, bars.unit)}" for (name, _), value in named)


def _short(label: str, most: int = 60) -> str:
    """A long name loses its beginning: the end says more."""
    return label if len(label) <= most else "…" + label[1 - most :]
