"""Kill a server whose timetables fire every second; in the end every second was run.

    life 1  timetables set ... fire ... kill -9     at a random moment,
    life 2  start, catch up, fire ... kill -9       or before the server has even started
    ...
    the end pause, wait for the last runs, compare

A run appends ``<life> <job>`` to a file. Checked is: every second between the first and the last
occurrence of a timetable was run; no job ran twice in one life; none ran in a life after it was
shown as executed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from unittest import mock

from journeyman.client import Schedule
from journeyman.formats.ztick import Shell, Status
from tests.support.crash.kill_loop import KillLoop, tell_wrong
from tests.support.servers.schedule_process import ScheduleProcess

KILLS = ("load", "start")
TIMETABLES = 4
MAX_LOAD_S = 2.0
MAX_START_S = 0.2  # servers of tests begin with everything imported: see servers/nursery.py
RUNS = "runs"
COMMAND = f'echo "$LEDGER_LIFE $JOURNEYMAN_JOB_ID" >> {RUNS}'


@dataclass(slots=True)
class TimetableTally:
    """What the cycles came across."""

    kills: Counter[str] = field(default_factory=Counter)
    occurrences: int = 0
    run_again: int = 0  # all of them cut off before

    def __str__(self) -> str:
        return (
            f"{self.kills.total()} kills, {self.occurrences} occurrences, "
            f"{self.run_again} of them again after being cut off"
        )


class TimetableCycles(KillLoop[TimetableTally, ScheduleProcess]):
    kinds = KILLS

    def __init__(self, directory: Path, *, seed: int) -> None:
        self.directory = directory
        self.tally = TimetableTally()
        self._random = random.Random(seed)
        self._life = 0
        self._executed: dict[str, int] = {}  # by job: the life in which it was shown
        self._server = self._start(wait=True)
        with Schedule(port=self._server.port, timeout_s=60.0) as schedule:
            for number in range(TIMETABLES):
                schedule.set_timetable(
                    f"t{number}",
                    every="1s",
                    catch_up="all",
                    catch_up_limit=1000,
                    overlap="allow",
                    runner=Shell(COMMAND),
                )

    def _start(self, *, wait: bool) -> ScheduleProcess:
        self._life += 1
        settings = {"ledger.enabled": "true", "ledger.path": "ledger"}
        process = ScheduleProcess(
            self.directory, settings=settings, database__compression_interval=1
        )
        with mock.patch.dict(os.environ, LEDGER_LIFE=str(self._life)):
            return process.start(wait=wait)

    def _cycle(self, kind: str) -> None:
        enough = len(self._occurrences()) + TIMETABLES
        self._server.wait_until(lambda: len(self._occurrences()) >= enough, "runs in this life")
        time.sleep(self._random.uniform(0, MAX_LOAD_S))
        self._look()
        self._server.kill()
        if kind == "start":
            self._server = self._start(wait=False)
            time.sleep(self._random.uniform(0, MAX_START_S))
            self._server.kill()
        self.tally.kills[kind] += 1
        self._server = self._start(wait=True)

    def _look(self) -> None:
        """What is shown as executed must not run in a life to come."""
        with Schedule(port=self._server.port, timeout_s=60.0) as schedule:
            for job in schedule.query():
                if job.status is Status.EXECUTED:
                    self._executed.setdefault(job.identifier, self._life)

    def _runs(self) -> list[tuple[int, str]]:
        path = self.directory / RUNS
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(life), job) for life, _, job in (line.partition(" ") for line in lines)]

    def _occurrences(self) -> set[str]:
        return {job for _, job in self._runs()}

    def _end(self) -> None:
        with Schedule(port=self._server.port, timeout_s=60.0) as schedule:

            def has_caught_up() -> bool:
                now_s = time.time()
                due = [each.next_ns for each in schedule.timetables()]
                return all(ns is not None and ns / 1e9 > now_s - 2 for ns in due)

            self._server.wait_until(has_caught_up, "caught up")
            for each in schedule.timetables():
                schedule.pause_timetable(each.identifier)
            self._server.wait_until(
                lambda: all(job.status is Status.EXECUTED for job in schedule.query()), "all ran"
            )
        self._compare()

    def _compare(self) -> None:
        by_job: dict[str, list[int]] = {}
        for life, job in self._runs():
            by_job.setdefault(job, []).append(life)
        wrong = [
            f"{job} ran twice in a life: {lives}"
            for job, lives in by_job.items()
            if len(set(lives)) < len(lives)
        ]
        wrong += [
            f"{job} ran in lives {lives}, and was executed in life {self._executed[job]}"
            for job, lives in by_job.items()
            if max(lives) > self._executed.get(job, max(lives))
        ]
        for number in range(TIMETABLES):
            seconds = sorted(
                int(datetime.fromisoformat(job.partition("@")[2]).timestamp())
                for job in by_job
                if job.startswith(f"t{number}@")
            )
            missing = sorted(set(range(seconds[0], seconds[-1] + 1)) - set(seconds))
            wrong += [f"t{number} did not run at {second}" for second in missing]
        tell_wrong(wrong)
        self.tally.occurrences = len(by_job)
        self.tally.run_again = sum(len(lives) - 1 for lives in by_job.values())
