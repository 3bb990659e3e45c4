"""What is done to whole queues and readers, by clients and by time.

    flush       a reader has read everything but what is open: that is still to be confirmed
    delete      of a queue: its journal goes; of a reader: its place is forgotten
    checkpoint  how far the readers have come that have moved since the last one

A client that waits for a reader that goes hears END.
"""

from __future__ import annotations

from journeyman.engines.kestrel.messages import (
    EraseQueue,
    RemoveReader,
    SaveCheckpoint,
    StopServer,
)
from journeyman.engines.kestrel.queue import FanReader, ItemQueue
from journeyman.engines.kestrel.state import KestrelState
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.commands import Key
from journeyman.protocols.kestrel.replies import (
    DELETED,
    END,
    FLUSHED_ALL,
    GOODBYE,
    Reply,
    ServerError,
)

_SHUTDOWN_OFF = ServerError("shutdown by clients is switched off")


def flush(state: KestrelState, command: ask.Flush, *_: object) -> Reply:
    queue = state.queues.get(command.key.queue)
    if queue is not None:
        for reader in readers_meant(queue, command.key):
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
    """No client waits for this reader any more, and nothing of it is open."""
    for wait in list(reader.waiters):
        state.end_wait(queue, reader, wait, END)
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
                saved = SaveCheckpoint(queue.name, reader.name, reader.serial, reader.place())
                state.effects.append(saved)


def shut_down(state: KestrelState, *_: object) -> Reply:
    if not state.settings.shutdown_allowed:
        return _SHUTDOWN_OFF
    state.effects.append(StopServer())
    return GOODBYE
