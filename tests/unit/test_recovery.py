"""Reading past damage, repairing files, and the report about both."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from journeyman.disk import RealDisk
from journeyman.errors import LogFull
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Entry
from journeyman.logs import recovery
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.recovery import (
    FileReport,
    RecoveryReport,
    inspect_file,
    recover_entries,
    recover_file,
)
from tests.support.simulated_disk import SimulatedDisk
from tests.support.specimens import DIALECTS, DIRECTORY, KESTREL, WORKQ, ZTICK, Dialect

GOLDEN = Path(__file__).parent.parent / "golden" / "data"


def planted(dialect: Dialect, data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.plant(dialect.path, data)
    return disk


def quarantined(disk: SimulatedDisk) -> dict[str, bytes]:
    where = f"{DIRECTORY}/quarantine"
    if not disk.is_dir(where):
        return {}
    return {name: disk.read_bytes(f"{where}/{name}") for name in disk.list_dir(where)}


def recover(dialect: Dialect, data: bytes) -> tuple[SimulatedDisk, list[Any], FileReport]:
    """The disk afterwards, the records found, and the report."""
    disk = planted(dialect, data)
    entries, report = recover_file(disk, dialect.codec, dialect.path)
    return disk, [entry.record for entry in entries], report


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
class TestEveryDialect:
    def test_a_clean_log_is_left_alone(self, dialect):
        records = dialect.records(5)
        data = dialect.encode(records)
        disk = planted(dialect, data)
        entries, report = recover_file(disk, dialect.codec, dialect.path)
        assert [e.record for e in entries] == records
        assert report.clean
        assert (report.size, report.records, report.lost_at_least) == (len(data), 5, 0)
        assert disk.operations == 0
        assert disk.files() == {dialect.path: data}

    def test_a_torn_tail_is_put_aside_and_cut(self, dialect):
        records = dialect.records(5)
        whole = dialect.encode(records[:4])
        data = dialect.encode(records)[:-2]
        disk, found, report = recover(dialect, data)
        assert found == records[:4]
        assert disk.read_bytes(dialect.path) == whole
        name = f"{dialect.file}.{len(whole)}-{len(data)}"
        assert quarantined(disk) == {name: data[len(whole) :]}
        assert report.quarantined == (f"{DIRECTORY}/quarantine/{name}",)
        (damage,) = report.damages
        assert (damage.file, damage.kind) == (dialect.path, "torn")
        assert (damage.offset, damage.end) == (len(whole), len(data))
        assert (report.saved_after_damage, report.lost_at_least, report.gone) == (0, 0, False)

    def test_zeros_at_the_end_are_cut_and_not_copied(self, dialect):
        records = dialect.records(3)
        whole = dialect.encode(records)
        disk, found, report = recover(dialect, whole + bytes(5000))
        assert found == records
        assert disk.files() == {dialect.path: whole}
        assert [d.kind for d in report.damages] == ["padding"]
        assert report.damages[0].length == 5000
        assert report.lost_at_least == 0

    def test_damage_in_the_middle_is_put_aside_and_what_follows_is_saved(self, dialect):
        records = dialect.records(8)
        data = bytearray(dialect.encode(records))
        begin = len(dialect.encode(records[:3]))
        end = len(dialect.encode(records[:4]))
        data[begin:end] = b"\xee" * (end - begin)
        disk, found, report = recover(dialect, bytes(data))
        assert found == records[:3] + records[4:]
        assert disk.read_bytes(dialect.path) == dialect.encode(found)
        assert quarantined(disk) == {f"{dialect.file}.{begin}-{end}": b"\xee" * (end - begin)}
        assert [(d.kind, d.offset, d.end) for d in report.damages] == [("corrupt", begin, end)]
        assert (report.records, report.saved_after_damage, report.lost_at_least) == (7, 4, 1)

    def test_a_hole_of_zeros_in_the_middle_is_its_own_kind(self, dialect):
        records = dialect.records(8)
        begin, end = (len(dialect.encode(records[:n])) for n in (3, 4))
        data = bytearray(dialect.encode(records))
        data[begin:end] = bytes(end - begin)
        disk, found, report = recover(dialect, bytes(data))
        assert found == records[:3] + records[4:]
        assert disk.files() == {dialect.path: dialect.encode(found)}
        assert [(d.kind, d.offset, d.end) for d in report.damages] == [("padding", begin, end)]
        assert report.lost_at_least == 1

    def test_offsets_are_those_in_the_repaired_file(self, dialect):
        records = dialect.records(8)
        data = bytearray(dialect.encode(records))
        begin, end = (len(dialect.encode(records[:n])) for n in (3, 4))
        data[begin:end] = b"\xee" * (end - begin)
        disk = planted(dialect, bytes(data))
        entries, _ = recover_file(disk, dialect.codec, dialect.path)
        again, report = recover_file(disk, dialect.codec, dialect.path)
        assert entries == again
        assert report.clean

    def test_inspecting_reports_the_same_and_changes_nothing(self, dialect):
        data = bytearray(dialect.encode(dialect.records(8)))
        middle = len(data) // 2
        data[middle : middle + 10] = b"\xee" * 10
        data += b"\xee\xee"
        disk = planted(dialect, bytes(data))
        seen: list[Entry[Any]] = []
        report = inspect_file(disk, dialect.codec, dialect.path, seen.append)
        assert disk.operations == 0
        entries, recovered = recover_file(disk, dialect.codec, dialect.path)
        assert report.damages == recovered.damages
        assert report.records == recovered.records == len(seen)
        assert [e.record for e in seen] == [e.record for e in entries]
        assert report.quarantined == ()

    def test_the_report_of_a_damaged_file_becomes_json(self, dialect):
        _, _, report = recover(dialect, dialect.encode(dialect.records(3))[:-1])
        whole = RecoveryReport((report, report))
        assert not whole.clean
        assert (whole.records, whole.saved_after_damage, whole.lost_at_least) == (4, 0, 0)
        assert whole.damages == report.damages * 2
        parsed = json.loads(json.dumps(whole.as_dict()))
        assert parsed["clean"] is False
        assert parsed["files"][0]["damages"][0]["kind"] == "torn"
        assert parsed["files"][0]["quarantined"] == list(report.quarantined)


class TestHeaders:
    @pytest.mark.parametrize("dialect", [WORKQ, KESTREL], ids=lambda d: d.name)
    def test_records_behind_a_bad_header_are_saved_with_a_good_one(self, dialect):
        records = dialect.records(4)
        data = bytearray(dialect.encode(records))
        data[1] ^= 0xFF
        disk, found, report = recover(dialect, bytes(data))
        assert found == records
        assert disk.read_bytes(dialect.path) == dialect.encode(records)
        size = len(dialect.codec.header)
        assert quarantined(disk) == {f"{dialect.file}.0-{size}": bytes(data[:size])}
        assert [d.kind for d in report.damages] == ["bad-header"]
        assert (report.saved_after_damage, report.lost_at_least, report.gone) == (4, 0, False)

    @pytest.mark.parametrize("dialect", [WORKQ, KESTREL], ids=lambda d: d.name)
    def test_a_foreign_file_is_moved_aside_whole(self, dialect):
        disk, found, report = recover(dialect, b"#!/bin/sh\necho this is no log\n")
        assert found == []
        assert not disk.exists(dialect.path)
        assert quarantined(disk) == {f"{dialect.file}.0-30": b"#!/bin/sh\necho this is no log\n"}
        assert report.gone
        assert [d.kind for d in report.damages] == ["bad-header"]

    @pytest.mark.parametrize("dialect", [WORKQ, KESTREL], ids=lambda d: d.name)
    def test_a_header_cut_short_is_torn(self, dialect):
        disk, found, report = recover(dialect, dialect.codec.header[:3])
        assert (found, report.gone) == ([], True)
        assert quarantined(disk) == {f"{dialect.file}.0-3": dialect.codec.header[:3]}
        assert [d.kind for d in report.damages] == ["torn"]

    @pytest.mark.parametrize("dialect", [WORKQ, KESTREL], ids=lambda d: d.name)
    @pytest.mark.parametrize("data", [b"", bytes(4096)], ids=["empty", "zeros"])
    def test_a_file_that_never_got_a_header_is_removed(self, dialect, data):
        disk, found, report = recover(dialect, data)
        assert (found, report.gone, report.clean) == ([], True, False)
        assert disk.files() == {}
        assert report.lost_at_least == 0

    def test_a_headerless_format_may_be_empty(self):
        disk, found, report = recover(ZTICK, b"")
        assert (found, report.clean) == ([], True)
        assert disk.exists(ZTICK.path)

    def test_a_foreign_file_in_a_headerless_format_is_emptied_into_quarantine(self):
        foreign = b"\xff" * 100
        disk, found, report = recover(ZTICK, foreign)
        assert found == []
        assert disk.files() == {
            ZTICK.path: b"",
            f"{DIRECTORY}/quarantine/{ZTICK.file}.0-100": foreign,
        }
        assert [d.kind for d in report.damages] == ["corrupt"]


class TestGuessing:
    def test_a_frame_with_bad_content_is_skipped(self):
        records = ZTICK.records(6)
        begin, end = (len(ZTICK.encode(records[:n])) for n in (2, 3))
        data = bytearray(ZTICK.encode(records))
        data[begin + 4] = 9  # no such entry type; the frame's length is as it was
        _, found, report = recover(ZTICK, bytes(data))
        assert found == records[:2] + records[3:]
        assert [(d.offset, d.end) for d in report.damages] == [(begin, end)]

    @pytest.mark.parametrize("count", [2, 3, 4, 40])
    def test_frames_with_bad_content_in_a_row_are_skipped_one_by_one(self, count):
        records = ZTICK.records(count + 4)
        starts = [len(ZTICK.encode(records[:n])) for n in range(len(records))]
        data = bytearray(ZTICK.encode(records))
        for start in starts[2 : 2 + count]:
            data[start + 4] = 9
        _, found, report = recover(ZTICK, bytes(data))
        assert found == records[:2] + records[2 + count :]
        assert [d.offset for d in report.damages] == starts[2 : 2 + count]
        assert report.lost_at_least == count

    def test_a_length_that_reaches_over_good_entries_is_not_followed(self):
        records = ZTICK.records(9)
        starts = [len(ZTICK.encode(records[:n])) for n in range(len(records))]
        data = bytearray(ZTICK.encode(records))
        data[starts[2] : starts[2] + 4] = struct.pack(">I", starts[6] - starts[2] - 4)
        _, found, report = recover(ZTICK, bytes(data))
        assert found == records[:2] + records[3:]
        assert [(d.offset, d.end) for d in report.damages] == [(starts[2], starts[3])]

    def test_salvage_finds_an_entry_that_stands_alone(self):
        for dialect in (ZTICK, KESTREL):
            records = dialect.records(7)
            starts = [len(dialect.encode(records[:n])) for n in range(len(records))]
            data = bytearray(dialect.encode(records))
            for number in (2, 4):
                length = starts[number + 1] - starts[number]
                data[starts[number] : starts[number + 1]] = b"\xee" * length
            plain = list(read_past_damage(dialect.codec, bytes(data)))
            more = list(read_past_damage(dialect.codec, bytes(data), salvage=True))
            alone = records[3]
            assert alone not in [each.record for each in plain if isinstance(each, Entry)]
            assert [each.record for each in more if isinstance(each, Entry)] == (
                [*records[:2], alone, *records[5:]]
            )

    def test_salvage_searches_a_torn_tail(self):
        inner = b"".join(KESTREL.codec.encode(KESTREL.record(n)) for n in range(500, 505))
        data = KESTREL.encode([kestrel.ItemPut(1, 0, None, 0, inner)])[:-3]
        found = list(read_past_damage(KESTREL.codec, data, salvage=True))
        assert [each.record for each in found if isinstance(each, Entry)] == [
            KESTREL.record(n) for n in range(500, 504)
        ]

    def test_records_inside_a_torn_payload_are_not_records(self):
        """A queue may carry journals of other queues as its items."""
        inner = b"".join(KESTREL.codec.encode(KESTREL.record(n)) for n in range(500, 520))
        outer = kestrel.ItemPut(1, 0, None, 0, inner)
        data = KESTREL.encode([outer])
        _, found, report = recover(KESTREL, data[:-3])
        assert found == []
        assert [d.kind for d in report.damages] == ["torn"]

    def test_records_inside_the_last_whole_payload_do_not_unseat_it(self):
        inner = KESTREL.encode(KESTREL.records(20))[len(KESTREL.codec.header) :]
        outer = kestrel.ItemPut(1, 0, None, 0, inner)
        later = [kestrel.ItemPut(n, 0, None, 0, b"later") for n in (3, 4, 5)]
        data = KESTREL.encode([outer]) + b"\xee" * 30
        data += KESTREL.encode(later)[len(KESTREL.codec.header) :]
        _, found, report = recover(KESTREL, data)
        assert found == [outer, *later]
        assert [d.length for d in report.damages] == [30]

    def test_golden_torn_entry_with_later_ones_glued_on(self):
        data = (GOLDEN / "ztick" / "e4_torn_then_appended.log").read_bytes()
        disk, found, report = recover(ZTICK, data)
        names = [record.identifier for record in found]
        assert names[-3:] == ["after.0", "after.1", "after.2"]
        assert not any(name.startswith("torn.3") for name in names)
        (damage,) = report.damages
        assert damage.kind == "torn"
        assert "begin inside" in damage.reason
        assert report.saved_after_damage == 3
        assert list(quarantined(disk).values()) == [data[damage.offset : damage.end]]
        assert b"torn.3" in data[damage.offset : damage.end]

    @pytest.mark.parametrize("missing", range(1, 9))
    def test_a_job_cut_short_in_its_time_with_others_glued_on(self, missing):
        """Such an entry decodes, its missing bytes taken from the beginning of the next one."""
        records = [ztick.JobSet(f"job.{n}", 10**18 + n, ztick.Status.PLANNED) for n in range(7)]
        data = ZTICK.encode(records[:3])[:-missing] + ZTICK.encode(records[3:])
        _, found, report = recover(ZTICK, data)
        assert found == records[:2] + records[3:]
        (damage,) = report.damages
        assert damage.length == len(ZTICK.encode(records[2:3])) - missing
        assert report.saved_after_damage == 4

    def test_an_item_grown_by_damage_gives_back_what_it_swallowed(self):
        records = KESTREL.records(200)
        data = bytearray(KESTREL.encode(records))
        starts = [len(KESTREL.encode(records[:n])) for n in range(201)]
        data[starts[20] + 2] += 8  # the second byte of its size: 2 KiB more
        data[starts[40] : starts[41]] = b"\xee" * (starts[41] - starts[40])
        _, found, report = recover(KESTREL, bytes(data))
        assert found == records[:20] + records[21:40] + records[41:]
        assert [(d.offset, d.end) for d in report.damages] == [
            (starts[20], starts[21]),
            (starts[40], starts[41]),
        ]

    def test_an_item_that_carries_a_piece_of_a_journal_is_not_taken_for_damage(self):
        """Its entries run across the damage behind it, but lead nowhere from there."""
        inner = b"".join(KESTREL.codec.encode(KESTREL.record(n)) for n in (500, 501))
        inner += KESTREL.codec.encode(kestrel.ItemPut(503, 1_700_000_000_000, None, 0, b"i" * 60))
        outer = kestrel.ItemPut(1, 1_700_000_000_000, None, 0, inner[:-40])
        later = [kestrel.ItemPut(n, 1_700_000_000_000, None, 0, b"a" * 80) for n in (3, 4, 5)]
        data = KESTREL.encode([outer]) + b"\xee" * 7
        data += b"".join(map(KESTREL.codec.encode, later))
        _, found, report = recover(KESTREL, data)
        assert found == [outer, *later]
        assert [d.length for d in report.damages] == [7]

    def test_a_file_made_to_lead_astray_again_and_again_is_read_in_bounded_time(self):
        """Each large item leads into damage that the next one, inside it, runs across."""
        steps = 2000
        block = len(KESTREL.codec.encode(kestrel.ItemPut(1, 0, None, 0, b""))) * 2 + 5
        large, blocks = b"", b""
        for step in range(steps):
            size = 25 * (steps - step - 1) + block * step
            large += b"\x86" + struct.pack("<iiqq", size, 0, step + 1, 0)
            for item_id in (10_000 + 2 * step, 10_001 + 2 * step):
                blocks += KESTREL.codec.encode(kestrel.ItemPut(item_id, 0, None, 0, b""))
            blocks += b"\xee" * 5
        data = KESTREL.encode([]) + large + blocks
        codec = CountingCodec()
        damages = [i for i in read_past_damage(codec, data) if isinstance(i, Damage)]
        assert sum("inside" in damage.reason for damage in damages) > 1, "it does lead astray"
        assert codec.decoded_bytes < 30 * len(data)


class CountingCodec(type(kestrel.WRITER)):  # type: ignore[misc]
    """Kestrel's, adding up what was decoded."""

    def __init__(self) -> None:
        super().__init__(kestrel.WRITER_MAGIC, "journal")
        self.decoded_bytes = 0

    def decode(self, data, offset):
        entry = super().decode(data, offset)
        self.decoded_bytes += entry.length if entry is not None else 0
        return entry


