"""queue <name> [-flag=value]...: a due job becomes a job of the work queue of this server.

    request --queue_job--> Add --the work queue's writer--> recorded, as durable as its policy says

The job has an id made of the scheduled job's id and time. If the work queue has that id already, an
earlier run has added it and could not be noted: this one has succeeded too.

journal <queue>: the id of a due job is put on a fan-out queue of this server.

    request --its job id--> the queues' writer --> recorded, as durable as kestrel.sync says

Every reader of the queue gets it. A run that is repeated, because the server stopped before its
end could be noted, puts the id again: readers see it at least once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from journeyman.formats.ztick import FanOutRunner, WorkQueueRunner
from journeyman.protocols.kestrel.parser import is_queue_name
from journeyman.protocols.workq.commands import Add
from journeyman.protocols.ztick.grammar import queue_job
from journeyman.runners.contract import RunRequest, RunResult, failed

AddsWork: TypeAlias = Callable[[Add], Awaitable[str]]  # why it could not be added, or nothing


class QueueRunner:
    def __init__(self, add: AddsWork | None) -> None:
        """``add`` None: no work queue is served."""
        self._add = add

    async def run(self, request: RunRequest[WorkQueueRunner]) -> RunResult:
        if self._add is None:
            return failed("no work queue is served: workq.enabled is false")
        job = queue_job(request.runner, request.job_id, request.execution_ns)
        if isinstance(job, str):
            return failed(job)
        reason = await self._add(job)
        return failed(reason) if reason else RunResult(True)

    async def close(self) -> None:
        """Runs share nothing."""


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
        if not is_queue_name(queue):  # a log may hold unchecked rules
            return failed("the rule names no queue that could exist")
        reason = await self._put(queue, request.job_id.encode())
        return failed(reason) if reason else RunResult(True)

    async def close(self) -> None:
        """Runs share nothing."""
