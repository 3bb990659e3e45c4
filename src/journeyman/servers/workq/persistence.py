"""A command log on disk -> a WorkqEngine, with the log open for writing; and its cleaning.

The log is locked, then read (core/bulk_loading.py). Every clean_int_ms WorkqLog.clean runs in a
thread of its own, while commands are served. A failed cleaning leaves the log whole, only larger
than necessary: it is reported, and the next one tries again, unless a sync failed in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from journeyman import threads
from journeyman.clock import Clock
from journeyman.config import WorkqSettings, WorkqSync
from journeyman.disk import Disk
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.ledger_entries import FAMILIES, LoadedExtensions
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.errors import JourneymanError
from journeyman.formats.workq import CODEC
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.holders import Holders
from journeyman.logs.workq.cleaning import CleanReport
from journeyman.logs.workq.log import DEFAULT_SEGMENT_BYTES, WorkqLog
from journeyman.servers.core.bulk_loading import BULK_BYTES, WORKQ_READER, LogLoading
from journeyman.servers.core.group_commit import is_final
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.server_log import ServerLog, tell_recovery
from journeyman.servers.workq.writer import LogRecorder
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
        on_record=loading.add,
        in_bulk=loading.add_all,
        holders=holders,
    )
    return OpenedWorkq(log, loading.loader.finish(), in_bulk=loading.was_in_bulk)


@dataclass(frozen=True, slots=True)
class KeptQueue:
    """The engine, loaded, and where its records go."""

    log: WorkqLog
    queue: WorkqEngine
    recorder: LogRecorder


def open_kept_queue(
    settings: WorkqSettings,
    disk: Disk,
    clock: Clock,
    messages: ServerLog,
    ledger: Ledger | None = None,
    holders: Holders | None = None,
) -> KeptQueue:
    """Open the queue as the settings say, with what the ledger has of the work queue, and report
    it."""
    directory, begin_ns = settings.cmdlog_path, clock.monotonic_ns()
    segment_bytes = settings.cmdlog_seg_size_bytes or DEFAULT_SEGMENT_BYTES
    disk.make_dirs(directory)
    extensions = LoadedExtensions()
    records = () if ledger is None else ledger.take_together(*FAMILIES)
    if unread := sum(not extensions.add(record) for record in records):
        messages.warn(
            f"{unread} entries of the ledger for the work queue cannot be read and are skipped"
        )
    is_always = settings.cmdlog_sync is WorkqSync.ALWAYS
    opened = open_log(
        disk,
        clock,
        directory,
        sync=SyncPolicy.ALWAYS if is_always else SyncPolicy.OS,
        segment_bytes=segment_bytes,
        paused=() if ledger is None else ledger.take("queue-pause"),
        seed=random.getrandbits(63),
        extensions=extensions,
        holders=holders,
    )
    log, queue = opened.log, opened.queue
    if ledger is None:
        queue.refuse_extensions()
    tell_recovery(messages, log.recovery)
    stats = queue.stats()
    messages.info(
        f"loaded {stats.ready} ready, {stats.scheduled} scheduled, {stats.leased} leased and "
        f"{stats.completed + stats.failed} finished jobs of the work queue",
        log=directory,
        took_ms=(clock.monotonic_ns() - begin_ns) // NS_PER_MS,
    )
    recorder = LogRecorder(log, is_always, segment_bytes, ledger)
    return KeptQueue(log, queue, recorder)


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
        return poisoned or (isinstance(error, JourneymanError) and is_final(error))

    def _tell(self, report: CleanReport) -> None:
        if report.rewritten or report.removed:
            self._messages.info(
                "the command log was cleaned",
                segments_rewritten=report.rewritten,
                segments_removed=report.removed,
                records_dropped=report.records_dropped,
                bytes_freed=report.bytes_freed,
            )
