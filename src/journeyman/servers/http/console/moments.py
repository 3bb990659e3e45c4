"""Moments as people write and read them: in words, and in the zone that they have chosen.

-1h   today 09:30   yesterday 14:00   2026-11-17 14:00   --> an RFC 3339 time in UTC
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from journeyman.servers.http.wire import time_text
from journeyman.units import DAY_S, NS_PER_MS, NS_PER_S

SERVER: Final = "server"  # the zone of the machine that the server runs on
_BACK = re.compile(r"-(\d{1,9})([smhd])")
_DAY = re.compile(r"(today|yesterday)(?:[ T]([01]?\d|2[0-3]):([0-5]\d))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY_S}
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}")


@dataclass(frozen=True, slots=True)
class ChosenZone:
    """``info`` None: that of the server's machine."""

    name: str
    info: tzinfo | None

    @property
    def label(self) -> str:
        """The label in the frame: the city, without the continent."""
        return self.name.rpartition("/")[2].replace("_", " ")

    def local(self, unix_ns: int) -> datetime:
        seconds, rest = divmod(unix_ns, NS_PER_S)
        moment = datetime.fromtimestamp(seconds, self.info or UTC)
        if self.info is None:
            moment = moment.astimezone()
        return moment.replace(microsecond=rest // 1000)

    def unix_ns(self, naive: datetime) -> int:
        """Return the moment of a local time without a zone."""
        aware = naive.replace(tzinfo=self.info) if self.info is not None else naive.astimezone()
        return int(aware.timestamp()) * NS_PER_S

    def offset_min(self, unix_ns: int) -> int:
        offset = self.local(unix_ns).utcoffset()
        return 0 if offset is None else int(offset.total_seconds()) // 60


IN_UTC: Final = ChosenZone("UTC", UTC)


@lru_cache(maxsize=64)
def zone_called(name: str) -> ChosenZone:
    """UTC if there is no zone of this name."""
    if name == SERVER:
        return ChosenZone(SERVER, None)
    if not _ZONE_NAME.fullmatch(name):
        return IN_UTC
    try:
        return ChosenZone(name, ZoneInfo(name)) if name != "UTC" else IN_UTC
    except (LookupError, ValueError, OSError):  # unknown, or the name of a folder
        return IN_UTC


def resolve_moment(text: str, now_ns: int, zone: ChosenZone = IN_UTC) -> str:
    """Return words as the RFC 3339 time that they mean, in UTC, and any other text unchanged."""
    text = text.strip()
    if back := _BACK.fullmatch(text):
        return time_text(now_ns - int(back[1]) * _SECONDS[back[2]] * NS_PER_S)
    if day := _DAY.fullmatch(text.lower()):
        today = zone.local(now_ns).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        begin = today - timedelta(days=day[1] == "yesterday")
        time_of_day = begin.replace(hour=int(day[2] or 0), minute=int(day[3] or 0))
        return time_text(zone.unix_ns(time_of_day))
    if _DATE.fullmatch(text):
        try:
            return time_text(zone.unix_ns(datetime.fromisoformat(text)))
        except (ValueError, OverflowError):  # such as 30 February
            return text
    return text


def to_the_millisecond(unix_ns: int, zone: ChosenZone) -> str:
    """2026-11-18 14:32:08.123"""
    try:
        local = zone.local(unix_ns)
    except (ValueError, OverflowError, OSError):  # a year that the calendar does not have
        return time_text(unix_ns)[:23].replace("T", " ")
    return f"{local:%Y-%m-%d %H:%M:%S}.{unix_ns % NS_PER_S // NS_PER_MS:03}"


def short_time(unix_ns: int, now_ns: int, zone: ChosenZone) -> str:
    """The time of day; with the day if it is another one than today."""
    try:
        then, now = zone.local(unix_ns), zone.local(now_ns)
    except (ValueError, OverflowError, OSError):
        return to_the_millisecond(unix_ns, zone)
    if then.date() == now.date():
        return f"{then:%H:%M:%S}"
    if abs(then - now) < timedelta(days=300):
        return f"{then:%a} {then.day} {then:%b %H:%M}"
    return f"{then:%Y-%m-%d %H:%M}"
