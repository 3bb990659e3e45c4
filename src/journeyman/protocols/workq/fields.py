"""The fields of a workq line: bytes -> values. What is no such value is None.

    id        at least 32 characters: urn:uuid: or { or nothing, then hex groups of 8-4-4-4-12, each
              after a dash or not, in any case; what follows is not looked at
    name      1 to 255 of A-Z a-z 0-9 _ . -
    number    digits, leading zeros allowed, no sign; priority and size may have one
    time      YYYY-MM-DDTHH:MM:SSZ, with one digit for the hour or a fraction after a point or a
              comma, of which 9 digits count, if you like; no other offset, no second 60
    flag      -key=value; what follows a second = is not looked at

So lenient, because the original is, and its clients may rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from journeyman.protocols.workq.commands import MAX_NAME_BYTES, MAX_PRIORITY, MIN_PRIORITY

HUGE = 10**20  # stands for every number that has more digits than fit into 64 bits
_DIGITS_OF_HUGE = 20
NS_PER_S = 1_000_000_000
NO_TIME_NS = -62_135_596_800 * NS_PER_S  # the year 1: what the original takes for "no time"

_HEX = rb"[0-9a-fA-F]"
_ID = re.compile(
    rb"(?:urn:uuid:|\{)?" + b"".join(rb"-?(%b{%d})" % (_HEX, count) for count in (8, 4, 4, 4, 12)),
)
_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,%d}" % MAX_NAME_BYTES)
_TIME = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?Z"
)


def read_id(text: bytes) -> bytes | None:
    """16 raw bytes, of whatever version."""
    match = _ID.match(text)
    return None if match is None else bytes.fromhex(b"".join(match.groups()).decode())


def is_version_4(job_id: bytes) -> bool:
    return job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2


def read_name(text: bytes) -> str | None:
    return text.decode() if _NAME.fullmatch(text) else None


def read_number(text: bytes) -> int | None:
    if not text.isdigit():
        return None
    if len(text) > _DIGITS_OF_HUGE:
        text = text.lstrip(b"0") or b"0"
        if len(text) > _DIGITS_OF_HUGE:
            return HUGE
    return int(text)


def read_size(text: bytes) -> int | None:
    """A size of bytes; None also if it is below 0."""
    signed = text[:1] in (b"+", b"-")
    number = read_number(text[1:] if signed else text)
    return None if number and text.startswith(b"-") else number


def read_priority(text: bytes) -> int | None:
    signed = text[:1] in (b"+", b"-")
    number = read_number(text[1:] if signed else text)
    if number is None:
        return None
    priority = -number if text.startswith(b"-") else number
    return priority if MIN_PRIORITY <= priority <= MAX_PRIORITY else None


def read_time(text: bytes) -> int | None:
    """Unix time in nanoseconds; NO_TIME_NS means: at once."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    *calendar, fraction = match.groups()
    try:
        moment = datetime(*map(int, calendar), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:  # a day or an hour that does not exist
        return None
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    nanos = int((fraction or b"")[:9].ljust(9, b"0"))
    return (whole.days * 86_400 + whole.seconds) * NS_PER_S + nanos


def read_flags(pieces: Iterable[bytes]) -> dict[bytes, bytes] | None:
    """``-key=value`` each; None if a key or a value is empty, or a key comes twice."""
    flags: dict[bytes, bytes] = {}
    for piece in pieces:
        key, value, *_ = piece[1:].split(b"=")
        if not key or not value or key in flags:
            return None
        flags[key] = value
    return flags
