"""The double of journeyman.clock: time moves only when the test moves it."""

from __future__ import annotations

from journeyman.units import NS_PER_S

DEFAULT_NOW_NS = 1_700_000_000_000_000_000  # some day in November 2023


class ManualClock:
    """A Clock for tests. ``sleep`` returns at once, and moves the time.

    ``advance`` moves both clocks; ``step_wall`` moves only the wall clock, as an operator or a
    time server would, in either direction.
    """

    def __init__(self, now_ns: int = DEFAULT_NOW_NS) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self.advance_ns(round(seconds * NS_PER_S))

    def advance_ns(self, elapsed_ns: int) -> None:
        if elapsed_ns < 0:
            raise ValueError("time does not go back; step_wall moves the wall clock alone")
        self._now_ns += elapsed_ns
        self._monotonic_ns += elapsed_ns

    def step_wall(self, by_ns: int) -> None:
        """Set the wall clock forward or back; monotonic time is unaffected."""
        self._now_ns += by_ns