class TestQuarantine:
    def test_the_same_bytes_are_kept_once(self):
        data = ZTICK.encode(ZTICK.records(3))[:-1]
        disk, _, report = recover(ZTICK, data)
        disk.plant(ZTICK.path, data)
        _, again = recover_file(disk, ZTICK.codec, ZTICK.path)
        assert again.quarantined == report.quarantined
        assert len(quarantined(disk)) == 1

    def test_a_copy_left_by_a_process_that_died_is_made_durable(self):
        """It was killed between writing the copy and syncing it; the machine lost no power."""
        data = ZTICK.encode(ZTICK.records(3))[:-1]
        undisturbed, _, report = recover(ZTICK, data)
        (aside,) = report.quarantined
        disk = planted(ZTICK, data)
        disk.make_dirs(f"{DIRECTORY}/quarantine")
        disk.open_append(aside).write(undisturbed.read_bytes(aside))
        recover_file(disk, ZTICK.codec, ZTICK.path)
        assert disk.after_crash("lose_all_unsynced").files() == undisturbed.files()

    def test_other_bytes_of_the_same_place_get_another_name(self):
        records = ZTICK.records(3)
        disk, _, first = recover(ZTICK, ZTICK.encode(records)[:-1])
        for last in (ZTICK.record(7), ZTICK.record(8)):
            data = ZTICK.encode([*records[:2], last])
            size = first.size
            disk.plant(ZTICK.path, data[:size].ljust(size, b"\xff"))
            recover_file(disk, ZTICK.codec, ZTICK.path)
        (name,) = first.quarantined
        names = sorted(quarantined(disk))
        stem = name.rpartition("/")[2]
        assert names == [stem, f"{stem}.2", f"{stem}.3"]
        assert len(set(quarantined(disk).values())) == 3

    def test_a_whole_file_moved_aside_twice_is_kept_once(self):
        foreign = b"not a log at all"
        disk, _, report = recover(WORKQ, foreign)
        disk.plant(WORKQ.path, foreign)
        _, again = recover_file(disk, WORKQ.codec, WORKQ.path)
        assert again.quarantined == report.quarantined
        assert quarantined(disk) == {f"{WORKQ.file}.0-16": foreign}
        assert not disk.exists(WORKQ.path)

    def test_adjoining_stretches_share_one_file(self):
        records = ZTICK.records(4)
        data = bytearray(ZTICK.encode(records)[:-1])
        begin = len(ZTICK.encode(records[:2]))
        data[begin + 4] = 9  # no such entry type, and behind it an entry cut short
        disk, found, report = recover(ZTICK, bytes(data))
        assert found == records[:2]
        assert [d.kind for d in report.damages] == ["corrupt", "torn"]
        assert quarantined(disk) == {f"{ZTICK.file}.{begin}-{len(data)}": bytes(data[begin:])}
        assert disk.read_bytes(ZTICK.path) == bytes(data[:begin])

    def test_a_file_damaged_all_over_is_copied_aside_whole(self, monkeypatch):
        monkeypatch.setattr(recovery, "MAX_STRETCHES", 3)
        monkeypatch.setattr(recovery, "MAX_LISTED_DAMAGES", 4)
        records = WORKQ.records(20)
        data = bytearray(WORKQ.encode(records))
        for number in range(1, 20, 2):
            data[len(WORKQ.encode(records[:number])) + 20] ^= 0xFF
        disk, found, report = recover(WORKQ, bytes(data))
        assert found == records[::2]
        assert quarantined(disk) == {f"{WORKQ.file}.0-{len(data)}": bytes(data)}
        assert (report.damage_count, len(report.damages), report.lost_at_least) == (10, 4, 10)
        assert disk.read_bytes(WORKQ.path) == WORKQ.encode(found)

    def test_a_full_disk_leaves_the_file_as_it_was(self):
        data = WORKQ.encode(WORKQ.records(5))[:-1]
        damaged = bytearray(WORKQ.encode(WORKQ.records(5)))
        damaged[60] ^= 1
        for content in (data, bytes(damaged)):
            for room in range(1, len(content) + 8):
                disk = planted(WORKQ, content)
                disk.capacity = disk.used + room
                try:
                    recover_file(disk, WORKQ.codec, WORKQ.path)
                except LogFull:
                    assert disk.read_bytes(WORKQ.path) == content
                    assert not any("~~" in path for path in disk.files()), "no half-written files"
            disk.capacity = None
            entries, _ = recover_file(disk, WORKQ.codec, WORKQ.path)
            assert len(entries) == 4

    def test_a_rewrite_that_was_cut_short_is_cleared_away(self):
        data = ZTICK.encode(ZTICK.records(3))
        disk = planted(ZTICK, data)
        disk.plant(f"{ZTICK.path}~~recovering", b"half")
        recover_file(disk, ZTICK.codec, ZTICK.path)
        assert disk.files() == {ZTICK.path: data}


