"""The ready jobs of a fair queue, whose keys take turns.

    first()      the job to lease next: the highest priority first; within it, the first job of the
                 key whose turn it is
    take_turn    this job is leased: when its key has had its turn, the next key follows

A key's turn is one job, or as many as its weight. A key that gets its first ready job of a priority
comes last; one whose last job leaves has no turn any more. Jobs without a key share one turn.

    priority 9   gold: [a d]  *  basic: [b]                   * the keys in the order of their turns
    priority 0   basic: [c e]  *  free: [f]

It is a ``SortedSet`` of all ready jobs, so pages and searches are those of any queue, and takes the
place of one at once, whatever its size: the jobs up to ``_known_to`` are known by their keys, and
each call of ``first`` makes some more known. Until all are, only the keys of known jobs take turns.

Turns are in no log and are not undone with a batch: they only choose which of several ready jobs
comes next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import TypeAlias

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq.packed import URGENCY_BYTES, Spec, key_of

KNOWN_AT_ONCE = 1000  # jobs that one call of ``first`` makes known by their keys

Keys: TypeAlias = OrderedDict[str, SortedSet[Spec]]  # the first one's turn it is


class FairSet(SortedSet[Spec]):
    """See the module."""

    __slots__ = ("_by_urgency", "_known_to", "_taken", "weights")

    def __init__(self, ready: SortedSet[Spec], weights: Mapping[str, int]) -> None:
        """Take the place of ``ready``, which must not be used any more."""
        self._chunks, self._lasts, self.size = ready._chunks, ready._lasts, ready.size
        self.weights = weights
        self._by_urgency: dict[bytes, Keys] = {}
        self._taken: dict[bytes, int] = {}  # jobs of the turn that is under way, by urgency
        self._known_to: Spec | None = b""  # None: all jobs are known

    def plain(self) -> SortedSet[Spec]:
        """Return the same jobs without turns; this set must not be used any more."""
        found: SortedSet[Spec] = SortedSet()
        found._chunks, found._lasts, found.size = self._chunks, self._lasts, self.size
        return found

    def first(self) -> Spec:
        lowest = super().first()
        if self._known_to is not None:
            self._know_more()
        for jobs in self._by_urgency[lowest[:URGENCY_BYTES]].values():
            return jobs.first()
        raise AssertionError("a priority without jobs has no keys")

    def take_turn(self, spec: Spec) -> None:
        """``spec`` is what ``first`` has returned, and is still in the set."""
        urgency, key = spec[:URGENCY_BYTES], key_of(spec)
        taken = self._taken.get(urgency, 0) + 1
        if taken < self.weights.get(key, 1):
            self._taken[urgency] = taken
        else:
            self._by_urgency[urgency].move_to_end(key)
            self._taken.pop(urgency, None)

    def add(self, item: Spec) -> None:
        super().add(item)
        if self._known_to is None or item <= self._known_to:
            self._know(item)

    def remove(self, item: Spec) -> None:
        super().remove(item)
        if self._known_to is not None and item > self._known_to:
            return
        urgency, key = item[:URGENCY_BYTES], key_of(item)
        keys = self._by_urgency[urgency]
        jobs = keys[key]
        jobs.remove(item)
        if jobs.size:
            return
        if next(iter(keys)) == key:  # the next turn begins
            self._taken.pop(urgency, None)
        del keys[key]
        if not keys:
            del self._by_urgency[urgency]

    def _know(self, spec: Spec) -> None:
        keys = self._by_urgency.setdefault(spec[:URGENCY_BYTES], OrderedDict())
        jobs = keys.get(key := key_of(spec))
        if jobs is None:
            jobs = keys[key] = SortedSet()
        jobs.add(spec)

    def _know_more(self) -> None:
        """The lowest job is known afterwards."""
        unknown = (spec for chunk in self.chunks_after(self._known_to) for spec in chunk)
        some = list(islice(unknown, KNOWN_AT_ONCE))
        for spec in some:
            self._know(spec)
        self._known_to = some[-1] if len(some) == KNOWN_AT_ONCE else None
