"""A ztick log on disk: locks, load order, compaction and its schedule."""

from __future__ import annotations

import errno
import threading

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import LogClosed, LogError, LogFull, LogLocked, LogPoisoned, UsageError
from journeyman.folds.ztick import replay
from journeyman.formats.ztick import (
    CODEC,
    JobRemoved,
    JobSet,
    Record,
    RuleRemoved,
    RuleSet,
    Shell,
    Status,
)
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.recovery import RecoveryReport
from journeyman.logs.ztick.log import (
    RETRY_S,
    CompactionReport,
    Compactor,
    ZtickLog,
    compact_offline,
    merge,
)
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.unsealed import scan_records, without_seals

PATH = "/data/schedule/log"
SECOND_NS = 1_000_000_000


def job(name: str, at_ns: int = 1) -> JobSet:
    return JobSet(name, at_ns, Status.PLANNED)


def rule(name: str, command: str = "true") -> RuleSet:
    return RuleSet(name, "job.", Shell(command))


def encoded(*records: Record) -> bytes:
    return b"".join(map(CODEC.encode, records))


def records_at(disk: SimulatedDisk, path: str) -> list[Record]:
    entries, ending = scan_records(CODEC, disk.read_bytes(path))
    assert ending.clean
    return [entry.record for entry in entries]


def opened(disk: SimulatedDisk, **options) -> ZtickLog:
    return ZtickLog.open(disk, ManualClock(), PATH, **options)


def write(log: ZtickLog, *records: Record) -> None:
    assert len(log.append(records)) == len(records)


def loaded(log: ZtickLog) -> list[Record]:
    return [entry.record for entry in log.entries()]


# -- opening ---------------------------------------------------------------------------------


def test_a_new_log_is_made_with_the_directories_above_it():
    disk = SimulatedDisk()
    with opened(disk) as log:
        assert loaded(log) == []
        assert log.recovery.clean
    assert disk.files() == {PATH: b"", f"{PATH}.lock": b""}


def test_a_log_in_the_current_directory_needs_no_directory_in_its_path():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), "logfile") as log:
        write(log, job("a"))
        log.compact()
    assert set(disk.files()) == {"/logfile", "/logfile.compressed", "/logfile.lock"}


def test_a_second_writer_is_refused_at_once_and_told_why():
    disk = SimulatedDisk()
    with opened(disk):
        with pytest.raises(LogLocked) as refused:
            opened(disk)
        assert str(refused.value) == f"{PATH}: another process has this log open for writing"
        with pytest.raises(LogLocked):
            compact_offline(disk, PATH)
    opened(disk).close()


def test_a_log_that_cannot_be_opened_stays_free_for_the_next_attempt():
    disk = SimulatedDisk()
    disk.plant(PATH, encoded(job("a")))
    disk.fail("sync")
    with pytest.raises(LogPoisoned):
        opened(disk)
    with opened(disk) as log:
        assert loaded(log) == [job("a")]


def test_files_are_loaded_oldest_first_and_the_last_record_wins():
    disk = SimulatedDisk()
    disk.plant(f"{PATH}.compressed", encoded(job("a", 1), job("b", 1), job("c", 1)))
    disk.plant(f"{PATH}.to_compress", encoded(job("b", 2), JobRemoved("c")))
    disk.plant(PATH, encoded(job("c", 3), JobRemoved("a")))
    seen: list[Record] = []
    with opened(disk, on_record=seen.append) as log:
        expected = {("job", "b"): job("b", 2), ("job", "c"): job("c", 3)}
        assert replay(seen) == expected
        assert replay(loaded(log)) == expected
    assert seen == [
        *(job("a", 1), job("b", 1), job("c", 1)),
        *(job("b", 2), JobRemoved("c")),
        *(job("c", 3), JobRemoved("a")),
    ]


