"""The schedule decides: one sentence, one example."""

from __future__ import annotations

import gc

import pytest

from journeyman.engines import sharded_dict
from journeyman.engines.sharded_dict import SHARDS, ShardedDict
from journeyman.engines.ztick import job_table as due
from journeyman.engines.ztick.engine import Decidable, ZtickEngine
from journeyman.engines.ztick.job_table import (
    PLANNED,
    REMOVED,
    SLICE_JOBS,
    DueQueue,
    JobListing,
    execution_ns_of,
    identifier_of,
    order_of,
    pack,
)
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.messages import (
    DONE,
    DUE_LIMIT,
    OUT_OF_SCOPE,
    Ended,
    JobNotFound,
    NotRun,
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
)
from journeyman.engines.ztick.rules import RuleBook
from journeyman.errors import SnapshotGivenUp
from journeyman.formats.ztick import (
    Http,
    JobRemoved,
    JobSet,
    Record,
    RuleRemoved,
    RuleSet,
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
    SetRule,
    Stat,
)
from tests.support.loaded_engines import load_schedule

PLAN, TRIGGERED, EXECUTED, FAILED = Status
RUN = Shell("run")
ALL_JOBS = SetRule(b"", "every", "job", RUN)
RULE = RuleSet("every", "job", RUN)


class Server:
    """A schedule with the little that a server does: time goes on, the log grows."""

    def __init__(self, schedule: ZtickEngine | None = None) -> None:
        self.schedule = schedule or ZtickEngine()
        self.now_ns = 100
        self.log: list[Record] = []

    def decide(self, command: Decidable, namespace: str = "*") -> ZtickOutcome:
        outcome = self.schedule.decide(command, self.now_ns, namespace)
        self.log += outcome.records
        return outcome

    def set(self, identifier: str, execution_ns: int) -> ZtickOutcome:
        return self.decide(Set(b"", identifier, execution_ns))

    def remove(self, identifier: str) -> ZtickOutcome:
        return self.decide(Remove(b"", identifier))

    def due(self, now_ns: int) -> ZtickOutcome:
        self.now_ns = now_ns
        return self.decide(TriggerDue())

    def state(self, identifier: str) -> tuple[Status, int] | None:
        reply = self.decide(Get(b"", identifier)).reply
        return (reply.status, reply.execution_ns) if isinstance(reply, ScheduledJobState) else None

    def query(self, prefix: str = "", namespace: str = "*") -> list[tuple[str, Status, int]]:
        listing = self.decide(Query(b"", prefix), namespace).reply
        assert isinstance(listing, JobListing)
        return sorted(row for rows in listing for row in rows)


@pytest.fixture
def server() -> Server:
    server = Server()
    server.decide(ALL_JOBS)
    server.log.clear()
    return server


def names(effects: tuple[StartRun, ...]) -> list[str]:
    return [effect.identifier for effect in effects]


# -- the life of a job ----------------------------------------------------------------------------


def test_a_set_job_is_planned(server: Server):
    outcome = server.set("job.a", 500)
    assert outcome == ((JobSet("job.a", 500, PLAN),), DONE, ())
    assert server.state("job.a") == (PLAN, 500)
    assert server.schedule.next_due_ns() == 500


def test_a_due_job_is_triggered_and_starts(server: Server):
    server.set("job.a", 500)
    assert server.due(499) == ((), DONE, ())
    outcome = server.due(500)
    assert outcome.records == (JobSet("job.a", 500, TRIGGERED),)
    assert outcome.effects == (StartRun(1, "job.a", 500, RUN),)
    assert server.schedule.next_due_ns() is None


@pytest.mark.parametrize(("success", "status"), [(True, EXECUTED), (False, FAILED)])
def test_the_end_of_a_run_is_the_end_of_the_job(server: Server, success: bool, status: Ended):
    server.set("job.a", 500)
    (effect,) = server.due(500).effects
    outcome = server.decide(RunFinished(effect.run_id, success, "exit 1"))
    assert outcome.records == (JobSet("job.a", 500, status),)
    assert outcome.reply == RunEnded("job.a", status)
    assert server.state("job.a") == (status, 500)
    assert server.due(10**18) == ((), DONE, ())


