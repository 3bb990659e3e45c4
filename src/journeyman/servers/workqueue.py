"""The work queue as a whole: built from the settings, started, and stopped in order.

    start    the command log is locked and read; the port opens only when all of it is loaded
    stop     1 no new connections; who waits for a job or a result is let go
             2 what was received is answered, connections are closed
             3 the log is synced and closed: ``close``, when nobody has anything to add any more

It shares the process, the HTTP port and the figures with the schedule (schedule.py), and nothing
else: each has its own log, writer and ticker. A failed sync stops both at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from journeyman.clock import Clock
from journeyman.config import Address, Configuration, WorkqSync
from journeyman.disk import Disk
from journeyman.engines.workq import WorkQueue
from journeyman.errors import JourneymanError
from journeyman.logs import workq_pauses
from journeyman.logs.workq_log import DEFAULT_SEGMENT_BYTES, WorkqLog
from journeyman.protocols.workq_commands import Add
from journeyman.servers.closing import ANSWER_LIMIT_S, close_sessions
from journeyman.servers.group_commit import RETRY_S
from journeyman.servers.listener import Listener, listen
from journeyman.servers.metric_families import Family
from journeyman.servers.recovered import tell_recovery
from journeyman.servers.server_log import ServerLog
from journeyman.servers.ticker import Ticker
from journeyman.servers.workq_calls import WorkqCalls
from journeyman.servers.workq_journal import WorkqJournal, policy_of
from journeyman.servers.workq_loading import open_log
from journeyman.servers.workq_metrics import WorkqMetrics
from journeyman.servers.workq_session import WorkqSession, WorkqSurroundings
from journeyman.servers.workq_upkeep import Cleaning, IntervalSync
from journeyman.servers.workq_writer import WorkqWriter

__all__ = ["WorkQueueServer"]

FRAMERATE = 1000  # how often a second, at most, it is looked at what the time has brought


class WorkQueueServer:
    """One running work queue. ``failed`` is called, once, when it cannot go on."""

    def __init__(
        self,
        configuration: Configuration,
        disk: Disk,
        clock: Clock,
        messages: ServerLog,
        *,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._settings = configuration.settings
        self._disk = disk
        self._clock = clock
        self._messages = messages
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._log: WorkqLog | None = None
        self._syncing: IntervalSync | None = None
        self._cleaning: Cleaning | None = None
        self._in_trouble = False
        self._listener: Listener
        self.figures: WorkqMetrics
        self.around: WorkqSurroundings
        self.writer: WorkqWriter
        self.calls: WorkqCalls

    @property
    def address(self) -> Address:
        return self._listener.address

    def families(self) -> list[Family]:
        """The figures; ready to be asked when the work queue has started."""
        return self.figures.families()

    async def add(self, job: Add) -> str:
        """For the schedule's rules: why the job could not be added, or nothing."""
        return await self.calls.add(job)

    # -- start --

    async def start(self) -> None:
        """Load and listen. Raises what stands in the way; nothing is left open then."""
        queue = self._open_log()
        try:
            self._build(queue)
            self._listener = await listen(
                self.around,
                self._settings.workq.listen,
                make_session=lambda: WorkqSession(self.around),
            )
        except BaseException:
            if self._log is not None:
                self._log.close()
            raise
        self._messages.info(f"the work queue listens on {self._listener.address}")
        self._ticker.look()

    def _open_log(self) -> WorkQueue:
        settings = self._settings.workq
        directory = settings.cmdlog_path
        if directory is None:
            self._messages.info("the work queue is in memory only: no workq.cmdlog_path is set")
            return WorkQueue(seed=random.getrandbits(63))
        begin_ns = self._clock.monotonic_ns()
        self._disk.make_dirs(directory)
        opened = open_log(
            self._disk,
            self._clock,
            directory,
            sync=policy_of(settings.cmdlog_sync),
            segment_bytes=self._segment_bytes,
            paused=workq_pauses.read(self._disk, directory),
            seed=random.getrandbits(63),
        )
        self._log = opened.log
        tell_recovery(self._messages, opened.log.recovery)
        stats = opened.queue.stats()
        self._messages.info(
            f"loaded {stats.ready} ready, {stats.scheduled} scheduled, {stats.leased} leased and "
            f"{stats.completed + stats.failed} finished jobs of the work queue",
            log=directory,
            took_ms=(self._clock.monotonic_ns() - begin_ns) // 1_000_000,
        )
        return opened.queue

    @property
    def _segment_bytes(self) -> int:
        return self._settings.workq.cmdlog_seg_size_bytes or DEFAULT_SEGMENT_BYTES

    def _build(self, queue: WorkQueue) -> None:
        loop, limits = self._loop, self._settings.limits
        journal = self._open_journal()
        self.writer = WorkqWriter(
            loop,
            self._clock,
            queue,
            journal,
            on_batch=self._on_batch,
            on_trouble=self._on_trouble,
            on_failure=self._on_failure,
            on_told=self._on_told,
            max_waiting=limits.waiting_commands,
        )
        self._ticker = Ticker(
            loop, self._clock, queue.next_due_ns, self.writer.submit_due, framerate=FRAMERATE
        )
        self.around = WorkqSurroundings(
            loop,
            self.writer,
            self._messages,
            self._clock.now_ns(),
            unsent_bytes=limits.unsent_bytes,
            max_connections=limits.connections,
        )
        self.figures = WorkqMetrics(queue.stats, self.around.sessions)
        self.calls = WorkqCalls(loop, self.writer)
        if journal is not None and self._log is not None:
            self._build_upkeep(journal, self._log)

    def _open_journal(self) -> WorkqJournal | None:
        settings = self._settings.workq
        if self._log is None or settings.cmdlog_path is None:
            return None
        return WorkqJournal(
            self._log,
            self._disk,
            settings.cmdlog_path,
            sync=settings.cmdlog_sync,
            segment_bytes=self._segment_bytes,
        )

    def _build_upkeep(self, journal: WorkqJournal, log: WorkqLog) -> None:
        settings = self._settings.workq
        if settings.cmdlog_sync is WorkqSync.INTERVAL:
            self._syncing = IntervalSync(
                self._loop, journal, self.writer, interval_ms=settings.cmdlog_sync_int_ms
            )
        if settings.cmdlog_clean_int_ms:
            self._cleaning = Cleaning(
                self._loop,
                self._clock,
                log,
                journal,
                self._messages,
                interval_ms=settings.cmdlog_clean_int_ms,
                ended=self.figures.cleaning_ended,
                on_failure=self._on_failure,
            )

    # -- while it runs --

    def _on_batch(self) -> None:
        self._ticker.look()
        if self._syncing is not None:
            self._syncing.look()

    def _on_told(self, requests: Any, outcomes: Any, _: int) -> None:
        self.figures.told(requests, outcomes)

    def _on_trouble(self, error: JourneymanError | None) -> None:
        if error is None:
            self._messages.info("the command log can be written again")
            self._in_trouble = False
        else:
            if not self._in_trouble:  # once, not for every command
                self._messages.error(
                    "the command log cannot be written: changes are refused", reason=error
                )
            self._in_trouble = True
            self._ticker.hold_off(RETRY_S)

    def _on_failure(self, error: BaseException) -> None:
        self._ticker.stop()
        self._messages.error("the work queue cannot go on", reason=str(error) or repr(error))
        self._failed(error)

    # -- stop --

    async def stop(self) -> None:
        """Take no more connections and commands; answer what was received."""
        self._listener.close()
        await close_sessions(self.around.sessions)

    async def close(self) -> None:
        """Write what is left, and let go of the log."""
        self._ticker.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.writer.idle(), ANSWER_LIMIT_S)
        for upkeep in (self._syncing, self._cleaning):
            if upkeep is not None:
                upkeep.stop()
        self.writer.close()
        if self._log is not None:
            await self._loop.run_in_executor(None, self._log.close)
