"""Programs as runs: start one, keep what it says, wait, and leave nothing of it running.

                   exits by itself
    started ------------------------------> ended        exit 0 succeeds, all else fails
       |                                      ^
       |  time limit                          |
       +-----------> SIGTERM to the group ----+  all of it ended within the grace
       |                     | grace over     |
       |  cancelled          v                |
       +-----------> SIGKILL to the group ----+

- A program gets a session of its own, so that it and all it starts are one process group: signals
  go to the group, and a Ctrl-C meant for the server does not reach it.
- Standard input is empty; output and error output are one stream, read to its end as fast as it
  comes, of which head and tail are kept. A program never waits for its output to be read.
- The environment is the server's, and JOURNEYMAN_JOB_ID, JOURNEYMAN_EXECUTION_NS and
  JOURNEYMAN_EXECUTION (the same moment in ISO 8601).
- The run is over when the program is. What it left in the background lives on and is still read
  from, as long as the server lives; only a time limit or a cancellation ends it too.
- If the server is killed, the guardian ends what was running.

It is not a sandbox: a program that makes a session of its own escapes the group.

One started program: its process group, its output and its end, as events of the event loop.

    Child(argv, env, output, when_drained)    the process runs when this returns
    child.exited, child.drained               futures: it has ended; its output has ended
    child.signal(SIGTERM)                     to the whole group
    child.reap()                              its exit code; then the group id may be another's
    child.hang_up()                           its output is read no more

asyncio has subprocesses of its own. They are not used, because a process is known there only some
turns of the loop after it has started, too late for the guardian, and because it is reaped as
soon as it ends: its id, which is the id of the group, could be a stranger's by the time of a
signal. Here nothing is awaited, so there is no moment at which a cancellation could find half a
child; and of the event loop only readers are used, which all loops have and none of them owns.

What a program is given, and what is reported of it: pure text, no process.

    environment   the server's, and the job: id, moment in nanoseconds, moment in ISO 8601
    start_reason  why it could not be started
    exit_reason   how it ended, unless it ended well

shell <command>: the command, as the last argument of a shell.

    [shell]                      /bin/sh  -c  'backup.sh --all | mail ops'
    path = "/bin/sh"             -------  --  ---------------------------
    args = ["-c"]                 path   args          the rule

The text of the rule is the program here. The job id is not pasted into it: it
comes in $JOURNEYMAN_JOB_ID, where quotes and semicolons in it do no harm.

direct <executable> [<argument>...]: a program and its arguments, and no shell between.

The arguments arrive as they stand in the rule: nothing is split, expanded or quoted. A name
without a slash is looked up in the PATH of the server.

awf <workflow> [--input <key=value>]...: a workflow, by the `awf` program in the PATH.

    awf report --input format=pdf     ->     awf run report --input format=pdf
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from journeyman.config import RunnerSettings, ShellSettings
from journeyman.formats.ztick import Awf, Direct, Shell
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.runners import contract
from journeyman.runners.guardian import Guardian
from journeyman.timetables.run_options import RunOptions
from journeyman.units import MS_PER_S, NS_PER_S

# Nothing survives SIGKILL but a process inside a system call that never returns.
KILLED_LIMIT_S = 5.0
# The last output of a program may still be in the pipe when its end is noticed.
DRAIN_LIMIT_S = 0.1


class Programs:
    """Runs programs; shared by the shell, direct and awf runners."""

    def __init__(self, settings: RunnerSettings) -> None:
        self._settings = settings
        self._guardian = Guardian()
        self._lingering: set[ChildProcess] = set()

    @property
    def guardian_id(self) -> int | None:
        """Process id of the guardian, once there is one."""
        return self._guardian.process_id

    async def run(
        self, argv: Sequence[str], request: contract.RunRequest[RunnerRecord]
    ) -> contract.RunResult:
        """Start ``argv`` and wait for its end."""
        if any("\0" in word for word in argv):
            return contract.failed_run(
                "an argument holds a NUL byte, which no program can be given"
            )
        if "\0" in request.job_id:
            return contract.failed_run("the job id holds a NUL byte, which no program can be given")
        try:
            child = self._start(argv, request)
        except OSError as error:
            if error.errno is None:  # raised by _account
                return contract.failed_run(str(error))
            missing = request.options.directory
            if error.filename is not None and missing and os.fsdecode(error.filename) == missing:
                return contract.failed_run(
                    f"the directory {contract.quote_name(missing)} cannot be entered"
                )
            return contract.failed_run(start_reason(argv[0], error))
        try:
            return await self._watch(child, self._limit_ms(request.options))
        finally:
            try:
                await self._end(child)
            finally:
                self._guardian.release(child.group)

    async def close(self) -> None:
        for child in list(self._lingering):
            child.hang_up()
        # Waiting for a process blocks, but one whose pipe was closed ends at once.
        self._guardian.close()

    def _start(
        self, argv: Sequence[str], request: contract.RunRequest[RunnerRecord]
    ) -> ChildProcess:
        """Not a coroutine: between the start and the guarding of a program nothing comes."""
        account = self._account(request.options.user)
        self._guardian.start()
        child = ChildProcess(
            [word.encode() for word in argv],
            environment(os.environb, request),
            contract.BoundedOutput(self._settings.output_bytes),
            self._lingering.discard,
            request.options.directory or None,
            account,
        )
        self._guardian.guard(child.group)
        return child

    def _account(self, user: str) -> pwd.struct_passwd | None:
        """Return the account as whom a program is to run. None: that of the server."""
        if not user:
            return None
        if user not in self._settings.users:
            raise PermissionError(f"the user {contract.quote_name(user)} is not in runners.users")
        try:
            return pwd.getpwnam(user)
        except KeyError:
            raise PermissionError(
                f"there is no user {contract.quote_name(user)} on this machine"
            ) from None

    def _limit_ms(self, options: RunOptions) -> int:
        """The shorter of the run's own limit and that of the settings; 0: there is none."""
        limits = (options.timeout_s * MS_PER_S, self._settings.process_timeout_ms)
        return min(filter(None, limits), default=0)

    async def _watch(self, child: ChildProcess, limit_ms: int) -> contract.RunResult:
        if not await _within(limit_ms / 1000 if limit_ms else None, child.exited):
            return await self._stop(child, limit_ms)
        await _within(DRAIN_LIMIT_S, child.drained)
        reason = exit_reason(child.reap())
        output = child.output.text()
        return (
            contract.failed_run(reason, output)
            if reason
            else contract.RunResult(True, output=output)
        )

    async def _stop(self, child: ChildProcess, limit_ms: int) -> contract.RunResult:
        """End a program that ran too long: first it is asked to, then it is made to."""
        limit = f"ran longer than {contract.limit_text(limit_ms)}"
        child.signal(signal.SIGTERM)
        # The end of the output shows that its children have ended, too; asking the system whether
        # the group exists would count the dead whom no parent has buried yet.
        grace_s = self._settings.kill_grace_ms / 1000
        obeyed = await _within(grace_s, child.exited, child.drained)
        child.signal(signal.SIGKILL)
        if not await _within(KILLED_LIMIT_S, child.exited):
            return contract.failed_run(
                f"{limit} and did not end even on SIGKILL", child.output.text()
            )
        await _within(DRAIN_LIMIT_S, child.drained)
        how = " and was stopped" if obeyed else ", did not end on SIGTERM and was killed"
        return contract.failed_run(f"{limit}{how}", child.output.text())

    async def _end(self, child: ChildProcess) -> None:
        """Whatever happened, nothing of an unfinished run is left."""
        finished = child.exited.done()
        if not finished:
            child.signal(signal.SIGKILL)
        try:
            if await _within(KILLED_LIMIT_S, child.exited):
                child.reap()
        finally:
            if not finished:
                child.hang_up()
            elif not child.drained.done():
                self._lingering.add(child)