def test_a_due_job_without_a_rule_fails_at_once(server: Server):
    server.set("other", 500)
    outcome = server.due(500)
    failed = JobSet("other", 500, FAILED)
    assert outcome == ((failed,), NotRun((failed,), ()), ())
    server.decide(SetRule(b"", "late", "other", RUN))
    assert server.due(10**18) == ((), DONE, ())  # a later rule does not revive it
    server.set("other", 600)
    assert names(server.due(10**18).effects) == ["other"]


def test_a_time_in_the_past_is_due_at_once(server: Server):
    server.set("job.a", -(2**63))
    assert server.schedule.next_due_ns() == -(2**63)
    assert names(server.due(0).effects) == ["job.a"]


def test_the_last_moment_of_64_bits_can_be_planned(server: Server):
    server.set("job.a", 2**63 - 1)
    assert server.due(2**63 - 2).effects == ()
    assert names(server.due(2**63 - 1).effects) == ["job.a"]


def test_set_again_replans_a_job_that_has_ended(server: Server):
    server.set("job.a", 500)
    (effect,) = server.due(500).effects
    server.decide(RunFinished(effect.run_id, True))
    server.set("job.a", 700)
    assert server.state("job.a") == (PLAN, 700)
    assert names(server.due(700).effects) == ["job.a"]


def test_a_later_set_moves_the_time_and_the_old_time_means_nothing(server: Server):
    server.set("job.a", 500)
    server.set("job.a", 900)
    assert server.due(899).records == ()
    assert names(server.due(900).effects) == ["job.a"]
    assert server.due(10**18).records == ()


def test_a_removed_job_is_gone(server: Server):
    server.set("job.a", 500)
    assert server.remove("job.a") == ((JobRemoved("job.a"),), DONE, ())
    assert server.due(500) == ((), DONE, ())
    assert server.decide(Get(b"", "job.a")).reply == JobNotFound("job.a")
    assert server.remove("job.a") == ((), JobNotFound("job.a"), ())


# -- order ----------------------------------------------------------------------------------------


def test_due_jobs_run_in_time_order_and_equal_times_in_set_order(server: Server):
    for name, time_ns in (("job.c", 30), ("job.b", 20), ("job.z", 20), ("job.a", 20), ("job.d", 5)):
        server.set(name, time_ns)
    server.set("job.b", 20)  # its last SET counts
    assert names(server.due(30).effects) == ["job.d", "job.z", "job.a", "job.b", "job.c"]


def test_due_is_done_in_portions_and_the_rest_follows(server: Server):
    for number in range(DUE_LIMIT + 1):
        server.set(f"job.{number}", number)
    assert len(server.due(10**6).records) == DUE_LIMIT
    next_due_ns = server.schedule.next_due_ns()
    assert next_due_ns is not None
    assert next_due_ns <= 10**6
    assert len(server.due(10**6).records) == 1


def test_ten_thousand_jobs_of_the_same_second_all_run_once_and_in_order(server: Server):
    jobs = 10_000
    for number in range(jobs):
        server.set(f"job.{number}", 500)
    started: list[str] = []
    running: list[StartRun] = []
    while server.schedule.next_due_ns() is not None:
        running += server.due(500).effects
    while running:
        assert len(running) <= 64
        effect = running.pop(0)
        started.append(effect.identifier)
        running += server.decide(RunFinished(effect.run_id, True)).effects
    assert started == [f"job.{number}" for number in range(jobs)]
    assert server.schedule.stats().jobs_executed == jobs


# -- the limit of runs ----------------------------------------------------------------------------


