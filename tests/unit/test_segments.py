"""Names, catalogs and plans of the three dialects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journeyman.errors import LogError, UsageError
from journeyman.logs import segments
from journeyman.logs.segments import KestrelPlan, NumberedPlan, ZtickNames, ZtickPlan
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

KESTREL = Path(__file__).parent.parent / "golden" / "data" / "kestrel"
NOW_MS = 1_700_000_000_000


class TestZtick:
    def test_all_files_stand_beside_the_active_one(self):
        names = ZtickNames("/var/log/jobs")
        assert names.to_compress == "/var/log/jobs.to_compress"
        assert names.compressed == "/var/log/jobs.compressed"
        assert names.compressed_tmp == "/var/log/jobs.compressed.tmp"
        assert names.lock == "/var/log/jobs.lock"
        assert names.directory == "/var/log"
        assert ZtickNames("jobs").directory == "."

    def test_there_is_one_file_at_any_size(self):
        plan = ZtickPlan("/log")
        assert plan.first_path() == plan.where == "/log"
        assert plan.header == b""
        assert not plan.must_rotate(1 << 60, 1 << 30)
        with pytest.raises(LogError, match="only one"):
            plan.next_path("/log")


class TestWorkq:
    def test_a_segment_has_nine_digits_and_nothing_else(self):
        names = [
            "000000010.log",
            "000000002.log",
            "000000001.log.rw",
            "0000001.log",
            "0000000001.log",
        ]
        names += ["append.lock", "read.lock", "quarantine", "00000000a.log", "\u0661" * 9 + ".log"]
        assert segments.workq_segments(names) == ["000000002.log", "000000010.log"]
        assert segments.workq_sequence("000000002.log") == 2
        assert segments.workq_sequence("000000002.log~~recovering") is None
        assert segments.numbered_name(7) == "000000007.log"

    @pytest.mark.parametrize("sequence", [-1, 1_000_000_000])
    def test_a_number_that_nine_digits_cannot_hold_is_refused(self, sequence):
        with pytest.raises(UsageError):
            segments.numbered_name(sequence)

    def plan(self, *existing: str, segment_bytes: int = 100) -> NumberedPlan:
        disk = SimulatedDisk()
        disk.make_dirs("/q")
        for name in existing:
            disk.plant(f"/q/{name}", b"")
        return NumberedPlan(disk, "/q", b"8 bytes.", segment_bytes)

    def test_the_first_append_goes_to_the_highest_segment_or_number_one(self):
        assert self.plan().first_path() == "/q/000000001.log"
        plan = self.plan("000000002.log", "000000010.log", "zzz")
        assert plan.first_path() == "/q/000000010.log"

    def test_a_missing_directory_has_no_segments(self):
        plan = NumberedPlan(SimulatedDisk(), "/none", b"", 100)
        assert plan.first_path() == "/none/000000001.log"

    def test_a_segment_is_left_once_it_has_reached_its_size(self):
        plan = self.plan(segment_bytes=100)
        assert not plan.must_rotate(99, 1_000_000)
        assert plan.must_rotate(100, 1)
        assert plan.next_path("/q/000000009.log") == "/q/000000010.log"

    def test_an_empty_segment_takes_a_record_however_small_segments_are(self):
        plan = self.plan(segment_bytes=1)
        assert not plan.must_rotate(8, 50)
        assert plan.must_rotate(58, 50)

    def test_after_the_last_number_there_is_an_error_and_no_hidden_file(self):
        with pytest.raises(LogError, match="no segment number"):
            self.plan().next_path("/q/999999999.log")
        with pytest.raises(LogError, match="not a segment"):
            self.plan().next_path("/q/else.log")


class TestKestrelNames:
    def test_golden_names_are_told_apart(self):
        case = json.loads((KESTREL / "q06_names" / "case.json").read_text())
        names = [file["name"] for file in case["files"]]
        expect = case["expect"]
        assert segments.kestrel_segments("test", names) == expect["writer_files"]
        readers = segments.kestrel_readers("test", names)
        assert set(readers) == {"client1", "client2", ""}
        assert sorted(readers.values()) == sorted([*expect["reader_files"], "test.read."])
        assert segments.kestrel_temporaries("test", names) == ["test.read.client1~~"]
        assert segments.kestrel_queues(names) == ["test"]

    def test_segments_are_sorted_by_number_not_by_text(self):
        names = ["q.10", "q.9", "q.009", "q.1321401903634"]
        assert segments.kestrel_segments("q", names) == ["q.009", "q.9", "q.10", "q.1321401903634"]

    @pytest.mark.parametrize(
        "name", ["q.", "q.12.bak", "q.1~~2", "qq.1", "q1", "archive~q.1", "q.-1", "q.¹", "q.lock"]
    )
    def test_what_is_no_segment(self, name):
        assert segments.kestrel_number("q", name) is None

    def test_a_reader_name_may_hold_dots_and_may_be_empty(self):
        assert segments.kestrel_reader("q", "q.read.a.b.1") == "a.b.1"
        assert segments.kestrel_reader("q", "q.read.") == ""
        assert segments.kestrel_reader("q", "q.read.x~") is None
        assert segments.kestrel_reader("q", "q.reader") is None
        assert segments.kestrel_reader_name("q", "a.b") == "q.read.a.b"

    def test_queues_are_those_with_a_segment_or_a_checkpoint(self):
        names = ["b.1", "a.read.x", "c.lock", "archive~d.1", "quarantine", "e.txt", ".1", "f~x.1"]
        assert segments.kestrel_queues(names) == ["a", "b"]

    def test_only_our_own_temporary_files_are_ours_to_delete(self):
        assert segments.kestrel_temporaries("q", ["q.1~~2", "r.1~~2", "q.1", "qq.1~~"]) == [
            "q.1~~2"
        ]

    @pytest.mark.parametrize("name", ["", "a~b", "a/b", "a.b", "a\0b", "q" * 201])
    def test_a_queue_name_that_would_lose_its_files_is_refused(self, name):
        with pytest.raises(UsageError):
            segments.kestrel_segment_name(name, 1)
        with pytest.raises(UsageError):
            segments.kestrel_lock_name(name)

    @pytest.mark.parametrize("name", ["a~b", "../a", "a\0b", "é" * 101])
    def test_a_reader_name_that_would_lose_its_file_is_refused(self, name):
        with pytest.raises(UsageError):
            segments.kestrel_reader_name("q", name)

    def test_archive_and_lock_names(self):
        assert segments.kestrel_archive_name("q.12") == "archive~q.12"
        assert segments.kestrel_lock_name("q") == "q.lock"


class TestKestrelPlan:
    def plan(self, *existing: str, segment_bytes: int = 100) -> KestrelPlan:
        disk = SimulatedDisk()
        disk.make_dirs("/k")
        for name in existing:
            disk.plant(f"/k/{name}", b"")
        clock = ManualClock(NOW_MS * 1_000_000 + 999_999)
        return KestrelPlan(disk, clock, "/k", "q", b"4by.", segment_bytes)

    def test_a_new_journal_is_named_by_the_clock(self):
        assert self.plan().first_path() == f"/k/q.{NOW_MS}"
        assert self.plan("q.read.", "other.5").first_path() == f"/k/q.{NOW_MS}"

    def test_appending_goes_on_in_the_highest_segment(self):
        assert self.plan("q.9", "q.10").first_path() == "/k/q.10"

    def test_the_next_number_is_above_all_others_even_when_the_clock_is_behind(self):
        assert self.plan("q.9").next_path("/k/q.9") == f"/k/q.{NOW_MS}"
        taken = self.plan(f"q.{NOW_MS}")
        assert taken.next_path(f"/k/q.{NOW_MS}") == f"/k/q.{NOW_MS + 1}"
        ahead = self.plan("q.9", f"q.{NOW_MS + 50}")
        assert ahead.next_path("/k/q.9") == f"/k/q.{NOW_MS + 51}"
        with pytest.raises(LogError, match="not a segment"):
            ahead.next_path("/k/q.read.")

    def test_exactly_full_still_fits(self):
        plan = self.plan(segment_bytes=100)
        assert not plan.must_rotate(60, 40)
        assert plan.must_rotate(60, 41)

    def test_an_empty_segment_takes_one_record_of_any_size(self):
        assert not self.plan(segment_bytes=100).must_rotate(4, 10_000)

    def test_golden_rotation(self):
        golden = json.loads((KESTREL / "rotation.json").read_text())
        overhead = golden["put_overhead"]["no_expire"]
        for case in golden["cases"]:
            plan = self.plan(segment_bytes=case["max"])
            files: list[list[int]] = [[]]
            size = len(plan.header)
            for item_id, data_bytes in enumerate(case["item_bytes"], 1):
                if plan.must_rotate(size, overhead + data_bytes):
                    files.append([])
                    size = len(plan.header)
                files[-1].append(item_id)
                size += overhead + data_bytes
            assert files == case["files"]
