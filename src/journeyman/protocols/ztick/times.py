"""The timestamps of SET: words of a line -> nanoseconds since 1970, or the reason why not.

    1711612800000000000                  nanoseconds, a sign allowed, 64 bits with sign
    2026-03-30 14:00:00                  two words, or one in quotes
    2026-03-30T14:00:00                  ISO 8601
    2026-03-30T14:00:00.123456789+02:00  with a fraction to the nanosecond, with Z or an offset
    2026-03-30 14:00:00 +02:00           the same offset as a word of its own

Without an offset a time is UTC. Everything else is refused: a day or time of day that does not
exist, a moment outside 64 bits, a zone by name. A refused SET can be seen by the client; one that
is taken for another moment cannot.

Words behind a number are ignored, as everywhere in the protocol. Words behind a date and time
could only mean a zone, so there they are refused unless they are an offset.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

MIN_NS = -(2**63)
MAX_NS = 2**63 - 1

_NS_PER_SECOND = 1_000_000_000
_SECONDS_PER_DAY = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()

# 19 digits are enough for 64 bits: a longer number is refused before it is computed.
_MAX_DIGITS = 19
_NUMBER = re.compile(rb"([+-]?)0*([0-9]+)")
_DATE_FIRST = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]{1,9}))?"
    rb"(?: ?(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?))?"
)

_NOT_A_TIME = "expected nanoseconds since 1970, YYYY-MM-DD HH:MM:SS or ISO 8601"
_OUT_OF_RANGE = "outside the range of 64-bit nanoseconds"


def read_timestamp(words: Sequence[bytes]) -> int | str:
    """Nanoseconds since 1970, or one phrase that says what is wrong. ``words`` is not empty."""
    first = words[0]
    if _DATE_FIRST.match(first):
        return _read_date_time(b" ".join(words))
    number = _NUMBER.fullmatch(first)
    if number is None:
        return _NOT_A_TIME
    sign, digits = number.groups()
    if len(digits) > _MAX_DIGITS:
        return _OUT_OF_RANGE
    return _in_range(int(sign + digits))


def _read_date_time(text: bytes) -> int | str:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return _NOT_A_TIME
    year, month, day, hour, minute, second = (int(group) for group in match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return "there is no such day"
    if hour > 23 or minute > 59 or second > 59:
        return "there is no such time of day"
    seconds = days * _SECONDS_PER_DAY + hour * 3600 + minute * 60 + second
    if sign is not None:
        hours, minutes = int(offset_hours), int(offset_minutes or 0)
        if hours > 23 or minutes > 59:
            return "there is no such offset"
        offset = hours * 3600 + minutes * 60
        seconds += offset if sign == b"-" else -offset
    fraction_ns = int(fraction.ljust(9, b"0")) if fraction else 0
    return _in_range(seconds * _NS_PER_SECOND + fraction_ns)


def _in_range(ns: int) -> int | str:
    return ns if MIN_NS <= ns <= MAX_NS else _OUT_OF_RANGE
