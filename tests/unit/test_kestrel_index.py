"""Items of a journal by id, and the index that spares reading closed segments."""

from __future__ import annotations

import json
from collections.abc import Callable

import google_crc32c
import pytest

from journeyman.errors import LogFull, UsageError
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import WRITER, ItemPut
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.kestrel.segments import Segment, load_segment
from journeyman.testing.manual_clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk

SEGMENT_BYTES = 200_000
ITEM = b"x" * 1000


def item(number: int, data: bytes = ITEM) -> ItemPut:
    return ItemPut(number, 1000 + number, None, 0, data)


class World:
    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()
        self.disk.make_dirs("/q")

    def open(self) -> KestrelLog:
        return KestrelLog.open(self.disk, self.clock, "/q", "jobs", segment_bytes=SEGMENT_BYTES)

    def filled(self, count: int) -> KestrelLog:
        journal = self.open()
        for number in range(1, count + 1, 50):
            self.clock.advance(0.001)
            journal.append([item(n) for n in range(number, min(number + 50, count + 1))])
        return journal


@pytest.fixture
def world() -> World:
    return World()


def ids(items: list[ItemPut]) -> list[int]:
    return [each.item_id for each in items]


@pytest.mark.parametrize("after", [0, 1, 63, 64, 65, 130, 199, 200, 399, 400])
def test_items_are_found_by_id_wherever_they_stand(world, after):
    with world.filled(400) as journal:
        found = journal.read_after(after, max_items=7, max_bytes=10**6)
        assert ids(found) == list(range(after + 1, min(after + 8, 401)))


def test_a_stretch_ends_by_bytes_but_holds_at_least_one_item(world):
    with world.filled(10) as journal:
        assert ids(journal.read_after(0, max_items=100, max_bytes=2500)) == [1, 2, 3]
        assert ids(journal.read_after(0, max_items=100, max_bytes=1)) == [1]


def test_an_item_larger_than_a_stretch_is_read_whole(world):
    with world.open() as journal:
        journal.append([item(1), item(2, b"y" * 3_000_000), item(3)])
        assert [len(i.data) for i in journal.read_after(0, max_items=9, max_bytes=10**9)] == [
            1000,
            3_000_000,
            1000,
        ]


def test_what_a_reader_has_before_it_is_counted(world):
    with world.filled(400) as journal:
        assert journal.left_for(Reader(0)) == (400, 400_000)
        assert journal.left_for(Reader(250)) == (150, 150_000)
        assert journal.left_for(Reader(250, {252, 390})) == (148, 148_000)
        assert journal.left_for(Reader(400)) == (0, 0)


def test_closed_segments_with_an_index_are_not_read_at_the_start(world):
    with world.filled(1000) as journal:
        assert journal.save_indexes() >= 4
        assert journal.save_indexes() == 0
        closed = journal.segments[0].path
    with world.open() as journal:
        assert journal.segments[0].indexed
        assert journal.next_id == 1001
        assert ids(journal.read_after(500, max_items=2, max_bytes=10**6)) == [501, 502]
        assert closed not in [file.file for file in journal.recovery.files]


class MeddlingDisk(SimulatedDisk):
    """Something happens whenever a new file is begun."""

    meddle: Callable[[], object] = staticmethod(lambda: None)

    def open_append(self, path):
        if not self.exists(path) and "/." not in path and path.rpartition(".")[2].isdecimal():
            self.meddle()
        return super().open_append(path)


def test_a_segment_that_is_just_being_left_is_not_indexed_before_all_of_it_is_known():
    """The writer has gone on to the next segment; what it wrote last is not in the books yet."""
    world = World()
    world.disk = disk = MeddlingDisk()
    disk.make_dirs("/q")
    with world.open() as journal:
        disk.meddle = journal.save_indexes
        for number in range(1, 1001, 50):
            world.clock.advance(0.001)
            journal.append([item(n) for n in range(number, number + 50)])
        disk.meddle = lambda: None
        journal.save_indexes()
        expected = journal.segments
    with world.open() as journal:
        assert sum(segment.indexed for segment in journal.segments) == len(expected) - 1
        assert journal.segments == expected
        assert journal.left_for(Reader(0)) == (1000, 1_000_000)