async def _within(limit_s: float | None, *events: asyncio.Future[None]) -> bool:
    """Wait for all of the events; whether they came in time."""
    _, missing = await asyncio.wait(events, timeout=limit_s)
    return not missing


READ_BYTES = 64 * 1024  # the capacity of a pipe


class ChildProcess:
    def __init__(
        self,
        argv: Sequence[bytes],
        env: Mapping[bytes, bytes],
        output: contract.BoundedOutput,
        when_drained: Callable[[ChildProcess], object],
        directory: str | None = None,
        account: pwd.struct_passwd | None = None,
    ) -> None:
        """Start it. Raises OSError if that is not possible.

        ``when_drained`` is called when the last writer has closed, or was hung up on.
        """
        self._loop = asyncio.get_running_loop()
        self._when_drained = when_drained
        self.output = output
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self.drained: asyncio.Future[None] = self._loop.create_future()
        groups = [] if account is None else os.getgrouplist(account.pw_name, account.pw_gid)
        self._process = subprocess.Popen(
            argv,
            bufsize=0,
            cwd=directory,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=groups if account is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        self.group = self._process.pid  # a new session: the process leads its group
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._loop.add_reader(self._pipe.fileno(), self._read)
        self._watch_exit()

    def signal(self, number: signal.Signals) -> None:
        # It has ended, or may no longer be signalled: either way there is nothing to do.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def reap(self) -> int:
        """The exit code of a process that has exited; negative: the signal that ended it."""
        return self._process.wait()

    def hang_up(self) -> None:
        """Read no more, even if something still writes."""
        if self.drained.done():
            return
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self.drained.set_result(None)
        self._when_drained(self)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self.output.feed(data)
        else:
            self.hang_up()

    def _watch_exit(self) -> None:
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            # Not Linux, or one that is old or locked down.
            name = f"program-{self.group}"
            threading.Thread(target=self._wait_in_thread, name=name, daemon=True).start()
            return

        def ended() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self.exited.set_result(None)

        self._loop.add_reader(descriptor, ended)

    def _wait_in_thread(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.exited.set_result, None)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Shells report so what they could not run; other programs keep to it, too.
_SHELL_STATUS = {126: " (found, but it cannot be executed)", 127: " (command not found)"}


def environment(
    inherited: Mapping[bytes, bytes], request: contract.RunRequest[RunnerRecord]
) -> dict[bytes, bytes]:
    """Bytes, so that a server in a locale without UTF-8 passes ids on unharmed."""
    own = (variable.partition("=") for variable in request.options.environment)
    facts = {} if request.facts is None else request.facts
    return {
        **inherited,
        **{name.encode(): value.encode() for name, _, value in own},
        b"JOURNEYMAN_JOB_ID": request.job_id.encode(),
        b"JOURNEYMAN_EXECUTION_NS": b"%d" % request.execution_ns,
        b"JOURNEYMAN_EXECUTION": iso_moment(request.execution_ns).encode(),
        **{
            f"JOURNEYMAN_NOTICE_{name.upper()}".encode(): _without_nul(value)
            for name, value in facts.items()
        },
    }


def _without_nul(value: object) -> bytes:
    """A value of the environment, in which no NUL byte can be."""
    return str(value).replace("\0", "").encode(errors="replace")


def iso_moment(moment_ns: int) -> str:
    """2026-03-30T14:00:00Z, with nine digits of a second's fraction if there is one."""
    whole_s, fraction_ns = divmod(moment_ns, NS_PER_S)
    # Not fromtimestamp(): on some systems it refuses moments before 1970.
    whole = (_EPOCH + timedelta(seconds=whole_s)).replace(tzinfo=None).isoformat()
    return f"{whole}.{fraction_ns:09}Z" if fraction_ns else f"{whole}Z"


def start_reason(program: str, error: OSError) -> str:
    """Why the program could not be started, from what the operating system said."""
    name = contract.quote_name(program)
    if not program:
        return "the rule names no program"
    if error.errno == errno.ENOENT:
        if shutil.which(program):
            return f"{name} cannot be started: its interpreter does not exist"
        where = "" if "/" in program else " in PATH"
        return f"{name} cannot be started: there is no such program{where}"
    if error.errno in (errno.EACCES, errno.EISDIR):
        return f"{name} cannot be started: it is not executable"
    if error.errno == errno.ENOEXEC:
        return f"{name} cannot be started: it is neither a program nor a script with a #! line"
    if error.errno == errno.E2BIG:
        return f"{name} cannot be started: its arguments are too long"
    cause = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"{name} cannot be started: {cause}"


def exit_reason(returncode: int) -> str:
    """How the program ended, in words; empty if it ended well. Negative codes are signals."""
    if returncode == 0:
        return ""
    if returncode < 0:
        return f"was killed by {_signal_name(-returncode)}"
    return f"exited with status {returncode}{_SHELL_STATUS.get(returncode, '')}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal


class ShellRunner:
    def __init__(self, programs: Programs, settings: ShellSettings) -> None:
        self._programs = programs
        self._prefix = (settings.path, *settings.args)

    async def run(self, request: contract.RunRequest[Shell]) -> contract.RunResult:
        return await self._programs.run((*self._prefix, request.runner.command), request)

    async def close(self) -> None:
        """The programs belong to their maker."""


class DirectRunner:
    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    async def run(self, request: contract.RunRequest[Direct]) -> contract.RunResult:
        runner = request.runner
        return await self._programs.run((runner.executable, *runner.args), request)

    async def close(self) -> None:
        """The programs belong to their maker."""


PROGRAM = "awf"


class AwfRunner:
    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    async def run(self, request: contract.RunRequest[Awf]) -> contract.RunResult:
        inputs = [word for value in request.runner.inputs for word in ("--input", value)]
        return await self._programs.run((PROGRAM, "run", request.runner.workflow, *inputs), request)

    async def close(self) -> None:
        """The programs belong to their maker."""
