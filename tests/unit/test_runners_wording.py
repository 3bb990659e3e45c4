"""What a program is told, and what is said about its end."""

from __future__ import annotations

import errno
import signal
import sys

import pytest

from journeyman.formats.ztick import Shell
from journeyman.runners import RunRequest
from journeyman.runners.programs import environment, exit_reason, iso_moment, start_reason


@pytest.mark.parametrize(
    ("moment_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_711_612_800_000_000_000, "2024-03-28T08:00:00Z"),
        (1_711_612_800_000_000_001, "2024-03-28T08:00:00.000000001Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
    ],
)
def test_moments_are_exact_to_the_nanosecond(moment_ns, text):
    assert iso_moment(moment_ns) == text


def test_the_environment_is_the_servers_and_the_job():
    request = RunRequest("übung", 5, Shell("true"))
    assert environment({b"PATH": b"/bin", b"JOURNEYMAN_JOB_ID": b"old"}, request) == {
        b"PATH": b"/bin",
        b"JOURNEYMAN_JOB_ID": "übung".encode(),
        b"JOURNEYMAN_EXECUTION_NS": b"5",
        b"JOURNEYMAN_EXECUTION": b"1970-01-01T00:00:00.000000005Z",
    }


@pytest.mark.parametrize(
    ("returncode", "reason"),
    [
        (0, ""),
        (1, "exited with status 1"),
        (126, "exited with status 126 (found, but it cannot be executed)"),
        (127, "exited with status 127 (command not found)"),
        (255, "exited with status 255"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-50, "was killed by signal 50"),
    ],
)
def test_every_end_has_its_words(returncode, reason):
    assert exit_reason(returncode) == reason


@pytest.mark.parametrize(
    ("program", "number", "reason"),
    [
        ("no-x", errno.ENOENT, "'no-x' cannot be started: there is no such program in PATH"),
        ("/no/x", errno.ENOENT, "'/no/x' cannot be started: there is no such program"),
        (sys.executable, errno.ENOENT, "its interpreter does not exist"),
        ("/x", errno.EACCES, "'/x' cannot be started: it is not executable"),
        ("/x", errno.ENOEXEC, "neither a program nor a script with a #! line"),
        ("/x", errno.E2BIG, "'/x' cannot be started: its arguments are too long"),
        ("/x", errno.EMFILE, "'/x' cannot be started: too many open files"),
        ("", errno.ENOENT, "the rule names no program"),
    ],
)
def test_every_failed_start_has_its_words(program, number, reason):
    assert start_reason(program, OSError(number, "")).endswith(reason)


def test_a_file_beside_the_server_is_no_program_in_the_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tool").touch(mode=0o755)
    reason = start_reason("tool", OSError(errno.ENOENT, ""))
    assert reason == "'tool' cannot be started: there is no such program in PATH"
