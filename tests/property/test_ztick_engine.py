"""The schedule against a plain model: any commands, in any batches, with undo and restart.

The model is what the engine would be if speed, memory and pauses did not matter: one dict of jobs,
sorted anew whenever something is due, copied whole when a batch begins. Whatever is done to both,
they must write the same records, start the same runs and show the same jobs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journeyman.engines.ztick import job_table as ztick_due
from journeyman.engines.ztick.engine import Decidable, ZtickEngine
from journeyman.engines.ztick.job_table import REMOVED, JobListing, JobRow
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.messages import (
    DONE,
    OUT_OF_SCOPE,
    JobNotFound,
    Resume,
    Resumed,
    RuleListing,
    RuleNotFound,
    RunEnded,
    RunFinished,
    ScheduledJobState,
    StartRun,
    TriggerDue,
    ZtickOutcome,
    ZtickStats,
)
from journeyman.engines.ztick.rules import RuleBook
from journeyman.folds import ztick as fold
from journeyman.formats.ztick import (
    CODEC,
    JobRemoved,
    JobSet,
    Record,
    RuleRemoved,
    RuleSet,
    Runner,
    Shell,
    Status,
)
from journeyman.protocols.ztick.commands import (
    Get,
    ListRules,
    Query,
    Remove,
    RemoveRule,
    Set,
    SetMany,
    SetRule,
)
from tests.support.effort import cases
from tests.support.loaded_engines import load_schedule

MAX_RUNS = 1
NAMES = ("a", "a.b", "a.b.c", "a.bc", "b", "b.a", "c", "ü", "")
identifiers = st.sampled_from(NAMES)
ascii_names = st.sampled_from(("a", "a.b", "b", "c"))
patterns = st.sampled_from(("", "a", "a.", "a.b", "b", "ü", "x"))
namespaces = st.sampled_from(("*", "*", "*", "a", "a.b", "b"))
times = st.integers(-3, 40) | st.sampled_from((-(2**63), 2**63 - 1))
runners = st.builds(Shell, st.sampled_from(("one", "two")))


@dataclass(slots=True)
class PlainJob:
    execution_ns: int
    status: Status
    order: int
    run_id: int = 0


@dataclass(slots=True)
class Model:
    jobs: dict[str, PlainJob] = field(default_factory=dict)
    rules: dict[str, RuleSet] = field(default_factory=dict)
    waiting: list[StartRun] = field(default_factory=list)
    running: list[StartRun] = field(default_factory=list)
    orders: int = 0
    runs: int = 0

    def set(self, identifier: str, execution_ns: int) -> None:
        self.withdraw(identifier)
        self.orders += 1
        self.jobs[identifier] = PlainJob(execution_ns, Status.PLANNED, self.orders)

    def remove(self, identifier: str) -> None:
        self.withdraw(identifier)
        del self.jobs[identifier]

    def withdraw(self, identifier: str) -> None:
        self.waiting = [run for run in self.waiting if run.identifier != identifier]

    def rule_of(self, identifier: str) -> RuleSet | None:
        fitting = [r for r in self.rules.values() if r.pattern and identifier.startswith(r.pattern)]
        return min(fitting, key=lambda r: (-len(r.pattern), r.identifier), default=None)

    def due(self, now_ns: int) -> list[JobSet]:
        planned = [(j.execution_ns, j.order, i) for i, j in self.jobs.items() if j.status == 0]
        return [self.trigger(name) for time_ns, _, name in sorted(planned) if time_ns <= now_ns]

    def trigger(self, identifier: str) -> JobSet:
        job, found = self.jobs[identifier], self.rule_of(identifier)
        job.status = Status.FAILED
        if found is not None:
            self.runs += 1
            job.status, job.run_id = Status.TRIGGERED, self.runs
            run = StartRun(self.runs, identifier, job.execution_ns, found.runner)
            self.waiting.append(run)
        return JobSet(identifier, job.execution_ns, job.status)

    def start(self) -> list[StartRun]:
        free = MAX_RUNS - len(self.running)
        started, self.waiting = self.waiting[:free], self.waiting[free:]
        self.running += started
        return started

    def finish(self, run: StartRun, success: bool) -> list[JobSet]:
        self.running.remove(run)
        job = self.jobs.get(run.identifier)
        if job is None or job.status != Status.TRIGGERED or job.run_id != run.run_id:
            return []
        job.status = Status.EXECUTED if success else Status.FAILED
        return [JobSet(run.identifier, job.execution_ns, job.status)]

    def rows(self, prefix: str, namespace: str) -> list[JobRow]:
        scope = "" if namespace == "*" else namespace
        return sorted(
            (name, job.status, job.execution_ns)
            for name, job in self.jobs.items()
            if name.startswith(prefix) and name.startswith(scope)
        )

    def stats(self) -> ZtickStats:
        statuses = [job.status for job in self.jobs.values()]
        counts = [statuses.count(status) for status in Status]
        return ZtickStats(
            len(statuses),
            counts[0],
            counts[1],
            counts[2],
            counts[3],
            len(self.rules),
            len(self.waiting),
            len(self.running),
        )


class ScheduleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        # So that few jobs are enough to meet everything that is done for many.
        self.patches.setattr(ztick_due, "SLACK", 2)
        self.patches.setattr(ztick_due, "MOVES", 2)
        self.patches.setattr(ztick_due, "SLICE_JOBS", 1)
        self.schedule = ZtickEngine(max_runs=MAX_RUNS)
        self.model = Model()
        self.log: list[Record] = []
        self.now_ns = 0
        self.saved: tuple[Model, int] | None = None  # the model and the log when the batch began
        self.listings: list[tuple[JobListing, list[JobRow], list[JobRow]]] = []
        self.listings_in_batch = 0

    def teardown(self) -> None:
        self.patches.undo()

    def decide(self, command: Decidable, namespace: str = "*") -> ZtickOutcome:
        outcome = self.schedule.decide(command, self.now_ns, namespace)
        self.log += [_decoded(record) for record in outcome.records]
        return outcome

    @initialize(runner=runners)
    def begin_with_a_rule_and_more_jobs_than_slots(self, runner: Runner) -> None:
        self.set_rule("c", "a", runner, "*")
        for name in NAMES[:4]:
            self.set(name, 0, "*")
        self.due(1, 2)

    # -- clients --

    @rule(name=identifiers, time_ns=times, namespace=namespaces)
    def set(self, name: str, time_ns: int, namespace: str) -> None:
        outcome = self.decide(Set(b"", name, time_ns), namespace)
        if covers(namespace, name):
            self.model.set(name, time_ns)
            assert outcome == ((JobSet(name, time_ns, Status.PLANNED),), DONE, ())
        else:
            assert outcome == ((), OUT_OF_SCOPE, ())

    @rule(rows=st.lists(st.tuples(ascii_names, st.integers(0, 40)), min_size=2, max_size=6))
    def set_many(self, rows: list[tuple[str, int]]) -> None:
        many = SetMany([(b"r", name.encode(), b"%d" % time_ns) for name, time_ns in rows])
        records, reply, effects = self.decide(many)
        for name, time_ns in rows:
            self.model.set(name, time_ns)
        assert [_decoded(record) for record in records] == [
            JobSet(name, time_ns, Status.PLANNED) for name, time_ns in rows
        ]
        assert (reply, effects) == (DONE, ())

    @rule(name=identifiers, namespace=namespaces)
    def remove(self, name: str, namespace: str) -> None:
        outcome = self.decide(Remove(b"", name), namespace)
        if not covers(namespace, name):
            assert outcome == ((), OUT_OF_SCOPE, ())
        elif name in self.model.jobs:
            self.model.remove(name)
            assert outcome == ((JobRemoved(name),), DONE, ())
        else:
            assert outcome == ((), JobNotFound(name), ())

    @rule(name=identifiers, pattern=patterns, runner=runners, namespace=namespaces)
    def set_rule(self, name: str, pattern: str, runner: Runner, namespace: str) -> None:
        outcome = self.decide(SetRule(b"", name, pattern, runner), namespace)
        if covers(namespace, name) and covers(namespace, pattern):
            new = self.model.rules[name] = RuleSet(name, pattern, runner)
            assert outcome == ((new,), DONE, ())
        else:
            assert outcome == ((), OUT_OF_SCOPE, ())

    @rule(name=identifiers, namespace=namespaces)
    def remove_rule(self, name: str, namespace: str) -> None:
        outcome = self.decide(RemoveRule(b"", name), namespace)
        if not covers(namespace, name):
            assert outcome == ((), OUT_OF_SCOPE, ())
        elif self.model.rules.pop(name, None) is not None:
            assert outcome == ((RuleRemoved(name),), DONE, ())
        else:
            assert outcome == ((), RuleNotFound(name), ())

    @rule(prefix=identifiers, namespace=namespaces)
    def query(self, prefix: str, namespace: str) -> None:
        listing = self.decide(Query(b"", prefix), namespace).reply
        assert isinstance(listing, JobListing)
        self.listings.append((listing, [], self.model.rows(prefix, namespace)))
        self.listings_in_batch += 1

    @precondition(lambda self: self.listings)
    @rule(data=st.data(), slices=st.integers(1, 10))
    def read_listing(self, data: st.DataObject, slices: int) -> None:
        """A listing shows the moment of its query, however late it is read."""
        place = data.draw(st.integers(0, len(self.listings) - 1))
        listing, seen, expected = self.listings[place]
        for _ in range(slices):
            rows = next(listing, None)
            if rows is None:
                assert sorted(seen) == expected
                return
            seen += rows

    # -- time and runs --

    @rule(later_ns=st.integers(0, 15), limit=st.integers(1, 5))
    def due(self, later_ns: int, limit: int) -> None:
        self.now_ns += later_ns
        records: list[Record] = []
        effects: list[StartRun] = []
        while (next_ns := self.schedule.next_due_ns()) is not None and next_ns <= self.now_ns:
            outcome = self.decide(TriggerDue(limit))
            records += outcome.records
            effects += outcome.effects
        assert records == self.model.due(self.now_ns)
        assert effects == self.model.start()

    @precondition(lambda self: self.model.running)
    @rule(data=st.data(), success=st.booleans())
    def finish(self, data: st.DataObject, success: bool) -> None:
        run = data.draw(st.sampled_from(self.model.running))
        outcome = self.decide(RunFinished(run.run_id, success))
        records = self.model.finish(run, success)
        assert list(outcome.records) == records
        assert isinstance(outcome.reply, RunEnded)
        assert outcome.reply.identifier == run.identifier
        assert outcome.reply.status == (records[0].status if records else None)
        assert list(outcome.effects) == self.model.start()
        assert self.decide(RunFinished(run.run_id, success)) == ((), None, ())

    # -- batches and restarts --

    @precondition(lambda self: self.saved is None)
    @rule()
    def begin_batch(self) -> None:
        self.schedule.begin_batch()
        self.saved = (copy.deepcopy(self.model), len(self.log))
        self.listings_in_batch = 0

    @precondition(lambda self: self.saved is not None)
    @rule()
    def commit_batch(self) -> None:
        self.schedule.commit_batch()
        self.saved = None

    @precondition(lambda self: self.saved is not None)
    @rule()
    def undo_batch(self) -> None:
        assert self.saved is not None
        self.schedule.undo_batch()
        self.model, written = self.saved
        del self.log[written:]
        del self.listings[len(self.listings) - self.listings_in_batch :]
        self.saved = None

    @precondition(lambda self: self.saved is None)
    @rule(steps=st.lists(st.sampled_from("sssrdf+-"), min_size=1, max_size=12), data=st.data())
    def do_and_undo(self, steps: list[str], data: st.DataObject) -> None:
        """A batch that was refused has left no trace, whatever was in it."""
        self.begin_batch()
        for step in steps:
            name = data.draw(identifiers)
            if step == "s":
                self.set(name, data.draw(times), "*")
            elif step == "r":
                self.remove(name, "*")
            elif step == "d":
                self.due(data.draw(st.integers(0, 5)), 2)
            elif step == "f" and self.model.running:
                self.finish(data, True)
            elif step == "+":
                self.set_rule(name, data.draw(patterns), Shell("undone"), "*")
            elif step == "-":
                self.remove_rule(name, "*")
        self.undo_batch()

    @precondition(lambda self: self.saved is None)
    @rule(rerun=st.booleans(), too_early=st.none() | identifiers)
    def restart(self, rerun: bool, too_early: str | None) -> None:
        """The process dies: all that is left is the log. A SET may come before it has resumed."""
        loader = ZtickLoader()
        for record in self.log:
            loader.add(record)
        self.schedule = loader.finish(max_runs=MAX_RUNS)
        self.listings = []
        model = self.model
        model.waiting, model.running, model.runs = [], [], 0
        cut_off = [name for name, job in model.jobs.items() if job.status is Status.TRIGGERED]
        place = {r.identifier: n for n, r in enumerate(self.log) if isinstance(r, JobSet)}
        cut_off.sort(key=lambda name: (model.jobs[name].execution_ns, place[name]))
        if too_early is not None:
            self.due(0, 2)
            self.set(too_early, 1, "*")
            cut_off = [name for name in cut_off if name != too_early]

        outcome = self.decide(Resume(rerun))
        failed = []
        for name in cut_off:
            if rerun:
                record = model.trigger(name)
            else:
                job = model.jobs[name]
                job.status = Status.FAILED
                record = JobSet(name, job.execution_ns, Status.FAILED)
            failed += [record] if record.status is Status.FAILED else []
        assert list(outcome.records) == failed
        gone = {record.identifier for record in failed}
        again = tuple(name for name in cut_off if name not in gone)
        assert outcome.reply == Resumed(again, tuple(record.identifier for record in failed))
        assert list(outcome.effects) == model.start()

    # -- at all times --

    @invariant()
    def every_job_is_as_in_the_model(self) -> None:
        for name in NAMES:
            reply = self.schedule.decide(Get(b"", name), self.now_ns).reply
            job = self.model.jobs.get(name)
            assert reply == (
                ScheduledJobState(job.status, job.execution_ns) if job else JobNotFound(name)
            )

    @invariant()
    def rules_and_counts_are_as_in_the_model(self) -> None:
        rules = self.schedule.decide(ListRules(b""), self.now_ns).reply
        assert isinstance(rules, RuleListing)
        assert {r.identifier: r for r in rules.rules} == self.model.rules
        assert len(rules.rules) == len(self.model.rules)
        assert self.schedule.stats() == self.model.stats()

    @invariant()
    def the_next_time_is_not_later_than_any_planned_job(self) -> None:
        planned = [j.execution_ns for j in self.model.jobs.values() if j.status is Status.PLANNED]
        next_ns = self.schedule.next_due_ns()
        if planned:
            assert next_ns is not None
            assert next_ns <= min(planned)

    @invariant()
    def those_that_are_due_are_counted(self) -> None:
        planned = [j.execution_ns for j in self.model.jobs.values() if j.status is Status.PLANNED]
        assert self.schedule.overdue(10) == sum(time_ns <= 10 for time_ns in planned)

    @invariant()
    def stale_jobs_do_not_pile_up_in_the_queue(self) -> None:
        assert len(self.schedule._state.jobs._due) <= 6 * len(NAMES)

    @invariant()
    def the_log_folds_to_the_jobs_and_rules(self) -> None:
        folded = fold.schedule(fold.replay(self.log))
        assert {name: (j.execution_ns, j.status) for name, j in folded.jobs.items()} == {
            name: (j.execution_ns, j.status) for name, j in self.model.jobs.items()
        }
        assert folded.rules == self.model.rules


def _decoded(record: Record | bytes) -> Record:
    """It can be written and comes back, also if it was encoded while it was decided."""
    entry = CODEC.decode(record if isinstance(record, bytes) else CODEC.encode(record), 0)
    assert entry is not None
    return entry.record


def covers(namespace: str, name: str) -> bool:
    return namespace == "*" or name.startswith(namespace)


ScheduleMachine.TestCase.settings = settings(
    max_examples=cases(80), stateful_step_count=50, deadline=None
)
TestScheduleAgainstModel = ScheduleMachine.TestCase


# -- loading --------------------------------------------------------------------------------------


records = st.one_of(
    st.builds(JobSet, identifiers, times, st.sampled_from(Status)),
    st.builds(JobRemoved, identifiers),
    st.builds(RuleSet, identifiers, patterns, runners),
    st.builds(RuleRemoved, identifiers),
)


@given(st.lists(records, max_size=40))
def test_loading_is_the_fold(log: list[Record]):
    loader = ZtickLoader()
    for record in log:
        loader.add(record)
    schedule = loader.finish()
    folded = fold.schedule(fold.replay(log))
    assert rows_of(schedule) == sorted(
        (job.identifier, job.status, job.execution_ns) for job in folded.jobs.values()
    )
    rules = schedule.decide(ListRules(b""), 0).reply
    assert isinstance(rules, RuleListing)
    assert {r.identifier: r for r in rules.rules} == folded.rules
    planned = [job for job in folded.jobs.values() if job.status is Status.PLANNED]
    due = schedule.decide(TriggerDue(), 2**63 - 1).records
    # The fold keeps the order of last records, and sorting keeps it among equal times.
    expected = sorted(planned, key=lambda job: job.execution_ns)
    assert [r.identifier for r in due] == [job.identifier for job in expected]


@given(st.lists(records, max_size=40), st.lists(st.integers(0, 40), max_size=3))
def test_columns_load_like_records(log: list[Record], cuts: list[int]):
    one = load_schedule(log)
    jobs = [r for r in log if isinstance(r, JobSet | JobRemoved)]
    loader = ZtickLoader()
    for record in log:
        if not isinstance(record, JobSet | JobRemoved):
            loader.add(record)
    edges = [0, *sorted(cuts), len(jobs)]
    for start, end in pairwise(edges):
        part = jobs[start:end]
        loader.add_jobs(
            [r.identifier for r in part],
            [r.execution_ns if isinstance(r, JobSet) else 0 for r in part],
            [int(r.status) if isinstance(r, JobSet) else REMOVED for r in part],
        )
    other = loader.finish()
    resumed = other.decide(Resume(), 0)
    assert (resumed.records, resumed.effects) == (one.records, one.effects)
    assert rows_of(other) == rows_of(one.schedule)
    assert other.stats() == one.schedule.stats()
    far_ns = 2**63 - 1
    assert other.decide(TriggerDue(), far_ns) == one.schedule.decide(TriggerDue(), far_ns)


def rows_of(schedule: ZtickEngine) -> list[JobRow]:
    listing = schedule.decide(Query(b"", ""), 0).reply
    assert isinstance(listing, JobListing)
    return sorted(row for rows in listing for row in rows)


# -- rules ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(identifiers, patterns, st.booleans()), max_size=20), identifiers)
def test_the_matching_rule_is_the_one_that_a_scan_finds(
    changes: list[tuple[str, str, bool]], job: str
):
    book = RuleBook()
    plain: dict[str, RuleSet] = {}
    for identifier, pattern, is_set in changes:
        if is_set:
            plain[identifier] = RuleSet(identifier, pattern, Shell(pattern))
            book.replace(identifier, plain[identifier])
        else:
            assert book.replace(identifier, None) == plain.pop(identifier, None)
    model = Model(rules=plain)
    assert book.match(job) == model.rule_of(job)
    assert all(book.get(identifier) == plain.get(identifier) for identifier in NAMES)
