"""What the simulated disk keeps and what it loses."""

from __future__ import annotations

import errno

import pytest

from journeyman.disk import AppendFile
from journeyman.testing import ManualClock
from tests.support.simulated_disk import PowerCut, SimulatedDisk

SEEDS = range(200)


def write(disk: SimulatedDisk, path: str, data: bytes, *, sync: bool = True) -> AppendFile:
    file = disk.open_append(path)
    file.write(data)
    if sync:
        file.sync()
    return file


def durable_file(data: bytes = b"old", path: str = "/d/f") -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.plant(path, data)
    return disk


class TestDataSurvival:
    def test_unsynced_bytes_are_lost_at_worst_and_kept_at_best(self):
        disk = durable_file()
        write(disk, "/d/f", b"+new", sync=False)
        assert disk.after_crash("lose_all_unsynced").read_bytes("/d/f") == b"old"
        assert disk.after_crash("keep_all_unsynced").read_bytes("/d/f") == b"old+new"

    def test_synced_bytes_survive_every_crash(self):
        disk = durable_file()
        write(disk, "/d/f", b"+new").write(b"+newer")
        for seed in SEEDS:
            assert disk.after_crash(seed).read_bytes("/d/f").startswith(b"old+new")

    def test_random_crashes_lose_tear_keep_and_zero_writes(self):
        disk = durable_file()
        file = write(disk, "/d/f", b"AAAA", sync=False)
        file.write(b"BBBB")
        seen = {disk.after_crash(seed).read_bytes("/d/f") for seed in SEEDS}
        assert {b"old", b"oldAAAABBBB"} <= seen
        assert b"oldAAAABB" in seen, "the last write torn"
        assert b"old\0\0\0\0BBBB" in seen, "an earlier write lost behind a later one"
        assert b"oldAAAA\0\0\0\0" in seen, "the length without the data"

    def test_a_cut_is_an_edit_like_any_other(self):
        disk = durable_file(b"0123456789")
        file = disk.open_append("/d/f")
        file.truncate(4)
        assert disk.after_crash("lose_all_unsynced").read_bytes("/d/f") == b"0123456789"
        file.sync()
        assert disk.after_crash("lose_all_unsynced").read_bytes("/d/f") == b"0123"

    def test_the_disk_that_crashed_is_left_as_it_was(self):
        disk = durable_file()
        write(disk, "/d/f", b"+new", sync=False)
        disk.after_crash("lose_all_unsynced").remove("/d/f")
        assert disk.read_bytes("/d/f") == b"old+new"


class TestNameSurvival:
    def test_a_new_file_needs_its_directory_synced(self):
        disk = durable_file()
        write(disk, "/d/new", b"data")
        assert not disk.after_crash("lose_all_unsynced").exists("/d/new")
        disk.sync_dir("/d")
        assert disk.after_crash("lose_all_unsynced").read_bytes("/d/new") == b"data"

    def test_a_name_without_its_data_is_possible(self):
        disk = durable_file()
        write(disk, "/d/new", b"data", sync=False)
        disk.sync_dir("/d")
        assert disk.after_crash("lose_all_unsynced").read_bytes("/d/new") == b""

    def test_a_rename_is_all_or_nothing(self):
        disk = durable_file()
        write(disk, "/d/tmp", b"new")
        disk.sync_dir("/d")
        disk.rename("/d/tmp", "/d/f")
        assert disk.after_crash("lose_all_unsynced").files() == {"/d/f": b"old", "/d/tmp": b"new"}
        assert disk.after_crash("keep_all_unsynced").files() == {"/d/f": b"new"}
        outcomes = {tuple(disk.after_crash(seed).files().items()) for seed in SEEDS}
        assert len(outcomes) == 2

    def test_a_removed_file_is_back_unless_the_directory_was_synced(self):
        disk = durable_file()
        disk.remove("/d/f")
        assert disk.after_crash("lose_all_unsynced").exists("/d/f")
        disk.sync_dir("/d")
        assert not disk.after_crash("lose_all_unsynced").exists("/d/f")

    def test_any_of_the_changes_of_a_directory_survive(self):
        disk = durable_file()
        for name in "ab":
            write(disk, f"/d/{name}", b"")
        seen = {tuple(disk.after_crash(seed).list_dir("/d")) for seed in SEEDS}
        assert seen == {("f",), ("a", "f"), ("b", "f"), ("a", "b", "f")}

    def test_the_changes_of_one_name_survive_in_order(self):
        disk = durable_file()
        write(disk, "/d/tmp", b"new")
        disk.rename("/d/tmp", "/d/f")
        disk.remove("/d/f")
        seen = {tuple(disk.after_crash(seed).list_dir("/d")) for seed in SEEDS}
        assert seen == {("f",), ("f", "tmp"), ()}

    def test_directories_survive_apart_from_each_other(self):
        disk = durable_file()
        disk.make_dirs("/e")
        write(disk, "/d/first", b"")
        write(disk, "/e/second", b"")
        seen = {
            (disk.after_crash(seed).exists("/d/first"), disk.after_crash(seed).exists("/e/second"))
            for seed in SEEDS
        }
        assert seen == {(a, b) for a in (True, False) for b in (True, False)}

    def test_a_file_moved_across_directories_is_never_nowhere(self):
        disk = durable_file()
        disk.make_dirs("/e")
        disk.rename("/d/f", "/e/f")
        seen = {tuple(disk.after_crash(seed).files()) for seed in SEEDS}
        assert seen == {("/d/f",), ("/e/f",), ("/d/f", "/e/f")}
        disk.sync_dir("/d")
        assert set(disk.after_crash("lose_all_unsynced").files()) == {"/e/f"}

    def test_make_dirs_needs_no_further_sync(self):
        disk = SimulatedDisk()
        disk.make_dirs("/a/b/c")
        assert disk.after_crash("lose_all_unsynced").is_dir("/a/b/c")


