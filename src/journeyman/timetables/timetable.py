"""A timetable as a person writes it: fields of text, checked; the same in JSON, on a line, in CLI.

    cron | every | at    one of them: "0 2 * * *" | "15m" | "2026-12-01T02:00, 2027-01-01T02:00"
    tz                   an IANA zone (UTC)
    anchor               ``every`` counts from here, in both directions (1970-01-01 in the zone)
    from, until          the first moment that counts, and the first that does not
    calendar             ``all`` days, or ``business``: Monday to Friday (all)
    exclude              days on which nothing happens: 2026-12-24, or 12-25 of every year
    jitter               a delay of up to so long, its own for every occurrence (0s)
    catch_up             of what was missed, run: ``none``, ``once`` the last one, ``all`` (once)
    catch_up_limit       of ``all``, at most the last so many (100)
    grace                how late an occurrence may start before it counts as missed (1m)
    overlap              the run before is still under way: ``allow``, ``skip``, ``queue`` (skip)
    retries, backoff     how often a failed run is tried again (0), and after how long: first,
                         factor, longest (10s,2,1h)
    expect               an occurrence that has not succeeded so long after its time is reported
    check_in             a URL that is asked after every occurrence, such as one of Sentry
    on_failure, ...      see run_options.py
    runner               the words of a runner; without it the rules decide

In brackets: the default. ``Timetable.read`` takes such fields as values of JSON or as text,
``fields`` gives them back without the defaults. Equal timetables have equal fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from journeyman.errors import TimetableError
from journeyman.timetables.cron import read_cron
from journeyman.timetables.durations import duration_text, read_duration, show_value
from journeyman.timetables.run_options import NO_OPTIONS, OPTION_FIELDS, RunOptions, read_words
from journeyman.timetables.zones import Zone, wall_seconds, zone_of

CATCH_UP: Final = ("none", "once", "all")
OVERLAP: Final = ("allow", "skip", "queue")
CALENDAR: Final = ("all", "business")
KINDS: Final = ("cron", "every", "at")

MAX_LIST = 500  # moments of ``at``, days of ``exclude``
MAX_CATCH_UP = 1_000
MAX_RETRIES = 100
MAX_EVERY_S = 3_660 * 86_400
MAX_JITTER_S = MAX_GRACE_S = 86_400
MAX_BACKOFF_S = MAX_EXPECT_S = 7 * 86_400
MAX_FACTOR = 100.0
MAX_CHARACTERS = 16 * 1024  # the limit for all fields together
YEARS = (1970, 2261)  # nanoseconds in 64 bits hold these

_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:?\d\d)?)?")
_A_TIME = "a time such as 2026-12-24, 2026-12-24T18:00 or 2026-12-24T18:00:00+01:00"
_A_DAY = "days such as 2026-12-24, or 12-25 for every year"


@dataclass(frozen=True, slots=True)
class TimetableBackoff:
    """How long to wait before a run that failed is tried again."""

    first_s: int = 10
    factor: float = 2.0
    longest_s: int = 3_600

    def delay_s(self, attempt: int) -> int:
        """Return the delay before the attempt of this number; the first retry is 1."""
        grown = self.first_s * min(self.factor ** (attempt - 1), float(self.longest_s))
        return min(int(grown), self.longest_s)

    def __str__(self) -> str:
        factor = str(self.factor).removesuffix(".0")
        return f"{duration_text(self.first_s)},{factor},{duration_text(self.longest_s)}"


_BACKOFF = TimetableBackoff()


@dataclass(frozen=True)
class Timetable:
    """See the module's docstring. ``read`` checks; the constructor does not."""

    kind: str
    when: str  # the expression, the interval or the moments, as written
    tz: str = "UTC"
    anchor: str = ""
    begin: str = ""
    until: str = ""
    calendar: str = "all"
    exclude: tuple[str, ...] = ()
    jitter_s: int = 0
    catch_up: str = "once"
    catch_up_limit: int = 100
    grace_s: int = 60
    overlap: str = "skip"
    retries: int = 0
    backoff: TimetableBackoff = _BACKOFF
    expect_s: int = 0
    check_in: str = ""
    options: RunOptions = NO_OPTIONS
    runner: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Timetable:
        """Raises TimetableError, which names the field and says what is allowed."""
        unknown = [name for name in fields if name not in FIELDS]
        if unknown:
            raise TimetableError(str(unknown[0])[:40], "there is no such field", ", ".join(FIELDS))
        if sum(len(str(value)) for value in fields.values()) > MAX_CHARACTERS:
            raise TimetableError("timetable", "it is too long", f"{MAX_CHARACTERS} characters")
        kinds = [name for name in KINDS if name in fields]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none of them"
            raise TimetableError("timetable", f"it has {found}", "one of cron, every, at")
        (kind,) = kinds
        values = {
            _NAMES.get(name, name): _read(name, fields[name])
            for name in fields
            if name != kind and name not in OPTION_FIELDS
        }
        options = {name: fields[name] for name in OPTION_FIELDS if name in fields}
        if options:
            values["options"] = RunOptions.read(options)
        zone = zone_of(values.get("tz", cls.tz))
        timetable = cls(kind, _read(kind, fields[kind]), **values)
        timetable._check(zone)
        return timetable

    def _check(self, zone: Zone) -> None:
        """Check what depends on more than one field."""
        for name, text in (("anchor", self.anchor), ("from", self.begin), ("until", self.until)):
            if text:
                parse_zoned_time(text, zone, name)
        if self.kind == "at":
            for text in split(self.when):
                parse_zoned_time(text, zone, "at")
        if self.anchor and self.kind != "every":
            raise TimetableError(
                "anchor", f"it means nothing for {self.kind}", "it with every only"
            )
        if self.begin and self.until:
            from_s = parse_zoned_time(self.begin, zone, "from")
            if from_s >= parse_zoned_time(self.until, zone, "until"):
                raise TimetableError("until", "it is not after from", "a later time")
        if self.expect_s and not self.options.on_failure:
            raise TimetableError("expect", "nothing would report it", "on_failure as well")

    def fields(self) -> dict[str, Any]:
        """Values of JSON; what is as by default is left out."""
        found: dict[str, Any] = {self.kind: self.when}
        options = self.options.fields()
        for name in FIELDS:
            if name in OPTION_FIELDS:
                if name in options:
                    found[name] = options[name]
                continue
            attribute = _NAMES.get(name, name)
            if name in KINDS or getattr(self, attribute) == getattr(_PLAIN, attribute):
                continue
            value = getattr(self, attribute)
            if attribute.endswith("_s"):
                value = duration_text(value)
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, TimetableBackoff):
                value = str(value)
            found[name] = value
        return found


