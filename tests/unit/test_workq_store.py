"""The store as the work queue's writer sees it: what is written, what a failure means, upkeep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from journeyman.engines.workq.browsing import BrowseJobs, SortingJobs
from journeyman.errors import (
    LogClosed,
    LogFull,
    LogPoisoned,
    LogUnavailable,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from journeyman.folds.keyspace import LONGEST_LIFE_KEY, record_of_workq
from journeyman.formats.workq import Record
from journeyman.protocols.workq.commands import (
    AwaitResult,
    InspectJob,
    InspectQueue,
    InspectScheduledJobs,
)
from journeyman.protocols.workq.replies import NOT_FOUND, Finished, JobList
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq import store
from journeyman.servers.workq import store as completed_jobs_module
from journeyman.servers.workq import store_persistence as workq_retention
from journeyman.servers.workq.persistence import PersistenceContext
from journeyman.servers.workq.store import (
    CompletedJobs,
    StoreRecorder,
    completed_jobs,
    merged,
    shows_completed,
)
from journeyman.servers.workq.store_persistence import (
    PROMOTE_S,
    SWEEP_S,
    LoadedStore,
    Retention,
    StoreUpkeep,
    Swept,
    load_store,
)
from journeyman.storage import Storage
from journeyman.storage.memory import MemoryBackend
from journeyman.testing import ManualClock
from journeyman.units import DAY_MS
from tests.support.workq_engine import MS, Story, job_id


class FailingBackend(MemoryBackend):
    """Fails to commit as long as it has a failure."""

    failure: StorageError | None = None

    @contextmanager
    def turn(self) -> Any:
        with super().turn() as turn:
            if self.failure is not None:
                raise self.failure
            yield turn


class Kept(Story):
    """A story whose records go into a store."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = FailingBackend()
        self.storage = Storage(self.backend, "memory")
        self.journal = StoreRecorder(self.storage, self.queue.job)
        self.written = 0

    def write(self, paused: set[str] | None = None) -> None:
        """What was decided since the last write is a batch."""
        records: list[Record] = self.log[self.written :]
        self.journal.write(records, paused)
        self.written = len(self.log)

    def status(self, number: int) -> str | None:
        record = self.storage.get_job(UUID(bytes=job_id(number)))
        return None if record is None else record.status

    def load(self, report: Callable[[str, str], None] | None = None) -> LoadedStore:
        def never(key: str, reason: str) -> None:
            raise AssertionError((key, reason))

        return load_store(self.storage, now_ns=self.now_ns, seed=0, report=report or never)


@pytest.fixture
def kept() -> Kept:
    return Kept()


# -- batches --------------------------------------------------------------------------------------


def test_statuses_follow_the_life_of_a_job(kept: Kept):
    kept.add(1, max_fails=2)
    kept.schedule(2, in_ms=50)
    kept.write()
    found = [(kept.status(1), kept.status(2))]
    kept.lease()
    kept.write()
    found.append((kept.status(1), kept.status(2)))
    kept.fail(1)
    kept.write()
    found.append((kept.status(1), kept.status(2)))
    kept.complete(1)
    kept.delete(2)
    kept.write()
    found.append((kept.status(1), kept.status(2)))
    assert found == [
        ("waiting", "delayed"),
        ("active", "delayed"),
        ("waiting", "delayed"),
        ("completed", None),
    ]


def test_a_whole_life_in_one_batch_is_its_end(kept: Kept):
    kept.add(1, ttl_ms=10)
    kept.complete(1, b"done")
    kept.add(2, ttl_ms=10)
    kept.add(3)
    kept.delete(3)
    kept.add(4)
    kept.fail(4)
    kept.requeue(4)
    kept.later(20)
    kept.write()
    assert [kept.status(n) for n in (1, 2, 3, 4)] == ["completed", "failed", None, "waiting"]
    record = kept.storage.get_job(UUID(bytes=job_id(1)))
    assert record is not None
    assert '"result":"ZG9uZQ=="' in record.extra[0][1]


