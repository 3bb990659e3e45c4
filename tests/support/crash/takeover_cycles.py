"""Two servers on one PostgreSQL: trouble comes over the active one, the other one takes over.

    kill     kill -9 of the active server, at a random moment of the load
    freeze   SIGSTOP; when the other one is active the first goes on, believes that it still is,
             and must be fenced
    stop     SIGTERM
    cut      the active server's connections to the database are reset, and no new ones are accepted
    stall    the active server's connections to the database stay open, and nothing arrives
    restart  PostgreSQL itself is killed and started again: the active server stays active

After each: how long until a server answered, is all there that was acknowledged, and did the old
server answer nothing when the new one had answered. Then the first is started again and stands by.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers.database_process import DatabaseProcess
from tests.support.servers.link import Link
from tests.support.servers.services import PostgresService

FAR_AWAY_NS = 4_000_000_000_000_000_000
ENOUGH_ANSWERS = 20
LIMIT_S = 60.0
MAX_LOAD_S = 0.5
LIMITED = "limited"
TIMETABLE = 'r TIMETABLE SET nightly cron "0 2 * * *" run shell "true"'
KINDS = ("kill", "freeze", "stop", "cut", "stall", "restart")


@dataclass(slots=True)
class TakeoverTally:
    kinds: Counter[str] = field(default_factory=Counter)
    answered_s: dict[str, list[float]] = field(default_factory=dict)  # until the first answer
    acknowledged: int = 0

    def __str__(self) -> str:
        times = {
            kind: f"{sorted(took)[len(took) // 2]:.2f} s, at most {max(took):.2f} s"
            for kind, took in self.answered_s.items()
        }
        return (
            f"{dict(self.kinds)}: {self.acknowledged} commands acknowledged, none lost; "
            f"first answer after (median) {times}"
        )


class _Load(threading.Thread):
    """One client of one service, until its server is gone; what was acknowledged."""

    def __init__(self, client: Any, step: Callable[[int], str | None], first: int) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._step = step
        self._first = first
        self.acknowledged: list[str] = []

    def run(self) -> None:
        number = self._first
        try:
            while (done := self._step(number)) is not None:
                self.acknowledged.append(done)
                number += 1
        except (OSError, AssertionError):
            pass  # the server has gone
        finally:
            self._client.close()

    def stop(self) -> None:
        self._step = lambda _: None


class _StaleReads(threading.Thread):
    """Reads from the old server for as long as it answers; when it last did."""

    def __init__(self, server: DatabaseProcess) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.last_answer = 0.0

    def run(self) -> None:
        try:
            with self._server.schedule() as client:
                while client.ask("r GET none"):
                    self.last_answer = time.monotonic()
                    time.sleep(0.01)
        except (OSError, AssertionError):
            pass


class TakeoverCycles:
    """``postgres`` is for the cycles of the kind ``restart``."""

    def __init__(
        self, directory: Path, port: int, database: str, seed: int, postgres: PostgresService | None
    ) -> None:
        self.tally = TakeoverTally()
        self._postgres = postgres
        self._random = random.Random(seed)
        self._jobs: set[str] = set()
        self._work: set[str] = set()
        self._items: list[str] = []
        self._next = 0
        self._links = [Link(port), Link(port)]
        self._servers = [
            DatabaseProcess(
                directory / name, f"postgresql://journeyman@127.0.0.1:{link.port}/{database}"
            )
            for name, link in zip(("first", "second"), self._links, strict=True)
        ]
        self._active, self._standby = self._servers

    def begin(self) -> None:
        self._active.start(wait=False)
        self._active.wait_for_answer()
        self._standby.stand_by()
        assert self._active.ask(TIMETABLE) == "r OK"
        with self._active.work() as work:
            # A limit that is used up, a retry that is a day away, a job that waits for another.
            assert work.ask(f"limit {LIMITED} -rate=1/d -key-concurrency=1") == "+OK"
            self._late = work.add(LIMITED, b"late", flags="-key=k -max-fails=3")
            kept_back = work.add(LIMITED, b"kept back")
            assert work.lease(LIMITED) is not None
            assert work.ask(f"fail {self._late} 0 -delay=86400000", b"") == "+OK"
            self._child = work.add(LIMITED, b"child", flags=f"-after={kept_back}")

    def close(self) -> None:
        for server in self._servers:
            if server.is_running:
                server.process.send_signal(signal.SIGCONT)
                server.kill()
        for link in self._links:
            link.close()

    def run(self, kinds: Sequence[str], each: Callable[[str], None] = lambda _: None) -> None:
        for kind in kinds:
            self._cycle(kind)
            each(kind)

    # -- one cycle --

    def _cycle(self, kind: str) -> None:
        loads = self._begin_load()
        time.sleep(self._random.uniform(0, MAX_LOAD_S))
        begin = time.monotonic()
        is_restart = kind == "restart"
        answered = self._restart_database(loads) if is_restart else self._take_over(kind)
        self.tally.answered_s.setdefault(kind, []).append(answered - begin)
        for load in loads:
            load.stop()
            load.join(LIMIT_S)
        self._note(loads)
        self._compare()
        self.tally.kinds[kind] += 1

    def _restart_database(self, loads: Sequence[_Load]) -> float:
        """Clients stay connected, and go on; when they did."""
        assert self._postgres is not None
        self._postgres.halt(signal.SIGQUIT)
        self._postgres.resume()
        before = [len(load.acknowledged) for load in loads]
        deadline = time.monotonic() + LIMIT_S
        while any(len(load.acknowledged) <= n for load, n in zip(loads, before, strict=True)):
            assert time.monotonic() < deadline, self._active.lines[-20:]
            assert all(load.is_alive() for load in loads), self._active.lines[-20:]
            time.sleep(0.005)
        return time.monotonic()

    def _take_over(self, kind: str) -> float:
        """When the other server answered."""
        old, new = self._active, self._standby
        link = self._links[self._servers.index(old)]
        stale = _StaleReads(old)
        stale.start()
        match kind:
            case "kill":
                old.kill()
            case "freeze":
                old.process.send_signal(signal.SIGSTOP)
            case "stop":
                assert old.stop() == 0
            case "cut":
                link.cut()
            case "stall":
                link.stall()
        new.wait_for_answer()
        answered = time.monotonic()
        self._active, self._standby = new, old
        if kind == "freeze":
            old.process.send_signal(signal.SIGCONT)
        if kind in ("freeze", "cut", "stall"):
            assert old.wait() == 1, old.lines
            assert any("no longer the active one" in line for line in old.lines), old.lines
        stale.join(LIMIT_S)
        late_s = stale.last_answer - answered
        assert late_s <= 0, f"the old server answered {late_s:.3f} s after the new one"
        link.resume()
        link.mend()
        old.stand_by()
        return answered

    def _begin_load(self) -> list[_Load]:
        schedule, work, fan_out = (
            self._active.schedule(),
            self._active.work(),
            self._active.fan_out(),
        )

        def plan(number: int) -> str | None:
            name = f"keep.{number}"
            return name if schedule.ask(f"r SET {name} {FAR_AWAY_NS}") == "r OK" else None

        def put(number: int) -> str | None:
            return f"{number}" if fan_out.put("items", f"{number}") == "STORED" else None

        loads = [
            _Load(schedule, plan, self._next),
            _Load(work, lambda _: work.add("q", b"x"), 0),
            _Load(fan_out, put, self._next),
        ]
        for load in loads:
            load.start()
        deadline = time.monotonic() + LIMIT_S
        while min(len(load.acknowledged) for load in loads) < ENOUGH_ANSWERS:
            assert time.monotonic() < deadline, self._active.lines[-20:]
            time.sleep(0.005)
        return loads

    # -- comparing --

    def _note(self, loads: Sequence[_Load]) -> None:
        plans, work, items = (load.acknowledged for load in loads)
        self._next += max(len(plans), len(items)) + 1  # one more may be there, not acknowledged
        self._jobs.update(plans)
        self._work.update(work)
        self._items += items
        self.tally.acknowledged += len(plans) + len(work) + len(items)

    def _compare(self) -> None:
        with self._active.schedule() as schedule:
            schedule.send("q QUERY keep.")
            there = {row.split(" ")[0] for row in schedule.read_list("q")}
            schedule.send("t TIMETABLE LIST")
            timetables = schedule.read_list("t")
        assert self._jobs <= there, f"lost: {sorted(self._jobs - there)[:5]}"
        assert any(row.startswith("nightly ") for row in timetables), f"lost: {timetables}"
        with self._active.work() as work:
            missing = [job for job in self._work if work.job(job)["id"] != job]
            assert not missing, f"lost: {missing[:5]}"
            assert work.lease(LIMITED) is None, "the rate of before counts"
            (late,) = work.blocks(f"scheduled-jobs {LIMITED} 0 10")
            assert (late["id"], late["fails"], late["key"]) == (self._late, "1", "k")
            assert work.job(self._child)["after"] == "1"
        with self._active.fan_out() as fan_out:
            items = set()
            while (item := fan_out.get("items")) is not None:
                items.add(item.decode())
        assert set(self._items) <= items, f"lost: {sorted(set(self._items) - items)[:5]}"
        self._items.clear()
