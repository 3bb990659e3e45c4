"""The log is compacted while clients go on."""

from __future__ import annotations

import time

from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000


def test_the_log_shrinks_while_commands_are_answered(tmp_path):
    with ScheduleProcess(tmp_path, database__compression_interval=1) as server:
        answered = 0

        def compactions() -> int:
            return sum("compacted" in line for line in server.lines)

        with server.client() as client:
            client.send(*(f"r SET job.{number % 10} {FAR_NS}" for number in range(5000)))
            for _ in range(5000):
                assert client.read_line() == "r OK"
            before = compactions()
            deadline = time.monotonic() + 60
            while compactions() == before or answered < 10:
                assert time.monotonic() < deadline
                assert client.ask(f"r SET job.{answered % 10} {FAR_NS + answered}") == "r OK"
                answered += 1
            last = {n: FAR_NS + max(range(n, answered, 10)) for n in range(10)}
        assert server.stat()["compression"] in ("success", "running", "idle")
        assert (tmp_path / "logfile.compressed").stat().st_size < 2000
        assert server.stop() == 0
    with ScheduleProcess(tmp_path, database__compression_interval=0) as server:
        assert server.stat()["jobs_total"] == "10"
        for number in range(10):
            assert server.ask(f"r GET job.{number}") == f"r OK planned {last[number]}"
        time.sleep(1.5)
        assert server.stat()["compression"] == "idle"


def test_removed_jobs_do_not_come_back_after_compaction_and_restart(tmp_path):
    with ScheduleProcess(tmp_path, database__compression_interval=1) as server:
        server.ask(f"r SET same {FAR_NS}")
        server.ask("r RULE SET same job. shell true")
        server.ask(f"r SET gone {FAR_NS}")
        server.wait_for_line("compacted")
        server.ask("r REMOVE gone")
        server.wait_until(
            lambda: sum("compacted" in line for line in server.lines) > 1, "a second one"
        )
        server.kill()
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("r GET gone").startswith("r ERROR not_found")
        assert server.ask("r GET same") == f"r OK planned {FAR_NS}"
        assert server.stat()["rules_total"] == "1"


def test_jobs_run_and_restart_in_the_middle_of_compactions(tmp_path):
    with ScheduleProcess(tmp_path, database__compression_interval=1) as server:
        server.ask("r RULE SET rule job. direct true")
        for number in range(40):
            assert server.ask(f"r SET job.{number} {number}") == "r OK"
            time.sleep(0.05)
        server.wait_until(lambda: server.stat()["jobs_executed"] == "40", "all ran")
        server.kill()
    with ScheduleProcess(tmp_path) as server:
        assert server.stat()["jobs_executed"] == "40"
