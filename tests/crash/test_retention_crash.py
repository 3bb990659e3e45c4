"""Power is cut at every operation of a kestrel queue; no item and no reader's place is lost."""

from __future__ import annotations

from contextlib import suppress

import pytest

from journeyman.folds.kestrel import Reader
from journeyman.formats.framing import scan
from journeyman.formats.kestrel import READER, WRITER, ItemPut, ReadDone, ReadHead
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.testing import ManualClock
from tests.support.crash.cuts import EXTREMES, Crash, crashes
from tests.support.simulated_disk import SimulatedDisk

BOTH_DISKS = pytest.mark.usefixtures("kind_of_disk")

DIRECTORY = "/spool"
ARCHIVE = "/archive"
SEGMENT_BYTES = 4 + 2 * (25 + 8)  # two items of eight bytes
ROUNDS = 5


class Server:
    """A program that puts, reads, checkpoints and retires by turns; what it was told of each."""

    def __init__(self, sync: SyncPolicy, archive: str | None) -> None:
        self.disk = SimulatedDisk()
        self.sync = sync
        self.archive = archive
        self.stored: list[int] = []  # acknowledged ids
        self.tried: list[int] = []
        # What the checkpoint of each reader may be: the last one, and one that is being written.
        self.readers: dict[str, list[Reader]] = {}

    def open(self) -> KestrelLog:
        return open_queue(self.disk, self.sync, self.archive)

    def run(self) -> None:
        journal = self.open()
        self.readers[""] = [Reader(0)]
        for number in range(ROUNDS):
            for _ in range(3):
                self.put(journal)
            if number == 1:
                self.add_reader(journal, "a", Reader(0))
            if number == 2:
                self.add_reader(journal, "b", Reader(len(self.stored)))
            for name in [name for name in self.readers if name or number == 0]:
                self.checkpoint(journal, name, self.read_on(name))
            journal.retain()
        self.drop_reader(journal, "b")
        journal.retain()
        journal.close()

    def put(self, journal: KestrelLog) -> None:
        self.tried.append(journal.next_id)
        self.stored.append(journal.put(b"%08d" % journal.next_id).item_id)

    def read_on(self, name: str) -> Reader:
        """A few items further, with one finished out of order."""
        before = self.readers[name][-1]
        head = min(before.head + (4 if name == "b" else 3), len(self.stored) - 1)
        return Reader(head, {head + 2} if head + 2 <= len(self.stored) else set())

    def checkpoint(self, journal: KestrelLog, name: str, reader: Reader) -> None:
        self.readers[name].append(reader)
        journal.checkpoint(name, reader)
        del self.readers[name][:-1]

    def add_reader(self, journal: KestrelLog, name: str, expected: Reader) -> None:
        former = self.readers.get("", [])
        self.readers[name] = [*former, expected]
        added = journal.add_reader(name)
        self.readers.pop("", None)
        self.readers[name] = [added]
        assert added == (former[-1] if former else expected)

    def drop_reader(self, journal: KestrelLog, name: str) -> None:
        journal.drop_reader(name)
        del self.readers[name]


def open_queue(
    disk: SimulatedDisk, sync: SyncPolicy = SyncPolicy.ALWAYS, archive: str | None = None
) -> KestrelLog:
    return KestrelLog.open(
        disk,
        ManualClock(),
        DIRECTORY,
        "jobs",
        sync=sync,
        segment_bytes=SEGMENT_BYTES,
        archive_directory=archive,
    )


def archived_ids(disk: SimulatedDisk) -> list[int]:
    return [
        entry.record.item_id
        for path, data in disk.files().items()
        if path.startswith(ARCHIVE)
        for entry in scan(WRITER, data)[0]
        if isinstance(entry.record, ItemPut)
    ]


