"""queue <name> [-flag=value]...: a due job becomes a job of the work queue of this server.

    request --queue_job--> Add --the work queue's writer--> recorded, as durable as its policy says

The job has an id made of the scheduled job's id and time. If the work queue has that id already, an
earlier run has added it and could not be noted: this one has succeeded too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from journeyman.formats.ztick import WorkQueueRunner
from journeyman.protocols.workq.commands import Add
from journeyman.protocols.ztick.queue_runner import queue_job
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
