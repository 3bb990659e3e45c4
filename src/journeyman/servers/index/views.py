"""The answers of the process of the store, which the HTTP API sends on."""

from __future__ import annotations

from msgspec import Struct

from journeyman.protocols.workq.replies import JobView


class StoredJob(JobView, frozen=True, omit_defaults=True, kw_only=True):
    """A job of the store; that of another program as the work queue would have it.

    ``status`` is the word of the store: new, waiting, delayed, active, completed, failed.
    """

    status: str
    is_archived: bool  # the log has it no more: its TTL has ended, or it is another program's


class UnreadableRow(Struct):
    """A row of the store that cannot be read, and why."""

    key: str
    reason: str


class StoredPage(Struct):
    """``position`` is the place of the work queue's log that the page is true of."""

    jobs: list[StoredJob]
    next: str | None
    unreadable: list[UnreadableRow]
    position: str | None


class StatusCount(Struct):
    """The number of stored jobs of a queue in a status."""

    queue: str
    status: str
    count: int


class StatusCounts(Struct):
    """Stored jobs by queue and status; zeros are left out. See StoredPage."""

    counts: list[StatusCount]
    position: str | None
