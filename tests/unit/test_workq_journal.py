"""What the work queue's writer writes to: durability by policy, pauses, upkeep of the log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any, cast

import pytest

from journeyman.config import WorkqSync
from journeyman.errors import LogPoisoned
from journeyman.formats.workq import Record
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.workq.log import WorkqLog
from journeyman.servers.core.contract import WriteWait
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.service import DelayedErrand
from journeyman.servers.workq.persistence import Cleaning
from journeyman.servers.workq.writer import LogRecorder
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_logs import DIRECTORY, added, deleted, path_of, started

SEGMENT_BYTES = 4096


class Bench:
    def __init__(self, sync: WorkqSync = WorkqSync.ALWAYS, **disk: Any) -> None:
        self.disk = SimulatedDisk(**disk)
        self.clock = ManualClock()
        self.log = WorkqLog.open(
            self.disk,
            self.clock,
            DIRECTORY,
            sync=SyncPolicy.ALWAYS if sync is WorkqSync.ALWAYS else SyncPolicy.OS,
            segment_bytes=SEGMENT_BYTES,
        )
        self.journal = LogRecorder(self.log, sync is WorkqSync.ALWAYS, SEGMENT_BYTES)

    def after_crash(self) -> list[Record]:
        """What a power cut now would leave."""
        records: list[Record] = []
        disk = self.disk.after_crash()
        with WorkqLog.open(disk, self.clock, DIRECTORY, on_record=records.append):
            return records


# -- durability -----------------------------------------------------------------------------------


def test_always_is_durable_when_write_returns():
    bench = Bench()
    bench.journal.write([added(1), started(1)])
    assert bench.after_crash() == [added(1), started(1)]
    assert bench.journal.wait_of([]) is WriteWait.SYNC


def test_the_ledger_is_durable_before_the_log():
    """A record must not outlive the ledger record that belongs to it."""
    bench = Bench(WorkqSync.INTERVAL)
    durable_at_sync: list[list[Record]] = []

    class WatchedLedger:
        def sync(self) -> None:
            durable_at_sync.append(bench.after_crash())

    ledger = cast(Any, WatchedLedger())
    journal = LogRecorder(bench.log, False, SEGMENT_BYTES, ledger)
    journal.write([added(1)])
    journal.sync()
    assert durable_at_sync == [[]]
    assert bench.after_crash() == [added(1)]


@pytest.mark.parametrize("sync", [WorkqSync.INTERVAL, WorkqSync.OS])
def test_other_policies_wait_for_nothing_and_are_durable_after_sync(sync: WorkqSync):
    bench = Bench(sync)
    assert bench.journal.wait_of([]) is WriteWait.NOTHING
    unsynced = [bench.journal.is_unsynced]
    bench.journal.write([added(1)])
    unsynced.append(bench.journal.is_unsynced)
    assert bench.after_crash() == []
    bench.journal.sync()
    unsynced.append(bench.journal.is_unsynced)
    assert unsynced == [False, True, False]
    assert bench.after_crash() == [added(1)]


def fill_segment(bench: Bench) -> None:
    while bench.journal.wait_of([]) is WriteWait.NOTHING:
        bench.journal.write([added(1)])


def test_full_segment_is_left_in_the_thread():
    bench = Bench(WorkqSync.OS)
    fill_segment(bench)
    size = bench.disk.size(path_of(1))
    assert size >= SEGMENT_BYTES
    bench.journal.write([added(2)])
    assert bench.journal.wait_of([]) is WriteWait.NOTHING
    assert bench.disk.size(path_of(1)) == size
    assert bench.disk.exists(path_of(2))


@pytest.mark.parametrize("sync", WorkqSync)
def test_log_that_another_thread_is_at_is_waited_for(sync: WorkqSync):
    bench = Bench(sync)
    bench.journal.is_shared = True
    assert bench.journal.wait_of([]) is WriteWait.MORE


def test_journal_of_a_full_segment_knows_it_from_the_start():
    bench = Bench(WorkqSync.OS)
    fill_segment(bench)
    again = LogRecorder(bench.log, False, SEGMENT_BYTES)
    assert again.wait_of([]) is WriteWait.MORE


# -- upkeep ---------------------------------------------------------------------------------------


class Loop:
    """Timers that ring when told to."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, after_s: float, call: Callable[[], None]) -> Any:
        self.timers.append((after_s, call))
        return self

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)

    def cancel(self) -> None:
        self.timers.clear()

    def ring(self) -> float:
        after_s, call = self.timers.pop(0)
        call()
        return after_s


