"""Decisions of the fan-out queues about many items at once: runs of commands, and whole queues.

Many commands of the usual kind of one client are decided in one step:

    set, set, set ...              into one queue that has no limits, and that no client waits for
    get q+r/open, the same ...     items that are in memory and do not expire
    confirm q+r 1, the same ...    of items that the client has open

engine.py is the law: ``decide_run`` does what the decisions there do for each of the commands, up
to the first one that is not usual, which is left to them (tests/property/test_kestrel_engine.py).
It asks once for all commands what they ask for each: which queue and reader it is, who waits, how
many may be open.

Whole queues and readers:

    flush       a reader has read everything but what is open: that is still to be confirmed
    delete      of a queue: its journal goes; of a reader: its place is forgotten
    checkpoint  how far the readers have come that have moved since the last one

A client that waits for a reader that goes hears END.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from journeyman.engines.kestrel import messages
from journeyman.engines.kestrel.queue import FanReader, ItemQueue
from journeyman.engines.kestrel.state import KestrelState
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies
from journeyman.protocols.kestrel.commands import Key
from journeyman.units import NS_PER_MS

_SHUTDOWN_OFF = replies.ServerError("shutdown by clients is switched off")

_write = tuple.__new__  # a third of the time of Append(...)


def decide_run(
    state: KestrelState, commands: Sequence[Any], client: messages.Client, most_bytes: int
) -> Sequence[replies.Reply]:
    """The replies to the first of these commands of one kind; maybe to none.

    ``most_bytes``: so much may be said, and one answer more.
    """
    return _RUNS[type(commands[0])](state, commands, client, most_bytes)


def _put_all(
    state: KestrelState, commands: Sequence[ask.Put], _: messages.Client, _most_bytes: int
) -> Sequence[replies.Reply]:
    name = commands[0].queue
    queue = state.queues.get(name)
    if queue is None or not queue.readers or queue.is_limited or queue.waiting:
        return ()
    most, of_queue = state.settings.max_item_bytes, queue.settings.max_item_bytes
    most = most if of_queue is None else min(most, of_queue)
    item_id, now_ms = queue.next_id, state.now_ns // NS_PER_MS
    items: list[ItemPut] = []
    for queue_name, expiry, data in commands:
        if queue_name != name or expiry or len(data) > most:
            break
        items.append(ItemPut(item_id, now_ms, None, 0, data))
        item_id += 1
    if items:
        state.touch(queue)
        state.grown.add(queue)
        state.counts.puts += len(items)
        state.records += [_write(messages.Append, (name, item)) for item in items]
        queue.add_all(items)
    return [replies.STORED] * len(items)


def _get_all(
    state: KestrelState, commands: Sequence[ask.GetItem], client: messages.Client, most_bytes: int
) -> Sequence[replies.Reply]:
    key, _, opens, closes, aborts, peeks = first = commands[0]
    found = state.known_reader(key)
    if closes or aborts or peeks or not opens or not state.gives_items or found is None:
        return ()
    reader = found[1]
    opened = len(state.opened(client, key))
    items = reader.next_in_window(min(len(commands), reader.settings.max_open - opened))
    found_items: list[replies.Reply] = []
    for item, command in zip(items, commands, strict=False):
        if command != first or most_bytes <= 0:
            break
        found_items.append(reply := replies.ItemFound(key, item.data))
        most_bytes -= reply.size
    if found_items:
        del items[len(found_items) :]
        state.touch(reader)
        state.touch_client(client)
        state.counts.hits += len(items)
        reader.open_next(items)
        reader.tally.age_ms = max(0, state.now_ns // NS_PER_MS - items[-1].add_time_ms)
        state.open_of(client, key).extend(items)
    return found_items


def _confirm_all(
    state: KestrelState, commands: Sequence[ask.Confirm], client: messages.Client, _most_bytes: int
) -> Sequence[replies.Reply]:
    key, count = first = commands[0]
    found = state.known_reader(key)
    if found is None or count != 1:
        return ()
    reader = found[1]
    same = next((at for at, each in enumerate(commands) if each != first), len(commands))
    confirmed = min(same, len(state.opened(client, key)))
    if confirmed:
        state.touch(reader)
        state.touch_client(client)
        for item in state.take_many_opened(client, key, confirmed):
            reader.no_longer_open(item)
            reader.finish(item)
    return [replies.END] * confirmed


_RUNS: dict[type, Callable[[KestrelState, Any, messages.Client, int], Sequence[replies.Reply]]] = {
    ask.Put: _put_all,
    ask.GetItem: _get_all,
    ask.Confirm: _confirm_all,
}
KINDS = frozenset(_RUNS)


def flush(state: KestrelState, command: ask.Flush, *_: object) -> replies.Reply:
    queue = state.queues.get(command.key.queue)
    if queue is not None:
        for reader in readers_meant(queue, command.key):
            _flush_reader(state, queue, reader)
    return replies.END


def flush_all(state: KestrelState, command: ask.FlushAll, *_: object) -> replies.Reply:
    for queue in state.queues.values():
        for reader in queue.readers.values():
            _flush_reader(state, queue, reader)
    return replies.FLUSHED_FOR_MEMCACHED if command.is_memcached else replies.FLUSHED_ALL


def _flush_reader(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    """All but what is open: that is still to be confirmed, or comes back."""
    state.touch(queue)
    state.touch(reader)
    key = Key(queue.name, reader.name)
    opened = [item for client in state.clients_with_open(key) for item in state.opened(client, key)]
    reader.finish_all_but(opened)
    queue.flushes += 1
    state.end_waits_that_are_over(queue, reader)


def delete(state: KestrelState, command: ask.DeleteQueue, *_: object) -> replies.Reply:
    key = command.key
    queue = state.queues.get(key.queue)
    if queue is None:
        return replies.DELETED
    if key.reader == DEFAULT_READER:
        erase(state, queue)
    elif key.reader in queue.readers:
        state.touch(queue)
        _let_go(state, queue, queue.readers[key.reader])
        queue.remove_reader(key.reader)
        state.records.append(messages.RemoveReader(*key))
    return replies.DELETED


def erase(state: KestrelState, queue: ItemQueue) -> None:
    state.touch_queues()
    for reader in queue.readers.values():
        _let_go(state, queue, reader)
    del state.queues[queue.name]
    state.counts.queues_deleted += 1
    state.records.append(messages.EraseQueue(queue.name))


def _let_go(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    """No client waits for this reader any more, and nothing of it is open."""
    for wait in list(reader.waiters):
        state.end_wait(queue, reader, wait, replies.END)
    key = Key(queue.name, reader.name)
    for client in state.clients_with_open(key):
        state.touch_client(client)
        while state.opened(client, key):
            state.take_opened(client, key)


def readers_meant(queue: ItemQueue, key: Key) -> list[FanReader]:
    """One, if it is named; all of a queue that is."""
    if key.reader == DEFAULT_READER:
        return list(queue.readers.values())
    reader = queue.readers.get(key.reader)
    return [reader] if reader is not None else []


def checkpoint(state: KestrelState, *_: object) -> None:
    for queue in state.queues.values():
        for reader in queue.readers.values():
            if reader.changed:
                state.touch(reader)
                reader.changed = False
                saved = messages.SaveCheckpoint(
                    queue.name, reader.name, reader.serial, reader.place()
                )
                state.effects.append(saved)


def shut_down(state: KestrelState, *_: object) -> replies.Reply:
    if not state.settings.shutdown_allowed:
        return _SHUTDOWN_OFF
    state.effects.append(messages.StopServer())
    return replies.GOODBYE
