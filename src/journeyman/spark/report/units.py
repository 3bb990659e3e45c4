"""Numbers, durations, sizes and times as people read them.

    count    7   1,204   2,400,000
    ns       350 µs   12 ms   1.3 s   4.5 min   2.1 h   3 d
    bytes    512 B   1.8 KiB   73 MiB

A value that stands alone has the unit that suits it (``format_value``). Values that are compared
with each other, a column of a table, all have the same (``column_unit``, ``format_in``). The script
of the page does the same for the values that a chart shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

Unit: TypeAlias = tuple[int, str]  # the size of one unit, and its name
MINUTE_NS: Final = 60 * 10**9
DAY_NS: Final = 24 * 60 * MINUTE_NS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_EXACT: Final = 10**9  # counts below this are written digit by digit
_LEAST_IN_COLUMN: Final = 0.001  # a column has three digits after the point
_NS_UNITS: Final = (
    (1, "ns"),
    (10**3, "µs"),
    (10**6, "ms"),
    (10**9, "s"),
    (MINUTE_NS, "min"),
    (60 * MINUTE_NS, "h"),
    (DAY_NS, "d"),
)
_UNITS: Final = {
    "ns": _NS_UNITS,
    "bytes": ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB")),
    "count": ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G")),
}


def format_value(value: float | None, unit: str) -> str:
    """A value that stands alone. ``unit``: count, ns or bytes."""
    if value is None:
        return "-"
    if unit == "count" and abs(value) < _MOST_EXACT:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    units: Sequence[Unit] = _UNITS[unit]
    size, name = next((each for each in reversed(units) if abs(value) >= each[0]), units[0])
    number = value / size
    digits = 0 if abs(number) >= 100 or size == 1 else 1
    return _with_unit(f"{number:,.{digits}f}".removesuffix(".0"), name)


def format_count(number: int) -> str:
    return format_value(number, "count")


def format_share(part: int, total: int) -> str:
    """A share in percent; of nothing it is a dash."""
    return f"{100 * part / total:.1f} %" if total else "-"


def column_unit(values: Iterable[float | None], unit: str) -> Unit:
    """The one unit of a column: the largest in which no value vanishes. Seconds at most."""
    if unit == "count":
        return (1, "")
    least = min((abs(value) for value in values if value), default=0)
    units = [each for each in _UNITS[unit] if each[0] <= 10**9 or unit == "bytes"]
    fitting = [each for each in units if least / each[0] >= _LEAST_IN_COLUMN]
    return fitting[-1] if fitting else units[0]


def format_in(value: float | None, unit: Unit) -> str:
    """A value in a given unit, which the heading of its column names."""
    if value is None:
        return "-"
    return f"{value / unit[0]:,.3f}".rstrip("0").rstrip(".")


def _with_unit(text: str, name: str) -> str:
    return text if text == "0" else f"{text} {name}".rstrip()


def format_length(ns: int) -> str:
    """A round duration in words: 5 minutes, hour."""
    words = ("nanosecond", "microsecond", "millisecond", "second", "minute", "hour", "day")
    at = max(place for place, (size, _) in enumerate(_NS_UNITS) if ns % size == 0)
    number = ns // _NS_UNITS[at][0]
    return words[at] if number == 1 else f"{number} {words[at]}s"


def format_moment(ns: int) -> str:
    """Write a time to the second, or finer if it is finer, in UTC."""
    moment = moment_at(ns)
    if moment is None:
        return f"{ns} ns"
    fraction = f".{ns % 10**9 // 10**6:03d}" if ns % 10**9 else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction}"


def moment_at(ns: int) -> datetime | None:
    """None beyond the years that Python's calendar knows."""
    try:
        return _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError:
        return None
