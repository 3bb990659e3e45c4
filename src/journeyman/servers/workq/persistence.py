"""Where the work queue keeps its jobs: what differs between memory, a command log and a store.

    keeping = open_keeping(...)      -> keeping.queue, loaded; keeping.journal for the writer
    keeping.begin_upkeep(...)        what has to be done now and then, once the writer is there
    keeping.look()                   after every batch
    keeping.stop(), keeping.close()  in this order; the writer is closed between them

The command log is here, the store in store_persistence.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from journeyman.clock import Clock
from journeyman.config import WorkqSettings, WorkqSync
from journeyman.disk import Disk
from journeyman.engines.workq.engine import WorkQueueEngine
from journeyman.logs.workq import pauses
from journeyman.logs.workq.log import DEFAULT_SEGMENT_BYTES
from journeyman.servers.core.recovered import tell_recovery
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq.journal import WorkqJournal, policy_of
from journeyman.servers.workq.loading import open_log
from journeyman.servers.workq.upkeep import Cleaning, IntervalSync
from journeyman.servers.workq.writer import WorkqRecorder, WorkqWriter


@dataclass(frozen=True, slots=True)
class PersistenceContext:
    """What any keeping needs."""

    disk: Disk
    clock: Clock
    messages: ServerLog


class Keeping(Protocol):
    """See the module's docstring."""

    what: str  # for messages: "the command log"
    queue: WorkQueueEngine

    @property
    def journal(self) -> WorkqRecorder | None:
        """None: nothing is written."""
        ...

    def begin_upkeep(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: WorkqWriter,
        *,
        cleaned: Callable[[bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None: ...

    def look(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None:
        """May wait for the disk."""
        ...


class MemoryKeeping:
    """Nothing is kept."""

    what = "memory"
    journal: WorkqRecorder | None = None

    def __init__(self, around: PersistenceContext) -> None:
        around.messages.warn(
            'the work queue is in memory only (workq.persistence = "memory"): '
            "its jobs end with the process"
        )
        self.queue = WorkQueueEngine(seed=random.getrandbits(63))

    def begin_upkeep(self, *_: object, **__: object) -> None:
        """There is none."""

    def look(self) -> None:
        """There is nothing to look at."""

    def stop(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


class LogKeeping:
    """The command log: locked and read when this is made."""

    what = "the command log"

    def __init__(self, settings: WorkqSettings, directory: str, around: PersistenceContext) -> None:
        self._settings = settings
        self._around = around
        self._syncing: IntervalSync | None = None
        self._cleaning: Cleaning | None = None
        segment_bytes = settings.cmdlog_seg_size_bytes or DEFAULT_SEGMENT_BYTES
        begin_ns = around.clock.monotonic_ns()
        around.disk.make_dirs(directory)
        opened = open_log(
            around.disk,
            around.clock,
            directory,
            sync=policy_of(settings.cmdlog_sync),
            segment_bytes=segment_bytes,
            paused=pauses.read(around.disk, directory),
            seed=random.getrandbits(63),
        )
        self._log = opened.log
        self.queue = opened.queue
        tell_recovery(around.messages, opened.log.recovery)
        tell_loaded(around, opened.queue, begin_ns, log=directory)
        self.journal = WorkqJournal(
            self._log,
            around.disk,
            directory,
            sync=settings.cmdlog_sync,
            segment_bytes=segment_bytes,
        )

    def begin_upkeep(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: WorkqWriter,
        *,
        cleaned: Callable[[bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        settings = self._settings
        if settings.cmdlog_sync is WorkqSync.INTERVAL:
            self._syncing = IntervalSync(
                loop, self.journal, writer, interval_ms=settings.cmdlog_sync_int_ms
            )
        if settings.cmdlog_clean_int_ms:
            self._cleaning = Cleaning(
                loop,
                self._around.clock,
                self._log,
                self.journal,
                self._around.messages,
                interval_ms=settings.cmdlog_clean_int_ms,
                ended=cleaned,
                on_failure=on_failure,
            )

    def look(self) -> None:
        if self._syncing is not None:
            self._syncing.look()

    def stop(self) -> None:
        for upkeep in (self._syncing, self._cleaning):
            if upkeep is not None:
                upkeep.stop()

    def close(self) -> None:
        self._log.close()


def tell_loaded(
    around: PersistenceContext, queue: WorkQueueEngine, begin_ns: int, **where: object
) -> None:
    stats = queue.stats()
    around.messages.info(
        f"loaded {stats.ready} ready, {stats.scheduled} scheduled, {stats.leased} leased and "
        f"{stats.completed + stats.failed} finished jobs of the work queue",
        **where,
        took_ms=(around.clock.monotonic_ns() - begin_ns) // 1_000_000,
    )
