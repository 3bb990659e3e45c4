"""Runs: starts what the engine says is to be started, and reports how each of them ended.

    StartRun --task--> runner --RunResult--> Finished --> writer --> the job is executed or failed

How many run at a time is the engine's business: it gives out a StartRun only when a slot is free,
and the slot is free again when Finished was decided. A run that a stop cuts off is not Finished:
in the log its job stays triggered, and the next start sees to it.

The last runs are remembered, a bounded number of them, to be shown. ``before`` are
those of an earlier process, if they are known.

Run history: every run of the schedule becomes a line on the disk, off the path of the runs.

    runs --ended, cut_off--> a bounded queue --one thread, in batches--> <logfile>.runs/*.jsonl

What the event loop does for it is to append a tuple. Formatting, writing, rotating and removing
old files are the thread's; it sleeps while nothing runs. So the disk may be full, slow or absent:

    too many runs wait        further ones are dropped and counted, memory stays bounded
    a write fails             its lines are dropped and counted; the next batch tries again
    the first failure, and the first success after it, are logged; no more
    the server stops          what waits is written if that takes no longer than STOP_LIMIT_S

A crash of the process takes the runs of the last GATHER_S at most; the log of the schedule, which
decides what runs, knows nothing of all this.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from journeyman.clock import Clock
from journeyman.config import DatabaseSettings, HistorySettings
from journeyman.disk import Disk
from journeyman.engines.ztick.engine import NO_RULE
from journeyman.engines.ztick.messages import Missed, RunFinished, StartRun
from journeyman.engines.ztick.notices import MAX_OUTPUT_CHARS
from journeyman.formats.ztick import JobSet
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.formats.ztick.codec import runner_word
from journeyman.logs.holders import Holders
from journeyman.logs.ztick import run_history
from journeyman.runners.contract import Runner, RunRequest, RunResult
from journeyman.servers.core.server_log import ServerLog
from journeyman.units import NS_PER_MS

REMEMBERED_RUNS = 1_000
STARTS_A_TURN = 4
MOST_LINES = 20  # warnings of jobs that were due together; further ones are counted in one
MAX_WAITING_RUNS = 50_000
MAX_RUNS_A_WRITE = 1_000
GATHER_S = 0.1
STOP_LIMIT_S = 2.0
SEARCHED_BYTES = 64 * 1024 * 1024  # looked at, at most, for the runs since a moment
REMEMBERED_BYTES = 8 * 1024 * 1024  # looked at, at most, for the runs of the process before


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a run went; times are wall time."""

    identifier: str
    execution_ns: int
    started_ns: int
    duration_ns: int
    success: bool
    reason: str
    output: bytes = b""  # beginning and end of the output


class RunsOwner(Protocol):
    """The schedule, as far as its runs need it."""

    def run_finished(self, finished: RunFinished) -> None:
        """Take the end of a run that ended by itself, for the engine."""
        ...

    def run_ended(self, effect: StartRun, run: EndedRun) -> None:
        """Take how a run went, for people."""
        ...

    def run_not_started(self, run: EndedRun) -> None:
        """Due, but without a rule, or missed."""
        ...

    def run_cut_off(self, effect: StartRun, started_ns: int, after_ns: int) -> None:
        """The server stops; ``started_ns`` is wall time."""
        ...