def respelt(index: bytes, **changes: object) -> bytes:
    """An index that says something else, its own checksum right."""
    line = json.dumps({**json.loads(index.splitlines()[0]), **changes}).encode()
    return b"%s\n%08x\n" % (line, google_crc32c.value(line))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index: b"",
        lambda index: b"{",
        lambda index: b"[]",
        lambda index: index[:-30],
        lambda index: index.replace(b'"records":1', b'"records":2'),
        lambda index: respelt(index, version=9),
        lambda index: respelt(index, proof=[1, 2]),
        lambda index: respelt(index, marks=[["a"]]),
        lambda index: respelt(index, own={"marks": []}),
        lambda index: respelt(index, records=0),
    ],
)
def test_an_index_that_does_not_fit_is_made_anew(world, spoil):
    with world.filled(400) as journal:
        journal.save_indexes()
        path = journal.segments[0].path
        expected = journal.segments
    where = path.replace("/q/", "/q/.index/")
    spoiled = spoil(world.disk.read_bytes(where))
    world.disk.plant(where, spoiled)
    assert load_segment(world.disk, path) is None
    with world.open() as journal:
        assert not journal.segments[0].indexed
        assert journal.segments == expected
        assert journal.save_indexes() == 1


def test_a_changed_segment_is_not_taken_for_what_its_index_says(world):
    with world.filled(400) as journal:
        journal.save_indexes()
        path = journal.segments[0].path
    file = world.disk.open_append(path)
    file.write(WRITER.encode(item(5000)))
    file.close()
    with world.open() as journal:
        assert not journal.segments[0].indexed
        assert journal.next_id == 5001


def test_damage_inside_an_indexed_segment_is_told_and_stepped_over(world):
    with world.filled(1000) as journal:
        journal.save_indexes()
        path = journal.segments[0].path
        last = journal.segments[0].last_id
    data = bytearray(world.disk.read_bytes(path))
    at = 100_000  # between the marks, away from what the index proves
    data[at : at + 2000] = b"\xff" * 2000
    world.disk.plant(path, bytes(data))
    with world.open() as journal:
        found = ids(journal.read_after(0, max_items=10_000, max_bytes=10**9))
        assert found == sorted(found)
        assert found[0] == 1
        assert last in found
        assert found[-1] == 1000
        assert len(found) >= 1000 - 66
        ((where, _, _),) = journal.damages
        assert where == path
        journal.read_after(0, max_items=10_000, max_bytes=10**9)
        assert len(journal.damages) == 1


def test_the_index_goes_with_its_segment(world):
    with world.filled(1000) as journal:
        journal.save_indexes()
        names = world.disk.list_dir("/q/.index")
        journal.checkpoint("", Reader(1000))
        assert journal.retain()
        assert len(world.disk.list_dir("/q/.index")) < len(names)


def test_ids_below_those_given_out_are_refused(world):
    with world.filled(10) as journal, pytest.raises(UsageError):
        journal.append([item(10)])


def test_a_full_disk_stores_none_of_the_items_and_the_ids_stay_free(world):
    with world.filled(10) as journal:
        world.disk.capacity = world.disk.used + 100
        with pytest.raises(LogFull):
            journal.append([item(11), item(12)])
        world.disk.capacity = None
        assert journal.next_id == 11
        journal.append([item(11)])
        assert ids(journal.read_after(9, max_items=9, max_bytes=10**6)) == [10, 11]


def test_segments_put_together_by_hand_are_read_in_the_order_of_ids(world):
    for number, numbers in ((7, [30, 10, 20]), (9, [15, 40])):
        file = world.disk.open_append(f"/q/jobs.{number}")
        file.write(WRITER.header + b"".join(WRITER.encode(item(n)) for n in numbers))
        file.sync()
        file.close()
    with world.open() as journal:
        assert ids(journal.read_after(10, max_items=9, max_bytes=10**6)) == [15, 20, 30, 40]


@pytest.mark.parametrize("runs", [[[1, 2, 3]], [[1], [2, 3, 5], [9]], [[4, 5], [3, 6]], [[7], [7]]])
def test_a_run_of_items_is_noted_as_the_items_one_by_one(runs):
    at_once, one_by_one = Segment("s"), Segment("s")
    offset = 4
    for run in runs:
        items = [item(number, b"x" * 30_000 * number) for number in run]
        sizes = [len(WRITER.encode(each)) for each in items]
        at_once.note_run(offset, items, sizes)
        for each, size in zip(items, sizes, strict=True):
            one_by_one.note(each, offset)
            offset += size
    assert at_once == one_by_one
    assert at_once.marks == one_by_one.marks
