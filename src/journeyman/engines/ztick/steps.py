"""The steps that jobs of the schedule take, with their records; occurrences and notices share them.

Not here: when a job takes which step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from journeyman.engines.ztick import job_table
from journeyman.engines.ztick.messages import Ended
from journeyman.engines.ztick.timetables import AT, Occurrence
from journeyman.formats.ledger import RunSettled
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import JobRemoved, JobSet, Status
from journeyman.timetables.zones import Zone, zone_of
from journeyman.units import NS_PER_MS

if TYPE_CHECKING:
    from journeyman.engines.ztick.state import ZtickState

_UTC = zone_of("UTC")


def end(state: ZtickState, job: job_table.Job, status: Ended) -> JobSet:
    """End it now, with this status."""
    identifier = job_table.identifier_of(job)
    state.jobs.move(identifier, job, int(status), max(0, state.now_ns))
    return JobSet(identifier, job_table.execution_ns_of(job), status)


def plan(state: ZtickState, identifier: str, execution_ns: int) -> None:
    """Create the job or plan it again."""
    state.jobs.plan(identifier, execution_ns)
    state.records.append(JobSet(identifier, execution_ns, Status.PLANNED))


def remove_planned(state: ZtickState, identifier: str) -> None:
    """Take the job out of the schedule, unless it has been triggered."""
    job = state.jobs.get(identifier)
    if job is not None and job[job_table.STATUS_AT] == job_table.PLANNED:
        state.jobs.remove(identifier)
        state.records.append(JobRemoved(identifier))


def remove_unended(state: ZtickState, identifier: str) -> None:
    """Remove a planned job, or one that was cut off by the end of the process."""
    job = state.jobs.get(identifier)
    if job is not None and job[job_table.STATUS_AT] in (job_table.PLANNED, job_table.TRIGGERED):
        state.jobs.remove(identifier)
        state.records.append(JobRemoved(identifier))


def free_job(state: ZtickState, stem: str, zone: Zone = _UTC) -> str:
    """An identifier that no job has: ``<stem>@<now, with milliseconds>``."""
    now_ms = state.now_ns // NS_PER_MS
    while True:
        at_s, fraction_ms = divmod(now_ms, 1000)
        label = Occurrence(at_s, zone.offset_s(at_s)).label
        identifier = f"{stem}{AT}{label[:19]}.{fraction_ms:03d}{label[19:]}"
        if state.jobs.get(identifier) is None:
            return identifier
        now_ms += 1


def end_retries(state: ZtickState, identifier: str) -> None:
    """The job is not to be tried again any more."""
    if state.timetables.retries(identifier):
        state.timetables.set_retries(identifier, 0)
        state.ledger.append(RunSettled(Instant(state.now_ns), identifier))
