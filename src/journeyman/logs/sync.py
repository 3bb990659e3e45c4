"""How durable an append is at the moment it is acknowledged.

    policy         acknowledged after     lost at worst when power fails
    always         fdatasync              nothing
    interval(ms)   write                  what was written in the last ``ms`` milliseconds
    os             write                  what the operating system has not written back yet

Under every policy a segment is synced before the next one is used, and at close. So what a crash
takes is always from the end of the log, never from its middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from journeyman.errors import UsageError

MAX_INTERVAL_MS = 3_600_000


class SyncMode(Enum):
    """The values are the words used in settings."""

    ALWAYS = "always"
    INTERVAL = "interval"
    OS = "os"


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """One of ``always()``, ``interval(ms)``, ``os()``. ``interval_ms`` is 0 unless interval."""

    mode: SyncMode
    interval_ms: int = 0

    @classmethod
    def always(cls) -> SyncPolicy:
        return cls(SyncMode.ALWAYS)

    @classmethod
    def interval(cls, ms: int) -> SyncPolicy:
        if not 0 < ms <= MAX_INTERVAL_MS:
            raise UsageError(f"sync interval must be 1..{MAX_INTERVAL_MS} ms, not {ms}")
        return cls(SyncMode.INTERVAL, ms)

    @classmethod
    def os(cls) -> SyncPolicy:
        return cls(SyncMode.OS)

    def __str__(self) -> str:
        if self.mode is SyncMode.INTERVAL:
            return f"interval({self.interval_ms} ms)"
        return str(self.mode.value)
