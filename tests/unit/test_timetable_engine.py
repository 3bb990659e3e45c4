"""What becomes of occurrences: planned, run, missed, skipped, held, tried again."""

from __future__ import annotations

import tracemalloc

import pytest

from journeyman.engines.ztick.messages import (
    DONE,
    OUT_OF_SCOPE,
    Backfilled,
    NextFirings,
    Resume,
    TimetableListing,
    TimetableNotFound,
    TimetableRefused,
    TimetableRun,
)
from journeyman.engines.ztick.timetables import TimetableBook, read_body
from journeyman.formats.ztick import Shell, Status
from journeyman.protocols.ztick.commands import (
    BackfillTimetable,
    GetTimetable,
    ListTimetables,
    NextOfTimetable,
    PauseTimetable,
    Remove,
    RemoveTimetable,
    ResumeTimetable,
    RunTimetable,
    Set,
    SetTimetable,
)
from journeyman.protocols.ztick.grammar import read_timetable
from tests.support.timetable_world import TimetableWorld


@pytest.fixture
def world() -> TimetableWorld:
    return TimetableWorld()


def test_every_night_at_two(world):
    assert world.set("nightly", cron="0 2 * * *", tz="Europe/Berlin") is DONE
    assert world.view("nightly").next == "2026-11-17T02:00:00+01:00"
    world.to("2026-11-19T12:00:00+00:00", succeed=True)
    assert world.names == [f"2026-11-{day}T02:00:00+01:00" for day in (17, 18, 19)]
    assert world.view("nightly").last == "2026-11-19T02:00:00+01:00"


def test_each_occurrence_is_an_ordinary_job_with_an_outcome_of_its_own(world):
    world.set("nightly", cron="0 2 * * *")
    world.to("2026-11-17T12:00:00+00:00")
    world.finish()
    world.to("2026-11-18T12:00:00+00:00")
    world.finish(False)
    assert world.statuses() == {
        "nightly@2026-11-17T02:00:00+00:00": Status.EXECUTED,
        "nightly@2026-11-18T02:00:00+00:00": Status.FAILED,
        "nightly@2026-11-19T02:00:00+00:00": Status.PLANNED,
    }


def test_setting_it_again_changes_nothing(world):
    world.set("nightly", cron="0 2 * * *")
    before = len(world.log), len(world.ledger)
    assert world.set("nightly", cron="0 2 * * *") is DONE
    assert (len(world.log), len(world.ledger)) == before


def test_another_time_replaces_what_is_planned(world):
    world.set("nightly", cron="0 2 * * *")
    world.set("nightly", cron="0 3 * * *")
    world.to("2026-11-18T00:00:00+00:00")
    assert world.names == ["2026-11-17T03:00:00+00:00"]


def test_another_runner_leaves_what_is_planned_and_what_waits(world):
    world.set("n", every="1h", overlap="queue")
    world.to("2026-11-16T14:30:00+00:00")
    assert world.view("n").waiting == 1
    world.set("n", every="1h", overlap="queue", runner=["shell", "new"])
    assert world.view("n").next == "2026-11-16T14:00:00+00:00"
    world.crash()
    world.tick()
    world.finish()
    assert world.names == [f"2026-11-16T{hour}:00:00+00:00" for hour in (13, 13, 14)]
    assert [run.runner for run in world.started[1:]] == [Shell("new")] * 2


def test_occurrences_that_have_run_do_not_end_a_timetable_that_is_set_anew(world):
    world.set("n", every="1m")
    world.to("2026-11-16T15:00:00+00:00", succeed=True)
    world.decide(RemoveTimetable(b"", "n"))
    world.jump("2026-11-16T12:10:00+00:00")
    world.set("n", every="1m")
    assert world.view("n").state == "active"
    world.jump("2026-11-16T15:00:00+00:00")
    world.finish()
    world.to("2026-11-16T15:05:00+00:00", succeed=True)
    assert world.names[-1] == "2026-11-16T15:05:00+00:00"


