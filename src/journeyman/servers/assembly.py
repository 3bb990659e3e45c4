"""The services of one server, put together; without a process, signals or a machine around them.

    ServiceContext --> WorkqServer, KestrelServer --add, put--> the runner --> ZtickServer

    start    the others first: the schedule may have something for them at once. If one cannot
             start, those before it are closed again
    stop     all close together; the logs of the others last, for what runs still add

process.py runs it on the machine, journeyman.testing.simulation on a simulated one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TypeAlias

from journeyman.runners.contract import AnyRunner
from journeyman.runners.queues import AddsWork, PutsItems
from journeyman.servers.core.service import ServiceContext
from journeyman.servers.kestrel.service import KestrelServer
from journeyman.servers.telemetry.metrics import Family
from journeyman.servers.workq.service import WorkqServer
from journeyman.servers.ztick.service import ZtickServer

AnyService: TypeAlias = ZtickServer | WorkqServer | KestrelServer
MakesRunner: TypeAlias = Callable[[AddsWork | None, PutsItems | None], AnyRunner]


class Assembly:
    """See the module. Made on the event loop that will run it."""

    def __init__(
        self,
        context: ServiceContext,
        make_runner: MakesRunner,
        *,
        more_figures: Callable[[], list[Family]] | None = None,
    ) -> None:
        """``more_figures`` are shown together with those of the services."""
        settings = context.settings
        self.work = work = WorkqServer(context) if settings.workq.enabled else None
        self.fan_out = fan_out = KestrelServer(context) if settings.kestrel.enabled else None
        if work is not None and fan_out is not None:
            work.put_event = fan_out.put
        runner = make_runner(
            None if work is None else work.add, None if fan_out is None else fan_out.put
        )
        self.schedule = ZtickServer(
            context, runner, work=work, fan_out=fan_out, more_figures=more_figures
        )
        # The work queue first: if it cannot open its store, no port has opened yet.
        self._others = [each for each in (work, fan_out) if each is not None]

    @property
    def services(self) -> Mapping[str, AnyService]:
        """Those that are enabled, by their names in messages."""
        found: dict[str, AnyService] = {"the schedule": self.schedule}
        if self.work is not None:
            found["the work queue"] = self.work
        if self.fan_out is not None:
            found["the fan-out queue port"] = self.fan_out
        return found

    async def start(self) -> None:
        async with AsyncExitStack() as started:
            for service in self._others:
                await service.start()
                started.push_async_callback(_shut, service)
            await self.schedule.start()
            started.pop_all()

    async def stop(self, hurry: asyncio.Event) -> int:
        """How many runs were cut off; ``hurry`` cuts the waiting for them short."""
        closing = asyncio.gather(*(service.stop() for service in self._others))
        cut_off = await self.schedule.stop_all(hurry)
        await closing
        for service in self._others:
            await service.close()
        return cut_off


async def _shut(service: WorkqServer | KestrelServer) -> None:
    await service.stop()
    await service.close()
