"""What recurs: a timetable of the server that adds a job of a task at each of its times.

    @app.cron("0 2 * * *", tz="Europe/Berlin", catch_up="once", overlap="skip")

A worker sets the timetables of its app when it starts; the server keeps them, plans them and adds
the jobs, so one firing is one job however many workers there are, and it fires without any. The
expression is checked where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from journeyman.client import WorkQueueRunner
from journeyman.tasks.broker import Order
from journeyman.tasks.envelope import Envelope
from journeyman.tasks.task import stable_id
from journeyman.timetables import Timetable

if TYPE_CHECKING:
    from journeyman.tasks.task import AnyTask

CatchUp: TypeAlias = Literal["none", "once", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]


@dataclass(frozen=True)
class Recurring:
    """A task and the fields of its timetable, as docs/timetables.md names them."""

    task: AnyTask
    fields: Mapping[str, str]

    @property
    def timetable(self) -> Timetable:
        """Raises TimetableError that names the field that is wrong."""
        return Timetable.read(self.fields)

    def runner(self) -> WorkQueueRunner:
        """What the server does at each firing: add this job."""
        options = self.task.defaults
        flags = {
            "payload": Envelope(self.task.name).encode(self.task.app.codec).decode(),
            "ttr": options.lease_ms,
            "ttl": options.ttl_ms,
            "priority": options.priority,
            "max-attempts": options.max_attempts,
            "max-fails": options.max_fails,
        }
        words = tuple(f"-{name}={value}" for name, value in flags.items())
        return WorkQueueRunner(options.queue, words)

    def order(self, at: datetime) -> Order:
        """The job of one firing, for an app in memory."""
        payload = Envelope(self.task.name).encode(self.task.app.codec)
        job_id = stable_id(self.task.name, at.isoformat())
        return Order(job_id, payload, self.task.defaults)
