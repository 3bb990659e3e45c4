"""A workq log on disk: locks, segments, rotation, and what cleaning drops and keeps."""

from __future__ import annotations

import errno
import threading

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import LogClosed, LogError, LogFull, LogLocked
from journeyman.folds.workq import replay, visible
from journeyman.formats.workq import CODEC, HEADER, Record
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.workq import cleaning
from journeyman.logs.workq import log as workq_log
from journeyman.logs.workq.cleaning import CleanReport
from journeyman.logs.workq.log import WorkqLog
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_logs import (
    DIRECTORY,
    added,
    as_of,
    completed,
    deleted,
    encoded,
    expired,
    path_of,
    planted,
    segments_of,
    started,
)

LATER = [started(999)]  # something for the active segment


def opened(disk: SimulatedDisk, **options) -> WorkqLog:
    return WorkqLog.open(disk, ManualClock(), DIRECTORY, **options)


def loaded(log: WorkqLog) -> list[Record]:
    return [entry.record for entry in log.entries()]


def cleaned(disk: SimulatedDisk, seconds: float, **options) -> CleanReport:
    with opened(disk) as log:
        return log.clean(as_of(seconds), **options)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(workq_log, "LOCK_TIMEOUT_S", 0.0)


# -- opening ---------------------------------------------------------------------------------


def test_a_new_log_is_made_with_its_directory():
    disk = SimulatedDisk()
    with opened(disk) as log:
        assert loaded(log) == []
    assert disk.files() == {
        path_of(1): HEADER,
        f"{DIRECTORY}/append.lock": b"",
        f"{DIRECTORY}/read.lock": b"",
    }


def test_a_second_process_is_told_why_it_cannot_have_the_log(impatient):
    disk = SimulatedDisk()
    with opened(disk):
        with pytest.raises(LogLocked) as refused:
            opened(disk)
        assert str(refused.value) == f"{DIRECTORY}: another process has this log open for writing"
    opened(disk).close()


def test_a_process_that_is_refused_touches_no_file(impatient):
    disk = planted([added(1)], LATER)
    disk.plant(path_of(3), encoded([added(3)]) + b"torn")
    with opened(disk):
        disk.plant(f"{DIRECTORY}/000000001.log.rw", b"being written")
        before = disk.files()
        with pytest.raises(LogLocked):
            opened(disk)
        assert disk.files() == before


def test_a_cleaner_of_the_original_is_kept_out_for_as_long_as_the_log_is_open():
    disk = planted([added(1)], LATER)
    log = opened(disk)
    log.clean(as_of(5000))
    with pytest.raises(LogLocked):
        disk.lock(f"{DIRECTORY}/read.lock")
    disk.lock(f"{DIRECTORY}/read.lock", shared=True).release()
    log.close()
    disk.lock(f"{DIRECTORY}/read.lock").release()


def test_opening_waits_for_readers_and_gives_up_with_a_clear_message(impatient):
    disk = planted([added(1)], LATER)
    reader = disk.lock(f"{DIRECTORY}/read.lock", shared=True)
    with pytest.raises(LogLocked, match="another process reads this log"):
        opened(disk)
    reader.release()
    opened(disk).close()


def test_segments_are_read_in_order_of_their_numbers_and_gaps_are_fine():
    disk = SimulatedDisk()
    disk.plant(path_of(12), encoded([added(2)]))
    disk.plant(path_of(3), encoded([added(1)]))
    disk.plant(path_of(400), encoded([added(3)]))
    disk.plant(f"{DIRECTORY}/0000001.log", b"not a segment")
    disk.plant(f"{DIRECTORY}/notes.rw", b"not ours")
    seen: list[Record] = []
    with opened(disk, on_record=seen.append) as log:
        assert loaded(log) == seen == [added(1), added(2), added(3)]
        log.append([deleted(1)])
    assert segments_of(disk)[400] == [added(3), deleted(1)]
    assert disk.read_bytes(f"{DIRECTORY}/notes.rw") == b"not ours"


def test_a_rewrite_that_a_crash_left_is_removed():
    disk = planted([added(1)], LATER)
    disk.plant(f"{DIRECTORY}/000000001.log.rw", HEADER)
    opened(disk).close()
    assert not disk.exists(f"{DIRECTORY}/000000001.log.rw")
    assert segments_of(disk) == {1: [added(1)], 2: LATER}


