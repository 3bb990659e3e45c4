"""Sets of ids as ranges: what a reader has finished out of order.

    finished 4, 5, 6 and 9       [(4, 6), (9, 9)]

A reader that keeps one item open while it finishes millions behind it costs one range, not a
million numbers. Ranges are sorted, do not touch each other, and both ends belong to them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Intervals:
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
        begin = bisect_right(self._lasts, first - 2)  # the first range that touches or is behind
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
