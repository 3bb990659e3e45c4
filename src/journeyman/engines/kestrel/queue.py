"""One queue in memory: the newest items, and where each reader stands.

    journal on disk   1 2 3 4 5 6 7 8 9 10 11 12
    window                          8 9 10 11 12        the newest, shared by all readers
    reader a          next 12: takes from the window
    reader b          next 3:  its buffer holds 3 4 5, read from disk; the rest is still there

A put goes to the window and to nothing else, so its cost does not grow with the readers: how many
items a reader has before it is worked out from totals when somebody asks.

A reader is in reader.py. Both can be saved and restored, for a batch that could not be
written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from journeyman.engines.kestrel.reader import FanReader
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import ItemPut

if TYPE_CHECKING:
    from journeyman.engines.kestrel.settings import QueueSettings


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
        self.waiting: dict[FanReader, None] = {}  # those that somebody waits for
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
        """Whether it may go: it has its age, and nobody has anything left in it."""
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
