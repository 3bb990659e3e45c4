"""The work queue through stops, kills and starts: nothing is lost, nothing comes back."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from journeyman.formats import ledger
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded
from journeyman.units import DAY_MS, NS_PER_MS
from tests.support.servers.cmdlogs import records
from tests.support.servers.http_client import ask
from tests.support.servers.workq_process import LeasedJob, WorkqClient, WorkqProcess
from tests.support.spark.written_logs import write_ledger

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "workq"


@pytest.mark.parametrize("policy", ["interval", "os", "always"])
def test_everything_survives_a_kill(tmp_path: Path, policy: str):
    def new_life() -> WorkqProcess:
        settings = {"workq.cmdlog_sync": policy, "ledger.path": "ledger"}
        return WorkqProcess(tmp_path, settings=settings)

    with new_life() as server, server.worker() as client:
        ready = client.add("q", b"ready", flags="-priority=5")
        done = client.add("q")
        client.finish(done, b"result")
        gone = client.add("q")
        assert client.ask(f"delete {gone}") == "+OK"
        dead = client.add("dead")
        client.finish(dead, b"why", command="fail")
        retried = client.add("retried", flags="-max-fails=3")
        client.lease("retried")
        client.finish(retried, command="fail")
        assert client.ask("pause stopped") == "+OK"
        leased = client.add("leased", b"work", ttr=600_000)
        client.lease("leased")
        server.kill()
    with new_life() as server, server.worker() as client:
        job = client.lease("q")
        assert job is not None
        assert (job.job_id, job.payload) == (ready, b"ready")
        assert client.lease("q", "leased", "dead") is None
        assert client.result(done) == (True, b"result")
        assert client.inspect(f"job {gone}") == "-NOT-FOUND"
        assert client.result(dead) == (False, b"why")
        (block,) = client.blocks("dead-jobs dead 0 10")
        assert block["id"] == dead
        shown = client.job(retried)
        assert (shown["state"], shown["fails"], shown["attempts"]) == ("3", "1", "1")
        assert client.job(leased)["state"] == "4"
        (paused,) = client.blocks("paused-queues 0 10")
        assert paused["id"] == "stopped"
        assert client.finish(leased, b"late") == "+OK"


def test_lease_ends_when_it_would_have_without_the_restart(tmp_path: Path):
    def leased_until(server: WorkqProcess) -> str:
        return str(ask(server, "GET", f"/v1/work/jobs/{job_id}")[1]["leased_until"])

    settings = {"http.listen": "127.0.0.1:0"}
    with WorkqProcess(tmp_path, settings=settings) as server, server.worker() as client:
        job_id = client.add("q", ttr=600_000)
        assert client.lease("q") is not None
        until = leased_until(server)
        server.kill()
    with WorkqProcess(tmp_path, settings=settings) as server, server.worker() as client:
        assert client.lease("q") is None
        assert leased_until(server) == until


def test_ttl_is_a_moment_that_a_restart_does_not_move(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        added_at = time.monotonic()
        job_id = client.add("q", ttl=3000)
        server.kill()
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        server.wait_until(
            lambda: client.inspect(f"job {job_id}") == "-NOT-FOUND", "its TTL is over"
        )
        assert time.monotonic() - added_at >= 3.0 - 0.1
        assert client.lease("q") is None


def test_retry_delay_and_requeue_survive_a_restart(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        slow = client.add("slow", flags="-max-fails=5 -retry-delay=3600000")
        client.lease("slow")
        client.finish(slow, command="fail")
        again = client.add("again", b"payload")
        client.finish(again, command="fail")
        assert client.ask(f"requeue {again}") == "+OK"
        server.kill()
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert client.lease("slow") is None
        (block,) = client.blocks("scheduled-jobs slow 0 10")
        assert (block["id"], block["max-fails"]) == (slow, "5")
        job = client.lease("again")
        assert job is not None
        assert (job.job_id, job.payload) == (again, b"payload")
        server.kill()
        assert [r.command for r in records(server) if r.job_id.hex() == again.replace("-", "")] == [
            Command.ADD,
            Command.FAIL,
            Command.DELETE,
            Command.ADD,
            Command.START_ATTEMPT,
        ]


def test_foreground_jobs_leave_no_record(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client, server.worker() as worker:
        client.send("run 00000000-0000-4000-8000-000000000001 q 60000 60000 0\r\n\r\n")
        job = worker.lease("q", wait=20_000)
        assert job is not None
        worker.finish(job.job_id, b"x")
        assert client.read_result() == (True, b"x")
        assert server.stop() == 0
        assert records(server) == []


def test_cleaning_while_serving_never_brings_a_deleted_job_back(tmp_path: Path):
    """Most jobs expire soon, so that segments are worth cleaning while the others live."""
    settings = {"workq.cmdlog_seg_size": 2000, "workq.cmdlog_clean_int": 100}
    with WorkqProcess(tmp_path, settings=settings) as server, server.worker() as client:
        kept, deleted = [], []
        for number in range(300):
            if number % 30 == 0:
                kept.append(client.add("q", b"x" * 50, ttl=300_000))
            elif number % 30 == 15:
                deleted.append(client.add("q", b"x" * 50, ttl=300_000))
                assert client.ask(f"delete {deleted[-1]}") == "+OK"
            else:
                client.add("short", b"x" * 50, ttl=10)
        server.wait_for_line("the command log was cleaned")
        server.kill()
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert all(client.inspect(f"job {job_id}") == "-NOT-FOUND" for job_id in deleted)
        assert [job.job_id for job in leases(client, "q")] == kept


def test_an_event_is_forgotten_when_the_settings_say(tmp_path: Path):
    happened = ledger.EventSet(Instant(time.time_ns() - 3 * DAY_MS * NS_PER_MS), "e", "1", 0)
    write_ledger(tmp_path, [happened])
    settings = {"ledger.path": "ledger", "http.listen": "127.0.0.1:0"}
    with WorkqProcess(tmp_path, settings=settings) as server:
        assert ask(server, "GET", "/v1/work/events/e")[0] == 200
    settings["events.retention"] = "2"
    with WorkqProcess(tmp_path, settings=settings) as server:
        server.wait_until(lambda: ask(server, "GET", "/v1/work/events/e")[0] == 404)


def leases(client: WorkqClient, name: str) -> list[LeasedJob]:
    found = []
    while (job := client.lease(name)) is not None:
        found.append(job)
    return found


def test_stop_answers_those_who_wait_and_ends_the_connection(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as worker, server.worker() as client:
        worker.send_lease("q", wait=60_000)
        client.add("other")
        server.wait_until(lambda: client.inspect("queue q") != "-NOT-FOUND", "it waits")
        assert server.stop() == 0
        assert worker.read_to_the_end() == b"-TIMEOUT\r\n"
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert client.lease("other") is not None


def test_only_one_server_has_the_log(tmp_path: Path):
    with WorkqProcess(tmp_path) as server:
        second = WorkqProcess(tmp_path)
        second.start(wait=False)
        assert second.wait() == 1
        second.wait_for_line("journeyman: error: cmdlog: another process has this log open")
        assert server.process.poll() is None


def test_second_signal_while_stopping_is_no_harm(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        client.add("q")
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() in (0, 1)
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert client.lease("q") is not None


# -- logs of the original -------------------------------------------------------------------------

GOLDEN_LOGS = sorted(path.name for path in GOLDEN.iterdir() if (path / "cmdlog").is_dir())


@pytest.mark.parametrize("name", GOLDEN_LOGS)
def test_log_of_the_original_is_served_whatever_is_in_it(tmp_path: Path, name: str):
    """Also those that it cannot load itself. Jobs that have not expired by now are there."""
    shutil.copytree(GOLDEN / name / "cmdlog", tmp_path / "cmdlog")
    for path in (tmp_path / "cmdlog").iterdir():
        os.chmod(path, 0o644)
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        client.blocks("queues 0 100")
        added = client.add("new", b"job")
        job = client.lease("new")
        assert job is not None
        assert job.job_id == added
        assert server.stop() == 0
        assert any(isinstance(r, JobAdded) and r.name == "new" for r in records(server))


def test_jobs_of_the_original_can_be_worked_on(tmp_path: Path):
    """f-never-expires: created in 2099, so they live whenever this test runs."""
    shutil.copytree(GOLDEN / "f-never-expires" / "cmdlog", tmp_path / "cmdlog")
    for path in (tmp_path / "cmdlog").iterdir():
        os.chmod(path, 0o644)
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        found = client.blocks("queues 0 100")
        ready = {block["id"]: int(block["ready-len"]) for block in found}
        assert sum(ready.values()) > 0
        for name, count in ready.items():
            jobs = leases(client, name)
            assert len(jobs) >= count
            for job in jobs:
                assert client.finish(job.job_id, b"done") == "+OK"
        server.kill()
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert all(client.lease(name) is None for name in ready)