def test_what_never_fires_is_refused(world):
    reply = world.set("nightly", at="2020-01-01")
    assert reply == TimetableRefused("it never fires: no occurrence is after now")


def test_its_own_runner_or_that_of_the_rules(world):
    world.set("x.own", every="1h", runner=["shell", "own"])
    world.set("n.rule", every="1h")
    world.to("2026-11-16T13:00:00+00:00")
    assert {(run.runner, run.rule) for run in world.started} == {
        (Shell("own"), "timetable x.own"),
        (Shell("true"), "all"),
    }


def test_without_a_rule_it_fails_and_goes_on(world):
    world.set("x", every="1h")
    world.to("2026-11-16T14:00:00+00:00")
    assert world.started == []
    assert world.view("x").next == "2026-11-16T15:00:00+00:00"


def test_it_ends_with_its_last_moment(world):
    world.set("n", at="2026-11-17T01:00,2026-11-17T02:00", overlap="allow")
    world.to("2026-11-18T00:00:00+00:00")
    assert len(world.started) == 2
    assert world.view("n").state == "ended"
    world.crash()
    world.to("2026-12-18T00:00:00+00:00")
    assert len(world.started) == 4  # the two runs that the crash cut off, and no more
    assert world.view("n").state == "ended"


# -- the server was not running ------------------------------------------------------------------


def away(world: TimetableWorld, **fields) -> list[str]:
    """Nightly, and the server is away from the 16th to noon of the 20th."""
    world.set("nightly", cron="0 2 * * *", **fields)
    world.now_ns += 4 * 86_400 * 10**9
    world.crash()
    world.tick()
    world.finish()
    world.to("2026-11-21T12:00:00+00:00", succeed=True)
    return world.names


def test_missed_and_caught_up_once(world):
    assert away(world) == ["2026-11-20T02:00:00+00:00", "2026-11-21T02:00:00+00:00"]
    assert [name for name, _ in world.missed] == ["nightly@2026-11-17T02:00:00+00:00"]


def test_missed_and_not_caught_up(world):
    assert away(world, catch_up="none") == ["2026-11-21T02:00:00+00:00"]


def test_missed_and_all_caught_up(world):
    days = away(world, catch_up="all", overlap="allow")
    assert days == [f"2026-11-{day}T02:00:00+00:00" for day in range(17, 22)]


def test_missed_and_the_last_few_caught_up(world):
    days = away(world, catch_up="all", catch_up_limit=2, overlap="allow")
    assert days == [f"2026-11-{day}T02:00:00+00:00" for day in (19, 20, 21)]


def test_all_caught_up_one_after_another(world):
    world.set("nightly", cron="0 2 * * *", catch_up="all")
    world.now_ns += 4 * 86_400 * 10**9
    world.crash()
    for count in range(1, 5):
        world.tick()
        assert len(world.started) == count
        world.finish()
    assert world.names == [f"2026-11-{day}T02:00:00+00:00" for day in range(17, 21)]


def test_a_short_absence_is_not_a_miss(world):
    world.set("nightly", cron="0 2 * * *", catch_up="none")
    world.to("2026-11-17T01:59:30+00:00")
    world.now_ns += 60 * 10**9
    world.crash()
    world.tick()
    assert world.names == ["2026-11-17T02:00:00+00:00"]


# -- overlap -------------------------------------------------------------------------------------


def test_skipped_while_the_run_before_goes_on(world):
    world.set("n", every="1h")
    world.to("2026-11-16T15:30:00+00:00")
    assert world.names == ["2026-11-16T13:00:00+00:00"]
    assert len(world.missed) == 2
    world.finish()
    world.to("2026-11-16T16:00:00+00:00")
    assert world.names[1:] == ["2026-11-16T16:00:00+00:00"]


def test_queued_until_the_run_before_has_ended(world):
    world.set("n", every="1h", overlap="queue")
    world.to("2026-11-16T15:30:00+00:00")
    assert world.names == ["2026-11-16T13:00:00+00:00"]
    assert world.view("n").waiting == 1
    for _ in range(3):
        world.finish()
        world.tick()
    assert world.names == [f"2026-11-16T{hour}:00:00+00:00" for hour in (13, 14, 15)]


