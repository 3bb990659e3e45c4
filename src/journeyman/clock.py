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
    """The machine's clock: the functions themselves, because time is asked for with every batch."""

    now_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    sleep = staticmethod(time.sleep)
