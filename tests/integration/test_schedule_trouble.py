"""A disk that is full or fails, under a real server."""

from __future__ import annotations

import http.client
import json

from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.trouble import FAILING_SYNC, limit

FAR_NS = 4_000_000_000_000_000_000


def test_a_file_that_may_not_grow_refuses_changes_and_recovers(tmp_path):
    """RLIMIT_FSIZE: the write fails with EFBIG, as one on a full disk does with ENOSPC."""
    with (
        ScheduleProcess(tmp_path, limits__stop_timeout_ms=100) as server,
        server.client() as client,
    ):
        assert client.ask(f"r SET before {FAR_NS}") == "r OK"
        size = (tmp_path / "logfile").stat().st_size
        limit(server, size + 10)
        assert client.ask(f"r SET refused {FAR_NS}") == "r ERROR internal"
        assert client.ask("r REMOVE before") == "r ERROR internal"
        assert client.ask("g GET before") == f"g OK planned {FAR_NS}"
        assert client.ask("g GET refused").startswith("g ERROR not_found")
        server.wait_for_line("ERROR the log cannot be written")
        assert (tmp_path / "logfile").stat().st_size == size
        limit(server, None)
        assert client.ask(f"r SET after {FAR_NS}") == "r OK"
        server.wait_for_line("the log can be written again")
        server.kill()
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("g GET before") == f"g OK planned {FAR_NS}"
        assert server.ask("g GET after") == f"g OK planned {FAR_NS}"
        assert server.ask("g GET refused").startswith("g ERROR not_found")


def test_a_job_due_while_the_disk_is_full_runs_when_there_is_room(tmp_path):
    with ScheduleProcess(tmp_path) as server, server.client() as client:
        assert client.ask('r RULE SET rule job. shell "echo x >> ran"') == "r OK"
        before = (tmp_path / "logfile").stat().st_size
        assert client.ask(f"r SET far.1 {FAR_NS}") == "r OK"
        size = (tmp_path / "logfile").stat().st_size
        limit(server, size + (size - before) + 1)  # room for one more of these
        assert client.ask("r SET job.1 5") == "r OK"
        server.wait_for_line("ERROR the log cannot be written")
        assert client.ask("g GET job.1") == "g OK planned 5"
        assert not (tmp_path / "ran").exists()
        limit(server, None)
        server.wait_for_status("job.1", "executed")
        assert (tmp_path / "ran").read_text() == "x\n"


def test_over_http_a_full_disk_says_try_again(tmp_path):
    with ScheduleProcess(tmp_path, http__listen="127.0.0.1:0") as server:
        assert put_job(server, "before") == 200
        limit(server, (tmp_path / "logfile").stat().st_size + 1)
        assert put_job(server, "refused") == 503
        limit(server, None)
        assert put_job(server, "after") == 200
        assert server.stat()["jobs_total"] == "2"


def put_job(server: ScheduleProcess, name: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        body, kind = json.dumps({"execution": FAR_NS}), {"Content-Type": "application/json"}
        connection.request("PUT", f"/jobs/{name}", body, kind)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_failed_sync_ends_the_process_and_answers_nobody(tmp_path):
    with ScheduleProcess(tmp_path, program=FAILING_SYNC) as server, server.client() as client:
        assert client.ask(f"r SET safe {FAR_NS}") == "r OK"
        (tmp_path / "fail").touch()
        client.send(f"r SET unsafe {FAR_NS}")
        assert client.read_line() is None
        assert server.wait() == 1
        server.wait_for_line("^journeyman: error: .*sync failed")
    (tmp_path / "fail").unlink()
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("g GET safe") == f"g OK planned {FAR_NS}"
