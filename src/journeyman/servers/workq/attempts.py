"""Who ran which attempt: noted in the ledger soon after the lease.

    batch durable --note--> waiting --a second later, or MAX_WAITING--> attempts-begun, not synced

Nothing waits for this: a server that is killed loses the names of the last second, and a ledger
that cannot be written loses them without a word. The attempts themselves are in the command log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from journeyman.clock import Clock
from journeyman.formats.ledger import AttemptsBegun
from journeyman.formats.timed_frame import Instant
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.core.ledger import Ledger

WAIT_S: Final = 1.0
MAX_WAITING: Final = 1_000


class AttemptNotes:
    """``run_between`` runs a function where the writer writes, between two batches."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        ledger: Ledger,
        run_between: Callable[[Callable[[], None]], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._ledger = ledger
        self._run_between = run_between
        self._waiting: dict[str, dict[str, int]] = {}  # by worker
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, begun: Iterable[tuple[str, bytes, int]]) -> None:
        for worker, job_id, attempt in begun:
            self._waiting.setdefault(worker, {})[id_text(job_id)] = attempt
            self._count += 1
        if self._count >= MAX_WAITING:
            self._flush()
        elif self._count and self._timer is None:
            self._timer = self._loop.call_later(WAIT_S, self._flush)

    def close(self) -> None:
        """Blocks a little."""
        for record in self._take():
            self._ledger.note_quietly(record)

    def _flush(self) -> None:
        for record in self._take():
            self._run_between(partial(self._ledger.note_quietly, record))

    def _take(self) -> list[AttemptsBegun]:
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._count, self._timer = self._waiting, {}, 0, None
        now = Instant(self._clock.now_ns())
        return [AttemptsBegun(now, worker, dict(jobs)) for worker, jobs in waiting.items()]
