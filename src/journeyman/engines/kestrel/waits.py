"""Clients that wait: for an item, or for what is being read from disk.

One wait a client. Those of one reader stand in line there; here they are found by client, and by
the moment at which they are over. The heap is cleared lazily: what is in it counts only while it
is the present wait of its client.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from journeyman.engines.kestrel.messages import Client
from journeyman.protocols.kestrel.commands import Key

_Changes: TypeAlias = tuple[int | None, int, bool]  # left, bytes_left, over


MAX_MONITOR_BYTES = 8 * 1024 * 1024  # whether they are fetched or not; then it is asked anew


@dataclass(slots=True, eq=False)
class Wait:
    """A get or a monitor that is not answered yet."""

    client: Client
    key: Key
    over_ns: int
    over: bool = False  # its time is over: it only waits for the disk
    opens: bool = False
    peeks: bool = False
    left: int | None = None  # of a monitor: how many items it may still have
    bytes_left: int = MAX_MONITOR_BYTES  # and how large they may be
    serial: int = 0  # the order of waits that are over at the same moment


@dataclass(slots=True)
class Waits:
    _of_client: dict[Client, Wait] = field(default_factory=dict)
    _by_time: list[tuple[int, int, Wait]] = field(default_factory=list)
    _serial: count[int] = field(default_factory=count)
    # What was before, for undo: the client's wait, and what of it can change.
    _before: list[tuple[Client, Wait | None, _Changes]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._of_client)

    def of(self, client: Client) -> Wait | None:
        return self._of_client.get(client)

    def begin(self, wait: Wait) -> None:
        self._before.append((wait.client, self._of_client.get(wait.client), (None, 0, False)))
        self._of_client[wait.client] = wait
        if not wait.over:
            wait.serial = next(self._serial)
            self._push(wait)

    def end(self, wait: Wait) -> None:
        self._note(wait)
        del self._of_client[wait.client]

    def served(self, wait: Wait, size: int) -> None:
        """A monitor has had an item."""
        assert wait.left is not None
        self._note(wait)
        wait.left -= 1
        wait.bytes_left -= size

    def first_over_ns(self) -> int | None:
        while self._by_time:
            over_ns, _, wait = self._by_time[0]
            if self._of_client.get(wait.client) is wait:
                return over_ns
            heapq.heappop(self._by_time)
        return None

    def take_over(self, now_ns: int) -> Wait | None:
        """One whose time has come. It is not ended by this, but will not be told of again."""
        first_ns = self.first_over_ns()
        if first_ns is None or first_ns > now_ns:
            return None
        wait = heapq.heappop(self._by_time)[2]
        self._note(wait)
        wait.over = True
        return wait

    def hurry(self, wait: Wait) -> None:
        """Its time is over, whatever it was."""
        self._note(wait)
        wait.over = True

    def commit(self) -> None:
        self._before.clear()

    def undo(self) -> None:
        while self._before:
            client, wait, changes = self._before.pop()
            if wait is None:
                self._of_client.pop(client, None)
            else:
                wait.left, wait.bytes_left, wait.over = changes
                self._of_client[client] = wait
                if not wait.over:
                    self._push(wait)

    def _note(self, wait: Wait) -> None:
        self._before.append((wait.client, wait, (wait.left, wait.bytes_left, wait.over)))

    def _push(self, wait: Wait) -> None:
        heapq.heappush(self._by_time, (wait.over_ns, wait.serial, wait))
