"""Failures reach people and programs: by mail, HTTP, a program, a job; also after a kill."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from journeyman.client import Refused, Schedule, WorkQueue
from journeyman.formats.ztick import Shell
from tests.support.ports import free_port
from tests.support.servers.mail_server import mail_server
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.whole_process import WholeProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "backup_mail"
KEY = "0123456789abcdef"


def smtp(port: int) -> dict[str, object]:
    return {
        "notices.smtp_host": "127.0.0.1",
        "notices.smtp_port": port,
        "notices.smtp_security": "none",
    }


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    copied = tmp_path / "backup_mail"
    shutil.copytree(EXAMPLE, copied)
    return copied


def journeyman(server: ScheduleProcess, *words: str | Path) -> str:
    environment = os.environ | {
        "JOURNEYMAN_URL": f"journeyman://127.0.0.1?schedule={server.port}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_mails_when_the_nightly_backup_fails(tmp_path, backup):
    config = (backup / "journeyman.toml").read_text()
    ledger = {"data.directory": str(tmp_path / "data"), "ledger.path": "ledger"}
    with (
        mail_server() as mailbox,
        ScheduleProcess(tmp_path, config=config, settings=ledger | smtp(mailbox.port)) as server,
    ):
        journeyman(server, backup / "add.sh")
        journeyman(server, "journeyman", "timetable", "run", "nightly-backup")
        (mail,) = mailbox.wait_for(1)
    assert mail["To"] == "ops@example.com"
    assert mail["From"] == "journeyman@example.com"
    assert mail["Subject"] == "nightly-backup failed: exited with status 3"
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert b"BACKUP_TARGET is not set" in body
    assert b"Job:      nightly-backup@" in body


def test_a_mail_that_cannot_be_sent_is_refused_when_it_is_asked_for(tmp_path):
    """Not in the first night that fails."""
    with (
        ScheduleProcess(tmp_path, settings={"ledger.path": "ledger"}) as server,
        Schedule(port=server.port) as schedule,
    ):
        with pytest.raises(Refused, match=r"no mail server is configured: set notices\.smtp_host"):
            schedule.set_timetable("n", at="2200-01-01", on_failure="mail a@example.com")
        with pytest.raises(Refused, match="no mail server is configured"):
            schedule.set_rule("r", "job.", Shell("true"), on_failure="mail a@example.com")
        with pytest.raises(Refused, match=r"the user .root. is not in runners\.users"):
            schedule.set_rule("r", "job.", Shell("true"), user="root")


def test_what_the_administrator_does_not_allow_any_more_fails(tmp_path):
    settings = {"ledger.path": "ledger", "notices.recipients": '["*@example.com"]'}
    to_another = ["mail", "someone@elsewhere.example"]
    with mail_server() as mailbox:
        before = {"ledger.path": "ledger", "runners.users": '["daemon"]'} | smtp(mailbox.port)
        with (
            ScheduleProcess(tmp_path, settings=before) as server,
            Schedule(port=server.port) as schedule,
        ):
            schedule.set_timetable("n", at="2200-01-01", runner=Shell("exit 1"),
                                   on_failure=to_another)  # fmt: skip
            schedule.set_rule("other", "other.", Shell("true"), user="daemon")
            assert server.stop() == 0
        with (
            ScheduleProcess(tmp_path, settings=settings | smtp(mailbox.port)) as server,
            Schedule(port=server.port) as schedule,
        ):
            with pytest.raises(Refused, match=r"someone@elsewhere\.example is not in notices"):
                schedule.set_timetable("m", at="2200-01-01", on_failure=to_another)
            schedule.run_timetable("n")
            server.wait_for_line("someone@elsewhere.example is not in notices.recipients")
            schedule.set("other.1", 1)
            server.wait_for_line("the user 'daemon' is not in runners.users")


def test_a_notice_survives_kill_9_while_the_mail_server_is_down(tmp_path):
    port = free_port()
    server = ScheduleProcess(tmp_path, settings={"ledger.path": "ledger"} | smtp(port))
    with server, Schedule(port=server.port) as schedule:
        schedule.set_timetable("n", at="2200-01-01", runner=Shell("exit 7"),
                               on_failure="mail ops@example.com")  # fmt: skip
        job = schedule.run_timetable("n")
        server.wait_for_line("could not send by the mail server")
        server.kill()
    with mail_server(port) as mailbox, server.start():
        (mail,) = mailbox.wait_for(1)
        assert mail["Subject"] == "n failed: exited with status 7"
        body = mail.get_payload(decode=True)
        assert isinstance(body, bytes)
        assert job.encode() in body


@contextlib.contextmanager
def hook() -> Iterator[tuple[int, list[tuple[dict[str, str], bytes]], threading.Event]]:
    received: list[tuple[dict[str, str], bytes]] = []
    arrived = threading.Event()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    listener = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield listener.server_port, received, arrived
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def test_a_request_is_signed(tmp_path):
    (tmp_path / "key").write_text(f"{KEY}\n")
    settings = {"ledger.path": "ledger", "notices.signing_key_file": "key"}
    with (
        hook() as (port, received, arrived),
        ScheduleProcess(tmp_path, settings=settings) as server,
        Schedule(port=server.port) as schedule,
    ):
        url = f"http://127.0.0.1:{port}/hook"
        schedule.set_rule("r", "job.", Shell("echo so; exit 2"), on_failure=["http", "POST", url])
        schedule.set("job.1", 1)
        assert arrived.wait(60)
        (rule,) = schedule.rules()
        assert rule.options == {"on_failure": ["http", "POST", url]}
    ((headers, body),) = received
    fields = dict(part.split("=", 1) for part in headers["Journeyman-Signature"].split(","))
    signed = f"{fields['t']}.".encode() + body
    assert fields["v1"] == hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
    assert json.loads(body) == {
        "owner": "r",
        "event": "failed",
        "job": "job.1",
        "execution": 1,
        "reason": "exited with status 2",
        "output": "so\n",
    }


def test_a_program_gets_the_facts_and_a_task_gets_them_as_its_argument(tmp_path):
    with WholeProcess(tmp_path) as server, Schedule(port=server.port) as schedule:
        told = tmp_path / "told"
        report = f'echo "$JOURNEYMAN_NOTICE_OWNER: $JOURNEYMAN_NOTICE_REASON" > {told}'
        schedule.set_rule("r", "job.", Shell("exit 2"), on_failure=["shell", report])
        words = ["queue", "alerts", "-task=shop.alert"]
        schedule.set_rule("s", "other.", Shell("exit 3"), on_failure=words)
        schedule.set("job.1", 1)
        schedule.set("other.1", 1)
        with WorkQueue(port=server.ports["work"]) as queue:
            job = queue.lease("alerts", wait_ms=60_000)
            assert job is not None
            call = json.loads(job.payload)
            queue.complete(job.job_id, b"")
        assert (call["task"], call["kwargs"]) == ("shop.alert", {})
        assert call["args"][0]["reason"] == "exited with status 3"
        assert server.wait_for_text("told") == "r: exited with status 2\n"


def test_a_program_runs_in_its_directory_with_its_environment_and_time_limit(tmp_path):
    with (
        ScheduleProcess(tmp_path, settings={"ledger.path": "ledger"}) as server,
        Schedule(port=server.port) as schedule,
    ):
        place = tmp_path / "place"
        place.mkdir()
        schedule.set_rule("r", "job.", Shell('echo "$WHO" > here'), directory=str(place),
                          environment=["WHO=two words"])  # fmt: skip
        schedule.set("job.1", 1)
        assert server.wait_for_text("place/here") == "two words\n"
        schedule.set_rule("slow", "slow.", Shell("sleep 1000"), timeout="1s")
        schedule.set("slow.1", 1)
        server.wait_for_line("ran longer than 1 s and was stopped")
        schedule.set_rule("lost", "lost.", Shell("true"), directory="/no/such/place")
        schedule.set("lost.1", 1)
        server.wait_for_line("the directory '/no/such/place' cannot be entered")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_program_runs_as_a_user_whom_the_administrator_allows(tmp_path):
    settings = {"ledger.path": "ledger", "runners.users": '["daemon"]'}
    with (
        ScheduleProcess(tmp_path, settings=settings) as server,
        Schedule(port=server.port) as schedule,
    ):
        schedule.set_rule("r", "job.", Shell("id -un; exit 1"), user="daemon",
                          on_failure="shell 'echo $JOURNEYMAN_NOTICE_OUTPUT > who'")  # fmt: skip
        schedule.set("job.1", 1)
        assert server.wait_for_text("who") == "daemon\n"


def test_a_token_needs_the_permission_for_what_reports(tmp_path):
    (tmp_path / "tokens").write_text(
        '[token.a]\nsecret = a\nnamespace = "team."\nrunners = "http shell"\n'
    )
    settings = {"ledger.path": "ledger", "controller.auth_file": "tokens"}
    with (
        ScheduleProcess(tmp_path, settings=settings) as server,
        Schedule(port=server.port, token="a") as schedule,
        hook() as (port, received, _),
    ):
        with pytest.raises(Refused, match="may not use the runner mail"):
            schedule.set_timetable("team.n", every="1h", on_failure="mail a@example.com")
        with pytest.raises(Refused, match="may not use the runner queue"):
            schedule.set_rule("team.r", "team.", Shell("true"), on_failure="queue team.alerts")
        # A tenant reaches no private address by a notice either.
        url = f"http://127.0.0.1:{port}/"
        schedule.set_rule("team.r", "team.", Shell("exit 1"), on_failure=["http", "POST", url])
        schedule.set("team.1", 1)
        server.wait_for_line("the address is not public")
        assert received == []


def test_a_failing_timetable_is_in_the_figures_until_it_succeeds_also_after_a_restart(tmp_path):
    settings = {"ledger.path": "ledger", "http.listen": "127.0.0.1:0"}
    server = ScheduleProcess(tmp_path, settings=settings)
    series = 'journeyman_timetable_failing{timetable="n"} 1'

    def figures() -> str:
        return urlopen(f"http://127.0.0.1:{server.http_port}/metrics").read().decode()  # type: ignore[no-any-return]

    with server, Schedule(port=server.port) as schedule:
        schedule.set_timetable("n", at="2200-01-01", runner=Shell("test -e good"))
        schedule.run_timetable("n")
        server.wait_until(lambda: series in figures())
        assert server.stop() == 0
    server = ScheduleProcess(tmp_path, settings=settings)
    with server, Schedule(port=server.port) as schedule:
        assert series in figures()
        (tmp_path / "good").touch()
        schedule.run_timetable("n")
        server.wait_until(lambda: series not in figures())


def test_the_failure_of_a_task_is_reported_although_the_worker_is_killed(tmp_path):
    (tmp_path / "shop.py").write_text(
        "import journeyman as jm\n"
        "app = jm.App()\n"
        "@app.task(on_failure='mail ops@example.com')\n"
        "def export():\n"
        "    raise ValueError('disk full')\n"
    )
    with mail_server() as mailbox, WholeProcess(tmp_path) as server:
        url = f"journeyman://127.0.0.1:{server.ports['work']}?schedule={server.port}"
        settings = {name.replace(".", "_").upper(): str(value) for name, value in smtp(0).items()}
        settings["NOTICES_SMTP_PORT"] = str(mailbox.port)
        environment = os.environ | {"JOURNEYMAN_URL": url, "PYTHONPATH": str(tmp_path)}
        environment |= {f"JOURNEYMAN_{name}": value for name, value in settings.items()}
        send = [sys.executable, "-c", "import shop; print(shop.export.send().id)"]
        sent = subprocess.run(send, env=environment, capture_output=True, text=True, check=True)
        mailbox.refuse = "451 later"
        words = [sys.executable, "-m", "journeyman", "worker", "shop:app"]
        worker = subprocess.Popen(words, env=environment, cwd=tmp_path)
        with WorkQueue(port=server.ports["work"]) as queue:
            result = queue.result(sent.stdout.strip(), wait_ms=60_000)
            assert result is not None
            assert not result.succeeded
            worker.kill()
            worker.wait()
            mailbox.refuse = ""
            assert queue.inspect_queues(counts=True)[0].dead == 1
        worker = subprocess.Popen(words, env=environment, cwd=tmp_path)
        try:
            (mail,) = mailbox.wait_for(1)
        finally:
            worker.terminate()
            worker.wait()
    assert mail["Subject"] == "shop.export failed: ValueError: disk full"
