"""awf <workflow> [--input <key=value>]...: a workflow, by the `awf` program in the PATH.

awf report --input format=pdf     ->     awf run report --input format=pdf
"""

from __future__ import annotations

from journeyman.formats.ztick import Awf
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.runners.process import Programs

PROGRAM = "awf"


class AwfRunner:
    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    async def run(self, request: RunRequest[Awf]) -> RunResult:
        inputs = [word for value in request.runner.inputs for word in ("--input", value)]
        return await self._programs.run((PROGRAM, "run", request.runner.workflow, *inputs), request)

    async def close(self) -> None:
        """The programs belong to whoever made them."""
