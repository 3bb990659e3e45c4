"""What follows a job: the calls that its worker adds when it succeeds.

    fetch.call(url).then(parse).then(store, table="pages").send()

Each call gets the result of the one before as its first argument. What follows travels in the
envelope (``then``); the worker adds it **before** it completes the job, under an id made of the
job's id: a worker that dies in between repeats the job, and the same id adds nothing twice.

In the envelope: "then": [{"task": name, "args": [...], "kwargs": {...}}, ...]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from journeyman.errors import UsageError
from journeyman.tasks.broker import Order
from journeyman.tasks.task import Call, next_id

if TYPE_CHECKING:
    from journeyman.tasks.app import App


def following_order(app: App, job_id: str, then: tuple[Any, ...], value: Any) -> Order:
    """The job to add after a job that gave ``value``. Raises UsageError, TypeError."""
    first, *rest = [_call_of(app, members) for members in then]
    following = Call[Any](
        first.task,
        (value, *first.args),
        first.kwargs,
        first.options,
        job_id=next_id(UUID(job_id)),
        followers=tuple(rest),
    )
    return following.order()


def _call_of(app: App, members: dict[str, Any]) -> Call[Any]:
    task = app.tasks.get(members["task"])
    if task is None:
        raise UsageError(f"the next task of the chain is unknown: {members['task']!r}")
    return Call(task, tuple(members.get("args", ())), members.get("kwargs", {}), task.defaults)
