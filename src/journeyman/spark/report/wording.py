"""Numbers, durations, sizes and times as people read them; and round numbers for axes.

count    7   1,204   2,400,000
ns       350 µs   12 ms   1.3 s   4.5 min   2.1 h   3 d
bytes    512 B   1.8 KiB   73 MiB

A value that stands alone has the unit that suits it (``shown``). Values that are compared with each
other, the ticks of an axis or a column of a table, all have the same (``axis_unit``,
``column_unit``, ``shown_in``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

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
