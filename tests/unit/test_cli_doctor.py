"""``journeyman doctor`` tells what is wrong, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from journeyman.cli import doctor
from tests.support.cli_commands import run
from tests.support.ports import free_port


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    made = run("generate", "ztick", directory / "schedule.log", "--records", "20", "--quiet")
    assert made.exit_code == 0
    return directory


def findings(*args: object) -> tuple[int, list[tuple[str, str, str]]]:
    done = run("doctor", "--json", *args)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return done.exit_code, [(row["level"], row["about"], row["said"]) for row in rows]


def about(name: str, *args: object) -> list[tuple[str, str]]:
    return [(level, said) for level, what, said in findings(*args)[1] if what == name]


@pytest.fixture(autouse=True)
def usual_machine(monkeypatch):
    """The disk of the machine that runs the tests is no matter of these tests."""
    monkeypatch.setattr(doctor, "_file_system_of", lambda _: "ext4")
    monkeypatch.setattr(doctor, "NO_SYNC_MS", 0.0)


def test_nothing_is_bad_where_all_is_well(data):
    code, found = findings("--data", data)
    assert code == 0, found
    assert not [row for row in found if row[0] == "bad"]
    (logs,) = about("logs", "--data", data)
    assert logs[0] == "ok"
    assert "clean, 20 records" in logs[1]
    assert sorted(path.name for path in data.iterdir()) == ["schedule.log"]  # as it was


def test_text_is_a_line_for_each_finding(data):
    done = run("doctor", "--data", data)
    assert done.exit_code == 0
    assert all(line[:4].strip() in ("ok", "note") for line in done.stdout.splitlines())


def test_a_damaged_log_is_bad(data):
    damaged = bytearray((data / "schedule.log").read_bytes())
    damaged[60] ^= 0xFF
    (data / "schedule.log").write_bytes(damaged)
    assert findings("--data", data)[0] == 1
    ((level, said),) = about("logs", "--data", data)
    assert (level, "damaged" in said) == ("bad", True)


def test_a_large_log_is_verified_if_that_is_asked_for(data, monkeypatch):
    monkeypatch.setattr(doctor, "VERIFIED_BYTES", 10)
    assert about("logs", "--data", data)[0][0] == "note"
    assert about("logs", "--data", data, "--verify")[0][0] == "ok"


def test_settings_that_a_server_refuses_are_bad(data):
    for given in ("controller.listen=0.0.0.0:5678", "database.framerate=0"):
        code, found = findings("--data", data, "--set", given)
        assert code == 1
        assert [said for level, what, said in found if (level, what) == ("bad", "settings")]


def test_a_clock_that_was_set_back_is_bad(data):
    os.utime(data / "schedule.log", (0, time.time() + 3600))
    assert about("clock", "--data", data)[0][0] == "bad"


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4"])
def test_a_disk_that_keeps_nothing_is_bad(data, monkeypatch, kind):
    monkeypatch.setattr(doctor, "_file_system_of", lambda _: kind)
    level, said = about("data", "--data", data)[0]
    assert level == "bad"
    assert f"is on {kind}: " in said


def test_syncs_that_are_none_are_bad_and_slow_ones_a_note(data, monkeypatch):
    monkeypatch.setattr(doctor, "NO_SYNC_MS", 1e9)
    assert about("disk", "--data", data)[0][0] == "bad"
    monkeypatch.setattr(doctor, "NO_SYNC_MS", 0.0)
    monkeypatch.setattr(doctor, "SLOW_SYNC_MS", 0.0)
    assert about("disk", "--data", data)[0][0] == "note"


def test_ports_are_tried(data):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        arguments = ("--data", data, "--set", f"workq.listen=127.0.0.1:{port}")
        assert about("work queue", *arguments) == [("ok", f"something listens on 127.0.0.1:{port}")]
    assert about("work queue", *arguments) == [("note", f"nothing listens on 127.0.0.1:{port}")]


def test_a_directory_that_is_not_there_is_a_note(tmp_path):
    assert about("data", "--data", tmp_path / "none")[0][0] == "note"


def test_the_file_system_is_that_of_the_nearest_mount(monkeypatch):
    monkeypatch.undo()
    assert doctor._file_system_of("/proc/self") == "proc"
    assert doctor._file_system_of("/") != ""
