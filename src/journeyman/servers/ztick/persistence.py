"""A log on disk -> a ZtickEngine, with the log open for writing; and compaction while serving.

The log's lock is held before a byte is read (core/bulk_loading.py). Damage never stops a server: it
is set aside, and ``recovery`` reports it.

Files that ztick has left may belong to the log under other names: it compacts into
``logfile.compressed`` in its working directory, whatever its log is called, and renames the log to
``logfile.to_compress`` meanwhile. They may as well belong to another log, so they are not read: a
warning says what was found, and how to have it read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from journeyman.clock import Clock
from journeyman.disk import Disk, absolute, is_database
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.messages import RemoveEnded
from journeyman.errors import LogError, LogPoisoned
from journeyman.formats.ztick import CODEC
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.holders import Holders
from journeyman.logs.segments import ZtickNames
from journeyman.logs.ztick.log import CompactionStatus, Compactor, ZtickLog
from journeyman.servers.core.bulk_loading import BULK_BYTES, ZTICK_READER, LogLoading
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import delay_to_second
from journeyman.units import DAY_MS, NS_PER_MS

RETENTION_LOOK_S = 0.2  # while there is something to remove
RETENTION_JOBS = 200  # removed at a look: a thousand a second, 86 million a day

_OF_ZTICK = ZtickNames("logfile")
LOOK_S = 0.25  # while a compaction runs
IDLE_LOOK_S = 2.0  # the interval of both watches while there is nothing to do


@dataclass(frozen=True, slots=True)
class OpenedZtick:
    log: ZtickLog
    schedule: ZtickEngine
    in_bulk: bool


def open_log(
    disk: Disk,
    clock: Clock,
    path: str,
    *,
    sync: SyncPolicy,
    max_runs: int,
    retained: bool = False,
    seal: bool = True,
    bulk_bytes: int = BULK_BYTES,
    holders: Holders | None = None,
) -> OpenedZtick:
    """Lock, read, repair if needed, and open for writing. LogLocked when someone else has it."""
    loading = LogLoading(disk, CODEC, ZTICK_READER, ZtickLoader, bulk_bytes)
    log = ZtickLog.open(
        disk,
        clock,
        path,
        sync=sync,
        seal=seal,
        on_record=loading.add,
        in_bulk=loading.add_all,
        holders=holders,
    )
    return OpenedZtick(
        log,
        loading.loader.finish(max_runs=max_runs, retained=retained),
        in_bulk=loading.was_in_bulk,
    )


def tell_of_ztick_files(disk: Disk, path: str, messages: ServerLog) -> None:
    """Warn of such files in the working directory and beside the log at ``path``."""
    if is_database(path):
        return  # ztick writes files
    own = ZtickNames(path)
    for name, where_it_is_read in (
        (_OF_ZTICK.compressed, own.compressed),
        (_OF_ZTICK.to_compress, own.to_compress),
    ):
        for found in dict.fromkeys((name, os.path.join(os.path.dirname(path), name))):
            if absolute(found) == absolute(where_it_is_read):
                continue
            if disk.exists(found):
                messages.warn(
                    f"{found} is there and was not read: ztick writes this name whatever its log "
                    f"is called; if it belongs to {path}, stop the server and move it to "
                    f"{where_it_is_read}"
                )


class CompactionWatch:
    """Looks every other second whether a compaction is due, more often whether it has ended, and
    reports it.

    The compaction runs in a thread and merges files that are not written to any more. Only the
    rename of the active file involves the writer: two renames and a sync.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        compactor: Compactor,
        log: ServerLog,
        *,
        log_is_poisoned: Callable[[], bool],
        on_failure: Callable[[BaseException], None],
        on_end: Callable[[bool], None] | None = None,
    ) -> None:
        """``on_end`` gets whether a compaction succeeded; not if it had no work."""
        self._loop = loop
        self._clock = clock
        self._compactor = compactor
        self._log = log
        self._log_is_poisoned = log_is_poisoned
        self._on_failure = on_failure
        self._on_end = on_end
        self._was_running = False
        self._timer = loop.call_later(delay_to_second(loop, IDLE_LOOK_S), self._check)

    @property
    def status(self) -> CompactionStatus:
        return self._compactor.status

    async def run_now(self) -> str:
        """Compact whether it is due or not; what came of it. The next look tells it, too."""
        self._was_running = True
        now_ns = self._clock.monotonic_ns()
        if not await self._loop.run_in_executor(None, self._compactor.run, now_ns):
            return "a compaction is running already"
        if self._compactor.error is not None:
            return f"compaction failed; the log is whole: {self._compactor.error}"
        report = self._compactor.report
        if self._compactor.status != "success" or report is None:
            return "there was nothing to compact"
        return (
            f"{report.records_read} records became {report.records_kept}, "
            f"{report.bytes_read} bytes became {report.bytes_kept}"
        )

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        compactor = self._compactor
        if self._was_running and compactor.status != "running":
            self._was_running = False
            self._tell()
        if compactor.start(self._clock.monotonic_ns()):
            self._was_running = True
        if self._log_is_poisoned():
            error = compactor.error or LogPoisoned("log", "a sync failed")
            self._on_failure(error if isinstance(error, LogError) else LogError("log", str(error)))
            return
        self._timer = self._loop.call_later(
            LOOK_S if self._was_running else delay_to_second(self._loop, IDLE_LOOK_S), self._check
        )

    def _tell(self) -> None:
        if self._on_end is not None and self._compactor.status in ("success", "failure"):
            self._on_end(self._compactor.status == "success")
        if self._compactor.error is not None:
            self._log.warn("compaction failed; the log is whole", reason=self._compactor.error)
        elif self._compactor.status == "success" and self._compactor.report is not None:
            report = self._compactor.report
            self._log.info(
                "the log was compacted",
                records_read=report.records_read,
                records_kept=report.records_kept,
                bytes_read=report.bytes_read,
                bytes_kept=report.bytes_kept,
            )


class RetentionWatch:
    """Has jobs removed that ended long ago: a few at a time, so that no client waits for it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        first_ended_ns: Callable[[], int | None],
        submit: Callable[[RemoveEnded], None],
        *,
        retention_ns: int,
        mark: Callable[[], None] = lambda: None,
    ) -> None:
        """``mark`` is called once a day, and at first at once."""
        self._mark = mark
        self._next_mark_ns = clock.monotonic_ns()
        self._loop = loop
        self._clock = clock
        self._first_ended_ns = first_ended_ns
        self._submit = submit
        self._retention_ns = retention_ns
        self._timer = loop.call_later(delay_to_second(loop, IDLE_LOOK_S), self._check)

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        delay_s = delay_to_second(self._loop, IDLE_LOOK_S)
        first_ns = self._first_ended_ns()
        before_ns = self._clock.now_ns() - self._retention_ns
        if first_ns is not None and first_ns <= before_ns:
            self._submit(RemoveEnded(before_ns, RETENTION_JOBS))
            delay_s = RETENTION_LOOK_S
        if self._clock.monotonic_ns() >= self._next_mark_ns:
            self._next_mark_ns += DAY_MS * NS_PER_MS
            self._mark()
        self._timer = self._loop.call_later(delay_s, self._check)
