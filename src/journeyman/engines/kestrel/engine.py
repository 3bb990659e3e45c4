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

Commands of the usual kind, many of one client, are decided in one step:

    set, set, set ...              into one queue that has no limits, and that no client waits for
    get q+r/open, the same ...     items that are in memory and do not expire
    confirm q+r 1, the same ...    of items that the client has open

decisions.py is the law: ``decide_run`` does what the decisions there do for each command, up to the
first one that is not usual, which is left to them (tests/property/test_kestrel_engine.py). It asks
once for all commands what they ask for each: which queue and reader it is, who waits, how many may
be open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from journeyman.engines.kestrel import decisions
from journeyman.engines.kestrel.messages import (
    Append,
    Checkpoint,
    Client,
    Counts,
    Fetched,
    KestrelDue,
    KestrelGone,
    KestrelOutcome,
    KestrelStats,
    StopWaiting,
    Write,
)
from journeyman.engines.kestrel.queue import ItemQueue, KestrelOptions
from journeyman.engines.kestrel.state import KestrelState, LoadedReader
from journeyman.formats.kestrel import ItemPut
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.replies import (
    END,
    NOT_STORED,
    STORED,
    ItemFound,
    Reply,
)
from journeyman.units import NS_PER_MS

_write = tuple.__new__  # a third of the time of Append(...)


def decide_run(
    state: KestrelState, commands: Sequence[Any], client: Client, most_bytes: int
) -> Sequence[Reply]:
    """The replies to the first of these commands of one kind; maybe to none.

    ``most_bytes``: so much may be said, and one answer more.
    """
    return _RUNS[type(commands[0])](state, commands, client, most_bytes)


def _put_all(
    state: KestrelState, commands: Sequence[ask.Put], _: Client, _most_bytes: int
) -> Sequence[Reply]:
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
        state.records += [_write(Append, (name, item)) for item in items]
        queue.add_all(items)
    return [STORED] * len(items)


def _get_all(
    state: KestrelState, commands: Sequence[ask.GetItem], client: Client, most_bytes: int
) -> Sequence[Reply]:
    key, _, opens, closes, aborts, peeks = first = commands[0]
    found = state.known_reader(key)
    if closes or aborts or peeks or not opens or not state.gives_items or found is None:
        return ()
    reader = found[1]
    opened = len(state.opened(client, key))
    items = reader.next_in_window(min(len(commands), reader.settings.max_open - opened))
    replies: list[Reply] = []
    for item, command in zip(items, commands, strict=False):
        if command != first or most_bytes <= 0:
            break
        replies.append(reply := ItemFound(key, item.data))
        most_bytes -= reply.size
    if replies:
        del items[len(replies) :]
        state.touch(reader)
        state.touch_client(client)
        state.counts.hits += len(items)
        reader.open_next(items)
        reader.tally.age_ms = max(0, state.now_ns // NS_PER_MS - items[-1].add_time_ms)
        state.open_of(client, key).extend(items)
    return replies


def _confirm_all(
    state: KestrelState, commands: Sequence[ask.Confirm], client: Client, _most_bytes: int
) -> Sequence[Reply]:
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
    return [END] * confirmed


_RUNS: dict[type, Callable[[KestrelState, Any, Client, int], Sequence[Reply]]] = {
    ask.Put: _put_all,
    ask.GetItem: _get_all,
    ask.Confirm: _confirm_all,
}
KINDS = frozenset(_RUNS)


_DECISIONS: dict[type, Callable[[KestrelState, Any, Client], Reply | None]] = {
    ask.Put: decisions.put,
    ask.PutTooLarge: lambda *_: NOT_STORED,
    ask.GetItem: decisions.get,
    ask.Monitor: decisions.monitor,
    ask.Confirm: decisions.confirm,
    ask.Flush: decisions.flush,
    ask.FlushAll: decisions.flush_all,
    ask.FlushExpired: decisions.flush_expired,
    ask.FlushAllExpired: decisions.flush_all_expired,
    ask.DeleteQueue: decisions.delete,
    ask.Shutdown: decisions.shut_down,
    KestrelGone: decisions.client_gone,
    StopWaiting: decisions.stop_waiting,
    Fetched: decisions.take_fetched,
    KestrelDue: decisions.due,
    Checkpoint: decisions.checkpoint,
}

_outcome = tuple.__new__  # a third of the time of KestrelOutcome(...), and one is made every time


class KestrelEngine:
    """All queues, their readers, and who waits for what."""

    __slots__ = ("_state",)

    def __init__(self, settings: KestrelOptions | None = None) -> None:
        self._state = KestrelState(settings)

    def decide(self, command: Any, now_ns: int, client: Client = None) -> KestrelOutcome:
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
        return _outcome(KestrelOutcome, (tuple(records), reply, tuple(effects)))

    def decide_run(
        self, commands: Sequence[Any], now_ns: int, client: Client, most_bytes: int
    ) -> tuple[list[Write], Sequence[Reply]]:
        """The first of these commands of one kind, as if one by one: what to write, the replies.

        What is left is for ``decide``. ``most_bytes`` may be said, and one answer more.
        """
        state = self._state
        state.now_ns = now_ns
        replies = decide_run(state, commands, client, most_bytes)
        records = state.records
        if records:
            state.records = []
            state.plan_sweep()
        return records, replies

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
            decisions.serve_waiting(state, known, reader)
        outcome = KestrelOutcome(tuple(state.records), None, tuple(state.effects))
        state.records, state.effects = [], []
        return outcome

    def forget(self, queue: str) -> KestrelOutcome:
        """A queue that a batch which was taken back has erased all the same."""
        state = self._state
        known = state.queues.get(queue)
        if known is not None:
            decisions.erase(state, known)
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
        return self._state.next_due_ns()

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
        return self._state.changes_files(command)

    def stats(self) -> KestrelStats:
        return self._state.stats()

    def take_ledger(self) -> list[LedgerRecord]:
        """What was decided since the last call and belongs in the ledger, for the same batch."""
        return []  # items have nothing that their journals do not hold

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
