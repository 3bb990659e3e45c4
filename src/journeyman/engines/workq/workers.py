"""The workers that the server knows, and what they must be told: which of their jobs others ended.

All of this is in memory alone: a worker says it again soon. A name belongs to a namespace, so no
token learns of jobs that it may not see. A worker that has been silent for FORGET_NS is forgotten;
names are bounded for each namespace and for all of them, and so are the orders that wait for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from journeyman.protocols.workq import replies
from journeyman.protocols.workq.commands import AwaitOrders, WorkerFacts
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    pass

MAX_WORKERS: Final = 10_000
MAX_WORKERS_OF_A_NAMESPACE: Final = 1_000
FORGET_NS: Final = 180 * NS_PER_S


@dataclass(slots=True)
class KnownWorker:
    facts: WorkerFacts
    since_ns: int
    seen_ns: int
    orders: dict[bytes, replies.Finished] = field(default_factory=dict)


class BrowseWorkers(Struct, frozen=True):
    """Workers by name, above ``after``; jobs of queues that begin with ``prefix``."""

    after: str = ""
    limit: int = 50
    prefix: str = ""


class WorkersFound(Struct, frozen=True):
    workers: tuple[replies.WorkerView, ...]
    has_more: bool


class KnownWorkers:
    """Workers that have said what they are: by name, then by namespace."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, KnownWorker]] = {}
        self._counts: dict[str, int] = {}  # how many each namespace has
        self._looked_ns = 0

    def note(self, command: AwaitOrders, now_ns: int) -> KnownWorker | None:
        """Note what a worker says of itself. None: there are too many workers."""
        found = self._known.get(command.worker, {}).get(command.prefix)
        if found is None:
            self._forget_silent(now_ns)
            count = self._counts.get(command.prefix, 0)
            if count >= MAX_WORKERS_OF_A_NAMESPACE or sum(self._counts.values()) >= MAX_WORKERS:
                return None
            found = KnownWorker(command.facts, now_ns, now_ns)
            self._known.setdefault(command.worker, {})[command.prefix] = found
            self._counts[command.prefix] = count + 1
        found.facts, found.seen_ns = command.facts, now_ns
        return found

    def called(self, name: str) -> dict[str, KnownWorker]:
        """Return the workers of this name, by namespace."""
        return self._known.get(name, {})

    def names(self) -> list[str]:
        return sorted(self._known)

    def _forget_silent(self, now_ns: int) -> None:
        if now_ns - self._looked_ns < NS_PER_S:
            return
        self._looked_ns = now_ns
        for name, namespaces in list(self._known.items()):
            for prefix, worker in list(namespaces.items()):
                if is_silent(worker, now_ns):
                    del namespaces[prefix]
                    self._counts[prefix] -= 1
            if not namespaces:
                del self._known[name]
        self._counts = {prefix: count for prefix, count in self._counts.items() if count}


def is_silent(worker: KnownWorker, now_ns: int) -> bool:
    return now_ns - worker.seen_ns > FORGET_NS
