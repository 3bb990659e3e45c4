"""Power is cut at every operation of a handover; the log stays what it was, and can be finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from journeyman.cli.handover import hand_over
from journeyman.folds import workq as workq_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import scan
from journeyman.formats.timed_frame import Instant
from journeyman.logs.catalog import KESTREL, WORKQ, ZTICK, Log, LogFile
from journeyman.logs.handover import HandedOver
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.testing import ManualClock
from tests.support import ztick_original
from tests.support.cli_commands import added, event, job, job_id
from tests.support.crash.cuts import crashes
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_original import replay_all

PATH = "/data/log"
DAY_MS = 86_400_000


def handed_over(disk: SimulatedDisk, log: Log) -> HandedOver:
    return hand_over(disk, ManualClock(10**9), log, {})


# -- ztick -----------------------------------------------------------------------------------


def ztick_disk() -> SimulatedDisk:
    """Compacted twice, the second time cut short, and the server was killed."""
    disk = SimulatedDisk()
    log = ZtickLog.open(disk, ManualClock(), PATH)
    log.append([job("a", 1), job("b", 1)])
    log.compact()
    log.append([ztick.JobRemoved("a"), job("c", 1)])
    log.compact()
    log.append([job("b", 2), ztick.JobRemoved("c"), job("d", 1)])
    return disk.after_crash("keep_all_unsynced")


def test_no_crash_in_a_handover_changes_a_schedule():
    state = {("job", "b"): job("b", 2), ("job", "d"): job("d", 1)}
    log = Log(ZTICK, PATH, (LogFile(ZTICK, PATH),), whole=True)
    for crash in crashes(ztick_disk, lambda disk: disk, lambda disk: handed_over(disk, log)):
        again = crash.disk.after_crash("keep_all_unsynced")
        with ZtickLog.open(crash.disk, ManualClock(), PATH) as opened:
            records = [entry.record for entry in opened.entries()]
        assert ztick_fold.replay(records) == state, crash
        assert handed_over(again, log).is_safe(accept=False), crash
        assert ztick_original.load(again.read_bytes(PATH)) == state, crash
        assert set(again.files()) == {PATH, f"{PATH}.lock"}, crash


# -- workq -----------------------------------------------------------------------------------

CMDLOG = "/data/cmdlog"


def workq_disk() -> SimulatedDisk:
    """Two segments, with a job in both of them that the original refuses, and others."""
    disk = SimulatedDisk()
    start = workq.Command.START_ATTEMPT
    first: list[workq.Record] = [replace(added(n, at_ns=0), ttl_ms=DAY_MS) for n in (1, 2)]
    done = workq.JobFinished(Instant(0), job_id(1), workq.Command.COMPLETE, b"result")
    second: list[workq.Record] = [
        event(1, start, at_ns=0),
        done,
        replace(done, result=b"late"),
        event(2, start),
    ]
    for number, records in enumerate((first, second), start=1):
        data = workq.HEADER + b"".join(map(workq.CODEC.encode, records))
        disk.plant(f"{CMDLOG}/{number:09d}.log", data)
    return disk


def workq_records(disk: SimulatedDisk) -> list[workq.Record]:
    records = []
    for path, data in sorted(disk.files().items()):
        if path.endswith(".log"):
            entries, ending = scan(workq.CODEC, data)
            assert ending.clean
            records += [entry.record for entry in entries]
    return records


def test_no_crash_in_a_handover_changes_a_work_queue():
    log = Log(WORKQ, CMDLOG, whole=True, files=())
    state = workq_fold.replay(workq_records(workq_disk()))
    for crash in crashes(
        workq_disk, lambda disk: disk, lambda disk: handed_over(disk, log), seeds=20
    ):
        again = crash.disk.after_crash("keep_all_unsynced")
        with WorkqLog.open(crash.disk, ManualClock(), CMDLOG) as opened:
            records = [entry.record for entry in opened.entries()]
        assert workq_fold.replay(records) == state, crash
        assert handed_over(again, log).is_safe(accept=False), crash
        assert workq_fold.replay(workq_records(again)) == state, crash
        assert set(replay_all(workq_records(again))) == {job_id(1), job_id(2)}, crash
        assert not [path for path in again.files() if path.endswith((".rw", ".json"))], crash


# -- kestrel ---------------------------------------------------------------------------------

SPOOL = "/data/spool"


def kestrel_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    journal = KestrelLog.open(disk, ManualClock(), SPOOL, "q")
    journal.add_reader("r")
    for number in range(3):
        journal.put(b"%d" % number)
    return disk.after_crash("keep_all_unsynced")


def queue_log(disk: SimulatedDisk) -> Log:
    names = sorted(name for name in disk.list_dir(SPOOL) if name.startswith("q."))
    files = [
        LogFile(KESTREL, f"{SPOOL}/{name}", "r" if ".read." in name else None, "q")
        for name in names
        if not name.endswith(".lock") and "~" not in name
    ]
    return Log(KESTREL, SPOOL, tuple(files), whole=True, queue="q")


@pytest.mark.parametrize("torn", [0.0, 0.5])
def test_no_crash_in_a_handover_changes_a_fan_out_queue(torn):
    def run(disk: SimulatedDisk) -> HandedOver:
        return handed_over(disk, queue_log(disk))

    for crash in crashes(kestrel_disk, lambda disk: disk, run, torn=torn):
        again = crash.disk.after_crash("keep_all_unsynced")
        with KestrelLog.open(crash.disk, ManualClock(), SPOOL, "q") as journal:
            assert [item.data for item in journal.items()] == [b"0", b"1", b"2"], crash
            assert journal.readers["r"].head == 0, crash
        assert run(again).is_safe(accept=False), crash
        (segment,) = (file.path for file in queue_log(again).segments)
        entries, ending = scan(kestrel.WRITER, again.read_bytes(segment))
        items = [e.record.data for e in entries if isinstance(e.record, kestrel.ItemPut)]
        assert (items, ending.clean) == ([b"0", b"1", b"2"], True), crash
