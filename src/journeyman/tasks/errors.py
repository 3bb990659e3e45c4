"""Exceptions around jobs: those that a task raises, those raised inside of it, those of results."""

from __future__ import annotations

from journeyman.errors import JourneymanError
from journeyman.protocols.workq.commands import Complaint
from journeyman.tasks.durations import MAX_DELAY_S, Seconds, seconds
from journeyman.tasks.envelope import CANCELLED, Failure


class JobFailed(JourneymanError):
    """A job has failed and will not be tried again; ``failure`` has its error and traceback."""

    def __init__(self, job_id: str, failure: Failure) -> None:
        super().__init__(f"job {job_id} failed: {failure}")
        self.job_id = job_id
        self.failure = failure
        if failure.traceback:
            self.add_note(f"In the worker:\n{failure.traceback.rstrip()}")


class JobCancelled(JobFailed):
    """A client cancelled the job. Raised by ``result``, and inside the task while it runs."""

    def __init__(self, job_id: str = "", failure: Failure = CANCELLED) -> None:
        super().__init__(job_id, failure)
        self.args = (f"job {job_id} was cancelled",)


class GiveUp(JourneymanError):
    """Raise it in a task that cannot succeed: the job is dead at once, without retries."""


class Retry(JourneymanError):
    """Raise it in a task to be tried again, after ``after`` seconds instead of the backoff: a day
    at most."""

    def __init__(self, reason: str = "retry", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.after_s = None if after is None else seconds("after", after, MAX_DELAY_S)


class JobTimeout(JourneymanError):
    """An attempt took longer than the timeout of its task. Raised inside the task."""


class LeaseLost(JourneymanError):
    """The job was deleted, finished elsewhere, or its lease ran out: stop working on it."""


def error_of_step(job_id: str, refusal: str) -> JourneymanError:
    """Return what to raise inside a task whose step the server has refused with these words."""
    if refusal.endswith(Complaint.CANCELLED):
        return JobCancelled(job_id)
    if refusal.endswith(("NOT-FOUND", Complaint.NOT_LEASED, Complaint.LEASED_AGAIN)):
        return LeaseLost(f"job {job_id} is no longer leased to this worker")
    return JourneymanError(f"the server refused a step of job {job_id}: {refusal}")
