"""The work queue as a whole: built from the settings, started, and stopped in order.

    start    the log, or the store, is opened and read; the port opens when all of it is loaded
    stop     1 no new connections; who waits for a job or a result is let go
             2 what was received is answered, connections are closed
             3 log or store is closed: ``close``, when nobody has anything to add any more

It shares the process, the HTTP port and the figures with the schedule (schedule.py), and nothing
else: each has its own log, writer and ticker. A failed sync of its log stops both at once: it is
the same disk. A store that fails for good stops the work queue alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from journeyman.clock import Clock
from journeyman.config import Address, Configuration, WorkqPersistence
from journeyman.disk import Disk
from journeyman.errors import JourneymanError
from journeyman.protocols.workq.commands import Add
from journeyman.servers.core.access import Access
from journeyman.servers.core.group_commit import RETRY_S
from journeyman.servers.core.idle import IdleWatch
from journeyman.servers.core.listener import ANSWER_LIMIT_S, Listener, close_sessions, listen
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.ticker import Ticker
from journeyman.servers.telemetry.metrics import Family
from journeyman.servers.workq.calls import WorkqCalls
from journeyman.servers.workq.metrics import WorkqMetrics
from journeyman.servers.workq.persistence import (
    Keeping,
    LogKeeping,
    MemoryKeeping,
    PersistenceContext,
)
from journeyman.servers.workq.session import WorkqSession, WorkqSurroundings
from journeyman.servers.workq.store_persistence import StoreKeeping
from journeyman.servers.workq.writer import WorkqWriter
from journeyman.storage import Storage

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
        shared: Shared,
        access: Access,
    ) -> None:
        self._settings = configuration.settings
        self._disk = disk
        self._clock = clock
        self._messages = messages
        self._failed = failed
        self._shared = shared
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._in_trouble = False
        self._keeping: Keeping
        self._listener: Listener
        self.figures: WorkqMetrics
        self.around: WorkqSurroundings
        self.writer: WorkqWriter
        self.calls: WorkqCalls
        self.store: Storage | None = None  # if that is where the jobs are
        self.has_failed = False  # it has stopped, and the other services go on

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
        keeping = self._keeping = self._open_keeping()
        try:
            self._build(keeping)
            self._listener = await listen(
                self.around,
                self._settings.workq.listen,
                make_session=lambda: WorkqSession(self.around),
                tls=self._access.tls,
                handshake_timeout_s=self._settings.limits.handshake_timeout_ms / 1000,
            )
        except BaseException:
            keeping.stop()
            keeping.close()
            raise
        self._messages.info(f"the work queue listens on {self._listener.address}")
        self._ticker.look()

    def _open_keeping(self) -> Keeping:
        settings = self._settings.workq
        around = PersistenceContext(self._disk, self._clock, self._messages)
        if settings.persistence is WorkqPersistence.STORAGE:
            keeping = StoreKeeping(self._settings, around)
            self.store = keeping.storage
            return keeping
        if settings.persistence is WorkqPersistence.MEMORY:
            return MemoryKeeping(around)
        return LogKeeping(settings, settings.cmdlog_path, around)

    def _build(self, keeping: Keeping) -> None:
        loop, limits, queue = self._loop, self._settings.limits, keeping.queue
        self.writer = WorkqWriter(
            loop,
            self._clock,
            queue,
            keeping.journal,
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
            shared=self._shared,
            access=self._access,
        )
        idle_s = self._settings.workq.idle_timeout_ms / 1000
        self._idle = IdleWatch(loop, self.around.sessions, idle_s)
        self.figures = WorkqMetrics(
            queue.stats, self.around.sessions, queue.largest_queues, self._clock
        )
        self.calls = WorkqCalls(loop, self.writer)
        keeping.begin_upkeep(
            loop, self.writer, cleaned=self.figures.cleaning_ended, on_failure=self._on_failure
        )

    # -- while it runs --

    def _on_batch(self) -> None:
        self._ticker.look()
        self._keeping.look()

    def _on_told(self, requests: Any, outcomes: Any, _: int) -> None:
        self.figures.told(requests, outcomes)

    def _on_trouble(self, error: JourneymanError | None) -> None:
        if error is None:
            self._messages.info(f"{self._keeping.what} can be written again")
            self._in_trouble = False
        else:
            if not self._in_trouble:  # once, not for every command
                self._messages.error(
                    f"{self._keeping.what} cannot be written: changes are refused", reason=error
                )
            self._in_trouble = True
            self._ticker.hold_off(RETRY_S)

    def _on_failure(self, error: BaseException) -> None:
        self._ticker.stop()
        reason = str(error) or repr(error)
        if self.store is None or not isinstance(error, JourneymanError):
            self._messages.error("the work queue cannot go on", reason=reason)
            self._failed(error)
            return
        self._messages.error(
            "the work queue has stopped, the other services go on; restart to load it again",
            reason=reason,
        )
        self.has_failed = True
        self._listener.close()
        for session in list(self.around.sessions):
            session.drop()

    # -- stop --

    async def stop(self) -> None:
        """Take no more connections and commands; answer what was received."""
        self._listener.close()
        self._idle.stop()
        await close_sessions(self.around.sessions)

    async def close(self) -> None:
        """Write what is left, and let go of the log."""
        self._ticker.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.writer.idle(), ANSWER_LIMIT_S)
        self._keeping.stop()
        self.writer.close()
        await self._loop.run_in_executor(None, self._keeping.close)
