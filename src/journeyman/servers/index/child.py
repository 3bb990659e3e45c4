"""The helper process of the store: opens it, follows the log into it, and answers from it.

The server calls the functions below there (core/helper_process.py). The log is followed in a thread
of its own, so that questions are answered meanwhile, also while the store is rebuilt.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from journeyman.config import Settings
from journeyman.errors import InvalidData, UsageError
from journeyman.folds.keyspace import Defaults, is_archived, workq_of_record
from journeyman.folds.workq import JobState, expires_ns
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import delay_ms_of, max_fails_of
from journeyman.protocols.workq import replies
from journeyman.servers.core import following
from journeyman.servers.core.following import prepare_following, refusing, say
from journeyman.servers.index import views
from journeyman.servers.index.follower import Follower
from journeyman.storage import Page, Storage
from journeyman.storage.checking import be_alone

POLL_S: Final = 0.1  # between two looks at the log, if nothing is new
start_following, take_messages = following.start_following, following.take_messages
close = following.close
# Payloads and results of a page; a larger page is made smaller.
PAGE_BYTES: Final = 16 * 1024 * 1024
_STATES: Final = {
    "delayed": replies.SCHEDULED,
    "active": replies.LEASED,
    "completed": replies.COMPLETED,
    "failed": replies.DEAD,
}


class _Store:
    """The open store of this process."""

    storage: Storage


_store = _Store()


@refusing
def open_store(settings: Settings) -> str:
    """Engine and place of the store that is open now."""
    _store.storage = storage = Storage.from_settings(settings.storage)
    be_alone(storage.backend)
    follower = Follower.of_settings(settings, storage, say)
    prepare_following("journeyman-index", follower.step, POLL_S, storage.close)
    return f"{storage.engine} at {storage.path}"


@refusing
def list_jobs(
    queue: str | None, status: str, size: int, after: str | None, number: int | None
) -> views.StoredPage:
    if queue is None and number is not None:
        raise UsageError("a page by number needs a queue; use cursor without one")
    while True:
        if queue is None:
            page = _store.storage.list_jobs_by_status(status, size=size, after=after)
        else:
            page = _store.storage.list_jobs(queue, status, size=size, after=after, page=number)
        shown = _page(page)
        if size == 1 or _bytes_of(shown) <= PAGE_BYTES:
            return shown
        if number is not None:
            raise UsageError("these jobs are too large for one page; use a smaller limit")
        size //= 2


@refusing
def get_job(job_id: UUID) -> views.StoredJob | None:
    record = _store.storage.get_job(job_id)
    return None if record is None else view_of_record(record)


@refusing
def count_jobs(queue: str | None) -> views.StatusCounts:
    counts = _store.storage.queue_status_counts(queue)
    position = _store.storage.position()
    return views.StatusCounts(
        [views.StatusCount(each.queue, each.status, each.count) for each in counts],
        None if position is None else str(position),
    )


def _page(page: Page) -> views.StoredPage:
    jobs: list[views.StoredJob] = []
    unreadable = [
        views.UnreadableRow(each.key.decode("utf-8", "backslashreplace"), each.reason)
        for each in page.unreadable
    ]
    for record in page.jobs:
        try:
            jobs.append(view_of_record(record))
        except InvalidData as error:
            unreadable.append(views.UnreadableRow(str(record.job_uuid), error.reason))
    position = None if page.position is None else str(page.position)
    return views.StoredPage(jobs, page.next_cursor, unreadable, position)


def _bytes_of(page: views.StoredPage) -> int:
    return sum(len(job.payload) + len(job.result or b"") for job in page.jobs)


def view_of_record(record: JobRecord) -> views.StoredJob:
    """Raises InvalidData if the work queue can make nothing of it."""
    job = workq_of_record(record, Defaults())
    added, state = job.added, _STATES.get(record.status, replies.READY)
    return views.StoredJob(
        added.job_id,
        record.queue,
        state,
        record.attempts_so_far,
        added.max_attempts,
        job.fails,
        max_fails_of(added.max_fails),
        added.priority,
        added.ttr_ms,
        added.ttl_ms,
        delay_ms_of(added.max_fails),
        record.created_at_ns,
        expires_ns(job),
        added.payload,
        job.result,
        is_retry=job.state == JobState.PENDING,
        scheduled_ns=_ns(added.time),
        ready_ns=record.execution_start_ns if state == replies.SCHEDULED else None,
        started_ns=_ns(job.started),
        finished_ns=_ns(job.finished),
        status=record.status,
        is_archived=is_archived(record),
    )


def _ns(instant: Instant | None) -> int | None:
    return None if instant is None else instant.unix_ns
