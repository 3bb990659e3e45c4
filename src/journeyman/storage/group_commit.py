"""Group commit: what many threads ask for at once is one turn and one sync.

    thread A  --ops-->  waiting --+
    thread B  --ops-->  waiting --+--> the leader takes all that waits: one commit
    thread C  --ops-->  waiting --+    then it wakes them, and makes the next in line the leader

There is no thread of its own: the first to come leads, and writes for all who came meanwhile. Each
waits at a gate of its own, not at a lock: so a new leader finds all that came during the commit
before, and does not begin while the others still queue for the lock. The operations that were
handed in together are all in one commit, or none is. Should the store fail, everyone whose
operations were in that commit hears of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Final, Generic, TypeVar

MAX_OPERATIONS: Final = 10_000  # of one commit, unless one caller alone hands in more

Op = TypeVar("Op")
Result = TypeVar("Result")


class _Waiting(Generic[Op, Result]):
    __slots__ = ("error", "gate", "operations", "results")

    def __init__(self, operations: Sequence[Op]) -> None:
        self.operations = operations
        self.results: list[Result] | None = None
        self.error: BaseException | None = None
        self.gate = Event()  # opens when it is done, or is to lead


class StoreGroupCommit(Generic[Op, Result]):
    """Runs ``commit`` with the operations of all who wait; it answers with as many results."""

    def __init__(self, commit: Callable[[list[Op]], list[Result]]) -> None:
        self._commit = commit
        self._lock = Lock()
        self._has_leader = False
        self._waiting: deque[_Waiting[Op, Result]] = deque()

    def run(self, operations: Sequence[Op]) -> list[Result]:
        """The results of these operations, when they are durable."""
        mine: _Waiting[Op, Result] = _Waiting(operations)
        with self._lock:
            self._waiting.append(mine)
            leads = not self._has_leader
            self._has_leader = True
        if not leads:
            mine.gate.wait()
        if mine.results is None and mine.error is None:
            self._lead(mine)
        if mine.error is not None:
            raise mine.error
        assert mine.results is not None
        return mine.results

    def _lead(self, mine: _Waiting[Op, Result]) -> None:
        try:
            while mine.results is None and mine.error is None:
                self._commit_group()
        finally:
            with self._lock:
                self._has_leader = bool(self._waiting)
                if self._has_leader:
                    self._waiting[0].gate.set()

    def _commit_group(self) -> None:
        with self._lock:
            group = self._take_group()
        together = [operation for each in group for operation in each.operations]
        try:
            results = self._commit(together)
        except BaseException as error:
            for each in group:
                each.error = error
            if not isinstance(error, Exception):
                raise
        else:
            at = 0
            for each in group:
                each.results = results[at : at + len(each.operations)]
                at += len(each.operations)
        finally:
            for each in group:
                each.gate.set()

    def _take_group(self) -> list[_Waiting[Op, Result]]:
        group = [self._waiting.popleft()]
        size = len(group[0].operations)
        while self._waiting and size + len(self._waiting[0].operations) <= MAX_OPERATIONS:
            group.append(self._waiting.popleft())
            size += len(group[-1].operations)
        return group
