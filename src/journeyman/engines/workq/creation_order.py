"""The jobs of the work queue in the order of their creation, for people who look.

It is kept only after the first request for it: of all jobs, and of the jobs of each queue. A job
enters when it is made and leaves when it ends, whatever happens to it between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from journeyman.engines.sharded_dict import SHARDS, ShardedDict
from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import packed

SORTED_AT_ONCE = 4_000
PART_JOBS = 2_000  # about as many jobs are sorted together
_Place: TypeAlias = bytes  # a job in the order of creation, with its queue: packed.place_of
_DEAD: Final = b"\1"  # follows the place of a dead job


class CreationOrder:
    """The ids by time of creation: of all jobs, of each queue, and of dead jobs.

        shards --a few at a time--> parts, each with the jobs of a stretch of time
        parts  --a few at a time, the oldest first, sorted--> the orders
        changes meanwhile --noted, and made at the end

    Keys are spread over the shards by their hash, so the first few are a fair sample of all: they
    show where to cut time into parts. Nothing takes longer than a few milliseconds.
    """

    __slots__ = (
        *("_all", "_changes", "_cuts", "_dead", "_entries", "_gathered", "_of_queue", "_parts"),
    )

    def __init__(self, entries: ShardedDict[bytes, packed.Entry]) -> None:
        self._entries = entries
        self._all: SortedSet[bytes] = SortedSet()
        self._of_queue: dict[int, SortedSet[bytes]] = {}
        self._dead: SortedSet[bytes] = SortedSet()
        self._gathered = 0  # shards
        self._parts: deque[list[_Place]] = deque([[]])
        self._cuts: list[_Place] = []
        # Changes since the shards were gathered are made at the end; None: the orders are kept.
        self._changes: deque[tuple[Callable[[_Place], None], _Place]] | None = deque()

    def begin(self, job_id: bytes, spec: packed.Spec) -> None:
        if not packed.is_run(spec):
            self._change(job_id, spec, self._add)

    def end(self, job_id: bytes, spec: packed.Spec) -> None:
        if not packed.is_run(spec):
            self._change(job_id, spec, self._remove)

    def died(self, job_id: bytes, spec: packed.Spec) -> None:
        self._change(job_id, spec, self._add_dead)

    def revived(self, job_id: bytes, spec: packed.Spec) -> None:
        """Dead no longer, or gone."""
        self._change(job_id, spec, self._remove_dead)

    def _change(self, job_id: bytes, spec: packed.Spec, change: Callable[[_Place], None]) -> None:
        if self._changes is None:
            change(packed.place_of(spec))
        elif self._entries.number_of(job_id) < self._gathered:
            self._changes.append((change, packed.place_of(spec)))

    def sort_some(self) -> int:
        """How much is left to be sorted, in steps of about the same length."""
        if self._changes is None:
            return 0
        enough = SORTED_AT_ONCE
        while self._gathered < SHARDS:
            if enough <= 0:
                return SHARDS - self._gathered + len(self._parts)
            enough -= self._gather(self._entries.numbered(self._gathered))
        while self._parts:
            if enough <= 0:
                return len(self._parts)
            enough -= self._take(self._parts.popleft())
        while self._changes:
            if enough <= 0:
                return 1
            change, place = self._changes.popleft()
            change(place)
            enough -= 1
        self._changes = None
        return 0

    def _gather(self, shard: dict[bytes, packed.Entry]) -> int:
        """Spread the jobs of a shard over the parts; how many there are."""
        cuts, parts = self._cuts, self._parts
        for entry in shard.values():
            spec = entry if isinstance(entry, bytes) else entry[0]
            if not packed.is_run(spec):
                place = packed.place_of(spec)
                if not isinstance(entry, bytes) and entry[1] in packed.DEAD:
                    place += _DEAD
                parts[bisect_right(cuts, place) if cuts else 0].append(place)
        self._gathered += 1
        if not cuts and len(parts[0]) >= SORTED_AT_ONCE:
            self._cut()
        return len(shard)

    def _cut(self) -> None:
        sample = sorted(self._parts[0])
        parts = len(sample) * SHARDS // (self._gathered * PART_JOBS) + 1
        self._cuts = sample[:: max(1, len(sample) // parts)][1:]
        self._parts = deque([] for _ in range(len(self._cuts) + 1))
        for place in sample:
            self._parts[bisect_right(self._cuts, place)].append(place)

    def _take(self, part: list[_Place]) -> int:
        part.sort()
        for place in part:
            self._add(place)
            if len(place) > packed.PLACE_BYTES:
                self._add_dead(place)
        return len(part)

    def newest(
        self, queue: int | None, after: bytes | None, *, dead: bool
    ) -> Iterator[list[bytes]]:
        """``dead``: the dead ones of all queues, whatever ``queue`` is."""
        order = self._all if queue is None else self._of_queue.get(queue)
        order = self._dead if dead else order
        return iter(()) if order is None else order.chunks_after(after, descending=True)

    def count_of(self, queue: int) -> int:
        """How many jobs of this queue there are, in any state."""
        order = self._of_queue.get(queue)
        return 0 if order is None else order.size

    def _add(self, place: _Place) -> None:
        key, queue = packed.key_and_queue_in(place)
        self._all.add(key)
        of_queue = self._of_queue.get(queue)
        if of_queue is None:
            of_queue = self._of_queue[queue] = SortedSet()
        of_queue.add(key)

    def _remove(self, place: _Place) -> None:
        key, queue = packed.key_and_queue_in(place)
        self._all.remove(key)
        self._of_queue[queue].remove(key)
        if not self._of_queue[queue]:
            del self._of_queue[queue]

    def _add_dead(self, place: _Place) -> None:
        self._dead.add(packed.key_and_queue_in(place)[0])

    def _remove_dead(self, place: _Place) -> None:
        self._dead.remove(packed.key_and_queue_in(place)[0])
