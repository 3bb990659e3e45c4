"""Moments on the command line: nanoseconds since 1970, ISO 8601, or ``now``.

1794769251050695748     nanoseconds, as the logs count
2026-11-15T19:00:51Z    ISO 8601; without a zone it is UTC; a fraction may have nine digits
2026-11-15              midnight UTC
now
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from journeyman.clock import SystemClock

__all__ = ["MOMENT", "iso", "parse_moment"]

_FRACTION = re.compile(r"(?<=\d)[.,](\d{1,9})(?=$|Z|[+-])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_SECOND = 1_000_000_000


def parse_moment(text: str) -> int:
    """Nanoseconds since 1970. Raises ValueError."""
    text = text.strip()
    if text == "now":
        return SystemClock().now_ns()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    fraction_ns = 0
    if (match := _FRACTION.search(text)) is not None:
        # datetime keeps microseconds only
        fraction_ns = int(match.group(1).ljust(9, "0"))
        text = text[: match.start()] + text[match.end() :]
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1) * _NS_PER_SECOND + fraction_ns


def iso(unix_ns: int) -> str:
    """ISO 8601 in UTC, with 0, 3, 6 or 9 digits as the moment needs; beyond 9999 the number."""
    seconds, rest_ns = divmod(unix_ns, _NS_PER_SECOND)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return f"{unix_ns}ns"
    fraction = f"{rest_ns:09d}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{text.rjust(19, '0')}{'.' if fraction else ''}{fraction}Z"


if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType  # generic only in newer versions of click


class _Moment(_ParamType):
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_moment(str(value))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no moment: give nanoseconds since 1970, ISO 8601 or `now`",
                param,
                ctx,
            )


MOMENT = _Moment()
