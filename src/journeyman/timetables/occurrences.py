r"""The moments at which a timetable fires, in order, each a whole second.

    cron, fixed times      minute and hour have no ``*``: once per match of the wall.
      (0 2 * * *)          In a gap: the moment of the jump. In a fold: the first of the two.
    cron, with ``*``       every moment whose wall matches.
      (*/15 * * * *)       In a gap: none. In a fold: both.
    every                  anchor + n * interval, elapsed time: no clock on any wall matters
    at                     each of the moments

``calendar`` and ``exclude`` leave out days of the zone; ``from`` and ``until`` cut the ends off.

Bounded: finding the next moment looks at no more than a few hundred matches, however the
expression and the days are chosen; a timetable whose days are all left out has no next moment.
The delay of ``jitter`` is a hash of name and moment: planned twice, it is the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice

from journeyman.timetables.cron import Cron, read_cron
from journeyman.timetables.durations import read_duration
from journeyman.timetables.timetable import (
    MAX_EVERY_S,
    Timetable,
    parse_zoned_time,
    split,
)
from journeyman.timetables.zones import Zone, utc_label, zone_of

# Days that repeat (weekends, 12-25) may be left out so many times in a row: 29 February on a
# weekday comes within 12 years. Days of one year are finite in themselves.
MAX_LEFT_OUT = 60
MAX_MOMENT_S = 9_214_646_400  # the end of 2261
_FOLD_S = 3 * 3600  # no clock is set back by more
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Firing:
    """One occurrence, for people. ``warning`` is about the clock's jump, if it matters here."""

    at_s: int
    local: str
    utc: str
    warning: str = ""


