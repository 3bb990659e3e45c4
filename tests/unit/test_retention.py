"""Jobs that ended long ago are removed, gently, and a busy schedule does not grow."""

from __future__ import annotations

import asyncio

import pytest

from journeyman.engines.ztick import job_table
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.job_table import ZtickJobTable
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.messages import RemoveEnded, RunFinished, TriggerDue
from journeyman.formats.ztick import JobRemoved, JobSet, Record, Shell, Status
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.ztick.commands import Remove, Set, SetRule
from journeyman.servers.ztick import persistence
from journeyman.servers.ztick.persistence import RetentionWatch
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

DAY_NS = 86_400 * 10**9
START_NS = 1_800_000_000 * 10**9


class Schedule:
    """An engine with a rule for everything, whose runs end at once."""

    def __init__(self, engine: ZtickEngine | None = None) -> None:
        self.engine = engine or ZtickEngine(ZtickJobTable(retained=True))
        self.records: list[Record] = []
        self.now_ns = START_NS
        self.decide(SetRule(b"1", "all", "", Shell("true")))

    def decide(self, command: object, *, undo: bool = False) -> None:
        self.engine.begin_batch()
        outcome = self.engine.decide(command, self.now_ns)  # type: ignore[arg-type]
        if undo:
            self.engine.undo_batch()
            return
        self.engine.commit_batch()
        self.records += outcome.records
        for run in outcome.effects:
            self.decide(RunFinished(run.run_id, success=True))

    def run(self, name: str, execution_ns: int | None = None) -> None:
        """Set a job, and have it run now."""
        self.decide(Set(b"1", name, self.now_ns if execution_ns is None else execution_ns))
        self.decide(TriggerDue())

    def sweep(self, days: float, limit: int = 1000, *, undo: bool = False) -> None:
        self.decide(RemoveEnded(self.now_ns - int(days * DAY_NS), limit), undo=undo)

    @property
    def names(self) -> set[str]:
        return {name for rows in self.engine._state.jobs.listing("") for name, *_ in rows}

    @property
    def waiting(self) -> int:
        assert self.engine._state.jobs.ended is not None
        return len(self.engine._state.jobs.ended)


def test_what_ended_long_ago_is_removed_by_ordinary_removals():
    schedule = Schedule()
    schedule.run("old")
    schedule.now_ns += DAY_NS
    schedule.run("young")
    schedule.decide(Set(b"1", "planned", schedule.now_ns + 5 * DAY_NS))
    schedule.now_ns += DAY_NS // 2
    schedule.sweep(1)
    assert schedule.names == {"young", "planned"}
    assert schedule.records[-1] == JobRemoved("old")
    assert schedule.engine.stats().jobs_total == 2


def test_a_planned_job_is_never_removed_however_old():
    schedule = Schedule()
    schedule.decide(Set(b"1", "late", 0))
    schedule.now_ns += 100 * DAY_NS
    schedule.sweep(1)
    assert schedule.names == {"late"}


def test_a_job_for_a_time_long_past_is_kept_from_its_end_on():
    schedule = Schedule()
    schedule.run("now", execution_ns=0)
    schedule.sweep(1)
    assert schedule.names == {"now"}
    schedule.now_ns += DAY_NS
    schedule.sweep(1)
    assert schedule.names == set()


def test_a_job_that_is_set_again_begins_anew():
    schedule = Schedule()
    schedule.run("a")
    schedule.run("b")
    schedule.now_ns += DAY_NS
    schedule.decide(Set(b"1", "a", schedule.now_ns + DAY_NS))
    schedule.decide(Remove(b"1", "b"))
    schedule.now_ns += 1
    schedule.sweep(1)
    assert schedule.names == {"a"}
    assert schedule.records.count(JobRemoved("b")) == 1


def test_a_look_removes_a_few():
    schedule = Schedule()
    for number in range(10):
        schedule.run(f"job.{number}")
    schedule.now_ns += 2 * DAY_NS
    for left in (7, 4, 1, 0):
        schedule.sweep(1, limit=3)
        assert len(schedule.names) == left


def test_removals_that_could_not_be_written_are_done_later():
    schedule = Schedule()
    for number in range(5):
        schedule.run(f"job.{number}")
    schedule.now_ns += 2 * DAY_NS
    schedule.sweep(1, limit=3, undo=True)
    assert len(schedule.names) == 5
    schedule.sweep(1)
    assert schedule.names == set()


def test_tidying_in_a_batch_that_is_taken_back_forgets_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_table, "CHUNK_JOBS", 3)
    schedule = Schedule()
    for number in range(9):
        schedule.run(f"job.{number}")
    schedule.engine.begin_batch()
    for number in range(9):  # all stale, and the queue is tidied meanwhile
        schedule.engine.decide(Set(b"1", f"job.{number}", 0), schedule.now_ns)
    for _ in range(4):
        outcome = schedule.engine.decide(TriggerDue(limit=2), schedule.now_ns)
        for run in outcome.effects:
            schedule.engine.decide(RunFinished(run.run_id, success=True), schedule.now_ns)
    schedule.engine.undo_batch()
    assert len(schedule.names) == 9
    schedule.now_ns += 2 * DAY_NS
    schedule.sweep(1)
    assert schedule.names == set()


