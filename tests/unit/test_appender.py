"""Appending: what is written when, and what happens when a disk says no."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from journeyman.errors import LogClosed, LogError, LogFull, LogPoisoned
from journeyman.logs.appender import Appender, SyncPolicy
from journeyman.logs.segments import KestrelPlan, NumberedPlan, Position, SegmentPlan, ZtickPlan
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

HEADER = b"8 bytes."
POLICIES = [SyncPolicy.ALWAYS, SyncPolicy.OS]


class Log:
    """A disk, a clock and an appender on them."""

    def __init__(
        self,
        *,
        plan: str = "workq",
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        capacity: int | None = None,
        segment_bytes: int = 40,
    ) -> None:
        self.disk = SimulatedDisk(capacity=capacity)
        self.disk.make_dirs("/q")
        self.clock = ManualClock()
        segments: SegmentPlan = ZtickPlan("/q/log")
        if plan == "workq":
            segments = NumberedPlan(self.disk, "/q", HEADER, segment_bytes)
        self.appender = Appender(self.disk, self.clock, segments, sync=sync)
        self.disk.counts.clear()

    def append(self, *records: bytes) -> list[Position]:
        return self.appender.append(records)

    def segment(self, number: int) -> bytes:
        return self.disk.read_bytes(f"/q/{number:09d}.log")


class TestAppending:
    def test_many_records_are_one_write_and_one_sync(self):
        log = Log(plan="ztick")
        log.append(b"first")
        log.disk.counts.clear()
        places = log.append(*[b"%03d" % n for n in range(500)])
        assert log.disk.counts == {"write": 1, "sync": 1}
        assert [place.offset for place in places] == [5 + 3 * n for n in range(500)]
        assert log.disk.read_bytes("/q/log") == b"first" + b"".join(b"%03d" % n for n in range(500))

    def test_it_tells_where_a_record_stands(self):
        log = Log()
        assert log.append(b"record") == [Position("/q/000000001.log", len(HEADER))]

    def test_appending_nothing_touches_nothing(self):
        log = Log()
        assert log.append() == []
        assert log.disk.counts == {}

    def test_an_empty_record_is_refused(self):
        log = Log()
        with pytest.raises(ValueError, match="empty record"):
            log.append(b"")
        with pytest.raises(ValueError, match="empty record"):
            log.append(b"x", b"")

    def test_appending_goes_on_behind_what_is_there(self):
        log = Log(plan="ztick")
        log.disk.plant("/q/log", b"old")
        (place,) = log.append(b"new")
        assert place.offset == 3
        assert log.disk.read_bytes("/q/log") == b"oldnew"

    def test_a_log_whose_header_is_cut_short_is_not_appended_to(self):
        log = Log()
        log.disk.plant("/q/000000001.log", HEADER[:3])
        with pytest.raises(LogError, match="recover the log first"):
            log.append(b"record")
        assert log.segment(1) == HEADER[:3]


class TestPolicies:
    def test_os_never_syncs_until_close(self):
        log = Log(plan="ztick", sync=SyncPolicy.OS)
        for _ in range(5):
            log.append(b"a")
            log.clock.advance(1000)
        assert log.disk.counts["sync"] == 0
        log.appender.close()
        assert log.disk.counts["sync"] == 1

    def test_sync_on_demand_under_any_policy(self):
        log = Log(plan="ztick", sync=SyncPolicy.OS)
        log.append(b"a")
        log.appender.sync()
        assert log.disk.after_crash("lose_all_unsynced").read_bytes("/q/log") == b"a"


class TestRotation:
    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_a_batch_is_split_where_the_segment_is_full(self, sync):
        log = Log(sync=sync, segment_bytes=28)
        places = log.append(*[b"%010d" % n for n in range(5)])
        assert log.segment(1) == HEADER + b"%010d%010d" % (0, 1)
        assert log.segment(2) == HEADER + b"%010d%010d" % (2, 3)
        assert log.segment(3) == HEADER + b"%010d" % 4
        assert [place.path[-5] for place in places] == list("11223")
        assert [place.offset for place in places] == [8, 18, 8, 18, 8]

    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_a_segment_is_durable_before_the_next_is_used(self, sync):
        log = Log(sync=sync, segment_bytes=18)
        log.append(b"0123456789", b"abcdefghij")
        after = log.disk.after_crash("lose_all_unsynced")
        assert after.read_bytes("/q/000000001.log") == HEADER + b"0123456789"

    def test_a_full_segment_found_at_open_is_left_at_once(self):
        log = Log(segment_bytes=18)
        log.disk.plant("/q/000000007.log", HEADER + b"0123456789")
        assert log.append(b"next") == [Position("/q/000000008.log", 8)]

    def test_kestrel_segments_hold_what_fits_exactly(self):
        log = Log()
        plan = KestrelPlan(log.disk, log.clock, "/q", "jobs", b"4by.", 24)
        appender = Appender(log.disk, log.clock, plan)
        places = appender.append([b"0123456789"] * 3 + [b"x" * 50, b"y"])
        names = [place.path for place in places]
        assert len(set(names)) == 4
        assert names[0] == names[1]
        assert log.disk.size(names[0]) == 24
        assert log.disk.size(names[3]) == 54, "an empty segment takes one record of any size"

    def test_running_out_of_segment_numbers_fails_the_append_alone(self):
        log = Log(segment_bytes=18)
        log.disk.plant("/q/999999999.log", HEADER + b"0123456789")
        with pytest.raises(LogError, match="no segment number"):
            log.append(b"one too many")
        assert log.appender.poisoned is None


class TestRotateTo:
    def prepare(self, log: Log) -> Callable[[], str]:
        def move() -> str:
            log.disk.rename("/q/log", "/q/log.to_compress")
            return "/q/log"

        return move

    def test_a_fresh_file_is_begun_between_two_appends(self):
        log = Log(plan="ztick")
        log.append(b"before")
        assert log.appender.rotate_to(self.prepare(log)) == "/q/log"
        assert log.append(b"after") == [Position("/q/log", 0)]
        after = log.disk.after_crash("lose_all_unsynced")
        assert after.files() == {"/q/log": b"after", "/q/log.to_compress": b"before"}

    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_the_old_file_is_durable_before_it_is_moved(self, sync):
        log = Log(plan="ztick", sync=sync)
        log.append(b"before")

        def prepare() -> str:
            assert log.disk.after_crash("lose_all_unsynced").read_bytes("/q/log") == b"before"
            return self.prepare(log)()

        log.appender.rotate_to(prepare)

    def test_it_works_before_the_first_append(self):
        log = Log(plan="ztick")
        log.disk.plant("/q/log", b"old")
        log.appender.rotate_to(self.prepare(log))
        log.append(b"new")
        assert log.disk.files() == {"/q/log": b"new", "/q/log.to_compress": b"old"}

    @pytest.mark.parametrize("moved", [False, True])
    def test_the_log_goes_on_when_preparing_fails(self, moved):
        log = Log(plan="ztick")
        log.append(b"before")

        def prepare() -> str:
            if moved:
                log.disk.rename("/q/log", "/q/log.to_compress")
            raise OSError(errno.EACCES, "no")

        with pytest.raises(OSError, match="no"):
            log.appender.rotate_to(prepare)
        assert log.append(b"after") == [Position("/q/log", 0 if moved else 6)]

    def test_a_failed_sync_of_the_old_file_poisons(self):
        log = Log(plan="ztick", sync=SyncPolicy.OS)
        log.append(b"before")
        log.disk.fail_next_sync()
        with pytest.raises(LogPoisoned):
            log.appender.rotate_to(self.prepare(log))
        assert log.disk.files() == {"/q/log": b"before"}


class TestFullDisk:
    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_fill_fail_free_and_go_on(self, sync):
        log = Log(plan="ztick", sync=sync, capacity=25)
        first = log.append(b"0123456789", b"0123456789")
        with pytest.raises(LogFull, match="undone"):
            log.append(b"abcdefghij", b"x")
        assert log.disk.read_bytes("/q/log") == b"0123456789" * 2, "the part that fitted was cut"
        log.disk.capacity = 100
        (accepted,) = log.append(b"klmnopqrst")
        assert accepted.offset == 20
        assert [place.offset for place in first] == [0, 10]
        assert log.disk.read_bytes("/q/log") == b"01234567890123456789klmnopqrst"

    def test_a_refused_record_does_not_come_back_after_a_crash(self):
        log = Log(plan="ztick", capacity=25)
        log.append(b"0123456789", b"0123456789")
        with pytest.raises(LogFull):
            log.append(b"ab", b"x" * 10)
        for seed in range(50):
            assert log.disk.after_crash(seed).read_bytes("/q/log") == b"0123456789" * 2

    def test_a_segment_whose_header_does_not_fit_is_not_left_behind(self):
        log = Log(capacity=25, segment_bytes=18)
        log.append(b"0123456789")
        with pytest.raises(LogFull):
            log.append(b"more")
        assert log.disk.list_dir("/q") == ["000000001.log"]
        log.disk.capacity = None
        assert log.append(b"more") == [Position("/q/000000002.log", 8)]

    def test_a_batch_is_taken_back_out_of_every_segment_it_touched(self):
        log = Log(capacity=70, segment_bytes=18)
        (before,) = log.append(b"before")
        assert before.offset == 8
        with pytest.raises(LogFull):
            log.append(*[b"0123456789"] * 5)
        contents = b"".join(log.disk.after_crash(7).files().values())
        assert contents.replace(HEADER, b"") == b"before"
        log.disk.capacity = None
        again = log.append(b"abc", b"def")
        assert log.disk.read_bytes(again[0].path) == HEADER + b"abcdef"

    def test_a_batch_is_taken_back_when_the_next_segment_cannot_be_made(self):
        log = Log(segment_bytes=18)
        log.append(b"before")
        log.disk.fail("create")
        with pytest.raises(LogError, match="Input/output"):
            log.appender.append([b"0123456789"] * 2)
        assert log.segment(1) == HEADER + b"before"
        assert log.append(b"after") == [Position("/q/000000001.log", 14)]

    def test_a_quota_is_a_full_disk_too(self):
        log = Log(plan="ztick")
        log.disk.fail("write", error=errno.EDQUOT)
        with pytest.raises(LogFull):
            log.append(b"x")

    def test_another_write_error_is_taken_back_and_the_log_goes_on(self):
        log = Log(plan="ztick")
        log.append(b"kept")
        log.disk.fail("write", error=errno.EIO, partial=2)
        with pytest.raises(LogError, match="Input/output error") as caught:
            log.append(b"failed")
        assert not isinstance(caught.value, LogFull | LogPoisoned)
        log.append(b"+more")
        assert log.disk.read_bytes("/q/log") == b"kept+more"

    def test_a_cut_that_fails_poisons(self):
        log = Log(plan="ztick")
        log.append(b"kept")
        log.disk.fail("write", partial=2)
        log.disk.fail("truncate")
        with pytest.raises(LogPoisoned, match="cutting back"):
            log.append(b"failed")
        with pytest.raises(LogPoisoned):
            log.append(b"more")

    def test_a_file_that_cannot_be_opened_fails_the_append_alone(self):
        log = Log(plan="ztick")
        log.disk.fail("create", error=errno.EMFILE)
        with pytest.raises(LogError, match="Too many open files"):
            log.append(b"x")
        assert len(log.append(b"y")) == 1


class TestPoison:
    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    @pytest.mark.parametrize("failing", range(1, 9))
    def test_a_failed_sync_is_final_whichever_it_is(self, sync, failing):
        """Sweeps the syncs of files and directories that two rotations and a close do."""
        log = Log(sync=sync, segment_bytes=18)
        log.disk.fail_sync_at(failing)
        places: list[Position] = []
        with suppress(LogPoisoned):
            for _ in range(3):
                places += log.append(b"0123456789")
            log.appender.close()
        if log.appender.poisoned is None:
            assert log.disk.counts["sync"] + log.disk.counts["sync_dir"] < failing
            return
        with pytest.raises(LogPoisoned):
            log.append(b"late")
        with pytest.raises(LogPoisoned):
            log.appender.sync()
        operations = log.disk.operations
        log.appender.close()
        assert log.disk.operations == operations, "nothing more is written"
        after = log.disk.after_crash("lose_all_unsynced")
        if sync == SyncPolicy.ALWAYS:
            for place in places:
                assert after.read_at(place.path, place.offset, 10) == b"0123456789"


class TestClose:
    def test_a_closed_log_refuses(self):
        log = Log(plan="ztick")
        log.appender.close()
        log.appender.close()
        assert log.disk.counts == {}, "never opened, so nothing to close"
        for use in (lambda: log.append(b"x"), log.appender.sync):
            with pytest.raises(LogClosed):
                use()

    def test_open_makes_what_was_found_durable(self):
        log = Log(plan="ztick")
        stray = log.disk.open_append("/q/log")
        stray.write(b"by a process that died")
        log.appender.open()
        assert log.disk.after_crash("lose_all_unsynced").size("/q/log") == 22

    def test_open_says_what_is_wrong(self):
        log = Log()
        log.disk.fail("create", error=errno.ENOSPC)
        with pytest.raises(LogFull):
            log.appender.open()
        log.disk.fail_next_sync()
        with pytest.raises(LogPoisoned):
            log.appender.open()
