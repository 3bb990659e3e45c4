"""Run history: every run of the schedule becomes a line on the disk, off the path of the runs.

    runs --ended, cut_off--> a bounded queue --one thread, in batches--> <logfile>.runs/*.jsonl

What the event loop does for it is to append a tuple. Formatting, writing, rotating and removing
old files are the thread's; it sleeps while nothing runs. So the disk may be full, slow or gone:

    too many runs wait        further ones are dropped and counted, memory stays bounded
    a write fails             its lines are dropped and counted; the next batch tries again
    the first failure, and the first success behind it, are told in the server's log; no more
    the server stops          what waits is written if that takes no longer than STOP_LIMIT_S

A crash of the process takes the runs of the last GATHER_S at most; the log of the schedule, which
decides what runs, knows nothing of all this.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TypeAlias

from journeyman.clock import Clock
from journeyman.config import DatabaseSettings, HistorySettings
from journeyman.disk import Disk
from journeyman.engines.ztick.messages import StartRun
from journeyman.formats.ztick.run_history import CUT_OFF, EXECUTED, FAILED, RunLine, encode
from journeyman.logs.ztick.run_history import DIRECTORY_SUFFIX, RunFiles, last_runs
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.telemetry.metrics import runner_word
from journeyman.servers.ztick.runs import REMEMBERED_RUNS, EndedRun

MAX_WAITING_RUNS = 50_000
MAX_RUNS_A_WRITE = 1_000
GATHER_S = 0.1
STOP_LIMIT_S = 2.0
REMEMBERED_BYTES = 8 * 1024 * 1024  # looked at, at most, for the runs of the process before

# How a run began, if it did, and how it ended; None if the server's stop cut it off.
_Run: TypeAlias = tuple[StartRun | None, EndedRun | None, int, int]


def directory_of(history: HistorySettings, database: DatabaseSettings) -> str:
    return history.path or database.logfile_path + DIRECTORY_SUFFIX


def remembered(disk: Disk, directory: str, messages: ServerLog) -> list[EndedRun]:
    """The runs of processes before this one, oldest first. A stop's own are not among them."""
    try:
        runs = last_runs(disk, directory, REMEMBERED_RUNS, at_most_bytes=REMEMBERED_BYTES)
    except OSError as error:
        messages.warn("the history of runs cannot be read", path=directory, reason=error)
        return []
    return [_ended_run(run) for run in runs if run.outcome != CUT_OFF]


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
    ) -> None:
        """Starts nothing and touches no file yet."""
        self._files = RunFiles(
            disk,
            clock,
            directory,
            file_bytes=settings.file_bytes,
            keep_files=settings.files,
            keep_days=settings.days,
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
            lines = [encode(_line(*self._waiting.popleft())) for _ in range(count)]
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
) -> RunLine:
    job = run if effect is None else effect
    assert job is not None
    outcome = CUT_OFF if run is None else EXECUTED if run.success else FAILED
    return RunLine(
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


def _ended_run(run: RunLine) -> EndedRun:
    duration_ns = max(run.ended_ns - run.started_ns, 0)
    success = run.outcome == EXECUTED
    output = run.output.encode(errors="surrogatepass")
    return EndedRun(
        run.job, run.execution_ns, run.started_ns, duration_ns, success, run.detail, output
    )
