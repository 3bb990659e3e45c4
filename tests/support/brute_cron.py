"""Cron expressions read minute by minute, with nothing in common with the code under test."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_MINUTE = timedelta(minutes=1)


def brute(expression: str, zone_name: str, begin: datetime, end: datetime) -> list[int]:
    """The occurrences in (begin, end], by looking at every minute of it."""
    minutes = expression.split()
    is_fixed = not (minutes[0].startswith("*") or minutes[1].startswith("*"))
    margin = timedelta(hours=4)
    walls = _walls(zone_name, begin - margin, end + margin)
    if is_fixed:
        found = _fixed(expression, walls)
    else:
        found = {moment for moment, wall in walls if matches(expression, wall)}
    return sorted(int(moment.timestamp()) for moment in found if begin < moment <= end)


@lru_cache(maxsize=64)
def _walls(zone_name: str, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """(moment, wall) of every minute."""
    zone = ZoneInfo(zone_name)
    found = []
    while begin <= end:
        found.append((begin, begin.astimezone(zone).replace(tzinfo=None, fold=0)))
        begin += _MINUTE
    return found


def _fixed(expression: str, walls: list[tuple[datetime, datetime]]) -> set[datetime]:
    """Every wall time of the calendar once: when it first shows, or is first passed."""
    found = set()
    latest = walls[0][1] - _MINUTE
    for moment, wall in walls:
        while latest < wall:  # more than once in a gap, never in the second pass of a fold
            latest += _MINUTE
            if matches(expression, latest):
                found.add(moment)
    return found


@lru_cache(maxsize=64)
def _times(expression: str) -> tuple[set[int], set[int]]:
    minute, hour = expression.split()[:2]
    return (
        {value for value in range(60) if _in(minute, value, 0, 59)},
        {value for value in range(24) if _in(hour, value, 0, 23)},
    )


def matches(expression: str, wall: datetime) -> bool:
    minutes, hours = _times(expression)
    if wall.minute not in minutes or wall.hour not in hours:
        return False
    return _matches_day(expression, wall.date())


@lru_cache(maxsize=1024)
def _matches_day(expression: str, wall: date) -> bool:
    _, _, day, month, weekday = expression.upper().split()
    if not _in(month, wall.month, 1, 12, _MONTHS, 1):
        return False
    of_month = any(_is_day(part, wall) for part in day.split(","))
    of_week = any(_is_weekday(part, wall) for part in weekday.split(","))
    if day.startswith("*") or weekday.startswith("*"):
        return of_month and of_week
    return of_month or of_week


def _is_day(part: str, wall: date) -> bool:
    last = calendar.monthrange(wall.year, wall.month)[1]
    if part == "L":
        return wall.day == last
    if part == "LW":
        works = [d for d in range(1, last + 1) if wall.replace(day=d).weekday() < 5]
        return wall.day == works[-1]
    return _in(part, wall.day, 1, 31)


def _is_weekday(part: str, wall: date) -> bool:
    number = wall.isoweekday() % 7
    last = calendar.monthrange(wall.year, wall.month)[1]
    if part.endswith("L"):
        return int(part[:-1]) % 7 == number and wall.day > last - 7
    if "#" in part:
        name, nth = part.split("#")
        same = name == _DAYS[number] if name.isalpha() else int(name) % 7 == number
        return same and (wall.day - 1) // 7 + 1 == int(nth)
    return _in(part, number, 0, 7, _DAYS, 0) or (number == 0 and _in(part, 7, 0, 7, _DAYS, 0))


def _in(
    field: str, value: int, least: int, most: int, names: list[str] | None = None, first: int = 0
) -> bool:
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, dash, high = span.partition("-")
        if span == "*":
            begin, end = least, most
        else:
            begin = _number(low, names, first)
            end = _number(high, names, first) if dash else (most if step else begin)
        if begin <= value <= end and (value - begin) % int(step or 1) == 0:
            return True
    return False


def _number(text: str, names: list[str] | None, first: int) -> int:
    return names.index(text) + first if names and text in names else int(text)


def jumps(zone_name: str, year: int) -> list[datetime]:
    """The hours of the year in which the zone's clock jumps, in UTC."""
    zone = ZoneInfo(zone_name)
    hour = datetime(year, 1, 1, tzinfo=UTC)
    found = []
    while hour.year == year:
        following = hour + timedelta(hours=1)
        if hour.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            found.append(hour)
        hour = following
    return found