def test_no_more_runs_than_slots_and_the_others_wait_in_order():
    server = Server(ZtickEngine(max_runs=2))
    server.decide(ALL_JOBS)
    for number in range(4):
        server.set(f"job.{number}", 500)
    outcome = server.due(500)
    assert [record.status for record in outcome.records if isinstance(record, JobSet)] == [
        TRIGGERED
    ] * 4
    assert names(outcome.effects) == ["job.0", "job.1"]
    stats = server.schedule.stats()
    assert (stats.executions_pending, stats.executions_inflight) == (2, 2)
    second = server.decide(RunFinished(2, True))
    assert names(second.effects) == ["job.2"]
    assert names(server.decide(RunFinished(1, True)).effects) == ["job.3"]


@pytest.mark.parametrize("command", [Set(b"", "job.1", 900), Remove(b"", "job.1")])
def test_a_set_or_removed_job_leaves_the_line(command: Set | Remove):
    server = Server(ZtickEngine(max_runs=1))
    server.decide(ALL_JOBS)
    for number in range(3):
        server.set(f"job.{number}", 500)
    server.due(500)
    assert server.decide(command).effects == ()
    assert server.schedule.stats().executions_pending == 1
    assert names(server.decide(RunFinished(1, True)).effects) == ["job.2"]


def test_a_set_during_the_run_wins_over_its_end(server: Server):
    server.set("job.a", 500)
    (first,) = server.due(500).effects
    server.set("job.a", 600)
    assert server.schedule.stats().executions_inflight == 1  # it still has its slot
    outcome = server.decide(RunFinished(first.run_id, True))
    assert outcome == ((), RunEnded("job.a", None), ())
    assert server.state("job.a") == (PLAN, 600)
    (second,) = server.due(600).effects
    assert second.run_id != first.run_id


def test_the_end_of_an_old_run_is_not_taken_for_that_of_the_new_one(server: Server):
    server.set("job.a", 500)
    (first,) = server.due(500).effects
    server.set("job.a", 500)
    (second,) = server.due(500).effects
    assert server.decide(RunFinished(first.run_id, False)).records == ()
    assert server.state("job.a") == (TRIGGERED, 500)
    assert server.decide(RunFinished(second.run_id, True)).records == (
        JobSet("job.a", 500, EXECUTED),
    )


def test_a_remove_during_the_run_wins_over_its_end(server: Server):
    server.set("job.a", 500)
    (effect,) = server.due(500).effects
    server.remove("job.a")
    assert server.decide(RunFinished(effect.run_id, True)).records == ()
    assert server.state("job.a") is None


def test_a_run_ends_only_once(server: Server):
    server.set("job.a", 500)
    (effect,) = server.due(500).effects
    server.decide(RunFinished(effect.run_id, True))
    assert server.decide(RunFinished(effect.run_id, False)) == ((), None, ())
    assert server.state("job.a") == (EXECUTED, 500)


# -- rules ----------------------------------------------------------------------------------------


def rule_for(job: str, *rules: tuple[str, str]) -> str | None:
    book = RuleBook()
    for identifier, pattern in rules:
        book.replace(identifier, RuleSet(identifier, pattern, RUN))
    found = book.match(job)
    return found.identifier if found else None


def test_the_longest_pattern_wins():
    rules = ("short", "backup."), ("long", "backup.db."), ("other", "backup.web.")
    assert rule_for("backup.db.daily", *rules) == "long"
    assert rule_for("backup.files", *rules) == "short"
    assert rule_for("report.daily", *rules) is None


def test_of_equal_patterns_the_smallest_rule_wins():
    assert rule_for("job", ("b", "job"), ("a", "job"), ("c", "job")) == "a"


def test_an_empty_pattern_matches_nothing():
    assert rule_for("job", ("all", "")) is None
    assert rule_for("", ("all", "")) is None


def test_a_job_shorter_than_a_pattern_does_not_match_it():
    assert rule_for("ab", ("long", "abc"), ("short", "a")) == "short"
    assert rule_for("ab", ("long", "abcd"), ("exact", "ab")) == "exact"
    assert rule_for("ab", ("long", "abcd"), ("other", "xyz")) is None


def test_patterns_are_prefixes_of_characters_not_of_bytes():
    assert rule_for("über.job", ("umlaut", "ü")) == "umlaut"


