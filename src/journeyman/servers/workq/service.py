"""The work queue as a whole: built from the settings, started, and stopped in order.

    start    the log, or the store, is opened and read; the port opens when all of it is loaded
    stop     1 no new connections; clients that wait for a job or a result are answered
             2 what was received is answered, connections are closed
             3 log or store is closed: ``close``, when nothing more is submitted

It shares the process, the HTTP port and the figures with the schedule, and nothing else: each has
its own log, writer and ticker. A failed sync of its log stops both at once: it is the same disk. A
store that fails for good stops the work queue alone, unless the schedule is in it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from journeyman.config import WorkqPersistence
from journeyman.errors import JourneymanError
from journeyman.protocols.workq.commands import Add, Complaint, RefusedLine
from journeyman.servers.core.group_commit import Requests
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.core.ledger import unused_ledger_beside
from journeyman.servers.core.service import FRAMERATE, Service, ServiceContext
from journeyman.servers.core.store import holds_schedule
from journeyman.servers.telemetry.metrics import Family
from journeyman.servers.workq.events import JobEvents, PutItem
from journeyman.servers.workq.metrics import WorkqMetrics
from journeyman.servers.workq.persistence import (
    Keeping,
    LogKeeping,
    MemoryKeeping,
    PersistenceContext,
)
from journeyman.servers.workq.session import WorkqContext, WorkqSession
from journeyman.servers.workq.store_persistence import StoreKeeping
from journeyman.servers.workq.writer import WorkqWriter
from journeyman.storage import Storage


class WorkqServer(Service):
    """One running work queue."""

    name = "the work queue"
    listens = "the work queue listens"

    writer: WorkqWriter
    around: WorkqContext
    figures: WorkqMetrics
    _keeping: Keeping

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self.store: Storage | None = None  # if that is where the jobs are
        self.has_failed = False  # it has stopped, and the other services go on
        self.put_event: PutItem | None = None  # onto a fan-out queue
        self._events: JobEvents | None = None

    def families(self) -> list[Family]:
        """The figures; ready to be asked when the work queue has started."""
        return self.figures.families()

    async def add(self, job: Add) -> str:
        """For the schedule's rules: add the job, unless it is there. Why that failed, or ""."""
        reply = await self.writer.ask(job)
        if isinstance(reply, NotDone):
            return reply.reason
        if isinstance(reply, RefusedLine) and reply.complaint is not Complaint.DUPLICATE_JOB:
            return f"the work queue refused the job: {reply.complaint}"
        return ""

    # -- start --

    async def start(self) -> None:
        """Load and listen. Raises what stands in the way; nothing is left open then."""
        keeping = self._keeping = self._open_keeping()
        try:
            self._build(keeping)
            settings = self._settings.workq
            await self._open_port(settings.listen, WorkqSession, settings.idle_timeout_ms)
        except BaseException:
            keeping.stop()
            keeping.close()
            raise
        self._ticker.look()

    def _open_keeping(self) -> Keeping:
        settings = self._settings.workq
        context = self._context
        around = PersistenceContext(
            *(self._disk, self._clock, self._messages, context.ledger, context.holders),
            unused_ledger=unused_ledger_beside(self._settings, settings.cmdlog_path),
            store=context.store,
        )
        if settings.persistence is WorkqPersistence.STORAGE:
            self.store = context.store
            return StoreKeeping(self._settings, around)
        if settings.persistence is WorkqPersistence.MEMORY:
            return MemoryKeeping(around)
        return LogKeeping(settings, settings.cmdlog_path, around)

    def _build(self, keeping: Keeping) -> None:
        loop, limits, queue = self._loop, self._settings.limits, keeping.queue
        what = keeping.what
        self.refusal = f"{what} cannot be written: changes are refused"
        self.recovery = f"{what} can be written again"
        self.writer = WorkqWriter(
            self,
            loop,
            self._clock,
            queue,
            keeping.recorder,
            max_waiting=limits.waiting_commands,
            ledger=self._context.ledger,
            completed=keeping.completed,
        )
        self._build_ticker(queue.next_due_ns, FRAMERATE)
        self.around = self._port_context(WorkqContext, started_ns=self._clock.now_ns())
        self.figures = WorkqMetrics(
            keeping.stats,
            self.around.sessions,
            queue.largest_queues,
            self._clock,
            queue.queue_totals,
        )
        events_to = self._settings.workq.events_to
        if events_to and self.put_event is not None:
            self._events = JobEvents(events_to, self.put_event, queue, self._messages)
            self.writer.watchers.append(self._events.watch)
        keeping.begin_upkeep(
            loop, self.writer, cleaned=self.figures.cleaning_ended, on_failure=self.on_failure
        )

    # -- while it runs --

    async def clean_now(self) -> str | None:
        """What a cleaning here and now came to; None: there is no log to be cleaned."""
        keeping = self._keeping
        return await keeping.clean_now() if isinstance(keeping, LogKeeping) else None

    def on_batch(self) -> None:
        self._ticker.look()
        self._keeping.look()

    def on_answered(self, requests: Requests, outcomes: Sequence[object], begun_ns: int) -> None:  # noqa: ARG002
        self.figures.count(requests, outcomes)

    def on_failure(self, error: BaseException) -> None:
        is_alone = self.store is not None and not holds_schedule(self._settings)
        if not is_alone or not isinstance(error, JourneymanError):
            super().on_failure(error)
            return
        self._ticker.stop()
        self._messages.error(
            "the work queue has stopped, the other services go on; restart to load it again",
            reason=str(error) or repr(error),
        )
        self.has_failed = True
        if self._listener is not None:
            self._listener.close()
        for session in list(self.around.sessions):
            session.drop()

    # -- stop --

    async def close(self) -> None:
        """Write what is left, and let go of the log."""
        self._ticker.stop()
        await self._finish_writing()
        if self._events is not None:
            await self._events.close()
        self._keeping.stop()
        self.writer.close()
        await self._loop.run_in_executor(None, self._keeping.close)
