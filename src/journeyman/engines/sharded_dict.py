"""A dict in many small parts, and pictures of it as of one moment.

    key --low bits of its CRC-32--> shard: key -> value

One dict of a million jobs would stop everything for a tenth of a second whenever it has to grow,
and for several milliseconds whenever it has to be copied. A shard holds a 512th of that.

Not Python's own hash: that is another one in every process, and the process that reads large logs
sends the rows of each shard together (servers/core/bulk_loading.py): one call takes in many.
A client that chooses its keys can fill a single shard; then that one is as slow to grow as a dict.

A snapshot shows the whole dict as of the moment it was made, though it is read shard by shard and
the dict changes meanwhile: ``shard_to_change`` first leaves a copy to every snapshot that has not
come to that shard yet. An engine that takes no snapshots can change what ``shard_of`` returns.

Copies are bounded, whatever clients leave unread: beyond twice as many entries as the dict has, the
snapshots that keep most are given up, and who reads on gets SnapshotGivenUp. One alone never is.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar
from zlib import crc32

from journeyman.errors import SnapshotGivenUp

SHARDS = 512
FEW_COPIED = 50_000  # entries that are never worth the work
_MASK = SHARDS - 1

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _crc_of_text(key: Any) -> int:
    return crc32(key.encode(errors="surrogatepass"))


class ShardedDict(Generic[K, V]):
    """See the module's docstring. ``crc``: of a key; by default keys are text."""

    __slots__ = ("_copied", "_crc", "_shards", "_snapshots")

    def __init__(self, crc: Callable[[K], int] = _crc_of_text) -> None:
        self._crc = crc
        self._shards: list[dict[K, V]] = [{} for _ in range(SHARDS)]
        self._snapshots: list[weakref.ref[DictSnapshot[K, V]]] = []
        self._copied = 0  # entries since they were last counted; some may be dropped by now

    def get(self, key: K) -> V | None:
        return self._shards[self._crc(key) & _MASK].get(key)

    def shard_of(self, key: K) -> dict[K, V]:
        return self._shards[self._crc(key) & _MASK]

    def shard_to_change(self, key: K) -> dict[K, V]:
        """Return the shard of a key to be changed at once, before anything else happens."""
        number = self._crc(key) & _MASK
        if self._snapshots:
            self._leave_copies(number)
        return self._shards[number]

    def number_of(self, key: K) -> int:
        """Return the number of its shard, below SHARDS."""
        return self._crc(key) & _MASK

    def numbered(self, number: int) -> dict[K, V]:
        return self._shards[number]

    def values(self) -> Iterator[V]:
        return chain.from_iterable(map(dict.values, self._shards))

    def items(self) -> Iterator[tuple[K, V]]:
        for shard in self._shards:
            yield from shard.items()

    def snapshot(self) -> DictSnapshot[K, V]:
        snapshot = DictSnapshot(self._shards)
        self._snapshots.append(weakref.ref(snapshot, self._snapshots.remove))
        return snapshot

    def _leave_copies(self, number: int) -> None:
        copy: dict[K, V] | None = None  # one for all of them
        for reference in tuple(self._snapshots):  # one may be dropped while we go through
            snapshot = reference()
            if snapshot is not None and snapshot.wants(number):
                if copy is None:
                    copy = self._shards[number].copy()
                snapshot.keep(number, copy)
        if copy is not None:
            self._copied += len(copy)
            if self._copied > FEW_COPIED:
                self._bound_copies()

    def _bound_copies(self) -> None:
        """Down to half of the bound, so that the next count is as many copies away."""
        bound = max(FEW_COPIED, 2 * sum(map(len, self._shards)))
        if self._copied <= bound:
            return
        living = [each for reference in self._snapshots if (each := reference()) is not None]
        living.sort(key=lambda each: len(each.kept))
        copies = [copy for each in living for copy in each.kept.values()]
        holders = Counter(map(id, copies))
        self._copied = sum({id(copy): len(copy) for copy in copies}.values())
        while self._copied > bound // 2 and len(living) > 1:
            most = living.pop()
            for copy in most.kept.values():
                holders[id(copy)] -= 1
                if not holders[id(copy)]:
                    self._copied -= len(copy)
            most.give_up()


class DictSnapshot(Generic[K, V]):
    """The shards as of one moment, one after another.

    It need not be closed: once it is dropped, nothing more is kept for it.
    """

    __slots__ = ("__weakref__", "_is_given_up", "_next", "_shards", "kept")

    def __init__(self, shards: list[dict[K, V]]) -> None:
        self._shards = shards
        self.kept: dict[int, dict[K, V]] = {}  # by number: shards before they were changed
        self._next = 0  # shards below have been read
        self._is_given_up = False

    def __iter__(self) -> Iterator[dict[K, V]]:
        return self

    def __next__(self) -> dict[K, V]:
        if self._is_given_up:
            raise SnapshotGivenUp("the list was read too slowly while many of its jobs changed")
        number = self._next
        if number == SHARDS:
            raise StopIteration
        self._next = number + 1
        return self.kept.pop(number, self._shards[number])

    def wants(self, number: int) -> bool:
        """Return whether it has yet to show this shard, and has no copy of it."""
        return number >= self._next and number not in self.kept and not self._is_given_up

    def keep(self, number: int, copy: dict[K, V]) -> None:
        """This shard is about to change; the copy is shared and does not."""
        self.kept[number] = copy

    def give_up(self) -> None:
        self._is_given_up = True
        self.kept.clear()
