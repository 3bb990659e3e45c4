"""The store -> a WorkqEngine: the jobs that are there, not what happened to them.

    new, waiting, delayed, active   all of them. One whose TTL ended meanwhile is no longer there:
                                    its record says failed now
    failed                          those whose TTL is not over: no job was created longer ago than
                                    LONGEST_LIFE_KEY says (all are looked at if it is missing)
    completed                       none: they stay in the store until a command names one
                                    (completed.py)

What the ledger of the store says of them comes with them (engines/workq/extensions.py).

All by the index of statuses. So a start costs what waits, and what is dead; no log is read, and
what was done long ago or a minute ago costs nothing. Waiting jobs of the usual form become specs in
one step (engines/workq/stored.py), all others through the decoder and the fold.

A record that cannot be read is reported and skipped. It stays where it is. Records of other
programs are taken as well, with settings that are usual (folds.keyspace).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from journeyman import errors
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.extensions import JobOptions, LoadedExtensions
from journeyman.engines.workq.job import Spec, entry_of, moment_key
from journeyman.engines.workq.loading import JobAssembly
from journeyman.engines.workq.stored import WaitingJob, waiting_job
from journeyman.folds.keyspace import (
    LONGEST_LIFE_KEY,
    LONGEST_TTL_KEY,
    Defaults,
    record_of_workq,
    wakes_ns_of,
    workq_and_timeout,
    workq_status,
)
from journeyman.folds.workq import FoldedJob, expires_ns, visible
from journeyman.formats.keyspace.keys import JOBS
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.workq.store import ended, life_ms_of
from journeyman.storage import Operation, SetStatus, Storage, Unreadable, Upsert
from journeyman.storage.checking import in_batches
from journeyman.storage.records import job_key, key_of_id, read_job
from journeyman.units import NS_PER_MS

PAGE: Final = 1000
UNFINISHED: Final = ("new", "waiting", "delayed", "active")
_DEFAULTS: Final = Defaults()
_LONG_AGO_MS: Final = -(2**62)

Report = Callable[[str, str], None]  # a key that is text, and why its record was skipped


@dataclass(slots=True)
class LoadedStore:
    queue: WorkqEngine
    delayed: list[tuple[int, bytes]] = field(default_factory=list)  # for StoreRecorder
    unreadable: int = 0
    ended: int = 0  # whose TTL was over
    longest_life_ms: int = 0  # what LONGEST_LIFE_KEY says now
    unwritten: list[Operation] = field(default_factory=list)  # for StoreRecorder: no room for them
    full: errors.StorageFull | None = None  # the store takes no changes now


def load_store(
    storage: Storage,
    *,
    now_ns: int,
    seed: int,
    report: Report,
    extensions: LoadedExtensions | None = None,
) -> LoadedStore:
    """All that is in the store now. Jobs whose TTL ended meanwhile are brought to their end."""
    return _Loading(storage, now_ns, seed, report, extensions).run()


class _Loading:
    def __init__(
        self,
        storage: Storage,
        now_ns: int,
        seed: int,
        report: Report,
        extensions: LoadedExtensions | None,
    ) -> None:
        self._storage = storage
        self._extensions = extensions or LoadedExtensions(in_store=True)
        self._now_ns = now_ns
        self._report = report
        queues = storage.load_queues()
        paused = [queue.name for queue in queues.queues if queue.state == "paused"]
        self._assembly = JobAssembly(now_ns, paused, seed, self._extensions)
        self._loaded = LoadedStore(WorkqEngine())
        self._changes: list[Operation] = []
        self._unreadable_keys: set[str] = set()
        _tell(queues.unreadable, self._unreadable)
        names = {queue.name for queue in queues.queues}
        names |= {count.queue for count in storage.queue_status_counts()}
        for name in sorted(names):
            self._assembly.number_of(name)
        self._assembly.note_latest(storage.newest_ns("completed"))

    def run(self) -> LoadedStore:
        for status in UNFINISHED:
            for page in self._storage.raw_jobs_by_status(status, PAGE):
                self._take_page(page, self._unfinished)
                if len(self._changes) >= PAGE:
                    self._apply()
        self._apply()
        since_ms = self._since_ms()
        for page in self._storage.raw_jobs_by_status("failed", PAGE, since_ms=since_ms):
            self._take_page(page, self._put)
        self._look_for_parents()
        self._loaded.queue = self._assembly.finish()
        self._keep_longest_life()
        return self._loaded

    # -- pages --

    def _take_page(
        self,
        page: list[tuple[bytes, bytes | None]],
        use: Callable[[JobRecord, FoldedJob, int], None],
    ) -> None:
        number_of, known = self._assembly.number_of, self._assembly.jobs.get
        options_of, none = self._extensions.options.get, JobOptions()
        waiting: list[tuple[bytes, WaitingJob]] = []
        for job_id, raw in page:
            if known(job_id) is not None:  # it was given the status that is looked at now
                continue
            job = None
            if raw is not None:
                uuid_text, key = key_of_id(job_id)[len(JOBS) :], options_of(job_id, none).key
                job = waiting_job(job_id, uuid_text, raw, number_of, key)
            if job is not None and job.created_ns + job.ttl_ms * NS_PER_MS > self._now_ns:
                waiting.append((job_id, job))
            else:
                self._take(job_id, raw, use)
        if waiting:
            self._put_waiting(waiting)

    def _put_waiting(self, waiting: list[tuple[bytes, WaitingJob]]) -> None:
        """Jobs to which nothing has happened."""
        assembly, loaded = self._assembly, self._loaded
        by_queue: dict[int, list[Spec]] = {}
        expiries = []
        for job_id, (spec, number, created_ns, ttl_ms) in waiting:
            by_queue.setdefault(number, []).append(spec)
            assembly.jobs.lay(job_id, spec)
            expiries.append(moment_key(created_ns + ttl_ms * NS_PER_MS, job_id))
        for number, specs in by_queue.items():
            assembly.put_ready(number, specs)
        assembly.put_expiries(expiries)
        assembly.note_latest(max(job.created_ns for _, job in waiting))
        longest_ms = max(job.ttl_ms for _, job in waiting) + 1
        loaded.longest_life_ms = max(loaded.longest_life_ms, longest_ms)

    def _take(
        self, job_id: bytes, raw: bytes | None, use: Callable[[JobRecord, FoldedJob, int], None]
    ) -> None:
        """What cannot be a job is skipped, whatever is wrong with it."""
        uuid = UUID(bytes=job_id)
        record, key = read_job(uuid, raw), job_key(uuid).decode()
        if isinstance(record, str):
            self._unreadable(key, record)
            return
        try:
            job, timed_out_ns = workq_and_timeout(record, _DEFAULTS)
            if job.added.ttl_ms < 0:
                raise errors.InvalidData("a TTL below zero", 0)
            entry_of(job, 0, timed_out_ns)  # all numbers are in range: then a queue may be made
            use(record, job, timed_out_ns)
        except errors.InvalidData as error:
            self._unreadable(key, error.reason)
        except (struct.error, OverflowError) as error:
            self._unreadable(key, f"a number that is out of range: {error}")

    # -- jobs --

    def _unfinished(self, record: JobRecord, job: FoldedJob, timed_out_ns: int) -> None:
        if visible(job, self._now_ns) is None:
            self._loaded.ended += 1
            self._changes.append(Upsert(record_of_workq(ended(job), expires_ns(job))))
            return
        self._put(record, job, timed_out_ns)
        options = self._extensions.options.get(record.job_uuid.bytes, JobOptions())
        wakes_ns = wakes_ns_of(job, timed_out_ns, options.ready_after(timed_out_ns))
        status = workq_status(job.state, wakes_ns, self._now_ns)
        if status != record.status:
            self._changes.append(SetStatus(record.job_uuid, status))
        if status == "delayed" and wakes_ns is not None:
            self._loaded.delayed.append((wakes_ns, record.job_uuid.bytes))

    def _put(self, record: JobRecord, job: FoldedJob, timed_out_ns: int) -> None:
        del record
        if visible(job, self._now_ns) is not None:
            self._assembly.put_job(job, timed_out_ns)
            longest_ms = max(self._loaded.longest_life_ms, life_ms_of(job.added))
            self._loaded.longest_life_ms = longest_ms

    def _look_for_parents(self) -> None:
        """Parents that completed are marked in the ledger, but for those of an imported log."""
        children, ended_of = self._extensions.children, self._extensions.ended
        asked = {
            parent: None
            for job_id, child in children.items()
            for parent in (child.options.after if child.options is not None else ())
            if parent not in ended_of.get(job_id, ())
            and parent not in children
            and self._assembly.jobs.get(parent) is None
        }
        for some in in_batches(list(asked)):
            for record in self._storage.get_jobs([UUID(bytes=each) for each in some])[0]:
                if record.status == "completed":
                    self._assembly.note_completed(record.job_uuid.bytes)

    # -- the store --

    def _since_ms(self) -> int | None:
        """No failed job that was created earlier is still there; None: that is not known."""
        found = self._storage.backend.get(LONGEST_LIFE_KEY)
        if found is None or len(found) != 8:
            return None
        return max(self._now_ns // NS_PER_MS - int.from_bytes(found), _LONG_AGO_MS)

    def _keep_longest_life(self) -> None:
        loaded, backend = self._loaded, self._storage.backend
        before, after = backend.get(LONGEST_LIFE_KEY), loaded.longest_life_ms.to_bytes(8)
        if before == after:
            return
        try:
            backend.write({LONGEST_LIFE_KEY: after, LONGEST_TTL_KEY: None})
        except errors.StorageFull as error:
            loaded.full = error
            if before is not None and len(before) == 8:  # what it says still holds
                loaded.longest_life_ms = int.from_bytes(before)

    def _apply(self) -> None:
        """A full disk does not stop a start: these changes are made with the next ones."""
        changes, self._changes = self._changes, []
        try:
            self._storage.apply(changes)
        except errors.StorageFull as error:
            self._loaded.full = error
            self._loaded.unwritten += changes

    def _unreadable(self, key: str, reason: str) -> None:
        """Once, although it may stand under two statuses."""
        if key not in self._unreadable_keys:
            self._unreadable_keys.add(key)
            self._loaded.unreadable += 1
            self._report(key, reason)


def _tell(unreadable: Iterable[Unreadable], report: Report) -> None:
    for each in unreadable:
        report(each.key.decode("utf-8", "backslashreplace"), each.reason)
