"""Writes in flight and their ages: a slow disk is reported, and a stuck server is not ready.

    batch --begin--> WriteInFlight --end--> how long it took
                          ^
    WriteWatch.report ----+  in a thread of its own, because the event loop may be what waits

    age of a write                what happens
    limits.write_warn_ms          a WARN; the write counts as slow
    limits.write_deadline_ms      an ERROR; GET /v1/ready is 503 with the reason
    limits.watchdog_deadline_ms   systemd gets no more signs of life
    it ends                       an INFO that says how long it took; the server is ready again

A write is in flight from the moment a batch is handed to the disk until its writer knows the end,
so waiting for a lock that a compaction holds counts too. GET /health does not depend on this: a
restart does not mend a disk.

A quick sync is waited for on the event loop (group_commit.py). If that one stalls, the loop answers
nothing, so the thread sends the signs of life and starts the stand-in, which answers on the HTTP
port (stand_in.py). The thread sleeps while nothing is written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from journeyman.clock import Clock
from journeyman.config.settings import LimitSettings
from journeyman.servers.core.metrics import Family, Point, counter, gauge
from journeyman.servers.core.server_log import ServerLog, ServiceManager
from journeyman.units import NS_PER_MS, NS_PER_S

SIGNS_PER_INTERVAL = 4  # signs of life within an interval of the watchdog, while the loop waits


class WriteInFlight:
    """The write that a writer waits for, while there is one. Used on the event loop, except that
    the watch reads it from a thread."""

    __slots__ = ("_clock", "begun_ns", "holds_loop", "reports", "watch")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begun_ns: int | None = None  # monotonic
        self.holds_loop = False
        self.watch: WriteWatch | None = None
        self.reports = 0  # how many thresholds it has passed that were reported

    def begin(self, *, holds_loop: bool = False) -> None:
        self.holds_loop = holds_loop
        self.begun_ns = self._clock.monotonic_ns()
        if self.watch is not None and self.watch.is_asleep:
            self.watch.wake()

    def end(self) -> None:
        begun_ns, self.begun_ns = self.begun_ns, None
        if self.watch is not None and begun_ns is not None:
            took_ns = self._clock.monotonic_ns() - begun_ns
            if took_ns >= self.watch.warn_ns:
                self.watch.on_slow(self, took_ns)
            self.reports = 0

    def age_ns(self) -> int:
        """How long the write has been in flight; 0 if there is none."""
        begun_ns = self.begun_ns
        return 0 if begun_ns is None else self._clock.monotonic_ns() - begun_ns


class WriteWatch:
    """See the module. ``name`` of a write is that of its log in the figures."""

    def __init__(self, clock: Clock, messages: ServerLog, limits: LimitSettings) -> None:
        self._clock = clock
        self._messages = messages
        self.warn_ns = limits.write_warn_ms * NS_PER_MS
        self.deadline_ns = limits.write_deadline_ms * NS_PER_MS
        self._watchdog_ns = limits.watchdog_deadline_ms * NS_PER_MS
        self._writes: dict[WriteInFlight, str] = {}
        self._slow: Counter[str] = Counter()
        self.is_asleep = False
        self.wake: Callable[[], None] = lambda: None

    def add(self, name: str, write: WriteInFlight) -> None:
        """Watch all writes of a writer."""
        write.watch = self
        self._writes[write] = name

    def begin(self, name: str) -> Callable[[], None]:
        """Watch a write that belongs to no writer; the result is to be called when it has ended."""
        write = WriteInFlight(self._clock)
        self.add(name, write)
        write.begin()

        def end() -> None:
            write.end()
            del self._writes[write]

        return end

    # -- what the others ask --

    def reason(self, write: WriteInFlight) -> str:
        """Why its service is not ready; empty: it is."""
        age_ns = write.age_ns()
        if age_ns < self.deadline_ns:
            return ""
        return f"a write has not ended for {_seconds(age_ns)}"

    def stuck(self) -> dict[str, str]:
        """The reason for each log with a write that is older than the deadline."""
        reasons = ((name, self.reason(write)) for write, name in self._all())
        return {name: reason for name, reason in reasons if reason}

    def reason_of_loop(self) -> str:
        """Why no port answers, while the event loop itself waits for a write."""
        held = [(write.age_ns(), name) for write, name in self._all() if write.holds_loop]
        age_ns, name = max(held, default=(0, ""))
        return f"all ports wait: a write of the {name} log has not ended for {_seconds(age_ns)}"

    def is_any(self) -> bool:
        return any(write.begun_ns is not None for write, _ in self._all())

    def is_loop_held(self) -> bool:
        """Return whether the event loop itself waits for a write, long enough to be slow."""
        return any(write.holds_loop and write.age_ns() >= self.warn_ns for write, _ in self._all())

    def is_alive(self) -> bool:
        """Return whether the service manager should leave the process running."""
        return all(write.age_ns() < self._watchdog_ns for write, _ in self._all())

    def families(self) -> list[Family]:
        ages: dict[str, int] = {}
        for write, name in self._all():
            ages[name] = max(ages.get(name, 0), write.age_ns())
        return [
            gauge(
                "write.age_seconds",
                "Age of the oldest write in flight of a log.",
                [Point({"log": name}, age_ns / NS_PER_S) for name, age_ns in ages.items()],
            ),
            counter(
                "writes.slow",
                "Writes that took longer than limits.write_warn_ms.",
                [Point({"log": name}, self._slow[name]) for name in ages],
            ),
        ]

    # -- what is reported --

    def report(self) -> None:
        """Log the writes that have passed a threshold since the last call."""
        for write, name in self._all():
            age_ns = write.age_ns()
            if write.reports == 0 and age_ns >= self.warn_ns:
                write.reports = 1
                self._messages.warn(
                    f"a write has not ended for {_seconds(age_ns)}: the disk is slow, or hangs; "
                    "its clients wait",
                    log=name,
                )
            if write.reports == 1 and age_ns >= self.deadline_ns:
                write.reports = 2
                self._messages.error(
                    f"not ready: a write has not ended for {_seconds(age_ns)}", log=name
                )
            if write.reports == 2 and age_ns >= self._watchdog_ns:
                write.reports = 3
                self._messages.error(
                    f"a write has not ended for {_seconds(age_ns)}: the service manager gets no "
                    "more signs of life",
                    log=name,
                )

    def on_slow(self, write: WriteInFlight, took_ns: int) -> None:
        """A write that took longer than it should has ended."""
        name = self._writes[write]
        self._slow[name] += 1
        if write.reports:
            self._messages.info(f"the write has ended after {_seconds(took_ns)}", log=name)
        else:
            self._messages.warn(f"a write took {_seconds(took_ns)}: the disk is slow", log=name)

    def _all(self) -> list[tuple[WriteInFlight, str]]:
        """A copy in one step: the event loop adds and removes writes meanwhile."""
        return list(self._writes.items())


class WatchThread:
    """Looks at the writes while there are any. ``stand_in`` serves until the loop is free again."""

    def __init__(
        self, writes: WriteWatch, manager: ServiceManager, stand_in: Callable[[], None]
    ) -> None:
        self._writes = writes
        self._manager = manager
        self._stand_in = stand_in
        self._standing_in: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._has_work = threading.Event()
        self._pause_s = writes.warn_ns / NS_PER_S
        if manager.watchdog_s:
            self._pause_s = min(self._pause_s, manager.watchdog_s / SIGNS_PER_INTERVAL)
        writes.wake = self._has_work.set
        self._thread = threading.Thread(target=self._run, name="journeyman-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._has_work.set()
        self._thread.join()

    def _run(self) -> None:
        writes = self._writes
        while not self._is_closing.is_set():
            writes.is_asleep = True
            # A write that began before this line has not seen the flag.
            if not writes.is_any():
                self._has_work.wait()
            writes.is_asleep = False
            self._has_work.clear()
            # Also after being woken: a busy server begins thousands of writes per second.
            self._is_closing.wait(self._pause_s)
            writes.report()
            if writes.is_loop_held():
                self._serve_for_the_loop()

    def _serve_for_the_loop(self) -> None:
        if self._writes.is_alive():
            self._manager.sign_of_life()
        if self._standing_in is None or not self._standing_in.is_alive():
            self._standing_in = threading.Thread(
                target=self._stand_in, name="journeyman-stand-in", daemon=True
            )
            self._standing_in.start()


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / NS_PER_S:.1f} s"