def test_pauses_are_states_of_queues_and_leave_others_as_they_are(kept: Kept):
    kept.write({"a", "b"})
    kept.write({"b"})
    assert {q.name: q.state for q in kept.storage.load_queues().queues} == {
        "a": "active",
        "b": "paused",
    }
    kept.storage.backend.put(b"v1:q:broken", b"{")
    told: list[tuple[str, str]] = []
    loaded = kept.load(lambda key, reason: told.append((key, reason)))
    assert loaded.queue.paused == {"b"}
    assert [key for key, _ in told] == ["v1:q:broken"]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (StorageFull, LogFull),
        (StorageUnavailable, LogUnavailable),
        (StorageError, LogPoisoned),
    ],
)
def test_only_what_surely_changed_nothing_can_be_waited_for(
    kept: Kept, failure: type[StorageError], error: type[Exception]
):
    kept.add(1)
    kept.backend.failure = failure("somewhere", "why")
    with pytest.raises(error, match=r"somewhere: why"):
        kept.write({"q"})
    kept.backend.failure = None
    assert kept.storage.load_queues().queues == ()
    assert kept.status(1) is None
    kept.write()
    assert kept.status(1) == "waiting"


def test_start_on_a_full_disk_leaves_its_changes_for_later(kept: Kept):
    kept.add(1, ttl_ms=10)
    kept.schedule(2, in_ms=10)
    kept.add(3, ttl_ms=5 * DAY_MS)
    kept.write()
    kept.now_ns += 20 * MS
    kept.backend.failure = StorageFull("somewhere", "why")
    loaded = kept.load()
    assert loaded.full is kept.backend.failure
    assert loaded.longest_life_ms == 5 * DAY_MS + 1
    assert (kept.status(1), kept.status(2)) == ("waiting", "delayed")
    journal = StoreRecorder(kept.storage, loaded.queue.job, unwritten=loaded.unwritten)
    with pytest.raises(LogFull):
        journal.write([], {"q"})
    kept.backend.failure = None
    journal.write([], {"q"})
    assert (kept.status(1), kept.status(2)) == ("failed", "waiting")


def test_store_that_was_closed(kept: Kept):
    kept.add(1)
    kept.storage.close()
    with pytest.raises(LogClosed):
        kept.write()


# -- loading --------------------------------------------------------------------------------------


def test_record_that_is_no_job_is_told_and_stepped_over(kept: Kept):
    numbers = (1, 2, 3, 4, 5, 6)
    for number in numbers[:5]:
        kept.add(number)
    kept.add(6, max_fails=2, retry_delay_ms=50)
    kept.fail(6)
    kept.write()
    for number, good, value in (
        (1, b'"ttl_ms":86400000', b'"ttl_ms":-5'),
        (2, b'"ttl_ms":86400000', b'"ttl_ms":"x"'),
        (3, b'"queue_name":"q"', b'"queue_name":"ghost"'),
        (3, b'"ttr_ms":1000', b'"ttr_ms":-1'),
        (4, b'"ttr_ms":1000', b'"ttr_ms":99999999999999999999999'),
        (6, b'"timed_out_ns":', b'"timed_out_ns":99999999999999999'),
    ):
        key = f"v1:j:{UUID(bytes=job_id(number))}".encode()
        raw = kept.backend.get(key)
        assert raw is not None
        assert good in raw
        kept.backend.put(key, raw.replace(good, value))
    kept.backend.put(f"v1:j:{UUID(bytes=job_id(5))}".encode(), b"\xff")
    told: list[str] = []
    loaded = kept.load(lambda key, _: told.append(key))
    assert sorted(told) == [f"v1:j:{UUID(bytes=job_id(number))}" for number in numbers]
    assert loaded.unreadable == 6
    assert loaded.queue.decide(InspectQueue("ghost"), kept.now_ns).reply == NOT_FOUND
    assert loaded.queue.decide(InspectScheduledJobs("q", 0, 9), kept.now_ns).reply == JobList(())
    assert sum(loaded.queue.stats()[:5]) == 0


