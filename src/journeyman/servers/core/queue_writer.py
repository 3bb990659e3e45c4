"""What the writers of the queues have in common, on top of group_commit.py.

    submit         commands, weighed: a batch, and all that waits, is bounded by bytes as well
    submit_due     what the time has brought comes before whatever else waits, once
    leave          a client is gone: this too comes first, so that it gets nothing any more
    run_between    an errand for the writer's thread between two batches: an interval sync

What a command weighs, and which words of the engine say "due" and "gone", is each door's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from journeyman.servers.core.group_commit import MAX_BATCH, Batch, GroupCommit, Submitter

MAX_BATCH_BYTES = 8 * 1024 * 1024  # of payloads or items


class QueueWriter(GroupCommit):
    """See the module's docstring. All methods are called on the event loop."""

    max_waiting_bytes: int  # of all that waits; then no more is taken

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting_bytes = 0
        self._due_waits = False
        self._errands: deque[Callable[[], None]] = deque()

    # -- what each door does in its own way --

    @abstractmethod
    def _weigh(self, requests: Sequence[Any]) -> int:
        """How much memory these take, beyond a little."""

    @abstractmethod
    def _due(self) -> Any:
        """The command that says: see to what the time has brought."""

    @abstractmethod
    def _gone(self, client: Any) -> Any:
        """The command that says: this client is gone."""

    # -- from clients and from the server itself --

    @property
    def has_room(self) -> bool:
        is_light = self._waiting_bytes < self.max_waiting_bytes
        return is_light and len(self._waiting) < self._max_waiting

    def submit(self, client: Submitter, requests: Sequence[Any]) -> None:
        self._waiting_bytes += self._weigh(requests)
        super().submit(client, requests)

    def submit_due(self) -> None:
        """What is due is due before whatever else waits."""
        if not self._due_waits:
            self._due_waits = True
            self._waiting.appendleft((None, self._due()))
            self._set_turn()

    def leave(self, client: Any) -> None:
        """The client waits for nothing any more; it gets nothing from now on."""
        self._waiting.appendleft((client, self._gone(client)))
        self._set_turn()

    def run_between(self, errand: Callable[[], None]) -> None:
        """Have the writer's thread do this between two batches. If it raises, that is final."""
        self._errands.append(errand)
        self._set_turn()

    # -- a turn --

    def _take_waiting(self) -> list[tuple[Any, Any]]:
        waiting = self._waiting
        if len(waiting) <= MAX_BATCH and self._waiting_bytes <= MAX_BATCH_BYTES:  # nearly always
            everything = list(waiting)
            waiting.clear()
            self._waiting_bytes = 0
            return everything
        taken: list[tuple[Any, Any]] = []
        size = 0
        while waiting and len(taken) < MAX_BATCH and size < MAX_BATCH_BYTES:
            entry = waiting.popleft()
            size += self._weigh((entry[1],))
            taken.append(entry)
        self._waiting_bytes = max(0, self._waiting_bytes - size) if waiting else 0
        return taken

    def _decide_next(self) -> Batch | None:
        if not self._errands:
            return super()._decide_next()
        self._writing = Batch([])
        errand = self._thread.submit(self._errands.popleft())
        errand.add_done_callback(self._errand_done_elsewhere)
        return None

    def _errand_done_elsewhere(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._errand_done, future.exception())

    def _errand_done(self, error: BaseException | None) -> None:
        self._writing = None
        if error is not None:
            self._fail(error)
        else:
            self._go_on(None)