class Runs:
    """The runs under way."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        runner: Runner[RunnerRecord],
        log: ServerLog,
        owner: RunsOwner,
        before: Iterable[EndedRun] = (),
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._runner = runner
        self._log = log
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_start: deque[StartRun] = deque()
        self._stopped = False
        self._ended: deque[EndedRun] = deque(before, maxlen=REMEMBERED_RUNS)
        self.succeeded = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._tasks) + len(self._to_start)

    def latest(self) -> Iterator[EndedRun]:
        """The last runs, newest first."""
        return reversed(self._ended)

    def reach_back_to(self, moment_ns: int) -> bool:
        """Return whether all runs that have ended since then are remembered."""
        is_full = len(self._ended) == REMEMBERED_RUNS
        return not is_full or self._ended[0].started_ns + self._ended[0].duration_ns < moment_ns

    def start(self, effects: Sequence[StartRun]) -> None:
        """They start a few in a turn of the loop: starting a program takes milliseconds."""
        is_set = bool(self._to_start)
        self._to_start += effects
        if not is_set:
            self._start_some()

    def _start_some(self) -> None:
        if self._stopped:
            self._to_start.clear()  # the log says triggered: the next start runs them
        for _ in range(min(STARTS_A_TURN, len(self._to_start))):
            task = self._loop.create_task(self._run(self._to_start.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._to_start:
            self._loop.call_soon(self._start_some)

    def note_without_rule(self, jobs: Sequence[JobSet]) -> None:
        """These were due, and failed because no rule matches them."""
        for job in jobs:
            self._note_not_run(job, NO_RULE)
        names = [job.identifier for job in jobs]
        self._warn_of("a job is due and no rule matches it: failed", names)

    def note_missed(self, missed: Sequence[Missed]) -> None:
        """These occurrences of timetables were due, and are not run."""
        for each in missed:
            self._note_not_run(each.job, each.reason)
        self._warn_of(
            "an occurrence is not run", [f"{m.job.identifier}: {m.reason}" for m in missed]
        )

    def _note_not_run(self, job: JobSet, reason: str) -> None:
        now_ns = self._clock.now_ns()
        run = EndedRun(job.identifier, job.execution_ns, now_ns, 0, False, reason)
        self._ended.append(run)
        self.failed += 1
        self._owner.run_not_started(run)

    def _warn_of(self, what: str, jobs: Sequence[str]) -> None:
        for job in jobs[:MOST_LINES]:
            self._log.warn(what, job=job)
        if len(jobs) > MOST_LINES:
            self._log.warn(f"{len(jobs) - MOST_LINES} more: {what}")

    async def stop(self, timeout_s: float, hurry: asyncio.Event) -> int:
        """Start nothing more; wait, then end what still runs. How many had to be ended.

        ``hurry`` cuts the waiting short.
        """
        self._stopped = True
        if self._tasks and timeout_s > 0 and not hurry.is_set():
            hurried = self._loop.create_task(hurry.wait())
            ended = self._loop.create_task(asyncio.wait(set(self._tasks)))
            await asyncio.wait(
                (hurried, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in (hurried, ended):
                task.cancel()
        left = list(self._tasks)
        for each in left:
            each.cancel()
        if left:
            await asyncio.wait(left)
        await self._runner.close()
        return len(left)

    async def _run(self, effect: StartRun) -> None:
        started_ns = self._clock.now_ns()
        begin_ns = self._clock.monotonic_ns()
        late_ns = started_ns - effect.execution_ns
        request = RunRequest(
            effect.identifier,
            effect.execution_ns,
            effect.runner,
            effect.owner,
            effect.options,
            effect.facts,
        )
        try:
            result = await self._runner.run(request)
        except asyncio.CancelledError:
            self._owner.run_cut_off(effect, started_ns, self._clock.monotonic_ns() - begin_ns)
            raise
        except Exception as error:  # noqa: BLE001 - the job must not stay triggered for ever
            self._log.error("a runner broke its contract", job=effect.identifier, error=repr(error))
            result = RunResult(False, f"internal error: {type(error).__name__}")
        duration_ns = self._clock.monotonic_ns() - begin_ns
        ended = EndedRun(
            effect.identifier,
            effect.execution_ns,
            started_ns,
            duration_ns,
            result.success,
            result.reason,
            result.output,
        )
        self._ended.append(ended)
        if result.success:
            self.succeeded += 1
        else:
            self.failed += 1
        if not result.success:
            self._log.warn("a run failed", **_facts(effect, result, duration_ns))
        if self._log.debugging:
            self._tell(effect, result, late_ns, duration_ns)
        output = result.output[-MAX_OUTPUT_CHARS:].decode(errors="replace")
        self._owner.run_finished(
            RunFinished(
                effect.run_id, result.success, result.reason, "" if result.success else output
            )
        )
        self._owner.run_ended(effect, ended)

    def _tell(self, effect: StartRun, result: RunResult, late_ns: int, duration_ns: int) -> None:
        fields: dict[str, object] = {
            "job": effect.identifier,
            "success": str(result.success).lower(),
            "late_ms": f"{late_ns / NS_PER_MS:.3f}",
            "duration_ms": f"{duration_ns / NS_PER_MS:.3f}",
        }
        if result.reason:
            fields["reason"] = result.reason
        if result.output:
            fields["output"] = result.output.decode(errors="backslashreplace")
        self._log.debug("execution outcome", **fields)


def _facts(effect: StartRun, result: RunResult, duration_ns: int) -> dict[str, object]:
    return {
        "job": effect.identifier,
        "rule": effect.rule,
        "reason": result.reason,
        "duration_ms": f"{duration_ns / NS_PER_MS:.3f}",
    }


# How a run began, if it did, and how it ended; None if the server's stop cut it off.
_Run: TypeAlias = tuple[StartRun | None, EndedRun | None, int, int]


def history_directory(history: HistorySettings, database: DatabaseSettings) -> str:
    return history.path or database.logfile_path + run_history.DIRECTORY_SUFFIX


def read_runs_since(disk: Disk, directory: str, since_ns: int) -> Iterator[EndedRun]:
    """The runs of the history that started since then, the last one first. Blocks."""
    for run in run_history.runs_from_the_end(disk, directory, at_most_bytes=SEARCHED_BYTES):
        if run.ended_ns < since_ns:
            return  # lines are in the order in which runs ended
        if run.outcome != run_history.CUT_OFF and run.started_ns >= since_ns:
            yield _ended_run(run)


def read_recent_runs(disk: Disk, directory: str, messages: ServerLog) -> list[EndedRun]:
    """The runs of processes before this one, oldest first. A stop's own are not among them."""
    try:
        runs = run_history.last_runs(
            disk, directory, REMEMBERED_RUNS, at_most_bytes=REMEMBERED_BYTES
        )
    except OSError as error:
        messages.warn("the history of runs cannot be read", path=directory, reason=error)
        return []
    return [_ended_run(run) for run in runs if run.outcome != run_history.CUT_OFF]