def test_completed_jobs_stay_in_the_store_until_they_are_named(kept: Kept):
    kept.add(1, ttl_ms=20)
    kept.complete(1)
    kept.add(2, ttl_ms=30 * DAY_MS)
    kept.complete(2, b"done")
    kept.write()
    kept.now_ns += DAY_MS * MS
    queue = kept.load().queue
    assert sum(queue.stats()[:5]) == 0
    completed = CompletedJobs(kept.storage, queue)
    named = [AwaitResult(job_id(number), 0) for number in (1, 2, 3)]
    read = completed.prepare(named)
    assert read is not None
    read()
    completed.bring(kept.now_ns)
    replies = [queue.decide(each, kept.now_ns).reply for each in named]
    assert replies == [NOT_FOUND, Finished(job_id(2), True, b"done"), NOT_FOUND]
    assert completed.prepare(named[1:2]) is None  # its answer has not left
    completed.prepare(())
    assert queue.job(job_id(2)) is None
    assert kept.status(1) == "completed"


def test_what_is_read_for_one_batch_is_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(completed_jobs_module, "READ_FIRST", 2)
    monkeypatch.setattr(completed_jobs_module, "READ_BYTES", 400)
    monkeypatch.setattr(completed_jobs_module, "LOOKUP_BYTES", 0)
    for number in range(9):
        kept.add(number, payload=b"four")
        kept.complete(number, b"")
    kept.write()
    completed = CompletedJobs(kept.storage, kept.load().queue)
    named = [InspectJob(job_id(number)) for number in range(9)]
    read = completed.prepare(named)
    assert read is not None
    read()
    assert [completed.is_unread(each) for each in named] == [False] * 6 + [True] * 3
    assert completed.failure is None


def test_store_that_cannot_be_read_is_a_failure_of_those_that_name_its_jobs(kept: Kept):
    kept.add(1)
    kept.complete(1)
    kept.write()
    completed = CompletedJobs(kept.storage, kept.load().queue)
    read = completed.prepare([InspectJob(job_id(1))])
    assert read is not None
    kept.storage.close()
    read()
    assert isinstance(completed.failure, StorageClosed)
    assert completed.is_unread(InspectJob(job_id(1)))
    assert not completed.is_unread(InspectJob(job_id(2)))


def browsed(ask: Callable[[BrowseJobs], Any], asked: BrowseJobs) -> list[bytes]:
    """All that is shown, page by page."""
    ids: list[bytes] = []
    for _ in range(1000):
        page = ask(asked)
        if isinstance(page, SortingJobs):
            continue
        ids += [job.job_id for job in page.jobs]
        if page.after is None:
            return ids
        asked = replace(asked, after=page.after)
    raise AssertionError("pages without end")


@pytest.mark.parametrize("queue", ["", "a", "b"])
@pytest.mark.parametrize("state", ["", "completed", "ready"])
@pytest.mark.parametrize("text", ["", "job 1", str(UUID(bytes=job_id(4)))])
def test_pages_of_jobs_are_the_same_as_if_all_were_in_memory(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, queue: str, state: str, text: str
):
    monkeypatch.setattr(completed_jobs_module, "READ_FIRST", 2)
    monkeypatch.setattr(completed_jobs_module, "LOOKED_AT_ONCE", 4)
    for number in range(20):
        kept.add(number, "ab"[number % 2], ttl_ms=10 if number == 8 else DAY_MS)
        if number % 3:
            kept.complete(number)
        if number % 5 == 4:
            kept.now_ns += MS  # the others are of one millisecond
    kept.write()
    kept.now_ns += 30 * MS
    loaded = kept.load().queue
    completed = CompletedJobs(kept.storage, loaded)
    asked = BrowseJobs(queue, state, text, limit=3)

    def ask_both(asked: BrowseJobs) -> Any:
        read = completed.prepare([asked])
        if read is not None:
            read()
            completed.bring(kept.now_ns)
        first: Any = loaded.decide(asked, kept.now_ns).reply
        if isinstance(first, SortingJobs) or not shows_completed(asked):
            return first
        return merged(first, completed_jobs(kept.storage, asked, kept.now_ns), asked.limit)

    expected = browsed(lambda asked: kept.queue.decide(asked, kept.now_ns).reply, asked)
    assert browsed(ask_both, asked) == expected
    assert len(expected) > 3 or text or state == "ready"


