"""The fan-out queues decide: state + command + time -> records, reply, effects.

    set        -> Append, STORED               the item is in the window of its queue at once
    get        -> ItemFound, or END            confirmed by being given out
    get/open   -> ItemFound                    open until close, confirm, abort, or the client goes
    nothing there, t=MS                        the client waits in line; a put, an abort or the
                                               time ends that
    the next item is on disk                   Fetch; the client waits whatever its t says

Pure: no file, no socket, no clock. What was decided is applied at once and counts for what comes
after it in the same batch, but nothing of it may leave before the batch is written; a batch that
could not be written is taken back by ``undo_batch``.

    begin_batch, decide..., commit_batch | undo_batch

Confirmations are not written one by one. ``Checkpoint`` says how far the readers have come; after
a crash, items confirmed since the last one come again.

Limits and what happens to items that are too old or fail too often: settings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from journeyman.engines.kestrel import delivery, whole_queues
from journeyman.engines.kestrel.messages import (
    Checkpoint,
    Client,
    Counts,
    FanOutStats,
    Fetched,
    KestrelDue,
    KestrelGone,
    KestrelOutcome,
    StopWaiting,
)
from journeyman.engines.kestrel.queue import ItemQueue
from journeyman.engines.kestrel.settings import FanOutSettings
from journeyman.engines.kestrel.state import KestrelState, LoadedReader
from journeyman.folds.kestrel import DEFAULT_READER
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.replies import Reply
from journeyman.units import NS_PER_MS

_DECISIONS: dict[type, Callable[[KestrelState, Any, Client], Reply | None]] = {
    ask.Put: delivery.put,
    ask.PutTooLarge: delivery.put_too_large,
    ask.GetItem: delivery.get,
    ask.Monitor: delivery.monitor,
    ask.Confirm: delivery.confirm,
    ask.Flush: whole_queues.flush,
    ask.FlushAll: whole_queues.flush_all,
    ask.FlushExpired: whole_queues.flush_expired,
    ask.FlushAllExpired: whole_queues.flush_all_expired,
    ask.DeleteQueue: whole_queues.delete,
    ask.Shutdown: whole_queues.shut_down,
    KestrelGone: delivery.leave,
    StopWaiting: whole_queues.stop_waiting,
    Fetched: delivery.take_fetched,
    KestrelDue: whole_queues.due,
    Checkpoint: whole_queues.checkpoint,
}

_outcome = tuple.__new__  # a third of the time of KestrelOutcome(...), and one is made every time


class FanOutEngine:
    """All queues, their readers, and who waits for what."""

    __slots__ = ("_state",)

    def __init__(self, settings: FanOutSettings | None = None) -> None:
        self._state = KestrelState(settings)

    def decide(self, command: Any, now_ns: int, client: Client = None) -> KestrelOutcome:
        """Apply the command of a client, or what the server itself submits."""
        state = self._state
        state.now_ns = now_ns
        reply = _DECISIONS[type(command)](state, command, client)
        records, effects = state.records, state.effects
        if records:
            state.records = []
            if state.sweep_due_ns is None:
                state.sweep_due_ns = now_ns + state.settings.sweep_interval_ms * NS_PER_MS
        if effects:
            state.effects = []
        return _outcome(KestrelOutcome, (tuple(records), reply, tuple(effects)))

    def adopt(self, queue: str, items: Iterable[ItemPut], now_ns: int) -> KestrelOutcome:
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
            delivery.serve(state, known, reader)
        outcome = KestrelOutcome(tuple(state.records), None, tuple(state.effects))
        state.records, state.effects = [], []
        return outcome

    def forget(self, queue: str) -> KestrelOutcome:
        """A queue that a batch which was taken back has erased all the same."""
        state = self._state
        known = state.queues.get(queue)
        if known is not None:
            whole_queues.erase(state, known)
        state.records, effects = [], tuple(state.effects)
        state.effects = []
        return KestrelOutcome((), None, effects)

    def load(
        self, queue: str, *, next_id: int, created_ms: int, readers: Iterable[LoadedReader]
    ) -> None:
        """A queue as its journal was opened. Not within a batch."""
        self._state.load(queue, next_id=next_id, created_ms=created_ms, readers=readers)

    def next_due_ns(self) -> int | None:
        """When to decide ``KestrelDue`` next; None: not before another command."""
        due_ns = (self._state.waits.first_over_ns(), self._state.sweep_due_ns)
        return min((moment_ns for moment_ns in due_ns if moment_ns is not None), default=None)

    @property
    def queues(self) -> dict[str, ItemQueue]:
        return self._state.queues

    @property
    def counts(self) -> Counts:
        return self._state.counts

    @property
    def gives_items(self) -> bool:
        """If not, open reads can still be confirmed, closed and aborted."""
        return self._state.gives_items

    @gives_items.setter
    def gives_items(self, gives_items: bool) -> None:
        self._state.gives_items = gives_items

    def hold_off(self, names: Iterable[str]) -> None:
        """These queues cannot be made: files of an older kestrel have to be imported first."""
        self._state.not_imported = frozenset(names)

    def changes_files(self, command: Any) -> bool:
        """Whether it would make or remove a queue or a reader, which costs more than an item."""
        if isinstance(command, ask.Put):
            queue = self._state.queues.get(command.queue)
            return queue is None or not queue.readers
        if isinstance(command, ask.GetItem | ask.Monitor):
            return self._state.known_reader(command.key) is None
        if isinstance(command, ask.DeleteQueue):
            whole = command.key.reader == DEFAULT_READER and command.key.queue in self._state.queues
            return whole or self._state.known_reader(command.key) is not None
        return False

    def stats(self) -> FanOutStats:
        # Lists first: it may be asked from another thread while queues come and go.
        queues = list(self._state.queues.values())
        readers = [reader for queue in queues for reader in list(queue.readers.values())]
        return FanOutStats(
            len(queues),
            len(readers),
            sum(reader.items for reader in readers),
            sum(reader.data_bytes for reader in readers),
            sum(reader.open_items for reader in readers),
            len(self._state.waits),
        )

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """From here on everything can be taken back."""
        self._state.begin_batch()

    def commit_batch(self) -> None:
        """The records of the batch are durable."""
        self._state.commit_batch()

    def undo_batch(self) -> None:
        """The records could not be written: be as if the batch had never been. Nothing that it
        gave out may be used: no reply, no effect. Clients that waited before it wait again."""
        self._state.undo_batch()
