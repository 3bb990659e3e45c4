"""``handover``: what the original cannot read is merged, closed or rewritten, the rest is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from journeyman.folds import workq as workq_fold
from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.framing import scan
from journeyman.formats.timed_frame import Instant
from journeyman.logs.holders import Place, register
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from tests.support import ztick_original
from tests.support.cli_commands import (
    CLOCK,
    DISK,
    added,
    assert_one_line_error,
    event,
    job,
    job_id,
    put,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)
from tests.support.workq_original import Original, replay_all

NOW_NS = CLOCK.now_ns()
LATER_NS = NOW_NS + 3600 * 10**9
START, TIMEOUT = workq.Command.START_ATTEMPT, workq.Command.TIMEOUT_ATTEMPT
DAY_MS = 86_400_000


def report(result: Result) -> Any:
    assert result.exit_code in (0, 3), (result.stdout, result.stderr)
    shown = json.loads(result.stdout)
    assert shown["safe"] == (result.exit_code == 0)
    return shown


def kinds(result: Result) -> dict[str, list[str]]:
    """The findings of all logs."""
    found = [each for log in report(result)["logs"] for each in log["findings"]]
    return {each["kind"]: each["names"] for each in found}


def changes(result: Result) -> list[str]:
    return [change for log in report(result)["logs"] for change in log["changes"]]


def write_ledger(directory: Path, *records: ledger.Record) -> None:
    with LedgerLog.open(DISK, CLOCK, str(directory)) as log:
        log.append(records)


AT = Instant(NOW_NS)


# --- ztick ---


def test_a_ztick_log_becomes_the_one_file_that_the_original_reads(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("a", 1), job("b", 1))
    write_ztick(tmp_path / "log.to_compress", ztick.JobRemoved("a"), job("c", 1))
    log = write_ztick(tmp_path / "log", job("b", 2))

    result = run("handover", "--json", log)

    assert result.exit_code == 0
    assert changes(result) == ["merged"]
    assert list(ztick_original.load(log.read_bytes()).values()) == [job("c", 1), job("b", 2)]
    data = log.read_bytes()
    assert changes(run("handover", "--json", log)) == []
    assert log.read_bytes() == data


def test_seals_are_closed_so_that_the_original_may_append(tmp_path):
    killed, log = tmp_path / "killed", tmp_path / "log"
    with ZtickLog.open(DISK, CLOCK, str(killed)) as open_log:
        open_log.append([job("ours")])
        shutil.copy(killed, log)

    result = run("handover", log)

    assert result.exit_code == 0
    assert result.stdout == f"{log}: for ztick: closed\nsafe: the original can be started\n"
    ztick_original.append(log, job("appended"))
    with ZtickLog.open(DISK, CLOCK, str(log)) as again:
        assert again.recovery.clean
        assert [entry.record for entry in again.entries()] == [job("ours"), job("appended")]


def test_a_torn_end_is_repaired_because_the_original_would_append_to_it(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"), job("b"))
    log.write_bytes(log.read_bytes()[:-2])

    assert changes(run("handover", "--json", log)) == ["repaired"]

    ztick_original.append(log, job("c"))
    assert list(ztick_original.load(log.read_bytes()).values()) == [job("a"), job("c")]


def test_rules_and_jobs_that_ztick_does_not_run_are_to_be_decided(tmp_path):
    log = write_ztick(
        tmp_path / "log",
        ztick.RuleSet("good", "a.", ztick.Shell("true")),
        ztick.RuleSet("fan", "b.", ztick.FanOutRunner("orders")),
        ztick.RuleSet("work", "c.", ztick.WorkQueueRunner("mail", ())),
        ztick.RuleSet("gone", "d.", ztick.FanOutRunner("orders")),
        ztick.RuleRemoved("gone"),
        ztick.JobSet("ran", 1, ztick.Status.TRIGGERED),
        ztick.JobSet("ran", 1, ztick.Status.EXECUTED),
        ztick.JobSet("cut-short", 1, ztick.Status.TRIGGERED),
    )

    result = run("handover", "--json", log)

    assert result.exit_code == 3
    assert kinds(result) == {"runners": ["fan", "work"], "triggered": ["cut-short"]}
    known = ztick_original.load(log.read_bytes())
    assert ("rule", "good") in known
    assert ("rule", "fan") not in known
    accepted = run("handover", log, "--accept")
    assert accepted.exit_code == 0
    assert "ignored: rules with the runners queue and journal are skipped" in accepted.stdout
    assert "their jobs fail (2): fan, work\n" in accepted.stdout
    assert accepted.stdout.endswith("safe: the original can be started\n")


def test_timetables_and_options_of_the_ledger_beside_the_log_are_named(tmp_path):
    log = write_ztick(tmp_path / "schedule.log", job("night@x"), job("day@x"))
    write_ledger(
        tmp_path / "ledger",
        ledger.TimetableSet(AT, "night", {"cron": "0 2 * * *", "runner": ["shell", "true"]}),
        ledger.TimetableSet(AT, "day", {"cron": "0 9 * * *"}),
        ledger.TimetableSet(AT, "gone", {"cron": "0 9 * * *"}),
        ledger.TimetableRemoved(AT, "gone"),
        ledger.TimetablePlanned(AT, "night", "", "x"),
        ledger.TimetablePlanned(AT, "day", "", "x"),
        ledger.RuleOptionsSet(AT, "r", {"retries": 3}),
    )

    found = kinds(run("handover", "--json", log))

    assert found == {
        "timetables": ["day", "night"],
        "occurrences": ["night@x"],
        "rule-options": ["r"],
    }
    (tmp_path / "ledger").rename(tmp_path / "elsewhere")
    assert kinds(run("handover", "--json", log)) == {}
    other = run("handover", "--json", "--ledger", tmp_path / "elsewhere", log)
    assert kinds(other) == found


def test_a_log_that_a_lake_has_not_read_is_not_merged(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("a", 1))
    log = write_ztick(tmp_path / "log", job("b", 2))
    place = Place(log.name, log.stat().st_ino, 0)
    assert register(DISK, str(tmp_path), "me", "lake /lake", CLOCK.now_ns(), {"log": place})

    result = run("handover", "--json", "--accept", log)

    assert result.exit_code == 3
    assert kinds(result) == {"unread": ["lake /lake"]}
    assert (tmp_path / "log.compressed").exists()


# --- workq ---


def loaded(directory: Path) -> dict[bytes, Original]:
    return replay_all(records_in(directory))


def records_in(directory: Path) -> Iterable[workq.Record]:
    for path in sorted(directory.glob("*.log")):
        entries, ending = scan(workq.CODEC, path.read_bytes())
        assert ending.clean
        yield from (entry.record for entry in entries)


def fold_of(directory: Path) -> dict[bytes, object]:
    return dict(workq_fold.replay(records_in(directory)))


def lively(number: int, **fields: Any) -> workq.JobAdded:
    return replace(added(number, at_ns=NOW_NS, ttl_ms=DAY_MS), **fields)


def at(number: int, command: workq.Command) -> workq.JobEvent:
    return event(number, command, at_ns=NOW_NS)


def test_a_workq_log_that_the_original_loads_is_left_as_it_is(tmp_path):
    write_workq(tmp_path, [lively(1), at(1, START)], [at(1, TIMEOUT), lively(2)])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.log")}

    result = run("handover", tmp_path)

    assert result.exit_code == 0
    assert f"{tmp_path}: for workq: nothing to do\n" in result.stdout
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.log")} == before


def test_jobs_that_stop_the_originals_replay_are_written_again(tmp_path):
    done = workq.JobFinished(Instant(NOW_NS), job_id(2), workq.Command.COMPLETE, b"result")
    late = workq.JobFinished(Instant(NOW_NS), job_id(2), workq.Command.FAIL, b"late")
    write_workq(
        tmp_path,
        [lively(1), lively(2), lively(3), lively(4)],
        [at(1, START), at(1, START), done, late],
        [at(3, START), lively(4, name="other"), lively(5), at(5, workq.Command.DELETE)],
    )
    before = fold_of(tmp_path)

    result = run("handover", "--json", tmp_path)

    assert result.exit_code == 0
    assert changes(result) == ["rewritten"]
    assert set(loaded(tmp_path)) == {job_id(n) for n in (1, 2, 3, 4)}
    after = fold_of(tmp_path)
    after[job_id(1)].owed_timeouts = 1  # type: ignore[attr-defined]  # the original has no such state
    assert after == before
    assert changes(run("handover", "--json", tmp_path)) == []


def test_a_job_that_was_completed_before_its_add_is_not_new_in_the_original(tmp_path):
    done = workq.JobFinished(Instant(NOW_NS), job_id(1), workq.Command.COMPLETE, b"result")
    write_workq(tmp_path, [at(1, START), done, lively(1)])

    result = run("handover", "--json", tmp_path)

    assert changes(result) == ["rewritten"]
    assert loaded(tmp_path)[job_id(1)].result == b"result"


def test_more_attempts_than_workq_counts_are_cut_only_if_that_is_accepted(tmp_path):
    attempts = [at(1, command) for _ in range(300) for command in (START, TIMEOUT)]
    done = workq.JobFinished(Instant(NOW_NS), job_id(2), workq.Command.COMPLETE, b"result")
    second = [at(2, command) for _ in range(300) for command in (START, TIMEOUT)]
    write_workq(tmp_path, [lively(1), *attempts, lively(2), *second, done, lively(3)])
    before = fold_of(tmp_path)

    refused = run("handover", "--json", tmp_path)

    assert refused.exit_code == 3
    assert kinds(refused)["refused"] == sorted(
        workq_id for workq_id in map(_text, (job_id(1), job_id(2)))
    )
    assert fold_of(tmp_path) == before
    assert "Max attempts reached" in run("handover", tmp_path).stdout

    accepted = run("handover", "--json", "--accept", tmp_path)

    assert accepted.exit_code == 0
    assert changes(accepted) == ["rewritten"]
    assert len(loaded(tmp_path)) == 3
    states = fold_of(tmp_path)
    assert [states[job_id(n)].attempts for n in (1, 2, 3)] == [254, 255, 0]  # type: ignore[attr-defined]
    assert states[job_id(2)].result == b"result"  # type: ignore[attr-defined]


def _text(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def test_a_command_of_a_newer_version_is_refused_and_kept(tmp_path):
    newer = workq.UnknownCommand(Instant(NOW_NS), job_id(1), workq.NewerCommand(99), b"new")
    write_workq(tmp_path, [lively(1), newer])

    result = run("handover", "--json", "--accept", tmp_path)

    assert result.exit_code == 3
    assert kinds(result) == {"refused": [_text(job_id(1))]}
    assert list(records_in(tmp_path)) == [lively(1), newer]


def test_what_workq_has_no_place_for_is_to_be_decided(tmp_path):
    data = tmp_path / "data"
    fails = 3 | (1000 << 16)
    write_workq(data / "workq", [lively(1, max_fails=fails), lively(2), lively(3)])
    child = {"after": [_text(job_id(1))], "name": "mail", "ttr_ms": 1, "ttl_ms": 1}
    write_ledger(
        data / "ledger",
        ledger.QueuePaused(AT, "mail"),
        ledger.QueueLimitsSet(AT, "work", {"concurrency": 1}),
        ledger.JobOptionsSet(AT, _text(job_id(2)), {"key": "k"}),
        ledger.JobOptionsSet(AT, _text(job_id(3)), {"failed_ns": 1, "ready_ns": LATER_NS}),
        ledger.JobOptionsSet(AT, _text(job_id(8)), {"key": "of a job that has ended"}),
        ledger.JobOptionsSet(AT, _text(job_id(9)), child),
    )

    result = run("handover", "--json", data)

    assert result.exit_code == 3
    assert kinds(result) == {
        "paused": ["mail"],
        "limits": ["work"],
        "retries": [_text(job_id(1))],
        "delays": [_text(job_id(1)), _text(job_id(3))],
        "keys": [_text(job_id(2))],
        "children": [_text(job_id(9))],
    }
    assert run("handover", "--accept", data / "workq").exit_code == 0


def test_segments_that_a_lake_has_not_read_are_not_written_again(tmp_path):
    write_workq(tmp_path, [lively(1), at(1, START), at(1, START)], [lively(2)])
    place = Place("000000001.log", 0, 0)
    assert register(DISK, str(tmp_path), "me", "lake /lake", CLOCK.now_ns(), {"": place})

    result = run("handover", "--json", tmp_path)

    assert result.exit_code == 3
    assert set(kinds(result)) == {"unread", "refused"}


# --- kestrel ---


def test_a_queue_is_closed_and_done_items_that_come_again_are_named(tmp_path):
    spool = tmp_path / "spool"
    with KestrelLog.open(DISK, CLOCK, str(tmp_path / "killed"), "jobs") as journal:
        journal.add_reader("a")
        for _ in range(3):
            journal.put(b"item")
        shutil.copytree(tmp_path / "killed", spool)
    write_checkpoint(spool / "jobs.read.a", 0, 2, 3)

    result = run("handover", "--json", spool)

    assert result.exit_code == 3
    assert changes(result) == ["closed"]
    assert kinds(result) == {"repeated": ["'a'"]}
    again = run("handover", "--json", "--accept", spool)
    assert again.exit_code == 0
    assert changes(again) == []


@pytest.mark.parametrize(("head", "is_refused"), [(1, True), (2, True), (4, True), (5, False)])
def test_a_gap_in_front_of_a_reader_is_refused(tmp_path, head, is_refused):
    write_segment(tmp_path / "jobs.1", put(1), put(2), put(5), put(6))
    write_checkpoint(tmp_path / "jobs.read.a", head)

    result = run("handover", "--json", "--accept", tmp_path)

    assert (result.exit_code == 3) is is_refused
    assert kinds(result) == ({"gap": ["'a'"]} if is_refused else {})


def test_a_last_segment_that_libkestrel_cannot_map_is_refused(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1, bytes(9 << 20)), put(2, bytes(9 << 20)))
    write_checkpoint(tmp_path / "jobs.read.", 0)

    assert kinds(run("handover", "--json", tmp_path)) == {"segment-size": ["jobs.1"]}


def test_an_item_of_a_newer_version_is_refused(tmp_path):
    header = bytes.fromhex("01000000") + bytes(32)
    newer = kestrel.UnknownCommand(0x89, header, b"x")
    write_segment(tmp_path / "jobs.1", put(1), newer)
    write_checkpoint(tmp_path / "jobs.read.", 0)

    assert set(kinds(run("handover", "--json", "--accept", tmp_path))) == {"newer"}


def test_a_queue_without_a_reader_gets_none(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1))

    result = run("handover", "--json", tmp_path)

    assert result.exit_code == 3
    assert kinds(result) == {"no-reader": ["jobs"]}
    assert not list(tmp_path.glob("jobs.read.*"))


# --- all ---


def test_nothing_is_changed_while_a_server_uses_one_of_the_logs(tmp_path):
    write_ztick(tmp_path / "schedule.log.compressed", job("a"))
    write_ztick(tmp_path / "schedule.log", job("b"))
    write_workq(tmp_path / "workq", [lively(1)])

    with WorkqLog.open(DISK, CLOCK, str(tmp_path / "workq")):
        assert_one_line_error(run("handover", tmp_path), 1, "stop the process that uses it")

    assert (tmp_path / "schedule.log.compressed").exists()
    assert run("handover", tmp_path).exit_code == 0


def test_a_ledger_alone_has_no_original(tmp_path):
    write_ledger(tmp_path, ledger.QueuePaused(AT, "mail"))

    assert_one_line_error(run("handover", tmp_path), 2, "no original reads")
