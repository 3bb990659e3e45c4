"""The store, as the writer of the work queue sees it: a batch of records goes in, and is durable.

    records of a batch --> the ids in them --engine: how each job is now--> one commit of the store

    the job is there             its record is written, and all index keys that follow from it
    deleted                      its record is removed
    TTL over, finished before    nothing: its record is history, until its retention is over
    TTL over, never finished     its record says failed, with an empty result, at the end of its TTL

A record holds where a job stands, not what happened to it, so nothing is read to write it. The
engine decides nothing while a batch is written, and may be looked at meanwhile.

That a job is due is not a record (it is a matter of time), but a status of the store: ``promote``
turns delayed into waiting, between two batches. Which ones are delayed is remembered here.

Pauses are the states of the queues. They are in the same commit as the records.

One key more is kept, LONGEST_TTL_KEY: no job of the queue has a longer TTL. It bounds how far back
a start has to look for finished jobs. Any other program that writes jobs must delete this key.

The store -> a WorkQueue: the jobs that are there, not what happened to them.

    new, waiting, delayed, active   all of them, by the index of statuses. One whose TTL ended
                                    meanwhile is no longer there: its record says failed now
    completed, failed               those whose TTL is not over, by the index of times: no job
                                    is there for longer after its time than LONGEST_TTL_KEY
                                    says (MAX_TTL_MS if it is missing)

So a start costs what is in the queue, and what was due within the longest TTL; no log is read. A
record that cannot be read is reported and skipped. It stays where it is.

Records of other programs are taken as well, with settings that are usual (folds.keyspace_jobs).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias
from uuid import UUID

from journeyman import errors
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.loading import JobAssembly
from journeyman.folds.keyspace import (
    LONGEST_TTL_KEY,
    Defaults,
    queue_record,
    record_of_workq,
    wakes_ns_of,
    workq_and_timeout,
    workq_of_record,
    workq_status,
)
from journeyman.folds.workq import (
    MAX_TTL_MS,
    FoldedJob,
    JobState,
    State,
    apply,
    expires_ns,
    visible,
)
from journeyman.formats.keyspace import QueueTimeKey
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.workq import Command, Instant, JobAdded, Record
from journeyman.servers.core.store import as_log_errors
from journeyman.storage import (
    Operation,
    PutEntries,
    PutQueue,
    RemoveJob,
    SetStatus,
    Storage,
    Unreadable,
    Upsert,
)
from journeyman.units import NS_PER_MS

# A job as it is now, and the time of its last timeout-attempt; None if there is none.
Look: TypeAlias = Callable[[bytes], tuple[FoldedJob, int] | None]

PROMOTED_AT_ONCE: Final = 1000
UNWRITTEN_AT_ONCE: Final = 1000
_FINISHED: Final = (JobState.COMPLETED, JobState.FAILED)


def ended(job: FoldedJob) -> FoldedJob:
    """How a job is remembered whose TTL is over: as it was finished, or else as failed then."""
    if job.state not in _FINISHED:
        job.state, job.result, job.finished = JobState.FAILED, b"", Instant(expires_ns(job))
    return job


class StoreRecorder:
    """``write`` and ``promote`` never run at the same time: the writer sees to that."""

    keeps_pauses: Final = True
    is_quick: Final = False  # a commit waits for the disk, under every policy

    def __init__(
        self,
        storage: Storage,
        look: Look,
        delayed: Iterable[tuple[int, bytes]] = (),
        *,
        longest_ttl_ms: int = 0,
        unwritten: Sequence[Operation] = (),
    ) -> None:
        """``delayed``: when these jobs become ready, and their ids. ``longest_ttl_ms`` is what
        LONGEST_TTL_KEY says. ``unwritten`` is made before anything else: a start on a full disk
        leaves it."""
        self._storage = storage
        self._look = look
        self._longest_ttl_ms = longest_ttl_ms
        self._unwritten = list(unwritten)
        self._delayed = {job_id: wakes_ns for wakes_ns, job_id in delayed}
        self._wakings = [(wakes_ns, job_id) for job_id, wakes_ns in self._delayed.items()]
        heapify(self._wakings)

    def write(
        self,
        records: Sequence[Record],
        paused: Iterable[str] | None = None,
        more: PutEntries | None = None,
    ) -> None:
        """Durable when it returns. JourneymanError: nothing was written, unless it is final."""
        operations, delayed = self._changes(records)
        if more is not None and more.changes:
            operations.append(more)
        if paused is not None:
            operations += self._pauses(frozenset(paused))
        if operations:
            with as_log_errors():
                self._keep_longest_ttl(records)
                self._apply(operations)
        for job_id, wakes_ns in delayed.items():
            self._remember(job_id, wakes_ns)

    def promote(self, now_ns: int) -> bool:
        """Delayed jobs that are due are waiting ones. Whether there may be more."""
        due: list[tuple[int, bytes]] = []
        while self._wakings and self._wakings[0][0] <= now_ns and len(due) < PROMOTED_AT_ONCE:
            wakes_ns, job_id = heappop(self._wakings)
            if self._delayed.get(job_id) == wakes_ns:  # else it has left or been put off meanwhile
                due.append((wakes_ns, job_id))
        if due:
            try:
                with as_log_errors():
                    self._apply([SetStatus(UUID(bytes=job_id), "waiting") for _, job_id in due])
            except errors.JourneymanError:
                self._wakings += due
                heapify(self._wakings)
                raise
        for _, job_id in due:
            del self._delayed[job_id]
        return len(due) == PROMOTED_AT_ONCE

    def has_due(self, now_ns: int) -> bool:
        """Whether ``promote`` may have something to do."""
        return bool(self._wakings) and self._wakings[0][0] <= now_ns

    # -- jobs --

    def _changes(
        self, records: Sequence[Record]
    ) -> tuple[list[Operation], dict[bytes, int | None]]:
        """What to do to the store; and for each job touched when it wakes, None if it is awake."""
        operations: list[Operation] = []
        delayed: dict[bytes, int | None] = {}
        over: list[bytes] = []
        for job_id, record in {record.job_id: record for record in records}.items():
            found = self._look(job_id)
            delayed[job_id] = None
            if found is not None:
                kept = record_of_workq(found[0], record.logged.unix_ns, found[1])
                if kept.status == "delayed":
                    delayed[job_id] = wakes_ns_of(*found)
                operations.append(Upsert(kept))
            elif record.command == Command.EXPIRE:
                over.append(job_id)
            else:
                operations.append(RemoveJob(UUID(bytes=job_id)))
        if over:
            operations += self._endings(over, records)
        return operations, delayed

    def _endings(self, over: list[bytes], records: Sequence[Record]) -> list[Operation]:
        """The engine has dropped the jobs: what they were is in the store, and in the batch."""
        stored, _ = self._storage.get_jobs([UUID(bytes=job_id) for job_id in over])
        states: dict[bytes, State] = dict.fromkeys(over)
        states |= {record.job_uuid.bytes: _job_of(record) for record in stored}
        changed = {job_id for job_id, job in states.items() if not _is_finished(job)}
        for record in records:
            job_id = record.job_id
            if job_id in states and record.command != Command.EXPIRE:
                states[job_id] = apply(states[job_id], record)
                changed.add(job_id)
        return [
            Upsert(record_of_workq(ended(job), expires_ns(job)))
            for job_id in over
            if job_id in changed and isinstance(job := states[job_id], FoldedJob)
        ]

    def _remember(self, job_id: bytes, wakes_ns: int | None) -> None:
        if wakes_ns is None:
            self._delayed.pop(job_id, None)
        elif self._delayed.get(job_id) != wakes_ns:
            self._delayed[job_id] = wakes_ns
            heappush(self._wakings, (wakes_ns, job_id))

    # -- queues --

    def _pauses(self, names: frozenset[str]) -> list[Operation]:
        """What makes these queues the paused ones."""
        queues = {queue.name: queue for queue in self._storage.load_queues().queues}
        wanted = {name: queues.get(name) or queue_record(name) for name in queues.keys() | names}
        states = {name: "paused" if name in names else "active" for name in wanted}
        return [
            PutQueue(replace(queue, state=states[name]))
            for name, queue in sorted(wanted.items())
            if name not in queues or queue.state != states[name]
        ]

    # -- the store --

    def _apply(self, operations: list[Operation]) -> None:
        while self._unwritten:
            self._storage.apply(self._unwritten[:UNWRITTEN_AT_ONCE])
            del self._unwritten[:UNWRITTEN_AT_ONCE]
        self._storage.apply(operations)

    def _keep_longest_ttl(self, records: Sequence[Record]) -> None:
        """Before the jobs themselves: it may be too long, never too short."""
        longest_ms = max((r.ttl_ms for r in records if isinstance(r, JobAdded)), default=0)
        if longest_ms > self._longest_ttl_ms:
            self._storage.backend.put(LONGEST_TTL_KEY, longest_ms.to_bytes(8))
            self._longest_ttl_ms = longest_ms


def _job_of(record: JobRecord) -> FoldedJob | None:
    try:
        return workq_of_record(record, Defaults())
    except errors.InvalidData:
        return None  # reported when it was loaded; `storage check` names it


def _is_finished(state: State) -> bool:
    return isinstance(state, FoldedJob) and state.state in _FINISHED


PAGE: Final = 1000
UNFINISHED: Final = ("new", "waiting", "delayed", "active")
_FINISHED_STATUSES: Final = ("completed", "failed")
_DEFAULTS: Final = Defaults()
_MAX_U64: Final = 2**64 - 1
_END_OF_TIME_MS: Final = 253_402_300_800_000  # the year 10000

Report = Callable[[str, str], None]  # a key that is text, and why its record was stepped over


@dataclass(slots=True)
class LoadedStore:
    queue: WorkqEngine
    delayed: list[tuple[int, bytes]] = field(default_factory=list)  # for StoreRecorder
    unreadable: int = 0
    ended: int = 0  # whose TTL was over
    longest_ttl_ms: int = 0  # what LONGEST_TTL_KEY says now
    unwritten: list[Operation] = field(default_factory=list)  # for StoreRecorder: no room for them
    full: errors.StorageFull | None = None  # the store takes no changes now


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
        self._assembly = JobAssembly(now_ns, paused, seed)
        self._loaded = LoadedStore(WorkqEngine())
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
        except errors.StorageFull as error:
            self._loaded.full = error
            self._loaded.longest_ttl_ms = self._longest_ttl_ms()  # what it says still holds

    def _finished(self) -> Iterator[Iterable[JobRecord]]:
        """Those whose TTL may not be over."""
        known = self._assembly.jobs
        begin_ms = self._now_ns // NS_PER_MS - self._longest_ttl_ms()
        after = QueueTimeKey(begin_ms - 1, "-", UUID(int=0))  # all of that millisecond are over
        while keys := self._storage.jobs_due_before(_END_OF_TIME_MS, limit=PAGE, after=after):
            after = keys[-1]
            uuids = [key.job_uuid for key in keys if known.get(key.job_uuid.bytes) is None]
            records, unreadable = self._storage.get_jobs(uuids)
            _tell(unreadable, self._unreadable)
            yield [record for record in records if record.status in _FINISHED_STATUSES]

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
                raise errors.InvalidData("a TTL below zero", 0)
            use(record, job, timed_out_ns)
        except errors.InvalidData as error:
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
        except errors.StorageFull as error:
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