class TestPower:
    def test_power_goes_before_the_chosen_operation_and_stays_gone(self):
        disk = durable_file()
        file = disk.open_append("/d/f")
        disk.cut_power_at(3)
        file.write(b"1")
        file.sync()
        with pytest.raises(PowerCut):
            file.write(b"2")
        for use in (file.size, file.sync, file.close, lambda: disk.exists("/d")):
            with pytest.raises(PowerCut):
                use()
        assert disk.after_crash("keep_all_unsynced").read_bytes("/d/f") == b"old1"

    def test_a_torn_write_leaves_a_part(self):
        disk = durable_file()
        disk.cut_power_at(1, torn=0.5)
        with pytest.raises(PowerCut):
            disk.open_append("/d/f").write(b"12345678")
        assert disk.after_crash("keep_all_unsynced").read_bytes("/d/f") == b"old1234"

    def test_every_change_is_an_operation_and_reading_is_none(self):
        disk = SimulatedDisk()
        disk.make_dirs("/d")
        file = write(disk, "/d/f", b"x")
        file.truncate(0)
        disk.rename("/d/f", "/d/g")
        disk.remove("/d/g")
        disk.sync_dir("/d")
        kinds = [
            "mkdir",
            "sync_dir",
            "create",
            "write",
            "sync",
            "truncate",
            "rename",
            "remove",
            "sync_dir",
        ]
        assert disk.operations == len(kinds)
        assert disk.counts == {kind: kinds.count(kind) for kind in kinds}
        disk.list_dir("/d")
        assert disk.operations == len(kinds)

    def test_locks_vanish_with_the_power(self):
        disk = durable_file()
        disk.lock("/d/lock")
        disk.sync_dir("/d")
        disk.cut_power()
        with pytest.raises(PowerCut):
            disk.lock("/d/lock")
        disk.after_crash().lock("/d/lock").release()


class TestRoom:
    def test_a_full_disk_takes_what_fits(self):
        disk = SimulatedDisk(capacity=10)
        file = disk.open_append("/f")
        file.write(b"1234567")
        with pytest.raises(OSError, match="space") as caught:
            file.write(b"890abc")
        assert caught.value.errno == errno.ENOSPC
        assert disk.read_bytes("/f") == b"1234567890"
        assert disk.used == 10

    def test_cutting_removing_and_replacing_give_room(self):
        disk = SimulatedDisk(capacity=10)
        write(disk, "/a", b"12345").truncate(2)
        write(disk, "/b", b"12345678")
        assert disk.used == 10
        disk.rename("/a", "/b")
        assert disk.used == 2
        disk.remove("/b")
        assert disk.used == 0

    def test_room_can_be_added(self):
        disk = SimulatedDisk(capacity=0)
        file = disk.open_append("/f")
        with pytest.raises(OSError, match="space"):
            file.write(b"x")
        disk.capacity = 1
        file.write(b"x")
        assert disk.after_crash().capacity == 1


class TestFailures:
    def test_a_failed_sync_loses_the_data_though_a_later_one_succeeds(self):
        disk = durable_file()
        file = write(disk, "/d/f", b"+lost", sync=False)
        disk.fail_next_sync()
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        assert disk.read_bytes("/d/f") == b"old+lost"
        assert disk.after_crash("keep_all_unsynced").read_bytes("/d/f") == b"old"

    def test_the_nth_sync_fails_of_files_and_directories_together(self):
        disk = durable_file()
        file = disk.open_append("/d/f")
        disk.fail_sync_at(3)
        file.sync()
        disk.sync_dir("/d")
        with pytest.raises(OSError, match="Input/output"):
            disk.sync_dir("/d")
        file.sync()

    def test_failing_writes_may_put_down_a_part(self):
        disk = durable_file()
        file = disk.open_append("/d/f")
        disk.fail("write", error=errno.EIO, skip=1, times=2, partial=1)
        file.write(b"ok")
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                file.write(b"xyz")
        file.write(b"!")
        assert disk.read_bytes("/d/f") == b"oldokxx!"

    def test_heal_ends_all_failures(self):
        disk = durable_file()
        disk.fail("rename", "remove", times=100)
        with pytest.raises(OSError, match="Input/output"):
            disk.remove("/d/f")
        disk.heal()
        disk.remove("/d/f")


class TestManualClock:
    def test_time_moves_only_when_told(self):
        clock = ManualClock(now_ns=5)
        assert (clock.now_ns(), clock.monotonic_ns()) == (5, 0)
        clock.advance(1.5)
        clock.sleep(0.5)
        assert (clock.now_ns(), clock.monotonic_ns()) == (2_000_000_005, 2_000_000_000)

    def test_the_wall_clock_may_step_back_alone(self):
        clock = ManualClock(now_ns=100)
        clock.step_wall(-60)
        assert (clock.now_ns(), clock.monotonic_ns()) == (40, 0)
        with pytest.raises(ValueError, match="does not go back"):
            clock.advance(-1)