_PLAIN = Timetable("cron", "")
_NAMES = {"from": "begin", "jitter": "jitter_s", "grace": "grace_s", "expect": "expect_s"}
FIELDS_OF_TIMES: Final = (
    *KINDS,
    *("tz", "anchor", "from", "until", "calendar", "exclude", "jitter"),
)
FIELDS: Final = (
    *FIELDS_OF_TIMES,
    *("catch_up", "catch_up_limit", "grace", "overlap", "retries", "backoff"),
    *("expect", "check_in", *OPTION_FIELDS, "runner"),
)
_CHOICES = {"catch_up": CATCH_UP, "overlap": OVERLAP, "calendar": CALENDAR}
_NUMBERS = {"retries": (0, MAX_RETRIES), "catch_up_limit": (1, MAX_CATCH_UP)}
_DURATIONS = {
    "jitter": (0, MAX_JITTER_S),
    "grace": (1, MAX_GRACE_S),
    "expect": (1, MAX_EXPECT_S),
}


def _read(name: str, value: object) -> Any:
    """One field, as far as it can be checked alone."""
    if name == "runner":
        if isinstance(value, str):  # a command is not taken apart into words
            problem = f"{show_value(value)} is not a list of words"
            raise TimetableError(name, problem, "shell and a command, ...")
        return read_words(name, value)
    if name in ("exclude", "at"):
        items = split(value) if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(each, str) for each in items):
            raise TimetableError(
                name, f"{show_value(value)} is not a list", _A_DAY if name == "exclude" else _A_TIME
            )
        return _exclude(items) if name == "exclude" else _moments(items)
    if name in _NUMBERS:
        return _number(name, value, *_NUMBERS[name])
    if name in _DURATIONS:
        return read_duration(value, name, *_DURATIONS[name])
    if name == "every":
        return duration_text(read_duration(value, name, 1, MAX_EVERY_S))
    if not isinstance(value, str):
        raise TimetableError(name, f"{show_value(value)} is not text", "text")
    if name == "cron":
        read_cron(value)
        return " ".join(value.split())
    if name == "backoff":
        return _backoff(value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise TimetableError(name, f"{show_value(value)} is not known", " or ".join(_CHOICES[name]))
    return value.strip()


def _number(name: str, value: object, least: int, most: int) -> int:
    text = str(value)
    if (
        isinstance(value, bool)
        or not re.fullmatch(r"\d{1,9}", text, re.ASCII)
        or not least <= int(text) <= most
    ):
        raise TimetableError(
            name, f"{show_value(value)} is not possible", f"a whole number from {least} to {most}"
        )
    return int(text)


def _backoff(text: str) -> TimetableBackoff:
    first, *more = split(text)[:4] or [""]
    try:
        factor = float(more[0]) if more else _BACKOFF.factor
    except ValueError:
        factor = 0.0
    if len(more) > 2 or not 1.0 <= factor <= MAX_FACTOR:
        raise TimetableError(
            "backoff",
            f"{show_value(text)} is not possible",
            "first delay, factor from 1 to 100, longest delay: 10s,2,1h",
        )
    first_s = read_duration(first, "backoff", 1, MAX_BACKOFF_S)
    longest_s = max(first_s, _BACKOFF.longest_s)
    if len(more) == 2:
        longest_s = read_duration(more[1], "backoff", first_s, MAX_BACKOFF_S)
    return TimetableBackoff(first_s, factor, longest_s)


def _exclude(days: Iterable[str]) -> tuple[str, ...]:
    found = tuple(sorted({day.strip() for day in days if day.strip()}))
    if len(found) > MAX_LIST:
        raise TimetableError("exclude", f"{len(found)} days", f"at most {MAX_LIST}")
    for day in found:
        try:
            # A leap year, so that 02-29 is one of the days of every year.
            date.fromisoformat(f"2024-{day}" if len(day) == 5 else day)
            is_day = len(day) in (5, 10)
        except ValueError:
            is_day = False
        if not is_day:
            raise TimetableError("exclude", f"{show_value(day)} is not a day", _A_DAY)
    return found


def _moments(moments: Iterable[str]) -> str:
    found = [text.strip() for text in moments if text.strip()]
    if not 1 <= len(found) <= MAX_LIST:
        raise TimetableError("at", f"{len(found)} moments", f"1 to {MAX_LIST}")
    return ",".join(found)


def split(text: str) -> list[str]:
    """The items of a list in text: commas between them."""
    return [item.strip() for item in text.split(",") if item.strip()]


def parse_zoned_time(text: str, zone: Zone, name: str) -> int:
    """A moment; without an offset it is the zone's, where 02:30 may be twice or not at all."""
    try:
        moment = datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None or not YEARS[0] <= moment.year <= YEARS[1]:
        raise TimetableError(
            name, f"{show_value(text)} is not a time", f"{_A_TIME}, {YEARS[0]} to {YEARS[1]}"
        )
    if moment.tzinfo is None:
        return zone.first_moment(moment)
    offset = moment.utcoffset()
    assert offset is not None
    return wall_seconds(moment.replace(tzinfo=None)) - int(offset.total_seconds())
