"""History has an end: finished jobs leave the store when their retention is over.

    the index of times, earliest first:  |--- over? remove ---|.....................|
                                                              now - retention     now

No job is finished before its time, so one that is due later than that cannot be over. What is
passed on the way and stays is what was finished later than it was due, or still has a TTL.

A step looks at SWEPT_AT_ONCE jobs, between two batches of the writer; a sweep is as many steps as
it takes. It begins anew at the first job every SWEEP_S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from journeyman.errors import InvalidData
from journeyman.folds.keyspace import Defaults, workq_of_record
from journeyman.folds.workq import FoldedJob, expires_ns
from journeyman.formats.keyspace import QueueTimeKey
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.workq.store import Look
from journeyman.storage import OperationOutcome, RemoveJob, Storage

SWEPT_AT_ONCE: Final = 500
_NS_PER_MS = 1_000_000


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
        self._retention_ns = retention_ms * _NS_PER_MS
        self._after: QueueTimeKey | None = None

    def step(self, now_ns: int) -> Swept:
        before_ms = (now_ns - self._retention_ns) // _NS_PER_MS
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