def test_what_is_appended_is_there_after_reopening():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, job("a"), rule("r"))
        write(log, JobRemoved("a"))
        assert loaded(log) == [job("a"), rule("r"), JobRemoved("a")]
    with opened(disk) as log:
        assert loaded(log) == [job("a"), rule("r"), JobRemoved("a")]


def test_a_torn_tail_is_cut_and_reported_so_that_later_records_stand_on_their_own():
    disk = SimulatedDisk()
    disk.plant(PATH, encoded(job("a")) + encoded(job("torn"))[:-3])
    with opened(disk) as log:
        assert [damage.kind for damage in log.recovery.damages] == ["torn"]
        write(log, job("b"))
    assert without_seals(CODEC, disk.read_bytes(PATH)) == encoded(job("a"), job("b"))


def test_a_closed_log_takes_nothing_more():
    log = opened(SimulatedDisk())
    log.close()
    with pytest.raises(LogClosed):
        log.append([job("a")])
    with pytest.raises(LogClosed):
        log.compact()
    log.close()


def test_closing_writes_what_waits_and_syncs_under_every_policy():
    for sync in (SyncPolicy.ALWAYS, SyncPolicy.OS):
        disk = SimulatedDisk()
        log = opened(disk, sync=sync)
        log.append([job("a")])
        log.close()
        assert records_at(disk.after_crash("lose_all_unsynced"), PATH) == [job("a")]


# -- compaction ------------------------------------------------------------------------------


def test_each_key_keeps_its_last_record_in_the_order_of_last_records():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, job("a", 1), job("b", 1), rule("a"), job("a", 2), JobRemoved("b"))
        end = log.appender.end()
        assert end is not None
        before = end.offset + SEALS.size  # it is closed when it is set aside
        report = log.compact()
        assert loaded(log) == [rule("a"), job("a", 2)]
    assert records_at(disk, f"{PATH}.compressed") == [rule("a"), job("a", 2)]
    after = disk.size(f"{PATH}.compressed")
    assert report == CompactionReport(5, 2, before, after)
    assert disk.read_bytes(PATH) == b""
    assert not disk.exists(f"{PATH}.to_compress")


def test_a_job_and_a_rule_of_one_name_do_not_touch_each_other():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, rule("same"), job("same"), rule("gone"), job("gone"), RuleRemoved("gone"))
        log.compact()
        assert loaded(log) == [rule("same"), job("same"), job("gone")]


def test_the_former_result_is_merged_not_replaced():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, job("old"), job("changed", 1), job("removed"))
        log.compact()
        write(log, job("changed", 2), JobRemoved("removed"), job("new"))
        log.compact()
        assert loaded(log) == [job("old"), job("changed", 2), job("new")]


def test_a_removal_needs_no_trace_once_all_older_files_are_merged():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, job("a"))
        log.compact()
        write(log, JobRemoved("a"))
        log.compact()
        assert disk.size(f"{PATH}.compressed") == 0
        write(log, job("a", 5))
        assert loaded(log) == [job("a", 5)]


def test_with_nothing_new_nothing_is_done():
    disk = SimulatedDisk()
    with opened(disk) as log:
        assert log.compact() is None
        write(log, job("a"))
        log.compact()
        operations = disk.operations
        assert log.compact() is None
        assert disk.operations == operations


def test_appends_go_on_while_a_compaction_writes(monkeypatch):
    disk = SimulatedDisk()
    log = opened(disk)

    def slow_merge(*arguments, **options):
        write(log, job("meanwhile"), JobRemoved("a"))
        assert replay(loaded(log)) == replay([job("meanwhile")])
        assert log.compact() is None, "one at a time"
        return merge(*arguments, **options)

    monkeypatch.setattr("journeyman.logs.ztick.log.merge", slow_merge)
    write(log, job("a"))
    assert log.compact() is not None
    assert records_at(disk, f"{PATH}.compressed") == [job("a")]
    assert records_at(disk, PATH) == [job("meanwhile"), JobRemoved("a")]
    log.close()


