"""Commands that are given the data directory of a server, and errors that a newcomer meets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from journeyman.cli.pipeline.shared import logs_by_dialect
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import JobAdded
from journeyman.formats.ztick import JobSet, Status
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from tests.support.cli_commands import rows, run

DISK, CLOCK = RealDisk(), SystemClock()
FAR_NS = 4_000_000_000_000_000_000


def workq_job() -> JobAdded:
    now = Instant(CLOCK.now_ns())
    return JobAdded(
        logged=now,
        job_id=b"0123456789abcdef",
        name="mail",
        ttr_ms=1000,
        ttl_ms=60_000,
        priority=0,
        max_attempts=0,
        max_fails=0,
        payload=b"hello",
        time=None,
        created=now,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As a server leaves it."""
    directory = tmp_path / "data"
    directory.mkdir()
    with ZtickLog.open(DISK, CLOCK, str(directory / "schedule.log")) as schedule:
        schedule.append([JobSet("job", FAR_NS, Status.PLANNED)])
    with WorkqLog.open(DISK, CLOCK, str(directory / "workq")) as work:
        work.append([workq_job()])
    with KestrelLog.open(DISK, CLOCK, str(directory / "kestrel"), "orders") as journal:
        journal.add_reader("billing")
        journal.put(b"one")
    (directory / "schedule.log.runs").mkdir()
    return directory


def test_verify_looks_at_every_log(data: Path):
    (report,) = rows(run("verify", "--json", data))
    assert report["clean"]
    assert [log["dialect"] for log in report["logs"]] == ["ztick", "workq", "kestrel"]
    with (data / "schedule.log").open("ab") as log:
        log.write(b"\0\0\0")
    assert run("verify", data).exit_code == 1
    assert run("repair", data).exit_code == 0
    assert run("verify", data).exit_code == 0


def test_dump_prints_every_log(data: Path):
    text = run("dump", data).stdout
    for word in ("SET job", "mail", "orders"):
        assert word in text


def test_dialect_and_queue_narrow_it_down(data: Path):
    (report,) = rows(run("verify", "--json", "--dialect", "workq", data))
    assert [log["dialect"] for log in report["logs"]] == ["workq"]
    (report,) = rows(run("verify", "--json", "--queue", "orders", data))
    assert [log["queue"] for log in report["logs"]] == ["orders"]
    refused = run("verify", "--queue", "nothing", data)
    assert refused.exit_code == 2
    assert "no queue 'nothing' in the data directory" in refused.stderr


def test_pipeline_finds_every_log(data: Path):
    assert logs_by_dialect([str(data)]) == {
        "ztick": [str(data / "schedule.log")],
        "workq": [str(data / "workq")],
        "kestrel": [str(data / "kestrel")],
    }


def test_compact_and_clean_take_what_is_theirs(data: Path):
    compacted = run("compact", data)
    assert compacted.exit_code == 0, compacted.stderr
    assert f"use `journeyman clean {data}/workq`" in compacted.stderr
    assert "schedule.log: 1 record read" in compacted.stdout
    cleaned = run("clean", data)
    assert cleaned.exit_code == 0, cleaned.stderr


def test_directory_with_a_schedule_log_alone_is_that_log(tmp_path: Path):
    with ZtickLog.open(DISK, CLOCK, str(tmp_path / "schedule.log")) as schedule:
        schedule.append([JobSet("job", FAR_NS, Status.PLANNED)])
    assert logs_by_dialect([str(tmp_path)]) == {"ztick": [str(tmp_path / "schedule.log")]}
    assert "SET job" in run("dump", tmp_path).stdout


# -- errors that a newcomer meets ----------------------------------------------------------------


@pytest.mark.parametrize("option", ["--port", "--host", "--bind"])
def test_serve_says_which_option_is_meant(option: str):
    result = run("serve", option, "5678")
    assert result.exit_code == 2
    assert "use --listen HOST:PORT" in result.stderr


@pytest.mark.parametrize(
    "words",
    [("-cmdlog-path", "dir"), ("-cmdlog-path=dir",), ("-listen", "127.0.0.1:0"), ("-cmdlog-sync",)],
)
def test_serve_says_where_the_flags_of_workq_are_taken(words: tuple[str, ...]):
    result = run("serve", *words)
    assert result.exit_code == 2
    assert "`journeyman workq-server` takes the flags of workq" in result.stderr


def test_other_commands_do_not_speak_of_listen():
    assert "--listen" not in run("dump", "--port", "5").stderr


def test_generate_names_its_argument():
    result = run("generate", "foo", "--records", "1")
    assert result.exit_code == 2
    assert "Invalid value for 'DIALECT': 'foo' is not one of" in result.stderr


@pytest.mark.parametrize("command", ["replay", "sql", "history", "audit", "report", "compact"])
def test_pipeline_without_spark_says_what_to_install(tmp_path: Path, command: str):
    (tmp_path / "logfile").write_bytes(b"")
    log = str(tmp_path / "logfile")
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        f"sys.argv = ['journeyman', 'pipeline', {command!r}, {log!r}]\n"
        "from journeyman.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.strip() == (
        "journeyman: error: the pipeline needs Spark: pip install 'journeyman[spark]'"
    )
