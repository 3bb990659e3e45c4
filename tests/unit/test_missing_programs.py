"""A test whose program is missing is not run, and the run says so and fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import subprocess
import pytest
from tests.support.programs import find_program

@pytest.fixture(scope="module")
def redis():
    return find_program("redis-server")

def test_passes(): ...

def test_starts_one(): subprocess.run(["memcping"])

def test_needs_a_service(redis): ...

def test_needs_it_too(redis): ...

def test_is_skipped(): pytest.skip("for a reason")
"""
FAILS = """
import subprocess

def test_fails(): subprocess.run(["a-program-of-ours"])
"""


def run(tmp_path: Path, text: str, *options: str) -> tuple[int, str, list[str]]:
    """The exit code, the output, and the list that `make test` shows."""
    (tmp_path / "test_some.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-p", "tests.support.programs", "-p", "no:randomly"]
    listed = tmp_path / "not-run"
    own = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "JOURNEYMAN_NOT_RUN": str(listed)}
    code = "from tests.support import programs; programs.PLACES[:] = []"
    (tmp_path / "conftest.py").write_text(code)
    done = subprocess.run(
        [*words, "-q", f"--rootdir={tmp_path}", "-c", os.devnull, *options, str(tmp_path)],
        env=os.environ | own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = listed.read_text().splitlines() if listed.exists() else []
    return done.returncode, done.stdout + done.stderr, lines


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "by workers"])
def test_what_was_not_run_is_listed_and_the_run_fails(tmp_path, options):
    code, output, listed = run(tmp_path, TESTS, *options)
    assert code == 1, output
    assert "1 passed, 4 skipped" in output
    assert "4 tests were not run" in output
    assert [line.rpartition(": ")[0] for line in listed] == [
        "Skipped: for a reason",
        "needs libmemcached-tools",
        "needs redis-server",
        "needs redis-server",
    ]
    assert all(line in output for line in listed)


def test_a_failure_is_no_missing_program(tmp_path):
    code, output, listed = run(tmp_path, FAILS)
    assert (code, listed) == (1, []), output
    assert "1 failed" in output


APT = """#!/bin/bash
echo "$*" >> "$CALLS"
case "$*" in
  *update*) if [[ $(grep -c update "$CALLS") -lt 3 ]]; then
      echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1" >&2; exit 100
    fi ;;
  *) [[ $(grep -c install "$CALLS") -ge 2 ]] ;;
esac
"""


def services(tmp_path: Path, apt: str | None) -> subprocess.CompletedProcess[str]:
    """The script on a machine that has nothing but this apt-get and the usual tools."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "tee", "chmod", "rm", "grep", "sleep", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "sudo").write_text('#!/bin/bash\nshift\n[[ $1 == true ]] || exec "$@"\n')
    (tools / "sudo").chmod(0o755)
    if apt is not None:
        (tools / "apt-get").write_text(apt)
        (tools / "apt-get").chmod(0o755)
    own = {"PATH": str(tools), "CALLS": str(tmp_path / "calls"), "LOCK_WAIT_S": "30"}
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "install-services.sh")],
        env=own | {"POLICY_RC_D": str(tmp_path / "policy")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_another_apt_is_waited_for(tmp_path):
    done = services(tmp_path, APT)
    assert (done.returncode, done.stderr) == (0, "")
    calls = (tmp_path / "calls").read_text().splitlines()
    kinds = [next(word for word in call.split() if word in ("install", "update")) for call in calls]
    assert kinds == ["install", "update", "update", "update", "install"]
    assert all("DPkg::Lock::Timeout=30" in call for call in calls)
    assert not (tmp_path / "policy").exists()


def test_without_apt_one_line_says_what_is_missing(tmp_path):
    done = services(tmp_path, None)
    assert done.returncode == 1
    assert done.stderr.startswith("missing: redis-server ")
    assert done.stderr.count("\n") == 1
