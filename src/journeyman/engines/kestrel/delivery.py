"""Items on their way: put, taken, waited for, confirmed, given back, too old.

    put --> window --> take --> open --> confirm --> finished
                        |        |
                        |        +-- abort, or the client goes --> returned: first to be taken
                        +-- too old --> finished, and put into another queue if so set

Every change begins with ``_touch``, so that its batch can be taken back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from journeyman.engines.kestrel.messages import (
    DELETED,
    END,
    Append,
    Client,
    EraseQueue,
    Fetch,
    KestrelAnswer,
    RemoveReader,
    Reply,
)
from journeyman.engines.kestrel.queue import ItemQueue
from journeyman.engines.kestrel.reader import FanReader, NotHere
from journeyman.engines.kestrel.state import FanOutState
from journeyman.engines.kestrel.waits import Wait
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies as words
from journeyman.protocols.kestrel.commands import GetItem, Key
from journeyman.units import NS_PER_MS

SHARED_BYTES = 16 * 1024  # an item this large is not copied into a reply


class Delivery(FanOutState):
    # -- putting --

    def _append(
        self,
        queue: ItemQueue,
        data: bytes,
        add_ms: int,
        expire_ms: int | None,
        errors: int,
        now_ns: int,
    ) -> None:
        self._touch(queue)
        self._grown.add(queue)
        self.counts.puts += 1
        item = ItemPut(queue.next_id, add_ms, expire_ms, errors, data)
        self._writes.append(Append(queue.name, item))
        queue.add(item)
        if queue.is_limited:
            for reader in queue.readers.values():
                if reader.settings.drops_oldest:
                    self._drop_surplus(queue, reader)
        if queue.waiting:
            for reader in tuple(queue.waiting):
                self._serve(queue, reader, now_ns)

    def _drop_surplus(self, queue: ItemQueue, reader: FanReader) -> None:
        while reader.is_over_limit:
            self._touch(reader)
            item = reader.take()
            if not isinstance(item, ItemPut):
                self._fetch(queue, reader)  # the rest goes when it is here
                return
            reader.finish(item)
            reader.tally.discarded += 1

    # -- taking --

    def _take_live(
        self, queue: ItemQueue, reader: FanReader, now_ns: int
    ) -> ItemPut | NotHere | None:
        """The next item that is not too old; those that are, are dealt with."""
        now_ms = now_ns // NS_PER_MS
        while True:
            item = reader.take()
            if not isinstance(item, ItemPut) or not reader.is_expired(item, now_ms):
                if reader.next_id < queue.window_start or reader.buffer:
                    self._fetch(queue, reader)
                return item
            self._expire(reader, item, now_ns)

    def _sweep(self, reader: FanReader, now_ns: int, limit: int | None) -> int:
        """Deal with what is too old at the front, as far as it is in memory; how many."""
        now_ms = now_ns // NS_PER_MS
        swept = 0
        while limit is None or swept < limit:
            self._touch(reader)
            item = reader.take()
            if not isinstance(item, ItemPut):
                break
            if not reader.is_expired(item, now_ms):
                reader.put_back(item)
                break
            self._expire(reader, item, now_ns)
            swept += 1
        return swept

    def _expire(self, reader: FanReader, item: ItemPut, now_ns: int) -> None:
        reader.finish(item)
        reader.tally.expired += 1
        self._move(reader.settings.expire_to, item, now_ns // NS_PER_MS, now_ns)

    def _move(self, target: str | None, item: ItemPut, add_ms: int, now_ns: int) -> bool:
        """To another queue, without an expiry, or to none; False: that queue cannot be made."""
        if target is None:
            return True
        queue = self._queue_for(target, now_ns)
        if isinstance(queue, Reply):
            return False
        self._append(queue, item.data, add_ms, None, item.error_count, now_ns)
        return True

    def _fetch(self, queue: ItemQueue, reader: FanReader) -> None:
        after = reader.wants()
        if after is not None:
            self._effects.append(Fetch(queue.name, reader.name, after, reader.serial))

    # -- handing out --

    def _item_or_wait(
        self, queue: ItemQueue, reader: FanReader, command: GetItem, client: Client, now_ns: int
    ) -> Reply | None:
        self._touch(reader)
        key, wait_ms, opens, _, _, peeks = command
        if not reader.waiters:
            item = self._take_live(queue, reader, now_ns)
            if isinstance(item, ItemPut):
                return self._hand_out(reader, client, key, opens, peeks, item, now_ns)
            if wait_ms <= 0 and item is None and reader.fetching is None:
                return END
        elif wait_ms <= 0 and reader.fetching is None:
            return END
        over_ns = now_ns + wait_ms * NS_PER_MS
        self._begin_wait(queue, reader, Wait(client, key, over_ns, wait_ms <= 0, opens, peeks))
        return None

    def _hand_out(
        self,
        reader: FanReader,
        client: Client,
        key: Key,
        opens: bool,
        peeks: bool,
        item: ItemPut,
        now_ns: int,
    ) -> Reply:
        self.counts.hits += 1
        reader.tally.age_ms = max(0, now_ns // NS_PER_MS - item.add_time_ms)
        if peeks:
            reader.put_back(item)
        elif opens:
            self._touch_client(client)
            reader.open(item)
            reader.tally.opened += 1
            self._open_of(client, key).append(item)
        else:
            reader.finish(item)
        data = item.data
        if len(data) < SHARED_BYTES:
            return Reply(words.value(key, data))
        return Reply(words.value_line(key, len(data)), item=data)

    def _open_of(self, client: Client, key: Key) -> deque[ItemPut]:
        of_client = self._open.get(client)
        if of_client is None:
            of_client = self._open[client] = {}
        items = of_client.get(key)
        if items is None:
            items = of_client[key] = deque()
        return items

    def _serve(self, queue: ItemQueue, reader: FanReader, now_ns: int) -> None:
        """Give what is there to those who wait, in their order."""
        self._touch(reader)
        while reader.waiters:
            item = self._take_live(queue, reader, now_ns)
            if not isinstance(item, ItemPut):
                if item is None and reader.fetching is None:
                    self._end_waits_that_are_over(queue, reader)
                return
            if not reader.waiters:  # dealing with what was too old has served them meanwhile
                reader.put_back(item)
                return
            self._serve_first(queue, reader, item, now_ns)

    def _serve_first(self, queue: ItemQueue, reader: FanReader, item: ItemPut, now_ns: int) -> None:
        wait = next(iter(reader.waiters))
        reply = self._hand_out(reader, wait.client, wait.key, wait.opens, wait.peeks, item, now_ns)
        if wait.left is None:
            self._end_wait(queue, reader, wait, reply)
            return
        self._effects.append(KestrelAnswer(wait.client, reply, final=False))
        self._waits.served(wait, len(item.data))
        if self._monitor_is_full(reader, wait):
            self._end_wait(queue, reader, wait, END)
        else:
            reader.waiters.move_to_end(wait)  # the next item is for whoever waits behind it

    def _monitor_is_full(self, reader: FanReader, wait: Wait) -> bool:
        assert wait.left is not None
        opened = len(self._opened(wait.client, wait.key))
        is_out = wait.left <= 0 or wait.bytes_left <= 0
        return is_out or opened >= reader.settings.max_open

    # -- finishing --

    def _confirm_oldest(self, reader: FanReader, key: Key, client: Client, count: int) -> None:
        self._touch(reader)
        self._touch_client(client)
        for _ in range(count):
            item = self._take_opened(client, key)
            reader.no_longer_open(item)
            reader.finish(item)

    def _give_back(self, reader: FanReader, item: ItemPut, now_ns: int) -> None:
        """An abort is an error of the item; too many, and it goes elsewhere."""
        self._touch(reader)
        reader.no_longer_open(item)
        reader.tally.given_back += 1
        item = replace(item, error_count=item.error_count + 1)
        limit = reader.settings.max_errors
        target = reader.settings.errors_to
        if (
            limit is None
            or item.error_count < limit
            or not self._move(target, item, item.add_time_ms, now_ns)
        ):
            reader.returned.append(item)
        else:
            reader.finish(item)


# ----------------------------------------
# What is done to whole queues and readers: flush, delete, and what is too old taken out.
#
#     flush    a reader has read everything but what is open: that is still to be confirmed
#     delete   of a queue: its journal goes; of a reader: its place is forgotten
#     expire   what is too old at the front of a reader is dealt with, now
#
# Who waits for a reader that goes is told that there is nothing.

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