def test_start_looks_for_dead_jobs_back_to_the_longest_life(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    for number in range(20):
        kept.add(number, ttl_ms=1000)
        kept.fail(number)
    kept.schedule(29, in_ms=1500, ttl_ms=2000)
    kept.later(2000)
    kept.fail(29)
    kept.add(30, ttl_ms=1500)
    kept.fail(30)
    kept.write()
    looked: list[bytes] = []
    raw_jobs = kept.storage.raw_jobs_by_status

    def noted(status: str, size: int, **since: Any) -> Any:
        for page in raw_jobs(status, size, **since):
            looked.extend(each for each, _ in page)
            yield page

    monkeypatch.setattr(kept.storage, "raw_jobs_by_status", noted)
    loaded = kept.load()
    assert 3500 <= loaded.longest_life_ms <= 3502
    assert {number for number in range(31) if loaded.queue.job(job_id(number))} == {29, 30}
    kept.now_ns += 1600 * MS
    kept.load()
    looked.clear()
    assert kept.load().queue.job(job_id(29)) is None
    assert looked == []
    kept.backend.delete(LONGEST_LIFE_KEY)  # as an import does
    kept.load()
    assert len(looked) == 22


# -- delays and retention -------------------------------------------------------------------------


def test_due_jobs_become_waiting_in_steps(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "PROMOTED_AT_ONCE", 2)
    for number in range(5):
        kept.schedule(number, in_ms=10)
    kept.write()
    assert not kept.journal.has_due(kept.now_ns)
    kept.now_ns += 20 * MS
    assert kept.journal.has_due(kept.now_ns)
    more = [kept.journal.promote(kept.now_ns) for _ in range(3)]
    assert more == [True, True, False]
    assert kept.storage.count("q", "waiting") == 5
    assert not kept.journal.has_due(kept.now_ns)


def test_due_jobs_are_tried_again_when_there_was_no_room(kept: Kept):
    kept.schedule(1, in_ms=10)
    kept.write()
    kept.now_ns += 20 * MS
    kept.backend.failure = StorageFull("somewhere", "why")
    with pytest.raises(LogFull):
        kept.journal.promote(kept.now_ns)
    kept.backend.failure = None
    kept.journal.promote(kept.now_ns)
    assert kept.status(1) == "waiting"


def test_history_goes_in_steps_when_its_retention_is_over(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workq_retention, "SWEPT_AT_ONCE", 4)
    for number in range(6):
        kept.add(number, ttl_ms=1000)
        kept.complete(number)
    kept.add(10, ttl_ms=20 * DAY_MS)  # not finished
    kept.add(11, ttl_ms=20 * DAY_MS)  # finished, and still in memory
    kept.complete(11)
    kept.later(2000)
    kept.write()
    retention = Retention(kept.storage, kept.queue.job, retention_ms=7 * DAY_MS)
    assert retention.step(kept.now_ns) == Swept(0, False)
    kept.now_ns += 7 * DAY_MS * MS
    assert retention.step(kept.now_ns) == Swept(4, True)
    assert retention.step(kept.now_ns) == Swept(2, True)
    assert retention.step(kept.now_ns) == Swept(0, False)
    assert [kept.status(number) for number in (0, 5, 10, 11)] == [
        None,
        None,
        "waiting",
        "completed",
    ]


def test_record_that_is_no_job_does_not_stop_a_sweep(kept: Kept):
    kept.add(1, ttl_ms=10)
    kept.complete(1)
    found = kept.queue.job(job_id(1))
    assert found is not None
    kept.later(20)
    kept.write()
    strange = record_of_workq(found[0], kept.now_ns)
    text = strange.extra[0][1].replace('"ttl_ms":10', '"ttl_ms":"x"')
    other = UUID(bytes=job_id(2))
    kept.storage.upsert_job_record(
        type(strange)(
            other, f"q:{other}", "q", "completed", 0, 0, payload="1", extra=(("workq", text),)
        )
    )
    retention = Retention(kept.storage, kept.queue.job, retention_ms=0)
    assert retention.step(kept.now_ns) == Swept(1, False)
    assert [kept.status(number) for number in (1, 2)] == [None, "completed"]


# -- upkeep ---------------------------------------------------------------------------------------


class Loop:
    """Timers that ring when told to; the writer's errands are run at once."""

    def __init__(self) -> None:
        self.timers: dict[float, Callable[[], None]] = {}

    def call_later(self, after_s: float, call: Callable[[], None]) -> Any:
        self.timers[after_s] = call
        return self

    def time(self) -> float:
        return 0.0  # a whole second

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)

    def cancel(self) -> None:
        self.timers.clear()

    def run_between(self, errand: Callable[[], None]) -> None:
        errand()


