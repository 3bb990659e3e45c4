"""Power is cut at every operation of committing a write; the log is the old one or the new one."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from journeyman.errors import JourneymanError
from journeyman.folds.ztick import replay
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Codec, scan
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.publication import journal_path, pending
from journeyman.logs.segments import kestrel_readers, kestrel_segments, names_in, workq_segments
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.spark.files import staging_name
from journeyman.spark.sinks.commit import STALE_AFTER_S, Write, remove_staging, remove_stale
from journeyman.spark.sinks.dialects import COMMITS
from journeyman.spark.sinks.log_options import SinkOptions
from journeyman.spark.sinks.parts import PartFile, PartsWritten, StagedStream
from journeyman.testing import ManualClock
from tests.support.crash.cuts import Crash, crashes
from tests.support.spark.sink_disk import SimulatedSinkDisk
from tests.support.specimens import kestrel_record, workq_record, ztick_record
from tests.support.unsealed import scan_records

NOW_NS = 1_800_000_000 * 10**9
LOG = "/data/log"
ALONE = StagedStream()
OLD, NEW = range(6), range(6, 14)  # which specimens


def entry_bytes(codec: Codec[Any], records: list[Any]) -> bytes:
    return b"".join(map(codec.encode, records))


@dataclass(frozen=True)
class Case:
    """How a dialect is written in parts, planted and looked at."""

    dialect: str
    codec: Codec[Any]
    record: Callable[[int], Any]
    commit: Callable[[Write], None]
    plant: Callable[[SimulatedSinkDisk], None]
    look: Callable[[SimulatedSinkDisk], Any]
    stream: StagedStream = ALONE

    def options(self) -> SinkOptions:
        return SinkOptions(self.dialect, LOG, ("_position",), 1024)

    def write(self, disk: SimulatedSinkDisk, numbers: range, *, overwrite: bool) -> None:
        """Two tasks, and one attempt that nobody speaks of; then the commit."""
        is_inside = self.dialect != "ztick" and disk.is_dir(LOG)
        above = LOG if is_inside else posixpath.dirname(LOG)
        clock = ManualClock(now_ns=NOW_NS)
        staging = posixpath.join(above, staging_name(clock.now_ns()))
        half = numbers.start + len(numbers) // 2
        pieces = [range(numbers.start, half), range(half, numbers.stop)]
        messages = []
        for partition, piece in enumerate(pieces if numbers else []):
            for attempt in ("lost", "told"):
                part = self._part(disk, f"{staging}/part-{partition}-{attempt}", piece)
                if attempt == "told":
                    ids = (("jobs", piece.start + 1, piece.stop),) if self.stream.queue else ()
                    messages.append(PartsWritten(partition, (part,), len(piece), ids=ids))
        job = Write(disk, clock, self.options(), overwrite, staging, messages)
        job.check()
        self.commit(job)
        remove_staging(disk, staging)

    def _part(self, disk: SimulatedSinkDisk, path: str, numbers: range) -> PartFile:
        disk.make_dirs(posixpath.dirname(path))
        content = self.codec.header + entry_bytes(self.codec, list(map(self.record, numbers)))
        file = disk.open_append(path)
        file.write(content)
        file.sync()
        file.close()
        return PartFile(self.stream, path, len(content))

    def records(self, *ranges: range) -> list[Any]:
        return [self.record(number) for numbers in ranges for number in numbers]


# -- ztick ---------------------------------------------------------------------------------------


def plant_ztick(disk: SimulatedSinkDisk) -> None:
    """All three files, the active one with a torn tail."""
    files = {".compressed": range(2), ".to_compress": range(2, 4), "": range(4, 6)}
    for suffix, numbers in files.items():
        content = entry_bytes(ztick.CODEC, [ztick_record(n) for n in numbers])
        disk.plant(LOG + suffix, content + (b"\0\0\0" if not suffix else b""))


def look_ztick(disk: SimulatedSinkDisk) -> Any:
    with ZtickLog.open(disk, ManualClock(), LOG) as log:
        return replay(entry.record for entry in log.entries())


# -- workq ---------------------------------------------------------------------------------------


def plant_workq(disk: SimulatedSinkDisk) -> None:
    for sequence, numbers in ((1, range(3)), (2, range(3, 6))):
        records = entry_bytes(workq.CODEC, [workq_record(n) for n in numbers])
        torn = b"\1\0\0" if sequence == 2 else b""
        disk.plant(f"{LOG}/{sequence:09d}.log", workq.HEADER + records + torn)
    disk.plant(f"{LOG}/append.lock", b"")


def read_all(disk: SimulatedSinkDisk, codec: Codec[Any], names: list[str]) -> list[Any]:
    found = []
    for name in names:
        data = disk.read_bytes(posixpath.join(LOG, name))
        entries, _ = (scan_records if codec.seals else scan)(codec, data)
        found += [entry.record for entry in entries]
    return found


def look_workq(disk: SimulatedSinkDisk) -> Any:
    return read_all(disk, workq.CODEC, workq_segments(names_in(disk, LOG)))


# -- kestrel -------------------------------------------------------------------------------------

CHECKPOINT = kestrel.READER.encode(kestrel.ReadHead(3)) + kestrel.READER.encode(
    kestrel.ReadDone(())
)


def plant_kestrel(disk: SimulatedSinkDisk) -> None:
    for number, numbers in ((1000, range(3)), (2000, range(3, 6))):
        items = entry_bytes(kestrel.WRITER, [kestrel_record(n) for n in numbers])
        disk.plant(f"{LOG}/jobs.{number}", kestrel.WRITER.header + items)
    disk.plant(f"{LOG}/jobs.read.one", kestrel.READER.header + CHECKPOINT)
    disk.plant(f"{LOG}/other.1", kestrel.WRITER.header)


def look_kestrel(disk: SimulatedSinkDisk) -> Any:
    names = names_in(disk, LOG)
    items = read_all(disk, kestrel.WRITER, kestrel_segments("jobs", names))
    return items, sorted(kestrel_readers("jobs", names))


CASES = {
    "ztick": Case(
        "ztick", ztick.CODEC, ztick_record, COMMITS["ztick"].commit, plant_ztick, look_ztick
    ),
    "workq": Case(
        "workq", workq.CODEC, workq_record, COMMITS["workq"].commit, plant_workq, look_workq
    ),
    "kestrel": Case(
        "kestrel",
        kestrel.WRITER,
        kestrel_record,
        COMMITS["kestrel"].commit,
        plant_kestrel,
        look_kestrel,
        StagedStream("jobs"),
    ),
}


def expected(case: Case, *ranges: range, readers: list[str]) -> Any:
    records = case.records(*ranges)
    if case.dialect == "ztick":
        return replay(records)
    return (records, readers) if case.dialect == "kestrel" else records


def begin(case: Case, planted: bool) -> SimulatedSinkDisk:
    disk = SimulatedSinkDisk()
    disk.plant("/data/unrelated", b"")
    if planted:
        case.plant(disk)
    return disk


def left_by(crash: Crash[SimulatedSinkDisk]) -> SimulatedSinkDisk:
    assert isinstance(crash.disk, SimulatedSinkDisk)
    return crash.disk


def copy_of(disk: SimulatedSinkDisk) -> SimulatedSinkDisk:
    return disk.after_crash("keep_all_unsynced")


def litter(disk: SimulatedSinkDisk) -> list[str]:
    marks = ("_temporary", "_publication")
    places = ["/data", *([LOG] if disk.is_dir(LOG) else [])]
    return [name for place in places for name in disk.list_dir(place) if name.startswith(marks)]


def settle(case: Case, disk: SimulatedSinkDisk) -> None:
    """What the next writer does a day later, and what it leaves: a write of nothing."""
    case.write(disk, range(0), overwrite=False)
    for directory in ("/data", LOG):
        remove_stale(disk, directory, NOW_NS + (STALE_AFTER_S + 1) * 10**9)


WAYS = [
    pytest.param(dialect, planted, overwrite, id=f"{dialect}-{name}")
    for dialect in CASES
    for planted, overwrite, name in (
        (False, False, "new"),
        (True, False, "append"),
        (True, True, "overwrite"),
    )
]


@pytest.mark.parametrize(("dialect", "planted", "overwrite"), WAYS)
def test_a_crash_leaves_the_old_log_or_the_new_one(dialect, planted, overwrite):
    case = CASES[dialect]
    old = expected(case, OLD if planted else range(0), readers=["one"] if planted else [])
    appended = (OLD, NEW) if planted and not overwrite else (NEW,)
    readers = ["one"] if planted and not overwrite else []
    new = expected(case, *appended, readers=readers)
    assert old != new
    seen = []
    cuts = crashes(
        lambda: begin(case, planted),
        lambda disk: disk,
        lambda disk: case.write(disk, NEW, overwrite=overwrite),
        seeds=3,
    )
    for crash in cuts:
        disk = left_by(crash)
        if disk.is_dir(LOG) and pending(disk, journal_path(LOG)) is not None:
            # Decided on: what a reader sees may be half of each, until the next writer.
            settle(case, disk)
            assert case.look(disk) == new, crash
        found = case.look(disk) if dialect == "ztick" or disk.is_dir(LOG) else None
        assert found in ([old, None] if not planted else [old]) or found == new, crash
        settle(case, disk)
        after = case.look(disk)
        assert after == new or (found != new and after == old), crash
        assert litter(disk) == [], crash
        seen.append(after == new)
    assert True in seen
    assert False in seen


@pytest.mark.parametrize("dialect", ["workq", "kestrel"])
def test_a_second_crash_while_the_first_is_made_good_changes_nothing(dialect):
    case = CASES[dialect]
    new = expected(case, NEW, readers=[])
    first = crashes(
        lambda: begin(case, True),
        lambda disk: disk,
        lambda disk: case.write(disk, NEW, overwrite=True),
        seeds=0,
    )
    decided = [left_by(crash) for crash in first if pending(crash.disk, journal_path(LOG))]
    assert len(decided) > 3
    for left in decided:
        again = crashes(
            partial(copy_of, left),
            lambda disk: disk,
            lambda disk: case.write(disk, range(0), overwrite=False),
            seeds=1,
        )
        for crash in again:
            disk = left_by(crash)
            settle(case, disk)
            assert case.look(disk) == new, crash


@pytest.mark.parametrize("dialect", CASES)
def test_what_is_committed_is_loaded_by_the_log_itself(dialect):
    case = CASES[dialect]
    for planted, overwrite in ((False, False), (True, True)):
        disk = begin(case, planted)
        case.write(disk, NEW, overwrite=overwrite)
        assert litter(disk) == []
        assert case.look(disk) == expected(case, NEW, readers=[])
        if dialect == "workq":
            with WorkqLog.open(disk, ManualClock(), LOG) as log:
                assert [e.record for e in log.entries()] == case.records(NEW)
                assert log.recovery.clean
        if dialect == "kestrel":
            with KestrelLog.open(disk, ManualClock(), LOG, "jobs") as journal:
                assert list(journal.items()) == case.records(NEW)
                assert journal.recovery.clean


@pytest.mark.parametrize("dialect", CASES)
def test_no_room_on_the_disk_changes_nothing(dialect):
    case = CASES[dialect]
    disk = begin(case, True)
    old = case.look(disk.after_crash("keep_all_unsynced"))
    for kind in ("write", "sync", "rename"):
        for skip in range(4):
            broken = disk.after_crash("keep_all_unsynced")
            broken.fail(kind, skip=skip)
            try:
                case.write(broken, NEW, overwrite=True)
            except (JourneymanError, OSError):
                broken.heal()
                settle(case, broken)
                new = expected(case, NEW, readers=[])
                assert case.look(broken) in (old, new)
