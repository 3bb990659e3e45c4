"""All routes of version 1, and the document that describes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import msgspec
from aiohttp import web

from journeyman.servers.http.audits import Audits
from journeyman.servers.http.document import describe
from journeyman.servers.http.routes import Route, Routes
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.fan_out import FanOutRoutes
from journeyman.servers.http.v1.log import LogRoutes
from journeyman.servers.http.v1.past import PastRoutes
from journeyman.servers.http.v1.schedule import ScheduleRoutes
from journeyman.servers.http.v1.server import ServerRoutes
from journeyman.servers.http.v1.timetables import TimetableRoutes
from journeyman.servers.http.v1.work import WorkRoutes

V1_DOCUMENT_PATH = "/v1/openapi.json"


@dataclass(frozen=True, slots=True)
class VersionOne:
    """The handlers, for the console as well."""

    schedule: ScheduleRoutes
    work: WorkRoutes
    fan_out: FanOutRoutes
    timetables: TimetableRoutes
    past: PastRoutes
    log: LogRoutes
    server: ServerRoutes

    @classmethod
    def of(cls, backend: HttpBackend) -> VersionOne:
        past = PastRoutes(backend)
        return cls(
            ScheduleRoutes(backend, past),
            WorkRoutes(backend, past),
            FanOutRoutes(backend),
            TimetableRoutes(backend, past),
            past,
            LogRoutes(backend, past),
            ServerRoutes(backend),
        )

    def routes(self) -> list[Route]:
        parts = (
            *(
                self.server,
                self.schedule,
                self.timetables,
                self.work,
                self.fan_out,
                self.log,
                self.past,
            ),
        )
        return [route for part in parts for route in part.routes()]


def add_version_1(app: web.Application, version: VersionOne, audits: Audits) -> None:
    routes = version.routes()

    @cache
    def document() -> bytes:
        """Made when it is asked for: few ask, and it takes a megabyte."""
        return msgspec.json.encode(describe(routes))

    async def openapi(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp asks so
        return web.Response(body=document(), content_type="application/json")

    app.router.add_get(V1_DOCUMENT_PATH, openapi, allow_head=False)
    Routes(routes, audits.note).add_to(app)

    async def close(_: web.Application) -> None:
        version.past.close()
        version.log.tail.close()
        version.server.figures_live.close()

    app.on_shutdown.append(close)