def assert_nothing_is_lost(crash: Crash[Server], *, durable: bool) -> None:
    server = crash.run
    with open_queue(crash.disk, archive=server.archive) as journal:
        ids = [item.item_id for item in journal.items()]
        readers = dict(journal.readers)
        next_id = journal.next_id
    assert ids == sorted(set(ids)), crash
    assert set(ids) <= set(server.tried), crash
    for name, reader in readers.items():
        if name in server.readers and durable:
            assert reader in server.readers[name], (crash, name)
        if durable:
            still_to_read = [i for i in server.stored if not reader.is_past(i)]
            assert set(still_to_read) <= set(ids), (crash, name)
    if durable:
        assert next_id > max(server.stored, default=0), crash
        assert set(server.readers) - {"", "a", "b"} == set()
        missing = set(server.stored) - set(ids)
        assert all(reader.head >= max(missing, default=0) for reader in readers.values()), crash
        if server.archive:
            assert missing <= set(archived_ids(crash.disk)), crash
    # And it goes on: the next item is new, and every reader is given it.
    with open_queue(crash.disk, archive=server.archive) as journal:
        item = journal.put(b"%08d" % 0)
        journal.retain()
        assert item.item_id == next_id
        for name, reader in journal.readers.items():
            left = list(reader.undelivered(i.item_id for i in journal.items()))
            assert left[-1:] == [next_id], (crash, name)


@BOTH_DISKS
@pytest.mark.parametrize("archive", [None, ARCHIVE], ids=["deleted", "archived"])
def test_no_crash_loses_an_item_that_a_reader_needs(archive):
    always = SyncPolicy.ALWAYS
    for crash in crashes(lambda: Server(always, archive), lambda s: s.disk, Server.run, seeds=2):
        assert_nothing_is_lost(crash, durable=True)


@BOTH_DISKS
def test_under_a_weaker_policy_a_crash_takes_items_but_confuses_nobody():
    weak = SyncPolicy.OS
    for crash in crashes(lambda: Server(weak, None), lambda s: s.disk, Server.run, seeds=0):
        if crash.survival in EXTREMES:
            assert_nothing_is_lost(crash, durable=False)


def damaged_queue() -> SimulatedDisk:
    """A torn item, a damaged checkpoint, a default reader too many, and an unfinished file."""
    disk = SimulatedDisk()
    puts = [WRITER.encode(ItemPut(n, 1, None, 0, b"%08d" % n)) for n in range(1, 8)]
    head, done = READER.encode(ReadHead(2)), READER.encode(ReadDone((4,)))
    disk.plant(f"{DIRECTORY}/jobs.1", WRITER.header + puts[0] + puts[1])
    disk.plant(f"{DIRECTORY}/jobs.2", WRITER.header)
    disk.plant(f"{DIRECTORY}/jobs.3", WRITER.header + puts[2] + bytes(20))
    disk.plant(f"{DIRECTORY}/jobs.4", WRITER.header + puts[3] + puts[4] + puts[5][:-2])
    disk.plant(f"{DIRECTORY}/jobs.read.", READER.header + head)
    disk.plant(f"{DIRECTORY}/jobs.read.a", READER.header + head + done)
    disk.plant(f"{DIRECTORY}/jobs.read.b", READER.header + head + done[:-1])
    disk.plant(f"{DIRECTORY}/jobs.read.b~~7", b"")
    return disk


def queue_of(disk: SimulatedDisk) -> object:
    with open_queue(disk) as journal:
        return [i.item_id for i in journal.items()], dict(journal.readers), journal.next_id


@BOTH_DISKS
def test_no_crash_while_opening_a_damaged_queue_changes_what_is_found():
    expected = ([1, 2, 3, 4, 5], {"a": Reader(2, {4}), "b": Reader(0)}, 6)
    assert queue_of(damaged_queue()) == expected
    for crash in crashes(damaged_queue, lambda disk: disk, queue_of):
        assert queue_of(crash.disk) == expected, crash


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "remove", "sync_dir", "create"])
@pytest.mark.parametrize("skip", range(3))
def test_no_failing_operation_of_checkpoint_or_retention_loses_anything(kind, skip):
    disk = SimulatedDisk()
    journal = open_queue(disk, archive=ARCHIVE if skip else None)
    for _ in range(7):
        journal.put(b"%08d" % 0)
    journal.checkpoint("", Reader(1))
    disk.fail(kind, skip=skip)
    with suppress(OSError):
        journal.checkpoint("", Reader(5))
        journal.retain()
    disk.heal()
    for look in (disk.after_crash("lose_all_unsynced"), disk.after_crash("keep_all_unsynced")):
        with open_queue(look) as again:
            reader = again.readers[""]
            assert reader in (Reader(1), Reader(5))
            left = list(reader.undelivered(i.item_id for i in again.items()))
            assert left == list(range(reader.head + 1, 8))
            assert again.next_id == 8
    journal.checkpoint("", Reader(5))
    journal.retain()
    assert journal.segments[0].first_id in (5, 6)
    assert journal.segments[-1].last_id == 7
    journal.close()
