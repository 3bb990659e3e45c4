"""Programs: what they are given, what is kept of them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from journeyman.config import ShellSettings
from journeyman.formats.ztick import Direct, Shell
from journeyman.runners import RunnerSet, RunRequest, RunResult
from journeyman.runners.programs import ChildProcess, Programs, ShellRunner
from tests.support.runner_world import in_loop, is_running, settings, wait_for_pids, wait_until


async def shell(command: str, **limits: int) -> RunResult:
    async with RunnerSet(settings(**limits)) as runners:
        return await runners.run(RunRequest("job", 5, Shell(command)))


async def direct(executable: str, *args: str) -> RunResult:
    async with RunnerSet(settings()) as runners:
        return await runners.run(RunRequest("job", 5, Direct(executable, args)))


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@in_loop
async def test_output_and_error_output_are_kept_in_their_order():
    result = await shell("echo one; echo two >&2; echo three")
    assert result == RunResult(True, "", b"one\ntwo\nthree\n")


@in_loop
async def test_standard_input_is_empty():
    assert await shell("cat; echo end") == RunResult(True, "", b"end\n")


@in_loop
async def test_the_job_is_told_in_the_environment():
    result = await shell('echo "$JOURNEYMAN_JOB_ID|$JOURNEYMAN_EXECUTION_NS|$JOURNEYMAN_EXECUTION"')
    assert result.output == b"job|5|1970-01-01T00:00:00.000000005Z\n"


@in_loop
async def test_environment_and_directory_are_the_servers(monkeypatch, tmp_path):
    monkeypatch.setenv("OF_THE_SERVER", "yes")
    monkeypatch.chdir(tmp_path)
    assert (await shell('echo "$OF_THE_SERVER $PWD"')).output == f"yes {tmp_path}\n".encode()


@in_loop
async def test_arguments_of_direct_are_not_interpreted():
    words = ("$HOME", "a  b", "*", "'", '"', ";", "", "\n", "ü", "--")
    result = await direct("printf", "[%s]", *words)
    assert result.output.decode() == "".join(f"[{word}]" for word in words)


@in_loop
async def test_direct_looks_in_the_path_only_for_names_without_a_slash(monkeypatch, tmp_path):
    script(tmp_path / "tool", "#!/bin/sh\necho found\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (await direct("tool")).output == b"found\n"
    assert (await direct("./tool")).reason == (
        "'./tool' cannot be started: there is no such program"
    )


@in_loop
async def test_what_cannot_be_started_is_told(tmp_path):
    no_interpreter = script(tmp_path / "a", "#!/no/such/interpreter\n")
    no_header = script(tmp_path / "b", "echo\n")
    (tmp_path / "c").write_text("#!/bin/sh\n")
    assert (await direct(no_interpreter)).reason.endswith("its interpreter does not exist")
    assert "neither a program nor a script" in (await direct(no_header)).reason
    assert (await direct(str(tmp_path / "c"))).reason.endswith("it is not executable")
    assert (await direct(str(tmp_path))).reason.endswith("it is not executable")
    assert (await direct("echo", "x" * 3_000_000)).reason.endswith("its arguments are too long")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "exited with status 3"),
        ("no-such-command", "exited with status 127 (command not found)"),
        ("/dev/null", "exited with status 126 (found, but it cannot be executed)"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("kill -KILL $$", "was killed by SIGKILL"),
    ],
)
def test_a_bad_end_is_told(command, reason):
    result = asyncio.run(shell(command))
    assert (result.success, result.reason) == (False, reason)


@in_loop
async def test_a_talkative_program_never_waits_and_head_and_tail_are_kept():
    result = await shell("echo first; yes | head -c 5000000; echo last", output_bytes=20)
    assert result.success
    assert result.output.startswith(b"first\ny\ny\n\n[... 4999991 bytes left out ...]\n")
    assert result.output.endswith(b"y\nlast\n")


@in_loop
async def test_what_a_program_says_last_is_kept_when_its_end_is_noticed_first(monkeypatch):
    read = ChildProcess._read

    def read_late(self: ChildProcess) -> None:
        if self.exited.done():
            read(self)

    monkeypatch.setattr(ChildProcess, "_read", read_late)
    assert (await shell("echo last words")).output == b"last words\n"


@in_loop
async def test_the_shell_and_its_arguments_can_be_chosen(tmp_path):
    other = script(tmp_path / "shell", '#!/bin/sh\nprintf "[%s]" "$@"\n')
    programs = Programs(settings().runners)
    runner = ShellRunner(programs, ShellSettings(other, ("-x", "-c")))
    result = await runner.run(RunRequest("job", 5, Shell("two words")))
    await programs.close()
    assert result.output == b"[-x][-c][two words]"


@in_loop
async def test_a_missing_shell_is_told():
    programs = Programs(settings().runners)
    runner = ShellRunner(programs, ShellSettings("/no/such/shell", ("-c",)))
    result = await runner.run(RunRequest("job", 5, Shell("true")))
    await programs.close()
    assert result.reason == "'/no/such/shell' cannot be started: there is no such program"


@in_loop
async def test_a_program_has_a_session_of_its_own():
    group = int((await shell("ps -o pgid= -p $$")).output)
    assert group != os.getpgid(0)


# -- the time limit ------------------------------------------------------------------------------


async def limited(command: str, **limits: int) -> tuple[RunResult, int]:
    """A command that says ``ready`` when it heeds signals as it wants to; and the seconds it had:
    on a busy machine it may not get so far in one."""
    for limit_s in (1, 10, 60):
        result = await shell(command, process_timeout_ms=limit_s * 1000, **limits)
        if b"ready\n" in result.output:
            break
    return result, limit_s


@in_loop
async def test_at_the_limit_a_program_may_clean_up():
    command = "trap 'echo cleaning; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    result, limit_s = await limited(command, kill_grace_ms=60_000)
    assert result.reason == f"ran longer than {limit_s} s and was stopped"
    assert result.output.startswith(b"ready\n")
    assert result.output.endswith(b"cleaning\n")


@in_loop
async def test_the_grace_is_for_the_whole_group():
    child = "trap 'sleep 0.2; echo cleaned; exit' TERM; echo ready; while :; do sleep 0.01; done"
    command = f"trap 'exit' TERM; sh -c \"{child}\" & wait"
    result, limit_s = await limited(command, kill_grace_ms=60_000)
    assert result.reason == f"ran longer than {limit_s} s and was stopped"
    assert result.output.endswith(b"cleaned\n")


@in_loop
async def test_who_does_not_heed_the_limit_is_killed_with_all_its_children(tmp_path):
    pids = tmp_path / "pids"
    command = (
        f"trap '' TERM; echo $$ > {pids}; sleep 1000 & echo $! >> {pids}; echo ready; "
        "wait; sleep 1000"
    )
    result, limit_s = await limited(command, kill_grace_ms=100)
    assert result.reason == (f"ran longer than {limit_s} s, did not end on SIGTERM and was killed")
    started = await wait_for_pids(pids, 2)
    wait_until(lambda: not any(map(is_running, started)), "the group to die")


@in_loop
async def test_without_a_limit_a_program_may_take_its_time():
    assert (await shell("sleep 0.3", process_timeout_ms=0)).success


# -- where the system has no descriptors for processes --------------------------------------------


@pytest.fixture
def no_descriptors(monkeypatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.usefixtures("no_descriptors")
@in_loop
async def test_without_descriptors_the_end_is_noticed_all_the_same():
    assert await shell("echo x") == RunResult(True, "", b"x\n")
    assert (await shell("exit 3")).reason == "exited with status 3"
    result = await shell("trap '' TERM; sleep 1000", process_timeout_ms=100, kill_grace_ms=100)
    assert result.reason.startswith("ran longer than 0.1 s")


@pytest.mark.usefixtures("no_descriptors")
@in_loop
async def test_without_descriptors_a_cancelled_program_ends_all_the_same(tmp_path):
    pids = tmp_path / "pids"
    run = asyncio.create_task(shell(f"echo $$ > {pids}; sleep 1000"))
    [program] = await wait_for_pids(pids, 1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    wait_until(lambda: not is_running(program), "the program to end")


# -- what stays in the background ----------------------------------------------------------------


@in_loop
async def test_what_a_program_leaves_in_the_background_neither_delays_nor_dies(tmp_path):
    pids = tmp_path / "pids"
    command = f"(while :; do echo noise; sleep 0.01; done) & echo $! > {pids}; echo done"
    async with RunnerSet(settings()) as runners:
        result = await runners.run(RunRequest("job", 5, Shell(command)))
        assert result.success
        [background] = await wait_for_pids(pids, 1)
        try:
            # It writes all the time: with nobody reading it would have been killed by now.
            await asyncio.sleep(0.2)
            assert is_running(background)
        finally:
            os.kill(background, signal.SIGKILL)


@in_loop
async def test_closing_does_not_wait_for_the_background(tmp_path):
    pids = tmp_path / "pids"
    async with RunnerSet(settings()) as runners:
        await runners.run(RunRequest("job", 5, Shell(f"sleep 1000 & echo $! > {pids}")))
    [background] = await wait_for_pids(pids, 1)
    assert is_running(background)
    os.kill(background, signal.SIGKILL)


@in_loop
async def test_who_escaped_the_group_is_not_listened_to_after_a_cancellation(tmp_path):
    pids = tmp_path / "pids"
    async with RunnerSet(settings()) as runners:
        await runners.run(RunRequest("job", 5, Shell("true")))
        before = len(os.listdir("/dev/fd"))
        command = f"setsid sh -c 'echo $$ > {pids}; sleep 1000' & wait; sleep 1000"
        run = asyncio.create_task(runners.run(RunRequest("job", 5, Shell(command))))
        [escaped] = await wait_for_pids(pids, 1)
        try:
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert len(os.listdir("/dev/fd")) <= before
            assert is_running(escaped)
        finally:
            os.killpg(escaped, signal.SIGKILL)
