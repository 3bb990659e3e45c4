"""A real server notes what ran when; kill -9, restarts and full directories included."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from journeyman.logs.ztick.run_history import decode_run
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ScheduleProcess


def history(directory: Path, name: str = "logfile.runs") -> list[dict[str, Any]]:
    files = sorted((directory / name).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def test_every_run_is_noted_with_its_rule_times_and_outcome(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask("r RULE SET good ok. direct true")
        server.ask('r RULE SET bad no. shell "echo redis://u:secret@h; exit 3"')
        before_ns = time.time_ns()
        server.ask("r SET ok.1 17")
        server.ask("r SET no.1 18")
        server.ask("r SET lonely 19")
        server.wait_for_status("no.1", "failed")
        server.wait_for_status("ok.1", "executed")
        server.wait_for_status("lonely", "failed")
        assert server.stop() == 0
        after_ns = time.time_ns()
    runs = {run["job"]: run for run in history(tmp_path)}
    lonely = runs.pop("lonely")  # it had no rule
    assert (lonely["rule"], lonely["runner"], lonely["outcome"]) == ("", "", "failed")
    assert lonely["detail"] == "no rule matches"
    assert set(runs) == {"ok.1", "no.1"}
    good, bad = runs["ok.1"], runs["no.1"]
    assert (good["rule"], good["runner"], good["outcome"]) == ("good", "direct", "executed")
    assert (bad["rule"], bad["runner"], bad["outcome"]) == ("bad", "shell", "failed")
    assert (good["execution_ns"], bad["execution_ns"]) == (17, 18)
    assert "3" in bad["detail"]
    assert bad["output"] == "redis://***@h\n"
    for run in runs.values():
        assert before_ns <= run["started_ns"] <= run["ended_ns"] <= after_ns + 1_000_000_000


def test_lines_are_whole_after_kill_9_and_the_next_server_goes_on(tmp_path):
    jobs = 400
    with ScheduleProcess(tmp_path) as server:
        server.ask("r RULE SET rule job. direct true")
        with server.client() as client:
            client.send(*(f"r SET job.{number} {number}" for number in range(jobs)))
            for _ in range(jobs):
                assert client.read_line() == "r OK"
        folder = tmp_path / "logfile.runs"
        server.wait_until(
            lambda: any(file.stat().st_size for file in folder.glob("*")), "something is written"
        )
        server.kill()
    (file,) = folder.glob("*.jsonl")
    noted = file.read_bytes().split(b"\n")
    assert noted.pop() == b""  # one write a batch: killed between two, never within a line
    assert all(decode_run(line) is not None for line in noted)
    assert 0 < len(noted) <= jobs
    file.write_bytes(file.read_bytes()[:-7])  # what a power cut may leave
    with ScheduleProcess(tmp_path, http__listen="127.0.0.1:0") as server:
        server.wait_until(lambda: server.stat()["jobs_executed"] == str(jobs), "all have run")
        status, answer = ask(server, "GET", "/v1/schedule/runs?limit=500")
        assert server.stop() == 0
    assert status == 200
    assert len(answer["runs"]) >= len(noted) - 1  # those of the process before are told as well
    lines = [decode_run(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert lines.count(None) == 1
    assert len(lines) >= len(noted)


def test_a_run_cut_off_by_the_stop_is_noted_as_such(tmp_path):
    with ScheduleProcess(tmp_path, limits__stop_timeout_ms=0) as server:
        server.ask('r RULE SET rule job. shell "echo x > ran; exec sleep 60"')
        server.ask("r SET job.1 0")
        server.wait_for_text("ran")
        assert server.stop() == 0
    (run,) = history(tmp_path)
    assert (run["job"], run["outcome"], run["rule"]) == ("job.1", "cut-off", "rule")


def test_history_may_go_elsewhere_or_nowhere(tmp_path):
    with ScheduleProcess(tmp_path, history__path="elsewhere") as server:
        server.ask("r RULE SET rule job. direct true")
        server.ask("r SET job.1 0")
        server.wait_for_status("job.1", "executed")
        assert server.stop() == 0
    assert [run["job"] for run in history(tmp_path, "elsewhere")] == ["job.1"]
    with ScheduleProcess(tmp_path, history__enabled="false") as server:
        server.ask("r SET job.2 0")
        server.wait_for_status("job.2", "executed")
        assert server.stop() == 0
    assert not (tmp_path / "logfile.runs").exists()


def test_a_history_that_cannot_be_written_stops_no_run(tmp_path):
    (tmp_path / "logfile.runs").write_text("a file where the directory should be")
    with ScheduleProcess(tmp_path) as server:
        server.ask("r RULE SET rule job. direct true")
        server.ask("r SET job.1 0")
        server.wait_for_status("job.1", "executed")
        server.wait_for_line("WARN .*history of runs cannot be written")
        server.ask("r SET job.2 0")
        server.wait_for_status("job.2", "executed")
        assert server.stop() == 0


def test_runs_older_than_the_remembered_ones_are_found_in_the_history(tmp_path):
    patch = "import journeyman.servers.ztick.runs as runs; runs.REMEMBERED_RUNS = 2"
    with ScheduleProcess(tmp_path, patch=patch, settings={"http.listen": "127.0.0.1:0"}) as server:
        server.ask("r RULE SET rule job. shell 'exit 1'")
        for number in range(5):
            server.ask(f"r SET job.{number} {number}")
            server.wait_for_status(f"job.{number}", "failed")

        def asked(query: str) -> list[str]:
            return [run["id"] for run in ask(server, "GET", f"/v1/schedule/runs{query}")[1]["runs"]]

        server.wait_until(lambda: len(history(tmp_path)) == 5, "all runs are written")
        assert asked("") == ["job.4", "job.3"]
        assert asked("?since=2020-01-01T00:00:00Z") == [f"job.{n}" for n in (4, 3, 2, 1, 0)]
        assert asked("?since=2020-01-01T00:00:00Z&success=true") == []
        assert asked("?since=2100-01-01T00:00:00Z") == []
