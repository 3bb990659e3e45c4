"""The work queue that keeps its jobs in the store, against the plain model and against the fold.

The machine of test_workq_engine, with a store beside the log: every batch that is committed goes
into both, and a crash loads from the store alone. What is answered and shown must be the same, and
the store must hold exactly the jobs that are there, under the right status, with nothing out of
place; and beyond them the finished ones whose TTL is over, until their retention is.

Before a command that is not in a batch all completed jobs leave memory but those that it names; to
be looked at, all come back. So the store alone knows them in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from journeyman.engines.workq.engine import Decidable
from journeyman.engines.workq.job import COMPLETED, opened
from journeyman.engines.workq.messages import PauseChanged, WorkqOutcome
from journeyman.folds import workq as fold
from journeyman.folds.keyspace import (
    Defaults,
    wakes_ns_of,
    workq_and_timeout,
    workq_of_record,
)
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.workq import Record
from journeyman.protocols.workq.commands import InspectJob
from journeyman.servers.workq.store import CompletedJobs, StoreRecorder
from journeyman.servers.workq.store_persistence import Retention, load_store
from journeyman.storage import Storage
from journeyman.storage.checking import check
from tests.support.effort import cases
from tests.support.workq_machine import IDS, START_NS, WorkQueueMachine
from tests.support.workq_views import folded_facts, jobs_of

RETENTION_MS = 30
STATUSES = {0: "waiting", 1: "completed", 2: "failed", 3: "waiting", 4: "active"}


class StoreMachine(WorkQueueMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = Storage.open("memory", "")
        self.paused: frozenset[str] | None = None  # by the open batch
        self._begin((), 0)

    def _begin(self, delayed: Iterable[tuple[int, bytes]], longest_life_ms: int) -> None:
        self.journal = StoreRecorder(
            self.storage, self.queue.job, delayed, longest_life_ms=longest_life_ms
        )
        self.completed = CompletedJobs(self.storage, self.queue)
        self.storage.keep_totals()
        self.retention = Retention(self.storage, self.queue.job, retention_ms=RETENTION_MS)

    def decide(self, command: Decidable, client: int = 0) -> WorkqOutcome:
        if self.batch is None:
            self._put_away()
            self._bring(command)
        outcome = super().decide(command, client)
        if any(type(each) is PauseChanged for each in outcome.effects):
            self.paused = self.queue.paused
        if self.batch is None:
            self._write(list(outcome.records))
            self._bring(*map(InspectJob, IDS))
        return outcome

    def _put_away(self) -> None:
        for _ in range(2):
            assert self.completed.prepare(()) is None
        assert COMPLETED not in {opened(entry)[1] for _, entry in self.queue._state.jobs}

    def _bring(self, *commands: Decidable) -> None:
        read = self.completed.prepare(commands)
        if read is not None:
            read()
            self.completed.bring(self.now_ns)

    @precondition(lambda self: self.batch is not None)
    @rule()
    def commit(self) -> None:
        assert self.batch is not None
        self._write(self.batch)
        super().commit()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def undo(self) -> None:
        self.paused = None
        super().undo()

    def _write(self, records: list[Record]) -> None:
        self.journal.write(records, self.paused)
        self.completed.note(records)
        self.paused = None

    @rule()
    def crash(self) -> None:
        self.paused = None
        super().crash()
        loaded = load_store(self.storage, now_ns=self.now_ns, seed=0, report=self._never)
        by_log, self.queue = self.queue, loaded.queue
        self._begin(loaded.delayed, loaded.longest_life_ms)
        self._bring(*map(InspectJob, IDS))
        assert jobs_of(self.queue) == jobs_of(by_log)
        names = {each.queue for each in self.storage.queue_status_counts()}
        self.model.names = names | {each.name for each in self.storage.load_queues().queues}

    def _never(self, key: str, reason: str) -> None:
        raise AssertionError((key, reason))

    # -- upkeep --

    @precondition(lambda self: self.batch is None)
    @rule()
    def promote(self) -> None:
        assert not self.journal.promote(self.now_ns)
        for record in self._records().values():
            if record.status == "delayed":
                wakes_ns = wakes_ns_of(*workq_and_timeout(record, Defaults()))
                assert wakes_ns is not None
                assert wakes_ns > self.now_ns

    @precondition(lambda self: self.batch is None)
    @rule()
    def sweep(self) -> None:
        before = self._records()
        swept = self.retention.step(self.now_ns)
        after = self._records()
        gone = before.keys() - after.keys()
        assert swept.removed == len(gone)
        assert not swept.has_more
        line_ns = self.now_ns - RETENTION_MS * 1_000_000
        for job_id, record in before.items():
            job = workq_of_record(record, Defaults())
            is_over = (
                job.finished is not None
                and job.finished.unix_ns <= line_ns
                and fold.expires_ns(job) <= self.now_ns
                and self.queue.job(job_id) is None
            )
            assert (job_id in gone) == is_over

    # -- what holds at all times --

    def _records(self) -> dict[bytes, JobRecord]:
        records = list(self.storage.all_jobs())
        assert all(isinstance(record, JobRecord) for record in records)
        return {
            record.job_uuid.bytes: record for record in records if isinstance(record, JobRecord)
        }

    @invariant()
    def the_store_is_whole(self) -> None:
        with self.storage.backend.view() as view:
            assert list(check(view)) == []

    @invariant()
    def the_store_holds_what_is_there(self) -> None:
        if self.batch is not None:
            return
        records = self._records()
        live = jobs_of(self.queue)
        kept = {job_id: workq_of_record(record, Defaults()) for job_id, record in records.items()}
        assert {job_id: folded_facts(kept[job_id]) for job_id in live} == live
        for job_id in kept.keys() - live.keys():
            assert kept[job_id].finished is not None  # history
        counts = Counter((record.queue, record.status) for record in records.values())
        found = {
            (each.queue, each.status): each.count for each in self.storage.queue_status_counts()
        }
        assert found == dict(counts)
        for status in (*STATUSES.values(), "delayed"):
            kinds = [count for (_, each), count in found.items() if each == status]
            assert self.storage.total(status) == sum(kinds)
        for job_id in live:
            record = records[job_id]
            expected = STATUSES[int(kept[job_id].state)]
            assert record.status == expected or (expected, record.status) == ("waiting", "delayed")
            assert record.job_uuid == UUID(bytes=job_id)
            assert record.created_at_ns >= START_NS


TestWorkQueueInStore = StoreMachine.TestCase
TestWorkQueueInStore.settings = settings(
    max_examples=cases(30), stateful_step_count=50, deadline=None
)