def test_records_appended_after_the_switch_go_to_the_new_file():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, job("a"))
        log.compact()
        (place,) = log.append([job("b")])
        assert place.offset == 2 * SEALS.size
        assert loaded(log) == [job("a"), job("b")]


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "remove", "sync_dir", "create"])
@pytest.mark.parametrize("skip", range(3))
def test_a_compaction_that_fails_leaves_the_log_whole_and_the_next_makes_up(kind, skip):
    disk = SimulatedDisk()
    log = opened(disk)
    write(log, job("a", 1), job("b"))
    log.compact()
    write(log, job("a", 2), JobRemoved("b"), job("c"))
    state = replay(loaded(log))
    disk.fail(kind, skip=skip)
    try:
        log.compact()
    except OSError:
        assert replay(loaded(log)) == state
        write(log, job("d"))
        report = log.compact()
        assert report is not None
        assert records_at(disk, f"{PATH}.compressed") == [job("a", 2), job("c"), job("d")]
        log.close()
    except LogPoisoned:
        # The sync of the active file or of its directory: only recovery knows what is there.
        assert kind in ("sync", "sync_dir")
        log.close()
        disk.heal()
        with opened(disk) as again:
            assert replay(loaded(again)) == state
    else:
        # The first write is the closing seal of the active file, without which it is whole too.
        assert skip > 0 or kind == "write", f"the first {kind} of a compaction must fail it"
        log.close()


def test_without_room_for_the_result_the_log_says_so_and_goes_on():
    disk = SimulatedDisk()
    log = opened(disk)
    write(log, *(job(f"job.{n}") for n in range(50)))
    disk.capacity = disk.used + 10
    with pytest.raises(LogFull) as refused:
        log.compact()
    assert "nothing was changed" in str(refused.value)
    assert not disk.exists(f"{PATH}.compressed.tmp")
    assert len(loaded(log)) == 50
    disk.capacity = None
    assert log.compact() is not None
    assert not disk.exists(f"{PATH}.to_compress")
    assert len(loaded(log)) == 50
    log.close()


def test_damage_in_an_older_file_stops_the_compaction_not_the_log():
    disk = SimulatedDisk()
    log = opened(disk)
    write(log, job("a"))
    log.compact()
    disk.plant(f"{PATH}.compressed", b"\0\0\0\5junk!")
    write(log, job("b"))
    compactor = Compactor(log.compact, interval_s=1, now_ns=0)
    assert compactor.run(0)
    assert status_of(compactor) == "failure"
    assert records_at(disk, f"{PATH}.to_compress") == [job("b")]
    write(log, job("c"))
    log.close()


def test_what_a_crash_left_of_a_compaction_is_finished_at_the_next_start():
    disk = SimulatedDisk()
    disk.plant(f"{PATH}.compressed", encoded(job("a", 1), job("b")))
    disk.plant(f"{PATH}.to_compress", encoded(job("a", 2), JobRemoved("b")))
    disk.plant(f"{PATH}.compressed.tmp", b"half a result")
    disk.plant(PATH, encoded(job("c")))
    with opened(disk) as log:
        assert log.leftover_error is None
        assert loaded(log) == [job("a", 2), job("c")]
    assert set(disk.files()) == {PATH, f"{PATH}.compressed", f"{PATH}.lock"}


def test_an_unfinished_result_is_removed_at_the_next_start():
    disk = SimulatedDisk()
    disk.plant(PATH, encoded(job("a")))
    disk.plant(f"{PATH}.compressed.tmp", b"half a result")
    opened(disk).close()
    assert set(disk.files()) == {PATH, f"{PATH}.lock"}


def test_an_unfinished_result_that_could_not_be_removed_does_not_get_into_the_next_one():
    disk = SimulatedDisk()
    with opened(disk) as log:
        write(log, job("a"))
        disk.plant(f"{PATH}.compressed.tmp", b"half a result")
        log.compact()
        assert records_at(disk, f"{PATH}.compressed") == [job("a")]