class Tended(Kept):
    """With its upkeep; time is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.went_well, self.lines = Loop(), cast(list[bool], []), cast(list[str], [])
        self.clock = ManualClock(self.now_ns)
        around = PersistenceContext(
            cast(Any, None), self.clock, ServerLog(self.clock, self.lines.append)
        )
        retention = Retention(self.storage, self.queue.job, retention_ms=0)
        writer = cast(Any, self.loop)
        self.upkeep = StoreUpkeep(
            cast(Any, self.loop),
            writer,
            around,
            self.journal,
            retention,
            cleaned=self.went_well.append,
        )

    def ring(self, after_s: float) -> None:
        self.clock.step_wall(self.now_ns - self.clock.now_ns())
        self.loop.timers.pop(after_s)()
        assert after_s in self.loop.timers  # it comes again


def test_upkeep_promotes_and_sweeps_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "PROMOTED_AT_ONCE", 2)
    monkeypatch.setattr(workq_retention, "SWEPT_AT_ONCE", 2)
    tended = Tended()
    for number in range(5):
        tended.schedule(number, in_ms=10)
    for number in range(5, 10):
        tended.add(number, ttl_ms=10)
        tended.complete(number)
    tended.write()
    tended.ring(PROMOTE_S)
    tended.ring(SWEEP_S)
    assert (tended.storage.count("q", "delayed"), tended.storage.count("q", "completed")) == (5, 5)
    tended.later(20)
    tended.write()
    tended.ring(PROMOTE_S)
    tended.ring(SWEEP_S)
    assert (tended.storage.count("q", "waiting"), tended.storage.count("q", "completed")) == (5, 0)
    assert tended.went_well == [True, True]
    assert any("jobs=5" in line for line in tended.lines)
    tended.upkeep.stop()
    assert tended.loop.timers == {}


def test_upkeep_that_fails_is_told_and_tried_again():
    tended = Tended()
    tended.schedule(1, in_ms=10)
    tended.add(2, ttl_ms=10)
    tended.complete(2)
    tended.write()
    tended.later(20)
    tended.write()
    tended.backend.failure = StorageError("somewhere", "IO error")
    tended.ring(PROMOTE_S)
    tended.ring(SWEEP_S)
    assert (tended.status(1), tended.status(2)) == ("delayed", "completed")
    assert tended.went_well == [False]
    assert sum("IO error" in line for line in tended.lines) == 2
    tended.backend.failure = None
    tended.ring(PROMOTE_S)
    tended.ring(SWEEP_S)
    assert (tended.status(1), tended.status(2)) == ("waiting", None)
