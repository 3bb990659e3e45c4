"""A batch that belongs partly in the ledger: written there first, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from journeyman.clock import Clock
from journeyman.config import LogLevel, Settings, WorkqSettings, WorkqSync
from journeyman.config.settings import LedgerSettings
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.ztick.engine import Decidable, ZtickEngine
from journeyman.engines.ztick.messages import ZtickOutcome
from journeyman.errors import LogFull, LogPoisoned
from journeyman.formats.ledger import ActionAudited, QueuePaused, QueueResumed
from journeyman.formats.timed_frame import Instant
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.ledger import LedgerLog, peek_records
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    Complaint,
    Complete,
    Lease,
    PauseQueue,
    RefusedLine,
    ResumeQueue,
    Touch,
)
from journeyman.protocols.workq.replies import DONE
from journeyman.protocols.ztick.commands import Set
from journeyman.servers.core.contract import Recorder
from journeyman.servers.core.group_commit import QUICK_IN_A_ROW, GroupCommit
from journeyman.servers.core.ledger import Ledger, open_ledger, unused_ledger_beside
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq.persistence import KeptQueue, open_kept_queue
from journeyman.servers.workq.writer import WorkqDialect
from journeyman.servers.ztick.writer import ZtickDialect, ZtickRecorder
from journeyman.testing import ManualClock
from tests.support.schedule_writer import Bench, Caller, NotingRecorder, sets
from tests.support.simulated_disk import SimulatedDisk

DAY_MS = 86_400_000
CLOCK = ManualClock()
NOW = Instant(CLOCK.now_ns())


class NotingEngine(ZtickEngine):
    """Has something for the ledger with each SET of a name with ``noted`` in it."""

    def decide(self, command: Decidable, now_ns: int, namespace: str = "*") -> ZtickOutcome:
        outcome = super().decide(command, now_ns, namespace)
        if isinstance(command, Set) and "noted" in command.identifier:
            self._state.ledger.append(QueuePaused(Instant(now_ns), command.identifier))
        return outcome


class LedgerBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.schedule = NotingEngine()
        self.log = LedgerLog.open(self.disk, CLOCK, "ledger")
        self.ledger = Ledger(self.log, self.disk, CLOCK, quiet(CLOCK))
        self.journal_write = self.journal.write
        self.ledger_at_write: list[list[str]] = []
        self.journal.write = self.write  # type: ignore[method-assign]
        self.writer = self.writer_on(self.journal, self.ledger)

    def writer_on(self, recorder: Recorder, ledger: Ledger | None) -> GroupCommit:
        dialect = ZtickDialect(self.schedule, self.clock, self)
        loop = asyncio.get_running_loop()
        return GroupCommit(self, loop, self.clock, dialect, recorder, ledger=ledger)

    def write(self, records: Any) -> None:
        self.ledger_at_write.append(self.durable())
        self.journal_write(records)

    def durable(self) -> list[str]:
        """What the ledger has after a power cut now."""
        disk = self.disk.after_crash("lose_all_unsynced")
        with LedgerLog.open(disk, CLOCK, "ledger") as log:
            return [key for _, key in log.states]


def quiet(clock: Clock) -> ServerLog:
    return ServerLog(clock, lambda _: None, level=LogLevel.OFF)


def run(test: Callable[[LedgerBench], Coroutine[Any, Any, None]]) -> None:
    async def begin() -> None:
        await test(LedgerBench())

    asyncio.run(begin())


def test_the_ledger_is_durable_before_the_log_is_written():
    async def test(bench: LedgerBench) -> None:
        caller = Caller()
        bench.writer.submit(caller, sets("noted-1", "b"))
        await bench.settle()
        assert bench.ledger_at_write == [["noted-1"]]
        assert len(caller.told) == 2

    run(test)


def test_loop_does_not_wait_for_a_thread_that_writes_to_the_ledger():
    async def test(bench: LedgerBench) -> None:
        recorder, caller = NotingRecorder(), Caller()
        here = threading.current_thread().name
        bench.writer = bench.writer_on(recorder, bench.ledger)
        for number in range(QUICK_IN_A_ROW + 1):
            bench.writer.submit(caller, sets(f"noted-{number}"))
            await bench.settle()
        assert [thread == here for thread in recorder.threads[-2:]] == [False, True]
        at_the_ledger, let_go = threading.Event(), threading.Event()

        def is_written_here() -> bool:
            return recorder.threads[-1] == here

        def wait() -> None:
            at_the_ledger.set()
            assert let_go.wait(60)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(bench.ledger.write, [QueuePaused(NOW, "other")], then=wait)
            assert at_the_ledger.wait(60)
            bench.writer.submit(caller, sets("plain"))
            await asyncio.sleep(0)
            assert caller.told[-1][0] == b"plain"
            assert is_written_here()
            bench.writer.submit(caller, sets("noted-last"))
            await asyncio.sleep(0)  # it did not wait, for nobody has let go yet
            let_go.set()
            await bench.settle()
        assert not is_written_here()
        assert bench.durable()[-2:] == ["other", "noted-last"]
        bench.writer.submit(caller, sets("noted-again"))
        await bench.settle()
        assert is_written_here()

    run(test)


def test_a_batch_without_records_for_the_ledger_does_not_touch_it():
    async def test(bench: LedgerBench) -> None:
        before = bench.disk.operations
        bench.writer.submit(Caller(), sets("a", "b"))
        await bench.settle()
        assert len(bench.journal.records) == 2
        assert bench.disk.operations == before

    run(test)


def test_when_the_log_has_no_room_the_ledger_takes_its_part_back():
    async def test(bench: LedgerBench) -> None:
        caller = Caller()
        bench.journal.errors.append(LogFull("log", "no room"))
        bench.writer.submit(caller, sets("noted-1"))
        await bench.settle()
        assert [said for _, said in caller.told] == ["failed"]
        assert bench.durable() == []
        bench.writer.submit(caller, sets("noted-2"))
        await bench.settle()
        assert bench.durable() == ["noted-2"]
        assert [record.identifier for record in bench.journal.records] == ["noted-2"]
        assert bench.schedule.stats().jobs_total == 1

    run(test)


def test_when_the_ledger_has_no_room_the_batch_is_taken_back():
    async def test(bench: LedgerBench) -> None:
        caller = Caller()
        bench.disk.capacity = bench.disk.used
        bench.writer.submit(caller, sets("noted-1"))
        await bench.settle()
        assert [said for _, said in caller.told] == ["failed"]
        assert bench.journal.records == []
        assert bench.schedule.stats().jobs_total == 0
        bench.writer.submit(caller, sets("plain"))  # needs no ledger
        await bench.settle()
        assert len(bench.journal.records) == 1
        bench.disk.capacity = None
        bench.writer.submit(caller, sets("noted-2"))
        await bench.settle()
        assert bench.durable() == ["noted-2"]
        assert bench.troubles[-1] is None

    run(test)


def test_a_failed_sync_of_the_ledger_is_final():
    async def test(bench: LedgerBench) -> None:
        caller = Caller()
        bench.disk.fail_next_sync()
        bench.writer.submit(caller, sets("noted-1"))
        await bench.settle()
        assert caller.told == []
        assert caller.dropped
        assert bench.journal.records == []
        assert isinstance(bench.failures[0], LogPoisoned)

    run(test)


def test_without_a_ledger_the_extra_is_not_kept_and_the_rest_is():
    async def test(bench: LedgerBench) -> None:
        writer = bench.writer_on(bench.journal, None)
        caller = Caller()
        writer.submit(caller, sets("noted-1"))
        await asyncio.wait_for(writer.idle(), 30)
        assert len(caller.told) == 1
        assert len(bench.journal.records) == 1
        assert bench.schedule.take_ledger() == []

    run(test)


def test_a_note_of_no_batch_is_durable_when_it_returns():
    async def test(bench: LedgerBench) -> None:
        audit = ActionAudited(NOW, "me", "http", "pause", "q", "done")
        await bench.ledger.note([audit])
        assert list(peek_records(bench.disk.after_crash("lose_all_unsynced"), "ledger")) == [audit]

    run(test)


def test_a_family_is_given_away_once():
    async def test(bench: LedgerBench) -> None:
        bench.log.append([QueuePaused(NOW, "a"), QueuePaused(NOW, "b")])
        bench.log.close()
        ledger = Ledger(
            LedgerLog.open(bench.disk, CLOCK, "ledger"), bench.disk, CLOCK, quiet(CLOCK)
        )
        assert list(ledger.take("queue-pause")) == ["a", "b"]
        assert ledger.take("queue-pause") == {}

    run(test)


def test_a_pause_is_in_the_ledger_and_not_beside_the_log():
    engine = WorkqEngine(seed=1)
    engine.begin_batch()
    engine.decide(PauseQueue("q"), 1)
    engine.decide(PauseQueue("q"), 2)
    engine.decide(ResumeQueue("q"), 3)
    engine.decide(ResumeQueue("never-paused"), 4)
    assert engine.take_ledger() == [QueuePaused(Instant(1), "q"), QueueResumed(Instant(3), "q")]
    engine.commit_batch()


def test_a_batch_that_is_taken_back_leaves_nothing_for_the_ledger():
    engine = WorkqEngine(seed=1)
    engine.begin_batch()
    engine.decide(PauseQueue("q"), 1)
    engine.undo_batch()
    assert engine.take_ledger() == []
    assert engine.paused == frozenset()


def test_what_the_ledger_forgets_is_durable_in_a_log_that_is_synced_by_the_clock():
    """A child that was added to the log must not be forgotten before a power cut cannot take it."""
    parent, child = (bytes.fromhex(f"{number:012x}40008000000000000000") for number in (1, 2))

    async def test(bench: LedgerBench) -> None:
        keeping = work_queue_on(bench.disk, bench.clock, bench.ledger)
        writer = writer_of(keeping, bench, bench.clock, bench.ledger)
        after = AddOptions(after=(parent,))
        await writer.ask(Add(parent, "q", 1000, DAY_MS, b""))
        await writer.ask(Add(child, "q", 1000, DAY_MS, b"", options=after))
        keeping.recorder.sync()
        await writer.ask(Complete(parent, b""))
        bench.clock.advance(2)
        writer.submit_due()
        await asyncio.wait_for(writer.idle(), 30)
        disk = bench.disk.after_crash("lose_all_unsynced")
        log = LedgerLog.open(disk, CLOCK, "ledger")
        assert not log.states  # it is forgotten
        again = work_queue_on(disk, bench.clock, Ledger(log, disk, CLOCK, quiet(CLOCK)))
        assert again.queue.queue_of(child) == "q"

    run(test)


def test_options_are_synced_by_the_clock_as_their_log_is():
    """Under interval a key costs no sync; one that takes something away is durable at once."""
    first, second = (bytes.fromhex(f"{number:012x}40008000000000000000") for number in (1, 2))

    async def test(bench: LedgerBench) -> None:
        keeping = work_queue_on(bench.disk, bench.clock, bench.ledger)
        writer = writer_of(keeping, bench, bench.clock, bench.ledger)
        before = bench.disk.counts["sync"]
        await writer.ask(Add(first, "q", 1000, DAY_MS, b"", options=AddOptions(key="k")))
        assert bench.disk.counts["sync"] == before
        assert keeping.recorder.is_unsynced  # so the clock will see to it
        assert bench.durable() == []
        keeping.recorder.sync()
        assert len(bench.durable()) == 1
        await writer.ask(Add(second, "q", 1000, DAY_MS, b"", options=AddOptions(key="k")))
        await writer.ask(PauseQueue("q"))
        assert len(bench.durable()) == 3

    run(test)


def test_a_touch_alone_is_synced_by_the_clock():
    """It has no record in the log, so the log alone would have nothing to sync."""
    job_id = bytes.fromhex("00000000000140008000000000000000")

    async def test(bench: LedgerBench) -> None:
        keeping = work_queue_on(bench.disk, bench.clock, bench.ledger)
        writer = writer_of(keeping, bench, bench.clock, bench.ledger)
        await writer.ask(Add(job_id, "q", 1000, DAY_MS, b""))
        await writer.ask(Lease(("q",), 1000))
        keeping.recorder.sync()
        await writer.ask(Touch(job_id, None))
        assert keeping.recorder.is_unsynced
        keeping.recorder.sync()
        assert len(bench.durable()) == 1

    run(test)


def test_a_schedule_that_syncs_nothing_does_not_sync_the_ledger():
    async def test(bench: LedgerBench) -> None:
        log = ZtickLog.open(bench.disk, CLOCK, "log", sync=SyncPolicy.OS, seal=False)
        writer = bench.writer_on(ZtickRecorder(log, waits=False), bench.ledger)
        before = bench.disk.counts["sync"]
        await writer.ask(Set(b"r", "noted-1", 1))
        assert bench.disk.counts["sync"] == before
        assert len(list(peek_records(bench.disk, "ledger"))) == 1

    run(test)


def test_pauses_come_back_from_the_ledger_and_need_one():
    async def decide(disk: SimulatedDisk, is_on: bool, *commands: Any) -> tuple[Any, ...]:
        """Start, decide, stop; which queues were paused at the start, and the replies."""
        clock = ManualClock()
        log = LedgerLog.open(disk, clock, "ledger") if is_on else None
        ledger = None if log is None else Ledger(log, disk, clock, quiet(clock))
        keeping = open_kept_queue(
            WorkqSettings(cmdlog_path="workq"), disk, clock, quiet(clock), ledger
        )
        found = set(keeping.queue.paused)
        writer = writer_of(keeping, Bench(), clock, ledger)
        replies = [await writer.ask(command) for command in commands]
        writer.close()
        keeping.log.close()
        if ledger is not None:
            ledger.close()
        return found, *replies

    async def test() -> None:
        disk, refused = SimulatedDisk(), RefusedLine(Complaint.NO_LEDGER)
        pauses = PauseQueue("a"), PauseQueue("b")
        assert await decide(disk, True, *pauses) == (set(), DONE, DONE)
        assert await decide(disk, False, PauseQueue("c"), ResumeQueue("a")) == (
            set(),
            refused,
            DONE,
        )
        assert await decide(disk, True, ResumeQueue("a")) == ({"a", "b"}, DONE)
        assert await decide(disk, True) == ({"b"},)

    asyncio.run(test())


def test_a_ledger_that_is_switched_off_is_left_alone_and_reported():
    said: list[str] = []
    disk, off = SimulatedDisk(), Settings(ledger=LedgerSettings(enabled=False))
    messages = ServerLog(CLOCK, said.append, level=LogLevel.WARN)
    assert open_ledger(off, disk, CLOCK, messages) is None
    assert said == []  # there is none
    with LedgerLog.open(disk, CLOCK, off.ledger.path) as log:
        log.append([QueuePaused(NOW, "a")])
    before = disk.files()
    assert open_ledger(off, disk, CLOCK, messages) is None
    assert "the ledger is off" in said[0]
    assert disk.files() == before
    elsewhere = Settings(ledger=LedgerSettings(enabled=False, path="/other/ledger"))
    assert unused_ledger_beside(elsewhere, off.workq.cmdlog_path) == ""


def work_queue_on(disk: SimulatedDisk, clock: Clock, ledger: Ledger) -> KeptQueue:
    settings = WorkqSettings(cmdlog_path="workq", cmdlog_sync=WorkqSync.INTERVAL)
    return open_kept_queue(settings, disk, clock, quiet(clock), ledger)


def writer_of(kept: KeptQueue, owner: Bench, clock: Clock, ledger: Ledger | None) -> GroupCommit:
    dialect, loop = WorkqDialect(kept.queue, clock), asyncio.get_running_loop()
    return GroupCommit(owner, loop, clock, dialect, kept.recorder, ledger=ledger)
