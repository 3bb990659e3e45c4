"""Tasks: functions of an application that run on workers, later, again, or every night.

    App             tasks, timetables and hooks of one application
    Backoff         how long to wait before a retry
    Job             a job that was sent; its result
    job()           inside of a task: the job that runs here
    group(calls)    calls that run at the same time
    step, sleep, wait_for, gather, ...    what a task has done is not done again (steps.py)
    Retry           raise it to be tried again
    GiveUp          raise it not to be tried again

Everything here is also in ``journeyman`` itself: ``import journeyman as jm``. See docs/tasks.md.
"""

from typing import TYPE_CHECKING

from journeyman.lazy_names import lazy_names

if TYPE_CHECKING:
    from journeyman.tasks.app import App, Middleware
    from journeyman.tasks.current import CurrentJob, DoneJob, FailedJob, job
    from journeyman.tasks.durations import Backoff
    from journeyman.tasks.envelope import Codec, Failure, JsonCodec
    from journeyman.tasks.errors import (
        GiveUp,
        JobCancelled,
        JobFailed,
        JobTimeout,
        LeaseLost,
        Retry,
    )
    from journeyman.tasks.flows import Ended, group
    from journeyman.tasks.jobs import Job
    from journeyman.tasks.outbox import Outbox
    from journeyman.tasks.steps import (
        agather,
        anow,
        arandom,
        asleep,
        asleep_until,
        astep,
        auuid,
        await_for,
        gather,
        now,
        random,
        sleep,
        sleep_until,
        step,
        uuid,
        wait_for,
    )
    from journeyman.tasks.task import Call, Task

__all__ = [
    "App",
    "Backoff",
    "Call",
    "Codec",
    "CurrentJob",
    "DoneJob",
    "Ended",
    "FailedJob",
    "Failure",
    "GiveUp",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobTimeout",
    "JsonCodec",
    "LeaseLost",
    "Middleware",
    "Outbox",
    "Retry",
    "Task",
    "agather",
    "anow",
    "arandom",
    "asleep",
    "asleep_until",
    "astep",
    "auuid",
    "await_for",
    "gather",
    "group",
    "job",
    "now",
    "random",
    "sleep",
    "sleep_until",
    "step",
    "uuid",
    "wait_for",
]

__getattr__ = lazy_names(
    __name__,
    __all__,
    (
        "journeyman.tasks.steps",  # first: others have imported modules named like its functions
        *(f"journeyman.tasks.{name}" for name in ("envelope", "durations", "errors", "current")),
        *(f"journeyman.tasks.{name}" for name in ("jobs", "task", "flows", "app", "outbox")),
    ),
)
