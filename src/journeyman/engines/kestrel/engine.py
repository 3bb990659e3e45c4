"""The fan-out queues decide: commands in; items to write, replies and effects out.

    set        -> Append, STORED               the item is in the window of its queue at once
    get        -> VALUE, or END                confirmed by being given out
    get/open   -> VALUE                        open until close, confirm, abort, or the client goes
    nothing there, t=MS                        the client waits in line; a put, an abort or the
                                               time ends that
    the next item is on disk                   Fetch; the client waits whatever its t says

Pure: no file, no socket, no clock. What was decided is applied at once and counts for what comes
behind it in the same batch, but nothing of it may leave before the batch is written; a batch that
could not be written is taken back by ``undo_batch``.

    begin_batch, decide..., commit_batch | undo_batch

Confirmations are not written one by one. ``Checkpoint`` tells how far the readers have come; after
a crash, items confirmed since the last one come again.

Limits and what happens to items that are too old or fail too often: settings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from journeyman.engines.kestrel.delivery import WholeQueues
from journeyman.engines.kestrel.messages import (
    END,
    ERROR,
    ERROR_AND_CLOSE,
    FORBIDDEN,
    NOT_STORED,
    STORED,
    Checkpoint,
    Client,
    FanOutStats,
    Fetched,
    KestrelDue,
    KestrelGone,
    KestrelOutcome,
    Reply,
    SaveCheckpoint,
    StopServer,
    StopWaiting,
)
from journeyman.engines.kestrel.queue import ItemQueue
from journeyman.engines.kestrel.reader import FanReader
from journeyman.engines.kestrel.settings import FanOutSettings
from journeyman.engines.kestrel.waits import Wait
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies as words
from journeyman.protocols.kestrel.commands import Key
from journeyman.units import MS_PER_S, NS_PER_MS

LATEST_MS = 2**63 - 1  # the journal knows no later moment
ERASING_COSTS = 50  # as much as so many items
RELATIVE_BELOW = 1_000_000  # an expiry below this is seconds from now

_SHUTDOWN_OFF = Reply(words.server_error("shutdown by clients is switched off"))


class FanOutEngine(WholeQueues):
    """All queues, their readers, and who waits for what."""

    def __init__(self, settings: FanOutSettings | None = None) -> None:
        super().__init__(settings)
        self._sweep_due_ns: int | None = None
        self._to_sweep: list[Key] = []
        # If not, open reads can still be confirmed, closed and aborted.
        self.gives_items = True

    def decide(self, command: Any, now_ns: int, client: Client = None) -> KestrelOutcome:
        """``client`` is whoever asks; None for what the server itself has to say."""
        writes, effects = self._writes, self._effects
        if writes:
            writes.clear()
        if effects:
            effects.clear()
        reply = _HANDLERS[type(command)](self, command, now_ns, client)
        if writes and self._sweep_due_ns is None:
            self._sweep_due_ns = now_ns + self.settings.sweep_interval_ms * NS_PER_MS
        return KestrelOutcome(tuple(writes), reply, tuple(effects))

    def adopt(self, queue: str, items: Iterable[ItemPut], now_ns: int) -> KestrelOutcome:
        """Items of a batch that was taken back, but that were written all the same."""
        self._writes.clear()
        self._effects.clear()
        known = self._queue_for(queue, now_ns)
        assert isinstance(known, ItemQueue)  # it was there when they were put
        for item in items:
            self._touch(known)
            self._grown.add(known)
            self.counts.puts += 1
            known.add(item)
        for reader in tuple(known.waiting):
            self._serve(known, reader, now_ns)
        return KestrelOutcome(tuple(self._writes), None, tuple(self._effects))

    def forget(self, queue: str) -> KestrelOutcome:
        """A queue that a batch which was taken back has erased all the same."""
        self._writes.clear()
        self._effects.clear()
        known = self.queues.get(queue)
        if known is not None:
            self._erase(known)
        return KestrelOutcome((), None, tuple(self._effects))

    def next_due_ns(self) -> int | None:
        """When ``KestrelDue`` is to be said next."""
        over_ns = self._waits.first_over_ns()
        if self._sweep_due_ns is None or over_ns is None:
            return over_ns if self._sweep_due_ns is None else self._sweep_due_ns
        return min(over_ns, self._sweep_due_ns)

    def changes_files(self, command: Any) -> bool:
        """Whether it would make or remove a queue or a reader, which costs more than an item."""
        if isinstance(command, ask.Put):
            queue = self.queues.get(command.queue)
            return queue is None or not queue.readers
        if isinstance(command, ask.GetItem | ask.Monitor):
            return self._known_reader(command.key) is None
        if isinstance(command, ask.DeleteQueue):
            whole = command.key.reader == DEFAULT_READER and command.key.queue in self.queues
            return whole or self._known_reader(command.key) is not None
        return False

    def stats(self) -> FanOutStats:
        # Lists first: it may be asked from another thread while queues come and go.
        queues = list(self.queues.values())
        readers = [reader for queue in queues for reader in list(queue.readers.values())]
        return FanOutStats(
            len(queues),
            len(readers),
            sum(reader.items for reader in readers),
            sum(reader.data_bytes for reader in readers),
            sum(reader.open_items for reader in readers),
            len(self._waits),
        )

    # -- items --

    def _put(self, command: ask.Put, now_ns: int, _: Client) -> Reply:
        queue = self._queue_for(command.queue, now_ns)
        if isinstance(queue, Reply):
            return queue
        most_bytes = queue.settings.max_item_bytes
        if most_bytes is not None and len(command.data) > most_bytes:
            return NOT_STORED
        if len(command.data) > self.settings.max_item_bytes:
            return NOT_STORED
        if queue.is_limited and any(reader.is_full for reader in queue.readers.values()):
            return NOT_STORED
        now_ms = now_ns // NS_PER_MS
        self._append(queue, command.data, now_ms, _expiry_ms(command.expiry, now_ms), 0, now_ns)
        return STORED

    def _put_too_large(self, *_: object) -> Reply:
        return NOT_STORED

    def _get(self, command: ask.GetItem, now_ns: int, client: Client) -> Reply | None:
        key = command.key
        if command.abort:
            return self._abort_oldest(key, now_ns, client)
        if command.close:
            known = self._known_reader(key)
            if known is not None and self._opened(client, key):
                self._confirm_oldest(known[1], key, client, 1)
            if not command.open:
                return END
        if not self.gives_items:
            return FORBIDDEN
        found = self._reader_for(key, now_ns)
        if isinstance(found, Reply):
            return found
        queue, reader = found
        opened = len(self._opened(client, key))
        if opened and not (command.open or command.peek):
            return ERROR_AND_CLOSE
        if command.open and opened >= reader.settings.max_open:
            return ERROR_AND_CLOSE
        reply = self._item_or_wait(queue, reader, command, client, now_ns)
        if reply is END:
            self.counts.misses += 1
        return reply

    def _abort_oldest(self, key: Key, now_ns: int, client: Client) -> Reply:
        """The oldest that this client has open goes back; nothing is made for it."""
        if self._opened(client, key):
            found = self._known_reader(key)
            assert found is not None  # a reader that is taken away takes what is open with it
            self._touch_client(client)
            self._give_back(found[1], self._take_opened(client, key), now_ns)
            self._serve(*found, now_ns)
        return END

    def _monitor(self, command: ask.Monitor, now_ns: int, client: Client) -> Reply | None:
        if not self.gives_items:
            return FORBIDDEN
        found = self._reader_for(command.key, now_ns)
        if isinstance(found, Reply):
            return found
        queue, reader = found
        most = reader.settings.max_open if command.max_items is None else command.max_items
        over_ns = now_ns + command.wait_ms * NS_PER_MS
        wait = Wait(client, command.key, over_ns, command.wait_ms <= 0, True, False, most)
        if self._monitor_is_full(reader, wait):
            return END
        self._touch(reader)
        self._begin_wait(queue, reader, wait)
        self._serve(queue, reader, now_ns)
        return None

    def _confirm(self, command: ask.Confirm, _: int, client: Client) -> Reply:
        found = self._known_reader(command.key)
        opened = len(self._opened(client, command.key))
        if found is None or not 0 < command.items <= opened:
            return ERROR
        self._confirm_oldest(found[1], command.key, client, command.items)
        return END

    def _gone(self, command: KestrelGone, now_ns: int, _: Client) -> None:
        client = command.client
        wait = self._waits.of(client)
        if wait is not None:
            waited = self._known_reader(wait.key)
            assert waited is not None  # a reader that is taken away ends its waits
            self._end_wait(*waited, wait, None)
        if client not in self._open:
            return
        self._touch_client(client)
        for key, items in self._open.pop(client).items():
            found = self._known_reader(key)
            assert found is not None  # and takes what is open with it
            for item in items:
                self._give_back(found[1], item, now_ns)
            self._serve(*found, now_ns)

    def _stop_waiting(self, command: StopWaiting, *_: object) -> None:
        wait = self._waits.of(command.client)
        if wait is not None:
            self._waits.hurry(wait)
            self._end_if_nothing_comes(wait)

    def _end_if_nothing_comes(self, wait: Wait) -> None:
        """A wait whose time is over; what is on its way from the disk is still waited for."""
        found = self._known_reader(wait.key)
        assert found is not None  # a reader that is taken away ends its waits
        if found[1].fetching is None:
            self._end_wait(*found, wait, END)

    def _fetched(self, command: Fetched, now_ns: int, _: Client) -> None:
        name, of_reader, after, serial = command.fetch
        found = self._known_reader(Key(name, of_reader))
        if found is None or found[1].serial != serial:
            return
        queue, reader = found
        self._touch(reader)
        if reader.fetched(after, command.items):
            if reader.settings.drops_oldest:
                self._drop_surplus(queue, reader)
            self._serve(queue, reader, now_ns)

    # -- the server's own --

    def _due(self, command: KestrelDue, now_ns: int, _: Client) -> None:
        for _number in range(command.limit):
            wait = self._waits.take_over(now_ns)
            if wait is None:
                break
            self._end_if_nothing_comes(wait)
        if self._sweep_due_ns is not None and self._sweep_due_ns <= now_ns:
            self._sweep_some(now_ns, command.limit)

    def _sweep_some(self, now_ns: int, limit: int) -> None:
        """A part of all readers at a time, so that no other command waits long."""
        if not self._to_sweep:
            self._to_sweep = [
                Key(queue.name, name)
                for queue in self.queues.values()
                if queue.may_expire or queue.settings.max_age_ms is not None
                for name in queue.readers
            ]
        swept_any = bool(self._to_sweep)  # else the next write begins anew
        while self._to_sweep and limit > 0:
            found = self._known_reader(self._to_sweep.pop())
            limit -= 1
            if found is None:
                continue
            queue, reader = found
            most = reader.settings.max_expire_sweep
            limit -= self._sweep(reader, now_ns, limit if most is None else min(limit, most))
            if queue.is_too_old(now_ns // NS_PER_MS):
                self._erase(queue)
                self.counts.queues_expired += 1
                limit -= ERASING_COSTS
        if not self._to_sweep:
            interval_ns = self.settings.sweep_interval_ms * NS_PER_MS
            self._sweep_due_ns = now_ns + interval_ns if swept_any else None

    def _checkpoint(self, *_: object) -> None:
        for queue in self.queues.values():
            for reader in queue.readers.values():
                if reader.changed:
                    self._touch(reader)
                    reader.changed = False
                    self._effects.append(_checkpoint_of(queue, reader))

    def _shutdown(self, *_: object) -> Reply:
        if not self.settings.shutdown_allowed:
            return _SHUTDOWN_OFF
        self._effects.append(StopServer())
        return Reply(b"", hangup=True)


def _checkpoint_of(queue: ItemQueue, reader: FanReader) -> SaveCheckpoint:
    return SaveCheckpoint(queue.name, reader.name, reader.serial, reader.place())


def _expiry_ms(expiry: int, now_ms: int) -> int | None:
    """When an item is too old; None: never."""
    if expiry == 0:
        return None
    when_ms = now_ms + expiry * MS_PER_S if expiry < RELATIVE_BELOW else expiry * MS_PER_S
    return min(max(when_ms, 0), LATEST_MS)


_HANDLERS: dict[type, Callable[[Any, Any, int, Client], Reply | None]] = {
    ask.Put: FanOutEngine._put,
    ask.PutTooLarge: FanOutEngine._put_too_large,
    ask.GetItem: FanOutEngine._get,
    ask.Monitor: FanOutEngine._monitor,
    ask.Confirm: FanOutEngine._confirm,
    ask.Flush: FanOutEngine._flush,
    ask.FlushAll: FanOutEngine._flush_all,
    ask.FlushExpired: FanOutEngine._flush_expired,
    ask.FlushAllExpired: FanOutEngine._flush_all_expired,
    ask.DeleteQueue: FanOutEngine._delete,
    ask.Shutdown: FanOutEngine._shutdown,
    KestrelGone: FanOutEngine._gone,
    StopWaiting: FanOutEngine._stop_waiting,
    Fetched: FanOutEngine._fetched,
    KestrelDue: FanOutEngine._due,
    Checkpoint: FanOutEngine._checkpoint,
}
