"""Two servers on one PostgreSQL: the active one is killed or frozen, the other one takes over.

    kill     kill -9 of the active server, at a random moment of the load
    freeze   SIGSTOP, and the database ends its session, as it does when a host is gone; when the
             other one is active the first goes on, believes that it still is, and must be fenced

After each: how long until the other one answered, is all there that was acknowledged, and is
nothing there that only a fenced server has answered. Then the first is started again and stands by.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.support.ports import free_port
from tests.support.servers.schedule_process import LineClient
from tests.support.servers.workq_process import WorkqClient, WorkqProcess

FAR_AWAY_NS = 4_000_000_000_000_000_000
ENOUGH_ANSWERS = 20
LIMIT_S = 60.0
MAX_LOAD_S = 0.5
LIMITED = "limited"
TIMETABLE = 'r TIMETABLE SET nightly cron "0 2 * * *" run shell "true"'


@dataclass(slots=True)
class StandbyTally:
    kinds: Counter[str] = field(default_factory=Counter)
    answered_s: list[float] = field(default_factory=list)  # from the kill to the first answer
    acknowledged: int = 0

    def __str__(self) -> str:
        times = sorted(self.answered_s)
        return (
            f"{self.kinds.total()} takeovers ({dict(self.kinds)}), {self.acknowledged} commands "
            f"acknowledged, none lost; first answer of the other server after "
            f"{times[len(times) // 2]:.2f} s in the middle, {times[-1]:.2f} s at the slowest"
        )


class _Load(threading.Thread):
    """Plans jobs of the schedule, or adds work, until the server is gone."""

    def __init__(
        self, client: LineClient | WorkqClient, step: Callable[[int], str | None], first: int = 0
    ) -> None:
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
            pass  # the server was killed
        finally:
            self._client.close()


class StandbyCycles:
    def __init__(self, directory: Path, address: str, *, seed: int) -> None:
        self.tally = StandbyTally()
        self._address = address
        self._random = random.Random(seed)
        self._jobs: set[str] = set()
        self._work: set[str] = set()
        self._next = 0
        self._servers = [self._server(directory / name) for name in ("first", "second")]
        self._active, self._standby = self._servers

    def begin(self) -> None:
        self._active.start(wait=False)
        self._wait_for_answer(self._active)
        self._standby.start(wait=False)
        self._standby.wait_for_line("standing by: another server has the store")
        assert self._active.ask(TIMETABLE) == "r OK"
        self._begin_extensions()

    def _begin_extensions(self) -> None:
        """A limit that is used up, a retry that is a day away, a job that waits for another."""
        with WorkqClient(self._active.workq_port) as work:
            assert work.ask(f"limit {LIMITED} -rate=1/d -key-concurrency=1") == "+OK"
            self._late = work.add(LIMITED, b"late", flags="-key=k -max-fails=3")
            self._kept_back = work.add(LIMITED, b"kept back")
            assert work.lease(LIMITED) is not None
            assert work.ask(f"fail {self._late} 0 -delay=86400000", b"") == "+OK"
            self._child = work.add(LIMITED, b"child", flags=f"-after={self._kept_back}")

    def _server(self, directory: Path) -> WorkqProcess:
        directory.mkdir(exist_ok=True)
        server = WorkqProcess(
            directory,
            in_store=True,
            settings={
                "controller.listen": f"127.0.0.1:{free_port()}",
                "workq.listen": f"127.0.0.1:{free_port()}",
                "database.persistence": "storage",
                "storage.engine": "postgres",
                "storage.path": self._address,
                "storage.standby": "true",
            },
        )
        server.port, server.workq_port = server.named_ports("controller", "workq")
        return server

    def close(self) -> None:
        for server in self._servers:
            if server.is_running:
                server.process.send_signal(signal.SIGCONT)
                server.kill()

    def run(self, kinds: Sequence[str], each: Callable[[str], None] = lambda _: None) -> None:
        for kind in kinds:
            self._cycle(kind)
            each(kind)

    # -- one cycle --

    def _cycle(self, kind: str) -> None:
        loads = self._begin_load()
        time.sleep(self._random.uniform(0, MAX_LOAD_S))
        frozen = self._active if kind == "freeze" else None
        begin = time.monotonic()
        if frozen is None:
            self._active.kill()
        else:
            frozen.process.send_signal(signal.SIGSTOP)
            self._end_session()
        self._wait_for_answer(self._standby)
        self.tally.answered_s.append(time.monotonic() - begin)
        self._active, self._standby = self._standby, self._active
        if frozen is not None:
            frozen.process.send_signal(signal.SIGCONT)
            assert frozen.wait() == 1, frozen.lines
            assert any("took this database over" in line for line in frozen.lines), frozen.lines
        for load in loads:
            load.join(LIMIT_S)
        self._note(loads)
        self._compare()
        self._standby.lines.clear()
        self._standby.start(wait=False)
        self._standby.wait_for_line("standing by: another server has the store")
        self.tally.kinds[kind] += 1

    def _begin_load(self) -> list[_Load]:
        schedule, work = LineClient(self._active.port), WorkqClient(self._active.workq_port)

        def plan(number: int) -> str | None:
            name = f"keep.{number}"
            return name if schedule.ask(f"r SET {name} {FAR_AWAY_NS}") == "r OK" else None

        loads = [_Load(schedule, plan, self._next), _Load(work, lambda _: work.add("q", b"x"))]
        for load in loads:
            load.start()
        deadline = time.monotonic() + LIMIT_S
        while min(len(load.acknowledged) for load in loads) < ENOUGH_ANSWERS:
            assert time.monotonic() < deadline, self._active.lines[-20:]
            time.sleep(0.005)
        return loads

    def _end_session(self) -> None:
        """The database notices that a host is gone; here it is told so."""
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks"
                " WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()"
            )

    def _wait_for_answer(self, server: WorkqProcess) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                with LineClient(server.port) as schedule, WorkqClient(server.workq_port) as work:
                    assert schedule.ask("r GET none").startswith("r ")
                    assert work.ask("inspect server").startswith("+OK")
                    return
            except (OSError, AssertionError):
                assert time.monotonic() < deadline, server.lines[-20:]
                time.sleep(0.01)

    # -- comparing --

    def _note(self, loads: Sequence[_Load]) -> None:
        plans, work = loads
        self._next += len(plans.acknowledged) + 1  # one more may be there, not acknowledged
        self._jobs.update(plans.acknowledged)
        self._work.update(work.acknowledged)
        self.tally.acknowledged += len(plans.acknowledged) + len(work.acknowledged)

    def _compare(self) -> None:
        with LineClient(self._active.port) as schedule:
            schedule.send("q QUERY keep.")
            there = {row.split(" ")[0] for row in schedule.read_list("q")}
            schedule.send("t TIMETABLE LIST")
            timetables = schedule.read_list("t")
        assert self._jobs <= there, f"lost: {sorted(self._jobs - there)[:5]}"
        assert any(row.startswith("nightly ") for row in timetables), f"lost: {timetables}"
        with WorkqClient(self._active.workq_port) as work:
            missing = [job for job in self._work if work.job(job)["id"] != job]
            assert not missing, f"lost: {missing[:5]}"
            assert work.lease(LIMITED) is None, "the rate of before counts"
            (late,) = work.blocks(f"scheduled-jobs {LIMITED} 0 10")
            assert (late["id"], late["fails"], late["key"]) == (self._late, "1", "k")
            assert work.job(self._child)["after"] == "1"


def is_closed(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S).close()
    except ConnectionRefusedError:
        return True
    return False
