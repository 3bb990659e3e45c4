"""The store -> a WorkQueue: the jobs that are there, not what happened to them.

    new, waiting, delayed, active   all of them, by the index of statuses. One whose TTL ended
                                    meanwhile is no longer there: its record says failed now
    completed, failed               those whose TTL is not over, by the index of times: no job
                                    is there for longer after its time than LONGEST_TTL_KEY
                                    says (MAX_TTL_MS if it is missing)

So a start costs what is in the queue, and what was due within the longest TTL; no log is read.
A record that cannot be read is told and stepped over. It stays where it is.

Records of other programs are taken as well, with settings that are usual (folds.keyspace_jobs).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from journeyman.engines.workq.engine import WorkQueueEngine
from journeyman.engines.workq.loading import Assembly
from journeyman.errors import InvalidData, StorageFull
from journeyman.folds.keyspace import (
    LONGEST_TTL_KEY,
    Defaults,
    record_of_workq,
    wakes_ns_of,
    workq_and_timeout,
    workq_status,
)
from journeyman.folds.workq import MAX_TTL_MS, FoldedJob, expires_ns, visible
from journeyman.formats.keyspace import QueueTimeKey
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.workq.store import ended
from journeyman.storage import Operation, SetStatus, Storage, Unreadable, Upsert

PAGE: Final = 1000
UNFINISHED: Final = ("new", "waiting", "delayed", "active")
_FINISHED: Final = ("completed", "failed")
_DEFAULTS: Final = Defaults()
_NS_PER_MS = 1_000_000
_MAX_U64: Final = 2**64 - 1
_END_OF_TIME_MS: Final = 253_402_300_800_000  # the year 10000

Report = Callable[[str, str], None]  # a key that is text, and why its record was stepped over


@dataclass(slots=True)
class LoadedStore:
    queue: WorkQueueEngine
    delayed: list[tuple[int, bytes]] = field(default_factory=list)  # for StoreJournal
    unreadable: int = 0
    ended: int = 0  # whose TTL was over
    longest_ttl_ms: int = 0  # what LONGEST_TTL_KEY says now
    unwritten: list[Operation] = field(default_factory=list)  # for StoreJournal: no room for them
    full: StorageFull | None = None  # the store takes no changes now


def load_store(storage: Storage, *, now_ns: int, seed: int, report: Report) -> LoadedStore:
    """All that is in the store now. Jobs whose TTL ended meanwhile are brought to their end."""
    return _Loading(storage, now_ns, seed, report).run()


def _all_unfinished(storage: Storage, report: Report) -> Iterator[JobRecord]:
    """Every job that is not finished, status by status, oldest first."""
    for status in UNFINISHED:
        cursor: str | None = None
        while True:
            page = storage.list_jobs_by_status(status, size=PAGE, after=cursor)
            _tell(page.unreadable, report)
            yield from page.jobs
            cursor = page.next_cursor
            if cursor is None:
                break


class _Loading:
    def __init__(self, storage: Storage, now_ns: int, seed: int, report: Report) -> None:
        self._storage = storage
        self._now_ns = now_ns
        self._report = report
        queues = storage.load_queues()
        paused = [queue.name for queue in queues.queues if queue.state == "paused"]
        self._assembly = Assembly(now_ns, paused, seed)
        self._loaded = LoadedStore(WorkQueueEngine())
        self._changes: list[Operation] = []
        self._unreadable_keys: set[str] = set()
        _tell(queues.unreadable, self._unreadable)
        names = {queue.name for queue in queues.queues}
        names |= {count.queue for count in storage.queue_status_counts()}
        for name in sorted(names):
            self._assembly.number_of(name)

    def run(self) -> LoadedStore:
        for record in _all_unfinished(self._storage, self._unreadable):
            self._take(record, self._unfinished)
            if len(self._changes) >= PAGE:
                self._apply()
        self._apply()
        for records in self._finished():
            for record in records:
                self._take(record, self._put)
        self._loaded.queue = self._assembly.finish()
        self._keep_longest_ttl()
        return self._loaded

    def _keep_longest_ttl(self) -> None:
        longest_ms = min(self._loaded.longest_ttl_ms, _MAX_U64)
        try:
            self._storage.backend.put(LONGEST_TTL_KEY, longest_ms.to_bytes(8))
        except StorageFull as error:
            self._loaded.full = error
            self._loaded.longest_ttl_ms = self._longest_ttl_ms()  # what it says still holds

    def _finished(self) -> Iterator[Iterable[JobRecord]]:
        """Those whose TTL may not be over."""
        known = self._assembly.jobs
        begin_ms = self._now_ns // _NS_PER_MS - self._longest_ttl_ms()
        after = QueueTimeKey(begin_ms - 1, "-", UUID(int=0))  # all of that millisecond are over
        while keys := self._storage.jobs_due_before(_END_OF_TIME_MS, limit=PAGE, after=after):
            after = keys[-1]
            uuids = [key.job_uuid for key in keys if known.get(key.job_uuid.bytes) is None]
            records, unreadable = self._storage.get_jobs(uuids)
            _tell(unreadable, self._unreadable)
            yield [record for record in records if record.status in _FINISHED]

    def _longest_ttl_ms(self) -> int:
        found = self._storage.backend.get(LONGEST_TTL_KEY)
        if found is None or len(found) != 8:
            return MAX_TTL_MS
        return min(int.from_bytes(found), MAX_TTL_MS)

    def _take(self, record: JobRecord, use: Callable[[JobRecord, FoldedJob, int], None]) -> None:
        """What cannot be a job is stepped over, whatever is wrong with it."""
        try:
            job, timed_out_ns = workq_and_timeout(record, _DEFAULTS)
            if job.added.ttl_ms < 0:
                raise InvalidData("a TTL below zero", 0)
            use(record, job, timed_out_ns)
        except InvalidData as error:
            self._unreadable(f"v1:j:{record.job_uuid}", error.reason)
        except (struct.error, OverflowError) as error:
            self._unreadable(f"v1:j:{record.job_uuid}", f"a number that is out of range: {error}")

    def _unfinished(self, record: JobRecord, job: FoldedJob, timed_out_ns: int) -> None:
        if visible(job, self._now_ns) is None:
            self._loaded.ended += 1
            self._changes.append(Upsert(record_of_workq(ended(job), expires_ns(job))))
            return
        self._put(record, job, timed_out_ns)
        wakes_ns = wakes_ns_of(job, timed_out_ns)
        status = workq_status(job.state, wakes_ns, self._now_ns)
        if status != record.status:
            self._changes.append(SetStatus(record.job_uuid, status))
        if status == "delayed" and wakes_ns is not None:
            self._loaded.delayed.append((wakes_ns, record.job_uuid.bytes))

    def _put(self, record: JobRecord, job: FoldedJob, timed_out_ns: int) -> None:
        del record
        if visible(job, self._now_ns) is not None:
            self._assembly.put_job(job, timed_out_ns)
            self._loaded.longest_ttl_ms = max(self._loaded.longest_ttl_ms, job.added.ttl_ms)

    def _apply(self) -> None:
        """A full disk does not stop a start: these changes are made with the next ones."""
        changes, self._changes = self._changes, []
        try:
            self._storage.apply(changes)
        except StorageFull as error:
            self._loaded.full = error
            self._loaded.unwritten += changes

    def _unreadable(self, key: str, reason: str) -> None:
        """Once, although it may stand in both indexes."""
        if key not in self._unreadable_keys:
            self._unreadable_keys.add(key)
            self._loaded.unreadable += 1
            self._report(key, reason)


def _tell(unreadable: Iterable[Unreadable], report: Report) -> None:
    for each in unreadable:
        report(each.key.decode("utf-8", "backslashreplace"), each.reason)
