"""Jobs become due, run, and end; what a stop or a crash in between leaves."""

from __future__ import annotations

import json
import signal
import time

from tests.support.runner_world import is_running, wait_until
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000


def now_ns() -> int:
    return time.time_ns()


def test_a_due_job_runs_once_and_is_executed(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        command = "echo $JOURNEYMAN_JOB_ID >> ran"
        assert server.ask(f'r RULE SET rule job. shell "{command}"') == "r OK"
        due_ns = now_ns() + 300_000_000
        assert server.ask(f"r SET job.1 {due_ns}") == "r OK"
        shown = server.ask("r GET job.1")
        assert shown == f"r OK planned {due_ns}" or now_ns() >= due_ns
        server.wait_for_status("job.1", "executed")
        assert now_ns() >= due_ns
        assert (tmp_path / "ran").read_text() == "job.1\n"


def test_a_failing_command_fails_the_job_and_says_why_at_debug(tmp_path):
    with ScheduleProcess(tmp_path, log__level="debug") as server:
        server.ask('r RULE SET rule job. shell "echo to see >&2; exit 3"')
        server.ask("r SET job.1 0")
        server.wait_for_status("job.1", "failed")
        line = server.wait_for_line("execution outcome.*").string
    assert "job=job.1" in line
    assert "success=false" in line
    assert "3" in line
    assert "to see" in line


def test_a_job_without_a_rule_fails(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask("r SET lonely 0")
        server.wait_for_status("lonely", "failed")


def test_jobs_of_one_moment_start_in_the_order_of_their_sets(tmp_path):
    with ScheduleProcess(tmp_path, schedule__max_runs=1) as server:
        server.ask('r RULE SET rule job. shell "echo $JOURNEYMAN_JOB_ID >> ran"')
        due_ns = now_ns() + 500_000_000
        names = [f"job.{(7 * n) % 20:02d}" for n in range(20)]
        with server.client() as client:
            client.send(*(f"r SET {name} {due_ns}" for name in names))
            for _ in names:
                assert client.read_line() == "r OK"
        server.wait_until(lambda: server.stat()["jobs_executed"] == "20", "all ran")
        assert (tmp_path / "ran").read_text().split() == names


def test_a_slow_job_does_not_delay_the_others(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET slow slow. shell "while [ ! -e go ]; do sleep 0.05; done"')
        server.ask("r RULE SET fast fast. direct true")
        server.ask("r SET slow.1 0")
        server.wait_for_status("slow.1", "triggered")
        server.ask("r SET fast.1 1")
        server.wait_for_status("fast.1", "executed")
        assert server.ask("r GET slow.1") == "r OK triggered 0"
        assert server.stat()["executions_inflight"] == "1"
        (tmp_path / "go").touch()
        server.wait_for_status("slow.1", "executed")


def test_no_more_runs_than_allowed_at_a_time(tmp_path):
    with ScheduleProcess(tmp_path, schedule__max_runs=3) as server:
        server.ask('r RULE SET slow job. shell "while [ ! -e go ]; do sleep 0.05; done"')
        with server.client() as client:
            for number in range(10):
                assert client.ask(f"r SET job.{number} {number}") == "r OK"
        server.wait_until(lambda: server.stat()["executions_pending"] == "7", "seven wait")
        assert server.stat()["executions_inflight"] == "3"
        (tmp_path / "go").touch()
        server.wait_until(lambda: server.stat()["jobs_executed"] == "10", "all ran")


def test_many_jobs_due_at_once_all_run(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask("r RULE SET rule job. direct true")
        with server.client() as client:
            client.send(*(f"r SET job.{number} {number}" for number in range(300)))
            for _ in range(300):
                assert client.read_line() == "r OK"
        server.wait_until(lambda: server.stat()["jobs_executed"] == "300", "all ran")


def test_a_set_during_a_run_wins_over_its_end(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule job. shell "while [ ! -e go ]; do sleep 0.05; done"')
        server.ask("r SET job.1 0")
        server.wait_for_status("job.1", "triggered")
        assert server.ask(f"r SET job.1 {FAR_NS}") == "r OK"
        (tmp_path / "go").touch()
        server.wait_until(lambda: server.stat()["executions_inflight"] == "0", "run ended")
        assert server.ask("r GET job.1") == f"r OK planned {FAR_NS}"


def test_everything_is_there_after_a_restart_and_nothing_runs_twice(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule job. shell "echo x >> ran"')
        server.ask("r SET job.1 0")
        server.ask(f"r SET job.2 {FAR_NS}")
        server.ask(f"r SET job.3 {FAR_NS}")
        server.ask("r REMOVE job.3")
        server.wait_for_status("job.1", "executed")
        assert server.stop() == 0
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("r GET job.1") == "r OK executed 0"
        assert server.ask("r GET job.2") == f"r OK planned {FAR_NS}"
        assert server.ask("r GET job.3").startswith("r ERROR not_found")
        assert server.stat()["rules_total"] == "1"
        assert (tmp_path / "ran").read_text() == "x\n"


def test_acknowledged_commands_survive_kill_9(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        with server.client() as client:
            client.send(*(f"r{number} SET job.{number} {FAR_NS}" for number in range(500)))
            answered = [client.read_line() for _ in range(250)]
        server.kill()
    assert answered == [f"r{number} OK" for number in range(250)]
    with ScheduleProcess(tmp_path) as server, server.client() as client:
        for number in range(250):
            assert client.ask(f"r GET job.{number}") == f"r OK planned {FAR_NS}"


def test_a_run_cut_off_by_kill_9_runs_again(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule job. shell "echo x >> ran; [ -e go ] || sleep 60"')
        server.ask("r SET job.1 0")
        server.wait_for_text("ran")
        server.kill()
    (tmp_path / "go").touch()
    with ScheduleProcess(tmp_path) as server:
        server.wait_for_status("job.1", "executed")
        server.wait_for_line("WARN .*cut off.*job.1")
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_a_run_cut_off_may_be_failed_instead(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule job. shell "echo x >> ran; sleep 60"')
        server.ask("r SET job.1 0")
        server.wait_for_text("ran")
        server.kill()
    with ScheduleProcess(tmp_path, schedule__interrupted="fail") as server:
        server.wait_for_status("job.1", "failed")
    assert (tmp_path / "ran").read_text() == "x\n"


def test_sigterm_waits_for_runs_and_records_their_end(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule job. shell "echo x > ran; sleep 1"')
        server.ask("r SET job.1 0")
        server.wait_for_text("ran")
        assert server.stop() == 0
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("r GET job.1") == "r OK executed 0"


def test_runs_that_take_too_long_are_ended_at_the_stop(tmp_path):
    with ScheduleProcess(tmp_path, limits__stop_timeout_ms=200) as server:
        server.ask('r RULE SET rule job. shell "echo $$ > pid; exec sleep 60"')
        server.ask("r SET job.1 0")
        pid = int(server.wait_for_text("pid"))
        assert server.stop() == 0
        server.wait_for_line("1 runs were cut off")
        wait_until(lambda: not is_running(pid), "its program has ended")
    with ScheduleProcess(tmp_path, schedule__interrupted="fail") as server:
        server.wait_for_status("job.1", "failed")


def test_a_second_signal_stops_at_once(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask('r RULE SET rule job. shell "echo $$ > pid; exec sleep 60"')
        server.ask("r SET job.1 0")
        pid = int(server.wait_for_text("pid"))
        server.process.send_signal(signal.SIGINT)
        server.wait_for_line("SIGINT: stopping")
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 1
        wait_until(lambda: not is_running(pid), "its program has ended")


def test_what_was_received_before_the_stop_is_answered(tmp_path):
    with ScheduleProcess(tmp_path) as server, server.client() as client:
        client.send(*(f"r{number} SET job.{number} {FAR_NS}" for number in range(200)))
        assert client.read_line() == "r0 OK"
        server.process.send_signal(signal.SIGTERM)
        lines = client.read_all()
        assert server.wait() == 0
    assert lines == [f"r{number} OK" for number in range(1, len(lines) + 1)]
    with ScheduleProcess(tmp_path) as server:
        assert int(server.stat()["jobs_total"]) >= len(lines) + 1


def test_memory_only_writes_nothing(tmp_path):
    with ScheduleProcess(tmp_path, database__persistence="memory") as server:
        assert server.ask(f"r SET job.1 {FAR_NS}") == "r OK"
        assert server.stat()["persistence"] == "memory"
        assert server.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_without_fsync_the_log_is_written_all_the_same(tmp_path):
    with ScheduleProcess(tmp_path, database__fsync_on_persist="false") as server:
        assert server.ask(f"r SET job.1 {FAR_NS}") == "r OK"
        server.kill()
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("r GET job.1") == f"r OK planned {FAR_NS}"


def test_messages_can_be_json(tmp_path):
    with ScheduleProcess(tmp_path, messages__format="json", limits__connections=100) as server:
        assert server.stop() == 0
        server.wait_for_line("stopped")
    levels = [json.loads(line)["level"] for line in server.lines]
    assert set(levels) == {"info", "warn"}
    assert levels.count("warn") == 1  # without tokens every local user has the server's rights
