"""Programs as runs: start one, keep what it says, wait, and leave nothing of it behind.

                   exits by itself
    started ------------------------------> ended        exit 0 succeeds, all else fails
       |                                      ^
       |  time limit                          |
       +-----------> SIGTERM to the group ----+  all of it gone within the grace
       |                     | grace over     |
       |  cancelled          v                |
       +-----------> SIGKILL to the group ----+

- A program gets a session of its own, so that it and all it starts are one process group: signals
  go to the group, and a Ctrl-C meant for the server does not reach it.
- Standard input is empty; output and error output are one stream, read to its end as fast as it
  comes, of which head and tail are kept. A program never waits because nobody reads.
- The environment is the server's, and JOURNEYMAN_JOB_ID, JOURNEYMAN_EXECUTION_NS and
  JOURNEYMAN_EXECUTION (the same moment in ISO 8601).
- The run is over when the program is. What it left in the background lives on and is still read
  from, as long as the server lives; only a time limit or a cancellation ends it too.
- If the server is killed, the guardian ends what was running.

It is not a sandbox: a program that makes a session of its own escapes the group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

from journeyman.config import RunnerSettings
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.runners.child import Child
from journeyman.runners.contract import RunRequest, RunResult, failed, seconds
from journeyman.runners.guardian import Guardian
from journeyman.runners.output import BoundedOutput
from journeyman.runners.process_wording import environment, exit_reason, start_reason

# Nothing survives SIGKILL but a process inside a system call that never returns.
KILLED_LIMIT_S = 5.0
# What a program wrote last may still be in the pipe when its end is noticed.
DRAIN_LIMIT_S = 0.1


class Programs:
    """Runs programs; shared by the shell, direct and awf runners."""

    def __init__(self, settings: RunnerSettings) -> None:
        self._settings = settings
        self._guardian = Guardian()
        self._lingering: set[Child] = set()

    @property
    def guardian_id(self) -> int | None:
        """Process id of the guardian, once there is one."""
        return self._guardian.process_id

    async def run(self, argv: Sequence[str], request: RunRequest[RunnerRecord]) -> RunResult:
        """Start ``argv`` and wait for its end."""
        if any("\0" in word for word in argv):
            return failed("an argument holds a NUL byte, which no program can be given")
        if "\0" in request.job_id:
            return failed("the job id holds a NUL byte, which no program can be given")
        try:
            child = self._start(argv, request)
        except OSError as error:
            return failed(start_reason(argv[0], error))
        try:
            return await self._watch(child)
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

    def _start(self, argv: Sequence[str], request: RunRequest[RunnerRecord]) -> Child:
        """Not a coroutine: between the start and the guarding of a program nothing comes."""
        self._guardian.start()
        child = Child(
            [word.encode() for word in argv],
            environment(os.environb, request.job_id, request.execution_ns),
            BoundedOutput(self._settings.output_bytes),
            self._lingering.discard,
        )
        self._guardian.guard(child.group)
        return child

    async def _watch(self, child: Child) -> RunResult:
        limit_ms = self._settings.process_timeout_ms
        if not await _within(limit_ms / 1000 if limit_ms else None, child.exited):
            return await self._stop(child)
        await _within(DRAIN_LIMIT_S, child.drained)
        reason = exit_reason(child.reap())
        output = child.output.text()
        return failed(reason, output) if reason else RunResult(True, output=output)

    async def _stop(self, child: Child) -> RunResult:
        """End a program that ran too long: first it is asked to, then it is made to."""
        limit = f"ran longer than {seconds(self._settings.process_timeout_ms)}"
        child.signal(signal.SIGTERM)
        # The end of the output tells that its children are gone, too; asking the system whether
        # the group exists would count the dead whom no parent has buried yet.
        grace_s = self._settings.kill_grace_ms / 1000
        obeyed = await _within(grace_s, child.exited, child.drained)
        child.signal(signal.SIGKILL)
        if not await _within(KILLED_LIMIT_S, child.exited):
            return failed(f"{limit} and did not end even on SIGKILL", child.output.text())
        await _within(DRAIN_LIMIT_S, child.drained)
        how = " and was stopped" if obeyed else ", did not end on SIGTERM and was killed"
        return failed(f"{limit}{how}", child.output.text())

    async def _end(self, child: Child) -> None:
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