class Occurrences:
    """The moments of one timetable. Get it from ``occurrences_of``."""

    __slots__ = (
        "_anchor_s",
        "_begin_s",
        "_cron",
        "_every_s",
        "_moments",
        "_until_s",
        "timetable",
        "zone",
    )

    def __init__(self, timetable: Timetable) -> None:
        """Raises TimetableError for one that was never checked, or whose zone is gone."""
        self.timetable = timetable
        self.zone = zone = zone_of(timetable.tz)
        self._cron: Cron | None = None
        self._every_s = self._anchor_s = 0
        self._moments: list[int] = []
        if timetable.kind == "cron":
            self._cron = read_cron(timetable.when)
        elif timetable.kind == "every":
            self._every_s = read_duration(timetable.when, "every", 1, MAX_EVERY_S)
            anchor = timetable.anchor or "1970-01-01"
            self._anchor_s = parse_zoned_time(anchor, zone, "anchor")
        else:
            self._moments = sorted(
                {parse_zoned_time(text, zone, "at") for text in split(timetable.when)}
            )
        begin, until = timetable.begin, timetable.until
        self._begin_s = parse_zoned_time(begin, zone, "from") if begin else None
        self._until_s = parse_zoned_time(until, zone, "until") if until else MAX_MOMENT_S

    # -- moments ---------------------------------------------------------------------------------

    def after(self, moment_s: int) -> int | None:
        """The first occurrence later than this moment; None: there is none any more."""
        if self._begin_s is not None:
            moment_s = max(moment_s, self._begin_s - 1)
        left_out = MAX_LEFT_OUT
        while True:
            at_s = self._next(moment_s)
            if at_s is None or at_s >= self._until_s:
                return None
            wall = self.zone.wall(at_s) if self._leaves_out_days() else None
            if wall is None or not self._is_left_out(wall):
                return at_s
            if not self._is_of_one_year(wall):
                left_out -= 1
                if not left_out:
                    return None
            moment_s = max(at_s, self._end_of_day(wall))

    def all_after(self, moment_s: int) -> Iterator[int]:
        at_s = self.after(moment_s)
        while at_s is not None:
            yield at_s
            at_s = self.after(at_s)

    def last(self, after_s: int, until_s: int, count: int) -> list[int]:
        """The last ``count`` occurrences in (after, until], oldest first."""
        width_s = self._width_s(max(after_s, until_s - 7 * 86_400), count)
        while True:
            start_s = max(after_s, until_s - width_s)
            found: deque[int] = deque(maxlen=count)
            seen = 0
            for at_s in self.all_after(start_s):
                if at_s > until_s:
                    break
                found.append(at_s)
                seen += 1
            if seen >= count or start_s == after_s:
                return list(found)
            width_s *= 4

    def _width_s(self, moment_s: int, count: int) -> int:
        """How long so many occurrences may take, by the first two after this moment: a guess."""
        first, second = (*islice(self.all_after(moment_s), 2), 0, 0)[:2]
        return max(60, (second - first) * count)

    def between(self, from_s: int, until_s: int, limit: int) -> list[int]:
        """The occurrences in [from, until), at most ``limit``."""
        found: list[int] = []
        for at_s in islice(self.all_after(from_s - 1), limit):
            if at_s >= until_s:
                break
            found.append(at_s)
        return found

    def delay_ns(self, name: str, at_s: int) -> int:
        """The jitter of an occurrence of the timetable of this name."""
        if not self.timetable.jitter_s:
            return 0
        from hashlib import blake2b  # loads OpenSSL, and few timetables have a jitter

        digest = blake2b(f"{at_s} {name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % (self.timetable.jitter_s * 1_000_000_000)

    def _next(self, moment_s: int) -> int | None:
        """Return the next time without regard to days that are left out, and to the ends."""
        if self._cron is not None:
            if self._cron.is_fixed:
                return _next_fixed(self._cron, self.zone, moment_s)
            return _next_elapsed(self._cron, self.zone, moment_s)
        if self._every_s:
            return moment_s + self._every_s - (moment_s - self._anchor_s) % self._every_s
        place = bisect_right(self._moments, moment_s)
        return self._moments[place] if place < len(self._moments) else None

    # -- days ------------------------------------------------------------------------------------

    def _leaves_out_days(self) -> bool:
        return bool(self.timetable.exclude) or self.timetable.calendar == "business"

    def _is_left_out(self, wall: datetime) -> bool:
        if self.timetable.calendar == "business" and wall.weekday() >= 5:
            return True
        exclude = self.timetable.exclude
        return bool(exclude) and (self._is_of_one_year(wall) or f"{wall:%m-%d}" in exclude)

    def _is_of_one_year(self, wall: datetime) -> bool:
        return wall.date().isoformat() in self.timetable.exclude

    def _end_of_day(self, wall: datetime) -> int:
        """The last second of the day."""
        midnight = wall.replace(hour=0, minute=0, second=0) + _DAY
        return self.zone.first_moment(midnight) - 1

    # -- for people ------------------------------------------------------------------------------

    def firings(self, after_s: int, count: int) -> list[Firing]:
        """The next ``count`` after this moment, with warnings."""
        found: list[Firing] = []
        before_s = after_s
        for at_s in islice(self.all_after(after_s), count):
            warning = self._warning(before_s, at_s)
            found.append(Firing(at_s, self.zone.label(at_s), utc_label(at_s), warning))
            before_s = at_s
        return found

    def _warning(self, before_s: int, at_s: int) -> str:
        """Return what a jump of the clock does to this occurrence, or to those before it."""
        if self._every_s:
            return ""
        wall = self.zone.wall(at_s)
        if len(self.zone.moments(wall)) == 2:
            fate = "both times" if self._cron and not self._cron.is_fixed else "the first time"
            twice = f"{wall:%H:%M} occurs twice on {wall:%Y-%m-%d}, the clock goes back"
            return f"{twice}: runs {fate}"
        early_s = max(before_s, at_s - 36 * 3600)
        old_s, new_s = self.zone.offset_s(early_s), self.zone.offset_s(at_s)
        if self._cron is None or new_s <= old_s:
            return ""
        jump_s = self.zone.jump_after(early_s, at_s)
        gap = self.zone.wall(jump_s - 1) + timedelta(seconds=1)
        ends = self.zone.wall(jump_s)
        missing = next(self._cron.walls_after(gap - timedelta(seconds=1)), ends)
        if missing >= ends:
            return ""
        fate = f"runs at {ends:%H:%M}" if self._cron.is_fixed else "does not run"
        return f"{missing:%H:%M} does not exist on {gap:%Y-%m-%d}, the clock goes forward: {fate}"


def _next_fixed(cron: Cron, zone: Zone, moment_s: int) -> int | None:
    for wall in cron.walls_after(zone.wall(moment_s)):
        at_s = zone.first_moment(wall)
        if at_s > moment_s:  # in the second pass of a fold the first one is over
            return at_s
    return None


def _next_elapsed(cron: Cron, zone: Zone, moment_s: int) -> int | None:
    """Every moment counts whose wall matches. If the clock is about to go back, walls that have
    been are to come again: then the search begins at the first of them."""
    back_s = zone.offset_s(moment_s) - zone.offset_s(moment_s + _FOLD_S)
    start = zone.wall(moment_s) - timedelta(seconds=max(0, back_s))
    best_s: int | None = None
    for wall in cron.walls_after(start):
        moments = zone.moments(wall)
        for at_s in moments:
            if at_s > moment_s and (best_s is None or at_s < best_s):
                best_s = at_s
        if best_s is not None and moments and moments[0] >= best_s:
            return best_s
    return best_s


@lru_cache(maxsize=4096)
def occurrences_of(timetable: Timetable) -> Occurrences:
    """Raises TimetableError."""
    return Occurrences(timetable)
