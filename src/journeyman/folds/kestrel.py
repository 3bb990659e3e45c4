"""The folds of the kestrel journal, and the view of a queue that puts them together.

    writer files   ItemPut ...               by item id      ItemPut, or Contested
    reader files   ReadHead, ReadDone ...    by reader       Reader(head, done)

    ids      ... 7    8    9    10   11   12   13
                      ^head          done ^tail ^next
             to be delivered: 9, 10 and 12

An item is what was put; nothing in a writer file changes it. If one id has several
items (the original reuses ids when it has lost some), all of them are kept. A reader's
head is its last READ_HEAD, its finished ids are those of all READ_DONEs together.

What needs the ids of the whole queue (the tail, and so a reader's real position) is not a fold but
a view: ``open_queue`` takes ids, not items, and looks at each once, so that a queue of any length
can be opened without holding it in memory. Expiry depends on the time, so it is not handled here.
Segment files and their names belong to journeyman.logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from journeyman.folds import Anomaly, AnomalyKind, Notes
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead, Record, UnknownCommand

DEFAULT_READER = ""
# A million items a second take nine years to get here; a flipped bit gets far beyond.
MAX_PLAUSIBLE_ID = 2**48


@dataclass(slots=True)
class Contested:
    """Different items under one id, in the order of the journal."""

    puts: list[ItemPut]
    # The same once more, so that an id put a million times is still folded in linear time.
    known: set[ItemPut] = field(compare=False, repr=False)


Item: TypeAlias = ItemPut | Contested  # an unknown id has the state None


@dataclass(slots=True)
class Reader:
    """How far one reader has come. Ids in ``done`` that the head has passed say nothing."""

    head: int = 0  # everything up to and including this id is finished
    done: set[int] = field(default_factory=set)  # finished out of order

    def is_past(self, item_id: int) -> bool:
        """Return whether the reader has finished this item."""
        return item_id <= self.head or item_id in self.done

    def is_plausible(self, tail: int) -> bool:
        """Return whether a queue that ends there can have come so far; else the checkpoint is
        damaged.
        """
        return max(self.head, *self.done, 0) <= max(MAX_PLAUSIBLE_ID, tail)

    def undelivered(self, item_ids: Iterable[int]) -> Iterator[int]:
        """Return those of these ids, in their order, that the reader has not received yet."""
        return (item_id for item_id in item_ids if not self.is_past(item_id))


def key_of(record: Record) -> int | None:
    """The id of an item; None for a record that belongs to no item."""
    return record.item_id if isinstance(record, ItemPut) else None


def apply(state: Item | None, record: Record, notes: Notes = None) -> Item | None:
    """The state of one item id. Takes ``state`` over: it may be changed and returned."""
    if not isinstance(record, ItemPut):
        _note_foreign(record, None, notes)
        return state
    if state is None:
        if record.item_id <= 0:
            _note(notes, AnomalyKind.UNUSABLE_VALUE, record.item_id, "an id that is not positive")
        return record
    if record == state or (isinstance(state, Contested) and record in state.known):
        detail = "put before, the same in every field; one is kept"
        _note(notes, AnomalyKind.REPEATED_ITEM, record.item_id, detail, record)
        return state
    _note(notes, AnomalyKind.REUSED_ID, record.item_id, "another item has this id; both are kept")
    if isinstance(state, ItemPut):
        return Contested([state, record], {state, record})
    state.puts.append(record)
    state.known.add(record)
    return state


def fold(records: Iterable[Record], notes: Notes = None) -> Item | None:
    """The state of one item id."""
    state: Item | None = None
    for record in records:
        state = apply(state, record, notes)
    return state


def replay(records: Iterable[Record], notes: Notes = None) -> dict[int, Item]:
    """All items of a queue by id, in the order in which the ids first occur."""
    items: dict[int, Item] = {}
    for record in records:
        if isinstance(record, ItemPut):
            state = apply(items.get(record.item_id), record, notes)
            assert state is not None  # after a put there is an item
            items[record.item_id] = state
        else:
            _note_foreign(record, None, notes)
    return items


def snapshot(state: Item | None) -> tuple[ItemPut, ...]:
    """The puts that fold to ``state``."""
    if state is None:
        return ()
    return (state,) if isinstance(state, ItemPut) else tuple(state.puts)


def apply_reader(
    state: Reader | None, record: Record, notes: Notes = None, name: str = DEFAULT_READER
) -> Reader:
    """The state of one reader. Takes ``state`` over: it is changed and returned."""
    reader = Reader() if state is None else state
    if isinstance(record, ReadHead):
        reader.head = record.item_id
    elif isinstance(record, ReadDone):
        reader.done.update(record.item_ids)
    else:
        _note_foreign(record, name, notes)
    return reader


def fold_reader(
    records: Iterable[Record], notes: Notes = None, name: str = DEFAULT_READER
) -> Reader:
    """The state of one reader; a checkpoint without records is that of a new queue, head 0."""
    reader = Reader()
    for record in records:
        apply_reader(reader, record, notes, name)
    return reader


def snapshot_reader(reader: Reader) -> tuple[ReadHead, ReadDone]:
    """The records of a checkpoint: the second is there even when it is empty."""
    return ReadHead(reader.head), ReadDone(tuple(sorted(reader.done)))


@dataclass(frozen=True, slots=True)
class FoldedQueue:
    """A queue as it is opened: where it ends and where each reader stands. At least one does."""

    tail: int
    readers: Mapping[str, Reader]

    @property
    def next_id(self) -> int:
        return self.tail + 1

    def is_dead(self, item_id: int) -> bool:
        """Return whether every reader has finished this item."""
        return all(reader.is_past(item_id) for reader in self.readers.values())

    def retired(self, first_ids: Sequence[int]) -> Sequence[int]:
        """Return the first ids of the segments that can be deleted, given those of all in ascending
        order.

        A segment may go when the next begins no later than the first id that some reader still
        needs; so the newest always stays, and with it the knowledge of the tail.
        """
        needed = min(self.tail, *(reader.head + 1 for reader in self.readers.values()))
        begun = sum(1 for first_id in first_ids if first_id <= needed)
        return first_ids[: max(begun - 1, 0)]


def open_queue(
    item_ids: Iterable[int], readers: Mapping[str, Reader | None], notes: Notes = None
) -> FoldedQueue:
    """Where a queue and its readers stand; None for a reader whose checkpoint is not to be trusted.

    Such a reader starts at the oldest item, for it is better to deliver twice than never; so do one
    whose head is beyond the newest item, and the default reader of a queue that has no checkpoint
    at all. All others keep their place, as far as the items reach. The given readers are not
    changed.
    """
    ids = _edges(item_ids)
    readers = {
        name: reader if reader is not None and reader.is_plausible(ids[-1] if ids else 0) else None
        for name, reader in readers.items()
    }
    first, tail = _span(ids, readers)
    names = set(readers)
    if len(names) > 1 and DEFAULT_READER in names:
        _note(notes, AnomalyKind.DEFAULT_READER_DROPPED, DEFAULT_READER, "named readers exist")
        names.remove(DEFAULT_READER)
    opened: dict[str, Reader] = {}
    for name in sorted(names):
        reader = readers[name]
        if reader is None:
            detail = f"starts at the oldest item, {first}"
            _note(notes, AnomalyKind.CHECKPOINT_DAMAGED, name, detail)
            opened[name] = Reader(first - 1)
        else:
            opened[name] = _placed(reader, first, tail, name, notes)
    if not opened:
        if first <= tail:
            detail = f"no checkpoint: a default reader starts at the oldest item, {first}"
            _note(notes, AnomalyKind.DEFAULT_READER_CREATED, DEFAULT_READER, detail)
        opened[DEFAULT_READER] = Reader(first - 1)
    return FoldedQueue(tail, opened)


def _edges(item_ids: Iterable[int]) -> tuple[int, ...]:
    """The oldest id, and the newest or 0; nothing if there is none."""
    first: int | None = None
    tail = 0
    for item_id in item_ids:
        if first is None or item_id < first:
            first = item_id
        if item_id > tail:
            tail = item_id
    return () if first is None else (first, tail)


def _span(edges: tuple[int, ...], readers: Mapping[str, Reader | None]) -> tuple[int, int]:
    """The oldest and the newest id; of a queue without items, the first after what was read."""
    if edges:
        return edges[0], edges[1]
    tail = 0
    # Ids must not be given out again, and here only the readers know which ones were.
    for reader in readers.values():
        if reader is not None:
            tail = max(tail, reader.head, *reader.done)
    return tail + 1, tail


def _placed(reader: Reader, first: int, tail: int, name: str, notes: Notes) -> Reader:
    if reader.head > tail:
        detail = (
            f"head {reader.head} is beyond the newest item, {tail}, and is not trusted: "
            f"the reader starts at the oldest item, {first}"
        )
        _note(notes, AnomalyKind.CHECKPOINT_AHEAD, name, detail)
        return Reader(first - 1)
    if any(item_id > tail for item_id in reader.done):
        detail = f"has finished items beyond the newest one, {tail}"
        _note(notes, AnomalyKind.CHECKPOINT_AHEAD, name, detail)
    elif reader.head < first - 1:
        detail = f"head {reader.head} is before the oldest item, {first}"
        _note(notes, AnomalyKind.CHECKPOINT_BEHIND, name, detail)
    head = max(reader.head, first - 1)
    return Reader(head, {item_id for item_id in reader.done if head < item_id <= tail})


def _note_foreign(record: Record, key: str | None, notes: Notes) -> None:
    if isinstance(record, UnknownCommand):
        detail = f"command byte {record.command_byte:#04x}"
        _note(notes, AnomalyKind.UNKNOWN_COMMAND, key, detail, record)
    else:
        detail = f"{type(record).__name__} in a {'writer' if key is None else 'reader'} file"
        _note(notes, AnomalyKind.MISPLACED_RECORD, key, detail, record)


def _note(
    notes: Notes, kind: AnomalyKind, key: int | str | None, detail: str, *lost: Record
) -> None:
    if notes is not None:
        notes(Anomaly(kind, key, detail, lost))


def id_span(records: Iterable[Any]) -> tuple[int, ...]:
    """The least and the greatest id of the items among these records; nothing without items."""
    span: tuple[int, ...] = ()
    for record in records:
        if isinstance(record, ItemPut):
            ids = (*span, record.item_id)
            span = min(ids), max(ids)
    return span


def consumed_by_all(
    readers: Mapping[str, Reader | None], span: Sequence[int]
) -> Callable[[int], bool]:
    """A function: whether every reader is past an item. Without readers none is.

    ``span``: the least and the greatest id of the queue, which decide whether a reader stands where
    its checkpoint says. The default reader does not count beside named ones.
    """
    if not readers:
        return lambda _item_id: False
    placed = open_queue(span, readers).readers.values()
    return lambda item_id: all(reader.is_past(item_id) for reader in placed)