class TestBigFiles:
    def test_chunks_meet_end_to_end_on_a_real_disk(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recovery, "CHUNK_BYTES", 7)
        monkeypatch.setattr("journeyman.logs.recovery.CHUNK_BYTES", 7)
        records = WORKQ.records(30)
        data = bytearray(WORKQ.encode(records))
        begin, end = (len(WORKQ.encode(records[:n])) for n in (10, 12))
        data[begin:end] = b"\xee" * (end - begin)
        path = tmp_path / "000000001.log"
        path.write_bytes(bytes(data))
        disk = RealDisk()
        seen: list[Entry[Any]] = []
        report = recover_entries(disk, WORKQ.codec, str(path), seen.append)
        assert [e.record for e in seen] == records[:10] + records[12:]
        assert path.read_bytes() == WORKQ.encode(records[:10] + records[12:])
        (aside,) = report.quarantined
        assert Path(aside).read_bytes() == b"\xee" * (end - begin)
        assert recover_entries(disk, WORKQ.codec, str(path)).clean

    def test_a_long_zero_tail_is_skipped_in_leaps(self):
        """16 MiB as a mapped segment leaves it; a byte-wise search would take minutes."""
        records = KESTREL.records(3)
        data = KESTREL.encode(records) + bytes(16 * 1024 * 1024)
        items = list(read_past_damage(kestrel.WRITER, data))
        assert [i.record for i in items if isinstance(i, Entry)] == records
        data += KESTREL.codec.encode(KESTREL.record(3)) + KESTREL.codec.encode(KESTREL.record(4))
        items = list(read_past_damage(kestrel.WRITER, data))
        assert [i.kind for i in items if isinstance(i, Damage)] == ["padding"]
        assert len(items) == 6


