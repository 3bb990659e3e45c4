"""Group commit: what many threads ask for at once is one turn and one sync.

    thread A  --ops-->  waiting --+
    thread B  --ops-->  waiting --+--> whoever gets the turn takes all that waits: one commit
    thread C  --ops-->  waiting --+    the others find their work done

There is no thread of its own: the first to come writes for all who came meanwhile. The operations
that were handed in together are all in one commit, or none is. Should the store fail, everyone
whose operations were in that commit hears of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, Generic, TypeVar

__all__ = ["MAX_OPERATIONS", "GroupCommit"]

MAX_OPERATIONS: Final = 10_000  # of one commit, unless one caller alone hands in more

Op = TypeVar("Op")
Result = TypeVar("Result")


class _Waiting(Generic[Op, Result]):
    __slots__ = ("error", "operations", "results")

    def __init__(self, operations: Sequence[Op]) -> None:
        self.operations = operations
        self.results: list[Result] | None = None
        self.error: BaseException | None = None


class GroupCommit(Generic[Op, Result]):
    """Runs ``commit`` with the operations of all who wait; it answers with as many results."""

    def __init__(self, commit: Callable[[list[Op]], list[Result]]) -> None:
        self._commit = commit
        self._turn = Lock()
        self._waiting: deque[_Waiting[Op, Result]] = deque()

    def run(self, operations: Sequence[Op]) -> list[Result]:
        """The results of these operations, when they are durable."""
        mine: _Waiting[Op, Result] = _Waiting(operations)
        self._waiting.append(mine)
        with self._turn:
            if mine.results is None and mine.error is None:
                self._run_all_that_wait(mine)
        if mine.error is not None:
            raise mine.error
        assert mine.results is not None
        return mine.results

    def _run_all_that_wait(self, mine: _Waiting[Op, Result]) -> None:
        while mine.results is None and mine.error is None:
            group = self._take_group()
            together = [operation for each in group for operation in each.operations]
            try:
                results = self._commit(together)
            except BaseException as error:
                for each in group:
                    each.error = error
                if not isinstance(error, Exception):
                    raise
                continue
            at = 0
            for each in group:
                each.results = results[at : at + len(each.operations)]
                at += len(each.operations)

    def _take_group(self) -> list[_Waiting[Op, Result]]:
        group = [self._waiting.popleft()]
        size = len(group[0].operations)
        while self._waiting and size + len(self._waiting[0].operations) <= MAX_OPERATIONS:
            group.append(self._waiting.popleft())
            size += len(group[-1].operations)
        return group
