"""Power is cut at every operation of appending; whatever was acknowledged is recovered."""

from __future__ import annotations

from typing import Any

import pytest

from journeyman.errors import LogError, LogPoisoned
from journeyman.logs.appender import Appender, SyncPolicy
from journeyman.logs.sealing import Sealing
from journeyman.testing import ManualClock
from tests.support.crash.cuts import EXTREMES, survivals_of
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.specimens import DIALECTS, DIRECTORY, KESTREL, WORKQ, ZTICK, Dialect

SEGMENT_BYTES = 150
GROUPS = (1, 2, 3, 1, 4)  # how many records are appended at a time
SEEDS = range(40)
SURVIVALS = (*EXTREMES, *SEEDS)
POLICIES = [SyncPolicy.ALWAYS, SyncPolicy.OS]


class Run:
    """A program that appends in groups; what it was told, and what the crash interrupted."""

    def __init__(self, dialect: Dialect, sync: SyncPolicy, **disk_options: Any) -> None:
        self.dialect = dialect
        self.sync = sync
        self.disk = SimulatedDisk(**disk_options)
        self.disk.make_dirs(DIRECTORY)
        self.records = dialect.records(sum(GROUPS) + 1)
        self.acknowledged: list[Any] = []
        self.refused: list[Any] = []
        self.clock = ManualClock()
        self.appender = self.open(self.disk)

    def open(self, disk: SimulatedDisk) -> Appender:
        plan = self.dialect.plan(disk, self.clock, SEGMENT_BYTES)
        seals = self.dialect.codec.seals
        sealing = None if seals is None else Sealing(seals)
        return Appender(disk, self.clock, plan, sync=self.sync, sealing=sealing)

    def append_all(self) -> None:
        begin = 0
        for group in GROUPS:
            self.append(self.records[begin : begin + group])
            begin += group
            self.clock.advance(0.003)
        self.appender.close()

    def append(self, records: list[Any]) -> None:
        """What is refused is not appended; anything worse is raised."""
        try:
            self.appender.append([self.dialect.codec.encode(record) for record in records])
        except LogPoisoned:
            raise
        except LogError:
            self.refused += records
        else:
            self.acknowledged += records

    def run_until_cut(self) -> bool:
        """Whether the power was cut before the program ended."""
        try:
            self.append_all()
        except PowerCut:
            return True
        return False


def is_subsequence(found: list[Any], of: list[Any]) -> bool:
    rest = iter(of)
    return all(any(record == other for other in rest) for record in found)


def operations_of(dialect: Dialect, sync: SyncPolicy) -> int:
    run = Run(dialect, sync)
    begin = run.disk.operations
    assert not run.run_until_cut()
    assert run.acknowledged == run.records[: sum(GROUPS)]
    assert dialect is ZTICK or len(dialect.paths(run.disk)) > 2, "it rotates"
    return run.disk.operations - begin


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("torn", [0.0, 0.6])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_what_was_acknowledged_under_always_survives_every_crash(dialect, torn):
    sync = SyncPolicy.ALWAYS
    for operation in range(1, operations_of(dialect, sync) + 1):
        run = Run(dialect, sync)
        run.disk.cut_power_at(operation, torn=torn)
        assert run.run_until_cut()
        for survival in survivals_of(run.disk, *SURVIVALS):
            after = run.disk.after_crash(survival)
            recovered, _ = dialect.recover(after)
            assert recovered[: len(run.acknowledged)] == run.acknowledged, (operation, survival)
            assert recovered == run.records[: len(recovered)], (operation, survival)


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("sync", POLICIES, ids=str)
def test_the_log_goes_on_after_every_crash(dialect, sync):
    for operation in range(1, operations_of(dialect, sync) + 1):
        run = Run(dialect, sync)
        run.disk.cut_power_at(operation, torn=0.3)
        assert run.run_until_cut()
        for survival in survivals_of(run.disk, *EXTREMES, operation):
            after = run.disk.after_crash(survival)
            before, _ = dialect.recover(after)
            appender = run.open(after)
            appender.append([dialect.codec.encode(run.records[-1])])
            appender.close()
            again = after.after_crash("lose_all_unsynced")
            recovered, reports = dialect.recover(again)
            assert recovered == [*before, run.records[-1]], (operation, survival)
            assert all(report.clean for report in reports)


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("sync", POLICIES[1:], ids=str)
def test_weaker_policies_lose_only_from_the_end(dialect, sync):
    """Where a crash keeps what was written in order, that is a prefix of the log."""
    for operation in range(1, operations_of(dialect, sync) + 1):
        run = Run(dialect, sync)
        run.disk.cut_power_at(operation, torn=0.6)
        assert run.run_until_cut()
        for survival in survivals_of(run.disk, *EXTREMES):
            recovered, _ = dialect.recover(run.disk.after_crash(survival))
            assert recovered == run.records[: len(recovered)], (operation, survival)


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("sync", POLICIES, ids=str)
def test_no_crash_alters_or_invents_a_record(dialect, sync):
    """Writes in part, with zeros for the rest, or without those before them: under every policy."""
    for operation in range(1, operations_of(dialect, sync) + 1):
        run = Run(dialect, sync)
        run.disk.cut_power_at(operation, torn=0.6)
        assert run.run_until_cut()
        for survival in survivals_of(run.disk, *SEEDS):
            recovered, _ = dialect.recover(run.disk.after_crash(survival))
            assert is_subsequence(recovered, run.records), (operation, survival)