def test_damage_is_repaired_and_reported_in_any_segment():
    disk = planted([added(1), added(2)], LATER)
    disk.plant(path_of(1), encoded([added(1)]) + b"junk" + encoded([added(2)])[8:])
    disk.plant(path_of(2), encoded(LATER) + CODEC.encode(added(3))[:20])
    with opened(disk) as log:
        assert [damage.kind for damage in log.recovery.damages] == ["corrupt", "torn"]
        assert loaded(log) == [added(1), added(2), *LATER]


def test_a_log_that_is_closed_takes_nothing_more():
    log = opened(SimulatedDisk())
    log.close()
    with pytest.raises(LogClosed):
        log.append([added(1)])
    with pytest.raises(LogClosed):
        log.clean(0)
    log.close()


# -- appending -------------------------------------------------------------------------------


def test_a_segment_is_left_once_it_has_reached_its_size():
    disk = SimulatedDisk()
    record_bytes = len(CODEC.encode(added(1)))
    with opened(disk, segment_bytes=len(HEADER) + 2 * record_bytes) as log:
        for number in range(5):
            log.append([added(number)])
        assert loaded(log) == [added(number) for number in range(5)]
    assert segments_of(disk) == {
        1: [added(0), added(1)],
        2: [added(2), added(3)],
        3: [added(4)],
    }


def test_a_full_segment_is_not_gone_on_with_after_reopening():
    disk = planted([added(1), added(2)])
    with opened(disk, segment_bytes=50) as log:
        log.append([added(3)])
    assert segments_of(disk) == {1: [added(1), added(2)], 2: [added(3)]}


def test_unless_told_otherwise_what_was_appended_is_durable():
    disk = SimulatedDisk()
    log = WorkqLog.open(disk, ManualClock(), DIRECTORY)
    log.append([added(1)])
    assert segments_of(disk.after_crash("lose_all_unsynced")) == {1: [added(1)]}
    log.close()


# -- cleaning: when --------------------------------------------------------------------------

HALF_SHORT = [added(n, ttl_s=2 if n < 4 else 8) for n in range(8)]


def test_a_segment_is_rewritten_when_the_mean_of_its_expiries_has_come():
    disk = planted(HALF_SHORT, LATER)
    log = opened(disk)
    assert log.clean(as_of(4.999)).rewritten == 0
    assert segments_of(disk)[1] == HALF_SHORT
    freed = disk.size(path_of(1)) - len(encoded(HALF_SHORT[4:]))
    assert log.clean(as_of(5)) == CleanReport(1, 1, 0, 4, freed, (path_of(1),))
    assert segments_of(disk)[1] == HALF_SHORT[4:]
    assert log.clean(as_of(7.999)).removed == 0
    freed = len(encoded(HALF_SHORT[4:]))
    assert log.clean(as_of(8)) == CleanReport(1, 0, 1, 4, freed, (path_of(1),))
    assert segments_of(disk) == {2: LATER}
    log.close()


def test_what_a_cleaning_did_is_durable_when_it_returns():
    disk = planted(HALF_SHORT, [added(9, ttl_s=1)], LATER)
    log = opened(disk)
    log.clean(as_of(5))
    assert segments_of(disk.after_crash("lose_all_unsynced")) == {1: HALF_SHORT[4:], 3: LATER}
    log.close()


def test_the_mean_counts_what_has_expired_already():
    """After a restart as well: two of three expired are enough, though the third lives long."""
    short = [added(1, ttl_s=10), added(2, ttl_s=10), added(3, ttl_s=100)]
    disk = planted(short, LATER)
    assert cleaned(disk, 39.9).rewritten == 0
    assert cleaned(disk, 40).rewritten == 1
    assert segments_of(disk)[1] == short[2:]


def test_records_of_a_job_count_with_its_expiry():
    # The mean of two expiries would be 51 s; five of the six records go at 100 s.
    busy = [added(1, ttl_s=2), added(2, ttl_s=100), *(started(2, s) for s in range(4))]
    disk = planted(busy, LATER)
    assert cleaned(disk, 51).rewritten == 0
    assert cleaned(disk, 84).rewritten == 1
    assert segments_of(disk)[1] == busy[1:]


def test_a_scheduled_job_expires_its_ttl_after_it_is_due():
    disk = planted([added(1, ttl_s=10, due_s=100)], LATER)
    assert cleaned(disk, 109.9).removed == 0
    assert cleaned(disk, 110).removed == 1


def test_while_nothing_is_due_nothing_is_read_or_written():
    disk = planted(HALF_SHORT, LATER)
    log = opened(disk)
    assert log.clean(as_of(1)).visited == 1
    operations = disk.operations
    assert log.clean(as_of(2)) == CleanReport()
    assert disk.operations == operations
    log.close()


