"""Both doors together: rules that add jobs to the work queue, shared start and stop."""

from __future__ import annotations

import json
import time
from pathlib import Path

from journeyman.protocols.workq.replies import id_text
from journeyman.protocols.ztick.grammar import work_id
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.workq_process import WorkqProcess

DURABLE = {"database.persistence": "logfile", "workq.cmdlog_sync": "always"}


def test_due_job_becomes_work(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, settings=DURABLE) as server,
        server.client() as schedule,
        server.worker() as worker,
    ):
        rule = 'r RULE SET rule mail. queue mail -ttr=5000 -max-attempts=2 "-payload=two words"'
        assert schedule.ask(rule) == "r OK"
        schedule.send("l LISTRULES")
        assert schedule.read_list("l") == [rule.removeprefix("r RULE SET ")]
        due_ns = time.time_ns()
        assert schedule.ask(f"r SET mail.1 {due_ns}") == "r OK"
        job = worker.lease("mail", wait=20_000)
        assert job is not None
        assert job == (id_text(work_id("mail.1", due_ns)), "mail", 5000, b"two words")
        server.wait_for_status("mail.1", "executed")
        assert worker.job(job.job_id)["max-attempts"] == "2"


def test_payload_tells_the_job_unless_the_rule_does(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, memory=True) as server,
        server.client() as schedule,
        server.worker() as worker,
    ):
        assert schedule.ask("r RULE SET rule a. queue q") == "r OK"
        assert schedule.ask("r SET a.1 5") == "r OK"
        job = worker.lease("q", wait=20_000)
        assert job is not None
        assert json.loads(job.payload) == {"job_id": "a.1", "execution": 5}


def test_run_that_is_done_again_after_a_kill_adds_nothing_twice(tmp_path: Path):
    """The schedule forgets that the job ran: its log is put back to the moment before."""
    due_ns = time.time_ns()
    with WorkqProcess(tmp_path, settings=DURABLE) as server, server.client() as schedule:
        assert schedule.ask("r RULE SET rule mail. queue mail") == "r OK"
        assert schedule.ask(f"r SET mail.1 {due_ns + 1_000_000_000}") == "r OK"
        before = (tmp_path / "logfile").read_bytes()
        server.wait_for_status("mail.1", "executed")
        server.kill()
    (tmp_path / "logfile").write_bytes(before)
    with WorkqProcess(tmp_path, settings=DURABLE) as server, server.worker() as worker:
        server.wait_for_status("mail.1", "executed")
        assert worker.lease("mail", wait=10_000) is not None
        assert worker.lease("mail") is None


def test_without_a_work_queue_the_run_fails(tmp_path: Path):
    with ScheduleProcess(tmp_path) as server, server.client() as schedule:
        assert schedule.ask("r RULE SET rule mail. queue mail") == "r OK"
        assert schedule.ask("r SET mail.1 5") == "r OK"
        server.wait_for_status("mail.1", "failed")
        assert not any("work queue listens" in line for line in server.lines)


def test_port_in_use_stops_the_start_of_both(tmp_path: Path):
    with WorkqProcess(tmp_path, memory=True) as first:
        second = WorkqProcess(
            tmp_path, memory=True, settings={"workq.listen": f"127.0.0.1:{first.workq_port}"}
        )
        second.start(wait=False)
        assert second.wait() == 1
        second.wait_for_line("cannot listen: another process has this address")
        third = WorkqProcess(tmp_path, settings={"controller.listen": f"127.0.0.1:{first.port}"})
        third.start(wait=False)
        assert third.wait() == 1
    with WorkqProcess(tmp_path) as fourth, fourth.worker() as client:
        assert client.add("q")
