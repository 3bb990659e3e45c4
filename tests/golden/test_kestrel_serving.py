"""Folders of the original are served as they should be, and ours are folders of the original.

The folders under data/kestrel/q* are the original's, with what is to be expected of them; what a
get brings must be just that. Folders that are written here are then read by the rules of the
original, as strictly as it reads: see ``OriginalReading``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from journeyman.formats.framing import scan
from journeyman.formats.kestrel import (
    READER,
    SEALS,
    WRITER,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)
from journeyman.formats.seals import is_marked
from journeyman.logs.segments import kestrel_segments
from tests.support.departures import expected_here
from tests.support.fanout_world import SPOOL, FanOutWorld
from tests.support.originals import appended_by_libkestrel
from tests.support.servers.fanout_process import FanOutProcess
from tests.support.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("kind_of_disk")

DATA = Path(__file__).parent / "data" / "kestrel"
FOLDERS = sorted(path.parent.name for path in DATA.glob("q*/case.json"))


def put(item_id: int, data: bytes = b"", **fields: Any) -> bytes:
    added = {"add_time_ms": 1, "expire_time_ms": None, "error_count": 0, **fields}
    return WRITER.encode(ItemPut(item_id, data=data or b"%d" % item_id, **added))


def segment(*ids: int) -> bytes:
    return WRITER.header + b"".join(map(put, ids))


def checkpoint(head: int | None, *done: int) -> bytes:
    first = b"" if head is None else READER.encode(ReadHead(head))
    return READER.header + first + READER.encode(ReadDone(done))


def planted(files: Mapping[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, data in files.items():
        disk.plant(f"{SPOOL}/{name}", data)
    return disk


def golden(name: str) -> tuple[SimulatedDisk, str, Any]:
    files = {p.name: p.read_bytes() for p in (DATA / name).iterdir() if p.name != "case.json"}
    queue = next(iter(files)).partition(".")[0]
    case = json.loads((DATA / name / "case.json").read_text())
    return planted(files), queue, case | {"expect": expected_here(name, case["expect"])}


def items_in(disk: SimulatedDisk) -> dict[int, bytes]:
    """What stands under each id in all segments."""
    found: dict[int, bytes] = {}
    for path, data in disk.files().items():
        if re.fullmatch(r"[^.~]+\.[0-9]+", path.rpartition("/")[2]):
            records = [entry.record for entry in scan(WRITER, data)[0]]
            found |= {r.item_id: r.data for r in records if isinstance(r, ItemPut)}
    return found


# -- from the original ---------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False], ids=["synced", "unsynced"])
@pytest.mark.parametrize("name", FOLDERS)
def test_every_reader_of_the_originals_folder_is_given_what_is_expected(name, sync):
    disk, queue, case = golden(name)
    stored = items_in(disk)
    world = FanOutWorld(disk, sync=sync)
    assert [world.reports[q].clean for q in world.reports] == [True]
    readers = case["expect"]["readers"]
    assert set(world.engine.queues[queue].readers) == set(readers)
    for reader, expected in readers.items():
        deliver = expected.get("deliver", [])
        waiting = world.engine.queues[queue].readers[reader]
        assert waiting.items == len(deliver)
        assert world.drained(queue, reader) == [stored[item_id] for item_id in deliver]
        assert waiting.items == 0
    world.put(queue, b"new")
    for reader in readers:
        assert world.drained(queue, reader) == [b"new"]


@pytest.mark.parametrize("name", FOLDERS)
def test_what_was_delivered_of_the_originals_folder_stays_away(name):
    disk, queue, case = golden(name)
    world = FanOutWorld(disk)
    for reader in case["expect"]["readers"]:
        world.drained(queue, reader)
    world.close()
    again = FanOutWorld(disk)
    for reader in case["expect"]["readers"]:
        assert again.drained(queue, reader) == []
    again.put(queue, b"new")
    for reader in case["expect"]["readers"]:
        assert again.drained(queue, reader) == [b"new"]


def test_the_originals_folders_are_served_over_the_wire(tmp_path):
    """All of them by one server: each queue under another name, its files as they are."""
    spool = tmp_path / "queues"
    spool.mkdir()
    for name in FOLDERS:
        for path in (DATA / name).iterdir():
            if path.name != "case.json":
                (spool / f"{name}.{path.name.partition('.')[2]}").write_bytes(path.read_bytes())
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        for name in FOLDERS:
            disk, _, case = golden(name)
            stored = items_in(disk)
            for reader, expected in case["expect"]["readers"].items():
                given = []
                while (data := client.get(f"{name}+{reader}" if reader else name)) is not None:
                    given.append(data)
                assert given == [stored[i] for i in expected.get("deliver", [])], name
        assert server.stop() == 0
        assert not [line for line in server.lines if "damage" in line or " ERROR " in line]


FOUND = [
    # about, files, queue, what each reader is given
    ("names with every letter a name may have", {"A-z_0:9.1": segment(1)}, "A-z_0:9", {"": [1]}),
    (
        "readers with dots and odd characters in their names",
        {"q.1": segment(1, 2), "q.read.a.b.c": checkpoint(1), "q.read.e+f g": checkpoint(0)},
        "q",
        {"a.b.c": [2], "e+f g": [1, 2]},
    ),
    (
        "a damaged checkpoint starts at the oldest item, the others keep their place",
        {"q.1": segment(4, 5), "q.read.a": checkpoint(5)[:-3], "q.read.b": checkpoint(4)},
        "q",
        {"a": [4, 5], "b": [5]},
    ),
    (
        "a checkpoint with a foreign header",
        {"q.1": segment(1, 2), "q.read.a": b"\0\0\0\0" + checkpoint(2)[4:]},
        "q",
        {"a": [1, 2]},
    ),
    ("an empty checkpoint file", {"q.1": segment(1), "q.read.a": b""}, "q", {"a": [1]}),
    ("head beyond the end", {"q.1": segment(1), "q.read.a": checkpoint(7)}, "q", {"a": [1]}),
    (
        "head before the oldest item",
        {"q.1": segment(8, 9), "q.read.a": checkpoint(2, 3, 9)},
        "q",
        {"a": [8]},
    ),
    (
        "finished ids below the head say nothing",
        {"q.1": segment(1, 2, 3, 4), "q.read.a": checkpoint(2, 1, 2, 4)},
        "q",
        {"a": [3]},
    ),
    (
        "finished ids before the head record",
        {
            "q.1": segment(1, 2, 3),
            "q.read.a": checkpoint(None, 2) + READER.encode(ReadHead(0)),
        },
        "q",
        {"a": [1, 3]},
    ),
    (
        "several records: the last head counts, finished ids add up",
        {
            "q.1": segment(1, 2, 3, 4, 5),
            "q.read.a": checkpoint(3, 5) + checkpoint(1, 3)[4:],
        },
        "q",
        {"a": [2, 4]},
    ),
    (
        "a checkpoint that zeros follow",
        {"q.1": segment(1, 2), "q.read.a": checkpoint(1) + bytes(50)},
        "q",
        {"a": [2]},
    ),
    (
        "an unknown record in a checkpoint is stepped over",
        {
            "q.1": segment(1, 2),
            "q.read.a": READER.header
            + bytes.fromhex("f3040000000101010102020202ffffffff")
            + checkpoint(1)[4:],
        },
        "q",
        {"a": [2]},
    ),
    (
        "a default reader beside named ones",
        {"q.1": segment(1, 2), "q.read.": checkpoint(0), "q.read.a": checkpoint(1)},
        "q",
        {"a": [2]},
    ),
    (
        "the default reader alone",
        {"q.1": segment(1, 2), "q.read.": checkpoint(1)},
        "q",
        {"": [2]},
    ),
    (
        "a segment mapped at full size, as a crash leaves it",
        {"q.1": segment(1, 2) + bytes(5000), "q.read.a": checkpoint(0)},
        "q",
        {"a": [1, 2]},
    ),
    (
        "an item cut short at the end",
        {"q.1": segment(1, 2) + put(3)[:-1], "q.read.a": checkpoint(0)},
        "q",
        {"a": [1, 2]},
    ),
    (
        "damage in the middle of a segment",
        {
            "q.1": segment(1, 2) + b"\x97" + b"\xee" * 30 + segment(4, 5)[4:],
            "q.2": segment(6),
            "q.read.a": checkpoint(1),
        },
        "q",
        {"a": [2, 4, 5, 6]},
    ),
    (
        "segments without items, and files without a header",
        {
            "q.1": WRITER.header,
            "q.2": segment(1),
            "q.3": b"",
            "q.4": WRITER.header[:2],
            "q.5": b"%PDF-1.4 ...",
            "q.6": segment(2),
            "q.7": WRITER.header + bytes(100),
            "q.read.a": checkpoint(0),
        },
        "q",
        {"a": [1, 2]},
    ),
    (
        "gaps between segments, inside them, and before the head",
        {
            "q.1": segment(3, 9),
            "q.2": segment(20, 21),
            "q.3": segment(40),
            "q.read.a": checkpoint(5),
            "q.read.b": checkpoint(30, 33),
        },
        "q",
        {"a": [9, 20, 21, 40], "b": [40]},
    ),
    (
        "numbers that do not follow the ids",
        {"q.1": segment(3, 4), "q.2": segment(1, 2), "q.read.a": checkpoint(1)},
        "q",
        {"a": [2, 3, 4]},
    ),
    (
        "one id given out twice, as the original does after a loss",
        {
            "q.1": segment(1, 2),
            "q.2": WRITER.header + put(2, b"other 2") + put(3),
            "q.read.a": checkpoint(0),
        },
        "q",
        {"a": [1, 2, b"other 2", 3]},
    ),
    (
        "records of readers and unknown ones among the items",
        {
            "q.1": segment(1)
            + READER.encode(ReadHead(9))
            + READER.encode(ReadDone((1, 2)))
            + put(2),
            "q.read.a": checkpoint(0),
        },
        "q",
        {"a": [1, 2]},
    ),
    (
        "files that are none of the queue's",
        {
            "q.1": segment(1),
            "q.1.bak": segment(7),
            "q.x2": segment(8),
            "q.": b"",
            "archive~q.0": segment(9),
            "q.read.a": checkpoint(0),
            "q.read.b~~17": checkpoint(0),
        },
        "q",
        {"a": [1]},
    ),
]


@pytest.mark.parametrize(
    ("files", "queue", "expected"), [row[1:] for row in FOUND], ids=[row[0] for row in FOUND]
)
def test_a_folder_as_it_may_be_found_is_served(files, queue, expected):
    disk = planted(files)
    world = FanOutWorld(disk)
    assert set(world.engine.queues) == {queue}
    assert set(world.engine.queues[queue].readers) == set(expected)
    for reader, items in expected.items():
        wanted = [item if isinstance(item, bytes) else b"%d" % item for item in items]
        assert world.engine.queues[queue].readers[reader].items == len(wanted)
        assert world.drained(queue, reader) == wanted
    world.put(queue, b"new")
    for reader in expected:
        assert world.drained(queue, reader) == [b"new"]


def test_a_checkpoint_that_is_lost_brings_everything_once_more():
    disk = SimulatedDisk()
    world = FanOutWorld(disk)
    world.get("q", "a")
    world.put("q", b"1", b"2")
    assert world.get("q", "a") == b"1"
    world.close()
    disk.remove(f"{SPOOL}/q.read.a")
    again = FanOutWorld(disk)
    assert again.drained("q", "a") == [b"1", b"2"]  # the first reader takes the default one's place


def test_one_lost_checkpoint_among_several_starts_at_the_oldest_item_and_is_reported():
    disk = SimulatedDisk()
    world = FanOutWorld(disk)
    for reader in ("a", "b"):
        world.get("q", reader)
    world.put("q", b"1", b"2")
    for reader in ("a", "b"):
        assert world.drained("q", reader) == [b"1", b"2"]
    world.put("q", b"3")
    world.close()
    disk.remove(f"{SPOOL}/q.read.a")
    again = FanOutWorld(disk)
    assert again.drained("q", "a") == [b"1", b"2", b"3"]
    assert again.drained("q", "b") == [b"3"]
    (lost,) = again.opened["q"].anomalies
    assert (lost.kind, lost.key) == ("checkpoint-damaged", "a")


def test_a_reader_that_was_dropped_does_not_come_back():
    disk = SimulatedDisk()
    world = FanOutWorld(disk)
    for reader in ("a", "b"):
        world.get("q", reader)
    world.put("q", b"1", b"2")
    world.delete("q", "a")
    world.close()
    assert sorted(FanOutWorld(disk).engine.queues["q"].readers) == ["b"]


def test_a_reader_that_the_original_dropped_does_not_come_back():
    disk = SimulatedDisk()
    world = FanOutWorld(disk)
    for reader in ("a", "b"):
        world.get("q", reader)
    world.put("q", b"1")
    world.close()
    (name,) = kestrel_segments("q", disk.list_dir(SPOOL))
    after, _ = appended_by_libkestrel({name: disk.read_bytes(f"{SPOOL}/{name}")}, "q", [b"2"])
    disk.plant(f"{SPOOL}/{name}", after[name])
    disk.remove(f"{SPOOL}/q.read.a")
    assert sorted(FanOutWorld(disk).engine.queues["q"].readers) == ["b"]


# -- for the original ----------------------------------------------------------------------------


def _is_seal(record: Record) -> bool:
    """The original skips it by its size."""
    return isinstance(record, UnknownCommand) and is_marked(SEALS, WRITER.encode(record), 0)


class OriginalReading:
    """A folder read by the rules of the original; AssertionError where it would stumble or lose.

    Segments: ``queue.`` and digits, no ``~``. Checkpoints: ``queue.read.`` and the reader, no
    ``~``. Any other plain file beside them is taken for a queue of the name before its first dot.
    """

    def __init__(self, disk: SimulatedDisk, queue: str) -> None:
        names = [n for n in disk.list_dir(SPOOL) if not disk.is_dir(f"{SPOOL}/{n}")]
        assert {name.partition(".")[0] for name in names} == {queue}, "it would see other queues"
        assert f"{queue}." not in names, "it would not open the queue"
        assert not any("~" in name for name in names)
        parts = {name: name.split(".", 2) for name in names}
        self.writers = sorted(n for n, p in parts.items() if re.fullmatch("[0-9]+", p[1]))
        self.readers = {p[2]: n for n, p in parts.items() if p[1] == "read"}
        assert len(names) == len(self.writers) + len(self.readers) + 1  # and the lock
        by_first_id: dict[int, list[ItemPut]] = {}
        for name in self.writers:
            records = _strictly(WRITER, disk.read_bytes(f"{SPOOL}/{name}"))
            items = [record for record in records if isinstance(record, ItemPut)]
            others = [record for record in records if not isinstance(record, ItemPut)]
            assert all(map(_is_seal, others)), "a segment holds items and seals only"
            if items:
                assert items[0].item_id not in by_first_id, "one would hide the other"
                by_first_id[items[0].item_id] = items
        self.items = [item for first in sorted(by_first_id) for item in by_first_id[first]]
        ids = [item.item_id for item in self.items]
        assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True, "it stops at a gap"
        self.tail = ids[-1] if ids else 0
        self.places = {
            reader: self._place(_strictly(READER, disk.read_bytes(f"{SPOOL}/{name}")))
            for reader, name in self.readers.items()
        }
        assert "" not in self.places or len(self.places) == 1, "it would drop the default reader"

    def _place(self, records: list[Record]) -> tuple[int, list[int]]:
        head, done = (record for record in records if not _is_seal(record))
        assert isinstance(head, ReadHead)
        assert isinstance(done, ReadDone)
        assert list(done.item_ids) == sorted(set(done.item_ids))
        first_id = self.items[0].item_id if self.items else self.tail + 1
        assert first_id - 1 <= head.item_id <= self.tail, "it would move the reader"
        assert all(head.item_id < item_id <= self.tail for item_id in done.item_ids)
        return head.item_id, list(done.item_ids)

    def left_for(self, reader: str) -> list[bytes]:
        """By what READ_HEAD and READ_DONE mean (the original gives out what is done, its bug)."""
        head, done = self.places[reader]
        return [i.data for i in self.items if i.item_id > head and i.item_id not in done]


def _strictly(codec: Any, data: bytes) -> list[Record]:
    entries, ending = scan(codec, data)
    assert data[:4] == codec.header
    assert ending.clean
    assert sum(entry.length for entry in entries) + 4 == len(data), "nothing but records"
    return [entry.record for entry in entries]


def written_here(segment_bytes: int) -> tuple[SimulatedDisk, dict[str, list[bytes]]]:
    """Two readers of many segments, one with items finished out of order; what is left of each."""
    disk = SimulatedDisk()
    world = FanOutWorld(disk, segment_bytes=segment_bytes)
    world.get("jobs", "a")
    world.get("jobs", "b")
    items = [b"item %d" % n for n in range(1, 31)]
    world.put("jobs", *items)
    for _ in range(9):
        world.get("jobs", "a")
    world.checkpoint()
    opened = [world.get("jobs", "b", open=True, client=n) for n in range(12)]
    assert opened == items[:12]
    for n in (0, 1, 2, 5, 7, 8, 11):
        world.confirm("jobs", "b", 1, client=n)
    world.close()
    left_b = [items[n] for n in (3, 4, 6, 9, 10)] + items[12:]
    return disk, {"a": items[9:], "b": left_b}


@pytest.mark.parametrize("segment_bytes", [100, 200, 500, 10_000])
def test_our_folder_is_one_that_the_original_would_read(segment_bytes):
    disk, left = written_here(segment_bytes)
    folder = OriginalReading(disk, "jobs")
    assert set(folder.places) == {"a", "b"}
    assert folder.tail == 30
    for reader, items in left.items():
        assert folder.left_for(reader) == items
    assert folder.places["b"] == (3, [6, 8, 9, 12])


def test_our_folder_read_here_again_says_the_same():
    disk, left = written_here(200)
    world = FanOutWorld(disk, segment_bytes=200)
    for reader, items in left.items():
        assert world.drained("jobs", reader) == items
    world.close()
    folder = OriginalReading(disk, "jobs")
    assert folder.left_for("a") == folder.left_for("b") == []
    assert folder.places == {"a": (30, []), "b": (30, [])}
    assert len(folder.items) < 30, "what all have read has gone"


def test_a_queue_of_ours_that_nobody_has_read_yet_opens_in_the_original():
    disk = SimulatedDisk()
    world = FanOutWorld(disk, segment_bytes=100)
    world.put("jobs", b"a", b"b", b"c", b"d")
    world.close()
    folder = OriginalReading(disk, "jobs")
    assert folder.places == {"": (0, [])}
    assert folder.left_for("") == [b"a", b"b", b"c", b"d"]


def test_while_the_queues_are_served_the_folder_reads_the_same():
    disk = SimulatedDisk()
    world = FanOutWorld(disk, segment_bytes=100)
    world.put("jobs", *(b"%d" % n for n in range(20)))
    for _ in range(7):
        world.get("jobs", "a")
    world.checkpoint()
    folder = OriginalReading(disk.after_crash("lose_all_unsynced"), "jobs")
    assert folder.left_for("a") == [b"%d" % n for n in range(7, 20)]
