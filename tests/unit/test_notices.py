"""Notices: what is reported when occurrences and jobs of rules fail, are missed, or are late."""

from __future__ import annotations

from typing import Any

import pytest

from journeyman.engines.ztick import notices
from journeyman.engines.ztick.messages import DONE, Resume, RunFinished, StartRun, TimetableRefused
from journeyman.errors import TimetableError
from journeyman.formats.ztick import Http, Mail, Shell, Status
from journeyman.protocols.ztick.commands import (
    PauseTimetable,
    Remove,
    RemoveRule,
    RemoveTimetable,
    Set,
    SetRule,
)
from journeyman.protocols.ztick.grammar import read_run_options, read_timetable
from journeyman.timetables.run_options import NO_OPTIONS
from tests.support.timetable_world import Crash, TimetableWorld

MAIL = ["mail", "ops@example.com"]
NIGHT = "nightly@2026-11-17T02:00:00+00:00"


@pytest.fixture
def world() -> TimetableWorld:
    return TimetableWorld()


def fail(world: TimetableWorld, reason: str = "exited with status 3", output: str = "") -> None:
    for run_id in list(world.running):
        del world.running[run_id]
        world.decide(RunFinished(run_id, False, reason, output))
    world.tick()


def sent(world: TimetableWorld) -> list[StartRun]:
    return [run for run in world.started if run.facts is not None]


def facts(world: TimetableWorld) -> list[dict[str, Any]]:
    return [dict(run.facts or {}) for run in sent(world)]


def pending(world: TimetableWorld) -> list[str]:
    return [
        name
        for name, status in world.statuses().items()
        if "!" in name and status in (Status.PLANNED, Status.TRIGGERED)
    ]


def set_rule(world: TimetableWorld, **options: Any) -> None:
    runner = Shell("true")
    command = SetRule(b"", "backups", "backup.", runner, read_run_options(options, runner))
    assert world.decide(command) is DONE


