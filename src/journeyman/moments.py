"""Moments as people write them: ISO 8601, or nanoseconds since 1970 as the logs count.

2026-11-15T19:00:51.050695748Z     without a zone it is UTC; the fraction has up to nine digits
2026-11-15 19:00:51, 2026-11-15
1794769251050695748
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from journeyman.units import NS_PER_S

_FRACTION = re.compile(r"(?<=\d)[.,](\d{1,9})(?=$|Z|[+-])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str) -> int:
    """Nanoseconds since 1970. Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    fraction_ns = 0
    if (match := _FRACTION.search(text)) is not None:
        # A datetime keeps microseconds only.
        fraction_ns = int(match.group(1).ljust(9, "0"))
        text = text[: match.start()] + text[match.end() :]
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1) * NS_PER_S + fraction_ns