class TestGoldenDamage:
    """Files damaged by hand or by the originals' bugs."""

    @pytest.mark.parametrize(
        ("case", "kept", "kinds"),
        [
            ("d-truncated-crc", 33, ["torn"]),
            ("d-truncated-payload", 33, ["torn"]),
            ("d-truncated-time", 33, ["torn"]),
            ("d-truncated-at-boundary", 33, []),
            ("d-header-only", 0, []),
            ("d-header-short", 0, ["torn"]),
            ("d-empty-file", 0, ["torn"]),
            ("e-bad-magic", 34, ["bad-header"]),
            ("e-bad-version", 34, ["bad-header"]),
            ("e-crc-flipped-last", 33, ["corrupt"]),
            ("e-crc-flipped-middle", 33, ["corrupt"]),
            ("e-payload-flipped", 33, ["corrupt"]),
            ("x-crc-ieee", 0, ["corrupt"]),
            ("x-trailing-garbage", 1, ["corrupt"]),
            ("x-unknown-type", 2, []),
        ],
    )
    def test_workq(self, case, kept, kinds):
        data = (GOLDEN / "workq" / case / "cmdlog" / "000000001.log").read_bytes()
        _, found, report = recover(WORKQ, data)
        assert len(found) == kept
        assert [d.kind for d in report.damages] == kinds

    @pytest.mark.parametrize(
        ("case", "kinds"),
        [
            ("e1_truncated_in_frame", ["torn"]),
            ("e3_truncated_after_header", ["torn"]),
            ("h_empty", []),
            ("a_all_entry_types", []),
        ],
    )
    def test_ztick(self, case, kinds):
        data = (GOLDEN / "ztick" / f"{case}.log").read_bytes()
        dumped = (GOLDEN / "ztick" / f"{case}.dump.txt").read_text().splitlines()
        _, found, report = recover(ZTICK, data)
        assert len(found) == len(dumped)
        assert [d.kind for d in report.damages] == kinds

    def test_a_length_beyond_belief_costs_only_its_own_entry(self):
        data = (GOLDEN / "ztick" / "g2_huge_length_synthetic.log").read_bytes()
        disk, found, report = recover(ZTICK, data)
        assert [record.identifier for record in found] == ["a", "b"]
        assert (report.saved_after_damage, report.lost_at_least) == (1, 1)
        assert list(quarantined(disk).values()) == [b"\xff\xff\xff\xff"]

    def test_kestrel_endings(self):
        seen = set()
        for case in sorted((GOLDEN / "kestrel").glob("w*/case.json")):
            described = json.loads(case.read_text())["files"][0]
            data = (case.parent / described["name"]).read_bytes()
            _, found, report = recover(KESTREL, data)
            reason = described["end"]["reason"]
            seen.add(reason)
            assert len(found) >= len(described["records"]), case.parent.name
            if reason == "eof":
                assert report.clean, case.parent.name
            elif reason == "zero-byte":
                assert [d.kind for d in report.damages] in (["padding"], ["torn"])
            else:
                assert not report.clean, case.parent.name
        assert seen >= {"eof", "zero-byte", "corrupt", "bad-magic"}


def test_a_damage_knows_its_end_and_becomes_json():
    damage = Damage("/f", 3, 4, "corrupt", "why")
    assert damage.end == 7
    assert damage.as_dict() == {
        "file": "/f",
        "offset": 3,
        "length": 4,
        "kind": "corrupt",
        "reason": "why",
    }


def test_entries_and_damages_lie_end_to_end():
    data = bytearray(WORKQ.encode(WORKQ.records(6)))
    data[40] ^= 1
    data += b"\x01torn"
    items = list(read_past_damage(workq.CODEC, bytes(data)))
    offset = len(workq.HEADER)
    for item in items:
        assert item.offset == offset
        offset = item.end
    assert offset == len(data)