class Errands:
    def __init__(self) -> None:
        self.wanted: list[Callable[[], None]] = []

    def run_between(self, errand: Callable[[], None]) -> None:
        self.wanted.append(errand)


def test_interval_sync_comes_once_after_something_was_written():
    bench, loop, errands = Bench(WorkqSync.INTERVAL), Loop(), Errands()
    syncing = DelayedErrand(
        cast(asyncio.AbstractEventLoop, loop),
        cast(Any, errands),
        lambda: bench.journal.is_unsynced,
        bench.journal.sync,
        0.25,
    )
    syncing.set_timer()
    assert loop.timers == []
    bench.journal.write([added(1)])
    syncing.set_timer()
    bench.journal.write([started(1)])
    syncing.set_timer()
    assert loop.ring() == 0.25
    assert bench.after_crash() == []
    for errand in errands.wanted:
        errand()
    assert bench.after_crash() == [added(1), started(1)]
    syncing.set_timer()
    assert loop.timers == []


class Told:
    def __init__(self) -> None:
        self.ended: list[bool] = []
        self.failures: list[BaseException] = []
        self.lines: list[str] = []


def cleaning(bench: Bench, loop: Loop, told: Told) -> Cleaning:
    return Cleaning(
        cast(asyncio.AbstractEventLoop, loop),
        bench.clock,
        bench.log,
        bench.journal,
        ServerLog(bench.clock, told.lines.append),
        interval_ms=300_000,
        ended=told.ended.append,
        on_failure=told.failures.append,
    )


def wait_for(told: Told) -> None:
    for _ in range(3000):
        if told.ended or told.failures:
            return
        asyncio.run(asyncio.sleep(0.01))
    raise AssertionError("the cleaning never ended")


def with_two_segments() -> Bench:
    bench = Bench()
    for number in range(60):
        bench.journal.write([added(number), deleted(number)])
    assert bench.disk.exists(path_of(2))
    bench.clock.advance(1_000_000_000)  # the times of these records are not those of the clock
    return bench


def test_cleaning_frees_room_and_is_told():
    bench, loop, told = with_two_segments(), Loop(), Told()
    cleaner = cleaning(bench, loop, told)
    assert loop.ring() == 300.0
    wait_for(told)
    assert told.ended == [True]
    assert not bench.disk.exists(path_of(1))
    assert any("the command log was cleaned" in line for line in told.lines)
    assert not bench.journal.is_shared
    assert [after_s for after_s, _ in loop.timers] == [300.0]
    cleaner.stop()


def test_cleaning_that_fails_is_told_and_tried_again():
    bench, loop, told = with_two_segments(), Loop(), Told()
    cleaner = cleaning(bench, loop, told)
    bench.disk.fail("remove", error=errno.EACCES)
    loop.ring()
    wait_for(told)
    assert told.ended == [False]
    assert told.failures == []
    assert any("cleaning failed" in line for line in told.lines)
    assert len(loop.timers) == 1
    cleaner.stop()


def test_cleaning_in_which_a_sync_fails_is_final():
    bench, loop, told = Bench(WorkqSync.OS), Loop(), Told()
    for number in range(60):
        bench.journal.write([added(number), deleted(number)])
    bench.clock.advance(1_000_000_000)
    cleaner = cleaning(bench, loop, told)
    bench.disk.fail_next_sync()
    loop.ring()
    wait_for(told)
    assert [type(failure) for failure in told.failures] == [LogPoisoned]
    assert loop.timers == []
    cleaner.stop()
