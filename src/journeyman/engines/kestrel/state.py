"""The state of all fan-out queues, and how a batch of changes to it is taken back.

    queues      by name                     what is saved of each thing, once a batch, before its
    open reads  by client and key           first change: see ``_touch``
    waits       by client

An open read belongs to the connection that made it; the reader only counts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from journeyman.engines.kestrel.messages import (
    END,
    AddReader,
    Client,
    Counts,
    Effect,
    KestrelAnswer,
    Reply,
    Write,
)
from journeyman.engines.kestrel.queue import ItemQueue
from journeyman.engines.kestrel.reader import FanReader
from journeyman.engines.kestrel.settings import FanOutSettings
from journeyman.engines.kestrel.waits import Wait, Waits
from journeyman.folds.kestrel import DEFAULT_READER, Reader
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel import replies as words
from journeyman.protocols.kestrel.commands import Key
from journeyman.units import NS_PER_MS

# With very many queues the window of each is smaller than is set, but never than the least.
ALL_WINDOWS_BYTES = 256 * 1024 * 1024
LEAST_WINDOW_BYTES = 64 * 1024

_TOO_MANY_QUEUES = Reply(words.server_error("there are too many queues"))
_NOT_IMPORTED = Reply(
    words.server_error("the queue has journals of kestrel 1.x or 2.x: import them first")
)
_TOO_MANY_READERS = Reply(words.server_error("the queue has too many readers"))
_NAMED_READERS = Reply(words.server_error("the queue has named readers: ask for queue+reader"))
_NOTHING: deque[ItemPut] = deque()


class LoadedReader(NamedTuple):
    """A reader as its journal was opened, and what it still has to be given."""

    name: str
    place: Reader
    items: int
    data_bytes: int


class FanOutState:
    def __init__(self, settings: FanOutSettings | None = None) -> None:
        self.settings = settings or FanOutSettings()
        self.queues: dict[str, ItemQueue] = {}
        self._open: dict[Client, dict[Key, deque[ItemPut]]] = {}
        self._waits = Waits()
        self.counts = Counts()
        self.not_imported: frozenset[str] = frozenset()  # queues that cannot be made before that
        # Of the command that is being decided.
        self._writes: list[Write] = []
        self._effects: list[Effect] = []
        # Of the batch.
        self._saved: dict[ItemQueue | FanReader, tuple[Any, ...]] = {}
        self._saved_queues: dict[str, ItemQueue] | None = None
        self._saved_open: dict[Client, dict[Key, deque[ItemPut]]] = {}
        self._grown: set[ItemQueue] = set()
        self._saved_counts = Counts()
        self._serial = self._saved_serial = 0  # of the reader that was made last

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
        if self._grown:
            settings = self.settings
            share = max(ALL_WINDOWS_BYTES // max(1, len(self.queues)), LEAST_WINDOW_BYTES)
            for queue in self._grown:
                queue.shrink(settings.window_items, min(settings.window_bytes, share))
        self._end_batch()
        self._waits.commit()

    def undo_batch(self) -> None:
        self._serial = self._saved_serial
        if self._saved_queues is not None:
            self.queues = self._saved_queues
        # Queues last: they look at the settings of their readers.
        for kind in (FanReader, ItemQueue):
            for thing, state in self._saved.items():
                if type(thing) is kind:
                    thing.restore(state)
        for client, opened in self._saved_open.items():
            if opened:
                self._open[client] = opened
            else:
                self._open.pop(client, None)
        self._waits.undo()
        self.counts = self._saved_counts
        self._end_batch()

    def _end_batch(self) -> None:
        self._saved.clear()
        self._saved_queues = None
        self._saved_open.clear()
        self._grown.clear()

    def _touch(self, thing: ItemQueue | FanReader) -> None:
        """About to be changed."""
        if thing not in self._saved:
            self._saved[thing] = thing.save()

    def _touch_client(self, client: Client) -> None:
        if client not in self._saved_open:
            opened = self._open.get(client, {})
            self._saved_open[client] = {key: items.copy() for key, items in opened.items()}

    def _touch_queues(self) -> None:
        if self._saved_queues is None:
            self._saved_queues = self.queues.copy()

    # -- finding --

    def _known_reader(self, key: Key) -> tuple[ItemQueue, FanReader] | None:
        queue = self.queues.get(key.queue)
        reader = queue.readers.get(key.reader) if queue is not None else None
        return None if queue is None or reader is None else (queue, reader)

    def _queue_for(self, name: str, now_ns: int) -> ItemQueue | Reply:
        """The queue to put into, made if need be; or why it cannot be had.

        It has a reader: what is put while nobody reads is for whoever comes first.
        """
        queue: ItemQueue | Reply | None = self.queues.get(name)
        if queue is None:
            queue = self._make_queue(name, now_ns)
        if isinstance(queue, ItemQueue) and not queue.readers:
            self._make_reader(queue, DEFAULT_READER)
        return queue

    def _reader_for(self, key: Key, now_ns: int) -> tuple[ItemQueue, FanReader] | Reply:
        """The reader, made if need be; or why it cannot be had."""
        queue: ItemQueue | Reply | None = self.queues.get(key.queue)
        if queue is None:
            queue = self._make_queue(key.queue, now_ns)
        if isinstance(queue, Reply):
            return queue
        reader = queue.readers.get(key.reader)
        if reader is None:
            if key.reader == DEFAULT_READER and queue.readers:
                return _NAMED_READERS
            if len(queue.readers) >= self.settings.max_readers:
                return _TOO_MANY_READERS
            reader = self._make_reader(queue, key.reader)
        return queue, reader

    def _make_queue(self, name: str, now_ns: int) -> ItemQueue | Reply:
        if name in self.not_imported:
            return _NOT_IMPORTED
        if len(self.queues) >= self.settings.max_queues:
            return _TOO_MANY_QUEUES
        self._touch_queues()
        queue = ItemQueue(name, self.settings.of_queue(name), 1, now_ns // NS_PER_MS)
        self.queues[name] = queue
        self.counts.queues_made += 1
        return queue

    def _make_reader(self, queue: ItemQueue, name: str) -> FanReader:
        """At the tail; the first named one takes the place of the default reader."""
        self._touch(queue)
        takes_over = name != DEFAULT_READER and DEFAULT_READER in queue.readers
        if takes_over:
            reader = queue.readers[DEFAULT_READER]
            for wait in list(reader.waiters):  # for a reader that is no more
                self._end_wait(queue, reader, wait, END)
            self._touch(reader)
            queue.rename_reader(DEFAULT_READER, name)
            self._rename_open(Key(queue.name), Key(queue.name, name))
        else:
            reader = queue.add_reader(name, Reader(queue.next_id - 1))
        self._serial += 1
        reader.serial = self._serial
        self._writes.append(AddReader(queue.name, name, reader.head, takes_over, reader.serial))
        return reader

    # -- waiting --

    def _begin_wait(self, queue: ItemQueue, reader: FanReader, wait: Wait) -> None:
        self._touch(queue)
        self._waits.begin(wait)
        reader.waiters[wait] = None
        queue.waiting[reader] = None

    def _end_wait(
        self, queue: ItemQueue, reader: FanReader, wait: Wait, reply: Reply | None
    ) -> None:
        self._touch(queue)
        self._touch(reader)
        del reader.waiters[wait]
        if not reader.waiters:
            del queue.waiting[reader]
        self._waits.end(wait)
        if reply is not None:
            self.counts.misses += reply is END and wait.left is None
            self._effects.append(KestrelAnswer(wait.client, reply))

    def _end_waits_that_are_over(self, queue: ItemQueue, reader: FanReader) -> None:
        for wait in [wait for wait in reader.waiters if wait.over]:
            self._end_wait(queue, reader, wait, END)

    # -- open reads --

    def _opened(self, client: Client, key: Key) -> deque[ItemPut]:
        of_client = self._open.get(client)
        return _NOTHING if of_client is None else of_client.get(key, _NOTHING)

    def _take_opened(self, client: Client, key: Key) -> ItemPut:
        """The oldest; the client has been touched."""
        of_client = self._open[client]
        items = of_client[key]
        item = items.popleft()
        if not items:
            del of_client[key]
            if not of_client:
                del self._open[client]
        return item

    def _clients_with_open(self, key: Key) -> list[Client]:
        return [client for client, opened in self._open.items() if key in opened]

    def _rename_open(self, key: Key, new_key: Key) -> None:
        for client in self._clients_with_open(key):
            self._touch_client(client)
            self._open[client][new_key] = self._open[client].pop(key)
