r"""Which bytes of a log its state still needs, counted while the log is read and folded.

    record --> fold (journeyman.folds) --> state
          \-> its bytes are put down to the key it belongs to; keys that end take theirs along

One account a dialect, all of one shape: ``begin_file``, ``record`` for each record in log order,
``damaged`` where something could not be read, then ``live_bytes`` by file number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from journeyman.folds import Notes, kestrel, ledger, workq, ztick
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead
from journeyman.logs.catalog import LEDGER, WORKQ, ZTICK, Log

Reread: TypeAlias = Callable[[], Iterator[Any]]


class Account(Protocol):
    def begin_file(self, number: int, reader: str | None) -> None:
        """Records that follow stand in this file; ``reader``: it is a reader's checkpoint."""
        ...

    def record(self, record: Any, length: int) -> None: ...

    def damaged(self) -> None: ...

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:
        """Bytes by file number that the state needs, once all has been read."""
        ...


def account_for(log: Log, notes: Notes, reread: Reread) -> Account:
    """``notes`` hears of anomalies; ``reread`` gives all records of the segments once more."""
    if log.dialect == ZTICK:
        return _LastAccount(ztick, notes)
    if log.dialect == LEDGER:
        return _LastAccount(ledger, notes)
    if log.dialect == WORKQ:
        return _WorkqAccount(notes)
    return _KestrelAccount(notes, log.whole, reread)


class _LastAccount:
    """ztick, ledger: the last record of what exists is live; all else is dead."""

    def __init__(self, fold: Any, notes: Notes) -> None:
        """``fold``: the module of the dialect in journeyman.folds."""
        self._fold = fold
        self._notes = notes
        self._file = 0
        self._last: dict[tuple[str, str], tuple[Any, int, int]] = {}  # state, file, bytes

    def begin_file(self, number: int, reader: str | None) -> None:  # noqa: ARG002 - has none
        self._file = number

    def record(self, record: Any, length: int) -> None:
        key = self._fold.key_of(record)
        before = self._last.pop(key, (None, 0, 0))[0]
        state = self._fold.apply(before, record, self._notes)
        if state is not None:
            self._last[key] = (state, self._file, length)

    def damaged(self) -> None:
        pass

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:  # noqa: ARG002 - nothing expires
        live: Counter[int] = Counter()
        for _, file, length in self._last.values():
            live[file] += length
        return live


class _WorkqAccount:
    """Every record of a job that exists is live, from its latest add on."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._file = 0
        self._states: dict[bytes, workq.State] = {}
        self._bytes: dict[bytes, dict[int, int]] = {}  # by job, by file

    def begin_file(self, number: int, reader: str | None) -> None:  # noqa: ARG002 - has none
        self._file = number

    def record(self, record: Any, length: int) -> None:
        key = record.job_id
        before = self._states.get(key)
        state = workq.apply(before, record, self._notes)
        if state is None:
            self._states.pop(key, None)
            self._bytes.pop(key, None)
            return
        if state is not before:
            self._states[key] = state
            if isinstance(before, workq.FoldedJob):
                self._bytes.pop(key, None)  # a new life under the old id
        by_file = self._bytes.setdefault(key, {})
        by_file[self._file] = by_file.get(self._file, 0) + length

    def damaged(self) -> None:
        pass

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:
        live: Counter[int] = Counter()
        for key, state in self._states.items():
            if workq.visible(state, as_of_ns) is not None:
                live.update(self._bytes[key])
        return live


class _KestrelAccount:
    """Items that some reader still has to be given are live, and the last word of each reader."""

    def __init__(self, notes: Notes, whole: bool, reread: Reread) -> None:
        self._notes = notes
        self._whole = whole
        self._reread = reread
        self._file = 0
        self._reader: str | None = None
        self._readers: dict[str, kestrel.Reader | None] = {}
        self._heads: dict[int, int] = {}  # bytes of the last READ_HEAD, by file
        self._consumed: Callable[[int], bool] | None = None
        self._live: Counter[int] = Counter()
        self._items: Counter[int] = Counter()  # bytes of items, by file
        self._ids = IdRuns()
        self._seen_again: set[int] = set()

    def begin_file(self, number: int, reader: str | None) -> None:
        self._file = number
        self._reader = reader
        if reader is not None:
            self._readers[reader] = kestrel.Reader()

    def damaged(self) -> None:
        if self._reader is not None:
            self._readers[self._reader] = None

    def record(self, record: Any, length: int) -> None:
        if self._reader is not None:
            self._checkpoint_record(self._reader, record, length)
            return
        kestrel.apply(None, record, self._notes)
        if not isinstance(record, ItemPut):
            return
        if self._consumed is None:
            # Where readers stand depends on the newest item, too: see ``live_bytes``.
            self._consumed = _passed_by_all(self._readers)
        self._items[self._file] += length
        if not self._consumed(record.item_id):
            self._live[self._file] += length
        if not self._ids.add(record.item_id):
            self._seen_again.add(record.item_id)

    def _checkpoint_record(self, name: str, record: Any, length: int) -> None:
        reader = self._readers[name]
        if reader is not None:
            kestrel.apply_reader(reader, record, self._notes, name)
        if isinstance(record, ReadHead):
            self._live[self._file] += length - self._heads.get(self._file, 0)
            self._heads[self._file] = length
        elif isinstance(record, ReadDone):
            self._live[self._file] += length

    def live_bytes(self, as_of_ns: int) -> dict[int, int]:  # noqa: ARG002 - nothing expires
        span = self._ids.span()
        if self._whole:
            kestrel.open_queue(span, self._readers, self._notes)
        heads = [reader.head for reader in self._readers.values() if reader is not None]
        if span and max(heads, default=0) > span[-1]:
            self._live |= self._items  # a reader that starts at the oldest item needs all of them
        if self._seen_again:
            # To distinguish a repeated item from a reused id takes the items; only now are they
            # needed.
            again = (r for r in self._reread() if kestrel.key_of(r) in self._seen_again)
            kestrel.replay(again, self._notes)
        return self._live


def _passed_by_all(readers: Mapping[str, kestrel.Reader | None]) -> Callable[[int], bool]:
    """Whether every reader is past an item, provided that all stand where their checkpoints say."""
    counting = [reader for name, reader in readers.items() if name or len(readers) == 1]
    trusted = [reader for reader in counting if reader is not None and reader.is_plausible(0)]
    if not counting or len(trusted) < len(counting):
        return lambda _item_id: False
    return lambda item_id: all(reader.is_past(item_id) for reader in trusted)


class IdRuns:
    """A set of ids, kept as runs of consecutive ones: a healthy queue is a single run."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, item_id: int) -> bool:
        """Whether it is new."""
        at = bisect_right(self._firsts, item_id) - 1
        if at >= 0 and item_id <= self._lasts[at]:
            return False
        if at >= 0 and item_id == self._lasts[at] + 1:
            self._lasts[at] = item_id
        else:
            self._firsts.insert(at + 1, item_id)
            self._lasts.insert(at + 1, item_id)
        return True

    def span(self) -> tuple[int, ...]:
        """The least and the greatest id; nothing when there is none."""
        return (self._firsts[0], self._lasts[-1]) if self._firsts else ()
