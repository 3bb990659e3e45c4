"""Starting: on logs of all conditions, and the errors that keep a server from starting."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from journeyman.formats.ztick import CODEC, JobRemoved, JobSet, RuleSet, Shell, Status
from journeyman.servers.core.bulk_loading import BULK_BYTES
from tests.support.ports import free_port
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000
NAME = "job.{:0200d}"


def job(name: str, status: Status = Status.PLANNED) -> bytes:
    return CODEC.encode(JobSet(name, FAR_NS, status))


def refused(directory: Path, config: str = "", **settings: object) -> tuple[int, str]:
    """Exit code and the one line of a server that does not start."""
    process = ScheduleProcess(directory, config=config, settings=settings).start(wait=False)
    with process:
        code = process.wait()
    errors = [line for line in process.lines if line.startswith("journeyman: error: ")]
    assert len(errors) == 1, process.lines
    assert "Traceback" not in "\n".join(process.lines)
    return code, errors[0]


def test_a_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refused(tmp_path, controller__listen=f"127.0.0.1:{port}")
    assert code == 1
    assert f"127.0.0.1:{port}" in line
    # The log was let go: another server may have it.
    with ScheduleProcess(tmp_path) as server:
        assert server.stat()["jobs_total"] == "0"


def test_an_unknown_host_is_named(tmp_path):
    listen = {"controller__listen": "no-such-host.invalid:5678", "access__insecure": "true"}
    code, line = refused(tmp_path, **listen)
    assert code == 1
    assert "no-such-host.invalid:5678" in line


def test_a_log_in_use_is_named(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        server.ask(f"r SET job {FAR_NS}")
        code, line = refused(tmp_path)
        assert server.ask("r GET job") == f"r OK planned {FAR_NS}"
    assert code == 1
    assert "logfile" in line
    assert "another process" in line


def test_a_wrong_setting_is_named(tmp_path):
    code, line = refused(tmp_path, database__framerate=0)
    assert code == 2
    assert "database.framerate" in line


def test_a_wrong_configuration_file_is_named(tmp_path):
    code, line = refused(tmp_path, config="[database]\nframerat = 5\n")
    assert code == 2
    assert "server.toml:2" in line


def test_a_missing_auth_file_is_named(tmp_path):
    code, line = refused(tmp_path, controller__auth_file="no-tokens")
    assert code == 2
    assert "no-tokens" in line


def test_a_log_that_is_a_directory_is_an_error(tmp_path):
    (tmp_path / "logfile").mkdir()
    code, line = refused(tmp_path)
    assert code == 1
    assert "logfile" in line


def test_a_port_can_be_taken_over_at_once(tmp_path):
    listen = f"127.0.0.1:{free_port()}"
    with ScheduleProcess(tmp_path, controller__listen=listen) as server, server.client() as client:
        client.ask("r GET x")
        assert server.stop() == 0
    with ScheduleProcess(tmp_path, controller__listen=listen) as server:
        assert server.stat()["jobs_total"] == "0"


def test_missing_directories_of_the_log_are_made(tmp_path):
    with ScheduleProcess(tmp_path, database__logfile_path="deep/er/log") as server:
        assert server.ask(f"r SET job {FAR_NS}") == "r OK"
    assert (tmp_path / "deep/er/log").stat().st_size > 0


def test_a_torn_tail_is_put_aside_and_reported(tmp_path):
    whole = job("a") + job("b")
    (tmp_path / "logfile").write_bytes(whole + job("c")[:-3])
    with ScheduleProcess(tmp_path) as server:
        server.wait_for_line("WARN the log was damaged")
        assert server.stat()["jobs_total"] == "2"
        assert server.ask(f"r SET d {FAR_NS}") == "r OK"
        assert server.stop() == 0
    with ScheduleProcess(tmp_path) as server:
        assert server.stat()["jobs_total"] == "3"
        assert not any("damaged" in line for line in server.lines)
    assert list((tmp_path / "quarantine").iterdir())


def test_damage_in_the_middle_does_not_stop_the_server(tmp_path):
    broken = bytearray(job("broken"))
    broken[-1] = 77  # no such status
    (tmp_path / "logfile").write_bytes(job("a") + bytes(broken) + job("b"))
    with ScheduleProcess(tmp_path) as server:
        server.wait_for_line("WARN the log was damaged")
        assert server.ask("r GET a").startswith("r OK planned")
        assert server.ask("r GET b").startswith("r OK planned")


def test_the_files_of_a_cut_off_compaction_are_all_loaded(tmp_path):
    (tmp_path / "logfile.compressed").write_bytes(job("old") + job("replaced"))
    (tmp_path / "logfile.to_compress").write_bytes(
        CODEC.encode(JobSet("replaced", 7, Status.EXECUTED)) + job("gone")
    )
    (tmp_path / "logfile").write_bytes(CODEC.encode(JobRemoved("gone")) + job("new"))
    with ScheduleProcess(tmp_path) as server:
        assert server.ask("r GET old") == f"r OK planned {FAR_NS}"
        assert server.ask("r GET replaced") == "r OK executed 7"
        assert server.ask("r GET gone").startswith("r ERROR not_found")
        assert server.ask("r GET new") == f"r OK planned {FAR_NS}"


def test_a_large_log_is_loaded_the_same(tmp_path):
    count = 50_000
    rule = CODEC.encode(RuleSet("rule", "job.", Shell("true")))
    jobs = b"".join(job(NAME.format(number)) for number in range(count))
    tail = CODEC.encode(JobRemoved(NAME.format(5))) + job(NAME.format(6), Status.FAILED)
    (tmp_path / "logfile").write_bytes(rule + jobs + tail)
    assert len(jobs) > BULK_BYTES
    with ScheduleProcess(tmp_path) as server:
        stat = server.stat()
        assert (stat["jobs_total"], stat["jobs_failed"]) == (str(count - 1), "1")
        assert stat["rules_total"] == "1"
        assert server.ask(f"r GET {NAME.format(5)}").startswith("r ERROR not_found")
        assert server.ask(f"r GET {NAME.format(count - 1)}") == f"r OK planned {FAR_NS}"
        assert server.ask(f"r SET one.more {FAR_NS}") == "r OK"
        with server.client() as client:
            client.send("q QUERY job.")
            assert len(client.read_list("q")) == count - 1
        assert server.stop() == 0
    size = (tmp_path / "logfile").stat().st_size
    with (tmp_path / "logfile").open("ab") as log:
        log.write(b"\0\0\0")  # torn: the careful way has to be taken
    with ScheduleProcess(tmp_path) as server:
        assert server.stat()["jobs_total"] == str(count)
    assert (tmp_path / "logfile").stat().st_size == size


def test_config_show_prints_settings_and_origins(tmp_path):
    (tmp_path / "c.toml").write_text("[database]\nframerate = 60\n")
    result = subprocess.run(
        [sys.executable, "-m", "journeyman", "config", "--show", "-c", "c.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"JOURNEYMAN_LOG_LEVEL": "debug"},
    )
    rows = {tuple(line.split()) for line in result.stdout.splitlines()}
    assert ("framerate", "=", "60", "#", "c.toml:2") in rows
    assert ("level", "=", '"debug"', "#", "environment", "JOURNEYMAN_LOG_LEVEL") in rows
    assert ("persistence", "=", '"logfile"', "#", "default") in rows
