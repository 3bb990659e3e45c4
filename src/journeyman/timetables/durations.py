"""Durations as a person writes them: 30s, 15m, 1h30m, 2d."""

from __future__ import annotations

import re

from journeyman.errors import TimetableError

_UNITS = {"w": 7 * 86_400, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(
    r"(?:(\d{1,9})w)?(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?"
)
_A_DURATION = "a duration such as 30s, 15m, 1h30m, 2d"


def read_duration(value: object, name: str, least: int, most: int) -> int:
    """Seconds. ``value`` is text, or a number of seconds."""
    text = str(value).strip()
    match = _DURATION.fullmatch(text + "s" if text.isascii() and text.isdigit() else text)
    if match is None or not text or isinstance(value, bool):
        raise TimetableError(name, f"{show_value(value)} is not a duration", _A_DURATION)
    total_s = sum(
        int(count or 0) * unit for count, unit in zip(match.groups(), _UNITS.values(), strict=True)
    )
    if not least <= total_s <= most:
        raise TimetableError(
            name,
            f"{show_value(value)} is out of range",
            f"{duration_text(least)} to {duration_text(most)}",
        )
    return total_s


def duration_text(total_s: int) -> str:
    if total_s == 0:
        return "0s"
    parts = []
    for letter, unit in _UNITS.items():
        if letter == "w":
            continue
        count, total_s = divmod(total_s, unit)
        if count:
            parts.append(f"{count}{letter}")
    return "".join(parts)


def show_value(value: object) -> str:
    """A value that a person gave, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
