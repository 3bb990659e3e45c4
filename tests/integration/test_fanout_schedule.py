"""The schedule puts on fan-out queues: rules with the journal runner, in a real server."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers.fanout_process import FanOutProcess
from tests.support.servers.schedule_process import ScheduleProcess


def test_due_job_is_put_for_every_reader(tmp_path: Path):
    with FanOutProcess(tmp_path) as server, server.reader() as reader:
        assert reader.get("due+a") is None  # both readers exist before the job is due
        assert reader.get("due+b") is None
        assert server.ask("1 RULE SET mail.rule mail. journal due") == "1 OK"
        assert server.ask("2 SET mail.1 1") == "2 OK"
        assert reader.get("due+a/t=20000") == b"mail.1"
        assert reader.get("due+b/t=20000") == b"mail.1"
        server.wait_for_status("mail.1", "executed")
        with server.client() as client:
            client.send("3 LISTRULES")
            assert client.read_list("3") == ["mail.rule mail. journal due"]


def test_refused_put_is_a_failed_run(tmp_path: Path):
    limit = "{due = {max_items = 1}}"
    settings = {"kestrel.queue": limit, "log.level": "debug"}
    with FanOutProcess(tmp_path, settings=settings) as server, server.reader() as reader:
        assert reader.put("due", b"first") == "STORED"
        assert server.ask("1 RULE SET mail.rule mail. journal due") == "1 OK"
        assert server.ask("2 SET mail.1 1") == "2 OK"
        server.wait_for_status("mail.1", "failed")
        server.wait_for_line("queue due refused the item: it is full")
        assert reader.get("due") == b"first"
        assert server.ask("3 SET mail.1 1") == "3 OK"  # planned anew, it runs
        assert reader.get("due/t=20000") == b"mail.1"


def test_without_the_door_the_run_fails(tmp_path: Path):
    with ScheduleProcess(tmp_path, log__level="debug") as server:
        assert server.ask("1 RULE SET mail.rule mail. journal due") == "1 OK"
        assert server.ask("2 SET mail.1 1") == "2 OK"
        server.wait_for_status("mail.1", "failed")
        server.wait_for_line("no fan-out queues are served")


def test_rule_and_items_outlive_a_restart(tmp_path: Path):
    settings = {"database.persistence": "logfile"}
    with FanOutProcess(tmp_path, settings=settings) as server:
        assert server.ask("1 RULE SET mail.rule mail. journal due") == "1 OK"
        assert server.ask("2 SET mail.1 1") == "2 OK"
        server.wait_for_status("mail.1", "executed")
        server.kill()
    with FanOutProcess(tmp_path, settings=settings) as server, server.reader() as reader:
        assert reader.get("due/t=20000") == b"mail.1"
        assert server.ask("1 SET mail.2 1") == "1 OK"
        assert reader.get("due/t=20000") == b"mail.2"
