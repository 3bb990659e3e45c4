"""What a token with a namespace may ask of the work queue: only its own queues are there for it.

    a queue by its name       outside the namespace: Insufficient namespace scope
    a job by its id           of such a queue: not found
    lists of queues           show those of the namespace

Asked when a command is decided, because what a job is on may have been decided just before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from journeyman.engines.workq.engine import WorkQueueEngine
from journeyman.engines.workq.messages import WorkqGone
from journeyman.protocols.workq import commands
from journeyman.protocols.workq.replies import NOT_FOUND, JobMissing

REFUSALS = (commands.RefusedLine, JobMissing)

_OUTSIDE = commands.RefusedLine(commands.Complaint.SCOPE)
_OF_A_NAME = frozenset(
    {
        *(
            commands.Add,
            commands.ScheduleJob,
            commands.Run,
            commands.PauseQueue,
            commands.ResumeQueue,
        ),
        *(
            commands.InspectQueue,
            commands.InspectJobs,
            commands.InspectScheduledJobs,
            commands.InspectDeadJobs,
        ),
    }
)
_OF_AN_ID = frozenset(
    {
        commands.AwaitResult,
        commands.Complete,
        commands.Fail,
        commands.Delete,
        commands.InspectJob,
        commands.Requeue,
    }
)
_HARMLESS = frozenset({commands.InspectServer, commands.RefusedLine, WorkqGone})
_LISTS = frozenset({commands.InspectQueues, commands.InspectPausedQueues})


def in_scope(queue: WorkQueueEngine, request: Any, prefix: str) -> Any:
    """The request as it may be decided, or what to answer instead: one of REFUSALS.

    A command that is not known here is refused.
    """
    kind = type(request)
    if not prefix:
        return request
    if kind in _OF_A_NAME:
        return request if request.name.startswith(prefix) else _OUTSIDE
    if kind is commands.Lease:
        return request if all(name.startswith(prefix) for name in request.names) else _OUTSIDE
    if kind in _OF_AN_ID:
        name = queue.queue_of(request.job_id)
        return request if name is None or name.startswith(prefix) else NOT_FOUND
    if kind in _LISTS:
        return replace(request, prefix=prefix)
    return request if kind in _HARMLESS else _OUTSIDE
