"""The queues, one for each name that was ever used.

    ready       jobs to lease, in their order
    scheduled   jobs that are due later, or whose delay before a retry is not over
    dead        failed jobs, until their TTL
    waiters     numbers of the clients that wait for a job, longest first

A queue is made by the first add, schedule, run, lease or pause of its name, and stays. Specs know
it by its number. A paused queue takes jobs in, gives none out.
"""

from __future__ import annotations

from collections.abc import Iterable

from journeyman.engines.workq_job import Spec
from journeyman.engines.workq_order import Order

__all__ = ["Queue", "Queues"]


class Queue:
    """The waiting and the dead jobs of one name, and who waits for them."""

    __slots__ = ("dead", "name", "number", "paused", "ready", "scheduled", "waiters")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.ready: Order[Spec] = Order()
        self.scheduled: Order[Spec] = Order()
        self.dead: Order[Spec] = Order()
        self.waiters: Order[int] = Order()
        self.paused = False


class Queues:
    """By number, by name, and in the order of their names."""

    __slots__ = ("_by_name", "_changes", "_names", "_paused", "_saved", "by_number")

    def __init__(self, paused: Iterable[str] = ()) -> None:
        self._by_name: dict[str, Queue] = {}
        self.by_number: list[Queue] = []
        self._names: Order[bytes] = Order()
        self._paused: Order[bytes] = Order()
        self._changes: list[Queue] | None = None  # paused or resumed in the open batch
        self._saved = 0
        for name in paused:
            self.set_paused(self.named(name), True)

    def __len__(self) -> int:
        return len(self.by_number)

    def get(self, name: str) -> Queue | None:
        return self._by_name.get(name)

    def named(self, name: str) -> Queue:
        """The queue, made if there is none."""
        queue = self._by_name.get(name)
        if queue is None:
            queue = self._by_name[name] = Queue(len(self.by_number), name)
            self.by_number.append(queue)
            self._names.add(_key(name))
        return queue

    def page(self, offset: int, limit: int, prefix: str = "") -> list[Queue]:
        """In the order of their names, those that begin with ``prefix``."""
        return self._page(self._names, offset, limit, prefix)

    def paused_page(self, offset: int, limit: int, prefix: str = "") -> list[Queue]:
        return self._page(self._paused, offset, limit, prefix)

    def _page(self, names: Order[bytes], offset: int, limit: int, prefix: str) -> list[Queue]:
        begin = _key(prefix)
        keys = names.page(names.rank(begin) + offset if prefix else offset, limit)
        return [self._by_name[_name(key)] for key in keys if key.startswith(begin)]

    @property
    def paused(self) -> frozenset[str]:
        return frozenset(map(_name, self._paused))

    def set_paused(self, queue: Queue, paused: bool) -> None:
        """To what it is not already."""
        assert queue.paused is not paused
        queue.paused = paused
        if paused:
            self._paused.add(_key(queue.name))
        else:
            self._paused.remove(_key(queue.name))
        if self._changes is not None:
            self._changes.append(queue)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []
        self._saved = len(self.by_number)

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        """To be called last: the queues that the batch has made are empty again then."""
        changes, self._changes = self._changes or (), None
        for queue in reversed(changes):
            self.set_paused(queue, not queue.paused)
        for queue in self.by_number[self._saved :]:
            assert not any((queue.ready, queue.scheduled, queue.dead, queue.waiters))
            del self._by_name[queue.name]
            self._names.remove(_key(queue.name))
        del self.by_number[self._saved :]


def _key(name: str) -> bytes:
    """Names are listed in the order of their bytes."""
    return name.encode("utf-8", "surrogateescape")


def _name(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
