"""The services of a server and their HTTP port, put together.

ServiceContext --> WorkqServer, KestrelServer --add, put--> the runner --> ZtickServer
                               |                                               |
                               +-------------------> HttpPort <----------------+

start    the others first: the schedule may have something for them at once. If one cannot
         start, those before it are closed again. Jobs run when all ports are open
stop     all ports close together; the logs of the others last, for what runs still add
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from journeyman.config.loading import DEFAULT_ORIGIN
from journeyman.runners.contract import AnyRunner
from journeyman.runners.runner_set import AddsWork, PutsItems
from journeyman.servers.core.metrics import Family, MeasuredDisk
from journeyman.servers.core.service import ServiceContext
from journeyman.servers.http.port import HttpPort
from journeyman.servers.kestrel.service import KestrelServer
from journeyman.servers.workq.service import WorkqServer
from journeyman.servers.ztick.service import ZtickServer

if TYPE_CHECKING:
    from journeyman.servers.core.follower_process import FollowerProcess
    from journeyman.servers.http.server import HttpServing
    from journeyman.servers.series.process import SeriesProcess

AnyService: TypeAlias = ZtickServer | WorkqServer | KestrelServer
MakesRunner: TypeAlias = Callable[[AddsWork | None, PutsItems | None], AnyRunner]


class Assembly:
    """See the module. Made on the event loop that will run it."""

    def __init__(
        self,
        context: ServiceContext,
        make_runner: MakesRunner,
        *,
        more_figures: Callable[[], list[Family]] = list,
        index: FollowerProcess | None = None,
        series: SeriesProcess | None = None,
    ) -> None:
        """``more_figures`` are shown together with those of the services."""
        settings = context.settings
        self._context = context
        self._index = index
        self._series = series
        self.work = work = WorkqServer(context) if settings.workq.enabled else None
        self.fan_out = fan_out = KestrelServer(context) if settings.kestrel.enabled else None
        if work is not None and fan_out is not None:
            work.put_event = fan_out.put
        runner = make_runner(
            None if work is None else work.add, None if fan_out is None else fan_out.put
        )
        self._others = [service for service in (work, fan_out) if service is not None]
        figures = [service.families for service in self._others]
        self.schedule = ZtickServer(context, runner, [*figures, more_figures])
        self._http: HttpPort | None = None
        self._console = ""  # its URL, once the HTTP port is open

    def addresses(self) -> dict[str, str]:
        """Where the services listen, and the URL of the console, by their names in messages."""
        named = {"schedule": self.schedule, "work_queue": self.work, "fan_out": self.fan_out}
        addresses = {
            name: str(service.address)
            for name, service in named.items()
            if service is not None and service.is_listening
        }
        return addresses | ({"console": self._console} if self._console else {})

    @property
    def services(self) -> Mapping[str, AnyService]:
        """The services that are enabled, by their names in messages."""
        services: dict[str, AnyService] = {"the schedule": self.schedule}
        if self.work is not None:
            services["the work queue"] = self.work
        if self.fan_out is not None:
            services["the fan-out queue port"] = self.fan_out
        return services

    def http_sockets(self) -> list[socket.socket]:
        """Copies of the sockets on which HTTP listens, if it does."""
        return [] if self._http is None else self._http.sockets()

    async def start(self) -> None:
        async with AsyncExitStack() as started:
            for service in self._others:
                await service.start()
                started.push_async_callback(service.close)
                started.push_async_callback(service.stop)
            await self.schedule.start()
            started.push_async_callback(self._close_schedule)
            await self._open_http()
            self.schedule.resume()
            started.pop_all()

    async def stop(self, hurry: asyncio.Event) -> int:
        """How many runs were cut off; ``hurry`` cuts the waiting for them short."""
        closing = asyncio.gather(*(service.stop() for service in self._others))
        await self.schedule.stop()
        if self._http is not None:
            await self._http.close()
        cut_off = await self.schedule.close(hurry)
        await closing
        for service in self._others:
            await service.close()
        return cut_off

    async def _close_schedule(self) -> None:
        """Close the schedule before anything has run."""
        hurry = asyncio.Event()
        hurry.set()
        await self.schedule.stop()
        await self.schedule.close(hurry)

    async def _open_http(self) -> None:
        context, settings, schedule = self._context, self._context.settings, self.schedule
        http, limits = settings.http, settings.limits
        if not http.enabled:
            return
        started_ns = context.clock.monotonic_ns()

        async def build(max_connections: int) -> HttpServing:
            # In a thread: the other ports answer while these modules are read.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, import_module, "journeyman.servers.http.server")
            from journeyman.servers.http.server import build_http
            from journeyman.servers.http.v1.backend import HttpBackend

            backend = HttpBackend(
                settings,
                context.origins,
                context.access,
                context.clock,
                context.messages,
                context.shared,
                cast(MeasuredDisk, context.disk),
                schedule,
                self.work,
                self.fan_out,
                started_ns,
                context.writes,
                context.ledger,
                self._index,
                self._series,
            )
            return await build_http(
                schedule.port_context,
                schedule.figures,
                backend,
                http.listen,
                max_connections=max_connections,
                timeout_s=limits.http_timeout_ms / 1000,
                body_bytes=limits.http_body_bytes,
                allowed_hosts=settings.access.allowed_hosts,
                allowed_origins=settings.access.allowed_origins,
            )

        port = HttpPort(schedule.port_context, build)
        try:
            address = await port.open(
                http.listen,
                handshake_timeout_s=limits.handshake_timeout_ms / 1000,
                socket_mode=int(settings.access.socket_mode, 8),
            )
        except OSError as error:
            if context.origins.get("http.listen") != DEFAULT_ORIGIN:
                raise
            # It was not configured: the other ports matter more.
            context.messages.warn(
                "HTTP is off; name another address with --http-listen", reason=error
            )
            return
        self._http = port
        scheme = "https" if settings.controller.tls_cert else "http"
        self._console = "" if address.path else f"{scheme}://{address}"
        context.messages.info(f"HTTP listens on {address}")
