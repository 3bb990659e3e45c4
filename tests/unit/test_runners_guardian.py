"""However a server ends, its programs end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from journeyman.formats.ztick import Shell
from journeyman.runners import RunRequest
from journeyman.runners.guardian import Guardian, watch
from journeyman.runners.programs import Programs, ShellRunner
from tests.support.runner_world import in_loop, is_running, settings, wait_until

# A server in small: it runs one program, which starts a child. When it knows of them, they are
# guarded; then it says who they are.
SERVER = """
import asyncio, pathlib
from journeyman.formats.ztick import Shell
from journeyman.runners import RunnerSet, RunRequest

async def main():
    path = pathlib.Path("{path}")
    command = "sleep 1000 & echo $$ $! > '{path}.new'; mv '{path}.new' '{path}'; wait"
    async with RunnerSet() as runners:
        run = asyncio.create_task(runners.run(RunRequest("job", 5, Shell(command))))
        while not path.exists():
            await asyncio.sleep(0.01)
        print(path.read_text(), flush=True)
        await run

asyncio.run(main())
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def started_guardian(*groups: int) -> tuple[Guardian, int]:
    guardian = Guardian()
    for group in groups:
        guardian.guard(group)
    assert guardian.process_id is not None
    return guardian, guardian.process_id


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_killed_server_takes_its_programs_along(tmp_path, number):
    code = SERVER.format(path=tmp_path / "pids")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pids = [int(word) for word in server.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        server.send_signal(number)
    wait_until(lambda: not any(map(is_running, pids)), "the programs to end")


def test_what_was_released_lives_on(sleeper):
    guardian, process_id = started_guardian(sleeper.pid)
    guardian.release(sleeper.pid)
    guardian.close()
    assert not is_running(process_id)
    assert sleeper.poll() is None


def test_what_is_guarded_ends_with_the_guardian(sleeper):
    guardian, _ = started_guardian(sleeper.pid)
    guardian.close()
    assert sleeper.wait(60) == -signal.SIGKILL


def test_the_guardian_outlasts_the_signals_that_stop_a_server(sleeper):
    guardian, process_id = started_guardian(sleeper.pid)
    # It is up, and not merely about to be, when it has ignored the first one.
    wait_until(lambda: _ignores(process_id, signal.SIGTERM), "the guardian to be ready")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process_id, number)
    guardian.close()
    assert sleeper.wait(60) == -signal.SIGKILL


def _ignores(process_id: int, number: int) -> bool:
    with open(f"/proc/{process_id}/status") as status:
        [mask] = [line.split()[1] for line in status if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_guardian_that_was_killed_is_replaced_and_knows_all(sleeper):
    guardian, first = started_guardian(sleeper.pid)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first), "the guardian to die")
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    guardian.guard(other.pid)
    assert guardian.process_id != first
    guardian.close()
    assert sleeper.wait(60) == -signal.SIGKILL
    assert other.wait(60) == -signal.SIGKILL


def test_without_a_guardian_programs_run_all_the_same(monkeypatch, sleeper):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    guardian = Guardian()
    guardian.guard(sleeper.pid)
    assert guardian.process_id is None
    guardian.release(sleeper.pid)
    guardian.close()
    assert sleeper.poll() is None


def test_a_guardian_that_was_never_needed_is_never_started():
    guardian = Guardian()
    guardian.close()
    assert guardian.process_id is None


@in_loop
async def test_all_programs_share_one_guardian_and_closing_ends_it():
    programs = Programs(settings().runners)
    runner = ShellRunner(programs, settings().shell)
    guardians = set()
    for _ in range(3):
        await runner.run(RunRequest("job", 5, Shell("true")))
        guardians.add(programs.guardian_id)
    [process_id] = guardians
    assert process_id is not None
    assert is_running(process_id)
    await programs.close()
    assert not is_running(process_id)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([], set()),
        ([b"+1\n", b"+2\n", b"-1\n"], {2}),
        ([b"-1\n", b"+1\n", b"+1\n"], {1}),
        ([b"+1\n", b"+", b"x\n", b"\n", b"+-3\n"], {1}),
    ],
)
def test_the_guardian_knows_who_has_not_ended(lines, left):
    assert watch(lines) == left
