"""A log whose jobs had their time while no server ran, and what ztick may have left beside it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from journeyman.formats.ztick import CODEC, JobSet, Record, RuleSet, Shell, Status
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000
PAST = 700  # more than are taken at a time


def foreign_log(directory: Path) -> None:
    """As ztick writes it: every job planned, whether it ran or not."""
    records: list[Record] = [
        RuleSet("rule", "past.", Shell("echo $JOURNEYMAN_JOB_ID >> ran")),
        *(JobSet(f"past.{number}", 1000 + number, Status.PLANNED) for number in range(PAST)),
        JobSet("past.later", FAR_NS, Status.PLANNED),
    ]
    (directory / "logfile").write_bytes(b"".join(map(CODEC.encode, records)))


def test_overdue_jobs_run_unless_said_otherwise(tmp_path: Path):
    (tmp_path / "logfile").write_bytes(
        CODEC.encode(RuleSet("rule", "past.", Shell("true")))
        + CODEC.encode(JobSet("past.1", 5, Status.PLANNED))
        + CODEC.encode(JobSet("past.2", FAR_NS, Status.PLANNED))
    )
    with ScheduleProcess(tmp_path) as server:
        server.wait_for_line(r"INFO 1 planned jobs were due before this start: they run now")
        server.wait_for_status("past.1", "executed")


def test_overdue_jobs_can_be_skipped(tmp_path: Path):
    foreign_log(tmp_path)
    with ScheduleProcess(tmp_path, schedule__overdue="skip") as server:
        server.wait_for_line(rf"WARN {PAST} planned jobs were due before this start: .* not run")
        assert server.ask("r SET past.new 5") == "r OK"  # not of the log: it runs
        assert server.ask("r SET past.1 6") == "r OK"  # planned anew: it runs
        server.wait_for_status("past.new", "executed")
        server.wait_for_status("past.1", "executed")
        server.wait_for_status(f"past.{PAST - 1}", "failed")
        assert server.stat()["jobs_failed"] == str(PAST - 1)
        assert server.ask("r GET past.later") == f"r OK planned {FAR_NS}"
        assert server.stop() == 0
    assert sorted((tmp_path / "ran").read_text().split()) == ["past.1", "past.new"]
    with ScheduleProcess(tmp_path) as server:  # they have failed for good
        assert server.stat()["jobs_failed"] == str(PAST - 1)
        assert not any("due before this start" in line for line in server.lines)


@pytest.mark.parametrize("name", ["logfile.compressed", "logfile.to_compress"])
def test_what_ztick_left_under_its_own_name_is_named_and_not_read(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(CODEC.encode(JobSet("lost", FAR_NS, Status.PLANNED)))
    with ScheduleProcess(tmp_path, database__logfile_path="data/schedule.log") as server:
        suffix = name.removeprefix("logfile")
        server.wait_for_line(rf"WARN {name} is there and was not read.*schedule\.log{suffix}$")
        assert server.stat()["jobs_total"] == "0"
    assert (tmp_path / name).exists()


def test_own_files_are_not_named(tmp_path: Path):
    (tmp_path / "logfile.compressed").write_bytes(
        CODEC.encode(JobSet("kept", FAR_NS, Status.PLANNED))
    )
    with ScheduleProcess(tmp_path) as server:
        assert server.stat()["jobs_total"] == "1"
        assert not any("not read" in line for line in server.lines)


# -- what operators see --------------------------------------------------------------------------


def test_failed_run_is_a_warning(tmp_path: Path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule.bad bad. shell "exit 3"')
        server.ask("r SET bad.1 5")
        line = server.wait_for_line("WARN a run failed .*").group()
        for part in ("job=bad.1", "rule=rule.bad", "reason=", "3", "duration_ms="):
            assert part in line


def test_due_job_without_a_rule_is_a_warning_a_record_and_a_figure(tmp_path: Path):
    with ScheduleProcess(tmp_path, http__listen="127.0.0.1:0") as server:
        with server.client() as client:
            for number in range(30):
                client.ask(f"r SET lost.{number} 5")
        server.wait_for_line("WARN a job is due and no rule matches it: failed job=lost.0")
        server.wait_for_status("lost.29", "failed")
        server.wait_until(lambda: "journeyman_jobs_without_rule_total 30.0\n" in metrics(server))
        assert server.stop() == 0
    runs = [
        json.loads(line)
        for file in (tmp_path / "logfile.runs").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sorted(run["job"] for run in runs) == sorted(f"lost.{number}" for number in range(30))
    assert {(run["outcome"], run["detail"], run["rule"]) for run in runs} == {
        ("failed", "no rule matches", "")
    }


def metrics(server: ScheduleProcess) -> str:
    with urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())
