"""Journeyman: a durable job scheduler and work queue whose log is also a dataset.

    journeyman           App, Backoff, job, ...: tasks for applications (docs/tasks.md)
    journeyman.client    clients of the server
    journeyman.spark     logs as Spark tables, and back
    journeyman.testing   apps without a server, and a clock for tests

These four packages are the public Python API (docs/python-api.md); everything else may change.
Importing them is cheap: no pyspark, no numpy, no aiohttp; the names of journeyman.tasks are
imported when they are used. docs/architecture.md leads to the code.
"""

from typing import TYPE_CHECKING, Any

from journeyman.errors import JourneymanError, UsageError

if TYPE_CHECKING:
    from journeyman.tasks import (
        App,
        Backoff,
        Call,
        Codec,
        CurrentJob,
        DoneJob,
        Ended,
        FailedJob,
        Failure,
        GiveUp,
        Job,
        JobCancelled,
        JobFailed,
        JobTimeout,
        JsonCodec,
        LeaseLost,
        Middleware,
        Outbox,
        Retry,
        Task,
        agather,
        anow,
        arandom,
        asleep,
        asleep_until,
        astep,
        auuid,
        await_for,
        gather,
        group,
        job,
        now,
        random,
        sleep,
        sleep_until,
        step,
        uuid,
        wait_for,
    )

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
    "JourneymanError",
    "JsonCodec",
    "LeaseLost",
    "Middleware",
    "Outbox",
    "Retry",
    "Task",
    "UsageError",
    "__version__",
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

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The names of journeyman.tasks, imported at their first use."""
    if name not in __all__:
        raise AttributeError(f"module 'journeyman' has no attribute {name!r}")
    import journeyman.tasks

    return getattr(journeyman.tasks, name)
