"""The only place that asks what time it is.

Everything else takes a Clock. journeyman.testing.ManualClock is the double.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records and names, monotonic time for waiting."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since 1970 UTC. May step back or forward."""
        ...

    def monotonic_ns(self) -> int:
        """Never steps back; its zero means nothing."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
