"""When to look for due jobs: at the next due time, at most ``framerate`` times a second.

    the writer finished a batch --look()--> is the next due time another one? --> set the timer
    the timer --> fire(): "due now" goes to the writer --> its batch --> look() ...

Due times are wall time, waiting is monotonic time, and the wall clock may be set in either
direction while we wait. So nobody waits longer than RECHECK_S at a stretch: then the wall clock is
read again. Set forward, jobs fire at most that much late; set back, they wait for their time.

Not here: which jobs are due. That is decided by the engine, with the time as data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from journeyman.clock import Clock
from journeyman.units import NS_PER_S

RECHECK_S = 1.0


class Ticker:
    """Calls ``fire`` when ``next_due_ns()`` has come."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        next_due_ns: Callable[[], int | None],
        fire: Callable[[], None],
        *,
        framerate: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._next_due_ns = next_due_ns
        self._fire = fire
        self._frame_ns = NS_PER_S // framerate
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0  # monotonic time the timer is set to
        self._not_before_ns = clock.monotonic_ns()
        self._stopped = False

    def look(self) -> None:
        """Set the timer by what is due next; cheap when nothing changed."""
        if self._stopped:
            return
        due_ns = self._next_due_ns()
        if due_ns is None:
            self._cancel()
            return
        now_ns = self._clock.monotonic_ns()
        wait_ns = min(due_ns - self._clock.now_ns(), int(RECHECK_S * NS_PER_S))
        wake_ns = max(now_ns + wait_ns, self._not_before_ns, now_ns)
        # A timer that rings a little early only looks again; moving it for every command costs.
        if self._timer is not None and now_ns <= self._timer_ns <= wake_ns:
            return
        self._cancel()
        self._timer_ns = wake_ns
        self._timer = self._loop.call_later((wake_ns - now_ns) / NS_PER_S, self._ring)

    def hold_off(self, seconds: float) -> None:
        """Do not fire for a while: what is due could not be written."""
        self._not_before_ns = self._clock.monotonic_ns() + int(seconds * NS_PER_S)
        self._cancel()
        self.look()

    def stop(self) -> None:
        self._stopped = True
        self._cancel()

    def _ring(self) -> None:
        self._timer = None
        due_ns = self._next_due_ns()
        now_ns = self._clock.monotonic_ns()
        if due_ns is None or due_ns > self._clock.now_ns() or now_ns < self._not_before_ns:
            self.look()
            return
        self._not_before_ns = now_ns + self._frame_ns
        self._fire()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
