"""What the command log needs now and then: a sync by the clock, and cleaning.

    a batch was written --look()--> interval policy? --> a timer --> sync, in the writer's thread
    every clean_int_ms  --> WorkqLog.clean, in a thread of its own, while commands are served

A sync that fails is final, and the writer says so. A cleaning that fails leaves the log whole, only
larger than it could be; it is told, and the next one tries again. Unless a sync failed in it.

History has an end: finished jobs leave the store when their retention is over.

    the index of times, earliest first:  |--- over? remove ---|.....................|
                                                              now - retention     now

No job is finished before its time, so one that is due later than that cannot be over. What is
passed on the way and stays is what was finished later than it was due, or still has a TTL.

A step looks at SWEPT_AT_ONCE jobs, between two batches of the writer; a sweep is as many steps as
it takes. It begins anew at the first job every SWEEP_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from journeyman.clock import Clock
from journeyman.errors import InvalidData, JourneymanError
from journeyman.folds.keyspace import Defaults, workq_of_record
from journeyman.folds.workq import FoldedJob, expires_ns
from journeyman.formats.keyspace import QueueTimeKey
from journeyman.formats.keyspace.values import JobRecord
from journeyman.logs.workq.cleaning import CleanReport
from journeyman.logs.workq.log import WorkqLog
from journeyman.servers.core.group_commit import is_over
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq.store import Look
from journeyman.servers.workq.writer import WorkqJournal, WorkqWriter
from journeyman.storage import OperationOutcome, RemoveJob, Storage
from journeyman.units import NS_PER_MS


class IntervalSync:
    """Syncs at most ``interval_ms`` after something was written."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: WorkqJournal,
        writer: WorkqWriter,
        *,
        interval_ms: int,
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._writer = writer
        self._interval_s = interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """After every batch; cheap when nothing was written, or the timer runs."""
        if self._timer is None and self._journal.is_unsynced:
            self._timer = self._loop.call_later(self._interval_s, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._writer.run_between(self._journal.sync)


class Cleaning:
    """Cleans the log at intervals. ``ended`` is told whether it went well."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: WorkqLog,
        journal: WorkqJournal,
        messages: ServerLog,
        *,
        interval_ms: int,
        ended: Callable[[bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._log = log
        self._journal = journal
        self._messages = messages
        self._interval_s = interval_ms / 1000
        self._ended = ended
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journeyman-cleaning")
        self._timer = loop.call_later(self._interval_s, self._begin)

    def stop(self) -> None:
        """A cleaning under way comes to its end; the log waits for it when it is closed."""
        self._timer.cancel()
        self._thread.shutdown(wait=False)

    def _begin(self) -> None:
        self._journal.is_shared = True
        self._thread.submit(self._log.clean, self._clock.now_ns()).add_done_callback(
            lambda future: self._loop.call_soon_threadsafe(self._end, future)
        )

    def _end(self, future: Future[CleanReport]) -> None:
        self._journal.is_shared = False
        error = future.exception()
        if error is None:
            self._tell(future.result())
        elif isinstance(error, JourneymanError | OSError) and not self._is_final(error):
            self._messages.warn("cleaning failed; the log is whole", reason=error)
        else:
            self._on_failure(error)
            return
        self._ended(error is None)
        self._timer = self._loop.call_later(self._interval_s, self._begin)

    def _is_final(self, error: BaseException) -> bool:
        poisoned = self._log.appender.poisoned is not None
        return poisoned or (isinstance(error, JourneymanError) and is_over(error))

    def _tell(self, report: CleanReport) -> None:
        if report.rewritten or report.removed:
            self._messages.info(
                "the command log was cleaned",
                segments_rewritten=report.rewritten,
                segments_removed=report.removed,
                records_dropped=report.records_dropped,
                bytes_freed=report.bytes_freed,
            )


SWEPT_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Swept:
    """What a step came to."""

    removed: int
    has_more: bool


class Retention:
    """Removes finished jobs ``retention_ms`` after they were finished, once their TTL is over."""

    def __init__(self, storage: Storage, look: Look, *, retention_ms: int) -> None:
        self._storage = storage
        self._look = look
        self._retention_ns = retention_ms * NS_PER_MS
        self._after: QueueTimeKey | None = None

    def step(self, now_ns: int) -> Swept:
        before_ms = (now_ns - self._retention_ns) // NS_PER_MS
        keys = self._storage.jobs_due_before(before_ms, limit=SWEPT_AT_ONCE, after=self._after)
        self._after = keys[-1] if len(keys) == SWEPT_AT_ONCE else None
        records, _ = self._storage.get_jobs([key.job_uuid for key in keys])
        over = [RemoveJob(each.job_uuid) for each in records if self._is_over(each, now_ns)]
        outcomes = self._storage.apply(over)
        removed = sum(outcome is OperationOutcome.DONE for outcome in outcomes)
        return Swept(removed, self._after is not None)

    def _is_over(self, record: JobRecord, now_ns: int) -> bool:
        if record.status not in ("completed", "failed"):
            return False
        if self._look(record.job_uuid.bytes) is not None:
            return False
        try:
            job = workq_of_record(record, Defaults())
        except InvalidData:
            return False
        return _finished_ns(job) <= now_ns - self._retention_ns and expires_ns(job) <= now_ns


def _finished_ns(job: FoldedJob) -> int:
    assert job.finished is not None
    return job.finished.unix_ns
