"""The fan-out queues decide: state + command + time -> records, reply, effects.

    set        -> Append, STORED               the item is in the window of its queue at once
    get        -> ItemFound, or END            confirmed by being given out
    get/open   -> ItemFound                    open until close, confirm, abort, or the client goes
    nothing there, t=MS                        the client waits in line; a put, an abort or the
                                               time ends that
    the next item is on disk                   Fetch; the client waits whatever its t says

A decision is applied at once and counts for what follows in the same batch, but none of it may
leave before the batch is written. ``undo_batch`` takes back a batch that could not be written.

Confirmations are not written one by one. ``Checkpoint`` says how far the readers have come; after
a crash, items confirmed since the last one come again.

    put --> window --> take --> open --> confirm --> finished
                        |        |
                        |        +-- abort, or the client goes --> returned: first to be taken
                        +-- too old --> finished, and put into another queue if so set

Every change begins with ``touch``, so that its batch can be undone. Limits, and when items are too
old or fail too often: queue.py. Decisions about many items at once: bulk.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from journeyman.engines.kestrel import bulk, messages
from journeyman.engines.kestrel.queue import FanReader, ItemQueue, KestrelOptions, NotHere, Wait
from journeyman.engines.kestrel.state import KestrelState, LoadedReader
from journeyman.formats.kestrel import ItemPut
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies
from journeyman.protocols.kestrel.commands import Key
from journeyman.units import MS_PER_S, NS_PER_MS

LATEST_MS = 2**63 - 1  # the journal knows no later moment
ERASING_COSTS = 50  # as much as so many items
RELATIVE_BELOW = 1_000_000  # an expiry below this is seconds from now

# -- what clients ask for --


def _put(state: KestrelState, command: ask.Put, _: messages.Client) -> replies.Reply:
    queue = state.queue_for(command.queue)
    if isinstance(queue, replies.ServerError):
        return queue
    most_bytes = queue.settings.max_item_bytes
    if most_bytes is not None and len(command.data) > most_bytes:
        return replies.NOT_STORED
    if len(command.data) > state.settings.max_item_bytes:
        return replies.NOT_STORED
    if queue.is_limited and any(reader.is_full for reader in queue.readers.values()):
        return replies.NOT_STORED
    now_ms = state.now_ns // NS_PER_MS
    _append(state, queue, command.data, now_ms, _expiry_ms(command.expiry, now_ms), 0)
    return replies.STORED


def _get(
    state: KestrelState, command: ask.GetItem, client: messages.Client
) -> replies.Reply | None:
    key = command.key
    if command.abort:
        return _abort_oldest(state, key, client)
    if command.close:
        known = state.known_reader(key)
        if known is not None and state.opened(client, key):
            _confirm_oldest(state, known[1], key, client, 1)
        if not command.open:
            return replies.END
    if not state.gives_items:
        return replies.FORBIDDEN
    found = state.reader_for(key)
    if isinstance(found, replies.ServerError):
        return found
    queue, reader = found
    opened = len(state.opened(client, key))
    if opened and not (command.open or command.peek):
        return replies.ERROR_AND_CLOSE
    if command.open and opened >= reader.settings.max_open:
        return replies.ERROR_AND_CLOSE
    reply = _item_or_wait(state, queue, reader, command, client)
    if reply is replies.END:
        state.counts.misses += 1
    return reply


def _abort_oldest(state: KestrelState, key: Key, client: messages.Client) -> replies.Reply:
    """The oldest that this client has open goes back; nothing is made for it."""
    if state.opened(client, key):
        found = state.known_reader(key)
        assert found is not None  # a reader that is taken away takes what is open with it
        state.touch_client(client)
        _give_back(state, found[1], state.take_opened(client, key))
        _serve(state, *found)
    return replies.END


def _monitor(
    state: KestrelState, command: ask.Monitor, client: messages.Client
) -> replies.Reply | None:
    if not state.gives_items:
        return replies.FORBIDDEN
    found = state.reader_for(command.key)
    if isinstance(found, replies.ServerError):
        return found
    queue, reader = found
    most = reader.settings.max_open if command.max_items is None else command.max_items
    over_ns = state.now_ns + command.wait_ms * NS_PER_MS
    wait = Wait(client, command.key, over_ns, command.wait_ms <= 0, True, False, most)
    if _monitor_is_full(state, reader, wait):
        return replies.END
    state.touch(reader)
    state.begin_wait(queue, reader, wait)
    _serve(state, queue, reader)
    return None


def _confirm(state: KestrelState, command: ask.Confirm, client: messages.Client) -> replies.Reply:
    found = state.known_reader(command.key)
    opened = len(state.opened(client, command.key))
    if found is None or not 0 < command.items <= opened:
        return replies.ERROR
    _confirm_oldest(state, found[1], command.key, client, command.items)
    return replies.END


def _leave(state: KestrelState, command: messages.KestrelGone, _: messages.Client) -> None:
    client = command.client
    wait = state.waits.wait_of(client)
    if wait is not None:
        waited = state.known_reader(wait.key)
        assert waited is not None  # a reader that is taken away ends its waits
        state.end_wait(*waited, wait, None)
    if client not in state.open:
        return
    state.touch_client(client)
    for key, items in state.open.pop(client).items():
        found = state.known_reader(key)
        assert found is not None  # a reader that is taken away takes its open items with it
        for item in items:
            _give_back(state, found[1], item)
        _serve(state, *found)


def _take_fetched(state: KestrelState, command: messages.Fetched, _: messages.Client) -> None:
    name, of_reader, after, serial = command.fetch
    found = state.known_reader(Key(name, of_reader))
    if found is None or found[1].serial != serial:
        return
    queue, reader = found
    state.touch(reader)
    if reader.add_fetched(after, command.items):
        if reader.settings.drops_oldest:
            _drop_surplus(state, queue, reader)
        _serve(state, queue, reader)


# -- what becomes of items --


def _append(
    state: KestrelState,
    queue: ItemQueue,
    data: bytes,
    add_ms: int,
    expire_ms: int | None,
    errors: int,
) -> None:
    state.touch(queue)
    state.grown.add(queue)
    state.counts.puts += 1
    item = ItemPut(queue.next_id, add_ms, expire_ms, errors, data)
    state.records.append(messages.Append(queue.name, item))
    queue.add(item)
    if queue.is_limited:
        for reader in queue.readers.values():
            if reader.settings.drops_oldest:
                _drop_surplus(state, queue, reader)
    if queue.waiting:
        for reader in tuple(queue.waiting):
            _serve(state, queue, reader)


def _drop_surplus(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    while reader.is_over_limit:
        state.touch(reader)
        item = reader.take()
        if not isinstance(item, ItemPut):
            _fetch(state, queue, reader)  # the rest goes when it is here
            return
        reader.finish(item)
        reader.tally.discarded += 1


def _take_live(
    state: KestrelState, queue: ItemQueue, reader: FanReader
) -> ItemPut | NotHere | None:
    """The next item that is not too old; those that are, are dealt with."""
    now_ms = state.now_ns // NS_PER_MS
    while True:
        item = reader.take()
        if not isinstance(item, ItemPut) or not reader.is_expired(item, now_ms):
            if reader.next_id < queue.window_start or reader.buffer:
                _fetch(state, queue, reader)
            return item
        _expire(state, reader, item)


def _sweep(state: KestrelState, reader: FanReader, limit: int | None) -> int:
    """Deal with what is too old at the front, as far as it is in memory. Returns how many."""
    now_ms = state.now_ns // NS_PER_MS
    swept = 0
    while limit is None or swept < limit:
        state.touch(reader)
        item = reader.take()
        if not isinstance(item, ItemPut):
            break
        if not reader.is_expired(item, now_ms):
            reader.put_back(item)
            break
        _expire(state, reader, item)
        swept += 1
    return swept


def _expire(state: KestrelState, reader: FanReader, item: ItemPut) -> None:
    reader.finish(item)
    reader.tally.expired += 1
    _move(state, reader.settings.expire_to, item, state.now_ns // NS_PER_MS)


def _move(state: KestrelState, target: str | None, item: ItemPut, add_ms: int) -> bool:
    """Move an item to another queue, without an expiry, or to none. False: that queue cannot be
    made."""
    if target is None:
        return True
    queue = state.queue_for(target)
    if isinstance(queue, replies.ServerError):
        return False
    _append(state, queue, item.data, add_ms, None, item.error_count)
    return True


def _fetch(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    after = reader.wants()
    if after is not None:
        state.effects.append(messages.Fetch(queue.name, reader.name, after, reader.serial))


def _item_or_wait(
    state: KestrelState,
    queue: ItemQueue,
    reader: FanReader,
    command: ask.GetItem,
    client: messages.Client,
) -> replies.Reply | None:
    state.touch(reader)
    key, wait_ms, opens, _, _, peeks = command
    if not reader.waiters:
        item = _take_live(state, queue, reader)
        if isinstance(item, ItemPut):
            return _hand_out(state, reader, client, key, opens, peeks, item)
        if wait_ms <= 0 and item is None and reader.fetching is None:
            return replies.END
    elif wait_ms <= 0 and reader.fetching is None:
        return replies.END
    over_ns = state.now_ns + wait_ms * NS_PER_MS
    state.begin_wait(queue, reader, Wait(client, key, over_ns, wait_ms <= 0, opens, peeks))
    return None


def _hand_out(
    state: KestrelState,
    reader: FanReader,
    client: messages.Client,
    key: Key,
    opens: bool,
    peeks: bool,
    item: ItemPut,
) -> replies.ItemFound:
    state.counts.hits += 1
    reader.tally.age_ms = max(0, state.now_ns // NS_PER_MS - item.add_time_ms)
    if peeks:
        reader.put_back(item)
    elif opens:
        state.touch_client(client)
        reader.open(item)
        reader.tally.opened += 1
        state.open_of(client, key).append(item)
    else:
        reader.finish(item)
    return replies.ItemFound(key, item.data)


def _serve(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    """Give what is there to the waiting clients, in their order."""
    state.touch(reader)
    while reader.waiters:
        item = _take_live(state, queue, reader)
        if not isinstance(item, ItemPut):
            if item is None and reader.fetching is None:
                state.end_waits_that_are_over(queue, reader)
            return
        if not reader.waiters:  # dealing with what was too old has served them meanwhile
            reader.put_back(item)
            return
        _serve_first(state, queue, reader, item)


def _serve_first(state: KestrelState, queue: ItemQueue, reader: FanReader, item: ItemPut) -> None:
    wait = next(iter(reader.waiters))
    reply = _hand_out(state, reader, wait.client, wait.key, wait.opens, wait.peeks, item)
    if wait.left is None:
        state.end_wait(queue, reader, wait, reply)
        return
    state.effects.append(messages.KestrelAnswer(wait.client, reply, final=False))
    state.waits.note_served(wait, len(item.data))
    if _monitor_is_full(state, reader, wait):
        state.end_wait(queue, reader, wait, replies.END)
    else:
        reader.waiters.move_to_end(wait)  # the next item is for the next in line


def _monitor_is_full(state: KestrelState, reader: FanReader, wait: Wait) -> bool:
    assert wait.left is not None
    opened = len(state.opened(wait.client, wait.key))
    is_out = wait.left <= 0 or wait.bytes_left <= 0
    return is_out or opened >= reader.settings.max_open


def _confirm_oldest(
    state: KestrelState, reader: FanReader, key: Key, client: messages.Client, count: int
) -> None:
    state.touch(reader)
    state.touch_client(client)
    for _ in range(count):
        item = state.take_opened(client, key)
        reader.no_longer_open(item)
        reader.finish(item)


def _give_back(state: KestrelState, reader: FanReader, item: ItemPut) -> None:
    """An abort is an error of the item; too many, and it goes elsewhere."""
    state.touch(reader)
    reader.no_longer_open(item)
    reader.tally.given_back += 1
    item = replace(item, error_count=item.error_count + 1)
    limit, target = reader.settings.max_errors, reader.settings.errors_to
    goes = limit is not None and item.error_count >= limit
    if goes and _move(state, target, item, item.add_time_ms):
        reader.finish(item)
    else:
        reader.returned.append(item)


def _expiry_ms(expiry: int, now_ms: int) -> int | None:
    """When an item is too old; None: never."""
    if expiry == 0:
        return None
    when_ms = now_ms + expiry * MS_PER_S if expiry < RELATIVE_BELOW else expiry * MS_PER_S
    return min(max(when_ms, 0), LATEST_MS)


# -- what time brings --


def _due(state: KestrelState, command: messages.KestrelDue, _: messages.Client) -> None:
    for _number in range(command.limit):
        wait = state.waits.take_over(state.now_ns)
        if wait is None:
            break
        _end_if_nothing_comes(state, wait)
    if state.sweep_due_ns is not None and state.sweep_due_ns <= state.now_ns:
        _sweep_some(state, command.limit)


def _stop_waiting(state: KestrelState, command: messages.StopWaiting, *_: object) -> None:
    wait = state.waits.wait_of(command.client)
    if wait is not None:
        state.waits.hurry(wait)
        _end_if_nothing_comes(state, wait)


def _end_if_nothing_comes(state: KestrelState, wait: Wait) -> None:
    """A wait whose time is over; what is on its way from the disk is still waited for."""
    found = state.known_reader(wait.key)
    assert found is not None  # a reader that is taken away ends its waits
    if found[1].fetching is None:
        state.end_wait(*found, wait, replies.END)


def _sweep_some(state: KestrelState, limit: int) -> None:
    """A part of all readers at a time, so that no other command waits long."""
    if not state.to_sweep:
        state.to_sweep = [
            Key(queue.name, name)
            for queue in state.queues.values()
            if queue.may_expire or queue.settings.max_age_ms is not None
            for name in queue.readers
        ]
    swept_any = bool(state.to_sweep)  # else the next write starts again
    while state.to_sweep and limit > 0:
        found = state.known_reader(state.to_sweep.pop())
        limit -= 1
        if found is None:
            continue
        queue, reader = found
        most = reader.settings.max_expire_sweep
        limit -= _sweep(state, reader, limit if most is None else min(limit, most))
        if queue.is_too_old(state.now_ns // NS_PER_MS):
            bulk.erase(state, queue)
            state.counts.queues_expired += 1
            limit -= ERASING_COSTS
    if not state.to_sweep:
        interval_ns = state.settings.sweep_interval_ms * NS_PER_MS
        state.sweep_due_ns = state.now_ns + interval_ns if swept_any else None


def _flush_expired(
    state: KestrelState, command: ask.FlushExpired, _: messages.Client
) -> replies.Reply:
    queue = state.queues.get(command.key.queue)
    return replies.Count(0 if queue is None else _expire_now(state, queue, command.key))


def _flush_all_expired(state: KestrelState, _: object, __: messages.Client) -> replies.Reply:
    queues = list(state.queues.values())  # expired items may go to a new one
    return replies.Count(sum(_expire_now(state, queue, Key(queue.name)) for queue in queues))


def _expire_now(state: KestrelState, queue: ItemQueue, key: Key) -> int:
    readers = bulk.readers_meant(queue, key)
    return sum(_sweep(state, reader, reader.settings.max_expire_sweep) for reader in readers)


_DECISIONS: dict[type, Callable[[KestrelState, Any, messages.Client], replies.Reply | None]] = {
    ask.Put: _put,
    ask.PutTooLarge: lambda *_: replies.NOT_STORED,
    ask.GetItem: _get,
    ask.Monitor: _monitor,
    ask.Confirm: _confirm,
    ask.Flush: bulk.flush,
    ask.FlushAll: bulk.flush_all,
    ask.FlushExpired: _flush_expired,
    ask.FlushAllExpired: _flush_all_expired,
    ask.DeleteQueue: bulk.delete,
    ask.Shutdown: bulk.shut_down,
    messages.KestrelGone: _leave,
    messages.StopWaiting: _stop_waiting,
    messages.Fetched: _take_fetched,
    messages.KestrelDue: _due,
    messages.Checkpoint: bulk.checkpoint,
}

_outcome = tuple.__new__  # a third of the time of KestrelOutcome(...), and one is made every time


class KestrelEngine:
    """All queues, their readers, and who waits for what."""

    __slots__ = ("_state",)

    def __init__(self, settings: KestrelOptions | None = None) -> None:
        self._state = KestrelState(settings)

    def decide(
        self, command: Any, now_ns: int, client: messages.Client = None
    ) -> messages.KestrelOutcome:
        """Apply the command of a client, or what the server itself submits."""
        state = self._state
        state.now_ns = now_ns
        reply = _DECISIONS[type(command)](state, command, client)
        records, effects = state.records, state.effects
        if records:
            state.records = []
            state.plan_sweep()
        if effects:
            state.effects = []
        return _outcome(messages.KestrelOutcome, (tuple(records), reply, tuple(effects)))

    def decide_run(
        self, commands: Sequence[Any], now_ns: int, client: messages.Client, most_bytes: int
    ) -> tuple[list[messages.Write], Sequence[replies.Reply]]:
        """The first of these commands of one kind, as if one by one: what to write, the replies.

        What is left is for ``decide``. ``most_bytes`` may be said, and one answer more.
        """
        state = self._state
        state.now_ns = now_ns
        answers = bulk.decide_run(state, commands, client, most_bytes)
        records = state.records
        if records:
            state.records = []
            state.plan_sweep()
        return records, answers

    def adopt(self, queue: str, items: Iterable[ItemPut], now_ns: int) -> messages.KestrelOutcome:
        """Items of a batch that was taken back, but that were written all the same."""
        state = self._state
        state.now_ns = now_ns
        known = state.queue_for(queue)
        assert isinstance(known, ItemQueue)  # it was there when they were put
        for item in items:
            state.touch(known)
            state.grown.add(known)
            state.counts.puts += 1
            known.add(item)
        for reader in tuple(known.waiting):
            _serve(state, known, reader)
        outcome = messages.KestrelOutcome(tuple(state.records), None, tuple(state.effects))
        state.records, state.effects = [], []
        return outcome

    def forget(self, queue: str) -> messages.KestrelOutcome:
        """A queue that a batch which was taken back has erased all the same."""
        state = self._state
        known = state.queues.get(queue)
        if known is not None:
            bulk.erase(state, known)
        state.records, effects = [], tuple(state.effects)
        state.effects = []
        return messages.KestrelOutcome((), None, effects)

    def load(
        self, queue: str, *, next_id: int, created_ms: int, readers: Iterable[LoadedReader]
    ) -> None:
        """A queue as its journal was opened. Not within a batch."""
        self._state.load(queue, next_id=next_id, created_ms=created_ms, readers=readers)

    def next_due_ns(self) -> int | None:
        """When to decide ``KestrelDue`` next; None: not before another command."""
        return self._state.next_due_ns()

    @property
    def queues(self) -> dict[str, ItemQueue]:
        return self._state.queues

    @property
    def counts(self) -> messages.Counts:
        return self._state.counts

    @property
    def gives_items(self) -> bool:
        """If not, open reads can still be confirmed, closed and aborted."""
        return self._state.gives_items

    @gives_items.setter
    def gives_items(self, gives_items: bool) -> None:
        self._state.gives_items = gives_items

    def hold_off(self, names: Iterable[str]) -> None:
        """Refuse to make these queues: files of an older kestrel bear their names."""
        self._state.held_off = frozenset(names)

    def changes_files(self, command: Any) -> bool:
        """Return whether it would make or remove a queue or a reader, which costs more than an
        item.
        """
        return self._state.changes_files(command)

    def stats(self) -> messages.KestrelStats:
        return self._state.stats()

    def take_ledger(self) -> list[LedgerRecord]:
        """The ledger records decided since the last call, for the same batch."""
        return []  # items have nothing that their journals do not hold

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """Begin a batch, which can be taken back as a whole."""
        self._state.begin_batch()

    def commit_batch(self) -> None:
        """The records of the batch are durable."""
        self._state.commit_batch()

    def undo_batch(self) -> None:
        """The records could not be written: be as if the batch had never been. Nothing that it
        gave out may be used: no reply, no effect. Clients that waited before it wait again."""
        self._state.undo_batch()
