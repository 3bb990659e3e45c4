"""Moments on the command line: nanoseconds since 1970, ISO 8601, or ``now``.

1794769251050695748, 2026-11-15T19:00:51Z, 2026-11-15     as in journeyman.moments
now
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from journeyman import moments
from journeyman.clock import SystemClock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_SECOND = 1_000_000_000


def parse_moment(text: str) -> int:
    """Nanoseconds since 1970. Raises ValueError."""
    return SystemClock().now_ns() if text.strip() == "now" else moments.parse_moment(text)


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
