"""What every command shares: help, version, errors in one line, exit codes, quiet endings."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from journeyman import __version__
from journeyman.cli import COMMANDS, journeyman
from journeyman.cli.errors import sentence
from journeyman.disk import RealDisk
from journeyman.errors import LogLocked, UsageError
from tests.support.cli_commands import (
    assert_one_line_error,
    job,
    run,
    run_script,
    write_ztick,
)


def test_version_is_told():
    result = run("--version")

    assert result.exit_code == 0
    assert result.stdout == f"journeyman {__version__}\n"


def test_without_a_command_the_help_is_shown():
    result = run()

    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command):
    result = run(command, "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: journeyman {command} ")


def test_starting_up_imports_no_command_and_no_heavy_library():
    code = (
        "import sys, journeyman.cli\n"
        "loaded = [m for m in sys.modules if m.startswith(('rich', 'journeyman.logs',"
        " 'journeyman.formats', 'journeyman.folds', 'journeyman.cli.dump'))]\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_wait_that_would_never_end_is_refused():
    ingest = ["pipeline", "ingest", "log", "--lake", "lake", "--every", "nan"]
    for words in (["ping", "--wait", "nan"], ["top", "--interval", "inf"], ingest):
        assert_one_line_error(run(*words), 2, "is not")
    assert_one_line_error(run("top", "--interval", "1e308"), 2, "is not in the range")


@pytest.mark.parametrize("group", ["jobs", "queues", "token", "timetable"])
def test_a_group_alone_prints_its_help(group):
    result = run(group)

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: journeyman {group} [OPTIONS] COMMAND [ARGS]...\n")
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("melt",), ("'melt'", "journeyman --help")),
        (("statsu",), ("'statsu'", "did you mean `journeyman status`?")),
        (("sql",), ("'sql'", "did you mean `journeyman pipeline sql`?")),
        (("requeue",), ("'requeue'", "did you mean `journeyman jobs requeue`?")),
        (("jobs", "requeu"), ("'requeu'", "did you mean `journeyman jobs requeue`?")),
        (("--bogus",), ("--bogus", "journeyman --help")),
        (("dump",), ("PATH", "journeyman dump --help")),
        (("dump", "--bogus", "x"), ("--bogus", "journeyman dump --help")),
        (("dump", "--format", "xml", "x"), ("'xml'", "text", "json")),
        (("dump", "--dialect", "morse", "x"), ("'morse'", "ztick", "workq", "kestrel")),
        (("dump", "--as-of", "soon", "x"), ("'soon'", "2026-11-16T12:00:00Z")),
        (("verify",), ("PATH", "journeyman verify --help")),
        (("verify", "a", "b"), ("b",)),
        (("generate", "ztick", "x"), ("--records",)),
        (("generate", "ztick", "x", "--records", "-1"), ("-1",)),
        (("generate", "morse", "x", "--records", "1"), ("'morse'",)),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(args, words):
    assert_one_line_error(run(*args), 2, *words)


@pytest.mark.parametrize("command", ["dump", "verify", "repair", "compact", "clean"])
def test_a_missing_file_is_one_line_and_exit_code_1(command, tmp_path):
    missing = tmp_path / "missing"

    assert_one_line_error(run(command, missing), 1, f"file not found: {missing}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["dump", "verify", "repair"])
def test_a_file_that_may_not_be_read_is_one_line_and_exit_code_1(command, tmp_path, monkeypatch):
    def denied(self: RealDisk, path: str) -> memoryview:
        raise PermissionError(13, "Permission denied", path)

    log = write_ztick(tmp_path / "log", job("a"))
    monkeypatch.setattr(RealDisk, "view", denied)

    assert_one_line_error(run(command, log), 1, f"permission denied: {log}")


@pytest.mark.parametrize("command", ["dump", "verify", "repair", "compact", "clean"])
def test_a_file_of_no_dialect_asks_for_the_dialect(command, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("buy milk\n")

    assert_one_line_error(run(command, text), 2, str(text), "--dialect")


@pytest.mark.parametrize("command", ["dump", "verify", "repair", "compact", "clean"])
def test_a_directory_without_a_log_says_so(command, tmp_path):
    assert_one_line_error(run(command, tmp_path), 2, str(tmp_path), "no log")


def test_what_nobody_expected_is_one_line_too(tmp_path, monkeypatch):
    def broken(self: RealDisk, path: str) -> memoryview:
        raise ZeroDivisionError("one by\nnothing")

    log = write_ztick(tmp_path / "log", job("a"))
    monkeypatch.setattr(RealDisk, "view", broken)

    assert_one_line_error(run("dump", log), 1, "ZeroDivisionError", "one by nothing", "--debug")


@pytest.mark.parametrize(("options", "env"), [(("--debug",), {}), ((), {"JOURNEYMAN_DEBUG": "1"})])
def test_debug_shows_where_it_came_from(options, env, tmp_path):
    result = run(*options, "dump", tmp_path / "missing", env=env)

    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.splitlines()[-1].startswith("journeyman: error: file not found")


def test_a_zero_in_the_environment_is_no_debugging(tmp_path):
    result = run("dump", tmp_path / "missing", env={"JOURNEYMAN_DEBUG": "0"})

    assert_one_line_error(result, 1)


def test_ctrl_c_ends_a_command_without_a_word(tmp_path, monkeypatch):
    def interrupted(self: RealDisk, path: str) -> memoryview:
        raise KeyboardInterrupt

    log = write_ztick(tmp_path / "log", job("a"))
    monkeypatch.setattr(RealDisk, "view", interrupted)

    result = run("dump", log)

    assert result.exit_code == 130
    assert result.output == ""


def test_a_reader_that_has_seen_enough_ends_dump_without_a_word(tmp_path):
    log = write_ztick(tmp_path / "log", *(job(f"job.{n:06}") for n in range(50_000)))

    with subprocess.Popen(
        [sys.executable, "-m", "journeyman", "dump", log],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read()

    assert first.startswith(b"SET job.000000 ")
    assert complaint == b""
    assert process.returncode == 0


def test_the_module_can_be_run():
    done = run_script("--version")

    assert done.returncode == 0
    assert done.stdout.decode() == f"journeyman {__version__}\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "p"), "file not found: p"),
        (PermissionError(13, "Permission denied", b"p"), "permission denied: p"),
        (IsADirectoryError(21, "Is a directory", "p"), "a directory, where a file is needed: p"),
        (NotADirectoryError(20, "Not a directory", "p"), "a file, where a directory is needed: p"),
        (OSError(28, "No space left on device", "p"), "No space left on device: p"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (UsageError("do\n  this"), "do this"),
        (LogLocked("p", "in use"), "p: in use; stop the process that uses it and try again"),
    ],
)
def test_errors_are_said_in_plain_words(error, words):
    assert sentence(error) == words


def test_the_list_of_commands_imports_none_of_them():
    code = (
        "import sys, click.testing, journeyman.cli as c\n"
        "found = click.testing.CliRunner().invoke(c.journeyman, ['--help'])\n"
        "assert 'status' in found.stdout, found\n"
        "print([m for m in sys.modules if m.startswith('journeyman.cli.')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['journeyman.cli.errors']"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_of_commands_says_what_their_own_help_says(name):
    command = journeyman.get_command(click.Context(journeyman), name)

    assert command is not None
    first = command.get_short_help_str(200)
    assert COMMANDS[name][1].split()[:3] == first.split()[:3]
