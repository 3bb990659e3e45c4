"""Clients of the schedule, over the ztick protocol: ``Schedule`` and ``AsyncSchedule``.

    with Schedule("scheduler.internal", token="...") as schedule:
        schedule.set_rule("rule.mail", "mail.", Shell("send-mail"))
        schedule.set("mail.1", datetime.now(UTC) + timedelta(hours=1))
        schedule.get("mail.1")                        Job("mail.1", Status.PLANNED, ...)
        schedule.set_many((name, when) for ...)       many at once: pipelined
        schedule.set_timetable("nightly", cron="0 2 * * *", tz="Europe/Berlin", runner=Shell("..."))

``calls.py`` says what every call does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from journeyman.client.blocking import BlockingClient, blocking
from journeyman.client.errors import Refused
from journeyman.client.ztick import calls
from journeyman.client.ztick.calls import (
    DEFAULT_BATCH,
    DEFAULT_PORT,
    SERVICE,
    BackfilledJob,
    Job,
    Planned,
    Rule,
    TimetableStatus,
)

__all__ = [
    "DEFAULT_PORT",
    "BackfilledJob",
    "Job",
    "Rule",
    "Schedule",
    "TimetableStatus",
]


class Schedule(BlockingClient):
    """A blocking client of the schedule, for any number of threads."""

    service = SERVICE

    set = blocking(calls.set)
    get = blocking(calls.get)
    query = blocking(calls.query)
    remove = blocking(calls.remove)
    set_rule = blocking(calls.set_rule)
    rules = blocking(calls.rules)
    remove_rule = blocking(calls.remove_rule)
    stat = blocking(calls.stat)
    set_timetable = blocking(calls.set_timetable)
    timetable = blocking(calls.timetable)
    timetables = blocking(calls.timetables)
    pause_timetable = blocking(calls.pause_timetable)
    resume_timetable = blocking(calls.resume_timetable)
    remove_timetable = blocking(calls.remove_timetable)
    run_timetable = blocking(calls.run_timetable)
    next_firings = blocking(calls.next_firings)
    backfill = blocking(calls.backfill)

    def set_many(
        self, jobs: Iterable[Planned], *, batch: int = DEFAULT_BATCH
    ) -> Iterator[tuple[str, Refused | None]]:
        """Plan many jobs, ``batch`` on the way at a time: each with its refusal, or None.

        Jobs whose replies a broken connection took are sent again, fewer at a time. An invalid job
        is a refusal like any other.
        """
        batches = calls.batches_of(jobs, batch)
        return (outcome for some in batches for outcome in self.hold(calls.set_all(some)))
