"""Things in their order, of which any may leave at any time: a sorted list in chunks.

    lasts     f           m           z           never below the highest of its chunk,
    chunks    [a c f]     [g h k m]   [p t z]     always below the lowest of the next one

To put something in is a search in ``lasts`` and one in a chunk; mostly it belongs at the very end,
and is appended. The first, and any page from any offset, are found without a search. What leaves
is removed at once: there is nothing stale to step over, and nothing to be tidied later.

Each thing is in it at most once. A set does not know how it came about, so taking back what was
done to it is doing the opposite: that is why the engine can undo a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

CHUNK = 512  # a chunk that is appended to is full at this length, any other is halved at twice it

T = TypeVar("T", bound=Any)  # anything that can be compared with its like


class StillSorting:
    """The reply of an engine whose order is not there yet; asking again brings it on."""


class SortedSet(Generic[T]):
    """A set that is always sorted. ``size`` is how many are in it."""

    __slots__ = ("_chunks", "_lasts", "size")

    def __init__(self, items: Sequence[T] = ()) -> None:
        """``items`` are sorted already."""
        self._chunks: list[list[T]] = [
            list(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK)
        ]
        self._lasts = [chunk[-1] for chunk in self._chunks]
        self.size = len(items)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def first(self) -> T:
        """The lowest; IndexError if there is none."""
        return self._chunks[0][0]

    def first_from(self, bound: T) -> T | None:
        """The lowest that is not below ``bound``, which need not be in it."""
        number = bisect_left(self._lasts, bound)
        for chunk in self._chunks[
            number : number + 2
        ]:  # the last member of a chunk may have left it
            place = bisect_left(chunk, bound)
            if place < len(chunk):
                return chunk[place]
        return None

    def add(self, item: T) -> None:
        self.size += 1
        lasts = self._lasts
        if not lasts or item > lasts[-1]:
            chunks = self._chunks
            if lasts and len(chunks[-1]) < CHUNK:
                chunks[-1].append(item)
                lasts[-1] = item
            else:
                chunks.append([item])
                lasts.append(item)
            return
        number = bisect_left(lasts, item)
        chunk = self._chunks[number]
        insort(chunk, item)
        if len(chunk) > 2 * CHUNK:
            self._halve(number)

    def remove(self, item: T) -> None:
        """It must be there."""
        chunk, number, place = self._chunks[0], 0, 0
        if chunk[0] != item:  # most often it is the first that leaves
            number = bisect_left(self._lasts, item)
            chunk = self._chunks[number]
            place = bisect_left(chunk, item)
            assert chunk[place] == item
        del chunk[place]
        self.size -= 1
        if not chunk:
            del self._chunks[number], self._lasts[number]

    def page(self, offset: int, limit: int) -> list[T]:
        """Return at most ``limit`` of the values, from the one at ``offset`` on."""
        found: list[T] = []
        for chunk in self._chunks:
            if offset >= len(chunk):
                offset -= len(chunk)
                continue
            found += chunk[offset : offset + limit - len(found)]
            if len(found) == limit:
                break
            offset = 0
        return found

    def chunks_after(self, bound: T | None, *, descending: bool = False) -> Iterator[list[T]]:
        """Yield what is above ``bound`` in its order, a chunk at a time; descending: what is below
        it, the highest first. None: from the end. It must not change while this is read."""
        if descending:
            yield from self._chunks_below(bound)
            return
        number = 0 if bound is None else bisect_left(self._lasts, bound)
        for chunk in self._chunks[number:]:
            yield chunk if bound is None else chunk[bisect_right(chunk, bound) :]
            bound = None

    def _chunks_below(self, bound: T | None) -> Iterator[list[T]]:
        last = len(self._chunks) - 1
        number = last if bound is None else min(bisect_left(self._lasts, bound), last)
        for chunk in self._chunks[number::-1] if number >= 0 else ():
            yield (chunk if bound is None else chunk[: bisect_left(chunk, bound)])[::-1]
            bound = None

    def beginning_with(self, prefix: T, after: T, limit: int) -> list[T]:
        """Return at most ``limit`` strings above ``after`` that begin with ``prefix``."""
        found: list[T] = []
        if after < prefix and self.first_from(prefix) == prefix:
            found.append(prefix)
        for chunk in self.chunks_after(max(prefix, after)):
            some = [item for item in chunk if item.startswith(prefix)]
            found += some
            if len(found) >= limit or len(some) < len(chunk):
                break
        return found[:limit]

    def rank(self, item: T) -> int:
        """How many are below it, whether it is there or not."""
        number = bisect_left(self._lasts, item)
        below = sum(map(len, self._chunks[:number]))
        if number < len(self._chunks):
            below += bisect_left(self._chunks[number], item)
        return below

    def _halve(self, number: int) -> None:
        chunk = self._chunks[number]
        middle = len(chunk) // 2
        self._chunks.insert(number, chunk[:middle])
        self._lasts.insert(number, chunk[middle - 1])
        del chunk[:middle]
