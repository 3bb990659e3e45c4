"""Advisory locks of a simulated disk: flock on files in memory. A crash forgets them all."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from journeyman.testing.simulated_files import FileNode


class LockTable:
    """Who holds which file. Any number may share a file, or one alone may hold it."""

    def __init__(self) -> None:
        self._held: list[SimulatedLock] = []
        self._freed = threading.Condition()

    def acquire(self, node: FileNode, shared: bool, timeout_s: float) -> SimulatedLock | None:
        """None when it was not to be had within the time."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._is_free(node, shared), timeout_s):
                return None
            lock = SimulatedLock(self, node, shared)
            self._held.append(lock)
            return lock

    def release(self, lock: SimulatedLock) -> None:
        with self._freed:
            if lock in self._held:
                self._held.remove(lock)
                self._freed.notify_all()

    def _is_free(self, node: FileNode, shared: bool) -> bool:
        return all(held.node is not node or (shared and held.shared) for held in self._held)


@dataclass(slots=True, eq=False)
class SimulatedLock:
    table: LockTable
    node: FileNode
    shared: bool

    def release(self) -> None:
        self.table.release(self)
