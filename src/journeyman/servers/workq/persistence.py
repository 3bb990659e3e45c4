"""Where the work queue keeps its jobs: what differs between memory and a command log.

    keeping.queue                    the engine, loaded
    keeping.recorder                  for the writer; None: nothing is written
    keeping.begin_upkeep(...)        what has to be done now and then, once the writer is there
    keeping.look()                   after every batch
    keeping.stop(), keeping.close()  in this order; the writer is closed between them

The command log is locked, then read (core/bulk_loading.py).

Upkeep of the command log:

    a batch was written --look()--> interval policy? --> a timer --> sync, in the writer's thread
    every clean_int_ms  --> WorkqLog.clean, in a thread of its own, while commands are served

A failed sync is final, and the writer says so. A failed cleaning leaves the log whole, only larger
than necessary: it is reported, and the next one tries again, unless a sync failed in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from journeyman import threads
from journeyman.clock import Clock
from journeyman.config import WorkqSettings, WorkqSync
from journeyman.disk import Disk
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.extensions import FAMILIES, LoadedExtensions
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.engines.workq.messages import WorkqStats
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.workq import CODEC
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.holders import Holders
from journeyman.logs.workq.cleaning import CleanReport
from journeyman.logs.workq.log import DEFAULT_SEGMENT_BYTES, WorkqLog
from journeyman.servers.core.bulk_loading import BULK_BYTES, WORKQ_READER, LogLoading
from journeyman.servers.core.group_commit import is_over
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.server_log import ServerLog, tell_recovery
from journeyman.servers.workq.writer import LogRecorder, WorkqWriter, policy_of
from journeyman.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class OpenedWorkq:
    log: WorkqLog
    queue: WorkqEngine
    in_bulk: bool


def open_log(
    disk: Disk,
    clock: Clock,
    directory: str,
    *,
    sync: SyncPolicy,
    segment_bytes: int,
    paused: Iterable[str] = (),
    seed: int = 0,
    bulk_bytes: int = BULK_BYTES,
    extensions: LoadedExtensions | None = None,
    holders: Holders | None = None,
) -> OpenedWorkq:
    """Lock, read, repair if needed, and open for writing. LogLocked when someone else has it."""

    def make_loader() -> WorkqLoader:
        return WorkqLoader(now_ns=clock.now_ns(), paused=paused, seed=seed, extensions=extensions)

    loading = LogLoading(disk, CODEC, WORKQ_READER, make_loader, bulk_bytes)
    log = WorkqLog.open(
        disk,
        clock,
        directory,
        sync=sync,
        segment_bytes=segment_bytes,
        each=loading.add,
        in_bulk=loading.add_all,
        holders=holders,
    )
    return OpenedWorkq(log, loading.loader.finish(), in_bulk=loading.was_in_bulk)


@dataclass(frozen=True, slots=True)
class PersistenceContext:
    """What any keeping needs."""

    disk: Disk
    clock: Clock
    messages: ServerLog
    ledger: Ledger | None = None
    holders: Holders | None = None


class Keeping(Protocol):
    """See the module's docstring."""

    what: str  # for messages: "the command log"
    queue: WorkqEngine

    @property
    def recorder(self) -> LogRecorder | None:
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
    recorder: LogRecorder | None = None

    def __init__(self, around: PersistenceContext) -> None:
        around.messages.warn(
            'the work queue is in memory only (workq.persistence = "memory"): '
            "its jobs end with the process"
        )
        self.queue = WorkqEngine(seed=random.getrandbits(63))

    def begin_upkeep(self, *_: object, **__: object) -> None:
        """There is none."""

    def look(self) -> None:
        """There is nothing to look at."""

    def stop(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


class IntervalSync:
    """Syncs at most ``interval_ms`` after something was written."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        recorder: LogRecorder,
        writer: WorkqWriter,
        *,
        interval_ms: int,
    ) -> None:
        self._loop = loop
        self._recorder = recorder
        self._writer = writer
        self._interval_s = interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """After every batch; cheap when nothing was written, or the timer runs."""
        if self._timer is None and self._recorder.is_unsynced:
            self._timer = self._loop.call_later(self._interval_s, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._writer.run_between(self._recorder.sync)


class Cleaning:
    """Cleans the log at intervals. ``ended`` gets whether it went well."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: WorkqLog,
        recorder: LogRecorder,
        messages: ServerLog,
        *,
        interval_ms: int,
        ended: Callable[[bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._log = log
        self._recorder = recorder
        self._messages = messages
        self._interval_s = interval_ms / 1000
        self._ended = ended
        self._on_failure = on_failure
        self._thread = threads.pool(1, "journeyman-cleaning")
        self._timer = loop.call_later(self._interval_s, self._begin)

    def stop(self) -> None:
        """A cleaning under way comes to its end; the log waits for it when it is closed."""
        self._timer.cancel()
        self._thread.shutdown(wait=False)

    async def run_now(self) -> str:
        """Clean whether it is due or not; what came of it."""
        if self._recorder.is_shared:
            return "a cleaning is running already"
        self._timer.cancel()
        future = self._begin(thorough=True)
        try:
            report = await asyncio.wrap_future(future)
        except (JourneymanError, OSError) as error:
            return f"cleaning failed; the log is whole: {error}"
        return (
            f"{report.records_dropped} records dropped, {report.bytes_freed} bytes freed, "
            f"{report.rewritten} segments rewritten, {report.removed} removed"
        )

    def _begin(self, *, thorough: bool = False) -> Future[CleanReport]:
        self._recorder.is_shared = True
        future = self._thread.submit(self._log.clean, self._clock.now_ns(), thorough=thorough)
        future.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._end, future))
        return future

    def _end(self, future: Future[CleanReport]) -> None:
        self._recorder.is_shared = False
        error = future.exception()
        if error is None:
            self._tell(future.result())
        elif isinstance(error, JourneymanError | OSError) and not self._is_final(error):
            self._messages.warn("cleaning failed; the log is whole", reason=error)
        else:
            self._on_failure(error)
            return
        self._ended(error is None)
        self._timer = self._loop.call_later(self._interval_s, self._begin)

    def _is_final(self, error: BaseException) -> bool:
        poisoned = self._log.appender.poisoned is not None
        return poisoned or (isinstance(error, JourneymanError) and is_over(error))

    def _tell(self, report: CleanReport) -> None:
        if report.rewritten or report.removed:
            self._messages.info(
                "the command log was cleaned",
                segments_rewritten=report.rewritten,
                segments_removed=report.removed,
                records_dropped=report.records_dropped,
                bytes_freed=report.bytes_freed,
            )


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
        ledger = around.ledger
        opened = open_log(
            around.disk,
            around.clock,
            directory,
            sync=policy_of(settings.cmdlog_sync),
            segment_bytes=segment_bytes,
            paused=() if ledger is None else ledger.take("queue-pause"),
            seed=random.getrandbits(63),
            extensions=extensions_of(
                () if ledger is None else ledger.take_together(*FAMILIES),
                around.messages,
            ),
            holders=around.holders,
        )
        if ledger is None:
            opened.queue.refuse_extensions()
        self._log = opened.log
        self.queue = opened.queue
        tell_recovery(around.messages, opened.log.recovery)
        tell_loaded(around, self.queue.stats(), begin_ns, log=directory)
        self.recorder = LogRecorder(
            self._log,
            sync=settings.cmdlog_sync,
            segment_bytes=segment_bytes,
            ledger=ledger,
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
                loop, self.recorder, writer, interval_ms=settings.cmdlog_sync_int_ms
            )
        if settings.cmdlog_clean_int_ms:
            self._cleaning = Cleaning(
                loop,
                self._around.clock,
                self._log,
                self.recorder,
                self._around.messages,
                interval_ms=settings.cmdlog_clean_int_ms,
                ended=cleaned,
                on_failure=on_failure,
            )

    async def clean_now(self) -> str:
        """Clean all that can be cleaned, due or not."""
        if self._cleaning is None:
            return "cleaning is off (workq.cmdlog_clean_int = 0)"
        return await self._cleaning.run_now()

    def look(self) -> None:
        if self._syncing is not None:
            self._syncing.look()

    def stop(self) -> None:
        for upkeep in (self._syncing, self._cleaning):
            if upkeep is not None:
                upkeep.stop()

    def close(self) -> None:
        self._log.close()


def extensions_of(records: Iterable[LedgerRecord], messages: ServerLog) -> LoadedExtensions:
    """What a ledger says of jobs and queues; what makes no sense is left out, and reported."""
    extensions = LoadedExtensions()
    unread = sum(not extensions.add(each) for each in records)
    if unread:
        messages.warn(
            f"{unread} entries of the ledger for the work queue cannot be read and are skipped"
        )
    return extensions


def tell_loaded(
    around: PersistenceContext, stats: WorkqStats, begin_ns: int, **where: object
) -> None:
    around.messages.info(
        f"loaded {stats.ready} ready, {stats.scheduled} scheduled, {stats.leased} leased and "
        f"{stats.completed + stats.failed} finished jobs of the work queue",
        **where,
        took_ms=(around.clock.monotonic_ns() - begin_ns) // NS_PER_MS,
    )
