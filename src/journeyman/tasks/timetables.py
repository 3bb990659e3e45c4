"""What recurs: a timetable of the server that adds a job of a task at each of its times.

    @app.cron("0 2 * * *", tz="Europe/Berlin", catch_up="once", overlap="skip")

A worker sets the timetables of its app when it starts; the server keeps them, plans them and adds
the jobs, so one firing is one job however many workers there are, and it fires without any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from journeyman.tasks.envelope import Envelope

if TYPE_CHECKING:
    from journeyman.tasks.task import AnyTask

CatchUp: TypeAlias = Literal["none", "once", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]


@dataclass(frozen=True)
class Timetable:
    """``kind`` is ``cron`` or ``every``; ``expression`` is in the words of the server."""

    name: str
    kind: Literal["cron", "every"]
    expression: str
    tz: str = "UTC"
    catch_up: CatchUp = "none"
    overlap: Overlap = "allow"
    jitter_s: float = 0.0
    task: AnyTask | None = None

    def named(self, task: AnyTask) -> Timetable:
        return replace(self, name=task.name, task=task)

    def runner_words(self) -> list[str]:
        """The runner ``queue`` of the server: which job each firing adds."""
        assert self.task is not None
        options = self.task.defaults
        flags = {
            "payload": Envelope(self.task.name).encode(self.task.app.codec).decode(),
            "ttr": str(options.lease_ms),
            "ttl": str(options.ttl_ms),
            "priority": str(options.priority),
            "max-attempts": str(options.max_attempts),
            "max-fails": str(options.max_fails),
        }
        return ["queue", options.queue, *(f"-{name}={value}" for name, value in flags.items())]
