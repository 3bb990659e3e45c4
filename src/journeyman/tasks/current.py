"""A job where it runs: ``jm.job()`` inside of a task, and the arguments of hooks.

jm.job().attempt        the number of this attempt
jm.job().progress(3, 10)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from journeyman.protocols.workq.commands import WorkerNotes
from journeyman.tasks.envelope import Failure
from journeyman.tasks.errors import LeaseLost

logger = logging.getLogger("journeyman.job")


class AttemptSteps(Protocol):
    """The steps of an attempt: a steps.StepBook."""

    is_parked: bool

    def not_asked_for(self) -> list[str]: ...


@dataclass(slots=True)
class CurrentJob:
    """The current job. Outside a worker: one without an id that does nothing."""

    id: str = ""
    task: str = ""
    queue: str = ""
    attempt: int = 1
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    touch: Callable[[], None] | None = None  # the worker's; from any thread
    note: Callable[[WorkerNotes], None] | None = None  # the same
    steps: AttemptSteps | None = None
    is_lost: bool = False

    def heartbeat(self) -> None:
        """Renew the lease now, in addition to the worker's renewals. Raises LeaseLost."""
        if self.is_lost:
            raise LeaseLost(f"job {self.id} is no longer leased to this worker")
        if self.touch is not None:
            self.touch()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the job has come: ``progress(3, 10, "resizing")``. Cheap: the worker sends
        the last word of a moment."""
        if self.note is not None:
            self.note(WorkerNotes(done, total, note))

    def log(self, message: str, **fields: Any) -> None:
        """Write one line to the worker's log, with the id of the job, and keep it with the job."""
        line = message + "".join(f" {name}={value}" for name, value in fields.items())
        logger.info("%s %s: %s", self.task or "job", self.id or "-", line)
        if self.note is not None:
            self.note(WorkerNotes(log=(line,)))


@dataclass(frozen=True, slots=True)
class AttemptedJob:
    """A job of which an attempt has ended, for a hook."""

    id: str
    task: str
    queue: str
    attempt: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of_current(cls, job: CurrentJob, *ending: Any) -> Self:
        return cls(job.id, job.task, job.queue, job.attempt, job.args, job.kwargs, *ending)


@dataclass(frozen=True, slots=True)
class DoneJob(AttemptedJob):
    """The argument of ``on_success``: a job that is done."""

    value: Any


@dataclass(frozen=True, slots=True)
class FailedJob(AttemptedJob):
    """The argument of ``on_failure``: a job that failed for good; and of ``on_retry``: a job whose
    attempt failed."""

    failure: Failure
    exception: BaseException | None = None


_CURRENT: ContextVar[CurrentJob] = ContextVar("journeyman_job")


def current_job() -> CurrentJob | None:
    """None outside of a worker."""
    return _CURRENT.get(None)


def job() -> CurrentJob:
    """The current job."""
    return _CURRENT.get(None) or CurrentJob()


def set_current(current: CurrentJob) -> None:
    """Set the current job of this thread or asyncio task; only workers do this."""
    _CURRENT.set(current)
