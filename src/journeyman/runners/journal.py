"""journal <queue>: the id of a due job is put on a fan-out queue of this server.

    request --its job id--> the queues' writer --> recorded, as durable as kestrel.sync says

Every reader of the queue gets it. A run that is repeated, because the server stopped before its end
could be noted, puts the id again: readers see it at least once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from journeyman.formats.ztick import FanOutRunner
from journeyman.protocols.kestrel.readers import is_queue_name
from journeyman.runners.contract import RunRequest, RunResult, failed

# queue and item -> why it could not be put, or nothing
PutsItems: TypeAlias = Callable[[str, bytes], Awaitable[str]]


class JournalRunner:
    def __init__(self, put: PutsItems | None) -> None:
        """``put`` None: no fan-out queues are served."""
        self._put = put

    async def run(self, request: RunRequest[FanOutRunner]) -> RunResult:
        if self._put is None:
            return failed("no fan-out queues are served: kestrel.enabled is false")
        queue = request.runner.queue
        if not is_queue_name(queue):  # a log may hold rules that nobody has checked
            return failed("the rule names no queue that could exist")
        reason = await self._put(queue, request.job_id.encode())
        return failed(reason) if reason else RunResult(True)

    async def close(self) -> None:
        """Runs share nothing."""