def test_a_segment_that_has_become_read_only_is_looked_at():
    disk = planted([added(1, ttl_s=1000)], LATER)
    log = opened(disk, segment_bytes=8)
    assert log.clean(as_of(1)).visited == 1
    log.append([added(2)])
    assert log.clean(as_of(2)).visited == 2
    log.close()


def test_a_thorough_cleaning_does_not_wait_for_the_mean():
    disk = planted(HALF_SHORT, LATER)
    assert cleaned(disk, 2).rewritten == 0
    assert cleaned(disk, 2, thorough=True).records_dropped == 4
    assert cleaned(disk, 2, thorough=True) == CleanReport(visited=1)


def test_a_dead_segment_goes_as_soon_as_that_is_seen():
    disk = planted([added(1), added(2)], [deleted(1, 1), deleted(2, 1)], LATER)
    assert cleaned(disk, 62).removed == 2
    assert segments_of(disk) == {3: LATER}


def test_an_empty_read_only_segment_goes():
    disk = planted([], [added(1)], LATER)
    assert cleaned(disk, 1).removed == 1
    assert segments_of(disk) == {2: [added(1)], 3: LATER}


# -- cleaning: what --------------------------------------------------------------------------


def test_the_active_segment_is_never_touched():
    dead = [added(1, ttl_s=1), added(2, ttl_s=1), expired(1, 2)]
    disk = planted(dead)
    assert cleaned(disk, 5000, thorough=True) == CleanReport()
    assert segments_of(disk) == {1: dead}


def test_an_active_segment_alone_is_not_read_to_be_cleaned(monkeypatch):
    with opened(planted([added(1, ttl_s=1)])) as log:
        monkeypatch.delattr(cleaning, "read_segment")
        assert log.clean(as_of(5000), thorough=True) == CleanReport()


def test_what_is_kept_is_kept_byte_for_byte():
    kept = [added(2, ttl_s=500), started(2, 1), completed(2, 2)]
    disk = planted([added(1, ttl_s=1), kept[0], expired(1, 2), *kept[1:]], LATER)
    cleaned(disk, 10, thorough=True)
    assert disk.read_bytes(path_of(1)) == encoded(kept)


def test_a_finished_job_stays_with_its_result_until_its_ttl():
    disk = planted([added(1, ttl_s=100)], [completed(1, 1)], LATER)
    cleaned(disk, 99, thorough=True)
    assert segments_of(disk) == {1: [added(1, ttl_s=100)], 2: [completed(1, 1)], 3: LATER}
    assert cleaned(disk, 100, thorough=True).removed == 2


def test_a_delete_stays_as_long_as_its_add_does():
    """The original drops it at once, and the deleted job is back after a restart."""
    adds = [added(1), added(2, ttl_s=2000), added(3, ttl_s=2000)]
    disk = planted(adds, [deleted(1, 1), added(4)], LATER)
    cleaned(disk, 100)  # segment 1 is not due before the mean of 61, 2000 and 2000
    assert segments_of(disk) == {1: adds, 2: [deleted(1, 1), added(4)], 3: LATER}
    cleaned(disk, 100, thorough=True)
    assert segments_of(disk) == {1: adds[1:], 2: [added(4)], 3: LATER}


def test_an_add_goes_soon_after_a_delete_that_is_still_in_the_active_segment():
    disk = planted([added(1), added(2)], [deleted(1, 1)])
    cleaned(disk, 60, thorough=True)
    assert segments_of(disk)[1] == [added(1), added(2)], "a delete must have settled"
    cleaned(disk, 61, thorough=True)
    assert segments_of(disk) == {1: [added(2)], 2: [deleted(1, 1)]}


def test_records_without_an_add_go():
    orphans = [started(1), completed(2), expired(3), deleted(4)]
    disk = planted([*orphans, added(5)], LATER)
    cleaned(disk, 100, thorough=True)
    assert segments_of(disk)[1] == [added(5)]


def test_a_record_whose_add_is_yet_to_come_stays():
    """A race of the original: the job was done before its add was logged."""
    early = [completed(1, 1)]
    disk = planted(early, [added(1, 1, created_s=0.9)], LATER)
    cleaned(disk, 100, thorough=True)
    assert segments_of(disk)[1] == early
    with opened(disk) as log:
        assert replay(loaded(log))[added(1).job_id].result == b"result"  # type: ignore[union-attr]
    assert cleaned(disk, 1100, thorough=True).removed == 2


