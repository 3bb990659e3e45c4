"""The fan-out queues stopped and started: what is read then, what is kept, what goes."""

from __future__ import annotations

import errno
import json
from collections import Counter

import pytest

from journeyman.engines.kestrel.messages import (
    AddReader,
    Append,
    Checkpoint,
    RemoveReader,
    SaveCheckpoint,
)
from journeyman.engines.kestrel.queue import KestrelOptions
from journeyman.errors import LogError, LogPoisoned
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import READER, SEALS, WRITER, ItemPut
from journeyman.logs.publication import journal_path
from journeyman.servers.core.contract import WriteWait
from journeyman.servers.core.group_commit import QUICK_BYTES
from journeyman.servers.kestrel.persistence import QUICK_JOURNALS, KestrelLogs
from journeyman.testing import ManualClock
from tests.support.fanout_world import SPOOL, FanOutWorld
from tests.support.simulated_disk import SimulatedDisk

SEGMENT_BYTES = 200_000
ITEM = b"x" * 975  # 1000 with what the record adds
ROOMY = KestrelOptions(window_items=100, window_bytes=10**9)


class CountingDisk(SimulatedDisk):
    """A disk that knows how many bytes were read of each file, and how often it was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()

    def list_dir(self, path: str) -> list[str]:
        self.listed[path] += 1
        return super().list_dir(path)

    def read_bytes(self, path: str) -> bytes:
        data = super().read_bytes(path)
        self.read[path] += len(data)
        return data

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        data = super().read_at(path, offset, length)
        self.read[path] += len(data)
        return data

    def read_of_segments(self) -> int:
        return sum(n for path, n in self.read.items() if path.startswith(f"{SPOOL}/q.1"))


def world(disk: SimulatedDisk, **options) -> FanOutWorld:
    options = {"settings": ROOMY, "segment_bytes": SEGMENT_BYTES, **options}
    return FanOutWorld(disk, **options)


def segments(disk: SimulatedDisk) -> list[str]:
    names = disk.list_dir(SPOOL)
    return [f"{SPOOL}/{name}" for name in names if name.startswith("q.1")]


def filled(disk: SimulatedDisk, items: int, *readers: str) -> None:
    life = world(disk)
    for reader in readers:
        life.get("q", reader)
    life.put("q", *(b"%06d" % n + ITEM[6:] for n in range(1, items + 1)))
    life.close()


def number(data: bytes | None) -> int:
    assert data is not None
    return int(data[:6])


def numbers(items: list[bytes]) -> list[int]:
    return [number(data) for data in items]


# -- starting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [1, 10])
def test_a_start_reads_the_last_segment_and_a_little_of_the_others(readers):
    disk = CountingDisk()
    names = [f"r{n}" for n in range(readers)]
    filled(disk, 5000, *names)
    stored = sum(disk.size(path) for path in segments(disk))
    assert stored > 5_000_000
    life = world(disk)
    for n, name in enumerate(names):  # each somewhere else
        for _ in range(400 * n + 37):
            life.get("q", name)
    life.close()
    disk.read.clear()
    life = world(disk)
    # The last segment whole; of each other an edge that proves its index; of those that a reader
    # stands in, from the mark before it.
    closed = len(segments(disk)) - 1
    assert disk.read_of_segments() <= SEGMENT_BYTES + closed * 2 * 4096 + readers * 2 * 256 * 1024
    if readers == 1:
        assert disk.read_of_segments() < stored / 4
    for n, name in enumerate(names):
        assert life.engine.queues["q"].readers[name].items == 5000 - 400 * n - 37
        assert number(life.get("q", name)) == 400 * n + 38


def test_without_an_index_a_start_reads_everything_once_and_makes_it_anew():
    disk = CountingDisk()
    filled(disk, 2000, "a")
    for name in disk.list_dir(f"{SPOOL}/.index"):
        disk.remove(f"{SPOOL}/.index/{name}")
    stored = sum(disk.size(path) for path in segments(disk))
    disk.read.clear()
    life = world(disk)
    assert disk.read_of_segments() >= stored
    life.checkpoint()
    assert len(disk.list_dir(f"{SPOOL}/.index")) == len(segments(disk)) - 1
    life.journals.close()
    disk.read.clear()
    world(disk)
    assert disk.read_of_segments() < stored / 2


def test_indexes_are_written_though_nobody_reads():
    disk = SimulatedDisk()
    life = world(disk)
    life.put("q", *[ITEM] * 1000)
    life.checkpoint()
    assert len(segments(disk)) > 4
    assert len(disk.list_dir(f"{SPOOL}/.index")) == len(segments(disk)) - 1


def test_a_long_run_of_finished_items_is_not_read_again():
    disk = CountingDisk()
    filled(disk, 3000, "a")
    life = world(disk)
    life.get("q", "a", open=True, client="slow")
    for _ in range(2500):
        life.get("q", "a")
    life.checkpoint()
    life.journals.close()
    life = world(disk)
    assert number(life.get("q", "a")) == 1
    disk.read.clear()
    assert number(life.get("q", "a")) == 2502
    assert disk.read_of_segments() <= 2 * 256 * 1024


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [0, 1, 700])
def test_no_more_than_the_window_is_in_memory_however_long_the_queue(reads):
    disk = SimulatedDisk()
    life = world(disk)
    life.get("q", "a")
    life.get("q", "b")
    for _ in range(20):
        life.put("q", *[ITEM] * 100)
        queue = life.engine.queues["q"]
        assert len(queue.window) <= ROOMY.window_items
    for _ in range(reads):
        life.get("q", "a")
    in_memory = len(queue.window) + sum(len(r.buffer) for r in queue.readers.values())
    assert in_memory <= ROOMY.window_items + 2 * 600
    life.close()
    life = world(disk)
    queue = life.engine.queues["q"]
    assert (len(queue.window), queue.readers["b"].items) == (0, 2000)
    assert len(life.drained("q", "a")) == 2000 - reads


# -- damage --------------------------------------------------------------------------------------


def spoil(disk: SimulatedDisk, path: str, begin: int, damage: bytes) -> None:
    data = bytearray(disk.read_bytes(path))
    data[begin : begin + len(damage)] = damage
    disk.plant(path, bytes(data))


@pytest.mark.parametrize("damage", [b"\xff" * 3000, bytes(3000)], ids=["rubbish", "zeros"])
@pytest.mark.parametrize("indexed", [True, False])
def test_damage_in_a_closed_segment_takes_what_it_covers_and_is_kept_aside(damage, indexed):
    disk = SimulatedDisk()
    filled(disk, 1000, "a", "b")
    first = segments(disk)[0]
    spoil(disk, first, 100_000, damage)
    if not indexed:
        disk.remove(first.replace("/q.", "/.index/q."))
    life = world(disk)
    assert life.reports["q"].clean is indexed  # an index spares reading, so it is met later
    found = numbers(life.drained("q", "a"))
    assert found == sorted(set(found))
    assert set(range(1, 1001)) - set(found) <= set(range(95, 170 if indexed else 106))
    assert numbers(life.drained("q", "b")) == found
    told = life.journals.new_damages()
    assert [path for path, _, _ in told] == ([first] if indexed else [])
    life.close()
    aside = disk.list_dir(f"{SPOOL}/quarantine") if disk.exists(f"{SPOOL}/quarantine") else []
    if indexed or any(damage):
        assert any(name.startswith(first.rpartition("/")[2]) for name in aside)
    assert FanOutWorld(disk).drained("q", "a") == []


def test_a_torn_tail_takes_the_item_that_was_being_written_and_no_id_comes_twice():
    disk = SimulatedDisk()
    filled(disk, 10, "a")
    (path,) = segments(disk)
    torn = disk.read_bytes(path)[:-400]
    disk.plant(path, torn)
    life = world(disk)
    assert numbers(life.drained("q", "a")) == list(range(1, 10))
    assert not life.reports["q"].clean
    life.put("q", b"000077")
    assert numbers(life.drained("q", "a")) == [77]
    life.close()
    sealed_to = max(SEALS.places(torn, 0))
    assert disk.read_bytes(path).startswith(torn[:sealed_to])


# -- what goes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", [None, "/archive"])
def test_segments_that_all_readers_are_done_with_go(archive):
    disk = SimulatedDisk()
    filled(disk, 1000, "a", "b")
    before = segments(disk)
    life = world(disk, archive_directory=archive)
    assert len(life.drained("q", "a")) == 1000
    life.checkpoint()
    assert segments(disk) == before
    for _ in range(500):
        life.get("q", "b")
    life.checkpoint()
    assert 0 < len(segments(disk)) < len(before)
    life.drained("q", "b")
    life.checkpoint()
    assert segments(disk) == before[-1:]
    names = [path.rpartition("/")[2] for path in before[:-1]]
    archived = disk.list_dir("/archive") if archive else []
    assert archived == ([f"archive~{name}" for name in names] if archive else [])
    assert disk.list_dir(f"{SPOOL}/.index") == ["q"], "the names of its readers"


def test_ids_go_on_whatever_was_read_retired_and_restarted():
    disk = SimulatedDisk()
    given_out: list[int] = []
    for _ in range(8):
        life = world(disk, segment_bytes=100)
        life.put("q", *[b"some data of an item"] * 5)
        life.drained("q", "a")
        given_out.append(life.engine.queues["q"].next_id)
        life.close()
        disk = disk.after_crash("lose_all_unsynced")
    assert given_out == [5 * n + 1 for n in range(1, 9)]
    assert len([p for p in segments(disk) if len(disk.read_bytes(p)) > len(WRITER.header)]) == 1


def test_a_deleted_queue_is_gone_and_begins_anew():
    disk = SimulatedDisk()
    filled(disk, 1000, "a")
    life = world(disk)
    life.delete("q")
    assert [n for n in disk.list_dir(SPOOL) if n.startswith("q.")] == []
    life.put("q", b"000001")
    assert numbers(life.drained("q")) == [1]
    life.close()
    assert world(disk).drained("q") == []


def test_the_last_reader_deleted_takes_its_backlog_with_it():
    disk = SimulatedDisk()
    filled(disk, 10, "a")
    life = world(disk)
    life.delete("q", "a")
    life.close()
    life = world(disk)
    assert life.drained("q") == []
    life.put("q", b"000011")
    assert numbers(life.drained("q", "b")) == [11]


def test_a_checkpoint_lists_a_bounded_number_of_ids_and_all_that_were_listed_before(monkeypatch):
    monkeypatch.setattr("journeyman.engines.kestrel.queue.MAX_SAVED_DONE", 5)
    disk = SimulatedDisk()
    filled(disk, 20, "a")
    life = world(disk)
    for client in ("slow", "slower"):
        life.get("q", "a", open=True, client=client)
    for _ in range(5):
        life.get("q", "a")
    life.checkpoint()
    life.confirm("q", "a", 1, client="slower")
    assert number(life.get("q", "a")) == 8
    life.checkpoint()
    life.journals.close()
    assert numbers(world(disk).drained("q", "a")) == [1, *range(8, 21)]


def test_a_checkpoint_that_comes_late_is_not_taken_for_one_of_a_new_reader_of_that_name():
    disk = SimulatedDisk()
    life = world(disk)
    life.put("q", b"000001", b"000002", b"000003")
    life.drained("q")
    life.engine.begin_batch()
    late = life.engine.decide(Checkpoint(), 0).effects
    life.engine.commit_batch()
    life.delete("q")
    life.put("q", b"000004", b"000005", b"000006")
    life.journals.save([each for each in late if isinstance(each, SaveCheckpoint)])
    life.journals.close()
    assert len(late) == 1
    assert numbers(world(disk).drained("q")) == [4, 5, 6]


# -- trouble -------------------------------------------------------------------------------------


def test_a_queue_that_cannot_be_made_for_lack_of_files_is_refused_and_made_later():
    disk = SimulatedDisk()
    life = world(disk)
    life.put("q", b"000001")
    for kind in ("create", "sync_dir", "sync_dir"):
        disk.fail(kind, error=errno.EMFILE)
        with pytest.raises(LogError, match="Too many open files"):
            life.put("r", b"000002")
        life.engine.undo_batch()
        disk.heal()
    life.put("r", b"000003")
    life.put("q", b"000004")
    life.close()
    again = world(disk)
    assert numbers(again.drained("q")) == [1, 4]
    assert numbers(again.drained("r")) == [3]


def test_lack_of_files_at_a_rotation_refuses_the_put_and_is_no_failed_sync():
    disk = SimulatedDisk()
    life = world(disk, segment_bytes=100)
    life.put("q", b"000001" + bytes(60))
    disk.fail("sync_dir", error=errno.EMFILE)
    with pytest.raises(LogError, match="Too many open files"):
        life.put("q", b"000002" + bytes(60))
    life.engine.undo_batch()
    life.put("q", b"000003")
    life.close()
    assert numbers(world(disk).drained("q")) == [1, 3]


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "sync_dir"])
def test_what_goes_wrong_with_the_files_of_one_queue_does_not_keep_the_others(kind):
    disk = SimulatedDisk()
    life = world(disk)
    for queue in ("p", "q"):
        life.put(queue, b"000001", b"000002")
        assert number(life.get(queue)) == 1
    disk.fail(kind)
    with pytest.raises(OSError, match="Input/output"):
        life.checkpoint()
    life.journals.close()
    left = sorted(len(world(disk.after_crash("keep_all_unsynced")).drained(q)) for q in ("p", "q"))
    assert left[0] == 1, "one was saved"


def test_a_journal_that_cannot_be_closed_in_order_does_not_keep_the_others_open():
    disk = SimulatedDisk()
    life = world(disk, sync=False)
    for queue in ("p", "q"):
        life.put(queue, b"000001")
    syncs = disk.counts["sync"]
    disk.fail("sync")
    with pytest.raises(LogPoisoned):
        life.journals.close()
    assert disk.counts["sync"] == syncs + 2
    assert [number(world(disk).get("q"))] == [1]


# -- many queues ---------------------------------------------------------------------------------


def test_a_start_lists_the_folder_as_often_however_many_queues_there_are():
    disk = CountingDisk()
    life = world(disk)
    for n in range(30):
        life.put(f"q{n}", b"000001", b"000002")
    life.close()
    disk.listed.clear()
    again = world(disk)
    assert disk.listed[SPOOL] == 1
    assert all(numbers(again.drained(f"q{n}")) == [1, 2] for n in range(30))


def test_a_change_of_many_queues_that_was_cut_short_is_finished_before_any_is_opened():
    disk = SimulatedDisk()
    old, new = (WRITER.header + WRITER.encode(ItemPut(n, 1, None, 0, b"%06d" % n)) for n in (1, 2))
    disk.plant(f"{SPOOL}/a.1", old)
    disk.plant(f"{SPOOL}/_staging/a", new)
    disk.plant(f"{SPOOL}/_staging/b", new)
    disk.plant(f"{SPOOL}/_staging/reader", READER.header)
    renames = {"a": "a.2", "b": "b.2", "reader": "b.read.r"}
    content = {
        "version": 1,
        "renames": {f"_staging/{staged}": name for staged, name in renames.items()},
        "removes": ["a.1"],
    }
    disk.plant(journal_path(SPOOL), json.dumps(content).encode())
    life = world(disk)
    assert set(life.engine.queues) == {"a", "b"}
    assert life.opened["a"].tail == 2
    assert numbers(life.drained("b", "r")) == [2]


def test_event_loop_waits_for_the_sync_of_a_few_short_journals():
    world = FanOutWorld(SimulatedDisk())
    queues = [f"q{number}" for number in range(QUICK_JOURNALS + 1)]
    for queue in queues:
        world.put(queue, b"first")

    def wait_of(data: bytes, queues: list[str]) -> WriteWait:
        item = ItemPut(2, 0, None, 0, data)
        return world.journals.wait_of([Append(queue, item) for queue in queues])

    assert wait_of(b"second", queues[1:]) is WriteWait.SYNC
    assert wait_of(b"second", queues) is WriteWait.MORE
    assert wait_of(bytes(QUICK_BYTES), queues[:1]) is WriteWait.MORE
    assert wait_of(b"first", ["new"]) is WriteWait.MORE


def test_a_late_checkpoint_does_not_move_a_reader_that_was_made_again():
    disk = SimulatedDisk()
    logs = KestrelLogs(disk, ManualClock(), SPOOL, waits_for_sync=True)
    logs.open_all()
    items = [Append("q", ItemPut(number, 0, None, 0, b"x")) for number in (1, 2, 3)]
    logs.write([AddReader("q", "r", 0, False, 1), *items])
    late = SaveCheckpoint("q", "r", 1, Reader(3))
    logs.write([RemoveReader("q", "r"), AddReader("q", "r", 0, False, 2)])
    before = logs._logs["q"].readers["r"]
    logs.save([late])
    assert logs._logs["q"].readers["r"] == before
    logs.save([late._replace(serial=2)])
    assert logs._logs["q"].readers["r"] == Reader(3)