def test_what_is_queued_survives_a_crash(world):
    world.set("n", every="1h", overlap="queue")
    world.to("2026-11-16T15:30:00+00:00")
    world.crash()
    for _ in range(4):
        world.tick()
        world.finish()
    hours = [13, 13, 14, 15]  # the one that was cut off runs again
    assert world.names == [f"2026-11-16T{hour}:00:00+00:00" for hour in hours]


def test_runs_side_by_side(world):
    world.set("n", every="1h", overlap="allow")
    world.to("2026-11-16T15:30:00+00:00")
    assert len(world.running) == 3
    assert world.view("n").running == 3


# -- retries -------------------------------------------------------------------------------------


def test_tried_again_with_growing_delays(world):
    world.set("n", cron="0 13 * * *", retries=3, backoff="10s,3,1m")
    world.to("2026-11-16T13:00:00+00:00")
    begun = world.now_ns
    times = []
    for _ in range(4):
        world.finish(False)
        times.append((world.engine.next_due_ns() or 0) - begun)
        world.now_ns = max(world.now_ns, min(world.engine.next_due_ns() or 0, begun + 300 * 10**9))
        world.tick()
    assert [time // 10**9 for time in times[:3]] == [10, 40, 100]
    assert [run.identifier for run in world.started] == ["n@2026-11-16T13:00:00+00:00"] * 4
    assert world.statuses()["n@2026-11-16T13:00:00+00:00"] is Status.FAILED


def test_attempts_are_counted_through_crashes(world):
    world.set("n", cron="0 13 * * *", retries=2)
    world.to("2026-11-16T13:00:00+00:00")
    for _ in range(5):
        world.finish(False)
        world.crash()
        world.now_ns += 120 * 10**9
        world.tick()
    assert len(world.started) == 3


def test_a_retry_that_succeeds_is_forgotten(world):
    world.set("n", every="1h", retries=2)
    world.to("2026-11-16T13:00:00+00:00")
    world.finish(False)
    world.to("2026-11-16T13:01:00+00:00")
    world.finish()
    assert not world.engine.timetables.is_busy("n")
    world.crash()
    assert not world.engine.timetables.is_busy("n")


def test_what_waits_to_be_tried_again_counts_as_under_way(world):
    world.set("n", every="1h", retries=2, backoff="2h,1,2h")
    world.to("2026-11-16T13:00:00+00:00")
    world.finish(False)
    world.to("2026-11-16T14:30:00+00:00")
    assert len(world.started) == 1
    assert len(world.missed) == 1


def test_an_interrupted_run_that_fails_is_tried_again(world):
    world.resume = Resume(rerun=False)
    world.set("n", cron="0 13 * * *", retries=1)
    world.to("2026-11-16T13:00:00+00:00")
    world.crash()
    world.to("2026-11-16T14:00:00+00:00")
    assert len(world.started) == 2


# -- clients -------------------------------------------------------------------------------------


def test_paused_and_resumed(world):
    world.set("n", every="1h")
    assert world.decide(PauseTimetable(b"", "n")) is DONE
    assert world.decide(PauseTimetable(b"", "n")) is DONE
    world.to("2026-11-16T15:30:00+00:00")
    world.crash()
    assert world.started == []
    assert world.view("n").state == "paused"
    assert world.decide(ResumeTimetable(b"", "n")) is DONE
    world.to("2026-11-16T16:30:00+00:00")
    assert world.names == ["2026-11-16T16:00:00+00:00"]


def test_set_again_while_paused_stays_paused(world):
    world.set("n", every="1h")
    world.decide(PauseTimetable(b"", "n"))
    world.set("n", every="2h")
    world.crash()
    assert world.view("n").state == "paused"
    world.to("2026-11-16T23:30:00+00:00")
    assert world.started == []


def test_removed_with_everything_that_waits(world):
    world.set("n", every="1h", overlap="queue", retries=1, backoff="1h,1,1h")
    world.to("2026-11-16T13:00:00+00:00")
    world.finish(False)
    world.to("2026-11-16T13:30:00+00:00")
    world.decide(RunTimetable(b"", "n"))
    world.tick()
    assert world.view("n").waiting == 1
    assert world.decide(RemoveTimetable(b"", "n")) is DONE
    world.crash()
    world.to("2026-11-17T12:00:00+00:00")
    assert len(world.started) == 1
    assert world.decide(GetTimetable(b"", "n")) == TimetableNotFound("n")
    assert Status.PLANNED not in world.statuses().values()


def test_run_now(world):
    world.set("n", cron="0 2 * * *", tz="Asia/Tokyo")
    world.now_ns += 1_500_000
    first = world.decide(RunTimetable(b"", "n"))
    second = world.decide(RunTimetable(b"", "n"))
    assert first == TimetableRun("n@2026-11-16T21:00:00.001+09:00")
    assert second == TimetableRun("n@2026-11-16T21:00:00.002+09:00")
    world.tick()
    assert len(world.started) == 1  # the second waits for the first
    world.finish()
    assert len(world.started) == 2
    assert world.view("n").next == "2026-11-17T02:00:00+09:00"


def test_a_client_that_removes_the_next_job_skips_that_occurrence(world):
    world.set("n", every="1h")
    world.decide(Remove(b"", "n@2026-11-16T13:00:00+00:00"))
    world.to("2026-11-16T14:00:00+00:00")
    assert world.names == ["2026-11-16T14:00:00+00:00"]


def test_a_client_may_move_the_next_job(world):
    world.set("n", every="1h")
    world.decide(Set(b"", "n@2026-11-16T13:00:00+00:00", world.now_ns + 1800 * 10**9))
    world.to("2026-11-16T12:30:00+00:00")
    assert world.names == ["2026-11-16T13:00:00+00:00"]
    assert world.view("n").next == "2026-11-16T14:00:00+00:00"


def test_a_waiting_run_that_is_set_again_does_not_block_its_timetable(world):
    world.set("n", every="1h")
    world.engine._state.runs._max_runs = 0  # no slot: the run waits
    world.to("2026-11-16T13:00:00+00:00")
    world.decide(Remove(b"", "n@2026-11-16T13:00:00+00:00"))
    assert not world.engine.timetables.is_busy("n")


def test_the_next_ones(world):
    world.set("n", cron="30 2 28 3 *", tz="Europe/Berlin")
    reply = world.decide(NextOfTimetable(b"", "n", 2))
    assert isinstance(reply, NextFirings)
    assert [(each.local, each.utc, bool(each.warning)) for each in reply.firings] == [
        ("2027-03-28T03:00:00+02:00", "2027-03-28T01:00:00Z", True),
        ("2028-03-28T02:30:00+02:00", "2028-03-28T00:30:00Z", False),
    ]


def test_backfill(world):
    world.set("n", every="1h")
    world.to("2026-11-16T14:00:00+00:00")
    world.finish(False)
    from_s, until_s = world.now_ns // 10**9 - 4 * 3600, world.now_ns // 10**9 + 9999
    shown = world.decide(BackfillTimetable(b"", "n", from_s, until_s, True))
    assert isinstance(shown, Backfilled)
    assert [(row.identifier[13:15], row.status, row.is_run) for row in shown.rows] == [
        ("10", None, True),
        ("11", None, True),
        ("12", None, True),
        ("13", Status.FAILED, True),
    ]
    world.tick()
    assert len(world.started) == 1
    done = world.decide(BackfillTimetable(b"", "n", from_s, until_s, False))
    assert done == shown
    for _ in range(5):
        world.tick()
        world.finish()
    assert [name[11:13] for name in world.names[1:]] == ["10", "11", "12", "13"]
    assert [run.execution_ns for run in world.started[1:]] == [
        row.execution_ns for row in shown.rows
    ]


def test_too_much_to_backfill(world):
    world.set("n", every="1m")
    reply = world.decide(BackfillTimetable(b"", "n", 0, 10**10, True))
    assert reply == TimetableRefused("more than 500 occurrences: choose a shorter range")


def test_listing_and_namespaces(world):
    world.set("n.a", every="1h")
    world.set("n.b", every="1h")
    world.set("x", every="1h")

    def names(prefix: str, namespace: str) -> list[str]:
        reply = world.engine.decide(ListTimetables(b"", prefix), 0, namespace).reply
        assert isinstance(reply, TimetableListing)
        return sorted(each.identifier for some in reply.slices for each in some)

    assert names("", "*") == ["n.a", "n.b", "x"]
    assert names("n.", "*") == names("", "n.") == ["n.a", "n.b"]
    assert names("x", "n.") == []
    for command in (GetTimetable, PauseTimetable, ResumeTimetable, RemoveTimetable, RunTimetable):
        assert world.engine.decide(command(b"", "x"), 0, "n.").reply is OUT_OF_SCOPE
    every_hour = read_timetable({"every": "1h"})
    assert world.engine.decide(SetTimetable(b"", "x", *every_hour), 0, "n.").reply is OUT_OF_SCOPE


@pytest.mark.parametrize("name", ["", "x" * 600, "journeyman.seal.1", "half \ud83d"])
def test_names_that_cannot_be(world, name):
    assert isinstance(world.set(name, every="1h"), TimetableRefused)


def test_without_a_ledger_there_are_none(world):
    world.engine.timetables.is_kept = False
    reply = world.set("n", every="1h")
    assert isinstance(reply, TimetableRefused)
    assert "ledger" in reply.reason


# -- the clock -----------------------------------------------------------------------------------


def test_a_clock_set_back_runs_nothing_twice(world):
    world.set("n", every="1h")
    world.to("2026-11-16T15:30:00+00:00", succeed=True)
    world.jump("2026-11-16T12:10:00+00:00")
    world.to("2026-11-16T17:00:00+00:00", succeed=True)
    assert world.names == [f"2026-11-16T{hour}:00:00+00:00" for hour in range(13, 18)]


def test_a_clock_that_was_ten_years_ahead(world):
    world.set("n", cron="0 2 * * *", catch_up="none")
    world.jump("2036-11-16T12:00:00+00:00")
    assert world.view("n").next == "2036-11-17T02:00:00+00:00"
    world.jump("2026-11-17T12:00:00+00:00")
    assert world.view("n").next == "2026-11-18T02:00:00+00:00"
    world.to("2026-11-19T12:00:00+00:00", succeed=True)
    assert world.names == ["2026-11-18T02:00:00+00:00", "2026-11-19T02:00:00+00:00"]


def test_a_clock_that_was_ahead_before_a_restart(world):
    world.jump("2036-11-16T12:00:00+00:00")
    world.set("n", cron="0 2 * * *")
    world.now_ns -= 10 * 366 * 86_400 * 10**9
    world.crash()
    world.tick()
    assert world.view("n").next.startswith("2026-11-")


def test_many_held_jobs_cost_as_much_as_they_are_many_and_come_back_in_order():
    """Clients can plan any number of jobs of a timetable that is busy."""
    book, jobs = TimetableBook(), [f"job {number}".encode() for number in range(3000)]
    for job in jobs[:2]:
        book.hold("t", job)
    book.changes = []  # a batch begins
    tracemalloc.start()
    for job in jobs[2:]:
        book.hold("t", job)
    released = [book.release("t") for _ in jobs]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert released == jobs
    assert peak_bytes < 4_000_000
    assert book.release("t") is None
    book.undo_batch()
    assert book.held_runs("t") == 2
    assert [book.release("t") for _ in range(3)] == [*jobs[:2], None]
    assert book.held_runs("t") == 0


@pytest.mark.parametrize("body", [b"[" * 100_000, b"[]", b"5", b"\xff", b'{"cron": {}}', b"null"])
def test_a_timetable_of_the_ledger_that_makes_no_sense_is_none(body: bytes):
    assert read_body(body) is None
