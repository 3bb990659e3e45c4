"""The schedule as a whole: built from the settings, started, and stopped in order.

    start    the log is locked and read; the port opens only when all of it is loaded
    resume   what a stop had cut off is queued again
    stop     1 no new connections, no new due jobs
             2 what was received is answered, connections are closed
    close    3 runs end by themselves, up to a limit; then they are ended
             4 their outcomes are written, the log is synced and closed
             5 the last lines of the history of runs are written
             6 the last telemetry is sent, if the collector takes it

A failed sync stops it at once, without step 2: nothing that is said would be true any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Literal

from journeyman.clock import Clock
from journeyman.config import Interrupted, Overdue, Persistence
from journeyman.engines.ztick import messages
from journeyman.engines.ztick.engine import NO_RULE, ZtickEngine
from journeyman.engines.ztick.job_table import ZtickJobTable
from journeyman.engines.ztick.loading import notes
from journeyman.engines.ztick.occurrences import OVERLAP
from journeyman.formats.ledger import EndedMarked
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import Mail
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.ledger import FLUSH_NS, MarkWriter
from journeyman.logs.segments import ZtickNames
from journeyman.logs.ztick.log import Compactor, ZtickLog
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.grammar import runners_of
from journeyman.protocols.ztick.replies import Metrics
from journeyman.runners.contract import AnyRunner, quote_name
from journeyman.servers.core.contract import Requests
from journeyman.servers.core.metrics import Family
from journeyman.servers.core.server_log import tell_recovery
from journeyman.servers.core.service import Service, ServiceContext
from journeyman.servers.ztick import runs as run_book
from journeyman.servers.ztick.metrics import ServerMetrics
from journeyman.servers.ztick.persistence import (
    CompactionWatch,
    RetentionWatch,
    open_log,
    tell_of_ztick_files,
)
from journeyman.servers.ztick.session import ZtickContext, ZtickSession
from journeyman.servers.ztick.telemetry import Telemetry
from journeyman.servers.ztick.writer import ZtickDialect, ZtickRecorder
from journeyman.units import DAY_MS, NS_PER_MS, NS_PER_S


@dataclass(slots=True)
class ServerFacts:
    """The figures of STAT: the engine's together with those that only the server knows.

    Made once a server; ``compression`` is asked each time, it changes in another thread.
    """

    clock: Clock
    started_ns: int  # monotonic
    connections: Sized
    persistence: Persistence
    compression: Callable[[], Literal["idle", "running", "success", "failure"]]
    auth_enabled: bool
    tls_enabled: bool
    framerate: int

    def metrics(self, stats: messages.ZtickStats) -> Metrics:
        return Metrics(
            uptime_ns=self.clock.monotonic_ns() - self.started_ns,
            connections=len(self.connections),
            jobs_total=stats.jobs_total,
            jobs_planned=stats.jobs_planned,
            jobs_triggered=stats.jobs_triggered,
            jobs_executed=stats.jobs_executed,
            jobs_failed=stats.jobs_failed,
            rules_total=stats.rules_total,
            executions_pending=stats.executions_pending,
            executions_inflight=stats.executions_inflight,
            persistence=self.persistence.value,
            compression=self.compression(),
            auth_enabled=self.auth_enabled,
            tls_enabled=self.tls_enabled,
            framerate=self.framerate,
        )


class ZtickServer(Service):
    """One running schedule."""

    name = "the schedule"
    log_name = "schedule"
    listens = "the schedule listens"
    refusal = "the log cannot be written: commands are refused"
    recovery = "the log can be written again"

    port_context: ZtickContext
    runs: run_book.Runs

    def __init__(
        self,
        context: ServiceContext,
        runner: AnyRunner,
        other_figures: Iterable[Callable[[], list[Family]]] = (),
    ) -> None:
        """``other_figures`` are shown together with those of the schedule."""
        super().__init__(context)
        self._runner = runner
        self._runner_kinds: set[type] = set()  # that rules name
        self._prepared_kinds = 0
        self._ztick_log: ZtickLog | None = None
        self._marks: MarkWriter | None = None
        self._compaction: CompactionWatch | None = None
        self._retention: RetentionWatch | None = None
        self._telemetry: Telemetry | None = None
        self._history: run_book.RunHistory | None = None
        self.figures = ServerMetrics(*other_figures)

    # -- start --

    async def start(self) -> None:
        """Load and listen. Raises what stands in the way; nothing is left open then."""
        controller = self._settings.controller
        schedule = self._open_log()
        try:
            self._build(schedule)
            if controller.enabled:
                idle_ms = self._settings.limits.idle_timeout_ms
                await self._open_port(controller.listen, ZtickSession, idle_ms)
        except BaseException:
            if self._ztick_log is not None:
                self._ztick_log.close()
            raise

    def resume(self) -> None:
        """Go on where the last stop or crash has cut off; all ports are open."""
        if self._telemetry is not None:
            self._telemetry.start()
        if self._history is not None:
            self._history.start()
        rerun = self._settings.schedule.interrupted is Interrupted.RUN
        skip = self._settings.schedule.overdue is Overdue.SKIP
        self.writer.submit_own(messages.Resume(rerun=rerun, skip_overdue=skip))

    def _open_log(self) -> ZtickEngine:
        database, max_runs = self._settings.database, self._settings.schedule.max_runs
        if database.persistence is Persistence.MEMORY:
            if self._settings.controller.enabled:
                self._messages.warn(
                    'the schedule is in memory only (database.persistence = "memory"): '
                    "its jobs and rules end with the process"
                )
            return ZtickEngine(ZtickJobTable(retained=self._is_retained), max_runs=max_runs)
        sync = SyncPolicy.ALWAYS if database.fsync_on_persist else SyncPolicy.OS
        begin_ns = self._clock.monotonic_ns()
        opened = open_log(
            self._disk,
            self._clock,
            database.logfile_path,
            sync=sync,
            seal=database.seals,
            max_runs=max_runs,
            retained=self._is_retained,
            holders=self._context.holders,
        )
        self._ztick_log = opened.log
        self._tell_recovery(opened.log)
        tell_of_ztick_files(self._disk, database.logfile_path, self._messages)
        self._tell_loaded(opened.schedule, begin_ns, log=database.logfile_path)
        return opened.schedule

    def _tell_loaded(self, schedule: ZtickEngine, begin_ns: int, **where: str) -> None:
        stats = schedule.stats()
        self._messages.info(
            f"loaded {stats.jobs_total} jobs, {stats.rules_total} rules",
            **where,
            took_ms=(self._clock.monotonic_ns() - begin_ns) // NS_PER_MS,
        )
        self._tell_overdue(schedule)

    @property
    def has_log(self) -> bool:
        return self._ztick_log is not None

    @property
    def _is_kept(self) -> bool:
        return self._settings.database.persistence is not Persistence.MEMORY

    @property
    def _is_retained(self) -> bool:
        return self._settings.schedule.retention_days > 0

    def _tell_overdue(self, schedule: ZtickEngine) -> None:
        overdue = schedule.overdue(self._clock.now_ns())
        if not overdue:
            return
        what = f"{overdue} planned jobs were due before this start"
        if self._settings.schedule.overdue is Overdue.SKIP:
            self._messages.warn(f'{what}: they are failed, not run (schedule.overdue = "skip")')
        else:
            self._messages.info(f'{what}: they run now (schedule.overdue = "run")')

    def _tell_recovery(self, log: ZtickLog) -> None:
        path = self._settings.database.logfile_path
        tell_recovery(self._messages, log.recovery, path=path)
        if log.leftover_error is not None:
            self._messages.warn(
                "a compaction that was cut short could not be finished", reason=log.leftover_error
            )

    def _problem_of(self, command: commands.SetRule | commands.SetTimetable) -> str:
        """Return why what this command sets could never run with these settings. Without this,
        the first to learn that no mail server is configured would be a night that fails."""
        if isinstance(command, commands.SetRule):
            options = command.options
        else:
            options = command.timetable.options
        users = self._settings.runners.users
        if options.user and options.user not in users:
            return f"the user {quote_name(options.user)} is not in runners.users"
        refuses_mail_to = self._settings.notices.refuses_mail_to
        mails = (each for each in runners_of(command) if isinstance(each, Mail))
        return next(filter(None, (refuses_mail_to(each.recipients) for each in mails)), "")

    def _load_timetables(self, schedule: ZtickEngine) -> None:
        ledger, book = self._context.ledger, schedule.timetables
        self.figures.timetables = lambda: (book.total - book.paused, book.paused)
        self.figures.is_timetable = book.has
        if ledger is None:
            book.is_kept = not self._is_kept  # in memory nothing is kept anyway
            return
        ledger.timetables.fill(book)
        if book.total:
            self._messages.info(f"loaded {book.total} timetables", paused=book.paused)

    def _build(self, schedule: ZtickEngine) -> None:
        self._schedule = schedule
        self._runner_kinds = schedule.runner_kinds
        settings, loop = self._settings, self._loop
        recorder: ZtickRecorder | None = None
        if self._ztick_log is not None:
            self._marks = self._build_marks(self._ztick_log)
            waits = settings.database.fsync_on_persist
            recorder = ZtickRecorder(self._ztick_log, self._marks, waits=waits)
        self._load_timetables(schedule)
        access = self._context.access
        self.runs = self._build_runs()
        dialect = ZtickDialect(schedule, self._clock, self, self._problem_of)
        self._open_writer(dialect, recorder, schedule.next_due_ns, settings.database.framerate)
        if (marks := self._marks) is not None:
            self._do_later(lambda: marks.is_waiting, marks.flush, FLUSH_NS / NS_PER_S)
        if self._ztick_log is not None:
            self._compaction = CompactionWatch(
                loop,
                self._clock,
                Compactor(
                    self._ztick_log.compact,
                    interval_s=settings.database.compression_interval_s,
                    now_ns=self._clock.monotonic_ns(),
                ),
                self._messages,
                log_is_poisoned=lambda: (
                    self._ztick_log is not None and self._ztick_log.appender.poisoned is not None
                ),
                on_failure=self.on_failure,
                on_end=self._compaction_ended,
            )
        if self._is_retained:
            self._retention = RetentionWatch(
                loop,
                self._clock,
                schedule.first_ended_ns,
                self.writer.submit_own,
                retention_ns=settings.schedule.retention_days * DAY_MS * NS_PER_MS,
                mark=self._bound_ended(schedule),
            )
        self.port_context = self._make_port_context(ZtickContext, metrics=self._metrics)
        self.facts = ServerFacts(
            self._clock,
            self._clock.monotonic_ns(),
            self.port_context.sessions,
            settings.database.persistence,
            lambda: self._compaction.status if self._compaction is not None else "idle",
            auth_enabled=access.tokens is not None,
            tls_enabled=access.tls is not None,
            framerate=settings.database.framerate,
        )
        if settings.telemetry.enabled:
            self._telemetry = Telemetry(
                settings.telemetry,
                self.figures,
                lambda: self.facts.metrics(schedule.stats()),
                self._clock,
                self._messages,
            )

    def _build_marks(self, log: ZtickLog) -> MarkWriter | None:
        ledger = self._context.ledger
        if ledger is None:
            return None
        ledger.keeps_times_of(ZtickNames(self._settings.database.logfile_path).load_order)
        write = partial(ledger.write, sync=False)
        marks = MarkWriter(self._disk, self._clock, log.appender, write)
        marks.note()  # records that an earlier process could not mark get this time
        return marks

    def _bound_ended(self, schedule: ZtickEngine) -> Callable[[], None]:
        """Let the engine know until when jobs of the log had ended; what marks that once a day."""
        ledger = self._context.ledger
        if ledger is None or not self._is_kept:
            return lambda: None
        found = ledger.take("ended")
        marks = {name: record.logged.unix_ns for name, record in found.items()}
        schedule.bound_ended(marks, self._clock.now_ns())

        def mark() -> None:
            name = schedule.last_ended()
            if name is not None and name not in marks:
                marks[name] = self._clock.now_ns()
                record = EndedMarked(Instant(marks[name]), name)
                self.writer.run_between(partial(ledger.note_quietly, record))

        return mark

    def _compaction_ended(self, success: bool) -> None:
        self.figures.compaction_ended(success)
        if self._marks is not None:  # the log has begun another file
            self.writer.run_between(self._marks.note)

    def _build_runs(self) -> run_book.Runs:
        history, database = self._settings.history, self._settings.database
        before: list[run_book.EndedRun] = []
        if history.enabled and self._is_kept:
            directory = run_book.history_directory(history, database)
            before = run_book.read_recent_runs(self._disk, directory, self._messages)
            for run in before:
                self._count_for_timetable(run)
            self._history = run_book.RunHistory(
                *(history, directory, self._disk, self._clock, self._messages),
                holders=self._context.holders,
            )
        return run_book.Runs(self._loop, self._clock, self._runner, self._messages, self, before)

    # -- while it runs --

    def runs_since(self, since_ns: int) -> Iterator[run_book.EndedRun] | None:
        """Return the runs of the history, the last one first, to be read in a thread. None: the
        runs that are remembered reach back as far, or there is no history."""
        if self._history is None or self.runs.reach_back_to(since_ns):
            return None
        directory = run_book.history_directory(self._settings.history, self._settings.database)
        return run_book.read_runs_since(self._disk, directory, since_ns)

    def stats(self) -> messages.ZtickStats:
        """The engine's figures now, also while a batch is being written."""
        return self._schedule.stats()

    async def compact_now(self) -> str | None:
        """Return what a compaction here and now came to; None: the schedule has no log."""
        return None if self._compaction is None else await self._compaction.run_now()

    def start_runs(self, effects: Sequence[messages.StartRun]) -> None:
        self.runs.start(effects)

    def _metrics(self, stats: messages.ZtickStats) -> Metrics:
        return self.facts.metrics(stats)

    def run_finished(self, finished: messages.RunFinished) -> None:
        self.writer.submit_own(finished)

    def run_ended(self, effect: messages.StartRun, run: run_book.EndedRun) -> None:
        late_ns = run.started_ns - run.execution_ns
        self.figures.run_ended(effect.runner, run.success, run.duration_ns, late_ns)
        self._count_for_timetable(run)
        if self._telemetry is not None:
            self._telemetry.run(effect.runner, run)
        if self._history is not None:
            self._history.ended(effect, run)

    def _count_for_timetable(self, run: run_book.EndedRun) -> None:
        name = self._schedule.timetables.owner(run.identifier)
        if name is not None and run.reason != OVERLAP:
            self.figures.timetable_ran(name, run.success)

    def run_not_started(self, run: run_book.EndedRun) -> None:
        self._count_for_timetable(run)
        if run.reason == NO_RULE:
            self.figures.run_without_rule()
        else:
            self.figures.run_missed()
        if self._history is not None:
            self._history.without_rule(run)

    def run_cut_off(self, effect: messages.StartRun, started_ns: int, after_ns: int) -> None:
        if self._history is not None:
            self._history.cut_off(effect, started_ns, after_ns)

    def on_batch(self) -> None:
        super().on_batch()
        if len(self._runner_kinds) > self._prepared_kinds:
            self._prepared_kinds = len(self._runner_kinds)
            self._runner.prepare(self._runner_kinds)

    def on_answered(self, requests: Requests, outcomes: Sequence[object], begun_ns: int) -> None:
        self.figures.count(requests, outcomes)
        if self._telemetry is not None:
            self._telemetry.requests(requests, outcomes, begun_ns)

    def on_reply(self, reply: messages.Reply) -> None:
        if isinstance(reply, messages.NotRun):
            self.runs.note_without_rule(reply.without_rule)
            self.runs.note_missed(reply.missed)
        if isinstance(reply, messages.Resumed):
            for note in notes(reply):
                self._messages.warn(note)

    # -- stop --

    async def stop(self) -> None:
        self._ticker.stop()
        for watch in (self._compaction, self._retention):
            if watch is not None:
                watch.stop()
        await super().stop()

    async def close(self, hurry: asyncio.Event) -> int:
        """Wait for runs and write what is left; ``hurry`` cuts the waiting short. The result is
        how many runs were ended."""
        cut_off = await self.runs.stop(self._settings.limits.stop_timeout_ms / 1000, hurry)
        await self._close_writer()
        if self._marks is not None:
            self._marks.flush()
        if self._ztick_log is not None:
            self._ztick_log.close()
        if self._history is not None:
            await self._loop.run_in_executor(None, self._history.stop)
        if self._telemetry is not None and not hurry.is_set():
            await self._loop.run_in_executor(None, self._telemetry.stop)
        return cut_off