@pytest.mark.parametrize("sync", POLICIES[1:], ids=str)
def test_weaker_policies_lose_nothing_before_the_last_segment(sync):
    """However the disk shuffles unsynced writes: only the last segment ever holds any."""
    for operation in range(1, operations_of(WORKQ, sync) + 1):
        run = Run(WORKQ, sync)
        run.disk.cut_power_at(operation, torn=0.6)
        assert run.run_until_cut()
        for survival in survivals_of(run.disk, *SEEDS):
            after = run.disk.after_crash(survival)
            recovered, reports = WORKQ.recover(after)
            assert is_subsequence(recovered, run.records), (operation, survival)
            closed = sum(report.records for report in reports[:-1])
            assert recovered[:closed] == run.records[:closed], (operation, survival)
            assert all(report.clean for report in reports[:-1])


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_a_record_is_recovered_if_and_only_if_it_was_accepted_when_the_disk_fills_up(dialect):
    whole = Run(dialect, SyncPolicy.ALWAYS)
    whole.append_all()
    seals = dialect.codec.seals
    needed = whole.disk.used - (0 if seals is None else seals.size)  # it does without the last
    for capacity in range(needed):
        run = Run(dialect, SyncPolicy.ALWAYS, capacity=capacity)
        run.append_all()
        assert run.refused, capacity
        for survival in ("lose_all_unsynced", capacity):
            after = run.disk.after_crash(survival)
            after.capacity = None
            recovered, reports = dialect.recover(after)
            assert recovered == run.acknowledged, (capacity, survival)
            # A segment whose header did not fit may be back, empty, and is then removed for good.
            assert all(report.clean or report.gone for report in reports), (capacity, survival)


@pytest.mark.parametrize("dialect", [WORKQ, KESTREL], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", ["write", "truncate", "sync", "sync_dir", "create", "remove"])
def test_nothing_acknowledged_is_lost_to_any_failing_operation(dialect, kind):
    for skip in range(40):
        run = Run(dialect, SyncPolicy.ALWAYS)
        run.disk.fail(kind, skip=skip, partial=3)
        run.disk.fail("write", skip=skip + 3, partial=3)
        try:
            run.append_all()
        except LogPoisoned:
            assert run.appender.poisoned is not None
        recovered, _ = dialect.recover(run.disk.after_crash("lose_all_unsynced"))
        assert is_subsequence(run.acknowledged, recovered), skip
        if run.appender.poisoned is None:
            assert recovered == run.acknowledged, skip


def test_switching_files_for_compaction_loses_nothing_at_any_operation():
    def program(run: Run) -> None:
        run.append(run.records[:3])
        run.appender.rotate_to(lambda: move(run.disk))
        run.append(run.records[3:4])
        run.append(run.records[4:6])

    def move(disk: SimulatedDisk) -> str:
        disk.rename(ZTICK.path, f"{ZTICK.path}.to_compress")
        return ZTICK.path

    whole = Run(ZTICK, SyncPolicy.ALWAYS)
    begin = whole.disk.operations
    program(whole)
    for operation in range(1, whole.disk.operations - begin + 1):
        run = Run(ZTICK, SyncPolicy.ALWAYS)
        run.disk.cut_power_at(operation, torn=0.5)
        with pytest.raises(PowerCut):
            program(run)
        for survival in survivals_of(run.disk, *SURVIVALS):
            recovered, _ = ZTICK.recover(run.disk.after_crash(survival))
            assert recovered[: len(run.acknowledged)] == run.acknowledged, (operation, survival)
            assert recovered == run.records[: len(recovered)], (operation, survival)