def test_a_replaced_rule_no_longer_matches_by_its_old_pattern():
    book = RuleBook()
    book.replace("r", RuleSet("r", "old", RUN))
    book.replace("r", RuleSet("r", "new", RUN))
    assert book.match("old.job") is None
    assert book.match("new.job") == RuleSet("r", "new", RUN)
    assert len(book) == 1


def test_rules_are_set_and_removed(server: Server):
    rule = RuleSet("r", "x.", Http("GET", "http://localhost/"))
    outcome = server.decide(SetRule(b"", "r", "x.", rule.runner))
    assert outcome == ((rule,), DONE, ())
    listing = server.decide(ListRules(b"")).reply
    assert isinstance(listing, RuleListing)
    assert set(listing.rules) == {rule, RuleSet("every", "job", RUN)}
    assert server.decide(RemoveRule(b"", "r")) == ((RuleRemoved("r"),), DONE, ())
    assert server.decide(RemoveRule(b"", "r")) == ((), RuleNotFound("r"), ())


def test_removing_a_rule_does_not_touch_jobs_that_it_triggered():
    server = Server(ZtickEngine(max_runs=1))
    server.decide(ALL_JOBS)
    server.set("job.a", 500)
    server.set("job.b", 500)
    server.due(500)
    server.decide(RemoveRule(b"", "every"))
    assert server.decide(RunFinished(1, True)).effects == (StartRun(2, "job.b", 500, RUN),)


def test_a_job_and_a_rule_may_bear_the_same_name(server: Server):
    server.set("every", 500)
    server.decide(RemoveRule(b"", "every"))
    assert server.state("every") == (PLAN, 500)


# -- namespaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Set(b"", "billing.x", 1),
        Get(b"", "billing.x"),
        Remove(b"", "billing.x"),
        RemoveRule(b"", "billing.x"),
        SetRule(b"", "billing.x", "deploy.", RUN),
        SetRule(b"", "deploy.x", "billing.", RUN),  # would catch the jobs of others
        SetRule(b"", "deploy.x", "dep", RUN),  # the same
        SetRule(b"", "deploy.x", "", RUN),
    ],
)
def test_commands_outside_the_namespace_change_nothing(server: Server, command: Decidable):
    server.set("billing.x", 5)
    server.decide(SetRule(b"", "billing.x", "billing.", RUN))
    before = server.schedule.stats()
    assert server.decide(command, "deploy.") == ((), OUT_OF_SCOPE, ())
    assert server.schedule.stats() == before
    assert server.state("billing.x") == (PLAN, 5)


def test_commands_inside_the_namespace_are_done(server: Server):
    assert server.decide(Set(b"", "deploy.x", 1), "deploy.").reply == DONE
    assert server.decide(Get(b"", "deploy.x"), "deploy.").reply == ScheduledJobState(PLAN, 1)
    assert server.decide(SetRule(b"", "deploy.r", "deploy.x", RUN), "deploy.").reply == DONE
    assert server.decide(RemoveRule(b"", "deploy.r"), "deploy.").reply == DONE
    assert server.decide(Remove(b"", "deploy.x"), "deploy.").reply == DONE


def test_listings_show_only_the_namespace(server: Server):
    for name in ("deploy.a", "deploy.b", "billing.a"):
        server.set(name, 5)
    server.decide(SetRule(b"", "deploy.r", "deploy.", RUN))
    assert [row[0] for row in server.query("", "deploy.")] == ["deploy.a", "deploy.b"]
    assert [row[0] for row in server.query("dep", "deploy.")] == ["deploy.a", "deploy.b"]
    assert [row[0] for row in server.query("deploy.b", "deploy.")] == ["deploy.b"]
    assert server.query("billing.", "deploy.") == []
    rules = server.decide(ListRules(b""), "deploy.").reply
    assert rules == RuleListing((RuleSet("deploy.r", "deploy.", RUN),))


