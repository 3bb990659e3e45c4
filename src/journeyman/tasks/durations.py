"""Times that applications give, in seconds or as a timedelta, and the delays before retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from journeyman.errors import UsageError

Seconds: TypeAlias = float | timedelta
MAX_DELAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each retry: ``first``, then ``factor`` times longer each time.

    ``jitter`` 0.1 moves each delay by up to 10 % either way, so that jobs that failed together do
    not come back together.
    """

    first: float = 5.0
    factor: float = 2.0
    max: float = 3_600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.first < 0 or self.factor < 1 or not 0 <= self.jitter < 1:
            raise UsageError(f"{self}: first must be >= 0, factor >= 1, and jitter from 0 to 1")
        if not 0 <= self.max <= MAX_DELAY_S:
            raise UsageError(f"{self}: max must be from 0 to {MAX_DELAY_S:.0f} seconds (a day)")

    def delay_s(self, failures: int, chance: float) -> float:
        """The delay after this many failures; ``chance`` is a random number from 0 to 1."""
        growth = min(failures - 1, 64)  # further growth changes nothing but overflows
        plain = min(self.first * self.factor**growth, self.max)
        return min(plain * (1 + self.jitter * (2 * chance - 1)), MAX_DELAY_S)


def seconds(name: str, value: Seconds, most: float = 1e10) -> float:
    found: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= most:
        raise UsageError(
            f"{name} must be a positive number of seconds or a timedelta, at most {most:.0f} s:"
            f" {value!r}"
        )
    return float(found)


def time_between(low: float, high: float) -> Callable[[str, Seconds], float]:
    """Return what checks an option whose time has these limits."""

    def read(name: str, value: Seconds) -> float:
        found = seconds(name, value)
        if not low <= found <= high:
            limits = f"from {_plain_time(low)} to {_plain_time(high)}"
            raise UsageError(f"{name} must be {limits}: {_plain_time(found)}")
        return found

    return read


def _plain_time(time_s: float) -> str:
    """Return ``30 days`` for 2,592,000: whole days if it is that, else seconds."""
    count, unit = (time_s / 86_400, "day") if time_s % 86_400 == 0 else (time_s, "second")
    return f"{count:.15g} {unit}" if count == 1 else f"{count:.15g} {unit}s"


def as_backoff(name: str, value: Backoff | Seconds) -> Backoff:
    """Return the backoff that this means; a time is the same delay before every retry."""
    if isinstance(value, Backoff):
        return value
    first = 0.0 if value == 0 else seconds(name, value)
    return Backoff(first, factor=1.0, max=max(first, 1.0), jitter=0.0)
