"""The fan-out queues and their journals against a plain model, through stops, kills, power cuts.

model    a queue is a list of items; a reader is the set of items it has finished, the same as
         of its last checkpoint, and the items that are open or were given back

stop     all that is finished is saved; what was open comes again
kill     back to what was saved; whatever was written stays
power    the same under ``always``: whatever was answered stays
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journeyman.engines.kestrel.messages import KestrelGone
from journeyman.protocols.kestrel.commands import GetItem, Key, Put
from tests.support.effort import cases
from tests.support.fanout_world import END, SMALL, STORED, FanOutWorld, data_of
from tests.support.simulated_database import SimulatedDatabase
from tests.support.simulated_disk import PowerCut, SimulatedDisk

SEGMENT_BYTES = 4 + 3 * (25 + 3)
QUEUES = st.sampled_from(["q", "r"])
READERS = st.sampled_from(["", "a", "b"])
CLIENTS = st.sampled_from(["x", "y"])


@dataclass
class ModelReader:
    start: int  # how many items there were before it
    finished: set[bytes] = field(default_factory=set)
    saved: set[bytes] = field(default_factory=set)
    returned: list[bytes] = field(default_factory=list)
    open: list[tuple[str, bytes]] = field(default_factory=list)

    def left(self, items: list[bytes]) -> list[bytes]:
        """What it is given from here on, in this order."""
        away = self.finished | {data for _, data in self.open} | set(self.returned)
        return self.returned + [data for data in items[self.start :] if data not in away]

    def come_back(self) -> None:
        self.finished = set(self.saved)
        self.returned.clear()
        self.open.clear()


@dataclass
class ModelQueue:
    items: list[bytes] = field(default_factory=list)
    readers: dict[str, ModelReader] = field(default_factory=dict)

    def reader(self, name: str) -> ModelReader | None:
        """Made if need be; None: there are named ones only."""
        if name not in self.readers:
            if name == "" and self.readers:
                return None
            default = self.readers.pop("", None)
            self.readers[name] = default or ModelReader(len(self.items))
        return self.readers[name]


class PersistentMachine(RuleBasedStateMachine):
    make_disk: Any = SimulatedDisk

    @initialize(sync=st.booleans())
    def begin(self, sync):
        self.sync = sync
        self.disk = self.make_disk()
        self.queues: dict[str, ModelQueue] = {}
        self.number = 0
        self.start()

    def start(self) -> None:
        self.world = FanOutWorld(self.disk, sync=self.sync, segment_bytes=SEGMENT_BYTES)

    def new_item(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    # -- clients --

    @rule(queue=QUEUES, count=st.integers(1, 5))
    def put(self, queue, count):
        for _ in range(count):
            data = self.new_item()
            self.world.put(queue, data)
            model = self.queues.setdefault(queue, ModelQueue())
            if not model.readers:
                model.reader("")
            model.items.append(data)

    @rule(queue=QUEUES, name=READERS, count=st.integers(1, 4))
    def get(self, queue, name, count):
        model = self.queues.setdefault(queue, ModelQueue())
        reader = model.reader(name)
        for _ in range(count):
            reply = self.world.ask(GetItem(Key(queue, name)))
            if reader is None:
                assert reply.startswith(b"SERVER_ERROR the queue has named readers")
                return
            expected = next(iter(reader.left(model.items)), None)
            assert data_of(reply) == expected
            if expected is None:
                return
            reader.finished.add(expected)
            if expected in reader.returned:
                reader.returned.remove(expected)

    @rule(queue=QUEUES, name=READERS, client=CLIENTS)
    def open_one(self, queue, name, client):
        model = self.queues.setdefault(queue, ModelQueue())
        reader = model.reader(name)
        if reader is None:
            return
        expected = next(iter(reader.left(model.items)), None)
        assert self.world.get(queue, name, open=True, client=client) == expected
        if expected is not None:
            reader.open.append((client, expected))
            if expected in reader.returned:
                reader.returned.remove(expected)

    @rule(queue=QUEUES, name=READERS, client=CLIENTS)
    def confirm_oldest(self, queue, name, client):
        reader = self.known(queue, name)
        mine = [entry for entry in reader.open if entry[0] == client] if reader else []
        if reader is None or not mine:
            return
        self.world.confirm(queue, name, 1, client)
        reader.open.remove(mine[0])
        reader.finished.add(mine[0][1])

    @rule(queue=QUEUES, name=READERS, client=CLIENTS)
    def abort_oldest(self, queue, name, client):
        reader = self.known(queue, name)
        mine = [entry for entry in reader.open if entry[0] == client] if reader else []
        if reader is None or not mine:
            return
        assert self.world.ask(GetItem(Key(queue, name), abort=True), client) == END
        reader.open.remove(mine[0])
        reader.returned.append(mine[0][1])

    @rule(client=CLIENTS)
    def goes_away(self, client):
        self.world.decide(KestrelGone(client))
        for model in self.queues.values():
            for reader in model.readers.values():
                reader.returned += [data for owner, data in reader.open if owner == client]
                reader.open = [entry for entry in reader.open if entry[0] != client]

    @rule(queue=QUEUES, name=READERS)
    def flush(self, queue, name):
        self.world.flush(queue, name)
        model = self.queues.get(queue, ModelQueue())
        for reader in [r for n, r in model.readers.items() if name in ("", n)]:
            reader.finished |= set(reader.left(model.items))
            reader.returned.clear()

    @rule(queue=QUEUES, name=READERS)
    def delete(self, queue, name):
        self.world.delete(queue, name)
        if name == "":
            self.queues.pop(queue, None)
        elif queue in self.queues:
            self.queues[queue].readers.pop(name, None)

    def known(self, queue: str, name: str) -> ModelReader | None:
        return self.queues[queue].readers.get(name) if queue in self.queues else None

    # -- the server --

    @rule()
    def checkpoint(self):
        self.world.checkpoint()
        self.note_saved()

    def note_saved(self) -> None:
        for model in self.queues.values():
            for reader in model.readers.values():
                reader.saved = set(reader.finished)

    @rule()
    def stops_in_order(self):
        self.world.close()
        self.note_saved()
        self.comes_back()

    @rule()
    def is_killed(self):
        self.disk = self.disk.after_crash("keep_all_unsynced")
        self.comes_back()

    @precondition(lambda self: self.sync)
    @rule(survival=st.one_of(st.just("lose_all_unsynced"), st.integers(0, 1000)))
    def loses_power(self, survival):
        self.disk = self.disk.after_crash(survival)
        self.comes_back()

    @rule(queue=QUEUES, operation=st.integers(1, 12), torn=st.floats(0, 1))
    def loses_power_during_a_put(self, queue, operation, torn):
        data = self.new_item()
        self.disk.cut_power_at(operation, torn=torn)
        answered = False
        with suppress(PowerCut):
            answered = self.world.ask(Put(queue, 0, data)) == STORED
        self.disk = self.disk.after_crash("lose_all_unsynced" if self.sync else "keep_all_unsynced")
        if answered:
            model = self.queues.setdefault(queue, ModelQueue())
            model.reader("") if not model.readers else None
            model.items.append(data)
        elif queue not in self.queues:
            self.adopt_new_queue(queue, data)
        else:
            self.adopt_if_there(queue, data)
        self.comes_back()

    def adopt_new_queue(self, queue: str, data: bytes) -> None:
        """It may have been made, and with its item."""
        self.start()
        found = self.world.engine.queues.get(queue)
        self.world.journals.close()
        if found is not None:
            self.queues[queue] = ModelQueue([data][: found.next_id - 1], {"": ModelReader(0)})

    def adopt_if_there(self, queue: str, data: bytes) -> None:
        model = self.queues[queue]
        self.start()
        stored = self.world.engine.queues[queue].next_id - 1
        self.world.journals.close()
        if not model.readers:
            model.readers[""] = ModelReader(len(model.items))
        if stored > len(model.items):
            model.items.append(data)

    def comes_back(self) -> None:
        self.start()
        for model in self.queues.values():
            if not model.readers:  # the last one was deleted
                model.readers[""] = ModelReader(len(model.items))
            for reader in model.readers.values():
                reader.come_back()

    # -- always --

    @invariant()
    def every_reader_has_before_it_what_the_model_says(self):
        found = {
            (name, reader.name): (reader.items, reader.open_items)
            for name, queue in self.world.engine.queues.items()
            for reader in queue.readers.values()
        }
        assert found == {
            (name, of): (len(reader.left(queue.items)), len(reader.open))
            for name, queue in self.queues.items()
            for of, reader in queue.readers.items()
        }

    @invariant()
    def ids_are_given_out_once_and_memory_is_bounded(self):
        for name, queue in self.world.engine.queues.items():
            assert queue.next_id == len(self.queues[name].items) + 1
            assert len(queue.window) <= SMALL.window_items

    def teardown(self):
        """In the end every reader is given what is left, once."""
        for name, queue in getattr(self, "queues", {}).items():
            for of, reader in queue.readers.items():
                left = reader.left(queue.items)
                assert self.world.drained(name, of) == left


class DatabaseMachine(PersistentMachine):
    """The same on the disk in PostgreSQL, under ``always``.

    What nobody syncs is in the memory of the server until the next flush: a kill may lose it there.
    """

    make_disk = SimulatedDatabase

    @initialize(sync=st.just(True))
    def begin(self, sync):
        super().begin(sync)


PersistentMachine.TestCase.settings = settings(
    max_examples=cases(40), stateful_step_count=40, deadline=None
)
DatabaseMachine.TestCase.settings = settings(
    max_examples=cases(10), stateful_step_count=40, deadline=None
)
TestPersistence = PersistentMachine.TestCase
TestPersistenceInDatabase = DatabaseMachine.TestCase