def test_a_log_read_in_bulk_is_opened_like_any_other():
    disk = SimulatedDisk()
    disk.make_dirs("/data/schedule")
    disk.plant(f"{PATH}.to_compress", encoded(job("a"), job("b")))
    disk.plant(f"{PATH}.compressed.tmp", b"half")
    disk.plant(PATH, encoded(job("c")))
    given: list[list[str]] = []
    singly: list[Record] = []

    def in_bulk(files: list[str]) -> RecoveryReport:
        given.append(files)
        return RecoveryReport()

    with opened(disk, on_record=singly.append, in_bulk=in_bulk) as log:
        assert loaded(log) == [job("a"), job("b"), job("c")]
    assert given == [[f"{PATH}.to_compress", PATH]]
    assert singly == []
    assert set(disk.files()) == {PATH, f"{PATH}.compressed", f"{PATH}.lock"}


def test_a_log_that_cannot_be_read_in_bulk_is_recovered():
    disk = SimulatedDisk()
    disk.make_dirs("/data/schedule")
    disk.plant(PATH, encoded(job("a")) + b"\0\0")
    singly: list[Record] = []

    with opened(disk, on_record=singly.append, in_bulk=lambda files: None) as log:
        assert not log.recovery.clean
    assert singly == [job("a")]


def test_a_leftover_that_cannot_be_finished_does_not_keep_the_log_closed():
    disk = SimulatedDisk()
    disk.plant(f"{PATH}.to_compress", encoded(job("a")))
    disk.plant(PATH, encoded(job("b")))
    disk.fail("write", error=errno.ENOSPC)
    with opened(disk) as log:
        assert isinstance(log.leftover_error, LogFull)
        assert loaded(log) == [job("a"), job("b")]
        log.compact()
        assert records_at(disk, f"{PATH}.compressed") == [job("a"), job("b")]


# -- one file for the original ---------------------------------------------------------------


def test_offline_compaction_leaves_one_file_with_everything():
    disk = SimulatedDisk()
    disk.plant(f"{PATH}.compressed", encoded(job("a", 1), job("b"), job("c")))
    disk.plant(f"{PATH}.to_compress", encoded(job("a", 2), JobRemoved("b")))
    disk.plant(PATH, encoded(JobRemoved("c"), job("d"), rule("d")))
    for _ in range(2):
        report = compact_offline(disk, PATH)
        assert report is not None
        assert report.records_kept == 3
        assert records_at(disk, PATH) == [job("a", 2), job("d"), rule("d")]
        assert set(disk.files()) == {PATH, f"{PATH}.lock"}


def test_offline_compaction_of_a_log_that_is_already_compacted_only_renames():
    disk = SimulatedDisk()
    disk.plant(f"{PATH}.compressed", encoded(job("a"), job("b")))
    disk.plant(PATH, b"")
    compact_offline(disk, PATH)
    assert records_at(disk, PATH) == [job("a"), job("b")]
    assert not disk.exists(f"{PATH}.compressed")


def test_offline_compaction_makes_no_log_where_there_is_none():
    disk = SimulatedDisk()
    disk.make_dirs("/data")
    with pytest.raises(LogError, match="there is no log here"):
        compact_offline(disk, "/data/none")
    assert disk.files() == {}


# -- when ------------------------------------------------------------------------------------


def nothing() -> None:
    return None


def status_of(compactor: Compactor) -> str:
    return compactor.status


def test_the_first_compaction_is_due_one_interval_after_the_start():
    compactor = Compactor(nothing, interval_s=10, now_ns=5 * SECOND_NS)
    assert not compactor.due(15 * SECOND_NS - 1)
    assert compactor.due(15 * SECOND_NS)
    assert compactor.run(16 * SECOND_NS)
    assert not compactor.due(26 * SECOND_NS - 1)
    assert compactor.due(26 * SECOND_NS)