def test_a_failed_night_is_reported_with_its_reason_and_output(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    fail(world, output="disk full")
    (notice,) = sent(world)
    assert notice.runner == Mail(("ops@example.com",))
    assert notice.identifier.startswith("nightly!failed@2026-11-17T02:00:00")
    assert notice.owner == "nightly"
    assert facts(world) == [
        {
            "owner": "nightly",
            "event": "failed",
            "job": NIGHT,
            "execution": 1_794_880_800_000_000_000,
            "reason": "exited with status 3",
            "output": "disk full",
        }
    ]


def test_a_good_night_is_not_reported(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.to("2026-11-19T12:00:00+00:00", succeed=True)
    assert sent(world) == []
    assert pending(world) == ["nightly!late@2026-11-20T02:00:00+00:00"]


def test_only_the_last_retry_is_reported(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, retries=2)
    world.to("2026-11-17T02:00:00+00:00")
    fail(world)
    world.to("2026-11-17T02:00:10+00:00")
    fail(world)
    assert sent(world) == []
    world.to("2026-11-17T02:00:30+00:00")
    fail(world)
    assert len(sent(world)) == 1


def test_a_notice_that_cannot_be_sent_is_tried_again_up_to_a_limit(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    fail(world)
    name = sent(world)[0].identifier
    for _ in range(notices.NOTICE_RETRIES):
        fail(world, "no answer")
        assert world.statuses()[name] is Status.PLANNED
        due_ns = world.engine.next_due_ns()
        assert due_ns is not None
        world.now_ns = due_ns
        world.tick()
    fail(world, "no answer")
    assert world.statuses()[name] is Status.FAILED
    assert {run.identifier for run in sent(world)} == {name}
    assert not world.engine.timetables.notices


def test_a_notice_that_was_sent_is_over(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    fail(world)
    world.finish()
    world.crash()
    world.tick()
    assert len(sent(world)) == 1
    assert not world.engine.timetables.notices
    assert world.statuses()[sent(world)[0].identifier] is Status.EXECUTED


def test_a_failing_notice_does_not_make_its_timetable_busy(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, overlap="queue")
    world.to("2026-11-17T02:00:00+00:00")
    fail(world)
    fail(world, "no answer")
    assert world.view("nightly").running == 0
    assert not world.engine.timetables.is_busy("nightly")


def test_a_missed_occurrence_is_reported(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, catch_up="none")
    world.jump("2026-11-17T09:00:00+00:00")
    assert [fact["event"] for fact in facts(world)] == ["missed"]


def test_an_occurrence_without_a_rule_is_reported(world):
    world.set("other", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T03:00:00+00:00")
    assert [fact["reason"] for fact in facts(world)] == ["no rule matches"]


def test_a_run_that_a_stop_cut_off_is_reported_if_it_is_not_run_again(world):
    world.resume = Resume(rerun=False)
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    world.crash()
    world.tick()
    assert [fact["reason"] for fact in facts(world)] == ["the server stopped during the run"]
    world.crash()  # while the notice is under way: it is always run again
    world.tick()
    assert len(sent(world)) == 2


def test_a_run_that_takes_too_long_is_reported_late_once(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.to("2026-11-17T02:09:59+00:00")
    assert sent(world) == []
    world.to("2026-11-17T02:10:00+00:00")
    assert [(fact["event"], fact["reason"]) for fact in facts(world)] == [
        ("late", "it has not succeeded within 10m")
    ]
    world.finish()
    world.to("2026-11-17T23:00:00+00:00", succeed=True)
    assert len(sent(world)) == 1


def test_a_failure_is_not_also_reported_late(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.to("2026-11-17T02:00:00+00:00")
    fail(world)
    world.to("2026-11-17T12:00:00+00:00", succeed=True)
    assert [fact["event"] for fact in facts(world)] == ["failed"]


def test_a_server_that_was_down_reports_what_is_late_at_its_start(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.now_ns += 24 * 3600 * 10**9
    world.crash()
    world.tick()
    assert [fact["event"] for fact in facts(world)] == ["late"]
    assert [run.identifier for run in world.started if run.facts is None] == [NIGHT]


@pytest.mark.parametrize(
    "command", [PauseTimetable(b"", "nightly"), RemoveTimetable(b"", "nightly")]
)
def test_nothing_is_expected_of_a_timetable_that_is_paused_or_removed(world, command):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.decide(command)
    assert pending(world) == []
    assert not world.engine.timetables.notices


def test_nothing_is_late_of_a_timetable_that_is_removed_during_a_run(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.to("2026-11-17T02:00:00+00:00")
    world.decide(RemoveTimetable(b"", "nightly"))
    world.to("2026-11-17T12:00:00+00:00")
    assert sent(world) == []


def test_a_failure_is_still_reported_after_its_timetable_was_removed(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    run_id = next(iter(world.running))
    world.decide(RunFinished(run_id, False, "bad"))
    world.decide(RemoveTimetable(b"", "nightly"))
    world.tick()
    assert [fact["reason"] for fact in facts(world)] == ["bad"]


def test_check_ins_say_how_every_occurrence_ended(world):
    url = "https://sentry.example.com/api/1/cron/nightly/key/?status={status}&code={exit_code}"
    world.set("nightly", cron="0 2 * * *", check_in=url)
    world.to("2026-11-17T02:00:00+00:00")
    world.finish()
    world.tick()
    world.finish()
    world.to("2026-11-18T02:00:00+00:00")
    fail(world)
    expected = [url.replace("{status}", word).replace("{exit_code}", code)
                for word, code in (("ok", "0"), ("error", "1"))]  # fmt: skip
    assert [run.runner for run in sent(world)] == [Http("GET", each) for each in expected]


def test_a_rule_reports_the_jobs_that_run_by_it(world):
    set_rule(world, on_failure="http POST https://example.com/hook")
    world.decide(Set(b"", "backup.1", world.now_ns))
    world.crash()  # the options of the rule are in the ledger
    world.tick()
    fail(world, "bad")
    (notice,) = sent(world)
    assert notice.runner == Http("POST", "https://example.com/hook")
    assert notice.owner == "backups"
    assert facts(world)[0]["job"] == "backup.1"
    world.finish()
    world.decide(RemoveRule(b"", "backups"))
    assert not world.engine.timetables.rule_options


def test_a_rule_that_is_set_again_without_options_has_none(world):
    set_rule(world, on_failure=MAIL, timeout="5m", environment=["A=b c"], directory="/srv")
    world.decide(Set(b"", "backup.1", world.now_ns))
    world.tick()
    (run,) = world.started
    assert run.options.fields() == {
        "on_failure": MAIL,
        "timeout": "5m",
        "directory": "/srv",
        "environment": ["A=b c"],
    }
    set_rule(world)
    world.crash()
    assert world.started[-1].options == NO_OPTIONS


def test_options_of_a_rule_need_the_ledger(world):
    world.engine.timetables.is_kept = False
    runner = Shell("true")
    options = read_run_options({"on_failure": MAIL}, runner)
    reply = world.decide(SetRule(b"", "r", "r.", runner, options))
    assert isinstance(reply, TimetableRefused)


def test_a_notice_can_be_removed(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    run_id = next(iter(world.running))
    world.decide(RunFinished(run_id, False, "bad"))
    (name,) = pending(world)
    world.decide(Remove(b"", name))
    world.tick()
    assert sent(world) == []
    assert not world.engine.timetables.notices


def test_one_owner_has_a_bounded_number_of_notices(world, monkeypatch):
    monkeypatch.setattr(notices, "MAX_OF_OWNER", 3)
    set_rule(world, on_failure=MAIL)
    for number in range(5):
        world.decide(Set(b"", f"backup.{number}", world.now_ns))
    world.tick()
    for run_id in list(world.running):
        world.decide(RunFinished(run_id, False, "bad"))
    assert len(pending(world)) == 3
    assert world.engine.timetables.notices_of("backups") == 3


def test_a_batch_that_cannot_be_written_leaves_no_notice(world):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.to("2026-11-17T02:00:00+00:00")
    before = dict(world.engine.timetables.notices)
    run_id = next(iter(world.running))
    world.engine.begin_batch()
    world.engine.decide(RunFinished(run_id, False, "bad"), world.now_ns)
    assert world.engine.timetables.notices != before
    world.engine.take_ledger()
    world.engine.undo_batch()
    assert world.engine.timetables.notices == before
    assert world.engine.timetables.notices_of("nightly") == 2


@pytest.mark.parametrize("records", range(3))
def test_wherever_its_end_is_cut_off_the_job_of_a_notice_is_not_run_by_a_rule(world, records):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL, expect="10m")
    world.to("2026-11-17T02:00:00+00:00")
    world.cut = records
    with pytest.raises(Crash):
        world.finish()
    world.crash()
    world.finish()
    world.to("2026-11-17T03:00:00+00:00", succeed=True)
    assert [run.identifier for run in world.started if "!" in run.identifier] == []


@pytest.mark.parametrize("records", range(6))
def test_wherever_the_failure_is_cut_off_it_is_reported_once(world, records):
    world.set("nightly", cron="0 2 * * *", on_failure=MAIL)
    world.to("2026-11-17T02:00:00+00:00")
    world.cut = records
    try:
        fail(world)
    except Crash:
        world.crash()
        world.tick()
    for run_id, run in list(world.running.items()):
        if run.facts is None:  # the failure was not recorded: the job runs again
            del world.running[run_id]
            world.decide(RunFinished(run_id, False, "bad"))
    world.tick()
    world.finish()
    world.crash()
    world.tick()
    assert {fact["job"] for fact in facts(world)} == {NIGHT}
    ended = [name for name, status in world.statuses().items() if "!" in name]
    assert len(ended) == 1
    assert not world.engine.timetables.notices


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"on_failure": ["mail"]}, "on_failure: missing required argument: address"),
        ({"on_failure": ["mail", "nobody"]}, "on_failure: mail takes up to 20 addresses"),
        ({"on_failure": ["mail", "a@b\nBcc: c@d"]}, "on_failure: mail takes up to 20 addresses"),
        ({"on_failure": ["fax", "1"]}, 'on_failure: unknown runner "fax"'),
        ({"on_failure": "mail 'a@b"}, "on_failure: no closing quotation"),
        ({"on_failure": []}, "on_failure: it is not a list of words"),
        ({"expect": "10m"}, "expect: nothing would report it: expected on_failure as well"),
        ({"check_in": "ftp://x"}, "check_in: the url must begin with http:// or https://"),
        ({"timeout": "5m"}, "timeout: it means nothing here: expected it with the runners shell"),
        ({"user": "root", "runner": ["awf", "w"]}, "user: it means nothing here"),
        ({"user": "No One", "runner": ["shell", "x"]}, "user: it is not the name of a user"),
        ({"directory": "x", "runner": ["shell", "x"]}, "directory: it is not an absolute path"),
        ({"environment": ["A"], "runner": ["shell", "x"]}, "environment: a word is not a variable"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(TimetableError) as refused:
        read_timetable({"every": "1m", **fields})
    assert str(refused.value).startswith(message)
