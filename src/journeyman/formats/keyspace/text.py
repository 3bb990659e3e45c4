"""The text inside Overhop values: strict JSON kept as it stands, and times to the nanosecond.

A job's payload is whatever its owner put there. Reading it into numbers and writing it out again
would change it (1e16 or 1e+16? 1.0 or 1?), so it is checked and then kept as text:

    '{"a":1,"payload":{"x":1e16}}'  --split_object-->  {"a": Member(1, '1'),
                                                        "payload": Member({...}, '{"x":1e16}')}

Strict means what the original's parser takes: no NaN, no number beyond u64, i64 or a double, no
lone surrogate, no name twice in one object, and nesting up to MAX_JSON_DEPTH whatever the depth
of the caller's own stack.

Times are RFC 3339. Any offset and 0 to 9 decimals are read; written are +00:00 and 0, 3, 6 or 9
decimals, the fewest that lose nothing. Years 1 to 9999.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from journeyman.units import DAY_S, NS_PER_S

MAX_JSON_DEPTH: Final = 128

_EPOCH_DAY = date(1970, 1, 1).toordinal()
MIN_TIME_NS: Final = (date.min.toordinal() - _EPOCH_DAY) * DAY_S * NS_PER_S
MAX_TIME_NS: Final = (date.max.toordinal() - _EPOCH_DAY + 1) * DAY_S * NS_PER_S - 1

_INTEGERS = range(-(2**63), 2**64)
_INTEGER_CHARS = 20
_SPACE = re.compile(r"[ \t\n\r]*")
# A string left open runs to the end: looking for its end again and again would be quadratic.
_BRACKET_OR_STRING = re.compile(r'[\[\]{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))",
    re.ASCII,
)


# The form that is written; the minute it names is the same for most times that come together.
_WRITTEN_TIME = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d):([0-5]\d)(?:\.(\d{3}|\d{6}|\d{9}))?\+00:00", re.ASCII
)
_FRACTION_NS: Final = {0: 0, 3: 1_000_000, 6: 1000, 9: 1}
_MINUTE_NS: Final = 60 * NS_PER_S
_MINUTES_KEPT: Final = 4096


class Member(NamedTuple):
    """One member of an object: what it means, and how it was written."""

    value: Any
    text: str


# -- JSON ----------------------------------------------------------------------------------------


def split_object(text: str) -> dict[str, Member]:
    """The members of the JSON object in ``text``, in their order. Raises ValueError."""
    _check_depth(text)
    members: dict[str, Member] = {}
    at = _expect(text, 0, "{")
    if text[at : at + 1] == "}":
        at += 1
    else:
        while True:
            name, at = _DECODER.raw_decode(text, at)
            if not isinstance(name, str) or name in members:
                raise ValueError("a member whose name is not a string, or is repeated")
            start = _expect(text, at, ":")
            value, at = _DECODER.raw_decode(text, start)
            members[name] = Member(value, text[start:at])
            at = _skip_space(text, at)
            if text[at : at + 1] == "}":
                at += 1
                break
            at = _expect(text, at, ",")
    if _skip_space(text, at) != len(text):
        raise ValueError("more text after the object")
    _check_surrogates(text, members)
    return members


def join_object(members: dict[str, str]) -> str:
    """The JSON object of these members, each already JSON text, without spaces."""
    return "{" + ",".join(f"{_dumps(name)}:{text}" for name, text in members.items()) + "}"


def json_text(value: object) -> str:
    """A value as the original writes it: no spaces, members sorted, UTF-8 as it is."""
    try:
        text = _dumps(value)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH}") from None
    check_json(text)
    return text


def string_text(text: str) -> str:
    """Return what json_text gives for a string; half a surrogate pair is left for ``encode`` to
    refuse.
    """
    return encode_basestring(text)


def check_json(text: str) -> None:
    """Raises ValueError unless ``text`` is one strict JSON value without spaces around it."""
    _check_depth(text)
    try:
        value, end = _scan_once(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    if end != len(text):
        raise ValueError("more text after the value")
    _check_surrogates(text, value)


def _dumps(value: object) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )


def _check_depth(text: str) -> None:
    """Counted before parsing, because the parser's own limit depends on its caller."""
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return
    depth = 0
    for match in _BRACKET_OR_STRING.finditer(text):
        char = match[0]
        depth += (char in "[{") - (char in "]}")
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"nested deeper than {MAX_JSON_DEPTH}")


