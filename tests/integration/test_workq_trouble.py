"""A disk that is full or fails, under the work queue of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.trouble import FAILING_SYNC, READ_ONLY, limit
from tests.support.servers.workq_process import WorkqProcess


def segment(server: WorkqProcess) -> Path:
    return server.cmdlog / "000000001.log"


@pytest.mark.parametrize("sync", ["interval", "always"])
def test_full_disk_refuses_changes_goes_on_reading_and_recovers(tmp_path: Path, sync: str):
    with WorkqProcess(tmp_path, workq__cmdlog_sync=sync) as server, server.worker() as client:
        before = client.add("q", b"before")
        size = segment(server).stat().st_size
        limit(server, size + 10)
        refused = "add 00000000-0000-4000-8000-000000000001 q 1000 60000 1"
        assert client.ask(refused, b"x") == READ_ONLY
        assert client.finish(before) == READ_ONLY
        assert client.ask("lease q 1000") == READ_ONLY
        assert client.job(before)["state"] == "0"
        assert client.inspect("job 00000000-0000-4000-8000-000000000001") == "-NOT-FOUND"
        assert client.result(before) == "-TIMEOUT"
        server.wait_for_line("ERROR the command log cannot be written")
        assert segment(server).stat().st_size == size
        limit(server, None)
        assert client.ask(refused, b"x") == "+OK"
        server.wait_for_line("the command log can be written again")
        server.kill()
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        (queue,) = client.blocks("queue q")
        assert queue["ready-len"] == "2"


def test_worker_that_waits_gets_its_job_when_there_is_room(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client, server.worker() as worker:
        worker.send_lease("q", wait=60_000)
        client.add("other")
        limit(server, segment(server).stat().st_size + 10)
        line = "add 00000000-0000-4000-8000-000000000001 q 1000 60000 1"
        assert client.ask(line, b"x") == READ_ONLY
        limit(server, None)
        assert client.ask(line, b"x") == "+OK"
        job = worker.read_leased()
        assert job is not None
        assert job.payload == b"x"


def test_lease_that_runs_out_while_the_disk_is_full_is_given_out_when_there_is_room(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client, server.worker() as worker:
        for name in ("q", "other"):
            client.add(name, ttr=300)
        before = segment(server).stat().st_size
        assert client.lease("other") is not None
        size = segment(server).stat().st_size
        limit(server, size + (size - before) + 1)  # room for one more lease
        assert client.lease("q") is not None
        worker.send_lease("q", wait=60_000)
        server.wait_for_line("ERROR the command log cannot be written")
        assert client.inspect("queue q") != "-NOT-FOUND"
        limit(server, None)
        assert worker.read_leased() is not None


@pytest.mark.parametrize("sync", ["interval", "always"])
def test_failed_sync_ends_the_process(tmp_path: Path, sync: str):
    with (
        WorkqProcess(
            tmp_path, program=FAILING_SYNC, workq__cmdlog_sync=sync, workq__cmdlog_sync_int=20
        ) as server,
        server.worker() as client,
    ):
        safe = client.add("q", b"safe")
        (tmp_path / "fail").touch()
        client.send("add 00000000-0000-4000-8000-000000000001 q 1000 60000 1\r\nx\r\n")
        answer = client.read_to_the_end()
        # With an interval, the sync of the job before may fail before this one is answered.
        assert answer in ([b""] if sync == "always" else [b"", b"+OK\r\n"])
        assert server.wait() == 1
        server.wait_for_line("^journeyman: error: .*sync failed")
    (tmp_path / "fail").unlink()
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert client.job(safe)["payload"] == "safe"


def test_failed_sync_of_the_work_queue_stops_the_schedule_as_well(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, program=FAILING_SYNC, workq__cmdlog_sync="always") as server,
        server.worker() as client,
        server.client() as schedule,
    ):
        assert schedule.ask("r SET job 4000000000000000000") == "r OK"
        (tmp_path / "fail").touch()
        client.send("add 00000000-0000-4000-8000-000000000001 q 1000 60000 1\r\nx\r\n")
        assert server.wait() == 1
        assert schedule.read_line() is None
