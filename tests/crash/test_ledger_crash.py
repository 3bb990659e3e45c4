"""Cutting the power at every step of the ledger: appends beside another log, and compaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from journeyman.formats.ledger import QueuePaused, QueueResumed, Record
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import JobSet, Status
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.testing import ManualClock
from tests.support.crash.cuts import crashes
from tests.support.simulated_disk import SimulatedDisk

BOTH_DISKS = pytest.mark.usefixtures("kind_of_disk")

NOW = Instant(1_700_000_000_000_000_000)


@dataclass
class Run:
    disk: SimulatedDisk
    acknowledged: list[str] = field(default_factory=list)


def open_ledger(disk: SimulatedDisk) -> LedgerLog:
    return LedgerLog.open(disk, ManualClock(), "data/ledger", segment_bytes=150)


def paused(disk: SimulatedDisk) -> set[str]:
    with open_ledger(disk) as log:
        assert log.recovery.lost_at_least <= 1  # the append that the power cut
        return {key for _, key in log.states}


def jobs(disk: SimulatedDisk) -> set[str]:
    found: set[str] = set()
    with ZtickLog.open(
        disk,
        ManualClock(),
        "data/schedule.log",
        on_record=lambda record: found.add(record.identifier),
    ):
        return found


def pause(name: str) -> list[Record]:
    return [QueuePaused(NOW, name)]


def begin(program: Callable[[LedgerLog], object] | None = None) -> Run:
    run = Run(SimulatedDisk())
    if program is not None:
        with open_ledger(run.disk) as log:
            program(log)
    return run


def write(schedule: ZtickLog, name: str) -> None:
    schedule.append([JobSet(name, 0, Status.PLANNED)])


def append_beside_a_log(run: Run) -> None:
    ledger = open_ledger(run.disk)
    schedule = ZtickLog.open(run.disk, ManualClock(), "data/schedule.log")
    for name in "abcdef":
        ledger.append(pause(name), then=partial(write, schedule, name))
        run.acknowledged.append(name)
    ledger.close()


@BOTH_DISKS
def test_what_was_acknowledged_is_in_both_and_the_ledger_is_never_behind():
    seen = set()
    for crash in crashes(begin, lambda run: run.disk, append_beside_a_log, seeds=3):
        extras, records = paused(crash.disk), jobs(crash.disk)
        assert set(crash.run.acknowledged) <= records, crash
        assert records <= extras, crash  # no record without what belongs to it
        assert len(extras) <= len(crash.run.acknowledged) + 1, crash
        seen.add(len(extras) - len(records))
    assert seen == {0, 1}


def fill(log: LedgerLog) -> None:
    for name in "abcdefgh":
        log.append(pause(name))
    for name in "aceg":
        log.append([QueueResumed(NOW, name)])


def compact_and_go_on(run: Run) -> None:
    with open_ledger(run.disk) as log:
        log.compact()
        log.append([QueueResumed(NOW, "b")])
        run.acknowledged.append("b")
        log.compact()


@BOTH_DISKS
def test_a_compaction_changes_nothing_wherever_the_power_fails():
    for crash in crashes(lambda: begin(fill), lambda run: run.disk, compact_and_go_on, seeds=4):
        found = paused(crash.disk)
        assert found - {"b"} == {"d", "f", "h"}, crash
        if crash.run.acknowledged:
            assert "b" not in found, crash
        with open_ledger(crash.disk) as log:  # and the next one works on whatever was left
            log.compact()
        assert paused(crash.disk) == found, crash


def test_a_compaction_that_failed_halfway_is_finished_before_the_next_one():
    """Else the next one would read segments that were to go, and bring back what was removed."""
    for skip in range(4):
        run = begin(fill)
        with open_ledger(run.disk) as log:
            run.disk.fail("remove", skip=skip)
            with pytest.raises(OSError, match="error"):
                log.compact()
            run.disk.heal()
            log.compact()
            log.append(pause("z"))
        assert paused(run.disk) == {"b", "d", "f", "h", "z"}, skip
