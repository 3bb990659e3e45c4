"""When records of the schedule's log were written, by marks in the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.disk import RealDisk
from journeyman.errors import LogFull
from journeyman.formats.ledger import CODEC, TimesMarked
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import JobSet, Status
from journeyman.logs import ledger as module
from journeyman.logs.ledger import (
    FileHead,
    FileTimes,
    LedgerLog,
    MarkWriter,
    TimeMark,
    decode_marks,
    encode_marks,
    times_of,
)
from journeyman.logs.segments import ztick_files
from journeyman.logs.ztick.log import ZtickLog, compact_offline
from journeyman.testing import ManualClock
from tests.support.cli_commands import assert_one_line_error, run
from tests.support.marked_schedule import MarkedSchedule
from tests.support.simulated_disk import SimulatedDisk

LOG = "data/schedule.log"
SECOND_NS = 10**9


def known(disk: SimulatedDisk) -> list[tuple[str, int | None]]:
    """Every record of the log with its time, in load order."""
    files = ztick_files(disk, LOG)
    times = times_of(disk, "data/ledger", files)
    found = []
    with ZtickLog.open(disk, ManualClock(), LOG) as log:
        views = {path: disk.size(path) for path in files}
        place = iter(files)
        path, last = next(place), -1
        for entry in log.entries():
            if entry.offset <= last:
                path = next(place)
            last = entry.offset
            assert entry.offset < views[path]
            at = times[path].time_ns(entry.offset) if path in times else None
            found.append((entry.record.identifier, at))
    return found


@pytest.mark.parametrize("seal", [True, False])
def test_every_batch_has_its_time(seal: bool):
    disk = SimulatedDisk()
    server = MarkedSchedule(disk, ManualClock(), seal=seal)
    first = server.batch("a", "b")
    second = server.batch("c")
    server.stop()
    assert known(disk) == [("a", first), ("b", first), ("c", second)]


def test_a_restart_goes_on_with_the_same_file():
    disk, clock = SimulatedDisk(), ManualClock()
    server = MarkedSchedule(disk, clock)
    first = server.batch("a")
    server.stop()
    server = MarkedSchedule(disk, clock)
    second = server.batch("b")
    server.stop()
    assert known(disk) == [("a", first), ("b", second)]


def test_what_lost_its_mark_was_there_at_the_next_start():
    disk, clock = SimulatedDisk(), ManualClock()
    server = MarkedSchedule(disk, clock)
    first = server.batch("a")
    clock.advance(0)
    server.log.append([JobSet("b", 0, Status.PLANNED)])  # killed before its mark
    server.log.close()
    server.ledger.close()
    clock.advance(5)
    start = clock.now_ns()
    MarkedSchedule(disk, clock).stop()
    assert known(disk) == [("a", first), ("b", start)]


def test_after_the_last_mark_nothing_is_known():
    disk = SimulatedDisk()
    server = MarkedSchedule(disk, ManualClock())
    first = server.batch("a")
    server.log.append([JobSet("b", 0, Status.PLANNED)])
    server.log.close()
    server.ledger.close()
    assert known(disk) == [("a", first), ("b", None)]


def test_what_was_compacted_has_the_time_of_its_compaction():
    disk = SimulatedDisk()
    server = MarkedSchedule(disk, ManualClock())
    server.batch("a", "b")
    server.batch("a", status=Status.EXECUTED)
    compacted = server.compact()
    later = server.batch("c")
    again = server.compact()
    last = server.batch("d")
    server.stop()
    assert compacted < later < again < last
    assert known(disk) == [("b", again), ("a", again), ("c", again), ("d", last)]


def test_without_a_batch_after_it_a_compaction_is_known_from_the_next_start():
    disk, clock = SimulatedDisk(), ManualClock()
    server = MarkedSchedule(disk, clock)
    server.batch("a")
    server.compact()
    server.stop()
    clock.advance(1)
    start = clock.now_ns()
    server = MarkedSchedule(disk, clock)
    last = server.batch("b")
    server.stop()
    assert known(disk) == [("a", start), ("b", last)]


def test_a_file_that_the_ledger_does_not_know_has_no_times():
    disk, clock = SimulatedDisk(), ManualClock()
    server = MarkedSchedule(disk, clock)
    server.batch("a")
    server.batch("a")
    server.stop()
    compact_offline(disk, LOG, now_ns=clock.now_ns())
    assert known(disk) == [("a", None)]


def test_a_lost_or_damaged_ledger_loses_times_and_nothing_else():
    disk = SimulatedDisk()
    server = MarkedSchedule(disk, ManualClock())
    server.batch("a")
    server.batch("b")
    server.stop()
    path = "data/ledger/000000001.ledger"
    data = disk.read_bytes(path)
    disk.plant(path, data[: len(data) // 2])
    assert [name for name, _ in known(disk)] == ["a", "b"]
    disk.remove(path)
    assert known(disk) == [("a", None), ("b", None)]


def test_marks_since_the_last_flush_are_one_record():
    disk = SimulatedDisk()
    server = MarkedSchedule(disk, ManualClock())
    server.batch("first")
    for number in range(10):
        server.log.append([JobSet(f"job.{number}", 0, Status.PLANNED)])
        server.marks.note()
    before = len(list(server.ledger.records()))
    server.marks.flush()
    assert len(list(server.ledger.records())) == before + 1


def test_the_mark_of_a_log_without_bytes_does_not_ask_to_be_written():
    disk, clock = SimulatedDisk(), ManualClock()
    log = ZtickLog.open(disk, clock, LOG)
    written: list[object] = []
    marks = MarkWriter(disk, clock, log.appender, written.append)
    waited: list[bool] = []
    marks.note()
    waited.append(marks.is_waiting)
    log.append([JobSet("job.1", 0, Status.PLANNED)])
    marks.note()
    waited.append(marks.is_waiting)
    assert waited == [False, True]
    marks.flush()
    assert len(written) == 1


def test_marks_that_cannot_be_written_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    disk, clock = SimulatedDisk(), ManualClock()
    log = ZtickLog.open(disk, clock, LOG)
    refused: list[int] = []
    written: list[object] = []

    def write(records: object) -> None:
        if len(refused) < 40:
            refused.append(1)
            raise LogFull("ledger", "no room")
        written.append(records)

    marks = MarkWriter(disk, clock, log.appender, write)
    for number in range(40):
        clock.advance(1)
        log.append([JobSet(f"job.{number}", 0, Status.PLANNED)])
        marks.note()
        marks.flush()
        assert len(marks._records) <= 10
    marks.flush()
    assert len(written) == 1
    assert not marks.is_waiting


def test_marks_beyond_a_cut_do_not_count():
    disk, clock = SimulatedDisk(), ManualClock()
    disk.plant("f", b"x" * 300)
    head = FileHead.read(disk, "f")
    with LedgerLog.open(disk, clock, "ledger") as ledger:
        ledger.append([encode_marks(head, [TimeMark(100, 1), TimeMark(200, 2)])])
        ledger.append([encode_marks(head, [TimeMark(150, 3), TimeMark(300, 4)])])
    times = times_of(disk, "ledger", ["f"])["f"]
    assert [times.time_ns(at) for at in (0, 99, 100, 149, 150, 299, 300)] == [
        *(1, 1, 3, 3, 4, 4),
        None,
    ]


def test_marks_beyond_64_bits_are_left_out():
    disk, clock, most = SimulatedDisk(), ManualClock(), 2**63 - 1
    disk.plant("f", b"x" * 300)
    head = FileHead.read(disk, "f")
    marks = ((10, 1), (most, most))  # differences: the second is out of reach
    with LedgerLog.open(disk, clock, "ledger") as ledger:
        ledger.append([TimesMarked(Instant(0), head.size, head.crc, marks)])
    assert times_of(disk, "ledger", ["f"])["f"] == FileTimes((10,), (1,))


MARKS = st.lists(st.builds(TimeMark, st.integers(0, 10**6), st.integers(0, 2 * 10**18)), min_size=1)


@given(MARKS)
def test_marks_survive_the_codec(marks: list[TimeMark]):
    record = encode_marks(FileHead(7, 2**32 - 1), marks)
    entry = CODEC.decode(CODEC.encode(record), 0)
    assert entry is not None
    assert isinstance(entry.record, TimesMarked)
    assert list(decode_marks(entry.record)) == marks


# -- dump -----------------------------------------------------------------------------------------


@pytest.fixture
def schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """A real log in which ``a`` was planned, then ended; and when."""
    monkeypatch.chdir(tmp_path)
    server = MarkedSchedule(RealDisk(), ManualClock())
    moments = [server.batch("a"), server.batch("b"), server.batch("a", status=Status.EXECUTED)]
    server.stop()
    return tmp_path / LOG, moments


def test_dump_shows_the_schedule_as_of_a_time(schedule: tuple[Path, list[int]]):
    path, (first, second, third) = schedule
    shown = {
        moment: run("dump", "--compact", "--as-of", moment, path).stdout.split("\n")[:-1]
        for moment in (first - 1, first, second, third)
    }
    assert shown == {
        first - 1: [],
        first: ["SET a 0 planned"],
        second: ["SET a 0 planned", "SET b 0 planned"],
        third: ["SET b 0 planned", "SET a 0 executed"],
    }
    early = run("dump", "--as-of", first - 1, path)
    assert "known from" in early.stderr


def test_dump_without_a_ledger_says_what_is_missing(schedule: tuple[Path, list[int]]):
    path, (first, *_) = schedule
    moved = path.parent / "elsewhere"
    (path.parent / "ledger").rename(moved)
    assert_one_line_error(run("dump", "--as-of", first, path), 2, "--as-of needs", "--ledger")
    given = run("dump", "--as-of", first, "--ledger", moved, path)
    assert given.stdout == "SET a 0 planned\n"
