"""The journal of a kestrel queue: ids, rotation, checkpoints, retention."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.errors import EncodeError, LogClosed, LogError, LogFull, LogLocked, UsageError
from journeyman.folds import Anomaly, AnomalyKind
from journeyman.folds.kestrel import MAX_PLAUSIBLE_ID, Reader
from journeyman.formats.framing import scan
from journeyman.formats.kestrel import (
    MAX_DATA_BYTES,
    READER,
    WRITER,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)
from journeyman.logs.kestrel.log import KestrelLog, remove_stale_locks
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.unsealed import scan_records, without_seals

DIRECTORY = "/spool"
NOW_MS = 1_700_000_000_000
NEW_CHECKPOINT = bytes.fromhex("263c2603 020000000000000000 9100000000")


def item(item_id: int, data: bytes = b"") -> ItemPut:
    return ItemPut(item_id, NOW_MS, None, 0, data or b"item %d" % item_id)


def segment(*ids: int) -> bytes:
    return WRITER.header + b"".join(WRITER.encode(item(item_id)) for item_id in ids)


def checkpoint(head: int, *done: int) -> bytes:
    return READER.header + READER.encode(ReadHead(head)) + READER.encode(ReadDone(done))


def planted(files: dict[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, data in files.items():
        disk.plant(f"{DIRECTORY}/{name}", data)
    return disk


def opened(disk: SimulatedDisk, **options) -> KestrelLog:
    return KestrelLog.open(disk, ManualClock(), DIRECTORY, "jobs", **options)


def put(journal: KestrelLog, *data: bytes) -> list[int]:
    return [journal.put(each).item_id for each in data]


def ids(journal: KestrelLog, after: int = 0) -> list[int]:
    return [put_item.item_id for put_item in journal.items(after)]


def names(disk: SimulatedDisk) -> list[str]:
    others = ("jobs.lock", "quarantine", ".index")
    return [name for name in disk.list_dir(DIRECTORY) if name not in others]


def records_in(disk: SimulatedDisk, name: str) -> list[Record]:
    codec = READER if ".read." in name else WRITER
    entries, ending = scan_records(codec, disk.read_bytes(f"{DIRECTORY}/{name}"))
    assert ending.clean
    return [entry.record for entry in entries]


# -- opening ---------------------------------------------------------------------------------


def test_a_new_queue_has_a_segment_and_a_default_reader_before_its_first_item():
    disk = SimulatedDisk()
    with opened(disk, seal=False) as journal:
        assert (journal.tail, journal.next_id) == (0, 1)
        assert journal.readers == {"": Reader(0)}
    assert disk.after_crash("lose_all_unsynced").files() == {
        f"{DIRECTORY}/jobs.{NOW_MS}": WRITER.header,
        f"{DIRECTORY}/jobs.read.": NEW_CHECKPOINT,
        f"{DIRECTORY}/jobs.lock": b"",
    }


def test_items_put_before_the_first_checkpoint_are_not_behind_the_default_reader():
    """The original makes a missing default reader at the tail, at every start."""
    disk = SimulatedDisk()
    with opened(disk) as journal:
        put(journal, b"one", b"two")
    with opened(disk) as journal:
        assert journal.readers == {"": Reader(0)}
        assert ids(journal) == [1, 2]


def test_a_second_process_is_told_why_it_cannot_have_the_queue():
    disk = SimulatedDisk()
    with opened(disk):
        with pytest.raises(LogLocked) as refused:
            opened(disk)
        assert str(refused.value) == f"{DIRECTORY}: another process has queue jobs open"
        KestrelLog.open(disk, ManualClock(), DIRECTORY, "other").close()
    opened(disk).close()


def test_a_queue_that_cannot_be_opened_stays_free_for_the_next_attempt():
    disk = SimulatedDisk()
    disk.fail("rename")
    with pytest.raises(OSError, match="Input/output"):
        opened(disk)
    opened(disk).close()


@pytest.mark.parametrize("queue", ["", "a.b", "a/b", "a~b"])
def test_a_queue_whose_files_could_not_be_told_apart_is_refused(queue):
    with pytest.raises(UsageError):
        KestrelLog.open(SimulatedDisk(), ManualClock(), DIRECTORY, queue)


def test_segments_are_read_in_order_of_their_ids_whatever_their_numbers():
    disk = planted({"jobs.1": segment(3, 4), "jobs.2": segment(1, 2)})
    with opened(disk) as journal:
        assert ids(journal) == [1, 2, 3, 4]
        assert put(journal, b"five") == [5]
        assert ids(journal) == [1, 2, 3, 4, 5]
    # The newest item is in neither: after it, numbers and ids go the same way again.
    assert records_in(disk, "jobs.2") == [item(1), item(2)]
    assert records_in(disk, "jobs.1") == [item(3), item(4)]


def test_numbers_are_compared_as_numbers():
    disk = planted({"jobs.9": segment(1), "jobs.10": segment(2), "jobs.read.": checkpoint(0)})
    with opened(disk) as journal:
        assert put(journal, b"three") == [3]
    assert len(records_in(disk, "jobs.10")) == 2


def test_unfinished_files_of_this_queue_alone_are_removed():
    disk = planted(
        {
            "jobs.1": segment(1),
            "jobs.read.a": checkpoint(0),
            "jobs.read.a~~17": b"half",
            "jobs.1~~recovering": b"half",
            "other.read.a~~17": b"not ours",
            "jobs2.read.a~~17": b"not ours",
        }
    )
    opened(disk).close()
    assert names(disk) == [
        *("jobs.1", "jobs.read.a"),
        *("jobs2.read.a~~17", "other.read.a~~17"),
    ]


def test_a_zero_tail_is_cut_and_the_segment_gone_on_with():
    disk = planted({"jobs.1": segment(1, 2) + bytes(500), "jobs.read.": checkpoint(0)})
    with opened(disk) as journal:
        assert put(journal, b"item 3") == [3]
    written = disk.read_bytes(f"{DIRECTORY}/jobs.1")
    assert without_seals(WRITER, written) == segment(1, 2, 3)


def test_damage_is_put_aside_and_readers_step_over_the_gap():
    damaged = segment(1, 2) + b"\x97" + b"\xee" * 30 + segment(4, 5)[4:]
    disk = planted({"jobs.1": damaged, "jobs.2": segment(6), "jobs.read.": checkpoint(1)})
    with opened(disk) as journal:
        assert journal.recovery.lost_at_least == 1
        assert ids(journal, after=1) == [2, 4, 5, 6]


def test_a_foreign_file_under_a_segments_name_is_moved_aside():
    disk = planted({"jobs.1": b"%PDF-1.4 ...", "jobs.2": segment(1), "jobs.read.": checkpoint(0)})
    with opened(disk) as journal:
        assert ids(journal) == [1]
    assert disk.read_bytes(f"{DIRECTORY}/quarantine/jobs.1.0-12") == b"%PDF-1.4 ..."
    assert names(disk) == ["jobs.2", "jobs.read."]


def test_an_empty_segment_in_the_middle_goes_and_one_at_the_end_is_used():
    disk = planted(
        {
            "jobs.1": WRITER.header,
            "jobs.2": segment(1),
            "jobs.3": WRITER.header,
            "jobs.read.": checkpoint(0),
        }
    )
    with opened(disk) as journal:
        put(journal, b"item 2")
    assert names(disk) == ["jobs.2", "jobs.3", "jobs.read."]
    assert without_seals(WRITER, disk.read_bytes(f"{DIRECTORY}/jobs.3")) == segment(2)


def test_records_of_another_version_are_kept_where_they_are():
    strange = WRITER.encode(UnknownCommand(0x31, b"\1\2\3\4", b""))
    disk = planted({"jobs.1": WRITER.header + strange, "jobs.2": segment(1)})
    with opened(disk) as journal:
        assert ids(journal) == [1]
    assert disk.read_bytes(f"{DIRECTORY}/jobs.1") == WRITER.header + strange


# -- ids and rotation ------------------------------------------------------------------------


def test_ids_grow_by_one_and_go_on_after_reopening():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        assert put(journal, b"a", b"b", b"c") == [1, 2, 3]
    with opened(disk) as journal:
        assert journal.next_id == 4
        assert put(journal, b"d") == [4]


def test_an_item_keeps_its_fields():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        journal.put(b"data", add_time_ms=5, expire_time_ms=9, error_count=2)
        journal.put(b"now")
        assert list(journal.items()) == [
            ItemPut(1, 5, 9, 2, b"data"),
            ItemPut(2, NOW_MS, None, 0, b"now"),
        ]


@pytest.mark.parametrize(
    "files",
    [
        {"jobs.1": segment(390, 400), "jobs.read.a": checkpoint(402)},
        {"jobs.1": segment(390, 400), "jobs.read.a": checkpoint(390, 395, 402)},
        {"jobs.read.a": checkpoint(402), "jobs.read.b": checkpoint(3)},
    ],
    ids=["ahead", "finished ahead", "no items left"],
)
def test_no_id_is_given_out_again_that_any_reader_has_seen(files):
    """Else the reader would take the new item for the one it has finished, and skip it."""
    disk = planted(files)
    with opened(disk) as journal:
        assert put(journal, b"new") == [403]
    with opened(disk) as journal:
        assert list(journal.readers["a"].undelivered(ids(journal)))[-1] == 403


def test_the_id_of_an_item_that_was_refused_is_not_used_up():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        put(journal, b"one")
        with pytest.raises(EncodeError):
            journal.put(bytes(MAX_DATA_BYTES + 1))
        assert journal.next_id == 2


def test_ids_of_items_that_found_no_room_are_given_to_the_next_ones():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        put(journal, b"one")
        disk.fail("write", error=errno.ENOSPC, partial=5)
        with pytest.raises(LogFull):
            journal.put(b"two")
        assert journal.tail == 1
        assert put(journal, b"two again") == [2]
        assert ids(journal) == [1, 2]


def test_a_segment_is_left_when_the_next_item_would_not_fit():
    disk = SimulatedDisk()
    with opened(disk, segment_bytes=4 + 2 * (25 + 10), seal=False) as journal:
        put(journal, *(bytes(10) for _ in range(5)))
        assert [(s.first_id, s.last_id, s.items) for s in journal.segments] == [
            *((1, 2, 2), (3, 4, 2), (5, 5, 1)),
        ]
    assert [name for name in names(disk) if "read" not in name] == [
        f"jobs.{NOW_MS + n}" for n in range(3)
    ]


def test_an_item_too_large_for_any_segment_has_one_to_itself():
    disk = SimulatedDisk()
    with opened(disk, segment_bytes=100) as journal:
        put(journal, bytes(10), bytes(5000), bytes(10))
        assert [segment.items for segment in journal.segments] == [1, 1, 1]
    with opened(disk) as journal:
        assert [len(put_item.data) for put_item in journal.items()] == [10, 5000, 10]


def test_a_clock_that_was_set_back_does_not_put_new_segments_before_old_ones():
    disk = SimulatedDisk()
    clock = ManualClock()
    with KestrelLog.open(disk, clock, DIRECTORY, "jobs", segment_bytes=50) as journal:
        put(journal, bytes(20))
        clock.step_wall(-3600 * 10**9)
        put(journal, bytes(20), bytes(20))
        numbers = [int(s.path.rpartition(".")[2]) for s in journal.segments]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3


def test_a_closed_journal_takes_nothing_more():
    journal = opened(SimulatedDisk())
    journal.close()
    with pytest.raises(LogClosed):
        journal.put(b"late")
    assert journal.next_id == 1


# -- readers and checkpoints -----------------------------------------------------------------


def test_a_checkpoint_holds_head_and_finished_ids_in_order_and_is_durable():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        journal.checkpoint("", Reader(1, {4, 3}))
        after = disk.after_crash("lose_all_unsynced")
        assert records_in(after, "jobs.read.") == [ReadHead(1), ReadDone((3, 4))]
        assert names(disk) == [f"jobs.{NOW_MS}", "jobs.read."]


def test_a_reader_goes_on_where_its_checkpoint_says():
    disk = planted({"jobs.1": segment(1, 2, 3, 4, 5), "jobs.read.a": checkpoint(1, 3, 4)})
    with opened(disk) as journal:
        reader = journal.readers["a"]
        assert list(reader.undelivered(ids(journal, reader.head))) == [2, 5]


def test_what_a_reader_does_in_memory_does_not_change_what_is_on_disk():
    with opened(SimulatedDisk()) as journal:
        reader = Reader(5, {7})
        journal.checkpoint("", reader)
        reader.done.add(9)
        journal.readers[""].done.add(8)
        assert journal.readers[""] == Reader(5, {7})


@pytest.mark.parametrize(
    "damaged",
    [
        checkpoint(3)[:-3],
        checkpoint(3, 5)[:-1],
        checkpoint(3)[:3],
        b"",
        bytes(18),
        b"\x27" + checkpoint(3)[1:],
        checkpoint(3) + b"\xee" * 9,
        checkpoint(MAX_PLAUSIBLE_ID + 1),
        checkpoint(3, MAX_PLAUSIBLE_ID + 1),
    ],
)
def test_a_reader_whose_checkpoint_is_damaged_starts_at_the_oldest_item(damaged):
    """The original starts it at the tail: the whole backlog is skipped."""
    disk = planted({"jobs.1": segment(3, 4, 5), "jobs.read.a": damaged})
    noted: list[Anomaly] = []
    with opened(disk, notes=noted.append) as journal:
        assert journal.readers == {"a": Reader(2)}
        assert [anomaly.kind for anomaly in noted] == [AnomalyKind.CHECKPOINT_DAMAGED]
        [report] = [r for r in journal.recovery.files if r.file.endswith("jobs.read.a")]
        [aside] = report.quarantined
        assert disk.read_bytes(aside) == damaged
    assert records_in(disk, "jobs.read.a") == [ReadHead(2), ReadDone(())]
    with opened(disk) as journal:
        assert journal.recovery.clean


def test_zeros_behind_a_checkpoint_are_no_damage():
    disk = planted({"jobs.1": segment(1, 2), "jobs.read.a": checkpoint(1) + bytes(50)})
    with opened(disk) as journal:
        assert journal.readers == {"a": Reader(1)}


def test_beside_named_readers_there_is_no_default_reader():
    disk = planted(
        {"jobs.1": segment(1), "jobs.read.": checkpoint(0), "jobs.read.a": checkpoint(0)}
    )
    with opened(disk) as journal:
        assert set(journal.readers) == {"a"}
        with pytest.raises(UsageError, match="no default reader"):
            journal.add_reader("")
    assert names(disk) == ["jobs.1", "jobs.read.a"]


def test_the_first_named_reader_takes_the_place_of_the_default_reader():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        put(journal, b"one", b"two", b"three")
        journal.checkpoint("", Reader(1, {3}))
        assert journal.add_reader("a") == Reader(1, {3})
        assert journal.add_reader("b") == Reader(3)
        assert set(journal.readers) == {"a", "b"}
        with pytest.raises(UsageError, match="exists"):
            journal.add_reader("a")
    after = disk.after_crash("lose_all_unsynced")
    assert names(after) == [f"jobs.{NOW_MS}", "jobs.read.a", "jobs.read.b"]


def test_a_new_reader_starts_behind_what_is_stored():
    with opened(SimulatedDisk()) as journal:
        put(journal, b"one")
        journal.put(b"two")
        journal.add_reader("a")
        assert journal.add_reader("b") == Reader(2)
        assert journal.readers["a"] == Reader(0)


def test_a_dropped_reader_is_forgotten_for_good():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        journal.add_reader("a")
        put(journal, b"one")
        journal.drop_reader("a")
        assert journal.readers == {"": Reader(1)}
    assert names(disk.after_crash("lose_all_unsynced")) == [f"jobs.{NOW_MS}", "jobs.read."]


@pytest.mark.parametrize("reader", ["a~b", "../a", "a/b"])
def test_a_reader_whose_file_could_not_be_found_again_is_refused(reader):
    with opened(SimulatedDisk()) as journal, pytest.raises(UsageError):
        journal.checkpoint(reader, Reader(0))


def test_a_checkpoint_that_fails_leaves_the_former_one():
    disk = SimulatedDisk()
    with opened(disk) as journal:
        journal.checkpoint("", Reader(1))
        disk.fail("write", error=errno.ENOSPC, partial=3)
        with pytest.raises(LogFull):
            journal.checkpoint("", Reader(2))
        assert journal.readers == {"": Reader(1)}
        assert records_in(disk, "jobs.read.")[0] == ReadHead(1)


# -- retention -------------------------------------------------------------------------------

FOUR_SEGMENTS = {
    "jobs.1": segment(1, 2),
    "jobs.2": segment(3, 4),
    "jobs.3": segment(5, 6),
    "jobs.4": segment(7),
}


@pytest.mark.parametrize(
    ("heads", "kept"),
    [
        ((2, 6), [2, 3, 4]),
        ((1, 6), [1, 2, 3, 4]),
        ((4, 6), [3, 4]),
        ((6, 6), [4]),
        ((7, 7), [4]),
    ],
)
def test_a_segment_goes_once_every_reader_is_past_it(heads, kept):
    a, b = heads
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(a), "jobs.read.b": checkpoint(b)})
    with opened(disk) as journal:
        went = journal.retain()
        assert went == [f"{DIRECTORY}/jobs.{n}" for n in range(1, 5) if n not in kept]
        assert journal.retain() == []
        assert [s.path for s in journal.segments] == [f"{DIRECTORY}/jobs.{n}" for n in kept]
    after = disk.after_crash("lose_all_unsynced")
    assert [n for n in names(after) if "read" not in n] == [f"jobs.{n}" for n in kept]


def test_the_last_reader_leaves_a_default_one_at_the_newest_item():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(2)})
    with opened(disk) as journal:
        journal.drop_reader("a")
        assert journal.readers == {"": Reader(7)}
        assert len(journal.retain()) == 3
        assert journal.add_reader("b") == Reader(7)
    assert names(disk.after_crash("lose_all_unsynced")) == ["jobs.4", "jobs.read.b"]


@pytest.mark.parametrize("lost", [["jobs.read."], ["jobs.read.", "jobs.lock"]])
def test_a_queue_that_has_lost_its_checkpoints_starts_at_the_oldest_item(lost):
    disk = SimulatedDisk()
    with opened(disk) as journal:
        put(journal, b"one", b"two")
        journal.checkpoint("", Reader(2))
    for name in lost:
        disk.remove(f"{DIRECTORY}/{name}")
    noted: list[Anomaly] = []
    with opened(disk, notes=noted.append) as journal:
        assert journal.readers == {"": Reader(0)}
        assert journal.next_id == 3
    assert [note.kind for note in noted] == [AnomalyKind.DEFAULT_READER_CREATED]
    assert "oldest item, 1" in noted[0].detail


@pytest.mark.parametrize("readers", [(), ("a", "b")])
def test_an_erased_queue_leaves_nothing_that_could_be_read_again(readers):
    disk = SimulatedDisk()
    journal = opened(disk, segment_bytes=60)
    for name in readers:
        journal.add_reader(name)
    put(journal, b"one", b"two", b"three")
    journal.save_indexes()
    journal.erase()
    assert disk.list_dir(DIRECTORY) == [".index"]
    assert names(disk.after_crash("lose_all_unsynced")) == []
    with opened(disk) as journal:
        assert journal.next_id == 1
        assert ids(journal) == []


def test_lock_files_without_a_queue_go_and_no_others():
    files = {
        "gone.lock": b"",
        "held.lock": b"",
        "jobs.lock": b"",
        "jobs.read.": checkpoint(0),
        "named.lock": b"by somebody else",
        "odd name.lock": b"",
        "other.lock": b"",
        "other.compressed": b"",
        "ztick.lock": b"",
        "ztick": b"",
    }
    disk = planted(files)
    held = disk.lock(f"{DIRECTORY}/held.lock")
    remove_stale_locks(disk, DIRECTORY, disk.list_dir(DIRECTORY))
    assert set(files) - set(disk.list_dir(DIRECTORY)) == {"gone.lock"}
    held.release()
    workq = planted({"read.lock": b"", "000000001.log": b"", "gone.lock": b""})
    remove_stale_locks(workq, DIRECTORY, workq.list_dir(DIRECTORY))
    assert "read.lock" in workq.list_dir(DIRECTORY)


def test_a_queue_that_many_make_and_erase_at_once_is_never_had_by_two(tmp_path):
    inside: list[int] = []
    made: list[int] = []

    def make_and_erase(who: int) -> None:
        disk, clock = RealDisk(), ManualClock()
        while made.count(who) < 30:
            try:
                journal = KestrelLog.open(disk, clock, str(tmp_path), "jobs")
            except LogLocked:
                time.sleep(0.0001)  # the one inside needs the interpreter too
                continue
            inside.append(who)
            made.append(who)
            assert inside == [who]
            assert journal.next_id == 1
            put(journal, b"item")
            inside.remove(who)
            journal.erase()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(make_and_erase, who) for who in range(4)]:
            done.result(120)
    assert [name for name in os.listdir(tmp_path) if name.startswith("jobs")] == []


def test_a_segment_that_goes_while_it_is_read_is_no_error():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(0)})
    with opened(disk) as journal:
        journal.checkpoint("a", Reader(4))
        segments = journal.segments
        journal.retain()
        assert [i.item_id for i in journal._reader.read_after(segments, 0, 10, 1000)] == [5, 6, 7]


def test_a_segment_goes_by_the_checkpoints_on_disk():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(0)})
    with opened(disk) as journal:
        reader = journal.readers["a"]
        reader.head = 6
        assert journal.retain() == []
        disk.fail("rename")
        with pytest.raises(OSError, match="Input/output"):
            journal.checkpoint("a", reader)
        assert journal.retain() == []
        journal.checkpoint("a", reader)
        assert len(journal.retain()) == 3


def test_the_segment_just_closed_stays_until_the_next_one_holds_an_item():
    disk = SimulatedDisk()
    with opened(disk, segment_bytes=50) as journal:
        put(journal, bytes(20))
        journal.checkpoint("", Reader(1))
        assert journal.retain() == []
        put(journal, bytes(20))
        assert len(journal.retain()) == 1
        assert ids(journal) == [2]


def test_retired_segments_go_to_the_archive_if_there_is_one():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(4)})
    with opened(disk, archive_directory="/archive/jobs") as journal:
        assert journal.retain() == ["/archive/jobs/archive~jobs.1", "/archive/jobs/archive~jobs.2"]
    after = disk.after_crash("lose_all_unsynced")
    assert after.read_bytes("/archive/jobs/archive~jobs.1") == segment(1, 2)
    assert names(after) == ["jobs.3", "jobs.4", "jobs.read.a"]


@pytest.mark.parametrize("crashes", [False, True])
def test_an_archive_may_be_on_another_file_system(crashes):
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(2)})
    with opened(disk, archive_directory="/archive") as journal:
        disk.fail("rename", error=errno.EXDEV)
        disk.fail("remove", times=int(crashes))
        with suppress(OSError):
            journal.retain()
    after = disk.after_crash("lose_all_unsynced")
    assert after.read_bytes("/archive/archive~jobs.1") == segment(1, 2)
    assert after.exists(f"{DIRECTORY}/jobs.1") is crashes
    with opened(after, archive_directory="/archive") as journal:
        journal.retain()
        assert ids(journal) == [3, 4, 5, 6, 7]
    assert names(after) == ["jobs.2", "jobs.3", "jobs.4", "jobs.read.a"]


def test_an_archive_in_the_same_directory_is_not_taken_for_segments():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(6)})
    opened(disk, archive_directory=DIRECTORY).retain()
    with opened(disk.after_crash("keep_all_unsynced")) as journal:
        assert ids(journal) == [7]


def test_a_move_to_the_archive_that_a_crash_left_half_done_is_finished():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(2)})
    disk.plant("/archive/archive~jobs.1", segment(1, 2))
    with opened(disk, archive_directory="/archive") as journal:
        assert journal.retain() == ["/archive/archive~jobs.1"]
    assert not disk.exists(f"{DIRECTORY}/jobs.1")


def test_nothing_in_the_archive_is_overwritten():
    disk = planted({**FOUR_SEGMENTS, "jobs.read.a": checkpoint(2)})
    disk.plant("/archive/archive~jobs.1", segment(1, 9))
    with opened(disk, archive_directory="/archive") as journal:
        with pytest.raises(LogError, match="another segment of this name"):
            journal.retain()
        assert ids(journal) == [1, 2, 3, 4, 5, 6, 7]


def test_a_queue_on_the_machines_own_disk_serves_a_writer_and_a_reader_at_once(tmp_path):
    directory = str(tmp_path / "deep" / "spool")
    archive = str(tmp_path / "archive")
    journal = KestrelLog.open(
        RealDisk(), SystemClock(), directory, "jobs", segment_bytes=400, archive_directory=archive
    )

    def write() -> None:
        for n in range(150):
            journal.put(b"item %d" % n)

    writer = threading.Thread(target=write)
    writer.start()
    reader = Reader()
    while reader.head < 150:
        for put_item in journal.items(reader.head):
            assert put_item.item_id == reader.head + 1
            reader.head = put_item.item_id
        journal.checkpoint("", reader)
        journal.retain()
    writer.join()
    journal.close()
    archived = sorted((tmp_path / "archive").iterdir())
    with KestrelLog.open(RealDisk(), SystemClock(), directory, "jobs") as journal:
        assert journal.readers == {"": Reader(150)}
        left = ids(journal)
        assert journal.next_id == 151
    gone = [
        entry.record.item_id
        for path in archived
        for entry in scan(WRITER, path.read_bytes())[0]
        if isinstance(entry.record, ItemPut)
    ]
    assert sorted(gone + left) == list(range(1, 151))
