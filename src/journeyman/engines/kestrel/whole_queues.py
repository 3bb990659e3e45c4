"""What is done to whole queues and readers, by clients and by time.

    flush       a reader has read everything but what is open: that is still to be confirmed
    delete      of a queue: its journal goes; of a reader: its place is forgotten
    due         waits that are over end; items and queues that are too old go, some at a time
    checkpoint  how far the readers have come that have moved since the last one

A client that waits for a reader that goes hears END.
"""

from __future__ import annotations

from journeyman.engines.kestrel.delivery import sweep
from journeyman.engines.kestrel.messages import (
    Client,
    EraseQueue,
    KestrelDue,
    RemoveReader,
    SaveCheckpoint,
    StopServer,
    StopWaiting,
)
from journeyman.engines.kestrel.queue import FanReader, ItemQueue
from journeyman.engines.kestrel.state import KestrelState, Wait
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.commands import Key
from journeyman.protocols.kestrel.replies import (
    DELETED,
    END,
    FLUSHED_ALL,
    GOODBYE,
    Count,
    Reply,
    ServerError,
)
from journeyman.units import NS_PER_MS

ERASING_COSTS = 50  # as much as so many items
_SHUTDOWN_OFF = ServerError("shutdown by clients is switched off")


def flush(state: KestrelState, command: ask.Flush, *_: object) -> Reply:
    queue = state.queues.get(command.key.queue)
    if queue is not None:
        for reader in _readers_meant(queue, command.key):
            _flush_reader(state, queue, reader)
    return END


def flush_all(state: KestrelState, *_: object) -> Reply:
    for queue in state.queues.values():
        for reader in queue.readers.values():
            _flush_reader(state, queue, reader)
    return FLUSHED_ALL


def _flush_reader(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    """All but what is open: that is still to be confirmed, or comes back."""
    state.touch(queue)
    state.touch(reader)
    key = Key(queue.name, reader.name)
    opened = [item for client in state.clients_with_open(key) for item in state.opened(client, key)]
    reader.finish_all_but(opened)
    queue.flushes += 1
    state.end_waits_that_are_over(queue, reader)


def flush_expired(state: KestrelState, command: ask.FlushExpired, _: Client) -> Reply:
    queue = state.queues.get(command.key.queue)
    return Count(0 if queue is None else _expire_now(state, queue, command.key))


def flush_all_expired(state: KestrelState, _: object, __: Client) -> Reply:
    queues = list(state.queues.values())  # expired items may go to a new one
    return Count(sum(_expire_now(state, queue, Key(queue.name)) for queue in queues))


def _expire_now(state: KestrelState, queue: ItemQueue, key: Key) -> int:
    readers = _readers_meant(queue, key)
    return sum(sweep(state, reader, reader.settings.max_expire_sweep) for reader in readers)


def delete(state: KestrelState, command: ask.DeleteQueue, *_: object) -> Reply:
    key = command.key
    queue = state.queues.get(key.queue)
    if queue is None:
        return DELETED
    if key.reader == DEFAULT_READER:
        erase(state, queue)
    elif key.reader in queue.readers:
        state.touch(queue)
        _let_go(state, queue, queue.readers[key.reader])
        queue.remove_reader(key.reader)
        state.records.append(RemoveReader(*key))
    return DELETED


def erase(state: KestrelState, queue: ItemQueue) -> None:
    state.touch_queues()
    for reader in queue.readers.values():
        _let_go(state, queue, reader)
    del state.queues[queue.name]
    state.counts.queues_deleted += 1
    state.records.append(EraseQueue(queue.name))


def _let_go(state: KestrelState, queue: ItemQueue, reader: FanReader) -> None:
    """Nobody waits for this reader any more, and nothing of it is open."""
    for wait in list(reader.waiters):
        state.end_wait(queue, reader, wait, END)
    key = Key(queue.name, reader.name)
    for client in state.clients_with_open(key):
        state.touch_client(client)
        while state.opened(client, key):
            state.take_opened(client, key)


def _readers_meant(queue: ItemQueue, key: Key) -> list[FanReader]:
    """One, if it is named; all of a queue that is."""
    if key.reader == DEFAULT_READER:
        return list(queue.readers.values())
    reader = queue.readers.get(key.reader)
    return [reader] if reader is not None else []


def due(state: KestrelState, command: KestrelDue, _: Client) -> None:
    for _number in range(command.limit):
        wait = state.waits.take_over(state.now_ns)
        if wait is None:
            break
        _end_if_nothing_comes(state, wait)
    if state.sweep_due_ns is not None and state.sweep_due_ns <= state.now_ns:
        _sweep_some(state, command.limit)


def stop_waiting(state: KestrelState, command: StopWaiting, *_: object) -> None:
    wait = state.waits.of(command.client)
    if wait is not None:
        state.waits.hurry(wait)
        _end_if_nothing_comes(state, wait)


def _end_if_nothing_comes(state: KestrelState, wait: Wait) -> None:
    """A wait whose time is over; what is on its way from the disk is still waited for."""
    found = state.known_reader(wait.key)
    assert found is not None  # a reader that is taken away ends its waits
    if found[1].fetching is None:
        state.end_wait(*found, wait, END)


def _sweep_some(state: KestrelState, limit: int) -> None:
    """A part of all readers at a time, so that no other command waits long."""
    if not state.to_sweep:
        state.to_sweep = [
            Key(queue.name, name)
            for queue in state.queues.values()
            if queue.may_expire or queue.settings.max_age_ms is not None
            for name in queue.readers
        ]
    swept_any = bool(state.to_sweep)  # else the next write begins anew
    while state.to_sweep and limit > 0:
        found = state.known_reader(state.to_sweep.pop())
        limit -= 1
        if found is None:
            continue
        queue, reader = found
        most = reader.settings.max_expire_sweep
        limit -= sweep(state, reader, limit if most is None else min(limit, most))
        if queue.is_too_old(state.now_ns // NS_PER_MS):
            erase(state, queue)
            state.counts.queues_expired += 1
            limit -= ERASING_COSTS
    if not state.to_sweep:
        interval_ns = state.settings.sweep_interval_ms * NS_PER_MS
        state.sweep_due_ns = state.now_ns + interval_ns if swept_any else None


def checkpoint(state: KestrelState, *_: object) -> None:
    for queue in state.queues.values():
        for reader in queue.readers.values():
            if reader.changed:
                state.touch(reader)
                reader.changed = False
                saved = SaveCheckpoint(queue.name, reader.name, reader.serial, reader.place())
                state.effects.append(saved)


def shut_down(state: KestrelState, *_: object) -> Reply:
    if not state.settings.shutdown_allowed:
        return _SHUTDOWN_OFF
    state.effects.append(StopServer())
    return GOODBYE
