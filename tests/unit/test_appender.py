"""Group commit: what is written when, and what happens when a disk says no."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import LogBusy, LogClosed, LogError, LogFull, LogPoisoned, UsageError
from journeyman.logs.appender import MAX_WAITING_BYTES, Appender, CommitThread, SyncPolicy
from journeyman.logs.segments import KestrelPlan, Position, SegmentPlan, WorkqPlan, ZtickPlan
from journeyman.testing import ManualClock, SimulatedDisk

HEADER = b"8 bytes."
POLICIES = [SyncPolicy.always(), SyncPolicy.interval(100), SyncPolicy.os()]


class Log:
    """A disk, a clock and an appender on them."""

    def __init__(
        self,
        *,
        plan: str = "workq",
        sync: SyncPolicy | None = None,
        capacity: int | None = None,
        segment_bytes: int = 40,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.disk = SimulatedDisk(capacity=capacity)
        self.disk.make_dirs("/q")
        self.clock = ManualClock()
        segments: SegmentPlan = ZtickPlan("/q/log")
        if plan == "workq":
            segments = WorkqPlan(self.disk, "/q", HEADER, segment_bytes)
        self.appender = Appender(
            self.disk, self.clock, segments, sync=sync, max_waiting_bytes=max_waiting_bytes
        )
        self.disk.counts.clear()

    def append(self, *records: bytes) -> list[Future[Position]]:
        return [self.appender.append(record) for record in records]

    def segment(self, number: int) -> bytes:
        return self.disk.read_bytes(f"/q/{number:09d}.log")


class TestGroupCommit:
    def test_nothing_is_written_before_commit(self):
        log = Log(plan="ztick")
        (future,) = log.append(b"record")
        assert not future.done()
        assert log.disk.operations == 2, "only the directory was made"
        assert log.appender.waiting_bytes == 6

    def test_many_appends_are_one_write_and_one_sync(self):
        log = Log(plan="ztick")
        log.append(b"first")
        log.appender.commit()
        log.disk.counts.clear()
        futures = log.append(*[b"%03d" % n for n in range(500)])
        assert log.appender.commit() == 500
        assert log.disk.counts == {"write": 1, "sync": 1}
        assert [f.result().offset for f in futures] == [5 + 3 * n for n in range(500)]
        assert log.disk.read_bytes("/q/log") == b"first" + b"".join(b"%03d" % n for n in range(500))
        assert log.appender.waiting_bytes == 0

    def test_a_future_tells_where_its_record_stands(self):
        log = Log()
        (future,) = log.append(b"record")
        log.appender.commit()
        assert future.result() == Position("/q/000000001.log", len(HEADER))

    def test_append_many_stands_together_under_one_future(self):
        log = Log(plan="ztick")
        log.append(b"a")
        future = log.appender.append_many([b"bb", b"ccc"])
        log.append(b"d")
        assert log.appender.commit() == 4
        assert [p.offset for p in future.result()] == [1, 3]
        assert log.disk.read_bytes("/q/log") == b"abbcccd"

    def test_append_many_of_nothing_is_done_at_once(self):
        assert Log().appender.append_many([]).result() == []

    def test_an_empty_record_is_refused(self):
        log = Log()
        with pytest.raises(ValueError, match="empty record"):
            log.appender.append(b"")
        with pytest.raises(ValueError, match="empty record"):
            log.appender.append_many([b"x", b""])

    def test_commit_with_nothing_waiting_touches_nothing(self):
        log = Log()
        assert log.appender.commit() == 0
        assert log.disk.counts == {}

    def test_a_queued_append_cannot_be_cancelled(self):
        log = Log(plan="ztick")
        (future,) = log.append(b"x")
        assert not future.cancel()
        log.appender.commit()
        assert future.result().offset == 0

    def test_appending_goes_on_behind_what_is_there(self):
        log = Log(plan="ztick")
        log.disk.plant("/q/log", b"old")
        (future,) = log.append(b"new")
        log.appender.commit()
        assert future.result().offset == 3
        assert log.disk.read_bytes("/q/log") == b"oldnew"

    def test_too_much_waiting_is_refused_and_leaves_no_trace(self):
        log = Log(plan="ztick", max_waiting_bytes=10)
        log.append(b"123456")
        with pytest.raises(LogBusy, match="6 bytes wait"):
            log.appender.append(b"78901")
        log.append(b"7890")
        log.appender.commit()
        log.append(b"after a commit there is room, and alone anything is taken")
        log.appender.commit()
        assert log.disk.read_bytes("/q/log").startswith(b"1234567890after")

    def test_a_log_whose_header_is_cut_short_is_not_appended_to(self):
        log = Log()
        log.disk.plant("/q/000000001.log", HEADER[:3])
        (future,) = log.append(b"record")
        assert log.appender.commit() == 0
        with pytest.raises(LogError, match="recover the log first"):
            future.result()
        assert log.segment(1) == HEADER[:3]


class TestPolicies:
    def test_always_resolves_after_the_sync(self):
        log = Log(plan="ztick", sync=SyncPolicy.always())
        synced_when_told = []
        (future,) = log.append(b"x")
        future.add_done_callback(lambda _: synced_when_told.append(log.disk.counts["sync"]))
        log.appender.commit()
        assert synced_when_told == [2], "one for the file as found, one for the record"

    def test_interval_resolves_after_the_write_and_syncs_in_time(self):
        log = Log(plan="ztick", sync=SyncPolicy.interval(100))
        log.append(b"a")
        assert log.appender.commit() == 1
        assert log.disk.counts["sync"] == 0
        log.clock.advance(0.099)
        log.append(b"b")
        log.appender.commit()
        assert log.disk.counts["sync"] == 0
        log.clock.advance(0.001)
        assert log.appender.commit() == 0
        assert log.disk.counts["sync"] == 1
        log.clock.advance(10)
        log.appender.commit()
        assert log.disk.counts["sync"] == 1, "nothing new to sync"

    def test_os_never_syncs_until_close(self):
        log = Log(plan="ztick", sync=SyncPolicy.os())
        for _ in range(5):
            log.append(b"a")
            log.appender.commit()
            log.clock.advance(1000)
        assert log.disk.counts["sync"] == 0
        log.appender.close()
        assert log.disk.counts["sync"] == 1

    def test_sync_on_demand_under_any_policy(self):
        log = Log(plan="ztick", sync=SyncPolicy.os())
        log.append(b"a")
        log.appender.commit()
        log.appender.sync()
        assert log.disk.after_crash("lose_all_unsynced").read_bytes("/q/log") == b"a"

    @pytest.mark.parametrize("ms", [0, -1, 3_600_001])
    def test_an_interval_must_make_sense(self, ms):
        with pytest.raises(UsageError):
            SyncPolicy.interval(ms)

    def test_policies_say_what_they_are(self):
        assert [str(policy) for policy in POLICIES] == ["always", "interval(100 ms)", "os"]


class TestRotation:
    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_a_batch_is_split_where_the_segment_is_full(self, sync):
        log = Log(sync=sync, segment_bytes=28)
        futures = log.append(*[b"%010d" % n for n in range(5)])
        assert log.appender.commit() == 5
        assert log.segment(1) == HEADER + b"%010d%010d" % (0, 1)
        assert log.segment(2) == HEADER + b"%010d%010d" % (2, 3)
        assert log.segment(3) == HEADER + b"%010d" % 4
        assert [f.result().path[-5] for f in futures] == list("11223")
        assert [f.result().offset for f in futures] == [8, 18, 8, 18, 8]

    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_a_segment_is_durable_before_the_next_is_used(self, sync):
        log = Log(sync=sync, segment_bytes=18)
        log.append(b"0123456789", b"abcdefghij")
        log.appender.commit()
        after = log.disk.after_crash("lose_all_unsynced")
        assert after.read_bytes("/q/000000001.log") == HEADER + b"0123456789"

    def test_a_full_segment_found_at_open_is_left_at_once(self):
        log = Log(segment_bytes=18)
        log.disk.plant("/q/000000007.log", HEADER + b"0123456789")
        (future,) = log.append(b"next")
        log.appender.commit()
        assert future.result() == Position("/q/000000008.log", 8)

    def test_kestrel_segments_hold_what_fits_exactly(self):
        log = Log()
        plan = KestrelPlan(log.disk, log.clock, "/q", "jobs", b"4by.", 24)
        appender = Appender(log.disk, log.clock, plan)
        futures = [appender.append(b"0123456789") for _ in range(3)]
        futures.append(appender.append(b"x" * 50))
        futures.append(appender.append(b"y"))
        appender.commit()
        names = [f.result().path for f in futures]
        assert len(set(names)) == 4
        assert names[0] == names[1]
        assert log.disk.size(names[0]) == 24
        assert log.disk.size(names[3]) == 54, "an empty segment takes one record of any size"

    def test_running_out_of_segment_numbers_fails_the_append_alone(self):
        log = Log(segment_bytes=18)
        log.disk.plant("/q/999999999.log", HEADER + b"0123456789")
        (future,) = log.append(b"one too many")
        log.appender.commit()
        with pytest.raises(LogError, match="no segment number"):
            future.result()
        assert log.appender.poisoned is None


class TestRotateTo:
    def prepare(self, log: Log) -> Callable[[], str]:
        def move() -> str:
            log.disk.rename("/q/log", "/q/log.to_compress")
            return "/q/log"

        return move

    def test_a_fresh_file_is_begun_between_two_commits(self):
        log = Log(plan="ztick")
        log.append(b"before")
        log.appender.commit()
        (waiting,) = log.append(b"after")
        assert log.appender.rotate_to(self.prepare(log)) == "/q/log"
        log.appender.commit()
        assert waiting.result() == Position("/q/log", 0)
        after = log.disk.after_crash("lose_all_unsynced")
        assert after.files() == {"/q/log": b"after", "/q/log.to_compress": b"before"}

    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_the_old_file_is_durable_before_it_is_moved(self, sync):
        log = Log(plan="ztick", sync=sync)
        log.append(b"before")
        log.appender.commit()

        def prepare() -> str:
            assert log.disk.after_crash("lose_all_unsynced").read_bytes("/q/log") == b"before"
            return self.prepare(log)()

        log.appender.rotate_to(prepare)

    def test_it_works_before_the_first_append(self):
        log = Log(plan="ztick")
        log.disk.plant("/q/log", b"old")
        log.appender.rotate_to(self.prepare(log))
        log.append(b"new")
        log.appender.commit()
        assert log.disk.files() == {"/q/log": b"new", "/q/log.to_compress": b"old"}

    @pytest.mark.parametrize("moved", [False, True])
    def test_the_log_goes_on_when_preparing_fails(self, moved):
        log = Log(plan="ztick")
        log.append(b"before")
        log.appender.commit()

        def prepare() -> str:
            if moved:
                log.disk.rename("/q/log", "/q/log.to_compress")
            raise OSError(errno.EACCES, "no")

        with pytest.raises(OSError, match="no"):
            log.appender.rotate_to(prepare)
        (future,) = log.append(b"after")
        log.appender.commit()
        assert future.result() == Position("/q/log", 0 if moved else 6)

    def test_a_failed_sync_of_the_old_file_poisons(self):
        log = Log(plan="ztick", sync=SyncPolicy.os())
        log.append(b"before")
        log.appender.commit()
        log.disk.fail_next_sync()
        with pytest.raises(LogPoisoned):
            log.appender.rotate_to(self.prepare(log))
        assert log.disk.files() == {"/q/log": b"before"}


class TestFullDisk:
    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    def test_fill_fail_free_and_go_on(self, sync):
        log = Log(plan="ztick", sync=sync, capacity=25)
        first = log.append(b"0123456789", b"0123456789")
        log.appender.commit()
        refused = log.append(b"abcdefghij", b"x")
        assert log.appender.commit() == 0
        for future in refused:
            with pytest.raises(LogFull, match="undone"):
                future.result()
        assert log.disk.read_bytes("/q/log") == b"0123456789" * 2, "the part that fitted was cut"
        assert log.appender.waiting_bytes == 0
        log.disk.capacity = 100
        (accepted,) = log.append(b"klmnopqrst")
        assert log.appender.commit() == 1
        assert accepted.result().offset == 20
        assert [f.result().offset for f in first] == [0, 10]
        assert log.disk.read_bytes("/q/log") == b"01234567890123456789klmnopqrst"

    def test_a_refused_record_does_not_come_back_after_a_crash(self):
        log = Log(plan="ztick", capacity=25)
        log.append(b"0123456789", b"0123456789")
        log.appender.commit()
        log.append(b"ab", b"x" * 10)
        log.appender.commit()
        for seed in range(50):
            assert log.disk.after_crash(seed).read_bytes("/q/log") == b"0123456789" * 2

    def test_a_segment_whose_header_does_not_fit_is_not_left_behind(self):
        log = Log(capacity=25, segment_bytes=18)
        log.append(b"0123456789")
        log.appender.commit()
        (refused,) = log.append(b"more")
        assert log.appender.commit() == 0
        with pytest.raises(LogFull):
            refused.result()
        assert log.disk.list_dir("/q") == ["000000001.log"]
        log.disk.capacity = None
        (accepted,) = log.append(b"more")
        log.appender.commit()
        assert accepted.result() == Position("/q/000000002.log", 8)

    def test_what_was_durable_before_the_rotation_stays_accepted(self):
        log = Log(capacity=40, segment_bytes=18)
        accepted, refused = log.append(b"0123456789", b"x" * 30)
        assert log.appender.commit() == 1
        assert accepted.result().offset == 8
        with pytest.raises(LogFull):
            refused.result()
        assert log.disk.files() == {
            "/q/000000001.log": HEADER + b"0123456789",
            "/q/000000002.log": HEADER,
        }

    def test_append_many_is_taken_back_out_of_every_segment_it_touched(self):
        log = Log(capacity=70, segment_bytes=18)
        (before,) = log.append(b"before")
        many = log.appender.append_many([b"0123456789"] * 5)
        assert log.appender.commit() == 1
        assert before.result().offset == 8
        with pytest.raises(LogFull):
            many.result()
        contents = b"".join(log.disk.after_crash(7).files().values())
        assert contents.replace(HEADER, b"") == b"before"
        log.disk.capacity = None
        again = log.appender.append_many([b"abc", b"def"])
        log.appender.commit()
        assert log.disk.read_bytes(again.result()[0].path) == HEADER + b"abcdef"

    def test_append_many_is_taken_back_when_the_next_segment_cannot_be_made(self):
        log = Log(segment_bytes=18)
        log.append(b"before")
        log.appender.commit()
        log.disk.fail("create")
        many = log.appender.append_many([b"0123456789"] * 2)
        assert log.appender.commit() == 0
        with pytest.raises(LogError, match="Input/output"):
            many.result()
        assert log.segment(1) == HEADER + b"before"
        (after,) = log.append(b"after")
        log.appender.commit()
        assert after.result() == Position("/q/000000001.log", 14)

    def test_a_quota_is_a_full_disk_too(self):
        log = Log(plan="ztick")
        log.disk.fail("write", error=errno.EDQUOT)
        (future,) = log.append(b"x")
        log.appender.commit()
        with pytest.raises(LogFull):
            future.result()

    def test_another_write_error_is_taken_back_and_the_log_goes_on(self):
        log = Log(plan="ztick")
        log.append(b"kept")
        log.appender.commit()
        log.disk.fail("write", error=errno.EIO, partial=2)
        (future,) = log.append(b"failed")
        log.appender.commit()
        with pytest.raises(LogError, match="Input/output error") as caught:
            future.result()
        assert not isinstance(caught.value, LogFull | LogPoisoned)
        log.append(b"+more")
        log.appender.commit()
        assert log.disk.read_bytes("/q/log") == b"kept+more"

    def test_a_cut_that_fails_poisons(self):
        log = Log(plan="ztick")
        log.append(b"kept")
        log.appender.commit()
        log.disk.fail("write", partial=2)
        log.disk.fail("truncate")
        (future,) = log.append(b"failed")
        with pytest.raises(LogPoisoned, match="cutting back"):
            log.appender.commit()
        with pytest.raises(LogPoisoned):
            future.result()

    def test_a_file_that_cannot_be_opened_fails_the_append_alone(self):
        log = Log(plan="ztick")
        log.disk.fail("create", error=errno.EMFILE)
        (future,) = log.append(b"x")
        log.appender.commit()
        with pytest.raises(LogError, match="Too many open files"):
            future.result()
        log.append(b"y")
        assert log.appender.commit() == 1


class TestPoison:
    @pytest.mark.parametrize("sync", POLICIES, ids=str)
    @pytest.mark.parametrize("failing", range(1, 9))
    def test_a_failed_sync_is_final_whichever_it_is(self, sync, failing):
        """Sweeps the syncs of files and directories that two rotations and a close do."""
        log = Log(sync=sync, segment_bytes=18)
        log.disk.fail_sync_at(failing)
        futures = log.append(*[b"0123456789"] * 3)
        with suppress(LogPoisoned):
            log.appender.commit()
            log.appender.close()
        if log.appender.poisoned is None:
            assert log.disk.counts["sync"] + log.disk.counts["sync_dir"] < failing
            return
        assert all(f.done() for f in futures)
        with pytest.raises(LogPoisoned):
            log.appender.append(b"late")
        with pytest.raises(LogPoisoned):
            log.appender.commit()
        with pytest.raises(LogPoisoned):
            log.appender.sync()
        operations = log.disk.operations
        log.appender.close()
        assert log.disk.operations == operations, "nothing more is written"
        after = log.disk.after_crash("lose_all_unsynced")
        if sync == SyncPolicy.always():
            for future in futures:
                if future.exception() is None:
                    place = future.result()
                    assert after.read_at(place.path, place.offset, 10) == b"0123456789"

    def test_every_waiting_append_is_told(self):
        log = Log(plan="ztick")
        first = log.append(b"a")
        log.disk.fail("sync", skip=1)
        late: list[None] = []
        first[0].add_done_callback(lambda _: late.append(None))
        with pytest.raises(LogPoisoned, match="sync failed: Input/output error"):
            log.appender.commit()
        assert late == [None]
        assert isinstance(first[0].exception(), LogPoisoned)

    def test_a_failed_interval_sync_poisons_what_comes_later(self):
        log = Log(plan="ztick", sync=SyncPolicy.interval(10))
        (told,) = log.append(b"a")
        log.appender.commit()
        log.clock.advance(1)
        log.disk.fail_next_sync()
        with pytest.raises(LogPoisoned):
            log.appender.commit()
        assert told.result().offset == 0, "interval promised no more than the write"
        with pytest.raises(LogPoisoned):
            log.appender.append(b"b")


class TestClose:
    def test_what_waits_is_still_written(self):
        log = Log(plan="ztick", sync=SyncPolicy.os())
        (future,) = log.append(b"last words")
        log.appender.close()
        assert future.result().offset == 0
        assert log.disk.after_crash("lose_all_unsynced").read_bytes("/q/log") == b"last words"

    def test_a_closed_log_refuses(self):
        log = Log(plan="ztick")
        log.appender.close()
        log.appender.close()
        assert log.disk.counts == {}, "never opened, so nothing to close"
        for use in (lambda: log.appender.append(b"x"), log.appender.commit, log.appender.sync):
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


class TestCommitThread:
    def test_many_threads_share_few_syncs(self, tmp_path):
        class CountingDisk(RealDisk):
            syncs = 0

            def open_append(self, path):
                file = super().open_append(path)
                real_sync = file.sync

                def sync() -> None:
                    CountingDisk.syncs += 1
                    real_sync()

                file.sync = sync  # type: ignore[method-assign]
                return file

        threads, each = 50, 40
        disk = CountingDisk()
        plan = WorkqPlan(disk, str(tmp_path), HEADER, 8192)
        appender = Appender(disk, SystemClock(), plan)
        committer = CommitThread(appender)
        begin = threading.Barrier(threads)
        positions: dict[tuple[int, int], Position] = {}

        def work(worker: int) -> None:
            begin.wait()
            for number in range(each):
                record = b"<%02d,%04d>" % (worker, number)
                positions[worker, number] = appender.append(record).result(timeout=60)

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        committer.close()

        assert len(positions) == threads * each
        for (worker, number), place in positions.items():
            assert disk.read_at(place.path, place.offset, 9) == b"<%02d,%04d>" % (worker, number)
        for worker in range(threads):
            mine = [positions[worker, n] for n in range(each)]
            assert mine == sorted(mine, key=lambda p: (p.path, p.offset)), "order is kept"
        assert len(disk.list_dir(str(tmp_path))) > 1, "the log rotated meanwhile"
        assert CountingDisk.syncs < threads * each / 4

    def test_interval_syncs_come_without_further_appends(self, tmp_path):
        synced = threading.Event()

        class WatchedDisk(RealDisk):
            def open_append(self, path):
                file = super().open_append(path)
                file.sync = synced.set  # type: ignore[method-assign]
                return file

        appender = Appender(
            WatchedDisk(),
            SystemClock(),
            ZtickPlan(str(tmp_path / "log")),
            sync=SyncPolicy.interval(20),
        )
        committer = CommitThread(appender)
        appender.append(b"x").result(timeout=60)
        assert synced.wait(timeout=60)
        committer.close()

    def test_the_thread_ends_when_the_log_is_poisoned(self):
        log = Log(plan="ztick")
        log.disk.fail_next_sync()
        committer = CommitThread(log.appender)
        future = log.appender.append(b"x")
        with pytest.raises(LogPoisoned):
            future.result(timeout=60)
        committer.close()
        assert log.appender.poisoned is not None
