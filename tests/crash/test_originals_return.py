"""An original program writes to a log between our crash and our return: nothing is lost.

The power is cut, or the server killed, at every operation; then a model of the original appends
what it acknowledges. Our next start has what was acknowledged here and there, and so has the one
after it.
"""

from __future__ import annotations

import posixpath
from typing import Any

import pytest

from journeyman.folds.kestrel import Reader
from journeyman.formats import ztick
from journeyman.formats.kestrel import READER, ItemPut, ReadDone, ReadHead
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.segments import kestrel_segments
from journeyman.logs.ztick.log import ZtickLog
from journeyman.testing import ManualClock
from tests.support.crash.cuts import Crash, crashes
from tests.support.originals import appended_by_libkestrel, appended_by_ztick
from tests.support.simulated_disk import SimulatedDisk

LOG = "/data/log"
SPOOL, QUEUE = "/spool", "jobs"
BATCHES = (1, 3, 40, 2)  # records; the third one crosses several sectors
NOW_NS = 1_763_431_200_123_456_789
THEIRS = [1, 2, 30]  # shorter than what is missing of a batch, and longer


def job(number: int) -> ztick.JobSet:
    return ztick.JobSet(f"ours.{number}", NOW_NS + number, ztick.Status.PLANNED)


def their_jobs(count: int) -> list[ztick.Record]:
    return [ztick.JobSet(f"theirs.{n}", NOW_NS, ztick.Status.PLANNED) for n in range(count)]


class Schedule:
    """A server that appends batches, and what it has acknowledged."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.acknowledged: list[Any] = []
        self.log = ZtickLog.open(self.disk, ManualClock(), LOG)

    def run(self) -> None:
        number = 0
        for size in BATCHES:
            batch = [job(n) for n in range(number, number + size)]
            self.log.append(batch)
            self.acknowledged += batch
            number += size


class Queue:
    """The same for a fan-out queue."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.acknowledged: list[ItemPut] = []
        self.log = KestrelLog.open(self.disk, ManualClock(), SPOOL, QUEUE)

    def run(self) -> None:
        for size in BATCHES:
            begin = self.log.next_id
            batch = [ItemPut(begin + n, 5, None, 0, b"ours %d " % n * 6) for n in range(size)]
            self.log.append(batch)
            self.acknowledged += batch


def holds(found: list[Any], wanted: list[Any]) -> bool:
    """Whether all of it is there, in this order."""
    rest = iter(found)
    return all(any(record == other for other in rest) for record in wanted)


def loaded(disk: SimulatedDisk) -> list[Any]:
    with ZtickLog.open(disk, ManualClock(), LOG) as log:
        return [entry.record for entry in log.entries()]


def has_hole(data: bytes) -> bool:
    """Whether a part of a batch was lost with the power, and zeros stand there."""
    return bytes(16) in data or data.endswith(bytes(4))


@pytest.mark.parametrize("torn", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("count", THEIRS)
def test_what_ztick_wrote_after_our_crash_is_there(torn: float, count: int):
    foreign = their_jobs(count)
    whole, kept = 0, 0
    for crash in crashes(Schedule, lambda run: run.disk, Schedule.run, seeds=12, torn=torn):
        disk = crash.disk
        remaining = disk.read_bytes(LOG) if disk.exists(LOG) else b""
        disk.plant(LOG, appended_by_ztick(remaining, foreign))
        found = loaded(disk)
        assert found[: len(crash.run.acknowledged)] == crash.run.acknowledged, crash
        ours = [record for record in found if record not in foreign]
        assert ours == [job(n) for n in range(len(ours))] or has_hole(remaining), crash
        whole += 1
        if holds(found, foreign):
            kept += 1
        else:
            # Zeros stand where a part of the batch was lost: see ADR 10.
            assert has_hole(remaining), crash
            assert disk.list_dir("/data/quarantine"), crash
        assert loaded(disk) == found, crash
    assert kept > 0.8 * whole


@pytest.mark.parametrize("torn", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("count", THEIRS)
def test_what_ztick_wrote_after_we_were_killed_is_there(torn: float, count: int):
    """Without a power cut the file is as the last write has left it: whole, or cut somewhere."""
    foreign = their_jobs(count)
    for crash in killed(Schedule, torn):
        disk = crash.disk
        disk.plant(LOG, appended_by_ztick(disk.read_bytes(LOG), foreign))
        found = loaded(disk)
        assert found[: len(crash.run.acknowledged)] == crash.run.acknowledged, crash
        assert holds(found, foreign), crash


def killed(begin: Any, torn: float) -> list[Crash[Any]]:
    every = crashes(begin, lambda run: run.disk, lambda run: run.run(), seeds=0, torn=torn)
    return [crash for crash in every if crash.survival == "keep_all_unsynced"]


def segments_of(disk: SimulatedDisk) -> dict[str, bytes]:
    names = kestrel_segments(QUEUE, disk.list_dir(SPOOL)) if disk.is_dir(SPOOL) else []
    return {name: disk.read_bytes(posixpath.join(SPOOL, name)) for name in names}


@pytest.mark.parametrize("torn", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("count", THEIRS)
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_libkestrel_wrote_after_we_were_killed_is_there(torn, count, is_killed):
    """And its checkpoint is trusted: it is about items that are there."""
    for crash in killed(Queue, torn):
        disk = crash.disk
        payloads = [b"theirs %d" % n for n in range(count)]
        after, items = appended_by_libkestrel(segments_of(disk), QUEUE, payloads, killed=is_killed)
        for name, data in after.items():
            disk.plant(posixpath.join(SPOOL, name), data)
        head = items[-1].item_id - 1
        disk.plant(
            f"{SPOOL}/{QUEUE}.read.",
            READER.header + READER.encode(ReadHead(head)) + READER.encode(ReadDone(())),
        )
        for _ in range(2):
            with KestrelLog.open(disk, ManualClock(), SPOOL, QUEUE) as journal:
                found = list(journal.items())
                assert found[: len(crash.run.acknowledged)] == crash.run.acknowledged, crash
                assert holds(found, items), crash
                assert journal.readers == {"": Reader(head)}, crash
                assert journal.next_id == items[-1].item_id + 1, crash
                assert not journal.anomalies


@pytest.mark.parametrize("torn", [0.0, 0.6])
@pytest.mark.parametrize("count", THEIRS)
def test_what_libkestrel_wrote_after_a_power_cut_is_there(torn: float, count: int):
    for crash in crashes(Queue, lambda run: run.disk, Queue.run, seeds=12, torn=torn):
        disk = crash.disk
        before = segments_of(disk)
        payloads = [b"theirs %d" % n for n in range(count)]
        after, items = appended_by_libkestrel(before, QUEUE, payloads)
        for name, data in after.items():
            disk.plant(posixpath.join(SPOOL, name), data)
        with KestrelLog.open(disk, ManualClock(), SPOOL, QUEUE) as journal:
            found = list(journal.items())
        acknowledged = crash.run.acknowledged
        assert found[: len(acknowledged)] == acknowledged, crash
        assert holds(found, items) or any(map(has_hole, before.values())), crash
        with KestrelLog.open(disk, ManualClock(), SPOOL, QUEUE) as journal:
            assert list(journal.items()) == found
