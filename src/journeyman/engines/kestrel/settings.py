"""What can be set for a queue and for each of its readers.

    reader's own setting  <-  that of its queue  <-  the default

Limits that count items or bytes are those of a reader: a put is refused if any reader is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """None: no limit."""

    max_items: int | None = None
    max_bytes: int | None = None
    drops_oldest: bool = False  # when full; else puts are refused
    max_age_ms: int | None = None
    expire_to: str | None = None  # the queue that expired items go to; else they are dropped
    max_errors: int | None = None  # so many aborts, and the item goes to ``errors_to``
    errors_to: str | None = None  # None: it is dropped
    max_open: int = 1  # reads that one connection may have open on this key
    max_expire_sweep: int | None = None  # of one flush_expired or background sweep

    @property
    def is_limited(self) -> bool:
        return self.max_items is not None or self.max_bytes is not None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    reader: ReaderSettings = field(default_factory=ReaderSettings)  # of readers not named below
    readers: Mapping[str, ReaderSettings] = field(default_factory=dict)
    max_item_bytes: int | None = None
    max_age_ms: int | None = None  # of the queue: then it goes, if it is empty

    def of_reader(self, name: str) -> ReaderSettings:
        return self.readers.get(name, self.reader)


@dataclass(frozen=True, slots=True)
class FanOutSettings:
    """All queues. ``window`` bounds what of each queue is kept in memory."""

    default: QueueSettings = field(default_factory=QueueSettings)
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    max_item_bytes: int = 16 * 1024 * 1024  # of any queue
    max_queues: int = 4096
    max_readers: int = 1000  # of one queue
    window_items: int = 8192
    window_bytes: int = 2 * 1024 * 1024
    sweep_interval_ms: int = 1000
    shutdown_allowed: bool = False

    def of_queue(self, name: str) -> QueueSettings:
        return self.queues.get(name, self.default)
