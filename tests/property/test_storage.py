"""The store against a dict: any operations, listings by any way, damage, and opening it again."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from journeyman.errors import UnreadableRecord
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage import OperationOutcome, RemoveJob, SetStatus, Storage, Upsert
from journeyman.storage.checking import find_problems, rebuild
from journeyman.storage.records import job_key
from tests.support.crash.copies import copy_files
from tests.support.effort import cases

UUIDS = st.integers(0, 60).map(lambda n: UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128))
QUEUES = st.sampled_from(["a", "a:new", "ab", "ü" * 30, "0"])
STATUSES = st.sampled_from(["new", "waiting", "active", 'x"\\'])
TIMES = st.integers(-3, 3).map(lambda n: n * 400_000) | st.sampled_from([10**18, -(10**17)])
EXTRA = st.sampled_from([(), (("zz", "1"),), (("aa", '{"status":"new"}'),)])


@st.composite
def jobs(draw) -> JobRecord:
    uuid, queue = draw(UUIDS), draw(QUEUES)
    return JobRecord(
        uuid,
        f"{queue}:{uuid}",
        queue,
        draw(STATUSES),
        draw(TIMES),
        draw(TIMES),
        payload=draw(st.sampled_from(["null", '{"a":[1]}'])),
        extra=draw(EXTRA),
    )


OPERATIONS = st.one_of(
    jobs().map(Upsert),
    jobs().map(Upsert),
    st.builds(SetStatus, UUIDS, STATUSES),
    UUIDS.map(RemoveJob),
)


def order(job: JobRecord) -> tuple[int, UUID]:
    return job.created_at_ns, job.job_uuid


class StoreAgainstDict(RuleBasedStateMachine):
    engine = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.storage = Storage.open(self.engine, self.directory)
        self.model: dict[UUID, JobRecord] = {}
        self.broken: set[UUID] = set()

    def teardown(self) -> None:
        self.storage.close()
        shutil.rmtree(self.directory)

    @initialize(many=st.lists(jobs(), max_size=60))
    def begin(self, many: list[JobRecord]) -> None:
        self.apply([Upsert(job) for job in many])

    @rule(operations=st.lists(OPERATIONS, max_size=12))
    def apply(self, operations) -> None:
        expected = [self.expect(operation) for operation in operations]
        assert self.storage.apply(operations) == expected

    def expect(self, operation) -> OperationOutcome:
        if isinstance(operation, Upsert):
            self.broken.discard(operation.record.job_uuid)
            self.model[operation.record.job_uuid] = operation.record
            return OperationOutcome.DONE
        uuid = operation.job_uuid
        if uuid not in self.model and uuid not in self.broken:
            return OperationOutcome.ABSENT
        if isinstance(operation, RemoveJob):
            self.broken.discard(uuid)
            self.model.pop(uuid, None)
        elif uuid in self.broken:
            return OperationOutcome.UNREADABLE
        else:
            self.model[uuid] = replace(self.model[uuid], status=operation.status)
        return OperationOutcome.DONE

    @rule(uuid=UUIDS, raw=st.sampled_from([b"", b"{}", b"\xff", b'{"status":"new"}']))
    def damage(self, uuid: UUID, raw: bytes) -> None:
        if self.model.pop(uuid, None) is not None:
            self.broken.add(uuid)
            self.storage.backend.put(job_key(uuid), raw)
            with pytest.raises(UnreadableRecord):
                self.storage.get_job(uuid)

    @precondition(lambda self: self.broken)
    @rule(job=jobs(), is_removed=st.booleans())
    def mend(self, job: JobRecord, is_removed: bool) -> None:
        """What cannot be read is removed or written anew, and leaves nothing behind."""
        for uuid in sorted(self.broken):
            self.apply([RemoveJob(uuid) if is_removed else Upsert(replace(job, job_uuid=uuid))])
        self.everything_follows_from_the_records()

    @precondition(lambda self: not self.broken)
    @rule()
    def everything_follows_from_the_records(self) -> None:
        with self.storage.backend.view() as view:
            assert list(find_problems(view)) == []

    @rule()
    def rebuild(self) -> None:
        rebuilt = rebuild(self.storage.backend)
        assert (rebuilt.jobs, rebuilt.unreadable) == (len(self.model), len(self.broken))
        with self.storage.backend.view() as view:
            problems = list(find_problems(view))
        assert {problem.key for problem in problems} == {job_key(uuid) for uuid in self.broken}

    @rule()
    def reopen(self) -> None:
        if self.engine != "memory":
            self.storage.close()
            self.storage = Storage.open(self.engine, self.directory)

    @rule()
    def crash(self) -> None:
        """The process is gone; the files are as they are this moment."""
        if self.engine != "memory":
            after = tempfile.mkdtemp()
            copy_files(Path(self.directory), Path(after))
            self.storage.close()
            shutil.rmtree(self.directory)
            self.directory = after
            self.storage = Storage.open(self.engine, after)

    @rule(queue=QUEUES, status=STATUSES, size=st.integers(1, 7))
    def listing(self, queue: str, status: str, size: int) -> None:
        listed = [job for job in self.model.values() if (job.queue, job.status) == (queue, status)]
        listed.sort(key=order)
        by_cursor: list[JobRecord] = []
        cursor = None
        while True:
            page = self.storage.list_jobs(queue, status, size=size, after=cursor)
            by_cursor += page.jobs
            cursor = page.next_cursor
            if cursor is None:
                break
        assert by_cursor == listed
        if not self.broken:
            pages = [
                list(self.storage.list_jobs(queue, status, size=size, page=number).jobs)
                for number in range(1, len(listed) // size + 3)
            ]
            cut = [listed[at : at + size] for at in range(0, len(listed), size)]
            assert pages[: len(cut)] == cut
            assert not any(pages[len(cut) :])

    @rule(status=STATUSES, size=st.integers(1, 100))
    def listing_of_a_status(self, status: str, size: int) -> None:
        found: list[JobRecord] = []
        cursor = None
        while True:
            page = self.storage.list_jobs_by_status(status, size=size, after=cursor)
            found += page.jobs
            cursor = page.next_cursor
            if cursor is None:
                break
        assert {job.job_uuid for job in found} == {
            job.job_uuid for job in self.model.values() if job.status == status
        }
        milliseconds = [job.created_at_ns // 1_000_000 for job in found]
        assert milliseconds == sorted(milliseconds)

    @rule(before_ms=st.integers(-2, 3))
    def due(self, before_ms: int) -> None:
        due = self.storage.jobs_due_before(before_ms)
        expected = {
            uuid
            for uuid, job in self.model.items()
            if job.execution_start_ns // 1_000_000 < before_ms
        }
        assert {key.job_uuid for key in due} - self.broken == expected
        assert [k.execution_start_ms for k in due] == sorted(k.execution_start_ms for k in due)
        assert self.storage.jobs_due_before(before_ms, limit=2) == due[:2]
        for place, key in enumerate(due):
            assert self.storage.jobs_due_before(before_ms, after=key) == due[place + 1 :]

    @invariant()
    def counters_and_records(self) -> None:
        counts: dict[tuple[str, str], int] = {}
        for job in self.model.values():
            counts[job.queue, job.status] = counts.get((job.queue, job.status), 0) + 1
        if not self.broken:
            found = {(c.queue, c.status): c.count for c in self.storage.queue_status_counts()}
            assert found == counts
        for uuid, job in self.model.items():
            assert self.storage.get_job(uuid) == job


class RocksdbAgainstDict(StoreAgainstDict):
    engine = "rocksdb"


class SqliteAgainstDict(StoreAgainstDict):
    engine = "sqlite"


TestMemory = StoreAgainstDict.TestCase
TestRocksdb = RocksdbAgainstDict.TestCase
TestSqlite = SqliteAgainstDict.TestCase
TestMemory.settings = settings(max_examples=cases(40), stateful_step_count=20, deadline=None)
TestRocksdb.settings = settings(max_examples=cases(10), stateful_step_count=20, deadline=None)
TestSqlite.settings = settings(max_examples=cases(10), stateful_step_count=20, deadline=None)
