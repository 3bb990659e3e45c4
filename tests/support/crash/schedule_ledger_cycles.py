"""Kill the server, start it again, compare with the ledger; again and again.

    life 1  start ... load ... kill -9      at a random moment of the load,
    life 2  start, compare, load ... kill   or when a compaction has just begun,
    ...                                     or before the server has even started
    the end start, wait for what is due, compare; stop in order, start, compare

Compared is everything: QUERY and LISTRULES with the pages, GET with QUERY, and the file to which
the due jobs append a line a run with the RunBook.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from journeyman.formats.ztick import CODEC, JobSet, Status
from tests.support.crash.kill_loop import KillLoop, LoadThread
from tests.support.crash.schedule_ledger import Key, Page, RunBook, Value, page_number
from tests.support.crash.schedule_ledger_load import (
    FAR_AWAY_NS,
    RUN_RULE,
    Jobs,
    Moments,
    Observer,
    Wire,
    Writer,
)
from tests.support.servers.schedule_process import ScheduleProcess

__all__ = ["KILLS", "Cycles", "Tally"]

KILLS = ("load", "compaction", "start")
WRITERS = 4
MAX_LOAD_S = 0.8
MAX_START_S = 0.2  # servers of tests begin with everything imported: see servers/nursery.py
MAX_INTO_COMPACTION_S = 0.03
COMPACTION_LIMIT_S = 10.0  # of looking for one that is under way
RUNS_LIMIT_S = 60.0
GETS = 50
LOG, RUNS = "log", "runs"
THE_RULE = "the.rule"


@dataclass(slots=True)
class Tally:
    """What the cycles came across."""

    kills: Counter[str] = field(default_factory=Counter)
    compactions_cut: int = 0  # kills that left a compaction unfinished
    answered: int = 0
    unanswered: int = 0
    survived: int = 0  # of the unanswered, those found afterwards
    lists: int = 0  # read and checked under load
    runs: int = 0
    run_again: int = 0  # runs of a SET beyond its first: all of them cut off before
    executed: int = 0  # SETs that a client was told are executed
    slowest_start_s: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{self.kills[kind]} {kind}" for kind in KILLS)
        return (
            f"{self.kills.total()} kills ({kills}; {self.compactions_cut} compactions cut off), "
            f"{self.answered} commands answered, {self.unanswered} not, {self.survived} of these "
            f"found; {self.lists} lists checked under load; {self.executed} jobs executed, "
            f"{self.runs} runs, {self.run_again} of them again after being cut off; "
            f"slowest start {self.slowest_start_s:.2f} s"
        )


class Cycles(KillLoop[Tally, ScheduleProcess]):
    """The loop, over one log in ``directory``. AssertionError: the ledger does not agree."""

    kinds: Sequence[str] = KILLS
    compaction_interval_s = 1
    settings: Mapping[str, object] = {}

    def __init__(self, directory: Path, *, seed: int, jobs: int = 0) -> None:
        """``jobs``: so many are there from the beginning, for logs that are large."""
        self.directory = directory
        self.tally = Tally()
        self._random = random.Random(seed)
        self._pages = {number: Page() for number in range(WRITERS)}
        self._book = RunBook()
        self._moments = Moments()
        self._life = 0
        self._the_rule = ""
        if jobs:
            self._write_log(jobs)
        self._server = self._start()
        with_rule = self._connect()
        assert with_rule.ask(f"r {RUN_RULE}") == "r OK"
        self._the_rule = with_rule.rules()[THE_RULE]
        with_rule.close()

    def _write_log(self, jobs: int) -> None:
        records = []
        for n in range(jobs):
            number, execution_ns = n % WRITERS, FAR_AWAY_NS - n
            identifier = f"keep.{number}.{n // WRITERS}"
            records.append(CODEC.encode(JobSet(identifier, execution_ns, Status.PLANNED)))
            self._pages[number].known["job", identifier] = execution_ns
        (self.directory / LOG).write_bytes(b"".join(records))
        for page in self._pages.values():
            page.settle(page.known)

    # -- one cycle --

    def _cycle(self, kind: str) -> None:
        loaders = self._load()
        self._wait_for_load(lambda: sum(page.answered for page in self._pages.values()))
        if kind == "compaction":
            self._wait_for_compaction()
        else:
            time.sleep(self._random.uniform(0, MAX_LOAD_S))
        self._server.kill()
        for loader in loaders:
            loader.join()
        if kind == "start":
            self._cut_a_start_off()
        self.tally.kills[kind] += 1
        self.tally.compactions_cut += (self.directory / f"{LOG}.to_compress").exists()
        self._no_errors(loaders)
        self._server = self._start()
        self._compare()

    def _cut_a_start_off(self) -> None:
        """It may have come so far as to run what it found."""
        self._server = self._new_life(wait=False)
        possible = [each for page in self._pages.values() for each in page.possible()]
        plans = [(key[1], value) for key, value in possible if isinstance(value, int)]
        self._book.begin(self._life, plans)
        time.sleep(self._random.uniform(0, MAX_START_S))
        self._server.kill()

    def _load(self) -> list[Writer | Observer]:
        port = self._server.port
        loaders: list[Writer | Observer] = [
            Writer(port, number, page, self._book, self._life, self._moments)
            for number, page in self._pages.items()
        ]
        loaders.append(Observer(port, self._pages, self._book))
        for loader in loaders:
            loader.start()
        return loaders

    def _wait_for_compaction(self) -> None:
        """Return a little after one has begun; where they are too fast to be seen, after some."""
        begun = self.directory / f"{LOG}.to_compress"
        deadline = time.monotonic() + COMPACTION_LIMIT_S
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(self._random.uniform(0, MAX_INTO_COMPACTION_S))

    def _no_errors(self, loaders: Sequence[LoadThread]) -> None:
        super()._no_errors(loaders)
        self.tally.lists += sum(loader.lists for loader in loaders if isinstance(loader, Observer))

    # -- processes --

    def _new_life(self, *, wait: bool) -> ScheduleProcess:
        self._life += 1
        process = ScheduleProcess(
            self.directory,
            database__logfile_path=LOG,
            database__compression_interval=self.compaction_interval_s,
            settings=self.settings,
        )
        with mock.patch.dict(os.environ, LEDGER_LIFE=str(self._life)):
            return process.start(wait=wait)

    def _start(self) -> ScheduleProcess:
        begin = time.monotonic()
        process = self._new_life(wait=True)
        took_s = time.monotonic() - begin
        self.tally.slowest_start_s = max(self.tally.slowest_start_s, took_s)
        return process

    def _connect(self) -> Wire:
        return Wire(self._server.port)

    # -- comparing --

    def _compare(self) -> None:
        wire = self._connect()
        jobs, rules = wire.jobs(), wire.rules()
        assert rules.pop(THE_RULE, None) == self._the_rule, "the rule of the runs is lost"
        for identifier in self._random.sample(sorted(jobs), min(GETS, len(jobs))):
            answer = wire.ask(f"g GET {identifier}")
            assert answer.split(" ")[3] == str(jobs[identifier][1]), f"{answer} of {identifier}"
        wire.close()
        self._compare_statuses(jobs)
        plans = [(name, ns) for name, (_, ns) in jobs.items() if name.startswith("run.")]
        self._book.begin(self._life, plans)
        for plan in plans:
            if jobs[plan[0]][0] == "executed":
                self._book.told_executed(plan)
        found: dict[int, dict[Key, Value]] = {number: {} for number in self._pages}
        things: dict[Key, Value] = {("job", name): ns for name, (_, ns) in jobs.items()}
        things |= {("rule", name): rest for name, rest in rules.items()}
        for key, value in things.items():
            number = page_number(key[1])
            assert number in found, f"invented: {key} is {value}"
            found[number][key] = value
        for number, page in self._pages.items():
            self.tally.answered += page.answered
            self.tally.unanswered += len(page.sent) - page.answered
            self.tally.survived += page.settle(found[number])
        self._compare_runs()

    def _compare_statuses(self, jobs: Jobs) -> None:
        for name, (status, execution_ns) in jobs.items():
            if (name, execution_ns) in self._book.executed:
                assert status == "executed", f"{name} was executed and is {status}"
            elif name.startswith("keep."):
                assert status == "planned", f"{name} is {status} before its time"
            else:
                assert status != "failed", f"{name} failed"

    def _compare_runs(self) -> None:
        runs = self._read_runs()
        wrong = list(self._book.wrong(runs))
        assert not wrong, "\n".join(wrong)
        self.tally.runs = len(runs)
        self.tally.run_again = len(runs) - len({plan for _, plan in runs})
        self.tally.executed = len(self._book.executed)

    def _read_runs(self) -> list[tuple[int, tuple[str, int]]]:
        path = self.directory / RUNS
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split(" ") for line in lines]
        return [(int(life), (name, int(execution_ns))) for life, name, execution_ns in rows]

    # -- the end --

    def _end(self) -> None:
        """Whatever was planned has run in the end; and nothing of it runs at another start."""
        self._wait_for_runs()
        self._compare()
        loaders = self._load()
        time.sleep(MAX_LOAD_S)
        for loader in loaders:
            loader.stopping.set()
        for loader in loaders:
            loader.join()
        self._no_errors(loaders)
        assert all(page.answered == len(page.sent) for page in self._pages.values())
        self._wait_for_runs()
        assert self._server.stop() == 0, self._server.lines[-20:]
        self._server = self._start()
        self._compare()
        assert self._server.stop() == 0, self._server.lines[-20:]
        tally = self.tally
        assert 0 not in (tally.answered, tally.executed, tally.lists), f"nothing tried: {tally}"

    def _wait_for_runs(self) -> None:
        deadline = time.monotonic() + RUNS_LIMIT_S
        wire = self._connect()
        while left := {
            name: job for name, job in wire.jobs("run.").items() if job[0] != "executed"
        }:
            assert time.monotonic() < deadline, f"never executed: {left}"
            time.sleep(0.02)
        wire.close()
