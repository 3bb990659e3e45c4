"""Rows of the work queue, made from other things: what they share.

A converted job is an ``add`` or ``schedule`` record with the settings that were asked for. What the
protocol of the work queue would refuse is not written: a queue name it does not take, a payload
over 1 MiB, a job whose time to live is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.errors import UsageError
from journeyman.folds.workq import MAX_TTL_MS, MAX_TTR_MS

NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,255}$"
# In the order of the source; what the sink needs.
QUEUE_COLUMNS: Final = (
    *("kind", "job_id", "logged_ns", "name", "ttr_ms", "ttl_ms", "priority"),
    *("max_attempts", "max_fails", "payload_size", "payload", "time_ns", "created_ns"),
)
_DEFAULT_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """What jobs get that the other side does not say. ``name`` None: from the rule or queue."""

    now_ns: int
    name: str | None = None
    ttr_ms: int = 60_000
    ttl_ms: int = MAX_TTL_MS
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.ttr_ms <= MAX_TTR_MS or not 1 <= self.ttl_ms <= MAX_TTL_MS:
            raise UsageError(f"ttr is 1..{MAX_TTR_MS} ms and ttl 1..{MAX_TTL_MS} ms")

    def name_column(self, found: Column) -> Column:
        """The name asked for, else the one found if the queue takes it, else ``default``."""
        if self.name is not None:
            return F.lit(self.name)
        return F.when(found.rlike(NAME_PATTERN), found).otherwise(F.lit(_DEFAULT_NAME))

    def columns(self) -> dict[str, Column]:
        """The columns that are the same for all jobs."""
        return {
            "ttr_ms": F.lit(self.ttr_ms).cast("long"),
            "ttl_ms": F.lit(self.ttl_ms).cast("long"),
            "priority": F.lit(self.priority),
            "max_attempts": F.lit(self.max_attempts).cast("long"),
            "max_fails": F.lit(self.max_fails).cast("long"),
            "logged_ns": F.lit(self.now_ns).cast("long"),
        }
