"""What was asked of a server and what it answered, in the order in which an outsider saw it.

    begin(...) --> Operation --end(answer)--> it took effect at some moment in between
                        |------server_died--> it took effect before that, or never
                        +------(neither)----> it takes effect at some time, or never

An order is a number that only grows: of two operations, the one that ended before the other began
came first. Times are for what may end after some time, as leases do. Safe from any thread, so that
a real server can be recorded as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

NEVER: Final = 1 << 62
UNKNOWN: Final = object()  # the answer of an operation that may or may not have taken effect


@dataclass(slots=True, eq=False)
class Operation:
    """``answer`` UNKNOWN: it may have taken effect, and need not."""

    key: str  # what it is about; operations of different keys do not concern each other
    ask: tuple[Any, ...]  # a verb and its arguments
    invoked: int
    invoked_ns: int
    answer: Any = UNKNOWN
    returned: int = NEVER
    returned_ns: int = NEVER

    def __str__(self) -> str:
        answer = "?" if self.answer is UNKNOWN else self.answer
        end = "" if self.returned == NEVER else self.returned
        return f"[{self.invoked}, {end}] {self.key}: {self.ask} -> {answer}"


class History:
    """See the module. ``now_ns`` is a clock that does not go back."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self.asked = 0  # commands; one may show several operations
        self._by_key: dict[str, list[Operation]] = {}
        self._now_ns = now_ns
        self.order = 0
        self._open: dict[Operation, None] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, *ask: Any) -> Operation:
        with self._lock:
            self.order += 1
            self.asked += 1
            operation = Operation(key, ask, self.order, self._now_ns())
            self._note(operation)
            self._open[operation] = None
            return operation

    def end(self, operation: Operation, answer: Any) -> None:
        with self._lock:
            if operation in self._open:
                operation.answer = answer
                self._close(operation)

    def put(self, key: str, *ask: Any, like: Operation, answer: Any = "OK") -> None:
        """An operation with the times of another one that showed it: a lease names its job."""
        with self._lock:
            times = (like.invoked, like.invoked_ns)
            self._note(Operation(key, ask, *times, answer, like.returned, like.returned_ns))

    def server_died(self) -> None:
        """What is open was carried out before this moment, or never will be."""
        with self._lock:
            for operation in list(self._open):
                self._close(operation)

    def of_key(self, key: str) -> list[Operation]:
        return self._by_key.get(key, [])

    def of_keys(self, prefix: str) -> dict[str, list[Operation]]:
        return {key: its for key, its in self._by_key.items() if key.startswith(prefix)}

    def _note(self, operation: Operation) -> None:
        self.operations.append(operation)
        self._by_key.setdefault(operation.key, []).append(operation)

    def _close(self, operation: Operation) -> None:
        self.order += 1
        operation.returned = self.order
        operation.returned_ns = self._now_ns()
        del self._open[operation]