def test_a_loaded_schedule_goes_by_planned_times_in_the_order_of_the_log():
    loader = ZtickLoader()
    for name, days in (("a", 3), ("b", 1), ("c", 3)):
        loader.add(JobSet(name, START_NS - days * DAY_NS, Status.EXECUTED))
    loader.add(JobSet("d", START_NS - 5 * DAY_NS, Status.TRIGGERED))
    schedule = Schedule(loader.finish(retained=True))
    schedule.sweep(2)
    assert schedule.names == {"b", "c", "d"}  # c ended after b, so not before it
    schedule.now_ns += DAY_NS
    schedule.sweep(2)
    assert schedule.names == {"d"}


def test_marks_say_when_jobs_of_the_log_had_ended(monkeypatch: pytest.MonkeyPatch):
    """So a job for a time long past is kept from its end on, also through a restart."""
    monkeypatch.setattr(job_table, "CHUNK_JOBS", 2)
    loader = ZtickLoader()
    for name in "abcdef":
        loader.add(JobSet(name, 0, Status.EXECUTED))
    schedule = Schedule(loader.finish(retained=True))
    marks = {"b": START_NS - 3 * DAY_NS, "d": START_NS - DAY_NS, "gone": START_NS}
    schedule.engine.bound_ended(marks, START_NS)
    schedule.sweep(2)
    assert schedule.names == set("cdef")
    schedule.now_ns += DAY_NS
    schedule.sweep(2)
    assert schedule.names == {"e", "f"}  # after the last mark: they had ended by the start
    schedule.now_ns += DAY_NS
    schedule.sweep(2)
    assert schedule.names == set()


def test_the_job_that_ended_last_is_marked():
    schedule = Schedule()
    assert schedule.engine.last_ended() is None
    schedule.run("a")
    schedule.run("b")
    assert schedule.engine.last_ended() == "b"
    schedule.decide(Remove(b"1", "b"))
    assert schedule.engine.last_ended() is None


def test_without_retention_nothing_is_removed_or_remembered():
    schedule = Schedule(ZtickEngine())
    schedule.run("a")
    schedule.now_ns += 1000 * DAY_NS
    schedule.sweep(1)
    assert schedule.names == {"a"}
    assert schedule.engine.first_ended_ns() is None


def test_a_job_that_runs_again_and_again_leaves_little_behind():
    schedule = Schedule()
    for _ in range(6000):
        schedule.run("again")
    assert schedule.waiting <= 2 * job_table.CHUNK_JOBS


def test_a_busy_schedule_does_not_grow():
    """A million jobs a day by the same arithmetic: what stays is what ran within the retention."""
    per_day, days, step_ns = 600, 6, DAY_NS // 600
    disk, clock = SimulatedDisk(), ManualClock(START_NS)
    schedule = Schedule()
    sizes = []
    with ZtickLog.open(disk, clock, "schedule.log") as log:
        for day in range(days):
            for number in range(per_day):
                schedule.now_ns += step_ns
                schedule.run(f"job.{day}.{number}")
                schedule.sweep(1, limit=5)
                log.append(schedule.records)
                schedule.records.clear()
            log.compact()
            sizes.append((schedule.engine.stats().jobs_total, disk.size("schedule.log.compressed")))
    assert all(total <= per_day + 1 for total, _ in sizes)
    assert sizes[-1][1] <= sizes[1][1] * 1.01
    assert schedule.waiting <= 3 * per_day


def test_the_watch_asks_for_a_few_removals_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(persistence, "RETENTION_LOOK_S", 0.001)

    async def test() -> None:
        asked: list[RemoveEnded] = []
        enough = asyncio.Event()

        def submit(command: RemoveEnded) -> None:
            asked.append(command)
            if len(asked) == 3:
                enough.set()

        clock = ManualClock(START_NS)
        ended = [START_NS - DAY_NS + 1]
        watch = RetentionWatch(
            asyncio.get_running_loop(), clock, lambda: ended[0], submit, retention_ns=DAY_NS
        )
        await asyncio.sleep(0.02)
        assert asked == []
        ended[0] = START_NS - DAY_NS
        await asyncio.wait_for(enough.wait(), 30)
        watch.stop()
        assert set(asked) == {RemoveEnded(START_NS - DAY_NS, persistence.RETENTION_JOBS)}

    asyncio.run(test())


def test_jobs_that_an_undone_batch_had_dropped_are_kept_as_long_as_before(
    monkeypatch: pytest.MonkeyPatch,
):
    """They ended at an unknown time, and a mark of the ledger says by when."""
    monkeypatch.setattr(job_table, "CHUNK_JOBS", 2)
    loaded = [b"a", b"b", b"c", b"d"]
    held = {*loaded}
    ended = job_table.EndedJobOrder(held.__contains__, lambda _: 0, loaded)
    ended.bound([(2, 100), (4, 200)], lambda job: loaded.index(job) + 1, now_ns=300)
    assert list(ended.take(150, limit=1)) == [b"a"]
    held -= {b"a", b"b", b"c", b"d"}  # all are removed in this batch
    ended.add(b"e")
    held |= {*loaded}
    ended.undo_batch()
    assert list(ended.take(99, limit=10)) == []
    assert list(ended.take(199, limit=10)) == [b"a", b"b"]
    assert list(ended.take(200, limit=2)) == [b"c", b"d"]
