"""What recurs: a timetable of the server that adds a job of a task at each of its times.

    @app.cron("0 2 * * *", tz="Europe/Berlin", catch_up="once", overlap="skip")

A worker sets the timetables of its app when it starts; the server keeps them, plans them and adds
the jobs, so one firing is one job however many workers there are, and it fires without any. The
expression is checked where it is written.

For the schedule a firing is over when its job is added, so its ``overlap`` holds for adding alone,
and the work queue sees to the rest: ``skip`` gives all firings one id, which is free again when the
job is finished; ``queue`` gives them one key, of which one job runs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from journeyman.client import WorkQueueRunner
from journeyman.tasks.broker import Order
from journeyman.tasks.envelope import Envelope
from journeyman.tasks.options import Options, key_name
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
    overlap: Overlap = "skip"

    @property
    def timetable(self) -> Timetable:
        """Raises TimetableError that names the field that is wrong."""
        return Timetable.read(self.fields)

    def options(self) -> Options:
        """Of the task, with the limit that ``queue`` needs."""
        options = self.task.defaults
        if self.overlap != "queue":
            return options
        return replace(options, key=options.key or self.task.name, concurrency=1)

    def runner(self) -> WorkQueueRunner:
        """What the server does at each firing: add this job."""
        options = self.task.defaults
        flags: dict[str, object] = {
            "payload": Envelope(self.task.name).encode(self.task.app.codec).decode(),
            "ttr": options.lease_ms,
            "ttl": options.ttl_ms,
            "priority": options.priority,
            "max-attempts": options.max_attempts,
            "max-fails": options.max_fails,
        }
        if self.overlap == "skip":  # one id for all: it is added if the last one is finished
            flags |= {"id": stable_id(self.task.name), "replace": "finished"}
        elif self.overlap == "queue":
            flags["key"] = key_name(self.task.name)
        words = tuple(f"-{name}={value}" for name, value in flags.items())
        return WorkQueueRunner(options.queue, words)

    def order(self, at: datetime) -> Order:
        """The job of one firing, for an app in memory."""
        task, options = self.task, self.task.defaults
        payload = Envelope(task.name).encode(task.app.codec)
        if self.overlap == "skip":
            return Order(stable_id(task.name), payload, replace(options, unique="args"))
        key = key_name(task.name) if self.overlap == "queue" else ""
        return Order(stable_id(task.name, at.isoformat()), payload, options, limit_key=key)
