"""A server that has run out of file descriptors, because clients hold them: writes go on."""

from __future__ import annotations

import resource
import socket

import pytest

from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.workq_process import WorkqProcess

FILES = 128

FEW_FILES = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
from journeyman import cli
cli.main()
"""


def fill(port: int) -> list[socket.socket]:
    """More idle connections than the server can hold."""
    return [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(2 * FILES)]


@pytest.fixture(autouse=True)
def many_files_here():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_do_not_keep_the_log_from_being_compacted(tmp_path):
    server = ScheduleProcess(
        tmp_path,
        program=FEW_FILES,
        database__compression_interval=1,
        database__logfile_path="jobs.log",
    )
    with server, server.client() as client:
        kept = fill(server.port)
        server.wait_for_line("connection refused")
        assert client.ask("a SET job 4102444800000000000") == "a OK"
        server.wait_for_line("the log was compacted")
        assert client.ask("b SET job 4102444800000000001") == "b OK"
        for each in kept:
            each.close()
        assert server.stop() == 0


def test_idle_connections_do_not_keep_the_command_log_from_being_rotated(tmp_path):
    server = WorkqProcess(tmp_path, program=FEW_FILES, workq__cmdlog_seg_size=1024)
    with server, server.worker() as client:
        kept = fill(server.workq_port)
        server.wait_for_line("connection refused")
        ids = [client.add("q", b"x" * 300) for _ in range(40)]
        assert len(list(server.cmdlog.glob("*.log"))) > 5
        assert client.job(ids[0])["state"] == "0"
        for each in kept:
            each.close()
        assert server.stop() == 0
