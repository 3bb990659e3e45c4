"""Power is cut at every operation of publishing; the log is the old one or the new one, whole."""

from __future__ import annotations

from typing import Any

import pytest

from journeyman.folds import kestrel as kestrel_fold
from journeyman.folds.ztick import replay
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Codec, scan
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.publication import finish, journal_path
from journeyman.logs.segments import names_in, workq_segments
from journeyman.logs.ztick.log import ZtickLog
from journeyman.spark.maintenance.cleaning import publish_workq
from journeyman.spark.maintenance.compaction import Retirement, publish_kestrel, publish_ztick
from journeyman.testing import ManualClock
from tests.support.crash.cuts import crashes
from tests.support.simulated_disk import SimulatedDisk
from tests.support.spark.sink_disk import SimulatedSinkDisk
from tests.support.specimens import kestrel_record, workq_record

LOG = "/data/log"


def encoded(codec: Codec[Any], records: list[Any]) -> bytes:
    return codec.header + b"".join(map(codec.encode, records))


def job(name: str, at_ns: int) -> ztick.JobSet:
    return ztick.JobSet(name, at_ns, ztick.Status.PLANNED)


OLDEST: list[ztick.Record] = [job("a", 1), job("b", 1), job("kept", 1)]
MIDDLE: list[ztick.Record] = [ztick.JobRemoved("a"), job("b", 2), job("c", 2)]
NEWEST: list[ztick.Record] = [ztick.JobRemoved("b"), job("c", 3), job("d", 3)]
STATE = replay([*OLDEST, *MIDDLE, *NEWEST])


@pytest.mark.parametrize(
    "files",
    [(OLDEST, MIDDLE, NEWEST), ([*OLDEST, *MIDDLE], None, NEWEST), (None, OLDEST + MIDDLE, NEWEST)],
    ids=["all three", "at rest", "no result yet"],
)
def test_a_ztick_log_has_its_state_whenever_publishing_is_cut_short(files):
    def begin() -> SimulatedSinkDisk:
        disk = SimulatedSinkDisk()
        for suffix, records in zip((".compressed", ".to_compress", ""), files, strict=True):
            if records is not None:
                disk.plant(LOG + suffix, encoded(ztick.CODEC, records))
        disk.plant("/data/_temporary-1/log", encoded(ztick.CODEC, [job("kept", 1), *NEWEST[1:]]))
        return disk

    cuts = crashes(begin, lambda d: d, lambda d: publish_ztick(d, LOG, "/data/_temporary-1/log"))
    for crash in cuts:
        with ZtickLog.open(crash.disk, ManualClock(), LOG) as log:
            assert replay(entry.record for entry in log.entries()) == STATE, crash
    done = begin()
    publish_ztick(done, LOG, "/data/_temporary-1/log")
    assert done.list_dir("/data") == ["_temporary-1", "log"]


def test_a_workq_log_is_the_old_or_the_new_one_once_its_journal_is_finished():
    old = [[workq_record(n) for n in range(3)], [workq_record(n) for n in range(3, 6)]]
    new = [[workq_record(n)] for n in (7, 8, 9)]

    def begin() -> SimulatedSinkDisk:
        disk = SimulatedSinkDisk()
        for number, records in enumerate(old, 1):
            disk.plant(f"{LOG}/{number:09d}.log", encoded(workq.CODEC, records))
        for number, records in enumerate(new):
            disk.plant(f"{LOG}/_temporary-1/{number}", encoded(workq.CODEC, records))
        return disk

    def look(disk: SimulatedDisk) -> list[Any]:
        found = []
        for name in workq_segments(names_in(disk, LOG)):
            entries, ending = scan(workq.CODEC, disk.read_bytes(f"{LOG}/{name}"))
            assert ending.clean
            found.append([entry.record for entry in entries])
        return found

    staged = [f"{LOG}/_temporary-1/{number}" for number in range(3)]
    seen = []
    for crash in crashes(begin, lambda d: d, lambda d: publish_workq(d, LOG, staged)):
        finish(crash.disk, journal_path(LOG))
        found = look(crash.disk)
        assert found in (old, new), crash
        seen.append(found == new)
    assert True in seen
    assert False in seen


def test_a_kestrel_queue_delivers_the_same_items_whenever_publishing_is_cut_short():
    checkpoint = kestrel.READER.encode(kestrel.ReadHead(4)) + kestrel.READER.encode(
        kestrel.ReadDone(())
    )

    def begin() -> SimulatedSinkDisk:
        disk = SimulatedSinkDisk()
        for number, items in ((10, range(2)), (20, range(2, 6)), (30, range(6, 8))):
            records = [kestrel_record(n) for n in items]
            disk.plant(f"{LOG}/jobs.{number}", encoded(kestrel.WRITER, records))
        disk.plant(f"{LOG}/jobs.read.a", kestrel.READER.header + checkpoint)
        staged = [kestrel_record(n) for n in range(4, 6)]
        disk.plant(f"{LOG}/_temporary-1/jobs.20", encoded(kestrel.WRITER, staged))
        return disk

    plan = Retirement(4, (f"{LOG}/jobs.10",), f"{LOG}/jobs.20")
    staged = f"{LOG}/_temporary-1/jobs.20"
    for crash in crashes(begin, lambda d: d, lambda d: publish_kestrel(d, plan, staged)):
        with KestrelLog.open(crash.disk, ManualClock(), LOG, "jobs") as journal:
            reader = journal.readers["a"]
            assert isinstance(reader, kestrel_fold.Reader)
            items = list(journal.items(after=reader.head))
            assert items == [kestrel_record(n) for n in range(4, 8)], crash
            assert journal.next_id == 9