class RunHistory:
    """Made where history is on; ``ended`` and ``cut_off`` are for the event loop."""

    def __init__(
        self,
        settings: HistorySettings,
        directory: str,
        disk: Disk,
        clock: Clock,
        log: ServerLog,
        *,
        gather_s: float = GATHER_S,
        holders: Holders | None = None,
    ) -> None:
        """Starts nothing and touches no file yet."""
        self._files = run_history.RunFiles(
            disk,
            clock,
            directory,
            file_bytes=settings.file_bytes,
            keep_files=settings.files,
            keep_days=settings.days,
            holders=holders,
        )
        self._log = log
        self._gather_s = gather_s
        self._waiting: deque[_Run] = deque()
        self._something = threading.Event()
        self._stopping = threading.Event()
        self._troubled = False
        # A daemon: a disk that keeps it waiting must not keep the process.
        self._thread = threading.Thread(target=self._work, name="journeyman-history", daemon=True)
        self.written = 0
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, within STOP_LIMIT_S. Blocks: not for the event loop."""
        self._stopping.set()
        self._something.set()
        if self._thread.is_alive():
            self._thread.join(STOP_LIMIT_S)

    # -- from the server --

    def ended(self, effect: StartRun, run: EndedRun) -> None:
        self._add((effect, run, run.started_ns, run.duration_ns))

    def cut_off(self, effect: StartRun, started_ns: int, duration_ns: int) -> None:
        self._add((effect, None, started_ns, duration_ns))

    def without_rule(self, run: EndedRun) -> None:
        """The job was due and no rule matched: a run that ended before it began."""
        self._add((None, run, run.started_ns, run.duration_ns))

    def _add(self, run: _Run) -> None:
        if len(self._waiting) >= MAX_WAITING_RUNS:
            self.dropped += 1
            return
        self._waiting.append(run)
        if not self._something.is_set():
            self._something.set()

    # -- the thread --

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._something.wait()
            self._stopping.wait(self._gather_s)  # so that runs which end together share a write
            self._something.clear()
            self._write_waiting()
        self._write_waiting()
        try:
            self._files.close()
        except OSError as error:
            self._tell(error)

    def _write_waiting(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), MAX_RUNS_A_WRITE)
            lines = [run_history.encode_run(_line(*self._waiting.popleft())) for _ in range(count)]
            try:
                self._files.append(lines)
            except OSError as error:
                self.dropped += count
                self._tell(error)
            else:
                self.written += count
                self._tell(None)

    def _tell(self, error: OSError | None) -> None:
        if error is not None and not self._troubled:
            self._log.warn("the history of runs cannot be written; runs go on", reason=error)
        elif error is None and self._troubled:
            self._log.info("the history of runs is written again", lost_runs=self.dropped)
        self._troubled = error is not None


def _line(
    effect: StartRun | None, run: EndedRun | None, started_ns: int, duration_ns: int
) -> run_history.RunLine:
    job = run if effect is None else effect
    assert job is not None
    outcome = (
        run_history.CUT_OFF
        if run is None
        else run_history.EXECUTED
        if run.success
        else run_history.FAILED
    )
    return run_history.RunLine(
        job.identifier,
        "" if effect is None else effect.rule,
        "" if effect is None else runner_word(effect.runner),
        job.execution_ns,
        started_ns,
        started_ns + duration_ns,
        outcome,
        "" if run is None else run.reason,
        "" if run is None else run.output.decode(errors="backslashreplace"),
    )


def _ended_run(run: run_history.RunLine) -> EndedRun:
    duration_ns = max(run.ended_ns - run.started_ns, 0)
    success = run.outcome == run_history.EXECUTED
    output = run.output.encode(errors="surrogatepass")
    return EndedRun(
        run.job, run.execution_ns, run.started_ns, duration_ns, success, run.detail, output
    )