def test_an_earlier_life_of_an_id_goes_though_the_id_lives_on():
    disk = planted([added(1), deleted(1, 5), added(2)], [added(1, 10), started(1, 11)], LATER)
    cleaned(disk, 100, thorough=True)
    assert segments_of(disk) == {1: [added(2)], 2: [added(1, 10), started(1, 11)], 3: LATER}


def test_of_many_lives_the_adds_go_oldest_first():
    lives = [[added(1, 10 * n), deleted(1, 10 * n + 5)] for n in range(4)]
    disk = planted(*lives, [added(1, 50)], LATER)
    cleaned(disk, 200, thorough=True)
    assert segments_of(disk) == {5: [added(1, 50)], 6: LATER}


def test_an_id_that_is_used_again_and_again_does_not_make_the_log_grow():
    disk = planted(*([added(1, 100 * n), deleted(1, 100 * n + 1)] for n in range(20)), LATER)
    assert cleaned(disk, 1950).removed == 19
    assert segments_of(disk) == {20: [added(1, 1900), deleted(1, 1901)], 21: LATER}
    assert cleaned(disk, 1962).removed == 1


def test_an_id_added_again_out_of_order_is_kept_together_until_all_of_it_has_expired():
    """Created before the delete of the former job was logged: a clock that was set back."""
    tangled = [[added(1, 10, ttl_s=100)], [deleted(1, 50)], [added(1, 60, created_s=40, ttl_s=300)]]
    disk = planted(*tangled, LATER)
    cleaned(disk, 339, thorough=True)
    assert list(segments_of(disk).values()) == [*tangled, LATER]
    cleaned(disk, 340, thorough=True)
    assert list(segments_of(disk).values()) == [LATER]


def test_a_delete_that_is_not_yet_durable_lets_nothing_go():
    disk = planted([added(1), added(2)], LATER)
    log = opened(disk, sync=SyncPolicy.OS)
    log.append([deleted(1, 1)])
    log.clean(as_of(100), thorough=True)
    after = disk.after_crash("lose_all_unsynced")
    assert segments_of(after) == {1: [added(2)], 2: [*LATER, deleted(1, 1)]}
    log.close()


# -- cleaning: trouble -----------------------------------------------------------------------


def test_a_cleaning_that_cannot_have_the_segments_is_put_off(impatient):
    disk = planted(HALF_SHORT, LATER)
    log = opened(disk)
    reading = log.entries()
    next(reading)
    with pytest.raises(LogLocked, match="another process reads this log"):
        log.clean(as_of(6))
    assert len(list(reading)) == 8
    assert log.clean(as_of(6)).rewritten == 1
    log.close()


def test_damage_in_one_segment_leaves_every_segment_as_it_is():
    disk = planted(HALF_SHORT, HALF_SHORT[:2], LATER)
    log = opened(disk)
    disk.plant(path_of(2), encoded(HALF_SHORT[:2])[:-1])
    before = disk.files()
    with pytest.raises(LogError, match="nothing was cleaned"):
        log.clean(as_of(1000))
    assert disk.files() == before
    log.close()


def test_without_room_a_segment_stays_as_it_is_and_the_next_cleaning_tries_again():
    disk = planted(HALF_SHORT, LATER)
    log = opened(disk)
    disk.fail("write", error=errno.ENOSPC, partial=20)
    with pytest.raises(LogFull):
        log.clean(as_of(6))
    assert segments_of(disk)[1] == HALF_SHORT
    assert not disk.exists(f"{path_of(1)}.rw")
    assert log.clean(as_of(6)).rewritten == 1
    log.close()


def test_a_log_on_the_machines_own_disk_takes_appends_while_it_is_cleaned(tmp_path):
    directory = str(tmp_path / "deep" / "cmdlog")
    log = WorkqLog.open(RealDisk(), SystemClock(), directory, segment_bytes=2000)
    appended = threading.Event()

    def append_all() -> None:
        for n in range(200):
            log.append([added(n, n, ttl_s=30), started(n, n)])
        appended.set()

    appending = threading.Thread(target=append_all)
    appending.start()
    dropped = 0
    while not appended.wait(0.001):
        dropped += log.clean(as_of(100)).records_dropped
    appending.join()
    dropped += log.clean(as_of(199)).records_dropped
    log.close()
    assert dropped > 100
    with WorkqLog.open(RealDisk(), SystemClock(), directory) as log:
        states = replay(loaded(log))
        living = {key for key, state in states.items() if visible(state, as_of(200))}
        assert living == {added(n).job_id for n in range(171, 200)}