def test_stat_counts_everything_whatever_the_namespace(server: Server):
    server.set("billing.a", 5)
    assert server.decide(Stat(b""), "deploy.").reply == server.schedule.stats()
    assert server.schedule.stats().jobs_total == 1


# -- listings -------------------------------------------------------------------------------------


def test_query_lists_by_prefix_with_status_and_time(server: Server):
    server.set("job.a", 500)
    server.set("job.b", 600)
    server.set("x", 700)
    server.due(500)
    assert server.query("job.") == [("job.a", TRIGGERED, 500), ("job.b", PLAN, 600)]
    assert len(server.query()) == 3
    assert server.query("none") == []


def test_a_listing_shows_the_moment_of_its_query_whatever_happens_meanwhile(server: Server):
    jobs = 3 * SLICE_JOBS
    for number in range(jobs):
        server.set(f"job.{number}", number)
    expected = server.query()
    listing = server.decide(Query(b"", "")).reply
    assert isinstance(listing, JobListing)
    rows = list(next(listing))
    for number in range(jobs):
        if number % 3 == 0:
            server.remove(f"job.{number}")
        else:
            server.set(f"job.{number}", 10**6 + number)
        server.set(f"new.{number}", 1)
    assert sorted(rows + [row for rest in listing for row in rest]) == expected


def test_a_listing_of_an_empty_schedule_does_not_see_what_comes_later(server: Server):
    listing = server.decide(Query(b"", "")).reply
    assert isinstance(listing, JobListing)
    for number in range(100):
        server.set(f"job.{number}", 5)
    assert list(listing) == []


def test_listings_come_in_slices_of_bounded_size(server: Server):
    for number in range(4 * SLICE_JOBS):
        server.set(f"job.{number}", 5)
    listing = server.decide(Query(b"", "")).reply
    assert isinstance(listing, JobListing)
    slices = list(listing)
    assert len(slices) >= 3
    assert max(map(len, slices)) < 2 * SLICE_JOBS


def test_nothing_is_kept_for_a_listing_that_was_dropped():
    jobs: ShardedDict[str, bytes] = ShardedDict()
    listing = JobListing(jobs.snapshot(), "")
    jobs.shard_to_change("a")["a"] = pack(1, 1, PLANNED, "a")
    assert len(jobs._snapshots) == 1
    del listing
    gc.collect()
    assert jobs._snapshots == []


def test_listings_that_are_not_read_keep_a_bounded_number_of_copies(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sharded_dict, "FEW_COPIED", 100)
    jobs: ShardedDict[str, bytes] = ShardedDict()
    names = [f"job.{number}" for number in range(2 * SHARDS)]

    def change_all(value: bytes) -> None:
        for name in names:
            jobs.shard_to_change(name)[name] = value

    change_all(b"0")
    unread = []
    for round_ in range(20):
        unread.append(jobs.snapshot())
        change_all(b"%d" % round_)
        copies = {id(copy): copy for each in unread for copy in each.kept.values()}
        assert sum(map(len, copies.values())) <= 2 * len(names)
    newest = unread.pop()
    assert {value for shard in newest for value in shard.values()} == {b"18"}
    with pytest.raises(SnapshotGivenUp):
        list(unread[0])


def test_a_listing_alone_is_shown_however_slowly_it_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sharded_dict, "FEW_COPIED", 0)
    jobs: ShardedDict[str, bytes] = ShardedDict()
    names = [f"job.{number}" for number in range(2 * SHARDS)]
    for name in names:
        jobs.shard_to_change(name)[name] = b""
    slow = jobs.snapshot()
    for name in names:  # then twice as many as there are is nothing
        del jobs.shard_to_change(name)[name]
    assert sum(map(len, slow)) == len(names)


# -- the queue ------------------------------------------------------------------------------------


def test_jobs_compare_as_they_are_to_run():
    times = [-(2**63), -1, 0, 1, 255, 256, 2**63 - 1]
    jobs = [pack(time_ns, order, PLANNED, "z") for time_ns in times for order in (0, 1, 300)]
    assert sorted(jobs) == jobs
    assert [(execution_ns_of(job), order_of(job)) for job in jobs[:3]] == [
        (-(2**63), 0),
        (-(2**63), 1),
        (-(2**63), 300),
    ]
    assert identifier_of(pack(-5, 7, PLANNED, "jöb")) == "jöb"


