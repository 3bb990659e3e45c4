"""Compaction while serving: started when it is due, in a thread, and its result told.

The thread merges files that nobody writes to any more; only the moment in which the active file
gets another name is shared with the writer, and that is two renames and a sync. What STAT shows
is the Compactor's own status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from journeyman.clock import Clock
from journeyman.errors import LogError, LogPoisoned
from journeyman.logs.ztick.compaction import CompactionStatus, Compactor
from journeyman.servers.core.server_log import ServerLog

LOOK_S = 0.25


class CompactionWatch:
    """Looks a few times a second whether a compaction is due or has ended."""

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
        """``on_end`` is told of each that ended whether it succeeded; not if it had no work."""
        self._loop = loop
        self._clock = clock
        self._compactor = compactor
        self._log = log
        self._log_is_poisoned = log_is_poisoned
        self._on_failure = on_failure
        self._on_end = on_end
        self._was_running = False
        self._timer = loop.call_later(LOOK_S, self._look)

    @property
    def status(self) -> CompactionStatus:
        return self._compactor.status

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
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
        self._timer = self._loop.call_later(LOOK_S, self._look)

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
