"""The work queue keeps its jobs in the store (workq.persistence = "storage").

    start          jobs that wait, are leased or dead are loaded from the store of the process,
                   before any port opens; completed ones stay there (store.py)
    every second   delayed jobs that are due become waiting ones   \\  between two batches, in the
    every minute   finished jobs leave when their retention ends   /   writer's thread, in steps

Neither failure is final: it is reported, and the step is done the next time.

A start loads the jobs that are there, not what happened to them, by the index of statuses:

    new, waiting, delayed, active   all of them. One whose TTL ended meanwhile is no longer there:
                                    its record says failed now
    failed                          those whose TTL is not over: no job was created longer ago than
                                    LONGEST_LIFE_KEY says (all are looked at if it is missing)
    completed                       none: they stay in the store until a command names one

So it costs what waits, and what is dead; no log is read, and what was done long ago or a minute ago
costs nothing. Waiting jobs of the usual form become specs in one step (engines/workq/loading.py),
all others through the decoder and the fold. What the ledger of the store says of them comes with
them (engines/workq/extensions.py).

A record that cannot be read is reported and skipped. It stays where it is. Records of other
programs are taken as well, with settings that are usual (folds.keyspace).
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from journeyman import errors
from journeyman.config import Settings
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.extensions import FAMILIES, JobOptions, LoadedExtensions
from journeyman.engines.workq.job import Spec, entry_of, moment_key
from journeyman.engines.workq.loading import JobAssembly, WaitingJob, read_waiting_job
from journeyman.engines.workq.messages import WorkqStats
from journeyman.errors import (
    InvalidData,
    JourneymanError,
)
from journeyman.folds.keyspace import (
    LONGEST_LIFE_KEY,
    LONGEST_TTL_KEY,
    Defaults,
    record_of_workq,
    wakes_ns_of,
    workq_and_timeout,
    workq_of_record,
    workq_status,
)
from journeyman.folds.ledger import key_of
from journeyman.folds.workq import FoldedJob, expires_ns, visible
from journeyman.formats.keyspace.keys import JOBS, QueueTimeKey
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.servers.core.shared import delay_to_second
from journeyman.servers.core.store import UnreadableReport
from journeyman.servers.workq.persistence import PersistenceContext, extensions_of, tell_loaded
from journeyman.servers.workq.store import CompletedJobs, Look, StoreRecorder, ended, life_ms_of
from journeyman.servers.workq.writer import WorkqWriter
from journeyman.storage import (
    Operation,
    OperationOutcome,
    RemoveJob,
    SetStatus,
    Storage,
    Unreadable,
    Upsert,
)
from journeyman.storage.checking import in_batches
from journeyman.storage.folded import FoldedRecords, folded_ledger
from journeyman.storage.folded import Report as FoldedReport
from journeyman.storage.records import job_key, key_of_id, read_job
from journeyman.units import NS_PER_MS

PROMOTE_S: Final = 1.0
SWEEP_S: Final = 60.0
SWEPT_AT_ONCE: Final = 500

PAGE: Final = 1000
UNFINISHED: Final = ("new", "waiting", "delayed", "active")
_DEFAULTS: Final = Defaults()
_LONG_AGO_MS: Final = -(2**62)
Report = Callable[[str, str], None]  # a key that is text, and why its record was skipped


class StoreKeeping:
    """The store: read when this is made."""

    what = "the store"

    def __init__(self, settings: Settings, around: PersistenceContext) -> None:
        assert around.store is not None
        self._around = around
        self._upkeep: StoreUpkeep | None = None
        self.storage = around.store
        told = UnreadableReport(around.messages)
        begin_ns = around.clock.monotonic_ns()
        ledger, kept = _ledger_in(around, told.tell_key)
        loaded = load_store(
            self.storage,
            now_ns=around.clock.now_ns(),
            seed=random.getrandbits(63),
            report=told.tell,
            extensions=extensions_of(kept, around.messages, in_store=True),
        )
        told.sum_up()
        self.queue = loaded.queue
        self.completed: CompletedJobs | None = CompletedJobs(self.storage, self.queue)
        self.storage.keep_totals()
        tell_loaded(
            around,
            self.stats(),
            begin_ns,
            engine=self.storage.engine,
            store=self.storage.path,
            ended_meanwhile=loaded.ended,
        )
        if loaded.full is not None:
            around.messages.error(
                "the store cannot be written: changes are refused until it can", reason=loaded.full
            )
        self.recorder = StoreRecorder(
            self.storage,
            self.queue.job,
            loaded.delayed,
            ledger=ledger,
            longest_life_ms=loaded.longest_life_ms,
            unwritten=loaded.unwritten,
        )
        self._retention = Retention(
            self.storage, self.queue.job, retention_ms=settings.workq.retention_ms
        )

    def begin_upkeep(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: WorkqWriter,
        *,
        cleaned: Callable[[bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        del on_failure
        self._upkeep = StoreUpkeep(
            loop, writer, self._around, self.recorder, self._retention, cleaned=cleaned
        )

    def stats(self) -> WorkqStats:
        """Of completed jobs those that the store keeps, also if their TTL is over."""
        return self.queue.stats()._replace(completed=self.storage.total("completed"))

    def look(self) -> None:
        """A batch is durable when it is answered: there is nothing to sync."""

    def stop(self) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()

    def close(self) -> None:
        """The store is closed by the process."""


def _ledger_in(
    around: PersistenceContext, report: FoldedReport
) -> tuple[FoldedRecords[LedgerRecord], list[LedgerRecord]]:
    """The ledger of the store, and what it has for the work queue. It is that of the process, or
    the work queue alone has one there: then the one of the process is on the disk, or off."""
    assert around.store is not None
    shared = None if around.ledger is None else around.ledger.folded
    if around.ledger is not None and shared is not None:
        return shared, around.ledger.take_together(*FAMILIES)
    own, kept = folded_ledger(around.store), list[LedgerRecord]()

    def each(record: LedgerRecord) -> None:
        if key_of(record)[0] in FAMILIES:
            kept.append(record)

    own.load(each, report)
    return own, kept


class StoreUpkeep:
    """Both tasks, at intervals. ``cleaned`` gets whether a sweep went well."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: WorkqWriter,
        around: PersistenceContext,
        recorder: StoreRecorder,
        retention: Retention,
        *,
        cleaned: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._around = around
        self._recorder = recorder
        self._retention = retention
        self._cleaned = cleaned
        self._removed = 0
        self._promoting = loop.call_later(delay_to_second(loop, PROMOTE_S), self._look_for_due)
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        self._promoting.cancel()
        self._sweeping.cancel()

    def _look_for_due(self) -> None:
        if self._recorder.has_due(self._around.clock.now_ns()):
            self._writer.run_between(self._promote)
        delay_s = delay_to_second(self._loop, PROMOTE_S)
        self._promoting = self._loop.call_later(delay_s, self._look_for_due)

    def _sweep(self) -> None:
        self._writer.run_between(self._sweep_step)

    # -- in the writer's thread --

    def _promote(self) -> None:
        try:
            has_more = self._recorder.promote(self._around.clock.now_ns())
        except JourneymanError as error:
            self._around.messages.warn(
                "the store cannot be written: jobs that are due still count as delayed there; "
                "trying again",
                reason=error,
            )
            return
        if has_more:
            self._later(self._writer.run_between, self._promote)

    def _sweep_step(self) -> None:
        try:
            swept = self._retention.step(self._around.clock.now_ns())
        except JourneymanError as error:
            self._around.messages.warn(
                "finished jobs could not be removed from the store; trying again in a minute",
                reason=error,
            )
            self._later(self._end_sweep, False)
            return
        self._removed += swept.removed
        if swept.has_more:
            self._later(self._writer.run_between, self._sweep_step)
        else:
            self._later(self._end_sweep, True)

    def _later(self, call: Callable[..., None], *args: object) -> None:
        self._loop.call_soon_threadsafe(call, *args)

    # -- on the loop again --

    def _end_sweep(self, went_well: bool) -> None:
        removed, self._removed = self._removed, 0
        if removed:
            self._around.messages.info("finished jobs were removed from the store", jobs=removed)
        self._cleaned(went_well)
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a step came to."""

    removed: int
    has_more: bool


class Retention:
    """Removes finished jobs ``retention_ms`` after they were finished, once their TTL is over.

    the index of times, earliest first:  |--- over? remove ---|.....................|
                                                              now - retention     now

    No job is finished before its time, so one that is due later than that cannot be over. A job is
    passed and stays if it was finished later than it was due, or still has a TTL. A step looks at
    SWEPT_AT_ONCE jobs between two batches of the writer; a sweep takes as many steps as it needs,
    and starts at the first job every SWEEP_S.
    """

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
                job = read_waiting_job(job_id, uuid_text, raw, number_of, key)
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
