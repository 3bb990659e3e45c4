"""The state of all fan-out queues, and how a batch of changes to it is taken back.

    queues      by name                     what is saved of each thing, once per batch, before its
    open        reads, by client and key    first change: see ``touch``
    waits       by client
    now_ns, records, effects                of the command that is being decided

An open read belongs to the connection that made it; the reader only counts it.

A client waits for one thing: an item, or what is being read from disk. Those of one reader stand in
line there; here they are found by client, and by the moment at which they are over. The heap is
cleared lazily: an entry counts only while it is the present wait of its client.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from journeyman.engines.kestrel import messages
from journeyman.engines.kestrel.queue import FanReader, ItemQueue, KestrelOptions, Wait
from journeyman.folds.kestrel import DEFAULT_READER, Reader
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.commands import Key
from journeyman.protocols.kestrel.replies import END, Reply, ServerError
from journeyman.units import NS_PER_MS

# With very many queues the window of each is smaller than is set, but never than the least.
ALL_WINDOWS_BYTES = 256 * 1024 * 1024
LEAST_WINDOW_BYTES = 64 * 1024

_TOO_MANY_QUEUES = ServerError("there are too many queues")
_HELD_OFF = ServerError("the queue has journals of kestrel 1.x or 2.x, which are not read here")
_TOO_MANY_READERS = ServerError("the queue has too many readers")
_NAMED_READERS = ServerError("the queue has named readers: ask for queue+reader")
_NOTHING: deque[ItemPut] = deque()


_Changes: TypeAlias = tuple[int | None, int, bool]  # left, bytes_left, over


@dataclass(slots=True)
class Waits:
    _of_client: dict[messages.Client, Wait] = field(default_factory=dict)
    _by_time: list[tuple[int, int, Wait]] = field(default_factory=list)
    _serial: count[int] = field(default_factory=count)
    # The earlier state, for undo: the client's wait, and those fields of it that can change.
    _before: list[tuple[messages.Client, Wait | None, _Changes]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._of_client)

    def wait_of(self, client: messages.Client) -> Wait | None:
        return self._of_client.get(client)

    def begin(self, wait: Wait) -> None:
        self._before.append((wait.client, self._of_client.get(wait.client), (None, 0, False)))
        self._of_client[wait.client] = wait
        if not wait.over:
            wait.serial = next(self._serial)
            self._push(wait)

    def end(self, wait: Wait) -> None:
        self._note(wait)
        del self._of_client[wait.client]

    def note_served(self, wait: Wait, size: int) -> None:
        """A monitor has had an item."""
        assert wait.left is not None
        self._note(wait)
        wait.left -= 1
        wait.bytes_left -= size

    def first_over_ns(self) -> int | None:
        while self._by_time:
            over_ns, _, wait = self._by_time[0]
            if self._of_client.get(wait.client) is wait:
                return over_ns
            heapq.heappop(self._by_time)
        return None

    def take_over(self, now_ns: int) -> Wait | None:
        """One whose time has come. It is not ended by this, but will not be returned again."""
        first_ns = self.first_over_ns()
        if first_ns is None or first_ns > now_ns:
            return None
        wait = heapq.heappop(self._by_time)[2]
        self._note(wait)
        wait.over = True
        return wait

    def hurry(self, wait: Wait) -> None:
        """Its time is over, whatever it was."""
        self._note(wait)
        wait.over = True

    def commit(self) -> None:
        self._before.clear()

    def undo(self) -> None:
        while self._before:
            client, wait, changes = self._before.pop()
            if wait is None:
                self._of_client.pop(client, None)
            else:
                wait.left, wait.bytes_left, wait.over = changes
                self._of_client[client] = wait
                if not wait.over:
                    self._push(wait)

    def _note(self, wait: Wait) -> None:
        self._before.append((wait.client, wait, (wait.left, wait.bytes_left, wait.over)))

    def _push(self, wait: Wait) -> None:
        heapq.heappush(self._by_time, (wait.over_ns, wait.serial, wait))


class LoadedReader(NamedTuple):
    """A reader as its journal was opened, and what it still has to be given."""

    name: str
    place: Reader
    items: int
    data_bytes: int


class KestrelState:
    def __init__(self, settings: KestrelOptions | None = None) -> None:
        self.settings = settings or KestrelOptions()
        self.queues: dict[str, ItemQueue] = {}
        self.open: dict[messages.Client, dict[Key, deque[ItemPut]]] = {}
        self.waits = Waits()
        self.counts = messages.Counts()
        self.held_off: frozenset[str] = frozenset()  # queues that cannot be made
        self.gives_items = True  # if not, open reads can still be confirmed, closed and aborted
        self.sweep_due_ns: int | None = None
        self.to_sweep: list[Key] = []
        # These belong to the command that is being decided.
        self.now_ns = 0
        self.records: list[messages.Write] = []
        self.effects: list[messages.Effect] = []
        # These belong to the batch.
        self._saved: dict[ItemQueue | FanReader, tuple[Any, ...]] = {}
        self._saved_queues: dict[str, ItemQueue] | None = None
        self._saved_open: dict[messages.Client, dict[Key, deque[ItemPut]]] = {}
        self.grown: set[ItemQueue] = set()
        self._saved_counts = messages.Counts()
        self._serial = self._saved_serial = 0  # the number of the newest reader

    def load(
        self, queue: str, *, next_id: int, created_ms: int, readers: Iterable[LoadedReader]
    ) -> None:
        """A queue as its journal was opened. Not within a batch."""
        loaded = ItemQueue(queue, self.settings.of_queue(queue), next_id, created_ms)
        for name, place, items, data_bytes in readers:
            loaded.add_reader(name, place, items=items, data_bytes=data_bytes)
        self.queues[queue] = loaded

    # -- batches --

    def begin_batch(self) -> None:
        assert not self._saved, "the batch before has not ended"
        self._saved_counts = replace(self.counts)
        self._saved_serial = self._serial

    def commit_batch(self) -> None:
        if self.grown:
            settings = self.settings
            share = max(ALL_WINDOWS_BYTES // max(1, len(self.queues)), LEAST_WINDOW_BYTES)
            for queue in self.grown:
                queue.shrink(settings.window_items, min(settings.window_bytes, share))
        self.end_batch()
        self.waits.commit()

    def undo_batch(self) -> None:
        self.records, self.effects = [], []
        self._serial = self._saved_serial
        if self._saved_queues is not None:
            self.queues.clear()
            self.queues.update(self._saved_queues)
        # Queues last: they look at the settings of their readers.
        for kind in (FanReader, ItemQueue):
            for thing, state in self._saved.items():
                if type(thing) is kind:
                    thing.restore(state)
        for client, opened in self._saved_open.items():
            if opened:
                self.open[client] = opened
            else:
                self.open.pop(client, None)
        self.waits.undo()
        self.counts = self._saved_counts
        self.end_batch()

    def end_batch(self) -> None:
        self._saved.clear()
        self._saved_queues = None
        self._saved_open.clear()
        self.grown.clear()

    def touch(self, changing: ItemQueue | FanReader) -> None:
        """About to be changed."""
        if changing not in self._saved:
            self._saved[changing] = changing.save()

    def touch_client(self, client: messages.Client) -> None:
        if client not in self._saved_open:
            opened = self.open.get(client, {})
            self._saved_open[client] = {key: items.copy() for key, items in opened.items()}

    def touch_queues(self) -> None:
        if self._saved_queues is None:
            self._saved_queues = self.queues.copy()

    # -- finding --

    def known_reader(self, key: Key) -> tuple[ItemQueue, FanReader] | None:
        queue = self.queues.get(key.queue)
        reader = queue.readers.get(key.reader) if queue is not None else None
        return None if queue is None or reader is None else (queue, reader)

    def queue_for(self, name: str) -> ItemQueue | ServerError:
        """The queue to put into, made if need be; or why it cannot be had.

        It has a reader: what is put before any reader exists is for the first one.
        """
        queue: ItemQueue | ServerError | None = self.queues.get(name)
        if queue is None:
            queue = self.make_queue(name)
        if isinstance(queue, ItemQueue) and not queue.readers:
            self.make_reader(queue, DEFAULT_READER)
        return queue

    def reader_for(self, key: Key) -> tuple[ItemQueue, FanReader] | ServerError:
        """The reader, made if need be; or why it cannot be had."""
        queue: ItemQueue | ServerError | None = self.queues.get(key.queue)
        if queue is None:
            queue = self.make_queue(key.queue)
        if isinstance(queue, ServerError):
            return queue
        reader = queue.readers.get(key.reader)
        if reader is None:
            if key.reader == DEFAULT_READER and queue.readers:
                return _NAMED_READERS
            if len(queue.readers) >= self.settings.max_readers:
                return _TOO_MANY_READERS
            reader = self.make_reader(queue, key.reader)
        return queue, reader

    def make_queue(self, name: str) -> ItemQueue | ServerError:
        if name in self.held_off:
            return _HELD_OFF
        if len(self.queues) >= self.settings.max_queues:
            return _TOO_MANY_QUEUES
        self.touch_queues()
        queue = ItemQueue(name, self.settings.of_queue(name), 1, self.now_ns // NS_PER_MS)
        self.queues[name] = queue
        self.counts.queues_made += 1
        return queue

    def make_reader(self, queue: ItemQueue, name: str) -> FanReader:
        """Make a reader at the tail; the first named one takes the place of the default reader."""
        self.touch(queue)
        takes_over = name != DEFAULT_READER and DEFAULT_READER in queue.readers
        if takes_over:
            reader = queue.readers[DEFAULT_READER]
            for wait in list(reader.waiters):  # for a reader that no longer exists
                self.end_wait(queue, reader, wait, END)
            self.touch(reader)
            queue.rename_reader(DEFAULT_READER, name)
            self.rename_open(Key(queue.name), Key(queue.name, name))
        else:
            reader = queue.add_reader(name, Reader(queue.next_id - 1))
        self._serial += 1
        reader.serial = self._serial
        self.records.append(
            messages.AddReader(queue.name, name, reader.head, takes_over, reader.serial)
        )
        return reader

    # -- waiting --

    def begin_wait(self, queue: ItemQueue, reader: FanReader, wait: Wait) -> None:
        self.touch(queue)
        self.waits.begin(wait)
        reader.waiters[wait] = None
        queue.waiting[reader] = None

    def end_wait(
        self, queue: ItemQueue, reader: FanReader, wait: Wait, reply: Reply | None
    ) -> None:
        self.touch(queue)
        self.touch(reader)
        del reader.waiters[wait]
        if not reader.waiters:
            del queue.waiting[reader]
        self.waits.end(wait)
        if reply is not None:
            self.counts.misses += reply is END and wait.left is None
            self.effects.append(messages.KestrelAnswer(wait.client, reply))

    def end_waits_that_are_over(self, queue: ItemQueue, reader: FanReader) -> None:
        for wait in [wait for wait in reader.waiters if wait.over]:
            self.end_wait(queue, reader, wait, END)

    # -- open reads --

    def opened(self, client: messages.Client, key: Key) -> deque[ItemPut]:
        of_client = self.open.get(client)
        return _NOTHING if of_client is None else of_client.get(key, _NOTHING)

    def take_opened(self, client: messages.Client, key: Key) -> ItemPut:
        """The oldest; the client has been touched."""
        return self.take_many_opened(client, key, 1)[0]

    def take_many_opened(self, client: messages.Client, key: Key, count: int) -> list[ItemPut]:
        """Take so many of the oldest items that the client has open, and that it has; the client
        has been touched."""
        of_client = self.open[client]
        items = of_client[key]
        taken = [items.popleft() for _ in range(count)]
        if not items:
            del of_client[key]
            if not of_client:
                del self.open[client]
        return taken

    def clients_with_open(self, key: Key) -> list[messages.Client]:
        return [client for client, opened in self.open.items() if key in opened]

    def rename_open(self, key: Key, new_key: Key) -> None:
        for client in self.clients_with_open(key):
            self.touch_client(client)
            self.open[client][new_key] = self.open[client].pop(key)

    def open_of(self, client: messages.Client, key: Key) -> deque[ItemPut]:
        of_client = self.open.get(client)
        if of_client is None:
            of_client = self.open[client] = {}
        items = of_client.get(key)
        if items is None:
            items = of_client[key] = deque()
        return items

    def plan_sweep(self) -> None:
        """Something was written, which may expire."""
        if self.sweep_due_ns is None:
            self.sweep_due_ns = self.now_ns + self.settings.sweep_interval_ms * NS_PER_MS

    def next_due_ns(self) -> int | None:
        due_ns = (self.waits.first_over_ns(), self.sweep_due_ns)
        return min((moment_ns for moment_ns in due_ns if moment_ns is not None), default=None)

    def changes_files(self, command: Any) -> bool:
        if isinstance(command, ask.Put):
            queue = self.queues.get(command.queue)
            return queue is None or not queue.readers
        if isinstance(command, ask.GetItem | ask.Monitor):
            return self.known_reader(command.key) is None
        if isinstance(command, ask.DeleteQueue):
            whole = command.key.reader == DEFAULT_READER and command.key.queue in self.queues
            return whole or self.known_reader(command.key) is not None
        return False

    def stats(self) -> messages.KestrelStats:
        # Lists first: it may be asked from another thread while queues come and go.
        queues = list(self.queues.values())
        readers = [reader for queue in queues for reader in list(queue.readers.values())]
        return messages.KestrelStats(
            len(queues),
            len(readers),
            sum(reader.items for reader in readers),
            sum(reader.data_bytes for reader in readers),
            sum(reader.open_items for reader in readers),
            len(self.waits),
        )
