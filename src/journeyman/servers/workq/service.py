"""The work queue as a whole: built from the settings, started, and stopped in order.

    start    the log is opened and read; the port opens when all of it is loaded
    stop     1 no new connections; clients that wait for a job or a result are answered
             2 what was received is answered, connections are closed
             3 the log is closed: ``close``, when nothing more is submitted

It shares the process, the HTTP port and the figures with the schedule, and nothing else: each has
its own log, writer and ticker. A failed sync of its log stops both at once: it is the same disk.

With workq.events_to, every end of a job is an item of a fan-out queue, for webhooks, alerts and
other programs:

    batch durable --watch--> JobEvents, waiting --one after another--> put on workq.events_to

    {"event":"completed","job":"<id>","queue":"mail","time_ns":...,"attempts":1}

``event`` is completed, failed (for good), deleted or expired; the last two are without ``queue``
and ``attempts``: the job is gone. An event is put after the job's record is durable, so a server
that is killed in between does not put it: the command log is the history, this is news. What cannot
be put is dropped and reported once until one is put again; so is what waits beyond
MAX_WAITING_EVENTS. Nothing waits for this.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from journeyman.config import WorkqPersistence, WorkqSync
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.folds.workq import JobState
from journeyman.formats.workq import Command, JobFinished, Record
from journeyman.logs.workq.log import WorkqLog
from journeyman.protocols.workq.commands import Add, Complaint, RefusedLine
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.core.contract import Requests
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.core.metrics import Family
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.service import FRAMERATE, Service, ServiceContext
from journeyman.servers.workq.attempts import AttemptNotes
from journeyman.servers.workq.metrics import WorkqMetrics
from journeyman.servers.workq.persistence import Cleaning, open_kept_queue
from journeyman.servers.workq.session import WorkqContext, WorkqSession
from journeyman.servers.workq.writer import LogRecorder, WorkqDialect

PutItem: TypeAlias = Callable[[str, bytes], Awaitable[str]]
MAX_WAITING_EVENTS: Final = 10_000
_LOST: dict[object, str] = {Command.DELETE: "deleted", Command.EXPIRE: "expired"}


class WorkqServer(Service):
    """One running work queue."""

    name = "the work queue"
    log_name = "workq"
    listens = "the work queue listens"
    refusal = "the command log cannot be written: changes are refused"
    recovery = "the command log can be written again"

    port_context: WorkqContext
    figures: WorkqMetrics

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self.put_event: PutItem | None = None  # onto a fan-out queue
        self._events: JobEvents | None = None
        self._attempts: AttemptNotes | None = None  # without a ledger: none
        self._log: WorkqLog | None = None
        self._recorder: LogRecorder | None = None
        self._cleaning: Cleaning | None = None

    def families(self) -> list[Family]:
        """The figures; ready to be asked when the work queue has started."""
        return self.figures.families()

    async def add(self, job: Add, namespace: str) -> str:
        """Add a job for a rule of the schedule, unless it is there. Returns why that failed, or "".

        ``namespace`` is that of the rule: a job of another one with this id is not replaced, and
        its id is taken.
        """
        reply = await self.writer.ask(job, namespace=namespace)
        if isinstance(reply, NotDone):
            return reply.reason
        if isinstance(reply, RefusedLine) and reply.complaint is not Complaint.DUPLICATE_JOB:
            return f"the work queue refused the job: {reply.complaint}"
        return ""

    # -- start --

    async def start(self) -> None:
        """Load and listen. Raises what stands in the way; nothing is left open then."""
        settings = self._settings.workq
        queue = self._open_log()
        try:
            self._build(queue)
            await self._open_port(settings.listen, WorkqSession, settings.idle_timeout_ms)
        except BaseException:
            if self._cleaning is not None:
                self._cleaning.stop()
            if self._log is not None:
                self._log.close()
            raise
        self._ticker.set_timer()

    def _open_log(self) -> WorkqEngine:
        settings, context = self._settings.workq, self._context
        if settings.persistence is WorkqPersistence.MEMORY:
            self._messages.warn(
                'the work queue is in memory only (workq.persistence = "memory"): '
                "its jobs end with the process"
            )
            return WorkqEngine(seed=random.getrandbits(63))
        kept = open_kept_queue(
            settings, self._disk, self._clock, self._messages, context.ledger, context.holders
        )
        self._log, self._recorder = kept.log, kept.recorder
        return kept.queue

    def _build(self, queue: WorkqEngine) -> None:
        self._queue = queue
        queue.keep_events(self._settings.events.retention_days)
        settings, access = self._settings.workq, self._context.access
        namespace_of = None if access.tokens is None else access.namespace_of
        dialect = WorkqDialect(queue, self._clock, namespace_of)
        self._open_writer(dialect, self._recorder, queue.next_due_ns, FRAMERATE)
        self.port_context = self._make_port_context(WorkqContext, started_ns=self._clock.now_ns())
        self.figures = WorkqMetrics(
            queue.stats,
            self.port_context.sessions,
            queue.largest_queues,
            self._clock,
            queue.queue_totals,
        )
        ledger = self._context.ledger
        if ledger is not None:
            self._attempts = AttemptNotes(self._loop, self._clock, ledger, self.writer.run_between)
        if settings.events_to and self.put_event is not None:
            self._events = JobEvents(settings.events_to, self.put_event, queue, self._messages)
            self.writer.watchers.append(self._events.watch)
        recorder = self._recorder
        if recorder is not None and settings.cmdlog_sync is WorkqSync.INTERVAL:
            delay_s = settings.cmdlog_sync_int_ms / 1000
            self._do_later(lambda: recorder.is_unsynced, recorder.sync, delay_s)
        if recorder is not None and self._log is not None and settings.cmdlog_clean_int_ms:
            self._cleaning = Cleaning(
                self._loop,
                self._clock,
                self._log,
                recorder,
                self._messages,
                interval_ms=settings.cmdlog_clean_int_ms,
                ended=self.figures.cleaning_ended,
                on_failure=self.on_failure,
            )

    # -- while it runs --

    async def clean_now(self) -> str | None:
        """Return what a cleaning here and now came to; None: there is no log to be cleaned."""
        if self._log is None:
            return None
        if self._cleaning is None:
            return "cleaning is off (workq.cmdlog_clean_int = 0)"
        return await self._cleaning.run_now()

    def on_batch(self) -> None:
        begun = self._queue.take_begun()
        if begun and self._attempts is not None:
            self._attempts.note(begun)
        super().on_batch()

    def on_answered(self, requests: Requests, outcomes: Sequence[object], begun_ns: int) -> None:  # noqa: ARG002
        self.figures.count(requests, outcomes)

    # -- stop --

    async def close(self) -> None:
        """Write what is left, and let go of the log."""
        self._ticker.stop()
        await self._close_writer()
        if self._events is not None:
            await self._events.close()
        if self._cleaning is not None:
            self._cleaning.stop()
        if self._attempts is not None:
            await self._loop.run_in_executor(None, self._attempts.close)
        if self._log is not None:
            await self._loop.run_in_executor(None, self._log.close)


class JobEvents:
    """See the module. ``put`` answers why an item could not be put, or ""."""

    def __init__(
        self,
        queue: str,
        put: PutItem,
        engine: WorkqEngine,
        messages: ServerLog,
    ) -> None:
        self._queue = queue
        self._put = put
        self._engine = engine
        self._messages = messages
        self._waiting: deque[bytes] = deque()
        self._putting: asyncio.Task[None] | None = None
        self._has_trouble = False

    def watch(self, records: Iterable[Record]) -> None:
        """These records are durable."""
        for record in records:
            event = self._event(record)
            if event is None:
                continue
            if len(self._waiting) >= MAX_WAITING_EVENTS:
                self._trouble("too many events wait")
                continue
            self._waiting.append(json.dumps(event, separators=(",", ":")).encode())
        if self._waiting and self._putting is None:
            self._putting = asyncio.get_running_loop().create_task(self._put_all())

    async def close(self) -> None:
        """Put what waits."""
        if self._putting is not None:
            await self._putting

    async def _put_all(self) -> None:
        try:
            while self._waiting:
                reason = await self._put(self._queue, self._waiting.popleft())
                if reason:
                    self._trouble(reason)
                else:
                    self._has_trouble = False
        finally:
            self._putting = None

    def _trouble(self, reason: str) -> None:
        if not self._has_trouble:
            self._has_trouble = True
            self._messages.warn("events of jobs are dropped", queue=self._queue, reason=reason)

    def _event(self, record: Record) -> dict[str, Any] | None:
        base = {"job": id_text(record.job_id)}
        time_ns = record.logged.unix_ns
        if record.command in _LOST:
            return {"event": _LOST[record.command], **base, "time_ns": time_ns}
        if isinstance(record, JobFinished):
            if record.hidden:  # it is retried
                return None
            word = "completed" if record.command == Command.COMPLETE else "failed"
        elif record.command == Command.TIMEOUT_ATTEMPT:
            word = "failed"
        else:
            return None
        found = self._engine.job(record.job_id)
        if found is None:
            return None if word == "failed" else {"event": word, **base, "time_ns": time_ns}
        job = found[0]
        if record.command == Command.TIMEOUT_ATTEMPT and not (
            job.state == JobState.FAILED and job.exhausted
        ):
            return None
        facts = {"queue": job.added.name, "time_ns": time_ns, "attempts": job.attempts}
        return {"event": word, **base, **facts}