def test_an_interval_of_zero_means_never():
    compactor = Compactor(nothing, interval_s=0, now_ns=0)
    assert not compactor.due(10**18)
    assert not compactor.start(10**18)
    with pytest.raises(UsageError):
        Compactor(nothing, interval_s=-1, now_ns=0)


def test_a_compaction_that_runs_makes_the_next_be_skipped():
    entered, leave = threading.Event(), threading.Event()

    def slow() -> CompactionReport:
        entered.set()
        leave.wait(30)
        return CompactionReport(2, 1, 20, 10)

    compactor = Compactor(slow, interval_s=1, now_ns=0)
    assert status_of(compactor) == "idle"
    assert compactor.start(SECOND_NS)
    entered.wait(30)
    assert status_of(compactor) == "running"
    assert not compactor.due(100 * SECOND_NS)
    assert not compactor.start(100 * SECOND_NS)
    assert not compactor.run(100 * SECOND_NS)
    leave.set()
    compactor.wait()
    assert status_of(compactor) == "success"
    assert compactor.report == CompactionReport(2, 1, 20, 10)
    assert compactor.due(100 * SECOND_NS)


def test_status_tells_success_from_failure_and_from_nothing_to_do():
    disk = SimulatedDisk()
    log = opened(disk)
    compactor = Compactor(log.compact, interval_s=1, now_ns=0)
    compactor.run(0)
    assert status_of(compactor) == "idle"
    write(log, job("a"))
    disk.fail("rename")
    compactor.run(0)
    assert status_of(compactor) == "failure"
    assert "Errno" in str(compactor.error)
    compactor.run(0)
    assert status_of(compactor) == "success"
    assert compactor.error is None
    log.close()


def test_a_log_on_the_machines_own_disk_takes_appends_while_it_compacts(tmp_path):
    path = str(tmp_path / "deep" / "schedule.log")
    log = ZtickLog.open(RealDisk(), SystemClock(), path)
    compactor = Compactor(log.compact, interval_s=1, now_ns=0)

    def append_all() -> None:
        for n in range(60):
            log.append([job(f"job.{n % 7}", n)])

    appending = threading.Thread(target=append_all)
    appending.start()
    came_of = set()
    for n in range(1, 20):
        compactor.run(n)
        came_of.add(status_of(compactor))
    appending.join()
    compactor.run(100)
    came_of.add(status_of(compactor))
    log.close()
    assert "success" in came_of
    assert came_of <= {"success", "idle"}
    with ZtickLog.open(RealDisk(), SystemClock(), path) as log:
        assert replay(loaded(log)) == replay(job(f"job.{n % 7}", n) for n in range(60))
    compact_offline(RealDisk(), path)
    assert sorted(file.name for file in (tmp_path / "deep").iterdir()) == [
        "schedule.log",
        "schedule.log.lock",
    ]


def test_compaction_that_can_open_no_file_is_refused_and_the_log_goes_on(monkeypatch):
    disk, clock = SimulatedDisk(), ManualClock()
    log = ZtickLog.open(disk, clock, "logs/jobs")
    first, second = JobSet("a", 1, Status.PLANNED), JobSet("b", 2, Status.PLANNED)
    log.append([first])
    sync_dir = disk.sync_dir
    failing = OSError(errno.EMFILE, "Too many open files")

    def refuse(path: str) -> None:
        raise failing

    monkeypatch.setattr(disk, "sync_dir", refuse)
    compactor = Compactor(log.compact, interval_s=3600, now_ns=0)
    assert compactor.run(0)
    assert compactor.error is failing
    assert log.appender.poisoned is None
    assert not compactor.due(RETRY_S * 10**9 - 1)
    assert compactor.due(RETRY_S * 10**9)
    monkeypatch.setattr(disk, "sync_dir", sync_dir)
    log.append([second])
    assert compactor.run(1)
    assert compactor.status == "success"
    assert [entry.record for entry in log.entries()] == [first, second]
    log.close()
