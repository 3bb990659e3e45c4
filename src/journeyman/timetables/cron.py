"""Cron expressions: which wall times match. No zones here; occurrences.py brings them in.

    ┌───────── minute    0-59
    │ ┌─────── hour      0-23
    │ │ ┌───── day       1-31, L the last day, LW the last day that is not a Saturday or Sunday
    │ │ │ ┌─── month     1-12, JAN-DEC
    │ │ │ │ ┌─ weekday   0-7 (0 and 7 are Sunday), SUN-SAT, 5L the last Friday, FRI#2 the second
    0 2 * * *            each: *  lists 1,15  ranges 1-5  steps */10, 0-30/5

cronsim reads the fields and walks from match to match, with Debian cron's rule for days: if day and
weekday are both restricted, one of them has to match; if one of them begins with ``*``, both.

An expression that can never match is refused at once. What is left has a match within 40 years,
found in about a millisecond at worst: 29 February on a Sunday.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError
from cronsim.cronsim import DAYS_IN_MONTH, Field

from journeyman.errors import TimetableError

MAX_CHARACTERS = 256
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_COMMON = "*, lists 1,5, ranges 1-5, steps */2"
_FIELDS = (
    (Field.MINUTE, "minute", f"0-59, {_COMMON}"),
    (Field.HOUR, "hour", f"0-23, {_COMMON}"),
    (Field.DAY, "day", f"1-31, L, LW, {_COMMON}"),
    (Field.MONTH, "month", f"1-12, JAN-DEC, {_COMMON}"),
    (Field.DOW, "weekday", f"0-7, SUN-SAT, 5L, FRI#2, {_COMMON}"),
)
_SHAPE = "five fields: minute hour day month weekday, or " + ", ".join(ALIASES)
_ONE = re.compile(r"\b(\w+)-\1/\d+\b")  # 5-5/2 is 5; cronsim takes it for 5-59/2
_ANY = datetime(1970, 1, 1)  # noqa: DTZ001 - walls are naive


class Cron:
    """A cron expression. Get it from ``read_cron``."""

    __slots__ = ("_sim", "is_fixed")

    def __init__(self, sim: CronSim) -> None:
        self._sim = sim
        # Debian's rule too: a job at fixed times runs once on the nights when the clock jumps.
        self.is_fixed = not (sim.parts[1].startswith("*") or sim.parts[2].startswith("*"))

    def walls_after(self, wall: datetime) -> Iterator[datetime]:
        """The wall times that match, later than this one, in order; cronsim looks 50 years far."""
        sim = copy(self._sim)
        sim.dt = wall
        return sim


@lru_cache(maxsize=4096)
def read_cron(expression: str) -> Cron:
    """Raises TimetableError, which names the field."""
    if len(expression) > MAX_CHARACTERS:
        raise TimetableError("cron", f"{len(expression)} characters", f"at most {MAX_CHARACTERS}")
    text = expression.strip()
    if text.startswith("@"):
        text = ALIASES.get(text.lower(), "")
    words = text.split()
    if len(words) != len(_FIELDS):
        raise TimetableError("cron", f"{expression!r} is not a cron expression", _SHAPE)
    words = [_ONE.sub(r"\1", word) for word in words]
    for number, (word, (field, name, allowed)) in enumerate(zip(words, _FIELDS, strict=True), 1):
        try:
            field.parse(word.upper())
        except (CronSimError, ValueError, AssertionError):
            raise TimetableError("cron", f"field {number} ({name}) is {word!r}", allowed) from None
    try:
        sim = CronSim(" ".join(words), _ANY)
    except CronSimError:
        raise _never(words) from None
    if sim.day_and and not any(_has_a_day(sim, month) for month in sim.months):
        raise _never(words)
    return Cron(sim)


def _never(fields: list[str]) -> TimetableError:
    shown = f"day {fields[2]!r}, month {fields[3]!r} and weekday {fields[4]!r} (fields 3 to 5)"
    return TimetableError("cron", f"no day matches {shown} together", "days that exist")


def _has_a_day(sim: CronSim, month: int) -> bool:
    """Return whether both, the day and the weekday, can match a day of this month in some year."""
    return any(
        _is_day(sim, day, month) and _is_weekday(sim, day)
        for day in range(1, DAYS_IN_MONTH[month] + 1)
    )


def _is_day(sim: CronSim, day: int, month: int) -> bool:
    last = DAYS_IN_MONTH[month]
    if day in sim.days or (CronSim.LAST in sim.days and day >= min(last, 28)):
        return True
    works = any(weekday not in (0, 6, 7) for weekday in _weekday_numbers(sim))
    return CronSim.LAST_WEEKDAY in sim.days and day >= 26 and works


def _is_weekday(sim: CronSim, day: int) -> bool:
    for item in sim.weekdays:
        if isinstance(item, int):
            return True
        _, nth = item
        if (day >= 22) if nth == CronSim.LAST else ((day + 6) // 7 == nth):
            return True
    return False


def _weekday_numbers(sim: CronSim) -> Iterator[int]:
    return (item if isinstance(item, int) else item[0] for item in sim.weekdays)
