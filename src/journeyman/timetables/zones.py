"""Time zones: moments <-> what the clock on the wall shows, also on the nights when it jumps.

    forward (a gap)        01:59:59 ── 03:00:00                02:30 does not exist
    back (a fold)          02:59:59 ── 02:00:00 ── 02:59:59    02:30 exists twice

A wall time is a naive ``datetime``, a moment is seconds since 1970. The rules of the zones come
from the system's IANA database, or from the package tzdata where the system has none. They are
read once per process: an update takes effect at the next start.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from journeyman.errors import TimetableError

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - walls are naive
_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,3}")


class Zone:
    """One IANA zone. Get it from ``zone_of``."""

    __slots__ = ("_info", "name")

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self._info = info

    def offset_s(self, at_s: int) -> int:
        """How far the wall is ahead of UTC at this moment."""
        return _offset_s(datetime.fromtimestamp(at_s, self._info))

    def wall(self, at_s: int) -> datetime:
        return datetime.fromtimestamp(at_s, self._info).replace(tzinfo=None, fold=0)

    def moments(self, wall: datetime) -> tuple[int, ...]:
        """When the wall shows this: once, twice in a fold, never in a gap."""
        first_s, second_s = self._offsets(wall)
        wall_s = wall_seconds(wall)
        if first_s == second_s:
            return (wall_s - first_s,)
        return (wall_s - first_s, wall_s - second_s) if first_s > second_s else ()

    def first_moment(self, wall: datetime) -> int:
        """When the wall first shows this; in a gap, the moment at which the clock jumps over it."""
        before_s, after_s = self._offsets(wall)
        wall_s = wall_seconds(wall)
        if before_s >= after_s:
            return wall_s - before_s
        return self.jump_after(wall_s - after_s, wall_s - before_s)

    def jump_after(self, early_s: int, late_s: int) -> int:
        """The first moment of the new offset; the offsets of the two moments must differ."""
        old_s = self.offset_s(early_s)
        while late_s - early_s > 1:
            middle_s = (early_s + late_s) // 2
            if self.offset_s(middle_s) == old_s:
                early_s = middle_s
            else:
                late_s = middle_s
        return late_s

    def label(self, at_s: int) -> str:
        """The wall and its offset: ``2026-11-17T02:00:00+01:00``."""
        return datetime.fromtimestamp(at_s, self._info).isoformat()

    def _offsets(self, wall: datetime) -> tuple[int, int]:
        """Equal, but for a wall time in a gap or fold: those before and after the jump."""
        return (
            _offset_s(wall.replace(tzinfo=self._info)),
            _offset_s(wall.replace(tzinfo=self._info, fold=1)),
        )


def _offset_s(aware: datetime) -> int:
    offset = aware.utcoffset()
    assert offset is not None
    return offset.days * 86_400 + offset.seconds


def wall_seconds(wall: datetime) -> int:
    """Return the seconds since 1970 as if the wall were in UTC."""
    since = wall - _EPOCH
    return since.days * 86_400 + since.seconds


def label_of(at_s: int, offset_s: int) -> str:
    """The label of a moment whose offset is known."""
    return datetime.fromtimestamp(at_s, timezone(timedelta(seconds=offset_s))).isoformat()


def utc_label(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=1024)
def zone_of(name: str) -> Zone:
    """Raises TimetableError. Zones that exist are few, so all of them stay in the cache."""
    try:
        if _NAME.fullmatch(name):
            return Zone(name, ZoneInfo(name))
    except (KeyError, ValueError, OSError):  # not found; not a zone; a directory
        pass
    raise TimetableError(
        "tz", f"there is no time zone {name[:70]!r}", "an IANA name such as Europe/Berlin, or UTC"
    )


def check_is_iana(name: str) -> None:
    """Check the zone of a new timetable. Files beside the zones are read as zones too: what this
    machine's clock shows (``localtime``), and clocks that count leap seconds. Raises
    TimetableError."""
    if name in ("localtime", "posixrules") or name.startswith(("right/", "posix/")):
        raise TimetableError(
            "tz", f"{name[:70]!r} is not an IANA zone", "a name such as Europe/Berlin, or UTC"
        )


def moment_of_label(label: str) -> tuple[int, int] | None:
    """The moment of a label, and its offset; None if it is not one."""
    try:
        aware = datetime.fromisoformat(label)
    except ValueError:
        return None
    return None if aware.tzinfo is None else (int(aware.timestamp()), _offset_s(aware))
