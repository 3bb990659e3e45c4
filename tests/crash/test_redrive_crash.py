"""A redrive is cut off at every operation of its record; no job goes twice, none is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from journeyman.client.errors import Refused
from journeyman.client.ztick import Job
from journeyman.errors import LogError, LogLocked
from journeyman.formats.ztick import Status
from journeyman.spark.redrive import (
    RedriveLedger,
    Redriven,
    SentMark,
    read_done,
    redrive_rows,
)
from journeyman.spark.sinks.sending import ZtickSender
from journeyman.spark.sinks.server_options import ServerOptions
from journeyman.testing import ManualClock
from tests.support.crash.cuts import Crash, crashes
from tests.support.simulated_disk import PowerCut, SimulatedDisk

RECORD = "/data/redrive.jsonl"
OLD_NS = 1_000
ROWS: list[dict[str, Any]] = [
    {"identifier": f"job.{n}", "execution_ns": OLD_NS + n} for n in range(5)
]
WORK_ROWS: list[dict[str, Any]] = [
    {"key": f"{n:08d}-0000-4000-8000-000000000000", "created_ns": n, "name": "q", "payload": b"x"}
    for n in range(5)
]


class Server:
    """What both senders reach: it remembers every job that it took, and runs ztick jobs at once."""

    def __init__(self) -> None:
        self.jobs = {row["identifier"]: row["execution_ns"] for row in ROWS}
        self.taken: list[str] = []

    def get(self, identifier: str) -> Job | None:
        planned = self.jobs.get(identifier)
        return None if planned is None else Job(identifier, Status.EXECUTED, planned)


class FakeZtickSender(ZtickSender):
    def __init__(self, server: Server) -> None:
        self._server = server
        self.client: Any = server

    def send(self, jobs: list[tuple[str, int]]) -> Iterator[tuple[str, Refused | None]]:
        for identifier, planned in jobs:
            self._server.jobs[identifier] = planned
            self._server.taken.append(identifier)
            yield identifier, None

    def close(self) -> None:
        pass


class FakeWorkqSender:
    def __init__(self, server: Server) -> None:
        self._server = server

    def send(self, jobs: list[Any]) -> Iterator[tuple[str, Refused | None]]:
        for job in jobs:
            name = str(job.job_id)
            if name in self._server.taken:
                yield name, Refused("CLIENT-ERROR", "Duplicate job")
            else:
                self._server.taken.append(name)
                yield name, None

    def salt(self) -> bytes:
        return b"of the namespace"

    def close(self) -> None:
        pass


class World:
    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.disk = SimulatedDisk()
        self.disk.plant("/data/unrelated", b"")
        self.server = Server()

    def run(self) -> Redriven:
        options = ServerOptions.parse({"door": self.dialect, "batchSize": "2"})
        is_ztick = self.dialect == "ztick"
        sender = FakeZtickSender(self.server) if is_ztick else FakeWorkqSender(self.server)
        with RedriveLedger(self.disk, RECORD) as ledger:
            rows = ROWS if is_ztick else WORK_ROWS
            return redrive_rows(rows, options, ledger, ManualClock(), at_ns=None, sender=sender)


def continued(crash: Crash[World]) -> World:
    """The disk that a crash left, and the server, which did not notice."""
    world = World(crash.run.dialect)
    world.server.jobs = dict(crash.run.server.jobs)
    world.server.taken = list(crash.run.server.taken)
    world.disk = crash.disk.after_crash("keep_all_unsynced")
    return world


@pytest.mark.parametrize("dialect", ["ztick", "workq"])
def test_every_job_goes_exactly_once_wherever_a_redrive_is_cut_off(dialect):
    expected = sorted(row["identifier"] for row in ROWS)
    for crash in crashes(lambda: World(dialect), lambda world: world.disk, World.run, seeds=4):
        world = continued(crash)
        server = world.server
        world.run()
        assert len(server.taken) == len(set(server.taken)) == len(ROWS), crash
        if dialect == "ztick":
            assert sorted(server.taken) == expected, crash
        assert world.run() == Redriven(), crash
        assert len(read_done(world.disk, RECORD)) == len(ROWS)


def test_a_second_crash_while_the_first_is_made_good_sends_nothing_twice():
    for first in crashes(lambda: World("ztick"), lambda world: world.disk, World.run, seeds=0):
        whole = continued(first)
        before = whole.disk.operations
        whole.run()
        for operation in range(1, whole.disk.operations - before + 1):
            world = continued(first)
            world.disk.cut_power_at(operation)
            with pytest.raises(PowerCut):
                world.run()
            world.disk = world.disk.after_crash("keep_all_unsynced")
            world.run()
            assert len(world.server.taken) == len(set(world.server.taken)) == len(ROWS)


def test_a_job_that_somebody_else_planned_meanwhile_is_left_alone():
    world = World("ztick")
    with RedriveLedger(world.disk, RECORD) as ledger:
        ledger.intend([(SentMark("job.0", OLD_NS), "77"), (SentMark("job.1", OLD_NS + 1), "78")])
    world.server.jobs |= {"job.0": 77, "job.1": 5}
    outcome = world.run()
    assert (outcome.sent, outcome.arrived_before, outcome.changed_meanwhile) == (3, 1, 1)
    assert sorted(world.server.taken) == ["job.2", "job.3", "job.4"]


def test_a_new_time_is_never_the_old_one():
    world = World("ztick")
    options = ServerOptions.parse({"door": "ztick"})
    sender = FakeZtickSender(world.server)
    with RedriveLedger(world.disk, RECORD) as ledger:
        redrive_rows(ROWS, options, ledger, ManualClock(), at_ns=OLD_NS + 2, sender=sender)
        assert ledger.intended[SentMark("job.2", OLD_NS + 2)] == str(OLD_NS + 3)
        assert ledger.intended[SentMark("job.3", OLD_NS + 3)] == str(OLD_NS + 2)


def test_what_is_refused_is_told_and_may_go_the_next_time():
    class Refusing(FakeZtickSender):
        def send(self, jobs: list[tuple[str, int]]) -> Iterator[tuple[str, Refused | None]]:
            for name, _ in jobs:
                yield name, Refused("invalid_args", "no") if name == "job.1" else None

    world = World("ztick")
    options = ServerOptions.parse({"door": "ztick"})
    with RedriveLedger(world.disk, RECORD) as ledger:
        sender = Refusing(world.server)
        outcome = redrive_rows(ROWS, options, ledger, ManualClock(), at_ns=None, sender=sender)
        assert (outcome.sent, outcome.refused) == (4, 1)
        assert outcome.first_refused == [("job.1", "invalid_args: no")]
    assert len(read_done(world.disk, RECORD)) == 4
    assert world.run().sent == 1


def test_a_record_is_used_by_one_redrive_at_a_time_and_is_not_any_file():
    disk = SimulatedDisk()
    with RedriveLedger(disk, RECORD), pytest.raises(LogLocked, match="another redrive"):
        RedriveLedger(disk, RECORD)
    disk.plant("/data/other", b"hello\n")
    with pytest.raises(LogError, match="line 1 is not of a redrive's record"):
        RedriveLedger(disk, "/data/other")
    assert disk.read_bytes("/data/other") == b"hello\n"
