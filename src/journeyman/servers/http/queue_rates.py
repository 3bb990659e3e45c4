"""Jobs added and leases started per second, by queue, from the engine's own counters.

    sample() every few seconds -->  (added, started) of all queues, now and before
    of(number)                 -->  what both gained between the two, per second

Nothing is known before the second sample. A queue that was made since counts from zero.
"""

from __future__ import annotations

from collections.abc import Callable

Totals = list[tuple[int, int]]


class QueueRates:
    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._before: tuple[float, Totals] | None = None
        self._now: tuple[float, Totals] | None = None

    def sample(self, now_s: float) -> None:
        self._before, self._now = self._now, (now_s, self._totals())

    def of(self, number: int) -> tuple[float, float] | None:
        """Added and started, per second; None: not known yet."""
        if self._before is None or self._now is None:
            return None
        (then_s, then), (now_s, now) = self._before, self._now
        seconds = max(now_s - then_s, 0.001)
        before, after = _at(then, number), _at(now, number)
        # A number may have been given to another queue meanwhile.
        added, started = (max(0, b - a) / seconds for a, b in zip(before, after, strict=True))
        return added, started


def _at(totals: Totals, number: int) -> tuple[int, int]:
    return totals[number] if number < len(totals) else (0, 0)
