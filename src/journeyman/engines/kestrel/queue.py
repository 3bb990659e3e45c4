"""One queue in memory: the newest items, and where each of its readers stands.

    journal on disk   1 2 3 4 5 6 7 8 9 10 11 12
    window                          8 9 10 11 12        the newest, shared by all readers
    reader a          next 12: takes from the window
    reader b          next 3:  its buffer holds 3 4 5, read from disk; the rest is still there

A put goes to the window and to nothing else, so its cost does not grow with the readers: what a
reader still has to be given is computed from totals on request. A reader takes

    given back items  -->  buffer, read from disk  -->  window of the queue  -->  none: END
      first                if it is older than the window

What it has finished out of order is a set of ranges: finished 4, 5, 6 and 9 is [(4, 6), (9, 9)]. A
reader that keeps one item open while it finishes millions after it costs one range, not a million
numbers.

Queues and readers can be saved and restored, for a batch that could not be written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, Final

from journeyman.engines.kestrel.messages import Client, ReaderTally
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel.commands import Key

MAX_MONITOR_BYTES = 8 * 1024 * 1024  # fetched or not; the client must ask again for more


@dataclass(slots=True, eq=False)
class Wait:
    """A get or a monitor that is not answered yet."""

    client: Client
    key: Key
    over_ns: int
    over: bool = False  # its time is over: it only waits for the disk
    opens: bool = False
    peeks: bool = False
    left: int | None = None  # how many items a monitor may still have
    bytes_left: int = MAX_MONITOR_BYTES  # how many bytes of items a monitor may still have
    serial: int = 0  # the order of waits that are over at the same moment


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """A reader's own settings, or those of its queue, or the defaults. None: no limit.

    Limits that count items or bytes are those of a reader: a put is refused if any reader is full.
    """

    max_items: int | None = None
    max_bytes: int | None = None
    drops_oldest: bool = False  # when full; else puts are refused
    max_age_ms: int | None = None
    expire_to: str | None = None  # the queue that expired items go to; else they are dropped
    max_errors: int | None = None  # so many aborts, and the item goes to ``errors_to``
    errors_to: str | None = None  # None: it is dropped
    max_open: int = 1  # reads that one connection may have open on this key
    max_expire_sweep: int | None = None  # the most in one flush_expired or background sweep

    @property
    def is_limited(self) -> bool:
        return self.max_items is not None or self.max_bytes is not None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    reader: ReaderSettings = field(default_factory=ReaderSettings)  # for readers not named below
    readers: Mapping[str, ReaderSettings] = field(default_factory=dict)
    max_item_bytes: int | None = None
    max_age_ms: int | None = None  # an empty queue of this age is deleted

    def of_reader(self, name: str) -> ReaderSettings:
        return self.readers.get(name, self.reader)


@dataclass(frozen=True, slots=True)
class KestrelOptions:
    """All queues. ``window`` bounds what of each queue is kept in memory."""

    default: QueueSettings = field(default_factory=QueueSettings)
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    max_item_bytes: int = 16 * 1024 * 1024  # the limit of all queues
    max_queues: int = 4096
    max_readers: int = 1000  # the limit of one queue
    window_items: int = 8192
    window_bytes: int = 2 * 1024 * 1024
    sweep_interval_ms: int = 1000
    shutdown_allowed: bool = False

    def of_queue(self, name: str) -> QueueSettings:
        return self.queues.get(name, self.default)


class Intervals:
    """Ids as ranges: sorted, apart from each other, both ends belong to them."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for number in sorted(ids):
            self.add(number, number)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self.ranges() == other.ranges()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number)
        return place > 0 and number <= self._lasts[place - 1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges():
            yield from range(first, last + 1)

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def copy(self) -> Intervals:
        twin = Intervals()
        twin._firsts, twin._lasts = self._firsts.copy(), self._lasts.copy()
        return twin

    def add(self, first: int, last: int) -> None:
        """All ids from ``first`` to ``last``; some may be in already."""
        begin = bisect_right(self._lasts, first - 2)  # the first range that touches or follows
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            first = min(first, self._firsts[begin])
            last = max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def end_of_run(self, number: int) -> int:
        """The last id of the range that holds ``number``; one less than it if none does."""
        place = bisect_right(self._firsts, number)
        if place and number <= self._lasts[place - 1]:
            return self._lasts[place - 1]
        return number - 1

    def drop_through(self, number: int) -> None:
        """Forget ids up to and including this one."""
        place = bisect_right(self._firsts, number)
        if place and self._lasts[place - 1] > number:
            place -= 1
            self._firsts[place] = number + 1
        del self._firsts[:place]
        del self._lasts[:place]


LOW_BUFFER_ITEMS = 64  # so few left, and the next ones are asked for
# A checkpoint lists ids one by one. A client that keeps an item open and finishes millions after it
# has, if the server dies, all but this many of them delivered once more.
MAX_SAVED_DONE = 200_000


class NotHere:
    """The next item is on disk."""


NOT_HERE: Final = NotHere()


class FanReader:
    """How far one reader has come, and what it has in hand."""

    __slots__ = (
        "_queue",
        "_took_returned",
        "backlog_bytes",
        "backlog_items",
        "buffer",
        "changed",
        "done",
        "fetch_limit",
        "fetching",
        "finished_bytes",
        "finished_items",
        "head",
        "name",
        "next_id",
        "open_bytes",
        "open_items",
        "returned",
        "saved_through",
        "serial",
        "settings",
        "tally",
        "waiters",
    )

    def __init__(
        self,
        queue: ItemQueue,
        name: str,
        settings: ReaderSettings,
        place: Reader,
        *,
        items: int = 0,
        data_bytes: int = 0,
    ) -> None:
        """``items`` and ``data_bytes``: what it still has to be given, of all that is stored."""
        self._queue = queue
        self.name = name
        self.settings = settings
        self.serial = 0  # see AddReader
        self.head = place.head
        self.done = Intervals(place.done)
        self.next_id = place.head + 1
        self.buffer: deque[ItemPut] = deque()
        self.fetching: int | None = None  # items after this id have been requested
        self.fetch_limit = 0  # where the window began when they were
        self.returned: deque[ItemPut] = deque()
        self._took_returned = False  # the item taken last had been given back
        self.waiters: OrderedDict[Wait, None] = OrderedDict()
        # The items before the reader = backlog + all that were put - all that were finished.
        self.backlog_items = items - queue.puts
        self.backlog_bytes = data_bytes - queue.put_bytes
        self.finished_items = 0
        self.finished_bytes = 0
        self.open_items = 0
        self.open_bytes = 0
        self.tally = ReaderTally()
        self.changed = False
        self.saved_through = max(place.done, default=place.head)

    @property
    def items(self) -> int:
        """How many it still has to be given; those that are open do not count."""
        return self.backlog_items + self._queue.puts - self.finished_items - self.open_items

    @property
    def data_bytes(self) -> int:
        total = self.backlog_bytes + self._queue.put_bytes
        return total - self.finished_bytes - self.open_bytes

    @property
    def age_ms(self) -> int:
        """How long the last item that was given out had waited; 0 if there are no more."""
        return self.tally.age_ms if self.items else 0

    def oldest(self) -> ItemPut | int | None:
        """The item that it would be given next, as far as it is in memory; the least id that it can
        have, if it is on disk; None: there is none."""
        if not self.items:
            return None
        if self.returned or self.buffer:
            return self.returned[0] if self.returned else self.buffer[0]
        queue, next_id = self._queue, max(self.next_id, self.head + 1)
        next_id = self.done.end_of_run(next_id) + 1 if self.done else next_id
        if next_id >= queue.next_id:
            return None
        if next_id < queue.window_start:
            return next_id
        return queue.window[next_id - queue.window_start]

    def place(self) -> Reader:
        """Return what a checkpoint says. Of very many ids finished out of order it holds the first
        ones, and all that an earlier checkpoint held: what was saved once stays saved."""
        listed = iter(self.done)
        saved = set(islice(listed, MAX_SAVED_DONE))
        saved.update(takewhile(lambda item_id: item_id <= self.saved_through, listed))
        self.saved_through = max(saved, default=self.head)
        return Reader(self.head, saved)

    @property
    def is_over_limit(self) -> bool:
        """Return whether the oldest have to go."""
        most, most_bytes = self.settings.max_items, self.settings.max_bytes
        return (most is not None and self.items > most) or (
            most_bytes is not None and self.data_bytes > most_bytes
        )

    @property
    def is_full(self) -> bool:
        """Return whether a put has to be refused. What is open counts: it may come back."""
        if self.settings.drops_oldest:
            return False
        most, most_bytes = self.settings.max_items, self.settings.max_bytes
        return (most is not None and self.items + self.open_items >= most) or (
            most_bytes is not None and self.data_bytes + self.open_bytes >= most_bytes
        )

    def is_expired(self, item: ItemPut, now_ms: int) -> bool:
        if item.expire_time_ms is not None and item.expire_time_ms <= now_ms:
            return True
        max_age_ms = self.settings.max_age_ms
        return max_age_ms is not None and item.add_time_ms + max_age_ms <= now_ms

    # -- taking and finishing --

    def take(self) -> ItemPut | NotHere | None:
        """The next item, given back ones first; None: there is none now."""
        self._took_returned = bool(self.returned)
        if self.returned:
            return self.returned.popleft()
        if self.buffer:
            item = self.buffer.popleft()
            if item.item_id > self.next_id:
                self._pass(self.next_id, item.item_id - 1)
            self.next_id = max(self.next_id, item.item_id + 1)
            return item
        if self.next_id <= self.head:  # its next item is finished already
            self.next_id = self.head + 1
        if self.done:
            self.next_id = self.done.end_of_run(self.next_id) + 1
        queue = self._queue
        if self.next_id >= queue.next_id:
            return None
        if self.next_id < queue.window_start:
            return NOT_HERE
        item = queue.window[self.next_id - queue.window_start]
        self.next_id += 1
        return item

    def next_in_window(self, limit: int) -> list[ItemPut]:
        """Return what ``take`` would give next, if that is all in the window and nothing else comes
        first.

        Without items that expire; maybe none. They are not taken.
        """
        queue = self._queue
        begin = self.next_id - queue.window_start
        if (
            self.waiters
            or self.returned
            or self.buffer
            or self.done
            or self.next_id <= self.head
            or begin < 0
            or self.settings.max_age_ms is not None
        ):
            return []
        window, end = queue.window, min(begin + limit, len(queue.window))
        items = [window[place] for place in range(begin, end)]
        if queue.may_expire and any(item.expire_time_ms is not None for item in items):
            return []
        return items

    def open_next(self, items: Sequence[ItemPut]) -> None:
        """Take these, which ``next_in_window`` has shown, and open them."""
        self._took_returned = False
        self.next_id += len(items)
        self.open_items += len(items)
        self.open_bytes += sum([len(item.data) for item in items])
        self.tally.opened += len(items)

    def put_back(self, item: ItemPut) -> None:
        """Make the item that ``take`` returned just now the next one again.

        An item that was never given out does not go among those that were given back: one that is
        given back later still comes before it.
        """
        (self.returned if self._took_returned else self.buffer).appendleft(item)

    def open(self, item: ItemPut) -> None:
        self.open_items += 1
        self.open_bytes += len(item.data)

    def no_longer_open(self, item: ItemPut) -> None:
        self.open_items -= 1
        self.open_bytes -= len(item.data)

    def finish(self, item: ItemPut) -> None:
        self.finished_items += 1
        self.finished_bytes += len(item.data)
        self._pass(item.item_id, item.item_id)

    def finish_all_but(self, open_items: list[ItemPut]) -> int:
        """Everything that is stored now, except what is open; how many items that were."""
        count = self.items
        self.finished_items += count
        self.finished_bytes += self.data_bytes
        self.returned.clear()
        self.buffer.clear()
        self.fetching = None
        self.next_id = self._queue.next_id
        first = self.head + 1
        for item_id in sorted(item.item_id for item in open_items):
            if item_id > first:
                self._pass(first, item_id - 1)
            first = item_id + 1
        if first < self.next_id:
            self._pass(first, self.next_id - 1)
        return count

    def _pass(self, first: int, last: int) -> None:
        """These ids are finished, or do not exist."""
        self.changed = True
        if first > self.head + 1:
            self.done.add(first, last)
        elif last > self.head:
            self.head = last
            if self.done:
                self.head = self.done.end_of_run(last + 1)
                self.done.drop_through(self.head)

    # -- items from disk --

    def wants(self) -> int | None:
        """The id after which items should be read from disk now. None: there is no need, or a read
        is under way."""
        if self.fetching is not None or len(self.buffer) > LOW_BUFFER_ITEMS:
            return None
        after = self.buffer[-1].item_id if self.buffer else self.next_id - 1
        after = self.done.end_of_run(max(after, self.head) + 1)
        if after + 1 >= self._queue.window_start:
            return None
        self.fetching, self.fetch_limit = after, self._queue.window_start
        return after

    def add_fetched(self, after: int, items: tuple[ItemPut, ...]) -> bool:
        """Take in what was read; False: it was not asked for, or not any more."""
        if self.fetching != after:
            return False
        self.fetching = None
        window_start = self._queue.window_start
        here = [item for item in items if item.item_id < window_start]
        # Looked at here and not when it is taken: one id may stand for two items.
        self.buffer.extend(
            item for item in here if item.item_id > self.head and item.item_id not in self.done
        )
        if not self.buffer:
            # Nothing is stored under the ids up to the last of these; or, if there are none, up to
            # where the window began when we asked.
            first_left = here[-1].item_id + 1 if here else self.fetch_limit
            if self.next_id < first_left:
                self._pass(self.next_id, first_left - 1)
                self.next_id = first_left
        return True

    # -- for a batch that is taken back --

    def save(self) -> tuple[Any, ...]:
        return (
            self.name,
            self.settings,
            self.serial,
            self.head,
            self.done.copy(),
            self.next_id,
            self.buffer.copy(),
            self.fetching,
            self.fetch_limit,
            self.returned.copy(),
            self.waiters.copy(),
            self.finished_items,
            self.finished_bytes,
            self.open_items,
            self.open_bytes,
            replace(self.tally),
            self.changed,
        )

    def restore(self, saved: tuple[Any, ...]) -> None:
        (
            self.name,
            self.settings,
            self.serial,
            self.head,
            self.done,
            self.next_id,
            self.buffer,
            self.fetching,
            self.fetch_limit,
            self.returned,
            self.waiters,
            self.finished_items,
            self.finished_bytes,
            self.open_items,
            self.open_bytes,
            self.tally,
            self.changed,
        ) = saved


class ItemQueue:
    """See the module's docstring."""

    __slots__ = (
        "created_ms",
        "flushes",
        "is_limited",
        "may_expire",
        "name",
        "next_id",
        "put_bytes",
        "puts",
        "readers",
        "settings",
        "waiting",
        "window",
        "window_bytes",
        "window_start",
    )

    def __init__(self, name: str, settings: QueueSettings, next_id: int, created_ms: int) -> None:
        self.name = name
        self.settings = settings
        self.next_id = next_id
        self.created_ms = created_ms
        self.puts = 0  # since the start, and their bytes
        self.put_bytes = 0
        self.flushes = 0
        self.window: deque[ItemPut] = deque()  # contiguous ids, up to next_id - 1
        self.window_start = next_id
        self.window_bytes = 0
        # Replaced, never changed: so to save it is to keep it, however many readers there are.
        self.readers: Mapping[str, FanReader] = {}
        self.waiting: dict[FanReader, None] = {}  # those that clients wait for
        self.is_limited = False
        self.may_expire = False

    def add_reader(
        self, name: str, place: Reader, *, items: int = 0, data_bytes: int = 0
    ) -> FanReader:
        settings = self.settings.of_reader(name)
        reader = FanReader(self, name, settings, place, items=items, data_bytes=data_bytes)
        self.readers = {**self.readers, name: reader}
        self._look_at_settings()
        return reader

    def rename_reader(self, name: str, new_name: str) -> FanReader:
        """The place of one reader goes over to another name."""
        reader = self.readers[name]
        reader.name = new_name
        reader.settings = self.settings.of_reader(new_name)
        # A checkpoint under the old name may be on its way, or items for it: both come in vain.
        reader.changed = True
        reader.fetching = None
        others = {name: r for name, r in self.readers.items() if r is not reader}
        self.readers = {**others, new_name: reader}
        self._look_at_settings()
        return reader

    def remove_reader(self, name: str) -> None:
        self.readers = {other: r for other, r in self.readers.items() if other != name}
        self._look_at_settings()

    def _look_at_settings(self) -> None:
        self.is_limited = any(reader.settings.is_limited for reader in self.readers.values())
        ages = any(reader.settings.max_age_ms is not None for reader in self.readers.values())
        self.may_expire = self.may_expire or ages

    def is_too_old(self, now_ms: int) -> bool:
        """Return whether it may go: it is old enough, and no reader has anything left in it."""
        max_age_ms = self.settings.max_age_ms
        if max_age_ms is None or now_ms <= self.created_ms + max_age_ms:
            return False
        return not any(reader.items or reader.open_items for reader in self.readers.values())

    def add(self, item: ItemPut) -> None:
        size = len(item.data)
        self.window.append(item)
        self.window_bytes += size
        self.puts += 1
        self.put_bytes += size
        self.next_id = item.item_id + 1
        if item.expire_time_ms is not None:
            self.may_expire = True

    def add_all(self, items: Sequence[ItemPut]) -> None:
        """Add many items that do not expire."""
        size = sum([len(item.data) for item in items])
        self.window.extend(items)
        self.window_bytes += size
        self.puts += len(items)
        self.put_bytes += size
        self.next_id = items[-1].item_id + 1

    def shrink(self, max_items: int, max_bytes: int) -> None:
        """Forget the oldest of the window: they are on disk. One item may always stay."""
        window = self.window
        while len(window) > max_items or (self.window_bytes > max_bytes and len(window) > 1):
            self.window_bytes -= len(window.popleft().data)
            self.window_start += 1

    def save(self) -> tuple[Any, ...]:
        return (
            self.next_id,
            self.puts,
            self.put_bytes,
            self.flushes,
            len(self.window),
            self.readers,
            self.waiting.copy(),
        )

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.next_id, self.puts, self.put_bytes, self.flushes, length, *others = saved
        self.readers, self.waiting = others
        while len(self.window) > length:
            self.window_bytes -= len(self.window.pop().data)
        self._look_at_settings()
