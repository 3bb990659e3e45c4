"""The work queue keeps its jobs in the store (workq.persistence = "storage").

    start          jobs that wait, are leased or dead are loaded from the store of the process,
                   before any port opens; completed ones stay there (completed.py)
    every second   delayed jobs that are due become waiting ones   \\  between two batches, in the
    every minute   finished jobs leave when their retention ends   /   writer's thread, in steps

Neither failure is final: it is reported, and the step is done the next time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from journeyman.config import Settings
from journeyman.engines.workq.extensions import FAMILIES
from journeyman.engines.workq.messages import WorkqStats
from journeyman.errors import (
    InvalidData,
    JourneymanError,
)
from journeyman.folds.keyspace import Defaults, workq_of_record
from journeyman.folds.ledger import key_of
from journeyman.folds.workq import FoldedJob, expires_ns
from journeyman.formats.keyspace.keys import QueueTimeKey
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.servers.core.store import UnreadableTold
from journeyman.servers.core.upkeep import delay_to_second
from journeyman.servers.workq.completed import CompletedJobs
from journeyman.servers.workq.persistence import PersistenceContext, extensions_of, tell_loaded
from journeyman.servers.workq.store import Look, StoreRecorder
from journeyman.servers.workq.store_loading import load_store
from journeyman.servers.workq.writer import WorkqWriter
from journeyman.storage import OperationOutcome, RemoveJob, Storage
from journeyman.storage.folded import FoldedRecords, folded_ledger
from journeyman.storage.folded import Report as FoldedReport
from journeyman.units import NS_PER_MS

PROMOTE_S: Final = 1.0
SWEEP_S: Final = 60.0
SWEPT_AT_ONCE: Final = 500


class StoreKeeping:
    """The store: read when this is made."""

    what = "the store"

    def __init__(self, settings: Settings, around: PersistenceContext) -> None:
        assert around.store is not None
        self._around = around
        self._upkeep: StoreUpkeep | None = None
        self.storage = around.store
        told = UnreadableTold(around.messages)
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
            self._around.messages.warn("the store cannot be written: due jobs", reason=error)
            return
        if has_more:
            self._later(self._writer.run_between, self._promote)

    def _sweep_step(self) -> None:
        try:
            swept = self._retention.step(self._around.clock.now_ns())
        except JourneymanError as error:
            self._around.messages.warn("finished jobs could not be removed", reason=error)
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
