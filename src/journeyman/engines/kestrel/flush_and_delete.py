"""What is done to whole queues and readers: flush, delete, and what is too old taken out.

    flush    a reader has read everything but what is open: that is still to be confirmed
    delete   of a queue: its journal goes; of a reader: its place is forgotten
    expire   what is too old at the front of a reader is dealt with, now

Who waits for a reader that goes is told that there is nothing.
"""

from __future__ import annotations

from journeyman.engines.kestrel.delivery import Delivery
from journeyman.engines.kestrel.messages import (
    DELETED,
    END,
    Client,
    EraseQueue,
    RemoveReader,
    Reply,
)
from journeyman.engines.kestrel.queue import ItemQueue
from journeyman.engines.kestrel.reader import FanReader
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies as words
from journeyman.protocols.kestrel.commands import Key

_FLUSHED_ALL = Reply(words.FLUSHED_ALL)


class WholeQueues(Delivery):
    def _flush(self, command: ask.Flush, *_: object) -> Reply:
        queue = self.queues.get(command.key.queue)
        if queue is not None:
            for reader in self._readers_meant(queue, command.key):
                self._flush_reader(queue, reader)
        return END

    def _flush_all(self, *_: object) -> Reply:
        for queue in self.queues.values():
            for reader in queue.readers.values():
                self._flush_reader(queue, reader)
        return _FLUSHED_ALL

    def _flush_reader(self, queue: ItemQueue, reader: FanReader) -> None:
        """All but what is open: that is still to be confirmed, or comes back."""
        self._touch(queue)
        self._touch(reader)
        key = Key(queue.name, reader.name)
        opened = [
            item for client in self._clients_with_open(key) for item in self._opened(client, key)
        ]
        reader.finish_all_but(opened)
        queue.flushes += 1
        self._end_waits_that_are_over(queue, reader)

    def _flush_expired(self, command: ask.FlushExpired, now_ns: int, _: Client) -> Reply:
        queue = self.queues.get(command.key.queue)
        return Reply(
            words.count(0 if queue is None else self._expire_now(queue, command.key, now_ns))
        )

    def _flush_all_expired(self, _: object, now_ns: int, __: Client) -> Reply:
        swept = (self._expire_now(queue, Key(queue.name), now_ns) for queue in self._listed())
        return Reply(words.count(sum(swept)))

    def _expire_now(self, queue: ItemQueue, key: Key, now_ns: int) -> int:
        readers = self._readers_meant(queue, key)
        return sum(
            self._sweep(reader, now_ns, reader.settings.max_expire_sweep) for reader in readers
        )

    def _delete(self, command: ask.DeleteQueue, *_: object) -> Reply:
        key = command.key
        queue = self.queues.get(key.queue)
        if queue is None:
            return DELETED
        if key.reader == DEFAULT_READER:
            self._erase(queue)
        elif key.reader in queue.readers:
            self._touch(queue)
            self._let_go(queue, queue.readers[key.reader])
            queue.remove_reader(key.reader)
            self._writes.append(RemoveReader(*key))
        return DELETED

    def _erase(self, queue: ItemQueue) -> None:
        self._touch_queues()
        for reader in queue.readers.values():
            self._let_go(queue, reader)
        del self.queues[queue.name]
        self.counts.queues_deleted += 1
        self._writes.append(EraseQueue(queue.name))

    def _let_go(self, queue: ItemQueue, reader: FanReader) -> None:
        """Nobody waits for this reader any more, and nothing of it is open."""
        for wait in list(reader.waiters):
            self._end_wait(queue, reader, wait, END)
        key = Key(queue.name, reader.name)
        for client in self._clients_with_open(key):
            self._touch_client(client)
            while self._opened(client, key):
                self._take_opened(client, key)

    def _readers_meant(self, queue: ItemQueue, key: Key) -> list[FanReader]:
        """One, if it is named; all of a queue that is."""
        if key.reader == DEFAULT_READER:
            return list(queue.readers.values())
        reader = queue.readers.get(key.reader)
        return [reader] if reader is not None else []

    def _listed(self) -> list[ItemQueue]:
        return list(self.queues.values())
