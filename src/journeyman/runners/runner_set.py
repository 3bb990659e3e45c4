"""One runner for each kind of runner record, behind one ``run``.

    request.runner    Shell Direct Awf      Http        Amqp  Redis      Queue        Journal
                            |                |            |     |          |             |
                        Programs        ClientSession    (nothing    the work queue, the fan-out
                     (one guardian)      (one pool)     is shared)    queues of this process

    async with RunnerSet(settings) as runners:
        result = await runners.run(RunRequest(job_id, execution_ns, rule.runner))

It does not decide how many run at once, or when: whoever holds it does. It is the last net: a
defect in a runner, or in a library below it, becomes a failed run with the traceback as its
output, not a server that stops.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Self

from journeyman.config import Settings
from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    Redis,
    Shell,
    WorkQueueRunner,
)
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.formats.ztick.layout import runner_word
from journeyman.runners.amqp import AmqpRunner
from journeyman.runners.contract import BoundedOutput, Runner, RunRequest, RunResult, failed
from journeyman.runners.http import HttpRunner
from journeyman.runners.programs import AwfRunner, DirectRunner, Programs, ShellRunner
from journeyman.runners.queues import AddsWork, JournalRunner, PutsItems, QueueRunner
from journeyman.runners.redis import RedisRunner


class RunnerSet:
    """Runs any request. Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings | None = None,
        add_work: AddsWork | None = None,
        put_item: PutsItems | None = None,
    ) -> None:
        """``add_work`` adds to the work queue, ``put_item`` to fan-out queues, where served."""
        settings = settings or Settings()
        self._settings = settings.runners
        self._programs = Programs(settings.runners)
        self._runners: dict[type[RunnerRecord], Runner[Any]] = {
            Shell: ShellRunner(self._programs, settings.shell),
            Direct: DirectRunner(self._programs),
            Awf: AwfRunner(self._programs),
            Http: HttpRunner(settings.runners),
            Amqp: AmqpRunner(settings.runners),
            Redis: RedisRunner(settings.runners),
            WorkQueueRunner: QueueRunner(add_work),
            FanOutRunner: JournalRunner(put_item),
        }

    async def run(self, request: RunRequest[RunnerRecord]) -> RunResult:
        """Do it, and say how it went. Raises nothing but CancelledError."""
        try:
            return await self._runners[type(request.runner)].run(request)
        except Exception as error:  # noqa: BLE001 - the last net; nothing is hidden by it
            output = BoundedOutput(self._settings.output_bytes)
            output.feed("".join(traceback.format_exception(error)).encode(errors="replace"))
            name = runner_word(request.runner)
            reason = f"the {name} runner broke: {type(error).__name__}: {error}"
            return failed(reason, output.text())

    async def close(self) -> None:
        """Give back what runs share. Runs still under way must be cancelled and awaited before."""
        for runner in self._runners.values():
            await runner.close()
        await self._programs.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