def _check_surrogates(text: str, value: object) -> None:
    """Half a character cannot be written; the parser lets it in through an escape."""
    if _SURROGATE_ESCAPE.search(text):
        _dumps(value).encode()  # UnicodeEncodeError is a ValueError


def _expect(text: str, at: int, char: str) -> int:
    """Where the next token begins after ``char``, spaces skipped on both sides."""
    at = _skip_space(text, at)
    if text[at : at + 1] != char:
        raise ValueError(f"no {char} where one is due")
    return _skip_space(text, at + 1)


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _parse_integer(text: str) -> int:
    if len(text) > _INTEGER_CHARS or (number := int(text)) not in _INTEGERS:
        raise ValueError("an integer beyond 64 bits")
    return number


def _parse_float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number beyond a double")
    return number


def _parse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _parse_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member that is there twice")
    return members


_DECODER = json.JSONDecoder(
    parse_int=_parse_integer,
    parse_float=_parse_float,
    parse_constant=_parse_constant,
    object_pairs_hook=_parse_members,
)


# raw_decode calls this function; calling it directly skips the type check, which is faster for
# short texts.
_scan_once: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


# -- times ---------------------------------------------------------------------------------------


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time. Raises ValueError."""
    written = _WRITTEN_TIME.fullmatch(text)
    if written is None:
        return _parse_any_time(text)
    minute, second, decimals = written.groups("")
    fraction_ns = int(decimals or "0") * _FRACTION_NS[len(decimals)]
    return _minute_ns(minute) + int(second) * NS_PER_S + fraction_ns


@lru_cache(_MINUTES_KEPT)
def _minute_ns(minute: str) -> int:
    return _parse_any_time(f"{minute}:00Z")


def _parse_any_time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 time")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    decimals, sign, offset_hour, offset_minute = match.groups()[6:]
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("an invalid time of day")
    offset_s = 0
    if sign:
        if int(offset_hour) > 23 or int(offset_minute) > 59:
            raise ValueError("an invalid zone offset")
        offset_s = (int(offset_hour) * 60 + int(offset_minute)) * 60 * (-1 if sign == "-" else 1)
    days = date(year, month, day).toordinal() - _EPOCH_DAY
    seconds = days * DAY_S + hour * 3600 + minute * 60 + second - offset_s
    time_ns = seconds * NS_PER_S + int((decimals or "").ljust(9, "0"))
    if not MIN_TIME_NS <= time_ns <= MAX_TIME_NS:
        raise ValueError("a year that is not 1 to 9999")
    return time_ns


def format_time(time_ns: int) -> str:
    """The time in UTC. Raises ValueError outside the years 1 to 9999."""
    if not MIN_TIME_NS <= time_ns <= MAX_TIME_NS:
        raise ValueError("a year that is not 1 to 9999")
    minute, left_ns = divmod(time_ns, _MINUTE_NS)
    second, nanos = divmod(left_ns, NS_PER_S)
    if nanos == 0:
        return f"{_minute_text(minute)}:{second:02}+00:00"
    digits = f"{nanos:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{_minute_text(minute)}:{second:02}.{digits}+00:00"


@lru_cache(_MINUTES_KEPT)
def _minute_text(minute: int) -> str:
    days, minute_of_day = divmod(minute, 24 * 60)
    hour, minute_of_hour = divmod(minute_of_day, 60)
    day = date.fromordinal(_EPOCH_DAY + days).isoformat()
    return f"{day}T{hour:02}:{minute_of_hour:02}"
