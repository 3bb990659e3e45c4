"""shell <command>: the command, as the last argument of a shell.

    [shell]                      /bin/sh  -c  'backup.sh --all | mail ops'
    path = "/bin/sh"             -------  --  ---------------------------
    args = ["-c"]                 path   args          the rule

The text of the rule is the program here, whoever wrote it. The job id is not pasted into it: it
comes in $JOURNEYMAN_JOB_ID, where quotes and semicolons in it do no harm.
"""

from __future__ import annotations

from journeyman.config import ShellSettings
from journeyman.formats.ztick import Shell
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.runners.process import Programs


class ShellRunner:
    def __init__(self, programs: Programs, settings: ShellSettings) -> None:
        self._programs = programs
        self._prefix = (settings.path, *settings.args)

    async def run(self, request: RunRequest[Shell]) -> RunResult:
        return await self._programs.run((*self._prefix, request.runner.command), request)

    async def close(self) -> None:
        """The programs belong to whoever made them."""
