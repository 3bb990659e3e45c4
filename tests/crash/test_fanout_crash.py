"""Power is cut at every operation of the served queues: put, rotate, checkpoint, retire, delete.

    always     what was answered is there; what a checkpoint says is finished stays away
    weaker     items may be missing from the end, and nothing else is wrong

The program keeps a book of what it was told, as a client would; what is found after the crash is
compared with it, and then goes on being a queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.support.crash.cuts import Crash, crashes
from tests.support.fanout_world import FanOutWorld
from tests.support.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("kind_of_disk")

SEGMENT_BYTES = 4 + 3 * (25 + 4)  # three items
READERS = ("a", "b")
ARCHIVE = "/archive"


@dataclass
class Life:
    """One program and its book."""

    sync: bool = True
    archive: str | None = None
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    tried: list[bytes] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    confirmed: dict[str, list[bytes]] = field(default_factory=lambda: {r: [] for r in READERS})
    saved: dict[str, list[bytes]] = field(default_factory=lambda: {r: [] for r in READERS})
    known: list[str] = field(default_factory=list)  # readers that were told that there is nothing

    def begin(self) -> FanOutWorld:
        return FanOutWorld(
            self.disk,
            sync=self.sync,
            segment_bytes=SEGMENT_BYTES,
            archive_directory=self.archive,
        )

    def put(self, world: FanOutWorld, count: int) -> None:
        for _ in range(count):
            data = b"%04d" % len(self.tried)
            self.tried.append(data)
            world.put("q", data)
            self.stored.append(data)

    def read(self, world: FanOutWorld, reader: str, count: int) -> None:
        for _ in range(count):
            data = world.get("q", reader)
            assert data is not None
            self.confirmed[reader].append(data)

    def checkpoint(self, world: FanOutWorld) -> None:
        confirmed = {reader: list(items) for reader, items in self.confirmed.items()}
        world.checkpoint()
        self.saved = confirmed

    def run(self) -> None:
        world = self.begin()
        for reader in READERS:
            assert world.get("q", reader) is None
            self.known.append(reader)
        self.put(world, 5)
        self.read(world, "a", 4)
        self.checkpoint(world)
        self.put(world, 4)
        world.get("q", "b", open=True, client="slow")  # never confirmed: others pass it by
        self.read(world, "b", 6)
        self.checkpoint(world)
        world.close()
        world = self.begin()
        self.read(world, "a", 5)
        self.put(world, 3)
        self.checkpoint(world)
        assert world.get("q", "b") == self.stored[0]
        self.confirmed["b"].insert(0, self.stored[0])
        self.read(world, "b", 4)
        self.checkpoint(world)
        self.put(world, 2)
        world.close()


def found_in(crash: Crash[Life]) -> dict[str, list[bytes]]:
    """What each reader is given after the crash; and that the queue goes on afterwards."""
    life = crash.run
    world = FanOutWorld(crash.disk, segment_bytes=SEGMENT_BYTES, archive_directory=life.archive)
    queue = world.engine.queues.get("q")
    given: dict[str, list[bytes]] = {}
    for reader in list(queue.readers) if queue is not None else []:
        counted = world.engine.queues["q"].readers[reader].items
        given[reader] = world.drained("q", reader)
        assert counted == len(given[reader]), (crash, reader)
    world.put("q", b"new")
    for reader in given:
        assert world.drained("q", reader) == [b"new"], (crash, reader)
    world.close()
    again = FanOutWorld(crash.disk, segment_bytes=SEGMENT_BYTES)
    assert all(again.drained("q", reader) == [] for reader in given), crash
    return given


def check(crash: Crash[Life], *, durable: bool) -> None:
    life, given = crash.run, found_in(crash)
    for reader, items in given.items():
        assert items == sorted(set(items)), (crash, reader, "in order, none twice")
        assert set(items) <= set(life.tried), (crash, reader)
        saved, confirmed = life.saved.get(reader, []), life.confirmed.get(reader, [])
        assert not set(items) & set(saved), (crash, reader, "came again")
        if durable and reader in READERS:
            lost = set(life.stored) - set(items) - set(confirmed)
            assert not lost, (crash, reader, lost)
    if durable:
        assert set(given) >= set(life.known), crash


@pytest.mark.parametrize("archive", [None, ARCHIVE], ids=["deleted", "archived"])
def test_what_was_answered_is_there_and_what_was_checkpointed_stays_away(archive):
    for crash in crashes(lambda: Life(archive=archive), lambda life: life.disk, Life.run, seeds=1):
        check(crash, durable=True)


def test_under_a_weaker_policy_items_may_be_missing_and_nothing_else_is_wrong():
    """And where the program alone dies, as by kill -9 at every operation, nothing is missing."""
    for crash in crashes(lambda: Life(sync=False), lambda life: life.disk, Life.run, seeds=1):
        check(crash, durable=crash.survival == "keep_all_unsynced")


# -- deleting ------------------------------------------------------------------------------------


@dataclass
class Deleting:
    disk: SimulatedDisk
    answered: bool = False

    def run(self) -> None:
        world = FanOutWorld(self.disk, segment_bytes=SEGMENT_BYTES)
        world.delete("q")
        self.answered = True
        world.put("other", b"x")


def with_backlog() -> Deleting:
    disk = SimulatedDisk()
    world = FanOutWorld(disk, segment_bytes=SEGMENT_BYTES)
    for reader in READERS:
        world.get("q", reader)
    world.put("q", *(b"%04d" % n for n in range(10)))
    world.get("q", "a")
    world.close()
    return Deleting(disk)


def test_a_deleted_queue_stays_away_and_one_half_deleted_is_there_or_empty():
    for crash in crashes(with_backlog, lambda run: run.disk, Deleting.run, seeds=2):
        world = FanOutWorld(crash.disk, segment_bytes=SEGMENT_BYTES)
        queue = world.engine.queues.get("q")
        given = {r: len(world.drained("q", r)) for r in (queue.readers if queue else ())}
        if crash.run.answered:
            assert given == {}, crash
        else:
            whole = {"a": 9, "b": 10}
            assert given in ({}, {"": 0}) or all(given[r] == whole[r] for r in given), crash
        world.put("q", b"new")
        assert world.drained("q", next(iter(given), "")) == [b"new"], crash
