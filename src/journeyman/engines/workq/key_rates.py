"""The rate of each key of one queue: when its jobs were leased, and when it has room again.

    starts    key -> the times of its last leases, as many as the rate allows, or more if it allowed
              more when they began. The key that was leased last stands last; those whose leases
              are too long ago to count stand first, and are forgotten. Lists: most keys have a few,
              and an empty deque takes 760 bytes
    gates     when a key of which jobs are held back has room again: then one of them is looked at

What counts is state, and can be undone. Gates are not: one too many does no harm, since the job is
held back again if its key has no room, and holding a job back sets one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from journeyman.engines.sorted_set import SortedSet
from journeyman.units import NS_PER_MS

MAX_STARTS: Final = 1_000_000  # of a queue; then the key that was idle longest is forgotten
FORGET_LIMIT: Final = 10  # keys forgotten in one lease


class KeyRates:
    """Without a rate it counts nothing."""

    __slots__ = ("_count", "_gate_of", "_gates", "_per_ns", "rate", "starts")

    def __init__(self, rate: int = 0, per_ms: int = 0) -> None:
        self.rate = rate
        self._per_ns = per_ms * NS_PER_MS
        self.starts: OrderedDict[str, list[int]] = OrderedDict()
        self._count = 0  # of starts
        self._gates: SortedSet[tuple[int, str]] = SortedSet()
        self._gate_of: dict[str, int] = {}

    def changed(self, rate: int, per_ms: int) -> KeyRates:
        """With this rate, and the starts that are known: the same ones, for there may be a million.
        No gates: when limits change, nothing is held back any more.

        The one before can be put in its place again once all that it has noted was taken back.
        """
        found = KeyRates(rate, per_ms)
        if rate:
            found.starts, found._count = self.starts, self._count
        return found

    def put(self, key: str, starts: list[int]) -> None:
        """Leases that were; the key that was leased last comes last."""
        self.starts[key] = starts[-self.rate :]
        self._count += len(self.starts[key])

    def opens_ns(self, key: str, now_ns: int) -> int:
        """When this key may be leased again; in the past: now.

        Starts that are still to come are of a clock that was set back since: they do not count.
        """
        starts = self.starts.get(key)
        if starts is None or len(starts) < self.rate or starts[-self.rate] > now_ns:
            return 0
        return starts[-self.rate] + self._per_ns

    def note_start(self, key: str, now_ns: int) -> Callable[[], None]:
        """A lease begins; the call takes it back."""
        starts = self.starts.setdefault(key, [])
        starts.append(now_ns)
        dropped = starts[: -self.rate]
        del starts[: -self.rate]
        self._count += 1 - len(dropped)
        self.starts.move_to_end(key)
        forgotten = self._forget(now_ns)

        def undo() -> None:
            for former, times in reversed(forgotten):
                self.starts[former] = times
                self.starts.move_to_end(former, last=False)
                self._count += len(times)
            starts.pop()
            starts[:0] = dropped
            self._count -= 1 - len(dropped)
            if not starts:
                del self.starts[key]

        return undo

    def _forget(self, now_ns: int) -> list[tuple[str, list[int]]]:
        """Keys that do not count any more, or are too many; a few at a time."""
        forgotten: list[tuple[str, list[int]]] = []
        while len(self.starts) > 1 and len(forgotten) < FORGET_LIMIT:
            key, starts = next(iter(self.starts.items()))
            if now_ns < starts[-1] + self._per_ns and self._count <= MAX_STARTS:
                break
            forgotten.append((key, starts))
            self._count -= len(starts)
            del self.starts[key]
        return forgotten

    # -- gates -------------------------------------------------------------------------------------

    @property
    def has_gates(self) -> bool:
        return bool(self._gate_of)

    def set_gate(self, key: str, opens_ns: int) -> None:
        """A job of this key is held back until then."""
        self._drop_gate(key)
        self._gates.add((opens_ns, key))
        self._gate_of[key] = opens_ns

    def next_gate_ns(self, now_ns: int) -> int:
        """When to call ``open_one``. There must be a gate."""
        return self._gates.first()[0] if self._gate_too_far(now_ns) is None else now_ns

    def open_one(self, now_ns: int) -> str | None:
        """A key whose gate opens now."""
        if not self._gate_of:
            return None
        opens_ns, key = self._gates.first()
        if opens_ns > now_ns:
            gate = self._gate_too_far(now_ns)
            if gate is None:
                return None
            _, key = gate
        self._drop_gate(key)
        return key

    def _gate_too_far(self, now_ns: int) -> tuple[int, str] | None:
        """One that is further away than the time of the rate: the clock was set back since."""
        return self._gates.first_from((now_ns + self._per_ns + 1, ""))

    def _drop_gate(self, key: str) -> None:
        opens_ns = self._gate_of.pop(key, None)
        if opens_ns is not None:
            self._gates.remove((opens_ns, key))