def test_stale_jobs_do_not_pile_up_in_the_queue(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(due, "SLACK", 10)
    server = Server()
    server.decide(SetRule(b"", "every", "job", RUN))
    jobs = 100
    queue: DueQueue = server.schedule._state.jobs._due
    longest = 0
    for number in range(50 * jobs):
        server.set(f"job.{number % jobs}", 10**6 - number)
        longest = max(longest, len(queue))
    assert longest <= 4 * jobs
    for number in range(jobs):
        server.remove(f"job.{number}")
    for number in range(5 * jobs):
        server.set("job.last", number)
    assert len(queue) <= 2 * jobs
    assert names(server.due(10**18).effects) == ["job.last"]


def test_jobs_are_found_while_the_queue_is_being_tidied(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(due, "SLACK", 0)
    monkeypatch.setattr(due, "MOVES", 1)
    server = Server(ZtickEngine(max_runs=1000))
    server.decide(ALL_JOBS)
    for number in range(50):
        server.set(f"job.{number:02}", number)
    for _ in range(2):
        for number in range(10, 40):
            server.set(f"job.{number:02}", number)
    queue: DueQueue = server.schedule._state.jobs._due
    assert queue._leaving
    assert queue._coming
    assert names(server.due(50).effects) == [f"job.{number:02}" for number in range(50)]


def test_the_next_time_is_never_later_than_the_next_job(server: Server):
    server.set("job.a", 500)
    server.set("job.b", 900)
    server.remove("job.a")
    first = server.schedule.next_due_ns()
    assert first is not None
    assert first <= 900
    server.due(899)
    assert server.schedule.next_due_ns() == 900


# -- batches --------------------------------------------------------------------------------------


def test_an_undone_batch_has_never_been():
    server = Server(ZtickEngine(max_runs=1))
    server.decide(ALL_JOBS)
    for name, time_ns in (("job.run", 10), ("job.wait", 20), ("job.plan", 900)):
        server.set(name, time_ns)
    server.due(20)
    before = (server.query(), server.schedule.stats(), server.schedule.next_due_ns())

    server.schedule.begin_batch()
    server.decide(RunFinished(1, True))
    server.set("job.wait", 5)
    server.remove("job.plan")
    server.set("job.new", 1)
    server.decide(RemoveRule(b"", "every"))
    server.decide(SetRule(b"", "other", "x", RUN))
    server.due(10**6)
    server.schedule.undo_batch()

    assert (server.query(), server.schedule.stats(), server.schedule.next_due_ns()) == before
    outcome = server.decide(RunFinished(1, True))
    assert outcome.records == (JobSet("job.run", 10, EXECUTED),)
    assert outcome.effects == (StartRun(2, "job.wait", 20, RUN),)
    assert server.due(900).records == (JobSet("job.plan", 900, TRIGGERED),)


def test_an_undone_due_is_due_again(server: Server):
    for number in range(10):
        server.set(f"job.{number}", 5)
    server.schedule.begin_batch()
    first = server.due(5)
    server.schedule.undo_batch()
    assert server.schedule.next_due_ns() == 5
    assert server.due(5) == first


def test_an_undone_set_of_a_waiting_job_leaves_it_waiting():
    server = Server(ZtickEngine(max_runs=1))
    server.decide(ALL_JOBS)
    server.set("job.a", 5)
    server.set("job.b", 5)
    server.due(5)
    server.schedule.begin_batch()
    server.set("job.b", 900)
    server.schedule.undo_batch()
    assert server.schedule.stats().executions_pending == 1
    assert names(server.decide(RunFinished(1, True)).effects) == ["job.b"]


def test_an_undone_set_leaves_its_job_due_though_the_queue_was_tidied(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(due, "SLACK", 0)
    server = Server()
    server.decide(ALL_JOBS)
    server.set("job.a", 500)
    server.schedule.begin_batch()
    for _ in range(20):
        server.set("job.a", 600)
    assert len(server.schedule._state.jobs._due) < 10
    server.schedule.undo_batch()
    assert names(server.due(500).effects) == ["job.a"]


def test_a_rule_that_was_changed_twice_is_as_before_after_undo(server: Server):
    server.schedule.begin_batch()
    server.decide(SetRule(b"", "every", "x", RUN))
    server.decide(RemoveRule(b"", "every"))
    server.decide(SetRule(b"", "every", "y", RUN))
    server.schedule.undo_batch()
    assert server.decide(ListRules(b"")).reply == RuleListing((RULE,))
    server.set("job.a", 5)
    assert names(server.due(5).effects) == ["job.a"]


def test_a_committed_batch_stays(server: Server):
    server.schedule.begin_batch()
    server.set("job.a", 5)
    server.schedule.commit_batch()
    server.schedule.begin_batch()
    server.schedule.undo_batch()
    assert server.state("job.a") == (PLAN, 5)


def test_undoing_again_and_again_does_not_fill_the_queue(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(due, "SLACK", 10)
    server = Server()
    server.set("job.a", 500)
    for _ in range(1000):
        server.schedule.begin_batch()
        server.set("job.a", 400)
        server.due(450)
        server.schedule.undo_batch()
    assert len(server.schedule._state.jobs._due) < 50
    assert server.state("job.a") == (PLAN, 500)


def test_new_jobs_that_are_undone_again_and_again_do_not_fill_the_queue(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(due, "SLACK", 10)
    server = Server()
    for number in range(1000):
        server.schedule.begin_batch()
        server.set(f"job.{number}", 400)
        server.schedule.undo_batch()
    assert len(server.schedule._state.jobs._due) < 50


def test_batches_do_not_nest(server: Server):
    server.schedule.begin_batch()
    with pytest.raises(AssertionError):
        server.schedule.begin_batch()
    server.schedule.commit_batch()
    with pytest.raises(AssertionError):
        server.schedule.undo_batch()


# -- loading --------------------------------------------------------------------------------------


def test_a_restart_runs_nothing_twice_and_loses_nothing(server: Server):
    server.log.append(RULE)
    for name in ("job.done", "job.failed", "job.planned"):
        server.set(name, 10 if name != "job.planned" else 900)
    done, failed = server.due(10).effects
    server.decide(RunFinished(done.run_id, True))
    server.decide(RunFinished(failed.run_id, False))
    loaded = load_schedule(server.log)
    assert (loaded.records, loaded.effects, loaded.notes) == ((), (), ())
    again = Server(loaded.schedule)
    assert again.query() == server.query()
    assert names(again.due(10**18).effects) == ["job.planned"]


def test_interrupted_jobs_run_again_in_time_order():
    log: list[Record] = [
        RULE,
        JobSet("job.b", 20, TRIGGERED),
        JobSet("job.past", 5, PLAN),
        JobSet("job.a", 10, TRIGGERED),
        JobSet("job.c", 20, TRIGGERED),
    ]
    loaded = load_schedule(log, max_runs=2)
    assert loaded.records == ()  # the log says triggered already
    assert names(loaded.effects) == ["job.a", "job.b"]
    assert len(loaded.notes) == 1
    assert "run again (3): 'job.a', 'job.b', 'job.c'" in loaded.notes[0]
    server = Server(loaded.schedule)
    server.due(100)
    assert names(server.decide(RunFinished(1, True)).effects) == ["job.c"]
    assert names(server.decide(RunFinished(2, True)).effects) == ["job.past"]


def test_interrupted_jobs_can_be_failed_instead():
    loaded = load_schedule([RULE, JobSet("job.a", 10, TRIGGERED)], interrupted="fail")
    assert loaded.records == (JobSet("job.a", 10, FAILED),)
    assert loaded.effects == ()
    assert "have failed (1): 'job.a'" in loaded.notes[0]
    assert Server(loaded.schedule).state("job.a") == (FAILED, 10)


def test_an_interrupted_job_whose_rule_is_gone_has_failed():
    loaded = load_schedule([JobSet("job.a", 10, TRIGGERED)])
    assert loaded.records == (JobSet("job.a", 10, FAILED),)
    assert loaded.effects == ()


def test_many_interrupted_jobs_make_one_short_note():
    log: list[Record] = [RULE, *(JobSet(f"job.{n}", 10, TRIGGERED) for n in range(100))]
    (note,) = load_schedule(log).notes
    assert note.endswith("and 90 more")


def test_a_job_set_before_resume_is_not_resumed():
    loader = ZtickLoader()
    for record in (RULE, JobSet("job.a", 10, TRIGGERED), JobSet("job.b", 10, TRIGGERED)):
        loader.add(record)
    server = Server(loader.finish())
    server.set("job.a", 900)
    outcome = server.decide(Resume())
    assert outcome.reply == Resumed(("job.b",), ())
    assert names(outcome.effects) == ["job.b"]
    assert server.state("job.a") == (PLAN, 900)


def test_the_place_of_an_interrupted_job_in_the_log_is_not_taken_for_a_run():
    loader = ZtickLoader()
    loader.add(RULE)
    loader.add_jobs(["job.0", "job.1", "job.cut"], [5, 5, 5], [0, 0, 1])
    server = Server(loader.finish(max_runs=1))
    server.due(5)
    server.set("job.cut", 900)
    assert names(server.decide(RunFinished(1, True)).effects) == ["job.1"]


def test_an_undone_resume_can_be_repeated():
    loader = ZtickLoader()
    loader.add(JobSet("job.a", 10, TRIGGERED))
    schedule = loader.finish()
    schedule.begin_batch()
    first = schedule.decide(Resume(), 0)
    schedule.undo_batch()
    assert schedule.decide(Resume(), 0) == first
    assert schedule.decide(Resume(), 0) == ((), Resumed((), ()), ())


def test_equal_times_run_in_the_order_of_the_log_after_a_restart():
    log: list[Record] = [RULE, *(JobSet(f"job.{name}", 10, PLAN) for name in "caba")]
    server = Server(load_schedule(log).schedule)
    server.set("job.new", 10)
    assert names(server.due(10).effects) == ["job.c", "job.b", "job.a", "job.new"]


def test_columns_and_records_load_the_same():
    columns = ZtickLoader()
    columns.add(JobSet("job.a", 5, PLAN))
    columns.add_jobs(["job.a", "job.b"], [10, 20], [0, 0])
    columns.add(RULE)
    columns.add_jobs(["job.a", "job.c", "job.b"], [0, 30, 40], [REMOVED, 2, 0])
    columns.add_jobs(["job.never"], [0], [REMOVED])
    columns.add(JobSet("job.d", 50, PLAN))
    columns.add_jobs(["job.d"], [0], [REMOVED])
    log: list[Record] = [
        JobSet("job.a", 5, PLAN),
        JobSet("job.a", 10, PLAN),
        JobSet("job.b", 20, PLAN),
        RULE,
        JobRemoved("job.a"),
        JobSet("job.c", 30, EXECUTED),
        JobSet("job.b", 40, PLAN),
        JobRemoved("job.never"),
        JobSet("job.d", 50, PLAN),
        JobRemoved("job.d"),
    ]
    one, other = Server(columns.finish()), Server(load_schedule(log).schedule)
    assert one.query() == other.query() == [("job.b", PLAN, 40), ("job.c", EXECUTED, 30)]
    assert one.schedule.stats() == other.schedule.stats()
    assert one.due(10**18) == other.due(10**18)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="argument"):
        ZtickLoader().add_jobs(["a", "b"], [1], [0])


def test_every_shard_is_used():
    jobs: ShardedDict[str, bytes] = ShardedDict()
    for number in range(20 * SHARDS):
        jobs.shard_of(f"job.{number}")[f"job.{number}"] = b""
    assert min(map(len, jobs.snapshot())) > 0
