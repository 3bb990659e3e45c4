"""A publication that was cut short is carried through by whoever opens the log next."""

from __future__ import annotations

from contextlib import suppress

import pytest

from journeyman.errors import LogLocked
from journeyman.formats.kestrel import WRITER, ItemPut
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, JobAdded, Record
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.publication import Publication, journal_path, publish
from journeyman.logs.workq.log import WorkqLog
from journeyman.testing.manual_clock import ManualClock
from tests.support.simulated_disk import PowerCut, SimulatedDisk

OLD, NEW = [1, 2, 3], [4, 5]


def workq_add(number: int) -> JobAdded:
    now = Instant(1_700_000_000_000_000_000 + number)
    job_id = number.to_bytes(16, "big")
    return JobAdded(now, job_id, "q", 1000, 60_000, 0, 0, 0, b"x", None, now)


def workq_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs("/log/_staging")
    for number in OLD:
        disk.plant(f"/log/00000000{number}.log", HEADER + CODEC.encode(workq_add(number)))
    for number in NEW:
        disk.plant(f"/log/_staging/{number}", HEADER + CODEC.encode(workq_add(number)))
    return disk


def publish_workq(disk: SimulatedDisk) -> None:
    renames = {f"_staging/{number}": f"00000000{number}.log" for number in NEW}
    removes = tuple(f"00000000{number}.log" for number in OLD)
    publish(disk, journal_path("/log"), Publication(renames, removes))


def steps_of_a_whole_publication() -> int:
    disk = workq_disk()
    before = disk.operations
    publish_workq(disk)
    return disk.operations - before


@pytest.mark.parametrize("survival", ["lose_all_unsynced", "keep_all_unsynced"])
def test_a_workq_log_is_the_old_or_the_new_one_wherever_the_power_fails(survival):
    expected = [[workq_add(n).job_id for n in numbers] for numbers in (OLD, NEW)]
    seen = set()
    for step in range(steps_of_a_whole_publication() + 1):
        disk = workq_disk()
        disk.cut_power_at(step)
        with suppress(PowerCut):
            publish_workq(disk)
        after = disk.after_crash(survival)
        records: list[Record] = []
        with WorkqLog.open(after, ManualClock(), "/log", on_record=records.append):
            found = [record.job_id for record in records]
        assert found in expected, f"a mixture after step {step}"
        seen.add(expected.index(found))
        assert not after.exists(journal_path("/log"))
    assert seen == {0, 1}


def kestrel_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs("/q/_staging")
    for queue in ("a", "b"):
        disk.plant(f"/q/{queue}.1", WRITER.header + WRITER.encode(ItemPut(1, 1, None, 0, b"old")))
        new = WRITER.header + WRITER.encode(ItemPut(2, 1, None, 0, b"new"))
        disk.plant(f"/q/_staging/{queue}", new)
    return disk


def test_opening_one_kestrel_queue_finishes_a_publication_of_several():
    disk = kestrel_disk()
    changes = Publication({"_staging/a": "a.2", "_staging/b": "b.2"}, ("a.1", "b.1"))
    disk.cut_power_at(9)
    with pytest.raises(PowerCut):
        publish(disk, journal_path("/q"), changes)
    after = disk.after_crash("keep_all_unsynced")
    assert after.exists(journal_path("/q"))
    for queue in ("a", "b"):
        with KestrelLog.open(after, ManualClock(), "/q", queue) as journal:
            assert [item.data for item in journal.items()] == [b"new"]


def test_a_publication_of_a_queue_that_is_in_use_is_not_touched():
    disk = kestrel_disk()
    with KestrelLog.open(disk, ManualClock(), "/q", "b"):
        disk.plant(journal_path("/q"), b'{"version": 1, "renames": {}, "removes": ["b.1"]}')
        with pytest.raises(LogLocked):
            KestrelLog.open(disk, ManualClock(), "/q", "a")
        assert disk.exists("/q/b.1")
