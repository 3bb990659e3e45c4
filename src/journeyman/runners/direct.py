"""direct <executable> [<argument>...]: a program and its arguments, and no shell between.

The arguments arrive as they stand in the rule: nothing is split, expanded or quoted. A name
without a slash is looked up in the PATH of the server.
"""

from __future__ import annotations

from journeyman.formats.ztick import Direct
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.runners.process import Programs


class DirectRunner:
    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    async def run(self, request: RunRequest[Direct]) -> RunResult:
        runner = request.runner
        return await self._programs.run((runner.executable, *runner.args), request)

    async def close(self) -> None:
        """The programs belong to whoever made them."""
